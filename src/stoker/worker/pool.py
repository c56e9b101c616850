"""The program of a job of a platform that stays and takes other jobs, one after another.

    python -m stoker.worker.pool FOLDER NAME

FOLDER is a pool (`core.orders`), NAME this worker's name in it. For each order the worker forks a process that does
what `worker.boot` does in a job of its own: a fresh process, with the order's own output files and result. What boot
needs is imported once. An order is run by whoever makes its claim, so that it is run once however many workers there
are.

SIGTERM ends the running job within its grace, SIGUSR1 warns it; the worker takes nothing more after either.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any, Final

from stoker.core import wire
from stoker.core.codec import from_json, parse_json
from stoker.core.errors import SettingsError
from stoker.core.orders import (
    CLAIMS,
    IDLE,
    LIFETIME,
    ORDERS,
    REMAINS,
    SIGNAL,
    SPEC,
    TOLD,
    BootSpec,
    PoolNote,
    PoolOrder,
    PoolSpec,
    documents,
    journal_of,
    line,
    wake_of,
    whole,
)
from stoker.core.protocol import RESULT, StepResult
from stoker.system import system
from stoker.worker import boot, imports, processes
from stoker.worker.ahead import SIGNALS, JobProgram, NextProgram, rehearse

SOON: Final = 0.004
"""Seconds between two looks for orders at least."""
LATER: Final = 0.25
"""Seconds between two looks for orders at most, and while a job runs."""
SHARE_OF_IDLE: Final = 0.1
"""Part of the time without an order that is the pause before the next look: an order that comes soon waits for little,
and the file server is asked fifty times before the pause is the longest."""
REMAINS_PATIENCE: Final = 5.0
"""Seconds for a job's remaining processes to die of SIGKILL."""
_TURN: Final = 0.01
LATE_IMPORTS: Final = ("stoker.images.context", "stoker.worker.boot", "stoker.worker.worker")
"""What boot imports when a job needs it."""


class OrderFile:
    """Reads the driver's orders. The file is opened anew for each look: only then does NFS ask the server."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[PoolOrder]:
        """The orders that were appended since the last call; raises `OSError` where the folder is gone."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = whole(file.read())
        self._offset += len(data)
        return list(documents(PoolOrder, data))


