"""Whether a run that says that it is running has a driver that still lives."""

from __future__ import annotations

import socket
import time
from typing import Any, Final, Literal, Mapping

from stoker.store.rows import RunRow
from stoker.store.unbegun import OUTPUT, PLACE

ShownStatus = Literal["running", "succeeded", "failed", "cancelled", "interrupted"]
"""`interrupted`: the row says "running", and nobody is there any more who makes it so. `stoker resume` goes on."""

SHOWN: Final[tuple[ShownStatus, ...]] = ("running", "succeeded", "failed", "cancelled", "interrupted")
SILENCE: Final = 60.0
"""Seconds. A driver shows every second that it lives; a minute forgives a machine that swaps and clocks that differ."""
_JUST_BEATEN: Final = 5.0
"""Seconds within which a heartbeat is believed over a start time that differs: the start time is counted from the
kernel's idea of when it booted, which moves when somebody sets the clock, as after a virtual machine was paused."""
_SAME_START: Final = 2.0
"""Seconds by which two readings of one process's start may differ; a pid is not given out again that fast."""


def shown_status(row: RunRow) -> ShownStatus:
    """The run's status, "interrupted" where its row says "running" and its driver is dead."""
    if row.status != "running":
        return row.status
    return "running" if _lives(row.driver, time.time() - (row.heartbeat or 0.0)) else "interrupted"


def awaited(row: RunRow) -> str:
    """Where the run's driver is to begin, such as "Slurm job 123"; empty once one has."""
    place, output = str(row.driver.get(PLACE, "")), row.driver.get(OUTPUT)
    return f"{place}, which writes to {output}" if place and output else place


def _lives(driver: Mapping[str, Any], silent: float) -> bool:
    pid = driver.get("pid")
    if pid is None and driver.get(PLACE):
        return True  # a platform has it, and lets it wait for as long as it takes
    if not isinstance(pid, int) or driver.get("host") != socket.gethostname():
        return silent <= SILENCE
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        started = process.create_time()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return silent <= SILENCE
    recorded = driver.get("started")
    if recorded is None or abs(started - recorded) <= _SAME_START:
        return True
    return silent <= _JUST_BEATEN
