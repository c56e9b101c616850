"""Finds and adopts jobs that no driver follows: of a driver that is gone, or of a submission without an answer."""

from __future__ import annotations

import time
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs, job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.logins import Login, login
from stoker.backends.base.messages import request_digest
from stoker.backends.base.statuses import read_result
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.pool import JobPool
from stoker.backends.slurm.pools import Pools
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import JobRow
from stoker.backends.slurm.task import SlurmJob, job_id, slurm_job
from stoker.core.codec import parse_json
from stoker.core.plan import Job
from stoker.core.protocol import RESULT

PATIENCE: Final = 10.0
"""Seconds that cancelled jobs get to end before their files are removed."""
LOOK: Final = 0.5
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
    machine = login(SlurmSettings(**options).get("host"))
    try:
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
    finally:
        machine.close()


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
