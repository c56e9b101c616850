"""The calls to AWS Batch that the backend makes, and what an account says of itself: its queues, what their compute
environments hold, and what they never can."""

from __future__ import annotations

from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.aws.api import DENIED, AwsApi, AwsClient, code_of, pages
from stoker.backends.aws.instances import InstanceType, described
from stoker.backends.aws_batch.check import QUEUE, choice_of
from stoker.backends.aws_batch.definitions import run_prefix
from stoker.backends.aws_batch.queues import JobQueue, NoQueue, queues_of_account, queues_of_settings, unknown_types
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import settings_of
from stoker.core.errors import BackendError
from stoker.core.findings import Finding, Reporter
from stoker.core.plan import StepPlan, reporter_of

UNPROVED: Final = "STK318"
_MOST: Final = 100
"""Names in one question: the most that DescribeComputeEnvironments and DescribeInstanceTypes take."""


@attrs.frozen(kw_only=True)
class Account:
    """The queues of an account, as the API has them and read."""

    rows: Sequence[Mapping[str, Any]]
    """DescribeJobQueues."""
    environments: Sequence[Mapping[str, Any]]
    """DescribeComputeEnvironments, of these queues."""
    queues: tuple[JobQueue, ...]


def read_account(api: AwsApi, settings: BatchSettings) -> Account:
    """The queues that the settings name, or all of the account and its region, with what they hold."""
    names = list(settings.get("queues", {}))
    if names and settings.get("queue"):
        names = list(dict.fromkeys((*names, settings.get("queue"))))
    rows: list[Mapping[str, Any]] = []
    for some in _batches(names) if names else [[]]:
        words = {"jobQueues": some} if some else {}
        rows += pages(api, "batch", "describe_job_queues", "jobQueues", **words)
    arns = dict.fromkeys(
        str(entry["computeEnvironment"]) for row in rows for entry in row.get("computeEnvironmentOrder") or ()
    )
    environments: list[Mapping[str, Any]] = []
    for some in _batches(list(arns)):
        operation, key = "describe_compute_environments", "computeEnvironments"
        environments += pages(api, "batch", operation, key, computeEnvironments=some)
    types = describe_types(api, unknown_types(environments))
    return Account(rows=rows, environments=environments, queues=queues_of_account(rows, environments, types))


def describe_types(api: AwsApi, names: Sequence[str]) -> dict[str, InstanceType]:
    """Instance types that no table has, as EC2 describes them; none of those that it does not know or tell in full."""
    types: dict[str, InstanceType] = {}
    for some in _batches(list(names)):
        try:
            for answer in pages(api, "ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=some):
                known = described(answer)
                if known is not None:
                    types[known.name] = known
        except BackendError as error:
            if code_of(error) not in (*DENIED, "InvalidInstanceType"):
                raise
    return types


def _batches(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), _MOST):
        yield names[first : first + _MOST]


# Before a run


def prove(api: AwsApi, options: Mapping[str, Any], steps: Sequence[StepPlan]) -> Iterator[Finding]:
    """A finding for each step that no queue holds, and for queues that are not what the settings say they are."""
    try:
        queues = read_account(api, BatchSettings(**options)).queues
    except BackendError as error:
        for step in steps:
            what = "what the account's queues hold could not be asked"
            yield reporter_of(step).warning(UNPROVED, what, error.message, error.fix)
        return
    for step in steps:
        yield from prove_step(step, options, queues)


def prove_step(step: StepPlan, options: Mapping[str, Any], queues: Sequence[JobQueue]) -> Iterator[Finding]:
    """The same for one step, by queues that were read."""
    settings, report = settings_of(step, BatchSettings, options), reporter_of(step)
    choice = choice_of(step, settings, queues)
    if choice is None:
        what, why = "gets no queue: the account has none in this region", "a job of AWS Batch is sent to a queue"
        yield report.error(QUEUE, what, why, "create one, or name another `region`")
        return
    if isinstance(choice, NoQueue):
        yield report.error(QUEUE, choice.what, choice.why, choice.fix)
        return
    name = choice.queue.rpartition("/")[2]
    queue = next((each for each in queues if each.name == name), None)
    if queue is None:
        what, why = f"is sent to the queue {name}, which the account has not", "AWS Batch refuses the job"
        yield report.error(QUEUE, what, why, f"name one of {', '.join(each.name for each in queues) or 'its own'}")
        return
    yield from _differences(queue, settings, report)


def _differences(queue: JobQueue, settings: BatchSettings, report: Reporter) -> Iterator[Finding]:
    """Where a queue holds other instance types than the settings say: then the plan was made for others."""
    for written in queues_of_settings(settings):
        if written.name != queue.name:
            continue
        ours = {each.name for environment in written.environments for each in environment.types}
        theirs = {each.name for environment in queue.usable for each in environment.types}
        if written.fargate != queue.fargate or ours != theirs:
            what = f"is sent to {queue.text}, and the stack's settings say {written.text}"
            why = "the job is made for what the account says"
            fix = "write into `queues` of the stack what the account has: `stoker stacks setup batch`"
            yield report.warning(QUEUE, what, why, fix)


