"""Slurm: one job for each step, or an array of jobs for steps that are alike, by sbatch.

`script` makes the batch script, `queue` calls the cluster's commands, and `task` follows a job. A job outlives its
driver: the next driver with the same job finds it by its folder and its comment, and adopts its result, or follows it
if it still runs.

Beside what `script` describes, a submission's folder has `jobs.json`, written before it is submitted: the names of its
jobs, their keys and the digests of their requests; and `submitted`, written afterwards: Slurm's id.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.base.backend import DetachedRun, DriverJob, DriverStart, settings_of
from stoker.backends.base.logins import Here, login
from stoker.backends.base.messages import credentials
from stoker.backends.base.platforms import SLOW, Answers, Away, DiskFull, JobReport
from stoker.backends.base.statuses import failed
from stoker.backends.base.watched import GATHER, PAUSES, Watched
from stoker.backends.slurm import script as slurmscript
from stoker.backends.slurm.cluster import share_facts, take_facts
from stoker.backends.slurm.limits import Limits, QueueLimits
from stoker.backends.slurm.orphans import Orphans, jobs_document
from stoker.backends.slurm.pools import Pools
from stoker.backends.slurm.queue import Controller, QueueFull, refusal_text
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import explain, ids_of
from stoker.backends.slurm.task import SlurmJob, slurm_job
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Job, JobStatus, Site, StepPlan
from stoker.core.status import CANCELLED, DISK_FULL, REFUSED, SETUP_FAILED, WORKER_LOST
from stoker.core.words import dashed_name

log = logging.getLogger(__name__)

POLL: Final = 2.0
"""Seconds between two queries of the controller at least; sites ask users not to query more often.
https://slurm.schedmd.com/squeue.html#SECTION_PERFORMANCE"""
LONGEST: Final = 30.0
"""Seconds between two queries at most, where nothing changes."""
SOONEST: Final = 0.005
"""Seconds between two looks at the files of a pool at least."""
SHARE_OF_QUIET: Final = 0.1
"""Part of the time since the last news of a pool that is the pause before the next look: short steps are noticed soon,
long ones cost little."""
COST: Final = 5.0
"""How much longer than a look the pause after it is: many jobs take a sixth of a core at most."""
SOON: Final = 0.005
"""Seconds without a further job after which those submitted are sent to a worker that waits."""
TOKEN: Final = "TOKEN"
"""The token in a script that is only shown; each submission has its own."""
KEEP: Final = 60.0
"""Seconds for which the files of a finished job stay: its samples are read after its end is reported."""


