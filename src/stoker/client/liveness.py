"""Finds out whether the driver of a run with the status "running" is still alive."""

from __future__ import annotations

import socket
import time
from typing import Any, Final, Literal, Mapping

from stoker.store.rows import DRIVER_JOB, DRIVER_OUTPUT, DRIVER_PLACE, RunRow

ShownStatus = Literal["running", "succeeded", "failed", "cancelled", "interrupted"]
"""`interrupted`: the row says "running", and the driver is dead. `stoker resume` continues the run."""

SHOWN_STATUSES: Final[tuple[ShownStatus, ...]] = ("running", "succeeded", "failed", "cancelled", "interrupted")
SILENCE: Final = 60.0
"""Seconds without a heartbeat after which a driver counts as dead. Drivers write one every second; a minute allows for
machines that swap and clocks that differ."""
_RECENT: Final = 5.0
"""Seconds within which a heartbeat outweighs a different start time: the kernel counts start times from its boot, and
that moment moves when the clock is set, as after a virtual machine was paused."""
_SAME_START: Final = 2.0
"""Seconds by which two readings of one process's start may differ; a pid is not reused that fast."""


def shown_status(row: RunRow) -> ShownStatus:
    """The run's status: "interrupted" if its row says "running" and its driver is dead."""
    if row.status != "running":
        return row.status
    return "running" if _is_alive(row.driver, time.time() - (row.heartbeat or 0.0)) else "interrupted"


def awaited_place(row: RunRow) -> str:
    """What will start the run's driver, such as "Slurm job 123"; empty once a driver has begun."""
    platform, output = str(row.driver.get(DRIVER_PLACE, "")), row.driver.get(DRIVER_OUTPUT)
    return f"{platform}, which writes to {output}" if platform and output else platform


def restarting_place(row: RunRow) -> str:
    """What starts the run's driver again when that is killed, such as "Slurm job 123"; empty where nothing does."""
    job = row.driver.get(DRIVER_JOB)
    return str(job.get(DRIVER_PLACE, "")) if isinstance(job, dict) else ""


def _is_alive(driver: Mapping[str, Any], silent: float) -> bool:
    pid = driver.get("pid")
    if pid is None and driver.get(DRIVER_PLACE):
        return True  # it waits in a platform's queue, for any time
    if type(pid) is not int or not 0 < pid < 2**31 or driver.get("host") != socket.gethostname():
        return silent <= SILENCE
    try:
        import psutil
    except ImportError:  # a driver in a pod goes without it
        return silent <= SILENCE
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        start = process.create_time()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return silent <= SILENCE
    recorded = driver.get("started")
    if not isinstance(recorded, (int, float)) or abs(start - recorded) <= _SAME_START:
        return True
    return silent <= _RECENT
