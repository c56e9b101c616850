"""Slurm: one job for each step, or an array of jobs for steps that are alike, by sbatch.

`script` makes the batch script, `queue` calls the cluster's commands, and `task` follows a job. A job outlives its
driver: the next driver with the same job finds it by its folder and its comment, and adopts its result, or follows it
if it still runs.

Beside what `script` describes, a submission's folder has `jobs.json`, written before it is submitted: the names of its
jobs, their keys and the digests of their requests; and `submitted`, written afterwards: Slurm's id.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.base.logins import Here, login
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.secrets import credentials
from stoker.backends.base.statuses import failed
from stoker.backends.base.watched import Watched
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.orphans import Orphans, jobs_document
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.task import SlurmJob, slurm_job
from stoker.backends.slurm.why import explain
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.status import REFUSED
from stoker.core.words import dashed_name

log = logging.getLogger(__name__)

POLL: Final = 2.0
"""Seconds between two queries of the controller at least; sites ask users not to query more often.
https://slurm.schedmd.com/squeue.html#SECTION_PERFORMANCE"""
LONGEST: Final = 30.0
"""Seconds between two queries at most, where nothing changes."""
TOKEN: Final = "TOKEN"
"""The token in a script that is only shown; each submission has its own."""
KEEP: Final = 60.0
"""Seconds for which the files of a finished job stay: its samples are read after its end is reported."""


class SlurmBackend(Watched):
    """Runs jobs on a cluster."""

    name = "slurm"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        super().__init__(SlurmPlatform(site, options))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Slurm cannot give a step, and how it takes the rest; the cluster is not asked."""
        from stoker.backends.slurm.check import check

        return check(step, settings_of(step, SlurmSettings, self._options), self._site)

    def prove(self, steps: Sequence[StepPlan]) -> Iterator[Finding]:
        """Requests that this cluster can never meet, checked before anything is submitted."""
        from stoker.backends.slurm.facts import prove

        settings = {step.key: settings_of(step, SlurmSettings, self._options) for step in steps}
        machine = login(SlurmSettings(**self._options).get("host"))
        try:
            yield from prove(steps, settings, machine)
        finally:
            machine.close()

    def may_detach(self) -> None:
        """`UsageError` if the nodes lack what a driver needs; the cluster is not asked."""
        from stoker.backends.slurm import detach as slurmdetach

        slurmdetach.check(SlurmSettings(**self._options))

    def detach(self, argv: Sequence[str], folder: str, name: str, *, output: str) -> str:
        """Submit a small job that drives a run."""
        from stoker.backends.slurm import detach as slurmdetach

        return slurmdetach.detach(SlurmSettings(**self._options), argv, folder, name, output=output)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The script that sbatch gets for a single job, and the document that the job reads."""
        settings = settings_of(job.step, SlurmSettings, self._options)
        folder = SlurmSettings(**self._options).folder_in(self._site.scratch)
        return {
            "host": settings.get("host", ""),
            "script": slurmscript.script([job], self._site, settings, folder=folder, token=TOKEN),
            "document": to_json(slurmscript.specification(job, self._site, settings, folder=folder, token=TOKEN)),
        }


