"""What a called pipeline reaches first: it starts the fork server, and then imports the driver while that boots.

Kept apart from the driver because the driver's imports take as long as the fork server's start.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping

from stoker.core.errors import UsageError
from stoker.core.request import RunRequest
from stoker.pipelines.scripts import watch_script
from stoker.report.guarded import open_missing
from stoker.worker import spare

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.run.program import Program

_NEW_OBJECTS: Final = 20_000
"""New objects after which the garbage collector looks at them, while modules are imported and a plan is made."""


def run(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a program to its end, or with `detach` to its beginning; see `driver.run`."""
    open_missing()
    watch_script()
    if request.detach and request.debug:
        raise UsageError("--debug runs every step in this process, which --detach leaves", fix="leave one of them out")
    if not request.debug and not request.detach:
        spare.start(program.worker_imports)
    try:
        with _seldom_collected():
            from stoker.run import driver

            if not program.dynamic and not request.debug:
                return driver.run(program, arguments, request)
        return driver.run(program, arguments, request)
    finally:
        spare.discard()


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let the garbage collector look at new objects less often than after 700: nearly all that a run makes here stays,
    and a tenth of a small run's CPU time went into looking at it again and again.

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
