"""What a called pipeline reaches first: it starts the fork server, and then imports the driver while that boots.

Kept apart from the driver because the driver's imports take as long as the fork server's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from stoker.backends import spare
from stoker.core.request import RunRequest

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.frontends.functional import Pipeline


def run(pipeline: Pipeline[...], arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a pipeline to its end; see `driver.run`."""
    if not request.debug:
        spare.start()
    try:
        from stoker import driver

        return driver.run(pipeline, arguments, request)
    finally:
        spare.discard()
