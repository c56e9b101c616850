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
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.archives import archive
from stoker.backends.base.aws import AwsError
from stoker.backends.base.awslogs import ENDED, StreamReader
from stoker.backends.base.mailboxes import asked
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed, of_boot, read_result
from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.causes import OVER, TrainingEnd, end_of, is_running, why_waiting
from stoker.backends.sagemaker.client import LOG_GROUP, SagemakerClient
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import MARK, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.store import notes

log = logging.getLogger(__name__)

AGAIN: Final = 16
"""How often a job is sent again whose instance failed, before it counts as failed."""
LAST_WORDS: Final = 15.0
"""Seconds after the end of a container that was killed in which CloudWatch may still get its last lines."""
UNSEEN: Final = 60.0
"""Seconds for which SageMaker may not know a job that was just sent."""
READ: Final = 20
"""Log streams that are read at one look: the account has 25 GetLogEvents a second.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"""
MARKED: Final = MARK.encode()
_USED: Final = re.compile(r"current utilization of (?P<used>\d+)")
_INSTANCE: Final = re.compile(r"/algo-(?P<number>\d+)-\d+$")


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
    running: bool = False
    again: int = 0
    """How often it was sent again because SageMaker failed."""
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
        """Send jobs. Those for which the account's quota has no room now are not mentioned, and sent later."""
        answers: dict[str, Any] = {}
        for job in jobs:
            try:
                answers[job.name] = self._send(job)
            except Away:
                if not answers:
                    raise
                return answers
            except AwsError as error:
                if not waits_for_quota(error):
                    answers[job.name] = _refusal(error)
            except BackendError as error:
                answers[job.name] = _refusal(error)
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
        if place and asked("worker", lambda: notes.get(place)) is None:
            data = archive(Path(self._site.bundle))
            asked("worker", lambda: notes.put(place, data))
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
            summary = listed.get(handle.name)
            if self._describe(handle, summary):
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
        return reports

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
        handle.facts["node"] = str(row["ResourceConfig"].get("InstanceType", ""))
        status: JobStatus | None = None
        events: list[WorkerEvent] = []
        message = reason = ""
        if row.get("TrainingJobStatus") in OVER:
            handle.over_since = handle.over_since or now
            end = self._end(handle, now)
            if isinstance(end, TrainingEnd):
                message = self._start_again(handle, end)
                if message:
                    note = {"job": f"the training job {row['TrainingJobName']}", "message": message}
                    events.append(WorkerEvent(kind="noted", note="requeued", data=note))
                else:
                    status = _status_without_result(end, handle)
            else:
                status = end
        elif not is_running(row):
            message, reason = why_waiting(row)
        return JobReport(
            running=handle.running,
            message=message,
            reason=reason,
            facts=handle.facts,
            output=self._output(handle),
            status=status,
            events=events,
        )

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
                node = int(found["number"]) - 1 if found else 0
                if node < handle.nodes and (node not in handle.streams or handle.streams[node][0] != stream):
                    old = handle.streams.get(node)
                    if old is not None and _age(old[0]) >= _age(stream):
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
        here, there = (name.removesuffix(".jsonl").encode() for name in requests.samples_names(handle.job, self._site))
        pieces = []
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
        if not complete and now - handle.over_since < LAST_WORDS:
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

    def _start_again(self, handle: TrainingHandle, end: TrainingEnd) -> str:
        """Send a job once more whose instance failed: why, in words; empty where it is not sent again.

        It is the same attempt: what happened is no fault of the step's.
        """
        if not end.free or handle.ending or handle.again >= AGAIN:
            return ""
        handle.again += 1
        old = handle.folder
        new = self._send(handle.job, salt=handle.again)
        handle.name, handle.folder, handle.seen = new.name, new.folder, new.seen
        handle.running, handle.over_since, handle.row, handle.modified = False, 0.0, {}, None
        handle.streams.clear()
        handle.facts.clear()
        asked("removal", lambda: notes.remove_tree(old))
        return f"{end.message.partition(';')[0]}; it is started again as the training job {handle.name}"

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


def waits_for_quota(error: AwsError) -> bool:
    """Whether the account's quota has room again when other jobs have ended."""
    used = _USED.search(error.words)
    return error.code == "ResourceLimitExceeded" and used is not None and int(used["used"]) > 0


def _age(stream: str) -> int:
    """When a stream began, in seconds since the epoch."""
    digits = stream.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _status_without_result(end: TrainingEnd, handle: TrainingHandle) -> JobStatus:
    """The status of a job whose worker left no result."""
    if end.state == "succeeded":
        return failed(WORKER_LOST, f"the training job {handle.name} left with exit code 0 and without a result")
    return attrs.evolve(failed(end.cause or WORKER_LOST, end.message), exit_code=end.exit_code)


def _refusal(error: BackendError) -> JobStatus:
    fix = error.fix
    if isinstance(error, AwsError) and error.code == "ResourceLimitExceeded":
        fix = "ask for more in Service Quotas (Amazon SageMaker, '… for training job usage'), or name another type"
    return failed(REFUSED, f"{error.message}; {fix}" if fix else error.message)


def end_recorded(client: SagemakerClient, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """End jobs that a driver left, by what `identity` and `doubtful` recorded; the names of those that were there."""
    for job in jobs:
        name = str(job.get("name", ""))
        row = client.describe(name) if name else None
        if row is not None and row.get("TrainingJobStatus") not in OVER:
            client.stop(name)
            yield f"the training job {name}"
