"""Finds and adopts jobs that no driver follows: of a driver that is gone, or of a submission without an answer."""

from __future__ import annotations

import json
import time
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs, job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.logins import Login
from stoker.backends.base.messages import request_digest
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import JobRow
from stoker.backends.slurm.task import SlurmJob, job_id, slurm_job
from stoker.core.plan import Job
from stoker.core.protocol import RESULT

PATIENCE: Final = 10.0
"""Seconds that cancelled jobs get to end before their files are removed."""
LOOK: Final = 0.5


@attrs.define(kw_only=True)
class _Orphan:
    """Job number `index` of `count` in a submission."""

    index: int
    count: int
    folder: str
    id: str

    @property
    def task(self) -> str:
        """Slurm's id of it."""
        return job_id(self.id, self.index, self.count)

    @property
    def job_folder(self) -> str:
        """The folder of its files."""
        return f"{self.folder}/{self.index}"


def jobs_document(jobs: Sequence[Job]) -> dict[str, Any]:
    """The document that describes a submission to a later driver."""
    return {
        "jobs": [job.name for job in jobs],
        "digests": [request_digest(job) for job in jobs],
        "keys": [[job.key, job_kind(job), job.attempt] for job in jobs],
    }


class Orphans:
    """The orphans of one run. All are looked for once, and this driver's own submissions in doubt again."""

    def __init__(self, login: Login, controller: Controller, home: str, run: str) -> None:
        self._login = login
        self._controller = controller
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
            orphan, others = self._left.adopt(
                job, lambda orphan: self._worth(orphan, results.get(f"{orphan.job_folder}/{RESULT}"))
            )
            superseded += others
            if orphan is not None:
                settings = settings_of(job.step, SlurmSettings, options)
                adopted[job.name] = slurm_job(orphan.folder, orphan.id, orphan.index, orphan.count, job, settings)
        self._end(superseded)
        folders = {task.folder for task in adopted.values()} | {orphan.folder for orphan in self._left.remaining()}
        self._ended.update(
            dict.fromkeys(orphan.job_folder if orphan.folder in folders else orphan.folder for orphan in superseded)
        )
        return adopted

    def end(self) -> None:
        """End the jobs that were not adopted, and remove their files."""
        orphans = self._left.take_remaining()
        self._end(orphans)
        self._ended.update(dict.fromkeys(orphan.folder for orphan in orphans))
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
            ran = self._login.run(["ls", "-1", self._run])
            tokens += ran.out.split() if ran.code == 0 else []
        jobs = self._read(dict.fromkeys(tokens)) if tokens else []
        self._rows.update(self._controller.rows({orphan.handle.id for orphan in jobs}) if jobs else {})
        self._left.add(jobs)
        self._doubtful = []

    def _read(self, tokens: Iterable[str]) -> list[EarlierJob[_Orphan]]:
        folders = {token: f"{self._run}/{token}" for token in tokens}
        paths = [f"{folder}/{name}" for folder in folders.values() for name in ("jobs.json", "submitted")]
        files = self._login.tails(dict.fromkeys(paths, 0), limit=1 << 26)
        ids = {token: files.get(f"{folder}/submitted", b"").decode().strip() for token, folder in folders.items()}
        unanswered = [token for token, id in ids.items() if not id]
        if unanswered:
            ids.update(self._controller.ids_by_comment(unanswered))
        earlier = []
        unknown = []
        for token, folder in folders.items():
            document = files.get(f"{folder}/jobs.json")
            if not ids[token] or document is None:
                # Slurm does not know it. Should it start all the same, it finds no document.
                unknown.append(folder)
                continue
            earlier += _earlier(json.loads(document), self._name, folder, ids[token].partition(";")[0])
        if unknown:
            self._login.remove(unknown)
        return earlier

    def _worth(self, orphan: _Orphan, result: bytes | None) -> bool:
        """Whether a job succeeded or may still succeed; one that failed is tried again instead."""
        if result is not None:
            return bool(json.loads(result).get("ok"))
        row = self._rows.get(orphan.task)
        return row is not None and row.stage != "over"

    def _end(self, orphans: Sequence[_Orphan]) -> None:
        ids: dict[str, set[int]] = {}
        for orphan in orphans:
            row = self._rows.get(orphan.task)
            if row is None or row.stage != "over":
                ids.setdefault(orphan.id, set()).update([orphan.index] if orphan.count > 1 else [])
        if ids:
            self._controller.cancel(ids)
            self._ending.update(ids)


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