class SlurmBackend(Watched):
    """Runs jobs on a cluster."""

    name = "slurm"
    keeps_secrets: Literal[True] = True
    leaves_out: Literal["node"] = "node"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        self._platform = SlurmPlatform(site, options)
        super().__init__(self._platform)

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """True: Slurm refuses a job for which no node is left."""
        return True

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Slurm cannot give a step, and how it takes the rest; the cluster is not asked."""
        from stoker.backends.slurm.check import check

        return check(step, settings_of(step, SlurmSettings, self._options), self._site)

    def prove(self, steps: Sequence[StepPlan]) -> Iterator[Finding]:
        """Requests that this cluster can never meet, checked before anything is submitted."""
        from stoker.backends.slurm.facts import prove

        settings = {step.key: settings_of(step, SlurmSettings, self._options) for step in steps}
        with contextlib.closing(login(SlurmSettings(**self._options).get("host"))) as machine:
            store = SlurmSettings(**self._options).store_on_nodes(self._site.artifacts)
            yield from prove(steps, settings, machine, store=store)
            share_facts(machine, SlurmSettings(**self._options).get("host"))

    def may_detach(self, run: DetachedRun) -> None:
        """`UsageError` if the nodes lack what a driver needs; the cluster is not asked."""
        from stoker.backends.slurm import detach as slurmdetach

        slurmdetach.check(SlurmSettings(**self._options))

    def detach(self, start: DriverStart) -> DriverJob:
        """Submit a small job that drives a run."""
        from stoker.backends.slurm import detach as slurmdetach

        settings, output = SlurmSettings(**self._options), start.output
        place = slurmdetach.detach(settings, start.argv, start.folder, start.name, output=output)
        return DriverJob(place=place, output=output)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The script that sbatch gets for a single job, and the document that the job reads."""
        settings = settings_of(job.step, SlurmSettings, self._options)
        whole = SlurmSettings(**self._options)
        folder = whole.folder_in(self._site.scratch)
        site = attrs.evolve(self._site, artifacts=whole.store_on_nodes(self._site.artifacts))
        return {
            "host": settings.get("host", ""),
            "script": slurmscript.script([job], site, settings, folder=folder, token=TOKEN),
            "document": to_json(slurmscript.specification(job, site, settings, folder=folder, token=TOKEN)),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that writes the job's folder and submits it."""
        from stoker.backends.slurm.byhand import script

        settings = settings_of(job.step, SlurmSettings, self._options)
        folder = SlurmSettings(**self._options).folder_in(self._site.scratch)
        return script(job, request, self._site, settings, folder=slurmscript.submission_folder(folder, job.run, TOKEN))


class SlurmPlatform:
    """One cluster, for `Watched`; all calls are in the watch's thread."""

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = options
        self._settings = SlurmSettings(**options)
        self._login = login(self._settings.get("host"))
        self._poll: float = self._settings.get("poll", POLL)
        self.answers = Answers(_who(self._settings), slow=max(SLOW, 2 * self._poll))
        self._controller = Controller(self._login, self.answers)
        self._limits = Limits(self._login)
        self._pause = self._poll
        self._asked = float("-inf")
        self._due = float("-inf")
        self._silent = ""
        self._folder = ""
        self._store = ""
        self._largest = 0
        self._queue_limits = QueueLimits(self._settings)
        self._pools = Pools(
            self._login,
            self._controller,
            self._queue_limits,
            home=self._home,
            place=lambda settings: self._at_home(settings, self._home()),
            most=self._most,
            alone=lambda: len(self._alone),
            refusal=self._limits.refusal,
        )
        self._alone: set[str] = set()
        """Folders of the files of jobs of their own that are in the queue."""
        self._waits = 0
        self._look_took = 0.0
        self._unsent: dict[str, tuple[Job, SlurmJob]] = {}
        """Jobs of their own for which the queue has no room, by name."""
        self._orphans: Orphans | None = None
        self._over: list[tuple[float, SlurmJob]] = []
        self._open: dict[str, int] = {}
        self._adopted: set[str] = set()

    # Sending

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Adopt jobs that an earlier driver sent, or that this one sent without getting an answer."""
        if self._orphans is None:
            take_facts(self._login, self._settings.get("host"))
            self._orphans = Orphans(self._login, self._controller, self._pools, self._home(), jobs[0].run)
        adopted = self._orphans.adopt(jobs, self._options)
        for task in adopted.values():
            if task.order is not None:
                continue
            self._alone.add(task.job_folder)
            self._open[task.folder] = self._open.get(task.folder, 0) + 1
            self._adopted.add(task.folder)  # other jobs of it may be adopted later
        self._hurry()
        return adopted

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Order jobs whose shape allows it from a pool; submit each group of other alike ones by one sbatch."""
        groups: dict[tuple[bool, str], list[Job]] = {}
        for job in jobs:
            settings = settings_of(job.step, SlurmSettings, self._options)
            alone = bool(slurmscript.why_alone(job.step, settings, job.kind))
            kind = slurmscript.group(job, settings) if alone else slurmscript.shape(job, settings)
            groups.setdefault((alone, kind), []).append(job)
        answers: dict[str, Any] = {}
        for (alone, _), alike in groups.items():
            try:
                if alone:
                    self._send_alone(alike, answers)
                else:
                    answers.update(self._pools.order(alike, settings_of(alike[0].step, SlurmSettings, self._options)))
            except Away:
                if not answers:
                    raise
                return answers  # the others are sent again
            except BackendError as error:
                answers.update({job.name: _refusal(error, alike[0].avoid) for job in alike})
        self._hurry()
        return answers

    def _send_alone(self, jobs: Sequence[Job], answers: dict[str, Any]) -> None:
        """Submit alike jobs, as many at once as the queue takes; the rest waits until jobs have left it."""
        remaining = list(jobs)
        while remaining:
            now, live = time.monotonic(), self._live()
            room = min(self._queue_limits.room(live, now), self._most() if len(remaining) > 1 else 1)
            if room < 1:
                break
            part = remaining[:room]
            try:
                answers.update(self._submit(part))
            except QueueFull as error:
                self._queue_limits.refused(len(part), live, now, error.limit)
                continue
            except Away:
                raise
            except BackendError as error:
                answers.update({job.name: _refusal(error, part[0].avoid) for job in part})
            else:
                self._queue_limits.accepted(now)
            remaining = remaining[len(part) :]
        for job in remaining:
            settings = settings_of(job.step, SlurmSettings, self._options)
            task = slurm_job("", "", 0, 1, job, settings)
            self._unsent[job.name] = (job, task)
            answers[job.name] = task

    def _live(self) -> int:
        """How many jobs of the run are in the queue, as far as is known."""
        return len(self._alone) + self._pools.live()

    def _send_unsent(self) -> None:
        """Submit jobs for which the queue had no room."""
        now = time.monotonic()
        if not self._unsent or self._queue_limits.room(self._live(), now) < 1:
            return
        waiting = {name: (job, task) for name, (job, task) in self._unsent.items() if task.verdict is None}
        self._unsent.clear()
        jobs = [job for job, _ in waiting.values()]
        answers: dict[str, Any] = {}
        try:
            # A submission that the controller broke off may have been taken all the same.
            answers.update(self.find(jobs) if self._orphans is not None and self._orphans.doubtful else {})
            answers.update(self.send([job for job in jobs if job.name not in answers]))
        finally:
            for name, (job, task) in waiting.items():
                answer = answers.get(name)
                if isinstance(answer, JobStatus):
                    task.verdict = answer
                elif answer is None or not answer.id:
                    self._unsent[name] = (job, task)
                else:
                    task.id, task.folder, task.job_folder = answer.id, answer.folder, answer.job_folder
                    task.attempt = answer.attempt

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
        except BackendError as error:
            if not isinstance(error, QueueFull) or error.limit:
                self._orphans.settle(token)
                self._login.remove([folder])
            raise
        self._orphans.settle(token)
        self._open[folder] = len(jobs)
        self._alone.update(f"{folder}/{index}" for index in range(len(jobs)))
        return {job.name: slurm_job(folder, id, index, len(jobs), job, settings) for index, job in enumerate(jobs)}

    def _home(self) -> str:
        if not self._folder:
            self._folder = self._login.expand(self._settings.folder_in(self._site.scratch)).rstrip("/")
        return self._folder

    def _at_home(self, settings: SlurmSettings, home: str) -> Site:
        """The site as the nodes see it, once the worker is in a folder of theirs."""
        if self._site.bundle and not settings.shares:
            self._login.bring(self._site.bundle, slurmscript.bundle_path(self._site, settings, home))
        if not self._store:
            store = self._settings.store_on_nodes(self._site.artifacts)
            self._store = store if "://" in store else self._login.expand(store)
        return attrs.evolve(self._site, artifacts=self._store)

    def _most(self) -> int:
        """The most tasks of an array."""
        limit: int | None = self._settings.get("max_array")
        if limit is not None:
            return limit
        if not self._largest:
            self._largest = self._controller.largest_array()
        return self._largest

    # Watching

    def pause(self, quiet: float) -> float:
        """Seconds until the next look: fewer while workers take steps and news are recent, if looking is cheap."""
        usual = min(max(quiet, PAUSES[0]), PAUSES[-1])
        if self._settings.get("host") is not None or not self._pools.works():
            return usual
        recent = min(quiet, time.monotonic() - self._pools.changed_at)
        return min(usual, max(SOONEST, SHARE_OF_QUIET * recent, COST * self._look_took))

    def gather(self) -> float:
        """Seconds without a further job before those submitted are sent: fewer where a worker waits for one."""
        return SOON if self._pools.idle() else GATHER

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, JobReport]:
        """Observe jobs by their files, and less often by the queue."""
        tasks: dict[str, SlurmJob] = dict(handles)
        began = time.monotonic()
        self._pools.follow(began)
        pieces = self._read(tasks.values())
        now = time.monotonic()
        self._look_took = now - began
        try:
            if not self._silent or now >= self._due:
                self._pools.staff(now)
                self._send_unsent()
            self._ask(list(tasks.values()), now)
        except Away as error:
            # The first time it is asked again soon: only then is it known whether it is silent.
            self._pause = min(self._pause * 2, LONGEST) if self._silent else self._poll
            self._silent = error.message
            self._due = time.monotonic() + self._pause
        updates = {}
        self._waits = sum(not task.id for task in tasks.values())
        for name, task in tasks.items():
            events, task.events = tuple(task.events), []
            status = task.status(now)
            if status is not None and status.cause in (WORKER_LOST, SETUP_FAILED) and self._login.is_full(task.folder):
                status = attrs.evolve(status, cause=DISK_FULL, message=f"{_full(task.folder)}: {status.message}")
            if status is not None:
                self._copy_samples(task)
            if status is None and task.wants:
                self._due = min(self._due, self._asked + self._poll)
            message, reason = self._message(task)
            updates[name] = JobReport(
                running=task.runs,
                message=message,
                reason=reason,
                facts=self._facts(task),
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

    def _message(self, task: SlurmJob) -> tuple[str, str]:
        """Why a job waits, and the part of that which is reported when it changes."""
        if self._silent:
            return f"{self._silent}; it is asked again", ""
        if not task.id and task.order is not None:
            return self._pools.message(task)
        if not task.id:
            live, now = self._live(), time.monotonic()
            return self._queue_limits.message(self._waits, live, now), self._queue_limits.reason(live, now)
        row = task.row
        if row is None:
            return "", ""
        if task.order is not None or row.stage != "waiting" or row.reason in ("None", ""):
            return "", row.reason  # the scheduler has not looked at it yet
        return explain(row.reason, start=row.start, job=task.id), row.reason

    def _facts(self, task: SlurmJob) -> dict[str, str]:
        """Which job it is and where that runs, as far as the queue and the pools tell."""
        facts = {} if task.row is None else {"partition": task.row.partition}
        row = task.details if task.details is not None else task.row
        if row is not None and row.stage != "waiting":
            facts["node"] = row.nodes
        if not task.id and task.order is not None:
            facts["partition"] = self._pools.partition(task)
        if task.order is not None and task.id:
            facts.update(job=f"job {task.id}", id=task.id)
        return {name: text for name, text in facts.items() if text}

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
        if not task.id:
            return False
        far = self._settings.get("host") is not None
        return not far or task.order is not None or task.up or task.row is None or task.row.stage != "waiting"

    def _ask(self, tasks: Sequence[SlurmJob], now: float) -> None:
        """Query the queue for all jobs if it is due, and details of those that need them."""
        if now < self._due:
            return
        self._asked = now
        sent = [task for task in tasks if task.id]
        ids = {task.id.partition("_")[0] for task in sent} | self._pools.ids()
        rows = self._controller.rows(ids) if ids else {}
        self._silent = ""
        self._pools.note_rows(rows, now)
        tasks = [task for task in tasks if task.id]
        changed = False
        for task in tasks:
            row = rows.get(task.id)
            changed = changed or row is None or task.row is None or row.state != task.row.state
            task.note_row(row, now)
            if row is not None and row.stage == "waiting":
                task.refusal = self._limits.refusal(task.id, row.reason)
            task.status(now)
        puzzling = {task.id.partition("_")[0] for task in tasks if task.wants == "details"}
        if puzzling:
            details = self._controller.details(puzzling)
            for task in tasks:
                if task.order is not None and task.wants == "details" and task.details is None:
                    self._pools.explain_end(task)
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
        self._pools.withdraw([task for task in tasks if task.order is not None], grace=grace)
        for task in tasks:
            if task.order is None and not task.id:
                task.verdict = failed(CANCELLED)
        tasks = [task for task in tasks if task.order is None and task.id]
        if not tasks:
            return
        if not grace:
            self._controller.cancel(ids_of(task.id for task in tasks))
            return
        for batch in (True, False):
            signalled = [task for task in tasks if task.batch == batch]
            if signalled:
                self._controller.ask(ids_of(task.id for task in signalled), batch=batch)

    def forget(self, handle: Any) -> None:
        """Remove the files of a finished job after a while, its submission's with the last one."""
        task: SlurmJob = handle
        self._alone.discard(task.job_folder)
        self._pools.release(task)
        if not task.folder:
            return  # it was never sent
        self._over.append((time.monotonic(), task))
        if task.order is not None:
            return
        if task.missing is not None or task.comes_again or task.refusal:
            # It counted as lost and may still start; or it is done, and Slurm would start it again; or it never starts.
            self._controller.cancel(ids_of([task.id]))

    def _clear(self, before: float) -> None:
        """Remove the files of jobs that were over before a time."""
        if not self._over or self._over[0][0] > before:
            return
        old = [task for at, task in self._over if at <= before]
        self._over = self._over[len(old) :]
        paths = []
        for task in old:
            if task.order is not None:
                paths.append(task.job_folder)
                continue
            self._open[task.folder] -= 1
            whole = self._open[task.folder] == 0 and task.folder not in self._adopted
            paths.append(task.folder if whole else task.job_folder)
        self._login.remove(paths)

    def identity(self, handle: Any) -> Mapping[str, Any]:
        """The job's id; of an order that no worker has taken its pool, and the ids of the pool's jobs."""
        task: SlurmJob = handle
        if not task.id and task.order is not None:
            return self._pools.identity(task)
        if not task.id:
            return {"job": "a job that is not in the queue yet"}
        return {"job": f"job {task.id}", "id": task.id}

    def adopted_attempt(self, handle: Any) -> int:
        """The attempt as which an earlier driver sent the job."""
        task: SlurmJob = handle
        return task.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """The comments of submissions without an answer."""
        tokens = (*(() if self._orphans is None else self._orphans.doubtful), *self._pools.doubtful())
        return [{"job": f"a submission with the comment {token}", "comment": token} for token in tokens]

    def close(self) -> None:
        """Remove the files of finished jobs, end jobs that were not adopted, and close the login."""
        try:
            self._clear(float("inf"))
            self._login.remove([folder for folder in self._adopted if self._open[folder] == 0])
            if self._orphans is not None:
                self._orphans.end()
            self._pools.close()
        except BackendError as error:
            log.info("left for `stoker gc`: %s", error)
        finally:
            self._login.close()

    def abandon(self) -> None:
        """Kill the command that waits for an answer."""
        self._login.abandon()


def _refusal(error: BackendError, avoid: Sequence[str]) -> JobStatus:
    """The status of a job that cannot be sent, perhaps because of the nodes that it must avoid."""
    return failed(DISK_FULL if isinstance(error, DiskFull) else REFUSED, refusal_text(error, avoid))


def _full(folder: str) -> str:
    what = f"the disk of {folder} is full, or a quota on it is used up, so that the job could not write its result"
    return f"{what}; free some of it (`stoker gc`), or name a folder on another disk (the setting folder)"


def _who(settings: SlurmSettings) -> str:
    """What answers for the cluster."""
    host = settings.get("host")
    return "Slurm's controller" if host is None else f"Slurm's controller behind {host}"
