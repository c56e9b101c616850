"""A warm worker on this machine: takes jobs from a socket, one after the other, until the socket closes.

Between jobs it restores what a step may have changed: the working directory, the environment, the handler of SIGTERM,
`sys.stdout` and `sys.stderr`; and it ends processes that the step left behind. After a step that closed its output, or
sent it elsewhere for good, it takes no further job.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import time
from typing import Any, Callable, Final, Sequence, TextIO

import attrs

from stoker.core import wire
from stoker.core.codec import from_json, to_json
from stoker.core.protocol import FunctionSource, ServerHello, StepResult, StepTask, WorkerEvent, WorkerJob
from stoker.store.blobs import Blobs
from stoker.system import system
from stoker.worker.imports import ImportWatch
from stoker.worker.notice import Notice
from stoker.worker.treememory import AttemptMemory, SharedPeak, own_size
from stoker.worker.worker import Worker, prepare

logger = logging.getLogger(__name__)

_LEFTOVER_GRACE: Final = 2.0
"""Seconds that processes left behind by a step get between SIGTERM and SIGKILL."""
_MUCH: Final = 32 << 20
"""Bytes that a step must leave behind for its garbage to be collected at once: that takes a millisecond, and much
longer where torch is imported."""
_KILL_PATIENCE: Final = 10.0
"""Seconds in which they must have died of SIGKILL. What has not is left to the fork server."""


def rehearse() -> None:
    """Do once, for all workers forked from this process, what each would do for its first job's messages."""
    source = FunctionSource(kind="module", module="a", qualname="a", path="a", root="a")
    task = StepTask(
        name="a", source=source, outputs=("a",), unpack=True, split=("a",), environment={"A": "a"}, track=("a",)
    )
    job = WorkerJob(job="a", step=1, inputs={"a": {}}, mark=True, timed=True, context={"a": "a"}, steps={"1": task})
    result = StepResult(job="a", ok=True, outputs={"a": {}}, start=1.0, end=1.0, cpu=1.0, peak=1, imports=("a",))
    for message in (job, result, WorkerEvent(kind="began", job="a", time=1.0)):
        from_json(type(message), to_json(message), strict=False)


def distribute(
    job: WorkerJob, step: StepTask, blobs: str, *, emit: Callable[[WorkerEvent], None], notice: Notice | None
) -> StepResult:
    """Run a distributed step by the agent, which is imported for the first of them."""
    from stoker.worker import agent

    return agent.run(job, step, blobs, emit=emit, notice=notice)


def serve(
    jobs: socket.socket,
    results: socket.socket,
    places: ServerHello,
    *,
    notice: Notice,
    peak: SharedPeak,
    imports: ImportWatch | None,
    libc: Any,
) -> None:
    """Run jobs until there are none; `libc` flushes C's own buffers so that a step's output stays with the step.

    `places` says where artifacts, checkpoints and what steps log of themselves are. `peak` is the page that this
    process shares with the sampler of its memory. With `imports`, the process ends after its first job, whose result
    says what it imported.
    """
    notice.listen()
    prepare()
    worker = Worker(
        Blobs(places.blobs),
        checkpoints=places.checkpoints,
        metrics=places.metrics,
        notice=notice,
        distribute=distribute,
    )
    worker.emit = lambda event: results.sendall(wire.framed(to_json(event)))
    memory = AttemptMemory(peak)
    steps: dict[int, StepTask] = {}
    home, environment, own_pid = os.getcwd(), _variables(), os.getpid()
    streams, output = (sys.stdout, sys.stderr), _output()
    held = own_size()
    memory.begin()
    while True:
        notice.idle = True
        data = b"" if notice.stop_requested else jobs.recv(wire.DATAGRAM_LIMIT)
        notice.idle = False
        if not data:
            return
        job = from_json(WorkerJob, wire.received(data), strict=False)
        steps.update({int(number): step for number, step in job.steps.items()})
        step = steps[job.step]
        os.environ.update(step.environment)
        if job.timed:
            worker.emit(WorkerEvent(kind="began", job=job.job, time=time.time()))
        result = worker.run(job, step)
        if os.getpid() != own_pid:
            os._exit(0 if result.ok else 1)  # a process that the step forked returned here: it is no worker
        bytes_held = memory.peak()
        if imports is not None and result.ok:
            result = attrs.evolve(result, imports=imports.seen())
        _flush(libc, streams)
        sys.stdout, sys.stderr = streams
        leftovers = _end_leftovers()
        has_output = _output() == output and all(_is_open(stream) for stream in streams)
        if job.mark and has_output:
            line = wire.MARK + job.job.encode() + b"\n"
            _write(1, line)
            _write(2, line)
        notice.listen()
        # A process that was asked to end will be killed: nothing else may begin here.
        retired = imports is not None or bool(leftovers) or notice.stop_requested
        retired = retired or not has_output or not _is_back_in(home)
        result = attrs.evolve(result, peak=max(result.peak, bytes_held), left=result.left + leftovers, retired=retired)
        results.sendall(wire.framed(to_json(result)))
        if retired:
            _flush(libc, streams)
            return
        # What the next job needs is done while the driver works on this one's result.
        if _variables() != environment:
            os.environb.clear()
            os.environb.update(environment)
        if bytes_held > held + _MUCH:
            held = _collect(held)
        memory.begin()


