"""Signals that end the containers of an attempt: one now, one when the grace is over."""

from __future__ import annotations

import threading
from typing import Callable


class EndSignals:
    """Sends signals by `send`, in threads of their own: an engine may take its time to answer."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._timers: list[threading.Timer] = []

    def end(self, grace: float) -> None:
        """SIGTERM now and SIGKILL after the grace; SIGKILL at once where there is none."""
        for seconds, signal in ((0.0, "SIGTERM"), (grace, "SIGKILL")) if grace > 0 else ((0.0, "SIGKILL"),):
            timer = threading.Timer(seconds, self._send, (signal,))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def close(self) -> None:
        """Send nothing more."""
        for timer in self._timers:
            timer.cancel()
