"""Jobs that no driver follows: of a driver that is gone, or of a submission without an answer; found, adopted and
ended, also from another process."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Callable, Collection, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs, job_kind, sweep_folders
from stoker.backends.base.backend import LeftJob, Leftover, Sweep, settings_of
from stoker.backends.base.logins import Login, login
from stoker.backends.base.messages import request_digest
from stoker.backends.base.platforms import Away
from stoker.backends.base.statuses import read_result
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.pool import JobPool, worker_jobs
from stoker.backends.slurm.pools import Pools, close_pool, read_pool
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import JobRow
from stoker.backends.slurm.task import SlurmJob, job_id, slurm_job
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job
from stoker.core.protocol import RESULT

PATIENCE: Final = 10.0
"""Seconds that cancelled jobs get to end before their files are removed."""
LOOK: Final = 0.5
"""Seconds between two looks at jobs that were asked to end."""
ASKED: Final = 5.0
"""Seconds that a command gets while a person waits, who is told of each one without an answer."""


@attrs.define(kw_only=True)
class _Orphan:
    """Job number `index` of `count` in a submission."""

    index: int
    count: int
    folder: str
    id: str
    pool: JobPool | None = None
    """Its pool, of which it is order number `index`; None for a job of its own."""

    @property
    def task(self) -> str:
        """Slurm's id of it."""
        return job_id(self.id, self.index, self.count)

    @property
    def job_folder(self) -> str:
        """The folder of its files."""
        return f"{self.folder}/{self.index}"


@attrs.frozen(kw_only=True)
class Submission:
    """A folder of a run's submissions, or of a pool."""

    token: str
    folder: str
    document: Mapping[str, Any] | None
    """Its `jobs.json`; None where that is missing."""
    id: str
    """Slurm's id; empty for a pool, and where Slurm does not know it."""


def read_submissions(
    login: Login, controller: Controller | None, run_folder: str, tokens: Iterable[str]
) -> list[Submission]:
    """The submissions of a run; ids that are in no file are those of the queue, if there is a controller to ask."""
    folders = {token: f"{run_folder}/{token}" for token in tokens}
    paths = [f"{folder}/{name}" for folder in folders.values() for name in ("jobs.json", "submitted")]
    files = login.tails(dict.fromkeys(paths, 0), limit=1 << 26)
    ids = {token: files.get(f"{folder}/submitted", b"").decode().strip() for token, folder in folders.items()}
    unanswered = [token for token, id in ids.items() if not id]
    if unanswered and controller is not None:
        ids.update(controller.ids_by_comment(unanswered))
    submissions = []
    for token, folder in folders.items():
        text = files.get(f"{folder}/jobs.json")
        document = None if text is None else parse_json(text, where=f"{folder}/jobs.json")
        id = ids[token].partition(";")[0]
        submissions.append(Submission(token=token, folder=folder, document=document, id=id))
    return submissions


def jobs_document(jobs: Sequence[Job]) -> dict[str, Any]:
    """The document that describes a submission to a later driver."""
    return {
        "jobs": [job.name for job in jobs],
        "digests": [request_digest(job) for job in jobs],
        "keys": [[job.key, job_kind(job), job.attempt] for job in jobs],
    }


