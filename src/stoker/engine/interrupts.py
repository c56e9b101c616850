"""Ctrl-C and SIGTERM end a run gracefully; a second one ends it now."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Callable, Iterator, Protocol

from stoker.core.observer import Observer


class Stoppable(Protocol):
    """A run that can be stopped."""

    def stop(self) -> None:
        """Ask once for a graceful end, twice for one at once; safe in a signal handler."""

    def post(self, work: Any) -> None:
        """Have something done in the thread that may write to the terminal."""


@contextlib.contextmanager
def interrupts(runner: Stoppable, observer: Observer, *, computing: Callable[[], bool]) -> Iterator[None]:
    """Within the context, signals stop the runner; without effect in another thread than the main one.

    While `computing`, this thread runs the user's code: a second signal interrupts that, too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def stop_run(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        text = "stopping: steps that run are asked to end (again: at once)" if count == 1 else "stopping at once"
        runner.post(lambda: observer.message(text))
        runner.stop()
        if count > 1 and computing():
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, stop_run) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
