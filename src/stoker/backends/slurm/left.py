"""Jobs of runs without a driver, seen from another process: which go on, which have results to adopt, and their end."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Callable, Collection, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.base.jobfolders import sweep_folders
from stoker.backends.base.logins import Login, login
from stoker.backends.base.platforms import Away
from stoker.backends.base.statuses import read_result
from stoker.backends.slurm.orphans import PATIENCE, Submission, read_submissions
from stoker.backends.slurm.pool import JobPool, worker_jobs
from stoker.backends.slurm.pools import close_pool, read_pool
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import JobRow
from stoker.backends.slurm.task import job_id
from stoker.core.errors import BackendError
from stoker.core.protocol import RESULT

ASKED: Final = 5.0
"""Seconds that a command gets while a person waits."""
LOOK: Final = 0.3
"""Seconds between two looks at jobs that were asked to end."""


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> list[LeftJob]:
    """The jobs of these runs that go on or wait to go on, and the results that wait to be adopted.

    Where the controller does not answer, a job without a result counts as one that goes on.
    """

    def look(machine: Login, root: str) -> Iterator[LeftJob]:
        for run in sorted(set(_names(machine, root)) & set(runs)):
            yield from left_of(machine, f"{root}/{run}")

    return _at_each(parts, scratch, look)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> list[LeftJob]:
    """End the jobs of a run that go on, within `grace` seconds, and take back the orders that none has taken; returns
    them. Files stay, and with them the results. Raises `Away` where the controller does not answer."""

    def end(machine: Login, root: str) -> Iterable[LeftJob]:
        return end_jobs(machine, f"{root}/{run}", grace) if run in _names(machine, root) else ()

    return _at_each(parts, scratch, end)


def left_of(machine: Login, folder: str) -> list[LeftJob]:
    """The jobs of one run's folder, as `left_jobs` has them."""
    controller = Controller(machine, patience=ASKED)
    try:
        run = _read(machine, controller, folder)
        rows: Mapping[str, JobRow] | None = controller.rows(run.ids) if run.ids else {}
    except Away:
        run, rows = _read(machine, None, folder), None
    return list(run.jobs(machine, rows))


def end_jobs(machine: Login, folder: str, grace: float) -> list[LeftJob]:
    """End the jobs of one run's folder, as `end_left` does."""
    controller = Controller(machine, patience=ASKED)
    run = _read(machine, controller, folder)
    rows = controller.rows(run.ids) if run.ids else {}
    ended = [job for job in run.jobs(machine, rows) if job.running]
    for pool in run.pools:
        close_pool(machine, pool, grace)
    ids = {id: indexes for id, indexes in run.ids.items() if _go_on(rows, {id})}
    if ids and grace:
        alone = {id: indexes for id, indexes in ids.items() if id in run.alone_ids}
        for batch in (True, False) if alone else ():  # the script of a single job, the steps of a gang
            controller.ask(alone, batch=batch)
        _await_end(controller, ids, grace)
    if ids:
        controller.cancel(ids)
        _await_end(controller, ids, PATIENCE)
    return ended


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Job folders in this machine's scratch folder, and on the clusters of all stacks."""
    local_folder = f"{sweep.scratch}/slurm"
    places: list[tuple[str | None, str]] = [(None, local_folder)] if os.path.isdir(local_folder) else []
    for options in parts:
        settings = SlurmSettings(**options)
        places.append((settings.get("host"), settings.folder_in(sweep.scratch)))
    return sweep_folders(places, sweep, left=left_of, end=lambda machine, run: end_jobs(machine, run, 0.0))


def has_driver(options: Mapping[str, Any], place: str) -> bool:
    """Whether a job waits or runs, which `detach` named; true where that names none. `Away` where nobody answers."""
    match = re.search(r"job (\d+)", place)
    if match is None:
        return True
    machine = login(SlurmSettings(**options).get("host"))
    try:
        return _goes_on(Controller(machine, patience=ASKED).rows([match[1]]), match[1])
    finally:
        machine.close()


