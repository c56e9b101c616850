"""Whether the job that is to start a run's driver is still there, by the word of its platform."""

from __future__ import annotations

from typing import Literal

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.client.liveness import awaited_place, restarting_place
from stoker.core.errors import Away, StokerError
from stoker.store.rows import DRIVER_PLACE, RunRow
from stoker.store.store import Store

DriverJob = Literal["there", "gone", "silent", "unknown"]
"""`silent`: the platform does not answer. `unknown`: nobody here can ask it."""


def driver_job(row: RunRow) -> DriverJob:
    """What becomes of the job that is to start a run's driver, or to start it again."""
    place = str(row.driver.get(DRIVER_PLACE) or restarting_place(row))
    stack = next((stack for stack in stacks.stacks() if stack.name == row.stack), None)
    if not place or stack is None:
        return "unknown"
    try:
        backend = BACKENDS.load(stack.orchestrator.flavor)
        if backend.has_driver is None:
            return "unknown"
        return "there" if backend.has_driver(stack.orchestrator.options, place) else "gone"
    except Away:
        return "silent"
    except StokerError:
        return "unknown"


def _why_gone(row: RunRow) -> str:
    """Why the job of a driver is over that never began, by its platform; empty where that is not known."""
    stack = next((stack for stack in stacks.stacks() if stack.name == row.stack), None)
    why = BACKENDS.load(stack.orchestrator.flavor).why_no_driver if stack is not None else None
    if stack is None or why is None:
        return ""
    try:
        return why(stack.orchestrator.options, str(row.driver[DRIVER_PLACE]))
    except StokerError:  # also Away: it answered a moment ago
        return ""


def note_lost_driver(store: Store, row: RunRow) -> bool:
    """Write down that a run's driver is never started, where its job is gone; whether that is so.

    The run is "interrupted" then, and what it was to begin with is kept for `stoker resume`.
    """
    if row.status != "running" or not awaited_place(row) or driver_job(row) != "gone":
        return False
    text = f"{row.driver[DRIVER_PLACE]}, which was to start its driver, is not in the queue any more"
    why = _why_gone(row)
    text += f": {why}" if why else ""
    driver = {key: value for key, value in row.driver.items() if key != DRIVER_PLACE}
    # Nothing happens where the driver has begun meanwhile.
    store.records.set_run(row.id, row.token, driver=driver, heartbeat=0.0, error=text)
    return True
