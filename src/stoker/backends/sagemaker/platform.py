"""The training jobs of one account and region that run the steps of runs: sent, found again, followed and ended.

A job's name says of which run it is, and ends with a token by which the folder of its document in the artifact store is
found. SageMaker takes each name once in an account and region: a request that is repeated starts nothing twice, and a
later driver finds what a killed one sent, also where the request got no answer.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import re
import time
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.aws import AwsError
from stoker.backends.base.awslogs import ENDED, StreamReader
from stoker.backends.base.backend import settings_of
from stoker.backends.base.mailboxes import asked, bring_worker
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed, of_boot, read_result
from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.causes import (
    OVER,
    TrainingEnd,
    end_of,
    failure_of,
    has_begun,
    is_running,
    quota_of,
    why_waiting,
)
from stoker.backends.sagemaker.client import LOG_GROUP, SagemakerClient
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import MARK, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.core.units import duration_text
from stoker.store import notes

log = logging.getLogger(__name__)

AGAIN: Final = 16
"""How often a job is sent again whose instance failed, before it counts as failed."""
SHORTAGES: Final = (60.0, 120.0, 240.0, 480.0, *(900.0,) * 12)
"""Seconds before a job is sent again for which AWS had no instances: SageMaker itself has tried for some minutes before
it says so, and has them within hours if at all. `max_pending` limits them together."""
FULL: Final = 10.0
"""Seconds before a job is sent once more for which the account's quota had no room."""
LAST_WORDS: Final = 15.0
"""Seconds after the end of a container that was killed in which CloudWatch may still get its last lines."""
UNSEEN: Final = 60.0
"""Seconds for which SageMaker may not know a job that was just sent."""
READ: Final = 20
"""Log streams that are read at one look: the account has 25 GetLogEvents a second.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"""
LIMIT: Final = "ResourceLimitExceeded"
"""CreateTrainingJob's code for a quota of the account that has no room."""
MARKED: Final = MARK.encode()
_T = TypeVar("_T")
_INSTANCE: Final = re.compile(r"/algo-(?P<number>[0-9]+)-(?P<began>[0-9]+)$")


@attrs.define(kw_only=True, eq=False)
class TrainingHandle:
    """A job as a training job."""

    job: Job
    name: str
    """At SageMaker."""
    folder: str
    """In the artifact store."""
    nodes: int = 1
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    seen: float = 0.0
    """When it was last described, or sent, on the monotonic clock."""
    modified: Any = None
    """The time of its last change that is known, by the list of jobs."""
    row: Mapping[str, Any] = attrs.field(factory=dict)
    """As it was last described."""
    streams: dict[int, tuple[str, StreamReader]] = attrs.field(factory=dict)
    """By node: the newest log stream and how much of it was read."""
    left: list[tuple[int, str, bytes]] = attrs.field(factory=list)
    """What earlier jobs of it wrote, and was not passed on yet."""
    events: list[WorkerEvent] = attrs.field(factory=list)
    """Events that were not passed on yet."""
    running: bool = False
    again: int = 0
    """How often it was sent again because SageMaker failed, or had no instances."""
    shortages: int = 0
    """How often AWS had no instances for it."""
    short_since: float = 0.0
    """When AWS first had none, on the monotonic clock; 0: never."""
    paused: TrainingEnd | None = None
    """Why it is to be sent again; None for one that is sent."""
    again_at: float = 0.0
    """When it is sent again, on the monotonic clock."""
    ending: bool = False
    over_since: float = 0.0
    """When its end was first seen, on the monotonic clock; 0: not yet."""
    transitions: int = 0
    """How often its state had changed when its log streams were last listed."""
    facts: dict[str, str] = attrs.field(factory=dict)

    @property
    def memory(self) -> int:
        """The step's memory limit in bytes; 0: none."""
        return int(self.job.step.settings.resources.get("memory", 0))


