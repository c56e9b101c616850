"""The jobs of one account and region that run the steps of runs: sent, found again, followed and ended.

A job is sent as a document in the artifact store and a submission. Its name begins with its run's, and a tag names the
folder of its document, which says which jobs of Stoker's it is: so a driver finds what a killed one sent, also where
the submission got no answer.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.backends.aws_batch import jobs as batchjobs
from stoker.backends.aws_batch.account import read_account
from stoker.backends.aws_batch.causes import BatchEnd, end_of, gang_end, last_container
from stoker.backends.aws_batch.check import choice_of
from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.definitions import job_definition, log_group, submission
from stoker.backends.aws_batch.queues import JobQueue, NoQueue, QueueChoice
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.aws_batch.why import why_waiting
from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.aws import AwsError
from stoker.backends.base.awslogs import ENDED, StreamReader
from stoker.backends.base.backend import settings_of
from stoker.backends.base.mailboxes import asked, bring_worker
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed, of_boot, read_result
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import MARK, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.store import notes

log = logging.getLogger(__name__)

OVER: Final = ("SUCCEEDED", "FAILED")
AGAIN: Final = 16
"""How often a job is sent again whose instance was taken away, before it counts as failed."""
LAST_WORDS: Final = 15.0
"""Seconds after the end of a killed container in which CloudWatch may still get its last lines."""
UNSEEN: Final = 60.0
"""Seconds for which DescribeJobs may not know a job that was just sent, or has lost one."""
EXPLAIN: Final = 15.0
"""Seconds between two looks at why a job waits."""
LOOKED_AT: Final = 1000
"""Elements of arrays that are asked for at one look; the others have their turn at the next."""
READ: Final = 20
"""Log streams that are read at one look: the account has 25 GetLogEvents a second.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"""
REASON: Final = "ended by Stoker"
"""What TerminateJob is told; `causes` knows of it by the job's own flags."""
MARKED: Final = MARK.encode()
_T = TypeVar("_T")


@attrs.define(kw_only=True, eq=False)
class BatchJob:
    """A job of AWS Batch, with one job of Stoker's, or the elements of an array."""

    id: str
    name: str
    queue: str
    run: str
    token: str
    folder: str
    """In the artifact store."""
    nodes: int = 1
    about: list[Mapping[str, Any]] = attrs.field(factory=list)
    """The key, kind, attempt and digest of each of Stoker's jobs."""
    seen: float = 0.0
    """When it was last described, or sent, on the monotonic clock."""

    def part(self, index: int) -> str:
        """The id of an element, or of the only job."""
        return f"{self.id}:{index}" if len(self.about) > 1 else self.id


@attrs.define(kw_only=True, eq=False)
class BatchHandle:
    """A job as the job of AWS Batch, an element of an array, or the nodes of a multi-node parallel job."""

    job: Job
    place: BatchJob
    index: int = 0
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    streams: dict[int, StreamReader] = attrs.field(factory=dict)
    """By node."""
    left: list[tuple[int, str, bytes]] = attrs.field(factory=list)
    """What jobs wrote whose instances were taken away, and was not passed on yet."""
    events: list[WorkerEvent] = attrs.field(factory=list)
    """Events that were not passed on yet."""
    running: bool = False
    again: int = 0
    """How often it was sent again because its instance was taken away."""
    ending: bool = False
    over_since: float = 0.0
    """When its end was first seen, on the monotonic clock; 0: not yet."""
    explain_at: float = 0.0
    """When to look why it waits, on the monotonic clock."""
    facts: dict[str, str] = attrs.field(factory=dict)

    @property
    def id(self) -> str:
        """Its id at AWS Batch."""
        return self.place.part(self.index)

    @property
    def memory(self) -> int:
        """The step's memory limit in bytes; 0: none."""
        return int(self.job.step.settings.resources.get("memory", 0))


