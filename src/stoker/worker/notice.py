"""How a step is asked to end: a page of memory that its process shares with whoever ends it, and with its forks.

SIGTERM asks, SIGKILL follows when the grace is over. A step that has looked whether it should stop is not interrupted:
it ends by itself, and only its own process gets the signal, so that what it needs for a checkpoint, such as a data
loader's workers, lives on. Just before the grace is over a second SIGTERM, to all of its processes, interrupts it too.
A step that never looked is interrupted at once.

A platform may warn before the limit of a job's time (`warned`): then a step that looks sees that it should stop, and
one that does not goes on undisturbed until the signal comes.

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
"""Begins the page: when the grace ends, by the monotonic clock that all processes of a machine share; 0: unsaid."""
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


def warned(path: str, seconds: float) -> None:
    """Write into a job's file of its limit that its platform ends it in so many seconds; made with `limit_file`."""
    with open(path, "r+b") as file:
        file.write(_DEADLINE.pack(time.monotonic() + seconds))


def limit_file(path: str) -> None:
    """Make the file in which a warning will stand; all processes of the job on this machine share it."""
    with open(path, "wb") as file:
        file.write(_DEADLINE.pack(0.0))


class Terminated(SystemExit):
    """SIGTERM arrived: the step is asked to leave, with its `finally` blocks run."""

    def __str__(self) -> str:
        return "the step was asked to end, by SIGTERM"


class Notice:
    """The page, from both sides. `grace`: seconds between SIGTERM and SIGKILL where who sends them cannot write here.

    Made before the step's process is forked, or by that process itself.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._page = mmap.mmap(-1, _SIZE)
        self._grace = grace
        self._owner = 0
        self._raised = False
        self._limit: mmap.mmap | None = None
        self.idle = False
        """Nothing runs: a signal ends the process. Set by whoever waits for jobs."""

    # Whoever ends the step

    def tell(self, grace: float) -> bool:
        """Say that the step has `grace` seconds; whether it is left alone: then only its own process gets SIGTERM."""
        deadline = time.monotonic() + grace
        before: float = _DEADLINE.unpack_from(self._page)[0]
        _DEADLINE.pack_into(self._page, 0, min(before, deadline) if before else deadline)
        self._ask()
        return self._page[_ASKED] == _LEFT_ALONE

    def last_call(self) -> float:
        """When to `insist`, on the monotonic clock, of a step that is left alone for the grace that it was told."""
        deadline: float = _DEADLINE.unpack_from(self._page)[0]
        return deadline - min(_FINALLY, (deadline - time.monotonic()) / 4)

    def insist(self) -> None:
        """Say that the next SIGTERM interrupts the step, whatever it does."""
        self._page[_LAST] = 1

    def close(self) -> None:
        """Let the page go."""
        self._page.close()

    # The step's process

    def listen(self) -> None:
        """Take this process's SIGTERM; in its main thread. Again after a step that may have taken it for itself."""
        self._owner = os.getpid()
        if _handler_of(signal.SIGTERM) != self._heard:
            signal.signal(signal.SIGTERM, self._heard)

    def heed(self, path: str) -> None:
        """Take a job's `limit_file` into account."""
        with open(path, "r+b") as file:
            self._limit = mmap.mmap(file.fileno(), _DEADLINE.size, prot=mmap.PROT_READ)

    @property
    def asked(self) -> bool:
        """Whether the step is to end."""
        return self._page[_ASKED] != 0

    @property
    def limit(self) -> float:
        """When the platform ends the job, on the monotonic clock; 0 as long as it has not warned."""
        return 0.0 if self._limit is None else float(_DEADLINE.unpack_from(self._limit)[0])

    def look(self) -> bool:
        """The step itself asks whether it is to end: from now on, and until it is over, it is left alone."""
        # A forked process looks on its own behalf: it says nothing of what its parent does.
        if not self._page[_LOOKS] and os.getpid() == self._owner:
            self._page[_LOOKS] = 1
        return self._page[_ASKED] != 0 or self.limit != 0

    def left(self) -> float | None:
        """Seconds until the grace is over; None where the step is not asked to end, or nobody said when."""
        deadline: float = _DEADLINE.unpack_from(self._page)[0] if self.asked else self.limit
        return max(0.0, deadline - time.monotonic()) if deadline else None

    def over(self) -> None:
        """The step is over: the next one has not looked yet."""
        if self._page[_LOOKS] and os.getpid() == self._owner:
            self._page[_LOOKS] = 0

    def _heard(self, number: int, frame: Any) -> None:
        if os.getpid() != self._owner:
            # A process that the step forked, whose end is its own affair.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise Terminated(128 + number)
        if not self.asked:
            self._from_outside()
        patient = self._page[_ASKED] == _LEFT_ALONE and not self.idle
        if self._raised or (patient and not (self._page[_LAST] and self._page[_LOOKS])):
            return
        self._raised = True
        raise Terminated(128 + number)

    def _from_outside(self) -> None:
        """A signal of which the page knew nothing."""
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