class SlurmPlatform:
    """One cluster, for `Watched`; all calls are in the watch's thread."""

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = options
        self._settings = SlurmSettings(**options)
        self._login = login(self._settings.get("host"))
        self._controller = Controller(self._login)
        self._poll: float = self._settings.get("poll", POLL)
        self._pause = self._poll
        self._asked = float("-inf")
        self._due = float("-inf")
        self._silent = ""
        self._folder = ""
        self._largest = 0
        self._orphans: Orphans | None = None
        self._over: list[tuple[float, SlurmJob]] = []
        self._open: dict[str, int] = {}
        self._adopted: set[str] = set()

    # Sending

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Adopt jobs that an earlier driver sent, or that this one sent without getting an answer."""
        if self._orphans is None:
            self._orphans = Orphans(self._login, self._controller, self._home(), jobs[0].run)
        adopted = self._orphans.adopt(jobs, self._options)
        for task in adopted.values():
            self._open[task.folder] = self._open.get(task.folder, 0) + 1
            self._adopted.add(task.folder)  # other jobs of it may be adopted later
        self._hurry()
        return adopted

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Submit each group of alike jobs by one sbatch."""
        groups: dict[str, list[Job]] = {}
        for job in jobs:
            settings = settings_of(job.step, SlurmSettings, self._options)
            groups.setdefault(slurmscript.group(job, settings), []).append(job)
        answers: dict[str, Any] = {}
        for alike in groups.values():
            most = self._most() if len(alike) > 1 else 1
            for first in range(0, len(alike), most):
                part = alike[first : first + most]
                try:
                    answers.update(self._submit(part))
                except Away:
                    if not answers:
                        raise
                    return answers  # the others are sent again
                except BackendError as error:
                    text = f"{error.message}; {error.fix}" if error.fix else error.message
                    answers.update({job.name: failed(REFUSED, text) for job in part})
        self._hurry()
        return answers

    def _submit(self, jobs: Sequence[Job]) -> dict[str, SlurmJob]:
        settings = settings_of(jobs[0].step, SlurmSettings, self._options)
        home, token = self._home(), os.urandom(8).hex()
        site = self._at_home(settings, home)
        script = slurmscript.script(jobs, site, settings, folder=home, token=token)
        folder = slurmscript.submission_folder(home, jobs[0].run, token)
        files = {
            f"{folder}/jobs.json": json.dumps(jobs_document(jobs)).encode(),
            f"{folder}/{slurmscript.SCRIPT}": script.encode(),
        }
        secret, opened_store = os.urandom(16).hex(), credentials(self._site.artifacts, os.environ)
        for index, job in enumerate(jobs):
            spec = slurmscript.specification(
                job, site, settings, folder=home, token=token, index=index, secret=secret, environment=opened_store
            )
            files[f"{folder}/{index}/{slurmscript.DOCUMENT}"] = json.dumps(to_json(spec)).encode()
        assert self._orphans is not None  # `find` comes first
        self._orphans.doubt(token)  # without an answer, `find` looks for it before it is sent again
        self._login.write(files)
        try:
            id = self._controller.submit(folder, script)
        except Away:
            raise
        except BackendError:
            self._orphans.settle(token)
            self._login.remove([folder])
            raise
        self._orphans.settle(token)
        self._open[folder] = len(jobs)
        return {job.name: slurm_job(folder, id, index, len(jobs), job, settings) for index, job in enumerate(jobs)}

    def _home(self) -> str:
        if not self._folder:
            self._folder = self._login.expand(self._settings.folder_in(self._site.scratch)).rstrip("/")
        return self._folder

    def _at_home(self, settings: SlurmSettings, home: str) -> Site:
        """The site, once the worker is in a folder that the nodes see."""
        if self._site.bundle and not settings.shares:
            self._login.bring(self._site.bundle, slurmscript.bundle_path(self._site, settings, home))
        return self._site

    def _most(self) -> int:
        """The most tasks of an array."""
        limit: int | None = self._settings.get("max_array")
        if limit is not None:
            return limit
        if not self._largest:
            self._largest = self._controller.largest_array()
        return self._largest

    # Watching

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, JobReport]:
        """Observe jobs by their files, and less often by the queue."""
        tasks: dict[str, SlurmJob] = dict(handles)
        pieces = self._read(tasks.values())
        now = time.monotonic()
        try:
            self._ask(list(tasks.values()), now)
        except Away as error:
            self._silent = error.message
            self._pause = min(self._pause * 2, LONGEST)
            self._due = time.monotonic() + self._pause
        updates = {}
        for name, task in tasks.items():
            events, task.events = tuple(task.events), []
            status = task.status(now)
            if status is not None:
                self._copy_samples(task)
            if status is None and task.wants:
                self._due = min(self._due, self._asked + self._poll)
            waits = task.row is not None and task.row.stage == "waiting"
            updates[name] = JobReport(
                running=not waits and (task.up or (task.row is not None and task.row.stage == "running")),
                message=self._message(task),
                output=pieces.get(task.job_folder, ()),
                status=status,
                events=events,
            )
        self._clear(now - KEEP)
        return updates

    def _copy_samples(self, task: SlurmJob) -> None:
        """Copy a job's samples to this machine, where it does not see the job's folder."""
        for path in () if self._settings.shares else task.samples():
            data = self._login.read(path)
            if data is not None:
                here = os.path.join(self._site.scratch, f"samples-{dashed_name(path)[-200:]}")
                Here().write({here: data})

    def _message(self, task: SlurmJob) -> str:
        """Why a job waits."""
        if self._silent:
            return f"{self._silent}; it is asked again"
        row = task.row
        if row is None or row.stage != "waiting" or row.reason in ("None", ""):
            return ""  # the scheduler has not looked at it yet
        return explain(row.reason, start=row.start, job=task.id)

    def _read(self, tasks: Iterable[SlurmJob]) -> dict[str, list[tuple[int, str, bytes]]]:
        """New output by job folder; of a job that is over, all of it: it is read until nothing more comes."""
        pieces: dict[str, list[tuple[int, str, bytes]]] = {}
        unread = [task for task in tasks if self._worth_reading(task)]
        while unread:
            files: dict[str, int] = {}
            for task in unread:
                files.update(task.files())
            contents = self._login.tails(files)
            now = time.monotonic()
            unfinished = []
            for task in unread:
                chunks = {path: data for path in task.files() if (data := contents.get(path))}
                had = task.result is not None
                pieces.setdefault(task.job_folder, []).extend(task.read(chunks, now))
                if task.result is not None and (chunks or not had):
                    unfinished.append(task)
            unread = unfinished
        return pieces

    def _worth_reading(self, task: SlurmJob) -> bool:
        """Whether a job may have files: over SSH, those of waiting jobs are not read."""
        far = self._settings.get("host") is not None
        return not far or task.up or task.row is None or task.row.stage != "waiting"

    def _ask(self, tasks: Sequence[SlurmJob], now: float) -> None:
        """Query the queue for all jobs if it is due, and details of those that need them."""
        if now < self._due:
            return
        self._asked = now
        rows = self._controller.rows({task.id.partition("_")[0] for task in tasks})
        self._silent = ""
        changed = False
        for task in tasks:
            row = rows.get(task.id)
            changed = changed or row is None or task.row is None or row.state != task.row.state
            task.note_row(row, now)
            task.status(now)
        puzzling = {task.id.partition("_")[0] for task in tasks if task.wants == "details"}
        if puzzling:
            details = self._controller.details(puzzling)
            for task in tasks:
                task.details = details.get(task.id, task.details)
        urgent = any(task.wants for task in tasks)
        self._pause = self._poll if changed or urgent else min(self._pause * 1.5, max(LONGEST, self._poll))
        self._due = time.monotonic() + self._pause

    def _hurry(self) -> None:
        self._pause = self._poll
        self._due = min(self._due, self._asked + self._poll)

    # Ending

    def end(self, handles: Mapping[str, Any], *, grace: float) -> None:
        """End jobs: by SIGTERM, or at once where there is no grace."""
        tasks: list[SlurmJob] = list(handles.values())
        for task in tasks:
            task.ending, task.forced = True, not grace
        self._hurry()
        if not grace:
            self._controller.cancel(ids_of(tasks))
            return
        for batch in (True, False):
            signalled = [task for task in tasks if task.batch == batch]
            if signalled:
                self._controller.ask(ids_of(signalled), batch=batch)

    def forget(self, handle: Any) -> None:
        """Remove the files of a finished job after a while, its submission's with the last one."""
        task: SlurmJob = handle
        self._over.append((time.monotonic(), task))
        if task.missing is not None or task.comes_again:
            # It counted as lost and may still start; or it is done, and Slurm would start it again.
            self._controller.cancel(ids_of([task]))

    def _clear(self, before: float) -> None:
        """Remove the files of jobs that were over before a time."""
        if not self._over or self._over[0][0] > before:
            return
        old = [task for at, task in self._over if at <= before]
        self._over = self._over[len(old) :]
        paths = []
        for task in old:
            self._open[task.folder] -= 1
            whole = self._open[task.folder] == 0 and task.folder not in self._adopted
            paths.append(task.folder if whole else task.job_folder)
        self._login.remove(paths)

    def close(self) -> None:
        """Remove the files of finished jobs, end jobs that were not adopted, and close the login."""
        try:
            self._clear(float("inf"))
            self._login.remove([folder for folder in self._adopted if self._open[folder] == 0])
            if self._orphans is not None:
                self._orphans.end()
        except BackendError as error:
            log.info("left for `stoker gc`: %s", error)
        finally:
            self._login.close()


def ids_of(tasks: Iterable[SlurmJob]) -> dict[str, set[int]]:
    """The jobs' ids in Slurm, those of arrays with the tasks."""
    ids: dict[str, set[int]] = {}
    for task in tasks:
        id, array, index = task.id.partition("_")
        ids.setdefault(id, set()).update([int(index)] if array else [])
    return ids