class BatchPlatform:
    """Sends, finds, follows and ends jobs."""

    def __init__(self, site: Site, options: Mapping[str, Any], client: BatchClient) -> None:
        self._site, self._options, self._client = site, options, client
        self.answers = client.answers
        self._handles: dict[str, dict[int, BatchHandle]] = {}
        """By the job's id, and index."""
        self._loaded: set[tuple[str, str]] = set()
        """Queue and run of which earlier jobs are known."""
        self._earlier: EarlierJobs[tuple[BatchJob, int, str]] = EarlierJobs()
        """Each with its state."""
        self._definitions: dict[str, str] = {}
        """The ARN of each definition that is there."""
        self._account: tuple[JobQueue, ...] | None = None
        self._doubtful: dict[str, str] = {}
        """The queue of each submission without an answer, by the job's name."""
        self._worker_there = False
        self._turn = 0
        self._why: dict[str, tuple[float, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = {}
        """By queue: when it was asked for, itself, and the compute environments."""

    # Queues

    def choice(self, job: Job) -> QueueChoice:
        """The queue of a job's step; `BackendError` where none holds it. Asks the account if the settings say too
        little."""
        settings = settings_of(job.step, BatchSettings, self._options)
        choice = choice_of(job.step, settings)
        if choice is None:
            if self._account is None:
                self._account = read_account(self._client, BatchSettings(**self._options)).queues
            choice = choice_of(job.step, settings, self._account)
        if isinstance(choice, QueueChoice):
            return choice
        nothing = choice or NoQueue(
            what="there is no queue", why="the account has none in this region", fix="BatchSettings(queue='…')"
        )
        raise BackendError(f"{nothing.what}: {nothing.why}", fix=nothing.fix)

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, BatchHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        handles: dict[str, BatchHandle] = {}
        for job in jobs:
            try:
                queue = self.choice(job).queue
            except Away:
                raise
            except BackendError:
                continue  # `send` says so
            if (queue, job.run) not in self._loaded:
                self._load(queue, job.run)
                self._loaded.add((queue, job.run))
            adopted, others = self._earlier.adopt(job, lambda one: one[2] != "FAILED")
            if adopted is not None:
                place, index, _ = adopted.handle
                handles[job.name] = self._follow(place, index, job, attempt=adopted.attempt)
            for place, index, state in others:
                if state not in OVER:
                    self._client.end(place.part(index), REASON)
        return handles

    def _load(self, queue: str, run: str) -> None:
        """Find the jobs of earlier drivers of a run on a queue."""
        names = self._client.named(queue, f"{batchjobs.run_prefix(run)}*")
        described = self._client.jobs([str(row["jobId"]) for row in names])
        for row in described.values():
            token = str((row.get("tags") or {}).get(batchjobs.TOKEN_TAG, ""))
            if not token or row["jobId"] in self._handles:
                continue
            folder = batchjobs.folder_of(self._site.artifacts, run, token)
            data = asked("job", lambda folder=folder: notes.get(f"{folder}/{batchjobs.DOCUMENT}"))  # type: ignore[misc]
            if data is None:
                continue  # all of it is known and its folder is removed
            document = parse_json(gzip.decompress(data))
            place = BatchJob(
                id=str(row["jobId"]),
                name=str(row["jobName"]),
                queue=queue,
                run=run,
                token=token,
                folder=folder,
                nodes=document["nodes"],
                about=document["jobs"],
                seen=time.monotonic(),
            )
            parts = [place.part(index) for index in range(len(place.about))]
            states = self._client.jobs(parts) if len(parts) > 1 else {place.id: row}
            self._earlier.add(
                EarlierJob(
                    run=run,
                    key=one["key"],
                    kind=one["kind"],
                    attempt=one["attempt"],
                    digest=one["digest"],
                    handle=(place, index, str(states.get(part, row).get("status"))),
                )
                for index, (part, one) in enumerate(zip(parts, place.about, strict=True))
            )

    def _follow(self, place: BatchJob, index: int, job: Job, *, attempt: int = 0) -> BatchHandle:
        handle = BatchHandle(job=job, place=place, index=index, attempt=attempt)
        self._handles.setdefault(place.id, {})[index] = handle
        return handle

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Send jobs, those that are alike as one array. Those that are not mentioned are sent later."""
        answers: dict[str, Any] = {}
        groups: dict[str, tuple[QueueChoice, list[Job]]] = {}
        for job in jobs:
            try:
                choice = self.choice(job)
                groups.setdefault(self._alike(job, choice), (choice, []))[1].append(job)
            except Away:
                raise
            except BackendError as error:
                answers[job.name] = _refusal(error)
        for choice, alike in groups.values():
            for at in range(0, len(alike), batchjobs.ELEMENTS):
                group = alike[at : at + batchjobs.ELEMENTS]
                try:
                    place = self._send(group, choice)
                except Away:
                    if not answers:
                        raise
                    return answers
                except BackendError as error:
                    answers.update({job.name: _refusal(error) for job in group})
                    continue
                answers.update({job.name: self._follow(place, index, job) for index, job in enumerate(group)})
        return answers

    def _alike(self, job: Job, choice: QueueChoice) -> str:
        """Equal for jobs that may be elements of one array."""
        if nodes_of(job) > 1 or job.kind != "step":
            return job.name
        request = batchjobs.batch_request([job], self._site, self._options, choice, token="", passed=self._passed())
        sent = submission(request, choice.queue, "")
        del sent["tags"]["stoker-attempt"]
        return json.dumps([job_definition(request), sent], sort_keys=True)

    def _passed(self) -> dict[str, str]:
        if not self._site.artifacts.startswith(("s3://", "s3a://")):
            return {}
        return {name: os.environ[name] for name in batchjobs.PASSED if os.environ.get(name)}

    def _send(self, jobs: Sequence[Job], choice: QueueChoice, salt: int = 0) -> BatchJob:
        """Send one job of AWS Batch; what was sent before without an answer is found by its name."""
        token, name = batchjobs.token_of(jobs, salt), batchjobs.job_name(jobs, salt)
        request = batchjobs.batch_request(jobs, self._site, self._options, choice, token=token, passed=self._passed())
        place = BatchJob(
            id="",
            name=name,
            queue=choice.queue,
            run=jobs[0].run,
            token=token,
            folder=batchjobs.folder_of(self._site.artifacts, jobs[0].run, token),
            nodes=nodes_of(jobs[0]),
        )
        document = batchjobs.document(jobs, self._site, place.folder)
        place.about = document["jobs"]
        if name in self._doubtful:
            there = [row for row in self._client.named(choice.queue, name) if row.get("status") != "FAILED"]
            place.id = str(there[0]["jobId"]) if there else ""
            for row in there[1:]:
                self._client.end(str(row["jobId"]), REASON)
        if not place.id:
            self._upload_worker()
            data = batchjobs.packed(document)
            asked("document", lambda: notes.put(f"{place.folder}/{batchjobs.DOCUMENT}", data))
            definition = job_definition(request)
            arn = self._definition(definition)
            try:
                place.id = self._submit(submission(request, choice.queue, arn, name=name))
            except AwsError as error:
                if "definition" not in error.words.lower():
                    raise
                # `stoker gc` of another driver has removed it since.
                arn = self._definitions[definition["jobDefinitionName"]] = self._client.register(definition)
                place.id = self._submit(submission(request, choice.queue, arn, name=name))
        self._doubtful.pop(name, None)
        place.seen = time.monotonic()
        return place

    def _submit(self, words: Mapping[str, Any]) -> str:
        self._doubtful[str(words["jobName"])] = str(words["jobQueue"])
        try:
            return self._client.submit(words)
        except AwsError:
            del self._doubtful[str(words["jobName"])]  # AWS said no: there is no job
            raise

    def _definition(self, definition: Mapping[str, Any]) -> str:
        """The ARN of a definition, which is registered if there is no equal one."""
        name = str(definition["jobDefinitionName"])
        if name not in self._definitions:
            self._definitions[name] = self._client.definition(name) or self._client.register(definition)
        return self._definitions[name]

    def _upload_worker(self) -> None:
        """Leave Stoker's worker in the artifact store, unless it is there."""
        place = batchjobs.worker_place(self._site)
        if place and not self._worker_there:
            bring_worker(self._site.bundle, place)
        self._worker_there = True

    # Following

    def look(self, handles: Mapping[str, BatchHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs: from DescribeJobs, from their logs, and at their end from the artifact store.

        Lines and events are taken when all calls are made: a call without an answer ends the look, and what was read
        before it is passed on by the next.
        """
        now = time.monotonic()
        chosen = self._in_turn(list(handles.items()))
        rows = self._client.jobs([handle.id for _, handle in chosen])
        reports = {}
        room = READ
        for name, handle in chosen:
            row = rows.get(handle.id)
            if row is None:
                report = self._missing(handle, now)
            else:
                handle.place.seen = now
                is_over = row.get("status") in OVER
                if is_over or room > 0:
                    room -= self._read_logs(handle, row)
                report = self._report(handle, row, now)
            if report is not None:
                reports[name] = report
        return {
            name: attrs.evolve(reports[name], output=self._output(handle), events=_taken(handle.events))
            for name, handle in chosen
            if name in reports
        }

    def _in_turn(self, handles: list[tuple[str, BatchHandle]]) -> list[tuple[str, BatchHandle]]:
        """All handles, or of very many those whose turn it is."""
        if len(handles) <= LOOKED_AT:
            return handles
        start = self._turn % len(handles)
        self._turn = start + LOOKED_AT
        return (handles + handles)[start : start + LOOKED_AT]

    def _missing(self, handle: BatchHandle, now: float) -> JobReport | None:
        """A job that AWS does not mention: just sent, or forgotten."""
        if now - handle.place.seen < UNSEEN:
            return None
        text = f"AWS Batch does not know the job {handle.id} any more, and nothing says how it ended"
        return JobReport(status=failed(CANCELLED if handle.ending else WORKER_LOST, text))

    def _report(self, handle: BatchHandle, row: Mapping[str, Any], now: float) -> JobReport | None:
        state = str(row.get("status"))
        handle.running = handle.running or state in ("RUNNING", *OVER)
        status: JobStatus | None = None
        message = reason = ""
        if state in OVER:
            handle.over_since = handle.over_since or now
            end = self._end(handle, row, now)
            if isinstance(end, BatchEnd):
                again = self._start_again(handle, end)
                if isinstance(again, str):
                    message = again
                    note = {"job": f"the job {row['jobId']}", "message": message}
                    handle.events.append(WorkerEvent(kind="noted", note="requeued", data=note))
                else:
                    status = again
            else:
                status = end
        elif not handle.running and now >= handle.explain_at:
            handle.explain_at = now + EXPLAIN
            message, reason = self._explain(handle, row, now)
        return JobReport(running=handle.running, message=message, reason=reason, facts=handle.facts, status=status)

    def _explain(self, handle: BatchHandle, row: Mapping[str, Any], now: float) -> tuple[str, str]:
        queue = handle.place.queue
        if queue not in self._why or now - self._why[queue][0] >= EXPLAIN:
            try:
                self._why[queue] = (now, self._client.queues([queue]), self._client.environments())
            except AwsError as error:
                if not error.denied:
                    raise
                self._why[queue] = (now, (), ())  # whoever may send jobs need not see what queues start
        _, queues, environments = self._why[queue]
        waiting = why_waiting(row, queues[0] if queues else {}, environments)
        if waiting is None:
            return "", ""
        return f"{waiting.text}{f'; {waiting.fix}' if waiting.fix else ''}", waiting.key

    # Lines

    def _read_logs(self, handle: BatchHandle, row: Mapping[str, Any]) -> int:
        """Read what has come of a job's logs; how many calls that took."""
        group = log_group(settings_of(handle.job.step, BatchSettings, self._options))
        before = self._client.calls["get_log_events"]
        for node, part in self._nodes(handle, row):
            stream = last_container(part).get("logStreamName")
            if not stream or not group:
                continue
            reader = handle.streams.setdefault(node, StreamReader())
            reader.read(self._client, group, str(stream))
        return self._client.calls["get_log_events"] - before

    def _nodes(self, handle: BatchHandle, row: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
        """The nodes of a gang that are known; of other jobs the only one."""
        if handle.place.nodes == 1:
            return [(0, row)]
        rows = self._client.jobs([f"{handle.id}#{node}" for node in range(handle.place.nodes)])
        return [(int(node), part) for id, part in rows.items() for node in [id.rpartition("#")[2]]]

    def _output(self, handle: BatchHandle) -> list[tuple[int, str, bytes]]:
        """Take what was read of a job's logs, and of those before it."""
        here, there = (name.removesuffix(".jsonl").encode() for name in batchjobs.samples_names(handle.job, self._site))
        pieces = _taken(handle.left)
        for node, reader in handle.streams.items():
            lines = [
                line.replace(here, there) if line.startswith(MARKED) else line
                for line in reader.take()
                if line != ENDED
            ]
            if lines:
                pieces.append((node, "stdout", b"\n".join(lines) + b"\n"))
        return pieces

    # The end

    def _end(self, handle: BatchHandle, row: Mapping[str, Any], now: float) -> JobStatus | BatchEnd | None:
        """How a job ended, once all that is to come of it is there: from its result, or as AWS tells; None before."""
        place = handle.place
        result = None
        if not self._is_complete(handle) and now - handle.over_since < LAST_WORDS:
            if not self._take_copies(handle):
                return None
        else:
            self._take_copies(handle)
        data = asked("result", lambda: notes.get(f"{place.folder}/result-{handle.index}-0.json"))
        if data is not None:
            result = read_result(data)
        end = end_of(row)
        if place.nodes > 1:
            end = gang_end(row, [part for _, part in self._nodes(handle, row)])
        free = end is not None and end.free and not handle.ending
        if result is not None and (result.ok or not free):
            self._keep_samples(handle)
            status = of_boot(result, None, memory=handle.memory)
            return attrs.evolve(status, cause=CANCELLED) if handle.ending and not result.ok else status
        if handle.ending:
            return failed(CANCELLED)
        return end

    def _is_complete(self, handle: BatchHandle) -> bool:
        """Whether the logs of all nodes have their last line."""
        return len(handle.streams) >= handle.place.nodes and all(one.ended for one in handle.streams.values())

    def _take_copies(self, handle: BatchHandle) -> bool:
        """Take from the artifact store what is missing of logs; whether all of them are complete then."""
        for node in range(handle.place.nodes):
            reader = handle.streams.setdefault(node, StreamReader())
            if not reader.ended:
                place = f"{handle.place.folder}/log-{handle.index}-{node}.gz"
                data = asked("log", lambda place=place: notes.get(place))  # type: ignore[misc]
                if data is not None:
                    reader.complete(gzip.decompress(data))
        return self._is_complete(handle)

    def _keep_samples(self, handle: BatchHandle) -> None:
        """Bring the samples of the job's devices to this machine's scratch."""
        if not handle.job.step.settings.resources.gpus_per_node or handle.job.kind != "step":
            return
        there = batchjobs.samples_names(handle.job, self._site)[1]
        for node in range(handle.place.nodes):
            place = f"{handle.place.folder}/samples-{handle.index}-{node}.json"
            data = asked("samples", lambda place=place: notes.get(place))  # type: ignore[misc]
            if data is not None:
                os.makedirs(self._site.scratch, exist_ok=True)
                stem = there.removesuffix(".jsonl")
                Path(f"{stem}-{node}.jsonl" if node else there).write_bytes(data)

    def _start_again(self, handle: BatchHandle, end: BatchEnd) -> str | JobStatus:
        """Send a job once more whose instance was taken away: why, in words; its status where it is not sent again.

        It is the same attempt: what happened is no fault of the step's.
        """
        if not end.free or handle.ending or handle.again >= AGAIN:
            return _status_without_result(end, handle)
        old = handle.place
        try:
            handle.place = self._send([handle.job], self.choice(handle.job), salt=handle.again + 1)
        except Away:
            raise
        except BackendError as error:
            return _refusal(error)
        handle.again += 1
        handle.left = self._output(handle)
        self._handles[old.id].pop(handle.index, None)
        handle.index = 0
        self._handles.setdefault(handle.place.id, {})[0] = handle
        handle.running, handle.over_since = False, 0.0
        handle.streams.clear()
        with contextlib.suppress(Away):  # what stays is found by `stoker gc`
            self._drop_if_empty(old)
        return f"{end.message.partition(';')[0]}; it is started again as the job {handle.place.id}"

    # Ending

    def end(self, handles: Mapping[str, BatchHandle], *, grace: float) -> None:
        """End jobs; a container gets SIGTERM, and SIGKILL when the time of its instance for that is over."""
        for handle in handles.values():
            if not handle.ending or not grace:
                self._client.end(handle.id, REASON)
            handle.ending = True

    def forget(self, handle: BatchHandle) -> None:
        """A job is over; with the last one of a job of AWS Batch its folder is removed."""
        self._handles.get(handle.place.id, {}).pop(handle.index, None)
        self._drop_if_empty(handle.place)

    def _drop_if_empty(self, place: BatchJob) -> None:
        if self._handles.get(place.id) or any(one is place for one, _, _ in self._earlier.remaining()):
            return
        self._handles.pop(place.id, None)
        asked("removal", lambda: notes.remove_tree(place.folder))

    def identity(self, handle: BatchHandle) -> Mapping[str, Any]:
        """The job's id."""
        return {"job": f"the job {handle.id} of AWS Batch", "id": handle.id, "queue": handle.place.queue}

    def adopted_attempt(self, handle: BatchHandle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Submissions that got no answer."""
        return [{"job": f"a job called {name}", "name": name, "queue": queue} for name, queue in self._doubtful.items()]

    def abandon(self) -> None:
        """Ask nothing more."""
        self._client.abandon()

    def close(self) -> None:
        """End what nobody wants, and close connections."""
        with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
            for place, index, state in self._earlier.take_remaining():
                if state not in OVER:
                    self._client.end(place.part(index), REASON)
            for name, queue in self._doubtful.items():
                _end_named(self._client, queue, name)
        self._client.close()


def _taken(pieces: list[_T]) -> list[_T]:
    """What a list has, which is empty then."""
    taken, pieces[:] = list(pieces), []
    return taken


def _status_without_result(end: BatchEnd, handle: BatchHandle) -> JobStatus:
    """The status of a job whose worker left no result."""
    if end.state == "succeeded":
        return failed(WORKER_LOST, f"the job {handle.id} left with exit code 0 and without a result")
    return attrs.evolve(failed(end.cause or WORKER_LOST, end.message), exit_code=end.exit_code)


def _refusal(error: BackendError) -> JobStatus:
    return failed(REFUSED, f"{error.message}; {error.fix}" if error.fix else error.message)


def _end_named(client: BatchClient, queue: str, name: str) -> list[str]:
    """End the jobs of a queue with a name that are not over; their ids."""
    ids = [str(row["jobId"]) for row in client.named(queue, name) if row.get("status") not in OVER]
    for id in ids:
        client.end(id, REASON)
    return ids


def end_recorded(client: BatchClient, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """End jobs that a driver left, by what `identity` and `doubtful` recorded; the names of those that were there."""
    ids = [str(job["id"]) for job in jobs if job.get("id")]
    for id, row in client.jobs(ids).items():
        if row.get("status") not in OVER:
            client.end(id, REASON)
            yield f"the job {id} of AWS Batch"
    for job in jobs:
        if job.get("name"):
            for id in _end_named(client, str(job["queue"]), str(job["name"])):
                yield f"the job {id} of AWS Batch"
