"""What a called pipeline reaches first: it starts the fork server, and then imports the driver while that boots.

Kept apart from the driver because the driver's imports take as long as the fork server's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from stoker.core.collector import seldom_collected
from stoker.core.errors import UsageError
from stoker.core.request import RunRequest
from stoker.pipelines.scripts import watch_script
from stoker.report.streams import open_missing
from stoker.worker import spare

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.run.program import Program


def run(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a program to its end, or with `detach` to its beginning; see `driver.run`."""
    open_missing()
    watch_script()
    if request.detach and request.debug:
        raise UsageError("--debug runs every step in this process, which --detach leaves", fix="leave one of them out")
    if not request.debug and not request.detach:
        spare.start(program.worker_imports)
    try:
        with seldom_collected():
            from stoker.run import driver

            if not program.dynamic and not request.debug:
                return driver.run(program, arguments, request)
        return driver.run(program, arguments, request)
    finally:
        spare.discard()
