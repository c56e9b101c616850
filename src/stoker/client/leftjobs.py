"""Whether the driver of a run is alive, and the jobs behind runs without one: those that such runs left on platforms,
and the one that is to start a driver."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Collection, Final, Iterator, Literal, Mapping

from stoker import stacks
from stoker.backends.base.backend import LeftJob
from stoker.backends.registry import BACKENDS
from stoker.core.errors import Away, StokerError
from stoker.settings.options import is_backend
from stoker.store.access import create_file, make_folders
from stoker.store.rows import DRIVER_JOB, DRIVER_OUTPUT, DRIVER_PLACE, RunRow
from stoker.store.store import Store

_PARTS: Final = "usual-parts"
"""The home's folder of backends that runs had and no file names: a document for each backend with its settings."""
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


def left_jobs(home: str, runs: Collection[str]) -> list[LeftJob]:
    """The jobs of these runs that go on, or whose results wait to be adopted.

    Raises `BackendError` where a platform does not answer.
    """
    options = parts_by_backend(home)
    jobs: list[LeftJob] = []
    for name, backend in BACKENDS.parts():
        if backend.left_jobs is not None:
            jobs += backend.left_jobs(options.get(name, []), f"{home}/scratch", runs)
    return jobs


def end_left_jobs(home: str, run: str, *, grace: float) -> list[LeftJob]:
    """End the jobs of a run that go on, with so many seconds to leave; returns them. Results are kept."""
    options = parts_by_backend(home)
    jobs: list[LeftJob] = []
    for name, backend in BACKENDS.parts():
        if backend.end_left is not None:
            jobs += backend.end_left(options.get(name, []), f"{home}/scratch", run, grace)
    return jobs


def parts_by_backend(home: str) -> dict[str, list[Mapping[str, Any]]]:
    """The settings of every part of a stack, and of what runs of this home had beside their stacks, by backend."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for stack in stacks.stacks():
        for component in stack.parts.values():
            options.setdefault(component.flavor, []).append(component.options)
    for flavor, settings in _remembered_parts(home):
        if settings not in options.setdefault(flavor, []):
            options[flavor].append(settings)
    return options


def remember_part(home: str, flavor: str, settings: Mapping[str, Any]) -> None:
    """Keep the settings of a backend that no file names, so that what a run leaves there is found later."""
    text = json.dumps({"backend": flavor, "settings": settings}, sort_keys=True)
    folder = os.path.join(home, _PARTS)
    make_folders(folder)
    file = os.path.join(folder, f"{hashlib.sha256(text.encode()).hexdigest()}.json")
    if not os.path.exists(file):
        beside = f"{file}.{os.getpid()}"
        with os.fdopen(create_file(beside, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as written:
            written.write(text)
        os.replace(beside, file)


def _remembered_parts(home: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(Path(home, _PARTS).glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if is_backend(document["backend"]):
            yield document["backend"], document["settings"]


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
