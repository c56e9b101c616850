"""What `@catch` keeps of a failure: a value that says what happened, readable by any later step and by the client."""

from __future__ import annotations

from typing import Any, Mapping

from stoker.core.flow import CaughtFailure
from stoker.store import artifacts
from stoker.store.blobs import Blobs


def failure_wire(facts: Mapping[str, Any], step: str, blobs: Blobs) -> Mapping[str, Any]:
    """The artifact of a task's failure."""
    error = facts.get("error") or {}
    caught = CaughtFailure(
        step=step,
        cause=str(facts.get("cause", "")),
        type=str(error.get("type", "")),
        message=str(facts.get("message") or error.get("message", "")),
        traceback=str(error.get("traceback", "")),
    )
    return artifacts.save(caught, blobs).wire()
