"""The garbage collector, while much is made that stays."""

from __future__ import annotations

import contextlib
import gc
from typing import Final, Iterator

_NEW_OBJECTS: Final = 20_000
"""New objects after which the collector looks at them, while modules are imported and a plan is made."""


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the garbage collector look at new objects less often than after 700: nearly all that a run makes at its start
    stays, and a tenth of a small run's CPU time went into looking at it again and again.

    Bodies of dynamic programs and steps under `--debug` run as their user set the collector.
    """
    young, *older = gc.get_threshold()
    if 0 < young < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *older)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _NEW_OBJECTS:
            gc.set_threshold(young, *older)
