"""AWS Batch: a step is a job, a fan-out an array, and a gang a multi-node parallel job.

`definitions` makes the requests. A job is sent as a document in the artifact store and a submission. Its name begins
with its run's, and a tag names the folder of its document, which says which jobs of Stoker's it is: so a driver finds
what a killed one sent, also where the submission got no answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import time
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.aws.api import AwsError, command_line
from stoker.backends.aws.jobs import JOB, LATER, TOKEN_TAG, WORKER, JobPlaces, lines_by_hand, passed, tags_of, token_of
from stoker.backends.aws.platform import (
    AGAIN,
    READ,
    UNSEEN,
    AwsEnd,
    AwsHandle,
    AwsJob,
    AwsPlatform,
    StreamReader,
    lost,
    refusal,
    remove,
    without_result,
)
from stoker.backends.aws_batch.causes import end_of, gang_end, last_container, why_waiting
from stoker.backends.aws_batch.check import check, choice_of, request_of
from stoker.backends.aws_batch.client import OVER, BatchClient, read_account
from stoker.backends.aws_batch.definitions import (
    BatchRequest,
    job_definition,
    log_group,
    plain_name,
    run_prefix,
    submission,
)
from stoker.backends.aws_batch.queues import JobQueue, NoQueue, QueueChoice
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base import storeprogram
from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.watched import Watched
from stoker.backends.kubernetes.request.check import image_environment
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Job, JobStatus, Site, StepPlan
from stoker.core.resources import ResourceSettings

GRACE: Final = 28.0
"""Seconds for a step to end after SIGTERM: ECS gives a container 30 before SIGKILL, where its instance's
`ECS_CONTAINER_STOP_TIMEOUT` does not say otherwise.
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-agent-config.html"""
PLACES: Final = JobPlaces(name="batch", grace=GRACE, topology="aws_batch")
NEURON_CACHE: Final = "neuron-cache"
"""The folder of compiled programs for Neuron, beside the objects of an artifact store on S3."""
ELEMENTS: Final = 10_000
"""Jobs of an array: https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html"""
EXPLAIN: Final = 15.0
"""Seconds between two looks at why a job waits."""
_STEP_IN_NAME: Final = 40
LOOKED_AT: Final = 1000
"""Elements of arrays that are asked for at one look; the others have their turn at the next."""


# What is sent


@functools.cache
def program() -> str:
    """The text of the container's program."""
    return Path(storeprogram.__file__).read_text(encoding="utf-8")


def job_name(jobs: Sequence[Job], salt: int = 0) -> str:
    """The name of a job: by its run it is found again, and by its end told from others."""
    step = plain_name(jobs[0].step.name)[:_STEP_IN_NAME]
    return f"{run_prefix(jobs[0].run)}{step}-{token_of(jobs, salt)}"


def batch_request(
    jobs: Sequence[Job], site: Site, options: Mapping[str, Any], choice: QueueChoice, *, token: str
) -> BatchRequest:
    """What a job on AWS Batch follows from."""
    job = jobs[0]
    is_step = job.kind == "step"
    settings = settings_of(job.step, BatchSettings, options)
    limit = job.step.settings.timeout if is_step else None
    return request_of(
        job.step,
        settings,
        choice,
        resources=job.step.settings.resources if is_step else ResourceSettings(),
        command=(settings.get("executable", "python3"), "-c", program()),
        environment=image_environment(job.step),
        job_environment={
            **passed(site),
            JOB: PLACES.folder(site.artifacts, job.run, token),
            WORKER: PLACES.worker(site),
        },
        labels=tags_of(job, token),
        nodes=nodes_of(job),
        elements=len(jobs),
        seconds=limit + LATER if limit else 0.0,
        cache=f"{site.artifacts.rstrip('/')}/{NEURON_CACHE}" if site.artifacts.startswith("s3://") else "",
    )


# Jobs


@attrs.define(kw_only=True, eq=False)
class BatchJob(AwsJob):
    """A job of AWS Batch, with one job of Stoker's, or the elements of an array."""

    id: str = ""
    queue: str

    def part(self, index: int) -> str:
        """The id of an element, or of the only job."""
        return f"{self.id}:{index}" if len(self.about) > 1 else self.id


@attrs.define(kw_only=True, eq=False)
class BatchHandle(AwsHandle[BatchJob]):
    """A job as the job of AWS Batch, an element of an array, or the nodes of a multi-node parallel job."""

    explain_at: float = 0.0
    """When to look why it waits, on the monotonic clock."""

    @property
    def id(self) -> str:
        """Its id at AWS Batch."""
        return self.place.part(self.index)

    @property
    def text(self) -> str:
        return f"the job {self.id}"


