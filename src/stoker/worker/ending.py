"""Signals to the program of a job that runs elsewhere: asked to end, or warned that the job's time is nearly over."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from stoker.core.wire import Wakeup

_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
_WARNS: Final = signal.SIGUSR1


class Ending:
    """Signals, heard from the first moment on: as the first process of a container it has no defaults.

    `mark` is a file that stands for the warning where a signal would reach the step's own processes too.
    """

    def __init__(self, mark: str) -> None:
        self.asked = False
        self._mark = mark
        self._warned = False
        self.wakeup = Wakeup()
        for number in _ENDS:
            signal.signal(number, self._heard)
        signal.signal(_WARNS, self._heard_warning)

    def _heard(self, number: int, frame: Any) -> None:
        self.asked = True
        self.wakeup.set()

    def _heard_warning(self, number: int, frame: Any) -> None:
        self._warned = True
        self.wakeup.set()

    def warned(self) -> bool:
        """Whether the job's time is nearly over."""
        return self._warned or os.path.exists(self._mark)

    def forget(self) -> None:
        """In a child: its signals are its own again. SIGTERM is passed over, which Slurm sends to all processes of a
        job: what the child serves must not end with it before it has been told to."""
        for number in (*_ENDS, _WARNS):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL)
        self.wakeup.close()