def _variables() -> dict[bytes, bytes]:
    """A copy of the environment. It is taken after every step, and `os.environb` itself runs code of Python's for each
    variable, of which a cluster's job has hundreds: this is the dict that it keeps them in."""
    return dict(getattr(os.environb, "_data", os.environb))


def _output() -> list[tuple[int, int] | None]:
    """The files behind the two descriptors for output; None for one that is closed."""
    files: list[tuple[int, int] | None] = []
    for descriptor in (1, 2):
        try:
            found = os.fstat(descriptor)
        except OSError:
            files.append(None)
        else:
            files.append((found.st_dev, found.st_ino))
    return files


def _is_open(stream: TextIO) -> bool:
    try:
        return not stream.closed
    except ValueError:
        return False  # the step detached its buffer


def _flush(libc: Any, streams: Sequence[TextIO]) -> None:
    """Flush C's buffers, and Python's: the worker's own and what the step put in their place."""
    for stream in (sys.stdout, sys.stderr, *streams):
        try:
            stream.flush()
        except Exception:  # the step closed it, or put an object of the user's in its place
            continue
    if libc is not None:
        libc.fflush(None)


def _collect(held: int) -> int:
    """Collect the cycles that a step left, where they may be large: the next step's peak would count them. Returns what
    this process holds of itself: `held` before the step."""
    if own_size() <= held + _MUCH:
        return held
    gc.collect()
    return own_size()


def _write(descriptor: int, data: bytes) -> None:
    try:
        os.write(descriptor, data)
    except OSError:
        return  # the step closed it: there is no output that could be mixed up


def _is_back_in(folder: str) -> bool:
    try:
        if os.getcwd() != folder:
            os.chdir(folder)
    except OSError:
        return False  # the step removed the folder; the next one gets a fresh process
    return True


def _end_leftovers() -> int:
    """End the processes that a step left behind, also those outside its group; returns how many there were."""
    if not _children_remain():
        return 0
    _shut_down_libraries()
    signalled: set[int] = set()
    deadline = time.monotonic() + _LEFTOVER_GRACE
    number = signal.SIGTERM
    while _children_remain():
        now = time.monotonic()
        if now > deadline + _KILL_PATIENCE:
            break
        if now > deadline:
            number = signal.SIGKILL
        for child in system.children_of(os.getpid()):
            if child not in signalled or number == signal.SIGKILL:
                signalled.add(child)
                _kill(child, number)
        time.sleep(0.005)
    return len(signalled)


def _shut_down_libraries() -> None:
    """Let libraries end their own processes, as when a program ends: this one would die of Ray's being killed."""
    ray: Any = sys.modules.get("ray")
    try:
        if ray is not None and ray.is_initialized():
            ray.shutdown()
    except Exception as error:  # a module of the user's may have this name; what is left is ended all the same
        logger.debug("ray was not shut down: %r", error)


def _children_remain() -> bool:
    """Whether a child process is still alive; those that ended are reaped."""
    while True:
        try:
            child, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if child == 0:
            return True


def _kill(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return