class BatchPlatform(AwsPlatform[BatchHandle, BatchJob, BatchClient]):
    """Sends, finds, follows and ends jobs."""

    places = PLACES

    def __init__(self, site: Site, options: Mapping[str, Any], client: BatchClient) -> None:
        super().__init__(site, options, client)
        self._handles: dict[str, dict[int, BatchHandle]] = {}
        """By the job's id, and index."""
        self._loaded: set[tuple[str, str]] = set()
        """Queue and run of which earlier jobs are known."""
        self._definitions: dict[str, str] = {}
        """The ARN of each definition that is there."""
        self._account: tuple[JobQueue, ...] | None = None
        self._doubtful: dict[str, str] = {}
        """The queue of each submission without an answer, by the job's name."""
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

    def _load(self, job: Job) -> bool:
        """Find the jobs of earlier drivers of a run on a queue."""
        try:
            queue = self.choice(job).queue
        except Away:
            raise
        except BackendError:
            return False  # `send` says so
        if (queue, job.run) in self._loaded:
            return True
        names = self._client.named(queue, f"{run_prefix(job.run)}*")
        for row in self._client.jobs([str(row["jobId"]) for row in names]).values():
            token = str((row.get("tags") or {}).get(TOKEN_TAG, ""))
            if not token or row["jobId"] in self._handles:
                continue
            folder = PLACES.folder(self._site.artifacts, job.run, token)
            document = self._document_in(folder)
            if document is None:
                continue
            place = BatchJob(
                id=str(row["jobId"]),
                name=str(row["jobName"]),
                queue=queue,
                folder=folder,
                nodes=document["nodes"],
                about=document["jobs"],
            )
            parts = [place.part(index) for index in range(len(place.about))]
            states = self._client.jobs(parts) if len(parts) > 1 else {place.id: row}
            self._add_earlier(job.run, place, [str(states.get(part, row).get("status")) for part in parts])
        self._loaded.add((queue, job.run))
        return True

    def _is_worth(self, state: str) -> bool:
        return state != "FAILED"

    def _end_earlier(self, place: BatchJob, index: int, state: str) -> None:
        if state not in OVER:
            self._client.end(place.part(index))

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
                answers[job.name] = refusal(error)
        for choice, alike in groups.values():
            for at in range(0, len(alike), ELEMENTS):
                group = alike[at : at + ELEMENTS]
                try:
                    place = self._send(group, choice)
                except Away:
                    if not answers:
                        raise
                    return answers
                except BackendError as error:
                    answers.update({job.name: refusal(error) for job in group})
                    continue
                answers.update({job.name: self._follow(place, index, job) for index, job in enumerate(group)})
        return answers

    def _alike(self, job: Job, choice: QueueChoice) -> str:
        """Equal for jobs that may be elements of one array."""
        if nodes_of(job) > 1 or job.kind != "step":
            return job.name
        request = batch_request([job], self._site, self._options, choice, token="")
        sent = submission(request, choice.queue, "")
        del sent["tags"]["stoker-attempt"]
        return json.dumps([job_definition(request), sent], sort_keys=True)

    def _send(self, jobs: Sequence[Job], choice: QueueChoice, salt: int = 0) -> BatchJob:
        """Send one job of AWS Batch; what was sent before without an answer is found by its name."""
        token, name = token_of(jobs, salt), job_name(jobs, salt)
        request = batch_request(jobs, self._site, self._options, choice, token=token)
        folder = PLACES.folder(self._site.artifacts, jobs[0].run, token)
        document = PLACES.document(jobs, self._site, folder)
        place = BatchJob(name=name, queue=choice.queue, folder=folder, nodes=nodes_of(jobs[0]), about=document["jobs"])
        if name in self._doubtful:
            there = [row for row in self._client.named(choice.queue, name) if row.get("status") != "FAILED"]
            place.id = str(there[0]["jobId"]) if there else ""
            for row in there[1:]:
                self._client.end(str(row["jobId"]))
        if not place.id:
            self._leave(folder, document)
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

    # Following

    def look(self, handles: Mapping[str, BatchHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs: from DescribeJobs, from their logs, and at their end from the artifact store."""
        now = time.monotonic()
        chosen = self._in_turn(list(handles.items()))
        rows = self._client.jobs([handle.id for _, handle in chosen])
        reports = {}
        room = READ
        for name, handle in chosen:
            row = rows.get(handle.id)
            if row is None:
                if now - handle.place.seen < UNSEEN:
                    continue
                report = lost(handle, f"AWS Batch does not know {handle.text} any more")
            else:
                handle.place.seen, handle.row = now, row
                is_over = row.get("status") in OVER
                if is_over or room > 0:
                    room -= self._read_logs(handle, row)
                report = self._report(handle, row, now)
            reports[name] = report
        return self._with_lines(handles, reports)

    def _in_turn(self, handles: list[tuple[str, BatchHandle]]) -> list[tuple[str, BatchHandle]]:
        """All handles, or of very many those whose turn it is."""
        if len(handles) <= LOOKED_AT:
            return handles
        start = self._turn % len(handles)
        self._turn = start + LOOKED_AT
        return (handles + handles)[start : start + LOOKED_AT]

    def _report(self, handle: BatchHandle, row: Mapping[str, Any], now: float) -> JobReport:
        state = str(row.get("status"))
        handle.running = handle.running or state in ("RUNNING", *OVER)
        status: JobStatus | None = None
        message = reason = ""
        if state in OVER:
            handle.over_since = handle.over_since or now
            end = self._end(handle, now)
            again = self._start_again(handle, end) if isinstance(end, AwsEnd) else end
            message, status = (again, None) if isinstance(again, str) else ("", again)
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

    # Lines and ends

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

    def _end_of(self, handle: BatchHandle) -> AwsEnd | None:
        if handle.place.nodes == 1:
            return end_of(handle.row)
        return gang_end(handle.row, [part for _, part in self._nodes(handle, handle.row)])

    def _start_again(self, handle: BatchHandle, end: AwsEnd) -> str | JobStatus:
        """Send a job once more whose instance was taken away: why, in words; its status where it is not sent again."""
        if not end.free or handle.ending or handle.again >= AGAIN:
            return without_result(end, handle)
        old, index = handle.place, handle.index
        try:
            new = self._send([handle.job], self.choice(handle.job), salt=handle.again + 1)
        except Away:
            raise
        except BackendError as error:
            return refusal(error)
        message = self._sent_again(handle, new, end)
        self._handles[old.id].pop(index, None)
        self._handles.setdefault(new.id, {})[0] = handle
        with contextlib.suppress(Away):  # what stays is found by `stoker gc`
            self._drop_if_empty(old)
        return message

    # Ending

    def _stop(self, handle: BatchHandle) -> None:
        self._client.end(handle.id)

    def forget(self, handle: BatchHandle) -> None:
        """A job is over; with the last one of a job of AWS Batch its folder is removed."""
        self._handles.get(handle.place.id, {}).pop(handle.index, None)
        self._drop_if_empty(handle.place)

    def _drop_if_empty(self, place: BatchJob) -> None:
        if self._handles.get(place.id) or any(one is place for one, _, _ in self._earlier.remaining()):
            return
        self._handles.pop(place.id, None)
        remove(place.folder)

    def identity(self, handle: BatchHandle) -> Mapping[str, Any]:
        """The job's id."""
        return {"job": f"the job {handle.id} of AWS Batch", "id": handle.id, "queue": handle.place.queue}

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Submissions that got no answer."""
        return [{"job": f"a job called {name}", "name": name, "queue": queue} for name, queue in self._doubtful.items()]

    def _end_doubtful(self) -> None:
        for name, queue in self._doubtful.items():
            self._client.end_named(queue, name)


UNKNOWN_QUEUE = "the queue that holds the step, of those of the account"


class BatchBackend(Watched):
    """Runs jobs in one account and region."""

    name = "batch"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        super().__init__(BatchPlatform(site, self._options, BatchClient(BatchSettings(**options))))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What AWS Batch cannot give a step, and how it takes the rest; the account is not asked."""
        return check(step, self._options, self._site)

    def prove(self, steps: Sequence[StepPlan]) -> Iterable[Finding]:
        """What the account's queues can never give these steps; asks it."""
        from stoker.backends.aws_batch.client import prove

        with contextlib.closing(BatchClient(BatchSettings(**self._options))) as client:
            yield from prove(client, self._options, steps)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The job definition, the submission, and the document that the container reads."""
        choice = choice_of(job.step, settings_of(job.step, BatchSettings, self._options))
        if not isinstance(choice, QueueChoice):
            choice = QueueChoice(queue=UNKNOWN_QUEUE)
        token = token_of([job])
        request = batch_request([job], self._site, self._options, choice, token=token)
        definition = job_definition(request)
        folder = PLACES.folder(self._site.artifacts, job.run, token)
        return {
            "definition": definition,
            "job": submission(request, choice.queue, definition["jobDefinitionName"], name=job_name([job])),
            "document": PLACES.document([job], self._site, folder),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that sends the job with the AWS command line."""
        from stoker.backends.base.byhand import subshell

        return subshell(_lines_by_hand(job, request, BatchSettings(**self._options)))


def _lines_by_hand(job: Job, request: Mapping[str, Any], settings: BatchSettings) -> Iterator[str]:
    from stoker.backends.base.byhand import document_lines

    aws = command_line(settings)
    submission = request["job"]
    overrides = submission.get("containerOverrides")
    if overrides is None:
        overrides = submission["nodeOverrides"]["nodePropertyOverrides"][0]["containerOverrides"]
    places = {row["name"]: row["value"] for row in overrides["environment"]}
    folder = places[JOB]
    yield from lines_by_hand(job, request["document"], settings, folder=folder, worker=places[WORKER])
    # A token that no driver takes for one of its own.
    tags = {name: text for name, text in submission["tags"].items() if name != TOKEN_TAG}
    yield from document_lines('"$here"/definition.json', request["definition"])
    yield from document_lines('"$here"/submission.json', {**submission, "jobName": "by-hand", "tags": tags})
    yield f'{aws} batch register-job-definition --cli-input-json file://"$here"/definition.json'
    yield f'{aws} batch submit-job --cli-input-json file://"$here"/submission.json'
    yield 'rm -r "$here"'
    state, result = f"{aws} batch describe-jobs --jobs ID", f"{folder}/result-0-0.json"
    yield f"echo {shlex.quote(f'its state: {state}')}; echo {shlex.quote(f'its result: {result}')}"
