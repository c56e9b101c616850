"""Batches of steps on one Ray cluster: sent, found again, followed and ended.

A batch outlives its driver: the next one that has the same to do finds it by its metadata and its document, takes over
what it has done, and follows it if it still runs.
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
from stoker.backends.base.platforms import Away, JobUpdate
from stoker.backends.base.statuses import failed, of_boot
from stoker.backends.ray import tasks as raytasks
from stoker.backends.ray.jobs import OVER, Jobs
from stoker.backends.ray.log import File, Log, Source
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
class Batch:
    """A Ray job and what is known of its steps, by number. `ends` are those asked to end, with their grace."""

    id: str
    folder: str
    names: list[str]
    source: Source
    running: set[int] = attrs.field(factory=set)
    waiting: dict[int, str] = attrs.field(factory=dict)
    overs: dict[int, Mapping[str, Any]] = attrs.field(factory=dict)
    output: dict[int, list[tuple[int, str, bytes]]] = attrs.field(factory=dict)
    held: set[int] = attrs.field(factory=set)
    ends: dict[int, float] = attrs.field(factory=dict)
    done: bool = False
    state: str = "PENDING"
    message: str = ""
    seen: float = attrs.field(factory=time.monotonic)
    over_at: float = 0.0


@attrs.frozen(kw_only=True)
class Order:
    """A batch that is being sent."""

    jobs: Sequence[Job]
    id: str
    folder: str
    token: str


@attrs.frozen(kw_only=True)
class Handle:
    """One job: its batch, and its number there."""

    batch: Batch
    number: int
    memory: int = 0


class RayPlatform:
    """How batches are sent to one cluster, found, followed and ended."""

    def __init__(self, site: Site, options: Mapping[str, Any], jobs: Jobs, *, shares: bool) -> None:
        self._site = site
        self._options = options
        self._settings = RaySettings(**options)
        self._jobs = jobs
        self._shares = shares
        self._batches: list[Batch] = []
        self._earlier: EarlierJobs[tuple[Batch, int]] = EarlierJobs()
        self._looked: set[str] = set()
        self._unsent: Order | None = None
        self._package = ""
        self._next_ask = 0.0
        self._calm = 0

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Handle]:
        """Jobs that a driver that is gone had sent, and that still run, wait, or went well."""
        for run in {job.run for job in jobs} - self._looked:
            self._load(run)
            self._looked.add(run)
        found = {}
        for job in jobs:
            adopted, others = self._earlier.adopt(job, lambda one: _is_worth(*one))
            if adopted is not None:
                found[job.name] = self._held(*adopted, job)
            for batch, number in others:
                if number not in batch.overs and batch.state not in OVER:
                    self._end_in(batch, {number: 0.0})
        return found

    def _load(self, run: str) -> None:
        """What earlier drivers of a run had sent, the latest first."""
        theirs = []
        for one in self._jobs.jobs():
            metadata = one.get("metadata") or {}
            if metadata.get("stoker.run") == run and metadata.get("stoker.home") == self._site.scratch:
                theirs.append((one.get("start_time") or 0, one["submission_id"], metadata["stoker.folder"], one))
        found: list[tuple[Batch, list[Any]]] = []
        for _, id, folder, one in sorted(theirs, key=lambda entry: entry[:2], reverse=True):
            text = read_file(folder, raytasks.DOCUMENT)
            if text is None:
                continue
            steps = json.loads(text)["steps"]
            batch = self._batch(id, folder, [step["name"] for step in steps])
            batch.state = one["status"]
            self._read(batch)
            found.append((batch, steps))
        for batch, steps in found:
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

    def _batch(self, id: str, folder: str, names: list[str]) -> Batch:
        source: Source = File(f"{folder}/journal") if self._shares else Log(self._jobs, id)
        return Batch(id=id, folder=folder, names=names, source=source)

    def _held(self, batch: Batch, number: int, job: Job) -> Handle:
        batch.held.add(number)
        return Handle(batch=batch, number=number, memory=job.step.settings.resources.get("memory", 0))

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Handle]:
        """Start one Ray job for all. What an answer that never came may have started is sent again first, as it was:
        the cluster knows it by its id."""
        if self._unsent is None:
            self._unsent = self._order(jobs)
        order = self._unsent
        batch_of, id, folder = order.jobs, order.id, order.folder
        if self._jobs.job(id) is None:
            self._start(order)
        self._unsent = None
        batch = self._batch(id, folder, [job.name for job in batch_of])
        self._batches.append(batch)
        self._next_ask, self._calm = 0.0, 0
        asked = {job.name for job in jobs}
        gone = {number: 0.0 for number, job in enumerate(batch_of) if job.name not in asked}
        if gone:
            self._end_in(batch, gone)
        return {job.name: self._held(batch, number, job) for number, job in enumerate(batch_of) if job.name in asked}

    def _order(self, jobs: Sequence[Job]) -> Order:
        """A batch that is to be sent, by a name that the cluster does not know yet: those that it knows are over, or
        were found before."""
        run, token, again = jobs[0].run, raytasks.token_of(jobs), 0
        while self._jobs.job(id := raytasks.submission_id(run, token, again)) is not None:
            again += 1
        folder = f"{self._root()}/{run}/{token}" + (f"-{again}" if again else "")
        return Order(jobs=list(jobs), id=id, folder=folder, token=token)

    def _start(self, order: Order) -> None:
        folder, run = order.folder, order.jobs[0].run
        package = "" if self._shares else self._sent_package()
        shared: dict[str, Any] = {"folder": folder, "shares": self._shares, "package": package}
        told = raytasks.document(order.jobs, self._site, self._options, token=order.token, **shared)
        body = raytasks.request(self._site, self._settings, id=order.id, run=run, **shared)
        try:
            write_file(folder, raytasks.DOCUMENT, json.dumps(told).encode())
            self._jobs.submit(body)
        except BackendError as error:
            if not isinstance(error, Away):
                self._unsent = None
                remove_folder(folder)
            raise

    def _root(self) -> str:
        return f"{self._site.scratch}/ray" if self._shares else f"{self._site.artifacts}/ray"

    def _sent_package(self) -> str:
        """The URI of Stoker's worker in the cluster, which has it then."""
        if not self._package:
            name = f"_ray_pkg_stoker_{Path(self._site.bundle).name.partition('-')[2]}.zip"
            if not self._jobs.has_package(name):
                self._jobs.put_package(name, _zipped(Path(self._site.bundle)))
            self._package = f"gcs://{name}"
        return self._package

    # Following

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, JobUpdate]:
        """What is new of jobs: from their journals, and in one call for all from the dashboard."""
        batches = list({id(handle.batch): handle.batch for handle in handles.values()}.values())
        away: Away | None = None
        for batch in batches:
            try:
                self._read(batch)
            except Away as error:
                away = error
        if away is None:
            try:
                self._ask(batches)
            except Away as error:
                away = error
        found = {name: seen for name, handle in handles.items() if (seen := self._seen(handle)) is not None}
        if away is not None and not found:
            raise away
        return found

    def _read(self, batch: Batch) -> None:
        """Take in what a batch's program told."""
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
                batch.overs[number] = record["over"]
            elif record.get("done"):
                batch.done = True
                batch.source.close()

    def _keep_samples(self, path: str, text: str) -> None:
        """What a node that does not see our folders measured, where this machine looks for it."""
        if os.path.dirname(path) == self._site.scratch:
            os.makedirs(self._site.scratch, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def _ask(self, batches: Sequence[Batch]) -> None:
        """Learn the states of all Ray jobs, if it is time to."""
        now = time.monotonic()
        waiting = [batch for batch in batches if not batch.done]
        if not waiting or now < self._next_ask:
            return
        known = {one["submission_id"]: one for one in self._jobs.jobs()}
        self._calm = 0 if any(batch.state == "PENDING" for batch in waiting) else min(self._calm + 1, len(ASK) - 1)
        self._next_ask = now + ASK[self._calm]
        for batch in waiting:
            one = known.get(batch.id)
            if one is None:
                if now > batch.seen + MISSING:
                    batch.state, batch.message = "FAILED", "the Ray cluster no longer knows the job: was it restarted?"
                continue
            batch.seen, batch.state, batch.message = now, one["status"], one.get("message") or ""
            if batch.state in OVER:
                # Its program's last words are read after its end was seen: what is there now is all.
                batch.over_at = batch.over_at or now
                self._read(batch)

    def _seen(self, handle: Handle) -> JobUpdate | None:
        batch, number = handle.batch, handle.number
        output = batch.output.pop(number, ())
        over = batch.overs.get(number)
        if over is not None:
            return JobUpdate(output=output, status=_status(over, handle))
        if batch.state in OVER and time.monotonic() > batch.over_at + (0.0 if self._shares else LAST_WORDS):
            return JobUpdate(output=output, status=self._gone(handle))
        if number in batch.running:
            return JobUpdate(running=True, output=output)
        message = batch.waiting.get(number, "")
        if not message and batch.state == "PENDING":
            message = f"Ray starts its job: {batch.message}" if batch.message else "Ray starts its job"
        return JobUpdate(message=message, output=output) if message or output else None

    def _gone(self, handle: Handle) -> JobStatus:
        """The end of a job whose program is gone without having told it."""
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

    def end(self, handles: Mapping[str, Handle], *, grace: float) -> None:
        """Ask jobs to end; where that is all that a Ray job still does, and at once, the Ray job is stopped."""
        by_batch: dict[int, tuple[Batch, dict[int, float]]] = {}
        for handle in handles.values():
            by_batch.setdefault(id(handle.batch), (handle.batch, {}))[1][handle.number] = grace
        for batch, ends in by_batch.values():
            self._end_in(batch, ends)

    def _end_in(self, batch: Batch, ends: Mapping[int, float]) -> None:
        before = dict(batch.ends)
        for number, grace in ends.items():
            batch.ends[number] = min(grace, batch.ends.get(number, grace))
        if batch.ends != before and not batch.done:
            told = {str(number): grace for number, grace in batch.ends.items()}
            write_file(batch.folder, "ends.json", json.dumps(told).encode())
        if _all_end(batch) and len(batch.overs) < len(batch.names) and batch.state not in OVER:
            self._jobs.stop(batch.id)

    def forget(self, handle: Handle) -> None:
        """A job is over; with its batch's last one goes what the batch left behind."""
        batch = handle.batch
        batch.held.discard(handle.number)
        batch.output.pop(handle.number, None)
        if not batch.held and (batch.state in OVER or len(batch.overs) == len(batch.names)):
            self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        self._batches = [one for one in self._batches if one is not batch]
        batch.source.close()
        remove_folder(batch.folder)

    def close(self) -> None:
        """End what nobody took over, and let go of connections."""
        with contextlib.suppress(BackendError):
            for batch, number in self._earlier.take_remaining():
                if number not in batch.overs and batch.state not in OVER:
                    self._end_in(batch, {number: 0.0})
        for batch in list(self._batches):
            batch.source.close()
            if batch.state in OVER or _all_end(batch):
                self._leave(batch)
        self._jobs.close()


def _all_end(batch: Batch) -> bool:
    """Whether every step of a batch is over, or was told to be at once."""
    return all(number in batch.overs or batch.ends.get(number) == 0.0 for number in range(len(batch.names)))


def _status(over: Mapping[str, Any], handle: Handle) -> JobStatus:
    """How a job went, from what its program told of its end."""
    if over.get("cause"):
        return failed(over["cause"], over.get("message", ""))
    if over.get("result") is not None:
        return of_boot(from_json(StepResult, over["result"], strict=False), None, memory=handle.memory)
    code = over.get("code")
    why = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
    cause = CANCELLED if handle.number in handle.batch.ends else WORKER_LOST
    return attrs.evolve(failed(cause, f"Stoker's worker ended without a result: {why}"), exit_code=code)


def _is_worth(batch: Batch, number: int) -> bool:
    """Whether a job of an earlier driver went well, or may still."""
    over = batch.overs.get(number)
    return batch.state not in OVER if over is None else bool((over.get("result") or {}).get("ok"))


def _zipped(folder: Path) -> bytes:
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
    """Take the folder away; one that is gone is fine."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
        return
    import fsspec

    system, name = fsspec.core.url_to_fs(folder)
    with contextlib.suppress(FileNotFoundError):
        system.rm(name, recursive=True)