@attrs.frozen(kw_only=True)
class _LeftRun:
    """What the files of one run say about its jobs."""

    name: str
    alone: Mapping[str, str]
    """The folder of each job of its own → Slurm's id, empty where it is not known."""
    pools: Sequence[JobPool]

    @property
    def alone_ids(self) -> set[str]:
        """Slurm's ids of submissions of jobs of their own."""
        return {id.partition("_")[0] for id in self.alone.values() if id}

    @property
    def ids(self) -> dict[str, set[int]]:
        """Slurm's ids of all submissions, as its commands are given whole ones."""
        workers = {job.id.partition("_")[0] for pool in self.pools for job in pool.jobs.values()}
        return {id: set() for id in sorted(self.alone_ids | workers)}

    def jobs(self, machine: Login, rows: Mapping[str, JobRow] | None) -> Iterator[LeftJob]:
        """The jobs that go on by the queue's rows, and those with results; without rows none is known to be over."""
        places = {folder: (f"job {id}" if id else "a job without an answer") for folder, id in self.alone.items()}
        going = {folder for folder, id in self.alone.items() if rows is None or (id and _goes_on(rows, id))}
        for pool in self.pools:
            if rows is not None:
                pool.note_rows(rows, time.monotonic())
            alive = any(not job.over and (rows is None or job.row is not None) for job in pool.jobs.values())
            for number, order in pool.earlier.items():
                folder = f"{pool.folder}/{number}"
                worker = pool.jobs.get(order.worker)
                places[folder] = f"job {worker.id}" if worker is not None else f"{order.key}, which no job has taken"
                runs = worker is not None and worker.order == number and not worker.over
                runs = runs and (rows is None or worker is None or worker.row is not None)
                if runs or (not order.worker and alive and not pool.closed):
                    going.add(folder)
        results = machine.tails({f"{folder}/{RESULT}": 0 for folder in places}, limit=1 << 24)
        for folder, name in places.items():
            data = results.get(f"{folder}/{RESULT}")
            if data is not None and read_result(data).ok:
                yield LeftJob(run=self.name, name=name, running=False, result=data.decode("utf-8", "replace"))
            elif data is None and folder in going:
                yield LeftJob(run=self.name, name=name, running=True)


def _read(machine: Login, controller: Controller | None, folder: str) -> _LeftRun:
    """Read a run's folder; without a controller, ids that are in no file are not known."""
    submissions = read_submissions(machine, controller, folder, _names(machine, folder))
    alone: dict[str, str] = {}
    for one in submissions:
        keys = (one.document or {}).get("keys", ())
        for index in range(len(keys)):
            alone[f"{one.folder}/{index}"] = job_id(one.id, index, len(keys)) if one.id else ""
    pools = [_pool(machine, one, submissions) for one in submissions if one.document and "pool" in one.document]
    return _LeftRun(name=folder.rpartition("/")[2], alone=alone, pools=pools)


def _pool(machine: Login, pool: Submission, submissions: Iterable[Submission]) -> JobPool:
    workers = [
        job
        for one in submissions
        if one.document and one.document.get("of") == pool.token and one.id
        for job in worker_jobs(one.id, one.folder, one.document["workers"])
    ]
    return read_pool(machine, pool.folder, pool.document or {}, workers, time.monotonic())


def _goes_on(rows: Mapping[str, JobRow], id: str) -> bool:
    return id in rows and rows[id].stage != "over"


def _go_on(rows: Mapping[str, JobRow], ids: Collection[str]) -> bool:
    """Whether any job of these submissions goes on."""
    return any(row.stage != "over" and id.partition("_")[0] in ids for id, row in rows.items())


def _await_end(controller: Controller, ids: Mapping[str, set[int]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _go_on(controller.rows(ids), ids) and time.monotonic() < deadline:
        time.sleep(LOOK)


def _names(machine: Login, folder: str) -> list[str]:
    """What is in a folder; nothing where there is none."""
    ran = machine.run(["ls", "-1", folder])
    return ran.out.split() if ran.code == 0 else []


def _at_each(
    parts: Sequence[Mapping[str, Any]], scratch: str, work: Callable[[Login, str], Iterable[LeftJob]]
) -> list[LeftJob]:
    """Do something on each cluster of the stacks, with the folder of its runs; that of this machine is among them.

    One that does not answer keeps no other from its turn; its error is raised at the end.
    """
    places: dict[tuple[str | None, str], None] = {(None, SlurmSettings().folder_in(scratch)): None}
    for options in parts:
        settings = SlurmSettings(**options)
        places[settings.get("host"), settings.folder_in(scratch)] = None
    jobs: list[LeftJob] = []
    problem: BackendError | None = None
    for host, folder in places:
        with contextlib.closing(login(host)) as machine:
            try:
                jobs += work(machine, machine.expand(folder).rstrip("/"))
            except BackendError as error:
                problem = problem or error
    if problem is not None:
        raise problem
    return jobs
