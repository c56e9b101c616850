"""The time as the engine sees it, and how it waits: the machine's own, or that of a simulation.

The modules of this folder read the time here and nowhere else. A simulation runs alone in its process.
"""

from __future__ import annotations

import contextlib
import selectors
import time as _time
from typing import Any, Iterator, Protocol


class Clock(Protocol):
    """What takes the place of this module's functions."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since some moment, which nobody sets back."""

    def wait(self, selector: selectors.BaseSelector, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """What is readable after a wait of so many seconds at most."""


time, monotonic = _time.time, _time.monotonic


def wait(selector: selectors.BaseSelector, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
    """What is readable after a wait of so many seconds at most; at once if they are none."""
    return selector.select(max(0.0, seconds))


@contextlib.contextmanager
def replaced(by: Clock) -> Iterator[None]:
    """Let the engine of this process live by another clock."""
    names: dict[str, Any] = {name: globals()[name] for name in ("time", "monotonic", "wait")}
    globals().update({name: getattr(by, name) for name in names})
    try:
        yield
    finally:
        globals().update(names)