AT_ONCE: Final = 100
"""Jobs of one DescribeJobs: https://docs.aws.amazon.com/batch/latest/APIReference/API_DescribeJobs.html"""


OVER: Final = ("SUCCEEDED", "FAILED")
REASON: Final = "ended by Stoker"
"""What TerminateJob is told; `causes` knows of it by the job's own flags."""


class BatchClient(AwsClient):
    """AWS Batch in the account and region that settings name."""

    title = "AWS Batch"

    def register(self, definition: Mapping[str, Any]) -> str:
        """Register a job definition; its ARN."""
        return str(self.call("batch", "register_job_definition", **definition)["jobDefinitionArn"])

    def definition(self, name: str) -> str:
        """The ARN of the newest active revision of a job definition; empty where there is none."""
        rows = list(self.pages("batch", "describe_job_definitions", "jobDefinitions", jobDefinitionName=name))
        active = [row for row in rows if row.get("status") == "ACTIVE"]
        return str(max(active, key=lambda row: int(row["revision"]))["jobDefinitionArn"]) if active else ""

    def definitions(self) -> Iterator[Mapping[str, Any]]:
        """All active job definitions."""
        return self.pages("batch", "describe_job_definitions", "jobDefinitions", status="ACTIVE")

    def deregister(self, arn: str) -> None:
        """Make a job definition inactive; jobs that were sent with it go on."""
        self.call("batch", "deregister_job_definition", jobDefinition=arn)

    def submit(self, submission: Mapping[str, Any]) -> str:
        """Send a job; its id. Made once: AWS Batch would take a repeated submission for a second job."""
        return str(self.call("batch", "submit_job", once=True, **submission)["jobId"])

    def jobs(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Jobs by id, elements of arrays (`ID:3`) and nodes (`ID#1`) too; those that AWS has forgotten are missing."""
        rows: dict[str, Mapping[str, Any]] = {}
        for at in range(0, len(ids), AT_ONCE):
            answer = self.call("batch", "describe_jobs", jobs=list(ids[at : at + AT_ONCE]))
            rows.update((str(row["jobId"]), row) for row in answer.get("jobs") or ())
        return rows

    def named(self, queue: str, name: str) -> list[Mapping[str, Any]]:
        """The jobs of a queue with a name, in all states; one that ends in `*` stands for all that begin so."""
        filters = [{"name": "JOB_NAME", "values": [name]}]
        return list(self.pages("batch", "list_jobs", "jobSummaryList", jobQueue=queue, filters=filters))

    def end(self, job: str) -> None:
        """End a job, whether it waits or runs: TerminateJob does both. Its container gets SIGTERM, and after the
        instance's `ECS_CONTAINER_STOP_TIMEOUT` (30 s) SIGKILL."""
        self.call("batch", "terminate_job", jobId=job, reason=REASON)

    def end_named(self, queue: str, name: str) -> list[str]:
        """End the jobs of a queue with a name that are not over; their ids."""
        ids = [str(row["jobId"]) for row in self.named(queue, name) if row.get("status") not in OVER]
        for id in ids:
            self.end(id)
        return ids

    def end_identified(self, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """End jobs by what a driver recorded; the names of those that were there."""
        for id, row in self.jobs([str(job["id"]) for job in jobs if job.get("id")]).items():
            if row.get("status") not in OVER:
                self.end(id)
                yield f"the job {id} of AWS Batch"
        for job in jobs:
            if job.get("name"):
                for id in self.end_named(str(job["queue"]), str(job["name"])):
                    yield f"the job {id} of AWS Batch"

    def stack_queues(self) -> list[str]:
        """The account's queues; those of the settings where it shows none."""
        named = [*self._settings.get("queues", {}), *filter(None, [self._settings.get("queue")])]
        return [str(row["jobQueueName"]) for row in self.queues()] or list(dict.fromkeys(named))

    def left(self, run: str) -> Iterator[tuple[str, bool]]:
        """The jobs of a run that went well or are not over: their ids, and whether they run or wait."""
        for queue in self.stack_queues():
            for row in self.named(queue, f"{run_prefix(run)}*"):
                if row.get("status") != "FAILED":
                    yield str(row["jobId"]), row.get("status") not in OVER

    def queues(self, names: Iterable[str] = ()) -> list[Mapping[str, Any]]:
        """Queues by name or ARN; without names all."""
        chosen: dict[str, Any] = {"jobQueues": list(names)} if names else {}
        return list(self.pages("batch", "describe_job_queues", "jobQueues", **chosen))

    def environments(self) -> list[Mapping[str, Any]]:
        """All compute environments."""
        return list(self.pages("batch", "describe_compute_environments", "computeEnvironments"))
