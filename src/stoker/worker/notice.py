"""How a step is asked to end: a page of memory that its process shares with the process that ends it, and with forks.

SIGTERM asks, SIGKILL follows when the grace is over. A step that has looked whether it should stop is not interrupted:
it ends by itself, and only its own process gets the signal, so that what it needs for a checkpoint, such as a data
loader's workers, lives on. Just before the grace is over a second SIGTERM, to all of its processes, interrupts it too.
A step that never looked is interrupted at once.

A platform may warn before the limit of a job's time (`write_warning`): a step that looks then sees that it should stop,
and one that does not goes on undisturbed until the signal comes.

Signals are handled in a process's main thread only, which is where steps run.
"""

from __future__ import annotations

import _thread
import importlib
import mmap
import os
import signal
import struct
import time
from typing import Any, Callable, Final

_DEADLINE: Final = struct.Struct("d")
"""The page's first field: when the grace ends, by the monotonic clock that all processes of a machine share; 0 where
that is not known."""
_ASKED: Final = _DEADLINE.size
_LOOKS: Final = _ASKED + 1
_LAST: Final = _ASKED + 2
_SIZE: Final = _ASKED + 3
_INTERRUPTED: Final = 1
_LEFT_ALONE: Final = 2
_FINALLY: Final = 1.0
"""Seconds that a step which was left alone gets for its `finally` blocks, of a grace of four times as much or more."""
# signal.getsignal is this and a look into an enum, which takes 7 µs for a handler of ours, after every step.
_handler_of: Final[Callable[[int], Any]] = importlib.import_module("_signal").getsignal


def write_warning(path: str, seconds: float) -> None:
    """Write into a job's `make_limit_file` that its platform ends it in so many seconds."""
    with open(path, "r+b") as file:
        file.write(_DEADLINE.pack(time.monotonic() + seconds))


def make_limit_file(path: str) -> None:
    """Make the file for a warning before the limit; all processes of the job on this machine share it."""
    with open(path, "wb") as file:
        file.write(_DEADLINE.pack(0.0))


class Terminated(SystemExit):
    """SIGTERM arrived: the step is asked to leave, with its `finally` blocks run."""

    def __str__(self) -> str:
        return "the step was asked to end, by SIGTERM"


class Notice:
    """The shared page, for the process that ends a step and for the step's own.

    `grace` is the time in seconds between SIGTERM and SIGKILL where their sender cannot write into the page. The page
    is made before the step's process is forked, or by that process itself.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._page = mmap.mmap(-1, _SIZE)
        self._grace = grace
        self._owner = 0
        self._raised = False
        self._limit: mmap.mmap | None = None
        self.idle = False
        """Whether no step runs, so that a signal ends the process. The loop that waits for jobs sets it."""

    # The process that ends the step

    def tell(self, grace: float) -> bool:
        """Give the step `grace` seconds; returns whether it ends by itself: then only its own process gets SIGTERM."""
        deadline = time.monotonic() + grace
        before: float = _DEADLINE.unpack_from(self._page)[0]
        _DEADLINE.pack_into(self._page, 0, min(before, deadline) if before else deadline)
        self._ask()
        return self._page[_ASKED] == _LEFT_ALONE

    def last_call(self) -> float:
        """When to `insist`, on the monotonic clock, for a step that ends by itself within its grace."""
        deadline: float = _DEADLINE.unpack_from(self._page)[0]
        return deadline - min(_FINALLY, (deadline - time.monotonic()) / 4)

    def insist(self) -> None:
        """Make the next SIGTERM interrupt the step, whatever it does."""
        self._page[_LAST] = 1

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()

    # The step's process

    def listen(self) -> None:
        """Handle this process's SIGTERM; called in its main thread, again after a step that may have changed it."""
        self._owner = os.getpid()
        if _handler_of(signal.SIGTERM) != self._on_sigterm:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def watch_limit(self, path: str) -> None:
        """Map a job's file of its limit, so that `limit` shows a warning."""
        with open(path, "r+b") as file:
            self._limit = mmap.mmap(file.fileno(), _DEADLINE.size, prot=mmap.PROT_READ)

    @property
    def stop_requested(self) -> bool:
        """Whether the step is to end."""
        return self._page[_ASKED] != 0

    @property
    def limit(self) -> float:
        """When the platform ends the job, on the monotonic clock; 0 as long as it has not warned."""
        return 0.0 if self._limit is None else float(_DEADLINE.unpack_from(self._limit)[0])

    def look(self) -> bool:
        """Whether the step is to end, asked by the step itself: from now until its end it is not interrupted."""
        # A forked process looks for itself alone: that does not mean that its parent does.
        if not self._page[_LOOKS] and os.getpid() == self._owner:
            self._page[_LOOKS] = 1
        return self._page[_ASKED] != 0 or self.limit != 0

    def seconds_left(self) -> float | None:
        """Seconds until the grace is over; None where the step is not asked to end, or the end is not known."""
        deadline: float = _DEADLINE.unpack_from(self._page)[0] if self.stop_requested else self.limit
        return max(0.0, deadline - time.monotonic()) if deadline else None

    def over(self) -> None:
        """Mark the step as over: the next one has not looked yet."""
        if self._page[_LOOKS] and os.getpid() == self._owner:
            self._page[_LOOKS] = 0

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if os.getpid() != self._owner:
            # A process that the step forked ends on its own.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise Terminated(128 + number)
        if not self.stop_requested:
            self._from_outside()
        patient = self._page[_ASKED] == _LEFT_ALONE and not self.idle
        if self._raised or (patient and not (self._page[_LAST] and self._page[_LOOKS])):
            return
        self._raised = True
        raise Terminated(128 + number)

    def _from_outside(self) -> None:
        """Handle a signal whose sender did not write into the page."""
        if self._grace is None:
            self._ask()
        elif self.tell(self._grace):
            # Not by threading.Thread: its locks may be held by the very code that the signal interrupted. Nor by
            # SIGALRM, which may be the step's own.
            _thread.start_new_thread(self._insist_later, (self.last_call(),))

    def _insist_later(self, when: float) -> None:
        time.sleep(max(0.0, when - time.monotonic()))
        self.insist()
        os.kill(os.getpid(), signal.SIGTERM)

    def _ask(self) -> None:
        if not self._page[_ASKED]:
            self._page[_ASKED] = _LEFT_ALONE if self._page[_LOOKS] else _INTERRUPTED
