"""`parallel_map` and `profile` by Metaflow's names: a function on several CPUs, and how long a block takes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from stoker.flows.exceptions import MetaflowException

A = TypeVar("A")
R = TypeVar("R")


class MulticoreException(MetaflowException):
    """A process of `parallel_map` failed."""


def parallel_imap_unordered(
    func: Callable[[A], R], iterable: Iterable[A], max_parallel: int | None = None, dir: str | None = None
) -> Iterator[R]:
    """The results of a function for each item, as they come, each in a forked process: also of closures and lambdas.

    `max_parallel` is the number of CPUs by default. Results are pickled; nothing is written to `dir`.
    """
    del dir
    limit = max_parallel or len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    running: dict[Connection, Any] = {}
    items = iter(iterable)
    try:
        while True:
            while len(running) < limit:
                try:
                    item = next(items)
                except StopIteration:
                    break
                receiver, sender = context.Pipe(duplex=False)
                sys.stdout.flush()
                sys.stderr.flush()
                process = context.Process(target=_call, args=(sender, func, item))
                process.start()
                sender.close()
                running[receiver] = process
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                yield _result(ready, running.pop(ready))
    finally:
        for receiver, process in running.items():
            process.terminate()
            process.join()
            receiver.close()


def parallel_map(
    func: Callable[[A], R], iterable: Iterable[A], max_parallel: int | None = None, dir: str | None = None
) -> list[R]:
    """The same, in the order of the items."""
    numbered = parallel_imap_unordered(
        lambda pair: (pair[0], func(pair[1])), enumerate(iterable), max_parallel=max_parallel, dir=dir
    )
    return [result for _, result in sorted(numbered, key=lambda pair: pair[0])]


def _call(sender: Connection, function: Callable[[Any], Any], item: Any) -> None:
    try:
        sender.send((True, function(item)))
    except BaseException as error:  # whatever it is, the process above is told
        traceback.print_exc()
        sender.send((False, f"{type(error).__name__}: {error}"))
        sys.exit(1)


def _result(receiver: Connection, process: Any) -> Any:
    try:
        good, value = receiver.recv()
    except EOFError:
        good, value = False, "it was ended"
    receiver.close()
    process.join()
    if not good:
        raise MulticoreException(f"a process of parallel_map failed: {value}")
    return value


@contextlib.contextmanager
def profile(label: str, stats_dict: MutableMapping[str, int] | None = None) -> Iterator[None]:
    """Measure a block: its milliseconds are printed, or added to `stats_dict[label]`."""
    if stats_dict is None:
        sys.stdout.write(f"PROFILE: {label} starting\n")
    began = time.time()
    yield
    took = int((time.time() - began) * 1000)
    if stats_dict is None:
        sys.stdout.write(f"PROFILE: {label} completed in {took}ms\n")
    else:
        stats_dict[label] = stats_dict.get(label, 0) + took