class SagemakerPlatform:
    """Sends, finds, follows and ends jobs."""

    def __init__(self, site: Site, options: Mapping[str, Any], client: SagemakerClient) -> None:
        self._site, self._options, self._client = site, options, client
        self.answers = client.answers
        self._loaded: set[str] = set()
        """Runs of which earlier jobs are known."""
        self._earlier: EarlierJobs[tuple[str, str, int, str]] = EarlierJobs()
        """Each with its name, folder, nodes and state."""
        self._doubtful: set[str] = set()
        """Names of jobs whose request got no answer."""
        self._full: dict[str, tuple[float, JobStatus]] = {}
        """By job: when it is sent once more for which there was no room, on the monotonic clock, and what it waits
        for."""
        self._programs_there = False

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, TrainingHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        handles: dict[str, TrainingHandle] = {}
        for job in jobs:
            if job.run not in self._loaded:
                self._load(job.run)
                self._loaded.add(job.run)
            adopted, others = self._earlier.adopt(job, lambda one: one[3] in ("InProgress", "Completed"))
            if adopted is not None:
                name, folder, nodes, _ = adopted.handle
                handles[job.name] = TrainingHandle(
                    job=job, name=name, folder=folder, nodes=nodes, attempt=adopted.attempt, seen=time.monotonic()
                )
            for name, _, _, state in others:
                if state == "InProgress":
                    self._client.stop(name)
        return handles

    def _load(self, run: str) -> None:
        """Find the jobs of earlier drivers of a run."""
        prefix = requests.run_prefix(run)
        for row in self._client.named(prefix):
            name = str(row["TrainingJobName"])
            folder = requests.folder_of(self._site.artifacts, run, name.removeprefix(prefix))
            data = asked("job", lambda folder=folder: notes.get(f"{folder}/{requests.DOCUMENT}"))  # type: ignore[misc]
            if data is None:
                continue  # all of it is known and its folder is removed
            document = parse_json(gzip.decompress(data))
            self._earlier.add(
                EarlierJob(
                    run=run,
                    key=one["key"],
                    kind=one["kind"],
                    attempt=one["attempt"],
                    digest=one["digest"],
                    handle=(name, folder, int(document["nodes"]), str(row["TrainingJobStatus"])),
                )
                for one in document["jobs"]
            )

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Send jobs. One for which the account's quota has no room now is queued, and sent later."""
        answers: dict[str, Any] = {}
        for job in jobs:
            again_at, status = self._full.get(job.name, (0.0, None))
            if status is not None and time.monotonic() < again_at:
                answers[job.name] = status
                continue
            self._full.pop(job.name, None)
            try:
                answers[job.name] = self._send(job)
            except Away:
                if not answers:
                    raise
                return answers
            except BackendError as error:
                waits = waits_for(error)
                if waits:
                    self._full[job.name] = (time.monotonic() + FULL, JobStatus(state="queued", message=waits))
                answers[job.name] = self._full[job.name][1] if waits else _refusal(error)
        return answers

    def _send(self, job: Job, salt: int = 0) -> TrainingHandle:
        request = requests.training_job(job, self._site, self._options, passed=passed(self._site), salt=salt)
        folder, name = str(request["Environment"][requests.JOB]), str(request["TrainingJobName"])
        self._upload_programs()
        document = json.dumps(requests.document(job, self._site, folder), separators=(",", ":")).encode()
        data = gzip.compress(document, 6, mtime=0)
        asked("document", lambda: notes.put(f"{folder}/{requests.DOCUMENT}", data))
        self._doubtful.add(name)
        try:
            self._client.create(request)
        except AwsError:
            self._doubtful.discard(name)  # AWS said no: there is no job
            asked("removal", lambda: notes.remove_tree(folder))
            raise
        self._doubtful.discard(name)
        return TrainingHandle(job=job, name=name, folder=folder, nodes=nodes_of(job), seen=time.monotonic())

    def _upload_programs(self) -> None:
        """Leave the container's programs and Stoker's worker in the artifact store, unless they are there."""
        if self._programs_there:
            return
        channel = requests.program_place(self._site.artifacts)
        for file, text in requests.programs().items():
            place = f"{channel}/{file}"
            if asked("program", lambda place=place: notes.get(place)) is None:  # type: ignore[misc]
                asked("program", lambda place=place, text=text: notes.put(place, text))  # type: ignore[misc]
        place = requests.worker_place(self._site)
        if place:
            bring_worker(self._site.bundle, place)
        self._programs_there = True

    # Following

    def look(self, handles: Mapping[str, TrainingHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs: one list for each run, a description of each job that has changed, and their logs."""
        now = time.monotonic()
        listed: dict[str, Mapping[str, Any]] = {}
        for run in {handle.job.run for handle in handles.values()}:
            listed.update((str(row["TrainingJobName"]), row) for row in self._client.named(requests.run_prefix(run)))
        reports = {}
        room = READ
        for name, handle in handles.items():
            if handle.paused is not None:
                report = self._after_pause(handle, handle.paused, now)
                if report is None:
                    continue
            elif self._describe(handle, listed.get(handle.name)):
                handle.seen = now
                if room > 0 or handle.row.get("TrainingJobStatus") in OVER:
                    room -= self._read_logs(handle)
                report = self._report(handle, now)
            elif now - handle.seen >= UNSEEN:
                text = f"SageMaker does not know the training job {handle.name}, and nothing says how it ended"
                report = JobReport(status=failed(CANCELLED if handle.ending else WORKER_LOST, text))
            else:
                continue
            reports[name] = report
        # Taken when all calls are made: one without an answer ends the look, and loses nothing of what was read before.
        return {
            name: attrs.evolve(report, output=self._output(handles[name]), events=_taken(handles[name].events))
            for name, report in reports.items()
        }

    def _describe(self, handle: TrainingHandle, summary: Mapping[str, Any] | None) -> bool:
        """Bring what is known of a job up to date; false for one that SageMaker does not know."""
        modified = None if summary is None else summary.get("LastModifiedTime")
        state = None if summary is None else summary.get("TrainingJobStatus")
        if (
            not handle.row
            or modified is None
            or modified != handle.modified
            or state != handle.row["TrainingJobStatus"]
        ):
            row = self._client.describe(handle.name)
            if row is None:
                return False
            handle.row, handle.modified = row, modified
        return True

    def _report(self, handle: TrainingHandle, now: float) -> JobReport:
        row = handle.row
        handle.running = handle.running or is_running(row)
        handle.facts["node"] = str((row.get("ResourceConfig") or {}).get("InstanceType", ""))
        status: JobStatus | None = None
        message = reason = ""
        if row.get("TrainingJobStatus") in OVER:
            handle.over_since = handle.over_since or now
            end = self._end(handle, now)
            if isinstance(end, TrainingEnd):
                return self._after_end(handle, end, now)
            status = end
        elif not is_running(row):
            message, reason = why_waiting(row)
        return JobReport(running=handle.running, message=message, reason=reason, facts=handle.facts, status=status)

    # Lines

    def _read_logs(self, handle: TrainingHandle) -> int:
        """Read what has come of a job's logs; how many calls that took."""
        if not is_running(handle.row):
            return 0
        before = sum(self._client.calls[name] for name in ("get_log_events", "describe_log_streams"))
        transitions = len(handle.row.get("SecondaryStatusTransitions") or ())
        if len(handle.streams) < handle.nodes or handle.transitions != transitions:
            # An instance that was replaced begins a stream of its own.
            handle.transitions = transitions
            for stream in self._client.streams(handle.name):
                found = _INSTANCE.search(stream)
                if found is None:
                    continue  # no instance's own
                node = int(found["number"]) - 1
                if node < handle.nodes and (node not in handle.streams or handle.streams[node][0] != stream):
                    old = handle.streams.get(node)
                    if old is not None and _began(old[0]) >= _began(stream):
                        continue
                    reader = StreamReader()
                    if old is not None:
                        reader.give(old[1].take())
                    handle.streams[node] = (stream, reader)
        for stream, reader in handle.streams.values():
            if stream:
                reader.read(self._client, LOG_GROUP, stream)
        return sum(self._client.calls[name] for name in ("get_log_events", "describe_log_streams")) - before

    def _output(self, handle: TrainingHandle) -> list[tuple[int, str, bytes]]:
        """Take what was read of a job's logs, and of those before it."""
        here, there = (name.removesuffix(".jsonl").encode() for name in requests.samples_names(handle.job, self._site))
        pieces = _taken(handle.left)
        for node, (_, reader) in handle.streams.items():
            lines = [
                line.replace(here, there) if line.startswith(MARKED) else line
                for line in reader.take()
                if line != ENDED
            ]
            if lines:
                pieces.append((node, "stdout", b"\n".join(lines) + b"\n"))
        return pieces

    # The end

    def _end(self, handle: TrainingHandle, now: float) -> JobStatus | TrainingEnd | None:
        """How a job ended, once all that is to come of it is there: from its result, or as SageMaker tells; None
        before."""
        complete = self._is_complete(handle) or self._take_copies(handle)
        if not complete and has_begun(handle.row) and now - handle.over_since < LAST_WORDS:
            return None
        data = asked("result", lambda: notes.get(f"{handle.folder}/result-0-0.json"))
        end = end_of(handle.row)
        free = end is not None and end.free and not handle.ending
        if data is not None:
            result = read_result(data)
            if result.ok or not free:
                self._keep_samples(handle)
                status = of_boot(result, None, memory=handle.memory)
                return attrs.evolve(status, cause=CANCELLED) if handle.ending and not result.ok else status
        return failed(CANCELLED) if handle.ending else end

    def _is_complete(self, handle: TrainingHandle) -> bool:
        """Whether the logs of all nodes have their last line."""
        return len(handle.streams) >= handle.nodes and all(one.ended for _, one in handle.streams.values())

    def _take_copies(self, handle: TrainingHandle) -> bool:
        """Take from the artifact store what is missing of logs; whether all of them are complete then."""
        for node in range(handle.nodes):
            _, reader = handle.streams.setdefault(node, ("", StreamReader()))
            if not reader.ended:
                place = f"{handle.folder}/log-0-{node}.gz"
                data = asked("log", lambda place=place: notes.get(place))  # type: ignore[misc]
                if data is not None:
                    reader.complete(gzip.decompress(data))
        return self._is_complete(handle)

    def _keep_samples(self, handle: TrainingHandle) -> None:
        """Bring the samples of the job's devices to this machine's scratch."""
        if not handle.job.step.settings.resources.gpus_per_node or handle.job.kind != "step":
            return
        there = requests.samples_names(handle.job, self._site)[1]
        for node in range(handle.nodes):
            place = f"{handle.folder}/samples-0-{node}.json"
            data = asked("samples", lambda place=place: notes.get(place))  # type: ignore[misc]
            if data is not None:
                os.makedirs(self._site.scratch, exist_ok=True)
                stem = there.removesuffix(".jsonl")
                Path(f"{stem}-{node}.jsonl" if node else there).write_bytes(data)

    def _after_end(self, handle: TrainingHandle, end: TrainingEnd, now: float) -> JobReport:
        """A job that ended without a result of the step: it is over, or is sent again, now or after a pause."""
        last = handle.shortages >= len(SHORTAGES) if end.later else handle.again - handle.shortages >= AGAIN
        if end.later and handle.short_since:
            patience = self._settings(handle).get("max_pending")
            last = last or bool(patience and now - handle.short_since >= patience)
        if not end.free or handle.ending or last:
            return JobReport(status=_status_without_result(end, handle))
        if not end.later:
            return self._start_again(handle, end, now)
        pause = SHORTAGES[handle.shortages]
        handle.short_since = handle.short_since or now
        handle.shortages += 1
        handle.running, handle.paused, handle.again_at = False, end, now + pause
        text = f"{end.message.partition(';')[0]}; it is sent again in {duration_text(pause)}"
        return JobReport(message=text, reason=f"shortage {handle.shortages}")

    def _after_pause(self, handle: TrainingHandle, end: TrainingEnd, now: float) -> JobReport | None:
        """A job that is to be sent again: sent if it is time, and over where it is to end; None: nothing is new."""
        if handle.ending:
            return JobReport(status=failed(CANCELLED))
        return None if now < handle.again_at else self._start_again(handle, end, now)

    def _start_again(self, handle: TrainingHandle, end: TrainingEnd, now: float) -> JobReport:
        """Send a job once more.

        It is the same attempt: what happened is no fault of the step's.
        """
        try:
            new = self._send(handle.job, salt=handle.again + 1)
        except Away:
            raise
        except BackendError as error:
            waits = waits_for(error)
            if not waits:
                return JobReport(status=_refusal(error))
            handle.running, handle.paused, handle.again_at = False, end, now + FULL
            return JobReport(message=waits)
        old, before = handle.folder, handle.name
        handle.again += 1
        handle.left = self._output(handle)
        handle.name, handle.folder, handle.seen = new.name, new.folder, new.seen
        handle.running, handle.over_since, handle.row, handle.modified = False, 0.0, {}, None
        handle.paused, handle.transitions = None, 0
        handle.streams.clear()
        handle.facts.clear()
        message = f"{end.message.partition(';')[0]}; it is started again as the training job {handle.name}"
        note = {"job": f"the training job {before}", "message": message}
        handle.events.append(WorkerEvent(kind="noted", note="requeued", data=note))
        with contextlib.suppress(Away):  # what stays is found by `stoker gc`
            asked("removal", lambda: notes.remove_tree(old))
        return JobReport(message=message)

    def _settings(self, handle: TrainingHandle) -> SagemakerSettings:
        return settings_of(handle.job.step, SagemakerSettings, self._options)

    # Ending

    def end(self, handles: Mapping[str, TrainingHandle], *, grace: float) -> None:
        """End jobs; a container gets SIGTERM, and SIGKILL after 120 seconds."""
        for handle in handles.values():
            if not handle.ending or not grace:
                self._client.stop(handle.name)
            handle.ending = True

    def forget(self, handle: TrainingHandle) -> None:
        """A job is over: its folder is removed. SageMaker keeps its record, which costs nothing."""
        asked("removal", lambda: notes.remove_tree(handle.folder))

    def identity(self, handle: TrainingHandle) -> Mapping[str, Any]:
        """The job's name."""
        return {"job": f"the training job {handle.name}", "name": handle.name}

    def adopted_attempt(self, handle: TrainingHandle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Requests that got no answer."""
        return [{"job": f"the training job {name}", "name": name} for name in sorted(self._doubtful)]

    def abandon(self) -> None:
        """Ask nothing more."""
        self._client.abandon()

    def close(self) -> None:
        """End what nobody wants, and close connections."""
        with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
            for name, _, _, state in self._earlier.take_remaining():
                if state == "InProgress":
                    self._client.stop(name)
            for name in sorted(self._doubtful):
                self._client.stop(name)
        self._client.close()


def passed(site: Site) -> dict[str, str]:
    """The driver's variables by which a container finds the artifact store."""
    return {name: os.environ[name] for name in requests.PASSED if os.environ.get(name)}


def waits_for(error: BackendError) -> str:
    """What a refused job waits for, in words: room in the account's quota, or instances; empty where waiting is in
    vain."""
    if not isinstance(error, AwsError):
        return ""
    quota = quota_of(error.words) if error.code == LIMIT else None
    if quota is not None and quota.frees:
        return f"{quota.text}; it is sent when another has ended"
    if failure_of(f"{error.code}: {error.words}").later:
        return f"AWS has no such instances now ({error.code}: {error.words}); it is asked again until it has"
    return ""


def _taken(pieces: list[_T]) -> list[_T]:
    """What a list has, which is empty then."""
    taken, pieces[:] = list(pieces), []
    return taken


def _began(stream: str) -> int:
    """When a stream of an instance began, in seconds since the epoch; before all others for none."""
    found = _INSTANCE.search(stream)
    return int(found["began"]) if found is not None else -1


def _status_without_result(end: TrainingEnd, handle: TrainingHandle) -> JobStatus:
    """The status of a job whose worker left no result."""
    if end.state == "succeeded":
        return failed(WORKER_LOST, f"the training job {handle.name} left with exit code 0 and without a result")
    return attrs.evolve(failed(end.cause or WORKER_LOST, end.message), exit_code=end.exit_code)


def _refusal(error: BackendError) -> JobStatus:
    message, fix = error.message, error.fix
    if isinstance(error, AwsError) and error.code == LIMIT:
        quota = quota_of(error.words)
        name = f"'{quota.name}'" if quota is not None else "'… for training job usage'"
        message = message if quota is None else f"no job of this account can end to make room: {quota.text}"
        fix = f"ask for {name} in Service Quotas (Amazon SageMaker), or name another type: instance_type='…'"
    return failed(REFUSED, f"{message}; {fix}" if fix else message)


def end_recorded(client: SagemakerClient, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """End jobs that a driver left, by what `identity` and `doubtful` recorded; the names of those that were there."""
    for job in jobs:
        name = str(job.get("name", ""))
        row = client.describe(name) if name else None
        if row is not None and row.get("TrainingJobStatus") not in OVER:
            client.stop(name)
            yield f"the training job {name}"
