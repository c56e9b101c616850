"""Batches of steps on one Ray cluster: sent, found again, followed and ended.

A batch outlives its driver: the next one that has the same to do finds it by its metadata and its document, adopts
the steps that went well or still run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed, of_boot
from stoker.backends.ray import tasks as raytasks
from stoker.backends.ray.jobs import OVER, Jobs
from stoker.backends.ray.log import DashboardLog, JournalFile, RecordSource
from stoker.backends.ray.settings import RaySettings
from stoker.core.codec import from_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import StepResult
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST

ASK: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds between two questions for the states of all Ray jobs, longer while they run: what happens in a job is told by
its program, so that this only finds those whose program is gone."""
MISSING: Final = 60.0
"""Seconds for which the dashboard may not mention a job that it had taken, before that counts as lost."""
LAST_WORDS: Final = 5.0
"""Seconds after a Ray job's end in which the rest of its log may still come."""


@attrs.define(kw_only=True, eq=False)
class RayBatch:
    """A Ray job and what is known of its steps, by their number."""

    id: str
    folder: str
    names: list[str]
    source: RecordSource
    running: set[int] = attrs.field(factory=set)
    waiting: dict[int, str] = attrs.field(factory=dict)
    """Why steps wait."""
    results: dict[int, Mapping[str, Any]] = attrs.field(factory=dict)
    """The "over" records of steps that ended."""
    output: dict[int, list[tuple[int, str, bytes]]] = attrs.field(factory=dict)
    """What was not reported yet: node, stream, bytes."""
    followed: set[int] = attrs.field(factory=set)
    """Steps for which this driver has a handle."""
    ends: dict[int, float] = attrs.field(factory=dict)
    """Steps that were asked to end, with their grace in seconds."""
    done: bool = False
    """Whether the program has written its last record."""
    state: str = "PENDING"
    """As the dashboard reports it."""
    message: str = ""
    last_seen: float = attrs.field(factory=time.monotonic)
    """When the dashboard last mentioned the job, on the monotonic clock."""
    over_at: float = 0.0
    """When the job was first seen to be over, on the monotonic clock; 0: not yet."""


@attrs.frozen(kw_only=True)
class UnsentBatch:
    """A batch that is being sent; kept until the cluster has confirmed it."""

    jobs: Sequence[Job]
    id: str
    folder: str
    token: str


@attrs.frozen(kw_only=True)
class RayHandle:
    """One job of a batch."""

    batch: RayBatch
    number: int
    """Of its step in the batch."""
    memory: int = 0
    """The step's memory limit in bytes; 0: none."""