class Orphans:
    """The orphans of one run. All are looked for once, and this driver's own submissions in doubt again."""

    def __init__(self, login: Login, controller: Controller, pools: Pools, home: str, run: str) -> None:
        self._login = login
        self._controller = controller
        self._pools = pools
        self._name = run
        self._run = slurmscript.submission_folder(home, run, "").rstrip("/")
        self._left: EarlierJobs[_Orphan] = EarlierJobs()
        self._looked = False
        self._rows: dict[str, JobRow] = {}
        self._doubtful: list[str] = []
        self._ending: set[str] = set()
        self._ended: dict[str, None] = {}

    def doubt(self, token: str) -> None:
        """Note a submission that Slurm may or may not have taken."""
        self._doubtful.append(token)

    @property
    def doubtful(self) -> Sequence[str]:
        """The comments of submissions in doubt."""
        return tuple(self._doubtful)

    def settle(self, token: str) -> None:
        """Note that a submission is no longer in doubt."""
        self._doubtful.remove(token)

    def adopt(self, jobs: Sequence[Job], options: Mapping[str, Any]) -> dict[str, SlurmJob]:
        """Adopt jobs; returns their handles by name. Other jobs of the same steps are ended."""
        self._look()
        results = self._login.tails(
            {f"{orphan.job_folder}/{RESULT}": 0 for job in jobs for orphan in self._left.of(job)}, limit=1 << 24
        )
        adopted: dict[str, SlurmJob] = {}
        superseded: list[_Orphan] = []
        for job in jobs:
            earlier, others = self._left.adopt(
                job, lambda orphan: self._worth(orphan, results.get(f"{orphan.job_folder}/{RESULT}"))
            )
            superseded += others
            if earlier is not None:
                orphan = earlier.handle
                settings = settings_of(job.step, SlurmSettings, options)
                if orphan.pool is not None:
                    adopted[job.name] = self._pools.adopt(orphan.pool, orphan.index, job, settings)
                    continue
                task = slurm_job(orphan.folder, orphan.id, orphan.index, orphan.count, job, settings)
                task.attempt = earlier.attempt
                adopted[job.name] = task
        self._end(superseded)
        folders = {task.folder for task in adopted.values()} | {orphan.folder for orphan in self._left.remaining()}
        alone = [orphan for orphan in superseded if orphan.pool is None]
        self._ended.update(
            dict.fromkeys(orphan.job_folder if orphan.folder in folders else orphan.folder for orphan in alone)
        )
        return adopted

    def end(self) -> None:
        """End the jobs that were not adopted, and remove their files."""
        orphans = self._left.take_remaining()
        self._end(orphans)
        self._ended.update(dict.fromkeys(orphan.folder for orphan in orphans if orphan.pool is None))
        if not self._ended:
            return
        ids = {id for id in self._ending if id}
        until = time.monotonic() + PATIENCE
        # A job that is still ending writes its result, and would make its folder again.
        while ids and time.monotonic() < until:
            rows = self._controller.rows(ids).values()
            if all(row.stage == "over" for row in rows):
                break
            time.sleep(LOOK)
        self._login.remove(list(self._ended))

    def _look(self) -> None:
        tokens = list(self._doubtful)
        if not self._looked:
            self._looked = True
            if self._login.exists(self._run):
                ran = self._login.run(["ls", "-1", self._run])
                tokens += ran.out.split() if ran.code == 0 else []
        jobs = self._read(dict.fromkeys(tokens)) if tokens else []
        ids = {orphan.handle.id for orphan in jobs if orphan.handle.pool is None} | self._pools.ids()
        rows = self._controller.rows(ids) if jobs and ids else {}
        self._rows.update(rows)
        self._pools.note_rows(rows, time.monotonic())
        self._left.add(jobs)
        self._doubtful = []

    def _read(self, tokens: Iterable[str]) -> list[EarlierJob[_Orphan]]:
        earlier = []
        unknown = []
        pools: list[Submission] = []
        workers: dict[str, list[tuple[str, str, int]]] = {}
        for one in read_submissions(self._login, self._controller, self._run, tokens):
            if one.document is not None and "pool" in one.document:
                pools.append(one)
            elif not one.id or one.document is None:
                # Slurm does not know it. Should it start all the same, it finds no document.
                unknown.append(one.folder)
            elif "workers" in one.document:
                workers.setdefault(one.document["of"], []).append((one.folder, one.id, one.document["workers"]))
            else:
                earlier += _earlier(one.document, self._name, one.folder, one.id)
        for one in pools:
            workers_of_pool = workers.get(one.token, ())
            pool = self._pools.restore(one.folder, one.document or {}, workers_of_pool, time.monotonic())
            earlier += _earlier_orders(pool, self._name)
        if unknown:
            self._login.remove(unknown)
        return earlier

    def _worth(self, orphan: _Orphan, result: bytes | None) -> bool:
        """Whether a job succeeded or may still succeed; one that failed is tried again instead."""
        if result is not None:
            return read_result(result).ok
        if orphan.pool is not None:
            return self._pools.may_come(orphan.pool, orphan.index)
        row = self._rows.get(orphan.task)
        return row is not None and row.stage != "over"

    def _end(self, orphans: Sequence[_Orphan]) -> None:
        self._pools.drop((orphan.pool, orphan.index) for orphan in orphans if orphan.pool is not None)
        ids: dict[str, set[int]] = {}
        for orphan in orphans:
            if orphan.pool is not None:
                continue
            row = self._rows.get(orphan.task)
            if row is None or row.stage != "over":
                ids.setdefault(orphan.id, set()).update([orphan.index] if orphan.count > 1 else [])
        if ids:
            self._controller.cancel(ids)
            self._ending.update(ids)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """End jobs by their ids, and submissions without an answer by their comments; returns the names of those ended."""
    with contextlib.closing(login(SlurmSettings(**options).get("host"))) as machine:
        controller = Controller(machine, patience=ASKED)
        names = {str(job["id"]): str(job["job"]) for job in jobs if "id" in job}
        for job in jobs:
            # Of an order that no worker has taken: without the pool's jobs none will.
            names.update({str(id): f"job {id}" for id in job.get("ids", ())})
        comments = [str(job["comment"]) for job in jobs if "comment" in job]
        for id in controller.ids_by_comment(comments).values() if comments else ():
            names.setdefault(id, f"job {id}")
        rows = controller.rows({id.partition("_")[0] for id in names}) if names else {}
        running: dict[str, set[int]] = {}
        for id in {row.id for row in rows.values() if row.stage != "over"}:
            whole, array, index = id.partition("_")
            if id in names or whole in names:
                running.setdefault(whole, set()).update([int(index)] if array and id in names else [])
        if running:
            controller.cancel(running)
        return [names[id] for id in names if (id in rows and rows[id].stage != "over") or id in running]


def _earlier_orders(pool: JobPool, run: str) -> list[EarlierJob[_Orphan]]:
    return [
        EarlierJob(
            run=run,
            key=order.key,
            kind=order.kind,
            attempt=order.attempt,
            digest=order.digest,
            handle=_Orphan(index=number, count=0, folder=pool.folder, id="", pool=pool),
        )
        for number, order in pool.earlier.items()
    ]


def _earlier(document: Mapping[str, Any], run: str, folder: str, id: str) -> list[EarlierJob[_Orphan]]:
    rows = list(zip(document["keys"], document["digests"]))
    return [
        EarlierJob(
            run=run,
            key=key,
            kind=kind,
            attempt=attempt,
            digest=digest,
            handle=_Orphan(index=index, count=len(rows), folder=folder, id=id),
        )
        for index, ((key, kind, attempt), digest) in enumerate(rows)
    ]


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
    with contextlib.closing(login(SlurmSettings(**options).get("host"))) as machine:
        return _goes_on(Controller(machine, patience=ASKED).rows([match[1]]), match[1])


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