class PoolWorker:
    """One worker: at most one job at a time."""

    def __init__(self, folder: str, name: str, spec: PoolSpec) -> None:
        self._folder = folder
        self._name = name
        self._spec = spec
        self._started = time.monotonic()
        self._libc = system.libc()
        self._orders = OrderFile(os.path.join(folder, ORDERS))
        self._journal = os.open(
            os.path.join(folder, journal_of(name)), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._waiting: dict[int, PoolOrder] = {}
        """Orders that nobody has claimed, as far as this worker knows."""
        self._running: PoolOrder | None = None
        self._pid = 0
        self._kill_at = float("inf")
        self._runs = 0
        self._last_work = self._started
        self._closed = ""
        self._warned = False
        self._next = NextProgram(self._libc, self._close_sources)
        self._wakeup = wire.Wakeup()
        self._sources = [self._wakeup.descriptor, *_fifo(os.path.join(folder, wake_of(name)))]
        self._present = {place: frozenset(_names(place)) for place in spec.emptied}
        """What the folders to be emptied held before the first order."""

    def run(self) -> None:
        """Take orders until it is time to leave."""
        self._note(up=socket.gethostname(), pid=os.getpid())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._wakeup.writer(), warn_on_full_buffer=False)
        processes.become_subreaper(self._libc)
        while True:
            self._read_orders()
            self._reap()
            if self._running is None and not self._closed:
                self._begin_next()
            if self._running is None and (why := self._why_leave()):
                self._next.close()
                self._note(closed=why)
                return
            if self._running is None and self._runs:
                self._next.fork()
            if time.monotonic() >= self._kill_at:
                self._kill_at = float("inf")
                self._signal(signal.SIGKILL)
            ready, _, _ = select.select(self._sources, [], [], self._pause())
            if self._wakeup.descriptor in ready:
                self._wakeup.clear()
            for descriptor in ready:
                if descriptor != self._wakeup.descriptor:
                    os.read(descriptor, select.PIPE_BUF)

    def _note(self, **fields: Any) -> None:
        os.write(self._journal, line(PoolNote(time=time.time(), **fields)))

    def _on_signal(self, number: int, frame: Any) -> None:
        self._closed = self._closed or SIGNAL
        self._warned = self._warned or number == signal.SIGUSR1
        self._signal(signal.SIGTERM if number == signal.SIGINT else number)

    def _signal(self, number: int) -> None:
        """Pass a signal on to the running job's program."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _pause(self) -> float:
        now = time.monotonic()
        idle = now - self._last_work
        pause = LATER if self._running is not None else min(max(SOON, SHARE_OF_IDLE * idle), LATER)
        return max(0.0, min(pause, self._kill_at - now))

    def _why_leave(self) -> str:
        """Why an idle worker leaves now; empty while it stays."""
        if self._closed:
            return self._closed
        idle, now = self._spec.idle_after, time.monotonic()
        if self._waiting and self._runs and not any(self._fits(order) for order in self._waiting.values()):
            return LIFETIME
        return IDLE if idle and now - self._last_work >= idle else ""

    # Orders

    def _read_orders(self) -> None:
        for order in self._orders.read():
            if order.close:
                self._closed = self._closed or TOLD
            elif not order.end:
                self._waiting[order.number] = order
            elif self._running is not None and order.number == self._running.number:
                self._end_running(order.grace)
            else:
                self._waiting.pop(order.number, None)

    def _end_running(self, grace: float) -> None:
        if grace > 0:
            self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _fits(self, order: PoolOrder) -> bool:
        """Whether the lifetime suffices for an order; a worker's first one has it all, as in a job of its own."""
        lifetime = self._spec.lifetime
        return not lifetime or not self._runs or time.monotonic() - self._started + order.seconds <= lifetime

    def _begin_next(self) -> None:
        """Claim the first order that nobody has, and begin it."""
        if len(self._waiting) > 1:
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(os.path.join(self._folder, CLAIMS)):
                    if name.isdecimal():
                        self._waiting.pop(int(name), None)
        for number in sorted(self._waiting):
            order = self._waiting[number]
            if not self._fits(order):
                continue
            del self._waiting[number]
            if claim(self._folder, number, self._name):
                self._start(order)
                return

    def _start(self, order: PoolOrder) -> None:
        self._note(claimed=order.number)
        self._running, self._runs = order, self._runs + 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        program = JobProgram(
            spec=order.spec,
            out=order.out,
            err=order.err,
            sync=not self._sources[1:],
            merged=bool(order.out) and order.out == order.err,
        )
        self._pid = self._next.start(program)
        if self._closed == SIGNAL:  # it came before there was a process to pass it on to
            self._signal(signal.SIGUSR1 if self._warned else signal.SIGTERM)
        if self._runs == 1:
            self._import_ahead(order)

    def _import_ahead(self, order: PoolOrder) -> None:
        """Import what the next jobs need while the first one runs, and work out how their documents are read."""
        for module in self._spec.imports:
            with contextlib.suppress(ImportError):  # the job that imports it says so
                importlib.import_module(module)
        rehearse()
        with contextlib.suppress(OSError, SettingsError), open(order.spec, "rb") as file:
            from_json(BootSpec, parse_json(file.read()), strict=False)
        _freeze()

    def _close_sources(self) -> None:
        """In a process forked for an order: close what is the worker's."""
        self._wakeup.close()
        for descriptor in (self._journal, *self._sources[1:]):
            os.close(descriptor)

    def _reap(self) -> None:
        """Note the end of the running job, once nothing is left of it."""
        ended: int | None = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._pid:
                    ended = os.waitstatus_to_exitcode(status)
        if ended is None or self._running is None:
            return
        self._pid, self._kill_at = 0, float("inf")
        remains = not end_remains()
        if remains:
            self._closed = REMAINS
        self._next.over(remains=remains)
        self._empty()
        self._note(over=self._running.number, code=ended)
        order, self._running, self._last_work = self._running, None, time.monotonic()
        if imports.load(_imports(order.spec)):
            _freeze()

    def _empty(self) -> None:
        """Remove what an order's program left in the folders to be emptied."""
        for place, present in self._present.items():
            for name in _names(place):
                path = os.path.join(place, name)
                if name not in present and path != self._next.place:
                    if os.path.isdir(path) and not os.path.islink(path):
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        with contextlib.suppress(OSError):
                            os.unlink(path)


def end_remains() -> bool:
    """Kill what a job left; this process is the parent of all that lost theirs. Whether nothing is left."""
    late = time.monotonic() + REMAINS_PATIENCE
    while remaining := processes.descendants(os.getpid()):
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > late:
            return False
        time.sleep(_TURN)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
    return True


def _freeze() -> None:
    """Let the processes forked from now on share what is in memory."""
    gc.collect()
    gc.freeze()


def _imports(spec: str) -> tuple[str, ...]:
    """What the step of a job that is over imported, by its result; nothing where that is not a file of this place."""
    with contextlib.suppress(OSError, SettingsError), open(boot.beside(spec, RESULT), "rb") as file:
        return from_json(StepResult, parse_json(file.read()), strict=False).imports
    return ()


def _names(folder: str) -> list[str]:
    """What is in a folder; nothing in one that is not there."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _fifo(path: str) -> list[int]:
    """A descriptor of a FIFO that never reports its end, as the one that writes may come and go; none without it."""
    with contextlib.suppress(OSError):
        return [os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)]
    return []


def claim(folder: str, number: int, name: str) -> bool:
    """Take an order of a pool under a name; False where somebody has it already."""
    path = os.path.join(folder, CLAIMS, str(number))
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(file, name.encode())
    finally:
        os.close(file)
    return True


def main(arguments: list[str] | None = None) -> int:
    """Work for the pool in FOLDER as NAME; 0 where it left by its own rules, 2 where FOLDER is no pool."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 2:
        sys.stderr.write("usage: python -m stoker.worker.pool FOLDER NAME\n")
        return 2
    folder, name = words
    path = os.path.join(folder, SPEC)
    try:
        with open(path, encoding="utf-8") as file:
            spec = from_json(PoolSpec, parse_json(file.read(), where=path), strict=False, where=path)
    except (OSError, SettingsError) as error:
        sys.stderr.write(f"{path} cannot be read: {error}\n")
        return 2
    for module in LATE_IMPORTS:
        importlib.import_module(module)
    imports.load(spec.preload)
    _freeze()
    os.makedirs(os.path.join(folder, CLAIMS), exist_ok=True)
    PoolWorker(folder, name, spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