class RayPlatform:
    """Sends batches to one cluster, finds, follows and ends them."""

    def __init__(self, site: Site, options: Mapping[str, Any], jobs: Jobs, *, shares: bool) -> None:
        self._site = site
        self._options = options
        self._settings = RaySettings(**options)
        self._jobs = jobs
        self._shares = shares
        self._batches: list[RayBatch] = []
        self._earlier: EarlierJobs[tuple[RayBatch, int]] = EarlierJobs()
        self._loaded: set[str] = set()
        self._unsent: UnsentBatch | None = None
        self._package = ""
        self._next_ask = 0.0
        self._calm = 0

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, RayHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        for run in {job.run for job in jobs} - self._loaded:
            self._load(run)
            self._loaded.add(run)
        handles = {}
        for job in jobs:
            adopted, others = self._earlier.adopt(job, lambda one: _is_worth_adopting(*one))
            if adopted is not None:
                handles[job.name] = self._handle(*adopted, job)
            for batch, number in others:
                if number not in batch.results and batch.state not in OVER:
                    self._end_in(batch, {number: 0.0})
        return handles

    def _load(self, run: str) -> None:
        """Load what earlier drivers of a run sent, the latest first."""
        entries = []
        for one in self._jobs.jobs():
            metadata = one.get("metadata") or {}
            if metadata.get("stoker.run") == run and metadata.get("stoker.home") == self._site.scratch:
                entries.append((one.get("start_time") or 0, one["submission_id"], metadata["stoker.folder"], one))
        batches: list[tuple[RayBatch, list[Any]]] = []
        for _, id, folder, one in sorted(entries, key=lambda entry: entry[:2], reverse=True):
            text = read_file(folder, raytasks.DOCUMENT)
            if text is None:
                continue
            steps = json.loads(text)["steps"]
            batch = self._batch(id, folder, [step["name"] for step in steps])
            batch.state = one["status"]
            self._read(batch)
            batches.append((batch, steps))
        for batch, steps in batches:
            self._batches.append(batch)
            self._earlier.add(
                EarlierJob(
                    run=run,
                    key=step["key"],
                    kind=step["kind"],
                    attempt=step["attempt"],
                    digest=step["digest"],
                    handle=(batch, number),
                )
                for number, step in enumerate(steps)
            )

    def _batch(self, id: str, folder: str, names: list[str]) -> RayBatch:
        source: RecordSource = JournalFile(f"{folder}/journal") if self._shares else DashboardLog(self._jobs, id)
        return RayBatch(id=id, folder=folder, names=names, source=source)

    def _handle(self, batch: RayBatch, number: int, job: Job) -> RayHandle:
        batch.followed.add(number)
        return RayHandle(batch=batch, number=number, memory=job.step.settings.resources.get("memory", 0))

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, RayHandle]:
        """Start one Ray job for all. A batch whose request got no answer is sent again first, unchanged: the cluster
        knows by its id whether it was started."""
        if self._unsent is None:
            self._unsent = self._prepare(jobs)
        unsent = self._unsent
        sent_jobs, id, folder = unsent.jobs, unsent.id, unsent.folder
        if self._jobs.job(id) is None:
            self._start(unsent)
        self._unsent = None
        batch = self._batch(id, folder, [job.name for job in sent_jobs])
        self._batches.append(batch)
        self._next_ask, self._calm = 0.0, 0
        wanted_names = {job.name for job in jobs}
        unwanted = {number: 0.0 for number, job in enumerate(sent_jobs) if job.name not in wanted_names}
        if unwanted:
            self._end_in(batch, unwanted)
        return {
            job.name: self._handle(batch, number, job)
            for number, job in enumerate(sent_jobs)
            if job.name in wanted_names
        }

    def _prepare(self, jobs: Sequence[Job]) -> UnsentBatch:
        """A batch of jobs, under an id that the cluster does not know yet: batches that it knows are over, or were
        found before."""
        run, token, again = jobs[0].run, raytasks.token_of(jobs), 0
        while self._jobs.job(id := raytasks.submission_id(run, token, again)) is not None:
            again += 1
        folder = f"{self._root()}/{run}/{token}" + (f"-{again}" if again else "")
        return UnsentBatch(jobs=list(jobs), id=id, folder=folder, token=token)

    def _start(self, unsent: UnsentBatch) -> None:
        folder, run = unsent.folder, unsent.jobs[0].run
        package = "" if self._shares else self._uploaded_package()
        shared: dict[str, Any] = {"folder": folder, "shares": self._shares, "package": package}
        document = raytasks.document(unsent.jobs, self._site, self._options, token=unsent.token, **shared)
        body = raytasks.request(self._site, self._settings, id=unsent.id, run=run, **shared)
        try:
            write_file(folder, raytasks.DOCUMENT, json.dumps(document).encode())
            self._jobs.submit(body)
        except BackendError as error:
            if not isinstance(error, Away):
                self._unsent = None
                remove_folder(folder)
            raise

    def _root(self) -> str:
        return f"{self._site.scratch}/ray" if self._shares else f"{self._site.artifacts}/ray"

    def _uploaded_package(self) -> str:
        """The URI of Stoker's worker in the cluster, uploaded if it is not there."""
        if not self._package:
            name = f"_ray_pkg_stoker_{Path(self._site.bundle).name.partition('-')[2]}.zip"
            if not self._jobs.has_package(name):
                self._jobs.put_package(name, _zip(Path(self._site.bundle)))
            self._package = f"gcs://{name}"
        return self._package

    # Following

    def look(self, handles: Mapping[str, RayHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs, from their journals and, in one call for all, from the dashboard."""
        batches = list({id(handle.batch): handle.batch for handle in handles.values()}.values())
        away: Away | None = None
        for batch in batches:
            try:
                self._read(batch)
            except Away as error:
                away = error
        if away is None:
            try:
                self._poll_states(batches)
            except Away as error:
                away = error
        updates = {name: update for name, handle in handles.items() if (update := self._update(handle)) is not None}
        if away is not None and not updates:
            raise away
        return updates

    def _read(self, batch: RayBatch) -> None:
        """Read the records of a batch's program."""
        if batch.done:
            return
        for record in batch.source.read():
            number = record.get("step", -1)
            if "data" in record:
                piece = (record["node"], record["stream"], record["data"].encode("latin-1"))
                batch.output.setdefault(number, []).append(piece)
            elif "on" in record:
                batch.running.add(number)
            elif "waiting" in record:
                batch.waiting[number] = record["waiting"]
            elif "samples" in record:
                self._keep_samples(*record["samples"])
            elif "over" in record:
                batch.results[number] = record["over"]
            elif record.get("done"):
                batch.done = True
                batch.source.close()

    def _keep_samples(self, path: str, text: str) -> None:
        """Write the samples of a node without shared folders to this machine's scratch."""
        if os.path.dirname(path) == self._site.scratch:
            os.makedirs(self._site.scratch, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def _poll_states(self, batches: Sequence[RayBatch]) -> None:
        """Ask the dashboard for the states of all Ray jobs, where it is time to."""
        now = time.monotonic()
        waiting = [batch for batch in batches if not batch.done]
        if not waiting or now < self._next_ask:
            return
        reported = {job["submission_id"]: job for job in self._jobs.jobs()}
        self._calm = 0 if any(batch.state == "PENDING" for batch in waiting) else min(self._calm + 1, len(ASK) - 1)
        self._next_ask = now + ASK[self._calm]
        for batch in waiting:
            job = reported.get(batch.id)
            if job is None:
                if now > batch.last_seen + MISSING:
                    batch.state, batch.message = "FAILED", "the Ray cluster no longer knows the job: was it restarted?"
                continue
            batch.last_seen, batch.state, batch.message = now, job["status"], job.get("message") or ""
            if batch.state in OVER:
                # Its program's last words are read after its end was seen: what is there now is all.
                batch.over_at = batch.over_at or now
                self._read(batch)

    def _update(self, handle: RayHandle) -> JobReport | None:
        batch, number = handle.batch, handle.number
        output = batch.output.pop(number, ())
        result = batch.results.get(number)
        if result is not None:
            return JobReport(output=output, status=_status(result, handle))
        if batch.state in OVER and time.monotonic() > batch.over_at + (0.0 if self._shares else LAST_WORDS):
            return JobReport(output=output, status=self._status_without_result(handle))
        if number in batch.running:
            return JobReport(running=True, output=output)
        message = batch.waiting.get(number, "")
        if not message and batch.state == "PENDING":
            message = f"Ray starts its job: {batch.message}" if batch.message else "Ray starts its job"
        return JobReport(message=message, output=output) if message or output else None

    def _status_without_result(self, handle: RayHandle) -> JobStatus:
        """The status of a job whose program ended without reporting it."""
        batch = handle.batch
        if handle.number in batch.ends:
            return failed(CANCELLED)
        if batch.state == "STOPPED":
            return failed(CANCELLED, f"somebody stopped the Ray job {batch.id}")
        began = bool(batch.running or batch.waiting)
        words = " ".join(batch.message.split())[-1000:]
        message = f"the Ray job {batch.id} ended: {words or 'Ray does not say why'}"
        return failed(WORKER_LOST if began else REFUSED, message)

    # Ending

    def end(self, handles: Mapping[str, RayHandle], *, grace: float) -> None:
        """Ask jobs to end; where that is all that a Ray job still does, and at once, the Ray job is stopped."""
        by_batch: dict[int, tuple[RayBatch, dict[int, float]]] = {}
        for handle in handles.values():
            by_batch.setdefault(id(handle.batch), (handle.batch, {}))[1][handle.number] = grace
        for batch, ends in by_batch.values():
            self._end_in(batch, ends)

    def _end_in(self, batch: RayBatch, ends: Mapping[int, float]) -> None:
        before = dict(batch.ends)
        for number, grace in ends.items():
            batch.ends[number] = min(grace, batch.ends.get(number, grace))
        if batch.ends != before and not batch.done:
            graces = {str(number): grace for number, grace in batch.ends.items()}
            write_file(batch.folder, "ends.json", json.dumps(graces).encode())
        if _all_end(batch) and len(batch.results) < len(batch.names) and batch.state not in OVER:
            self._jobs.stop(batch.id)

    def forget(self, handle: RayHandle) -> None:
        """A job is over; with the last one of a batch, the batch's files are removed."""
        batch = handle.batch
        batch.followed.discard(handle.number)
        batch.output.pop(handle.number, None)
        if not batch.followed and (batch.state in OVER or len(batch.results) == len(batch.names)):
            self._remove(batch)

    def _remove(self, batch: RayBatch) -> None:
        self._batches = [one for one in self._batches if one is not batch]
        batch.source.close()
        remove_folder(batch.folder)

    def close(self) -> None:
        """End earlier jobs that were not adopted, and close connections."""
        with contextlib.suppress(BackendError):
            for batch, number in self._earlier.take_remaining():
                if number not in batch.results and batch.state not in OVER:
                    self._end_in(batch, {number: 0.0})
        for batch in list(self._batches):
            batch.source.close()
            if batch.state in OVER or _all_end(batch):
                self._remove(batch)
        self._jobs.close()


def _all_end(batch: RayBatch) -> bool:
    """Whether every step of a batch is over, or was told to be at once."""
    return all(number in batch.results or batch.ends.get(number) == 0.0 for number in range(len(batch.names)))


def _status(over: Mapping[str, Any], handle: RayHandle) -> JobStatus:
    """The status of a job, from the record of its end."""
    if over.get("cause"):
        return failed(over["cause"], over.get("message", ""))
    if over.get("result") is not None:
        return of_boot(from_json(StepResult, over["result"], strict=False), None, memory=handle.memory)
    code = over.get("code")
    why = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
    cause = CANCELLED if handle.number in handle.batch.ends else WORKER_LOST
    return attrs.evolve(failed(cause, f"Stoker's worker ended without a result: {why}"), exit_code=code)


def _is_worth_adopting(batch: RayBatch, number: int) -> bool:
    """Whether a job of an earlier driver went well, or may still."""
    over = batch.results.get(number)
    return batch.state not in OVER if over is None else bool((over.get("result") or {}).get("ok"))


def _zip(folder: Path) -> bytes:
    """A folder as the archive that Ray unpacks: the same bytes for the same files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()


def write_file(folder: str, name: str, data: bytes) -> None:
    """A file of the folder, whole or not at all; readable for nobody else where that can be said."""
    if "://" in folder:
        import fsspec

        try:
            with fsspec.open(f"{folder}/{name}", "wb") as file:
                file.write(data)
        except Exception as error:  # whatever the store's own library raises
            raise BackendError(f"{folder}/{name} cannot be written: {type(error).__name__}: {error}") from error
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(descriptor, "wb") as plain:
        plain.write(data)
    os.replace(beside, os.path.join(folder, name))


def read_file(folder: str, name: str) -> bytes | None:
    """What a file holds; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        if "://" in folder:
            import fsspec

            with fsspec.open(f"{folder}/{name}", "rb") as file:
                return bytes(file.read())
        with open(os.path.join(folder, name), "rb") as plain:
            return plain.read()
    return None


def remove_folder(folder: str) -> None:
    """Remove a folder; one that is gone is ignored."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
        return
    import fsspec

    system, name = fsspec.core.url_to_fs(folder)
    with contextlib.suppress(FileNotFoundError):
        system.rm(name, recursive=True)
