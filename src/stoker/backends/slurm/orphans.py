"""Jobs on a cluster that were sent and that nobody follows: of a driver that is gone, or whose answer was not heard."""

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
from stoker.backends.slurm.states import Row
from stoker.backends.slurm.task import Task, task_id, task_of
from stoker.core.plan import Job
from stoker.core.protocol import RESULT

PATIENCE: Final = 10.0
"""Seconds that jobs which are ended get to be gone before their files go."""
LOOK: Final = 0.5


@attrs.define(kw_only=True)
class _Orphan:
    """A job by its place in a submission."""

    index: int
    count: int
    folder: str
    id: str

    @property
    def task(self) -> str:
        """Slurm's name of it."""
        return task_id(self.id, self.index, self.count)

    @property
    def place(self) -> str:
        """The folder of its files."""
        return f"{self.folder}/{self.index}"


def jobs_document(jobs: Sequence[Job]) -> dict[str, Any]:
    """What is known of a submission by those who find its folder."""
    return {
        "jobs": [job.name for job in jobs],
        "digests": [request_digest(job) for job in jobs],
        "keys": [[job.key, job_kind(job), job.attempt] for job in jobs],
    }


class Orphans:
    """Those of one run. They are looked for once, and again those of our own that are in doubt."""

    def __init__(self, login: Login, controller: Controller, home: str, run: str) -> None:
        self._login = login
        self._controller = controller
        self._name = run
        self._run = slurmscript.place(home, run, "").rstrip("/")
        self._left: EarlierJobs[_Orphan] = EarlierJobs()
        self._looked = False
        self._rows: dict[str, Row] = {}
        self._doubtful: list[str] = []
        self._ending: set[str] = set()
        self._ended: dict[str, None] = {}

    def doubt(self, token: str) -> None:
        """A submission of ours of which nobody knows whether Slurm took it."""
        self._doubtful.append(token)

    def settle(self, token: str) -> None:
        """It is known now."""
        self._doubtful.remove(token)

    def taken(self, jobs: Sequence[Job], options: Mapping[str, Any]) -> dict[str, Task]:
        """By name, those jobs that are worth taking over. What has become of others of the same steps is ended."""
        self._look()
        results = self._login.tails(
            {f"{one.place}/{RESULT}": 0 for job in jobs for one in self._left.of(job)}, limit=1 << 24
        )
        found: dict[str, Task] = {}
        rest: list[_Orphan] = []
        for job in jobs:
            one, others = self._left.adopt(job, lambda one: self._worth(one, results.get(f"{one.place}/{RESULT}")))
            rest += others
            if one is not None:
                settings = settings_of(job.step, SlurmSettings, options)
                found[job.name] = task_of(one.folder, one.id, one.index, one.count, job, settings)
        self._end(rest)
        taken = {task.folder for task in found.values()} | {one.folder for one in self._left.remaining()}
        self._ended.update(dict.fromkeys(one.place if one.folder in taken else one.folder for one in rest))
        return found

    def end(self) -> None:
        """Nobody took these over: they end, and their files go."""
        left = self._left.take_remaining()
        self._end(left)
        self._ended.update(dict.fromkeys(one.folder for one in left))
        if not self._ended:
            return
        ids = {id for id in self._ending if id}
        until = time.monotonic() + PATIENCE
        # What is still ending writes its result, and would make its folder anew.
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
        found = self._read(dict.fromkeys(tokens)) if tokens else []
        self._rows.update(self._controller.rows({one.handle.id for one in found}) if found else {})
        self._left.add(found)
        self._doubtful = []

    def _read(self, tokens: Iterable[str]) -> list[EarlierJob[_Orphan]]:
        folders = {token: f"{self._run}/{token}" for token in tokens}
        wanted = [f"{folder}/{name}" for folder in folders.values() for name in ("jobs.json", "submitted")]
        files = self._login.tails(dict.fromkeys(wanted, 0), limit=1 << 26)
        ids = {token: files.get(f"{folder}/submitted", b"").decode().strip() for token, folder in folders.items()}
        unsaid = [token for token, id in ids.items() if not id]
        if unsaid:
            ids.update(self._controller.commented(unsaid))
        found = []
        gone = []
        for token, folder in folders.items():
            document = files.get(f"{folder}/jobs.json")
            if not ids[token] or document is None:
                # Slurm does not know it. Should it come all the same, it finds nothing to do.
                gone.append(folder)
                continue
            found += _earlier(json.loads(document), self._name, folder, ids[token].partition(";")[0])
        if gone:
            self._login.remove(gone)
        return found

    def _worth(self, orphan: _Orphan, result: bytes | None) -> bool:
        """Whether it went well, or may still: one that failed is tried again instead."""
        if result is not None:
            return bool(json.loads(result).get("ok"))
        row = self._rows.get(orphan.task)
        return row is not None and row.stage != "over"

    def _end(self, orphans: Sequence[_Orphan]) -> None:
        ids: dict[str, set[int]] = {}
        for one in orphans:
            row = self._rows.get(one.task)
            if row is None or row.stage != "over":
                ids.setdefault(one.id, set()).update([one.index] if one.count > 1 else [])
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
