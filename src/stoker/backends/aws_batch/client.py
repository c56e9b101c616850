"""The calls to AWS Batch that the backend makes, and what an account says of itself: its queues, what their compute
environments hold, and what they never can; and what is asked of it outside of a run: what a stack needs there and how
it is made, and what runs left.

Three identities act: the one that runs Stoker, the step's code (`iam_role`), and ECS, which pulls images, reads secrets
and writes logs (`execution_role`: AWS's own AmazonECSTaskExecutionRolePolicy).
"""

from __future__ import annotations

from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.aws.api import DENIED, PERSON_WAITS, AwsApi, AwsClient, code_of, is_denied, pages
from stoker.backends.aws.instances import InstanceType, described
from stoker.backends.aws.jobs import RUN_TAG, TAG, tag_text
from stoker.backends.aws.outside import (
    STORE,
    AwsRight,
    Leftovers,
    account_checks,
    policies_text,
    policy,
    role_check,
    trust_policy,
)
from stoker.backends.aws_batch.check import QUEUE, choice_of
from stoker.backends.aws_batch.definitions import LOG_GROUP, log_group, log_options, run_prefix
from stoker.backends.aws_batch.queues import JobQueue, NoQueue, queues_of_account, queues_of_settings, unknown_types
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import Leftover, Preparation, ProbeRequest, Sweep, settings_of
from stoker.core.errors import BackendError
from stoker.core.findings import Check, Finding, Reporter
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


OPEN: Final = ("profile", "iam_role", "execution_role", "schedule_role", "image")
"""Questions to which nothing is the usual answer."""
EXECUTION_POLICY: Final = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
"""https://docs.aws.amazon.com/batch/latest/userguide/execution-IAM-role.html"""
TRUSTED: Final = "ecs-tasks.amazonaws.com"
"""Who takes the roles of jobs: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html"""
RIGHTS: Final[Sequence[AwsRight]] = (
    # Jobs, with the tags by which they are found again; definitions, and how old ones are removed (`stoker gc`).
    (("batch:SubmitJob", "batch:TagResource"), "arn:aws:batch:{region}:{account}:job*/*"),
    (
        ("batch:RegisterJobDefinition", "batch:DeregisterJobDefinition"),
        "arn:aws:batch:{region}:{account}:job-definition/stoker-*",
    ),
    (("batch:TerminateJob", "batch:CancelJob"), "arn:aws:batch:{region}:{account}:job/*"),
    (
        (
            "batch:DescribeJobs",
            "batch:ListJobs",
            "batch:DescribeJobDefinitions",
            "batch:DescribeJobQueues",
            "batch:DescribeComputeEnvironments",
        ),
        "*",
    ),
    (("logs:GetLogEvents",), "arn:aws:logs:{region}:{account}:log-group:{group}:log-stream:*"),
    *STORE,
    # Only to know instance types that are newer than Stoker's table, and for `stoker doctor --stack`.
    (("ec2:DescribeInstanceTypes",), "*"),
    (("logs:DescribeLogGroups", "iam:GetRole", "ecr:DescribeImages"), "*"),
)
"""What whoever runs Stoker calls, and on what; "*" where AWS takes no other.
https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsbatch.html"""
SCHEDULER: Final = "scheduler.amazonaws.com"
"""Who takes the role of schedules."""
SCHEDULES: Final[Sequence[AwsRight]] = (
    (
        ("scheduler:GetSchedule", "scheduler:CreateSchedule", "scheduler:UpdateSchedule", "scheduler:DeleteSchedule"),
        "arn:aws:scheduler:{region}:{account}:schedule/default/stoker-*",
    ),
    (("scheduler:ListSchedules",), "*"),
    (
        (
            "secretsmanager:CreateSecret",
            "secretsmanager:PutSecretValue",
            "secretsmanager:DeleteSecret",
            "secretsmanager:TagResource",
        ),
        "arn:aws:secretsmanager:{region}:{account}:secret:stoker-*",
    ),
)
"""What whoever adds schedules calls besides."""
SUBMITS: Final[Sequence[AwsRight]] = (
    (("batch:SubmitJob",), "arn:aws:batch:{region}:{account}:job-definition/stoker-*"),
    (("batch:SubmitJob",), "arn:aws:batch:{region}:{account}:job-queue/*"),
)
"""What the role of schedules may."""
READS: Final[Sequence[AwsRight]] = (
    (("secretsmanager:GetSecretValue",), "arn:aws:secretsmanager:{region}:{account}:secret:stoker-*"),
)
"""What the execution role needs for schedules besides the managed policy."""
_POLICY: Final = "`stoker stacks setup batch` prints the least policy"


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """For `stoker doctor --stack`: what `checks` finds, with an answer of AWS while a person waits."""
    with LEFT.asked(options) as (client, settings):
        yield from checks(client, settings, request.store)


def checks(api: AwsApi, settings: BatchSettings, store: str) -> Iterator[Check]:
    """What a stack with these settings finds."""
    listed, own = _queues_check(api, settings), _own_checks(api, settings)
    return account_checks(api, settings, store, listed=listed, own=own, policy=_POLICY)


def _queues_check(api: AwsApi, settings: BatchSettings) -> Iterator[Check]:
    try:
        account = read_account(api, settings)
    except BackendError as error:
        fix = f"the account needs batch:DescribeJobQueues and batch:DescribeComputeEnvironments; {_POLICY}"
        yield Check(name="queues", found="", problem=error.message, fix=fix if is_denied(error) else error.fix)
    else:
        yield from queue_checks(account, settings)


def _own_checks(api: AwsApi, settings: BatchSettings) -> Iterator[Check]:
    for field in ("iam_role", "execution_role"):
        if settings.get(field):
            yield role_check(api, field, str(settings.get(field)), TRUSTED)
    if settings.get("schedule_role"):
        yield role_check(api, "schedule_role", str(settings.get("schedule_role")), SCHEDULER)
    yield from log_check(api, settings)


def queue_checks(account: Account, settings: BatchSettings) -> Iterator[Check]:
    """A line for each queue, with what it may start, and one for the accelerators of all."""
    named = [*settings.get("queues", {}), *([settings.get("queue")] if settings.get("queue") else [])]
    names = {each.name for each in account.queues}
    for name in dict.fromkeys(str(each).rpartition("/")[2] for each in named):
        if name not in names:
            fix = f"the account has {', '.join(sorted(names)) or 'none'}; or name another `region`"
            yield Check(name=f"queue {name}", found="", problem=f"there is no queue '{name}' for containers", fix=fix)
    if not account.queues and not named:
        fix = "create a compute environment and a queue: https://docs.aws.amazon.com/batch/latest/userguide/"
        yield Check(name="queues", found="", problem="the account has no queue for containers in this region", fix=fix)
    for queue in account.queues:
        yield _queue_check(queue)
    chips: dict[str, int] = {}
    for queue in account.queues:
        for environment in queue.usable if not queue.problem else ():
            for each in environment.types:
                if each.count:
                    chips[each.accelerator] = max(chips.get(each.accelerator, 0), each.count)
    listed = ", ".join(f"{name} (up to {count} on an instance)" for name, count in chips.items())
    yield Check(name="accelerators", found=listed or "none")


def _queue_check(queue: JobQueue) -> Check:
    name = f"queue {queue.name}"
    if queue.problem:
        return Check(name=name, found="", problem=f"{queue.name} {queue.problem}", fix="enable or mend it")
    if not queue.usable:
        text = ", ".join(f"{each.name} {each.problem}" for each in queue.environments) or "it has none"
        problem = f"no compute environment of {queue.name} works: {text}"
        return Check(name=name, found="", problem=problem, fix="enable or mend one of them")
    limits = [f"{each.name} up to {each.vcpus} vCPUs" for each in queue.usable if each.vcpus is not None]
    unknown = [each for environment in queue.usable for each in environment.unknown]
    hint = f"; not known: {', '.join(unknown)}" if unknown and not queue.fargate else ""
    fair = "; needs a share identifier" if queue.fair else ""
    return Check(name=name, found=f"{queue.text}{'; ' if limits else ''}{', '.join(limits)}{hint}{fair}")


def log_check(api: AwsApi, settings: BatchSettings) -> Iterator[Check]:
    """Whether the log group is there; AWS Batch creates its own, and no other."""
    group = log_group(settings)
    if not group:
        return
    try:
        there = _has_group(api, group)
    except BackendError as error:
        if not is_denied(error):
            raise
        yield Check(name="log group", found=f"{group}, which this identity may not look for")
        return
    if not there and group != LOG_GROUP:
        fix = f"aws logs create-log-group --log-group-name {group}"
        yield Check(name="log group", found="", problem=f"there is no log group {group}: jobs would not start", fix=fix)
    else:
        yield Check(name="log group", found=group if there else f"{group}, which the first job creates")


# How a stack is made


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """What the other settings usually are in a region."""
    with LEFT.asked({"region": answers["region"]}) as (client, _):
        return suggested(client, answers)


def suggested(api: AwsApi, answers: Mapping[str, str]) -> Mapping[str, str]:
    """The same, of an account: all of its queues."""
    queues = read_account(api, BatchSettings(region=answers["region"])).queues
    names = ", ".join(queue_text(queue) for queue in queues if not queue.problem and queue.usable)
    return {**dict.fromkeys(OPEN, ""), "queues": names}


def queue_text(queue: JobQueue) -> str:
    """A queue as `queues` takes it in one text: "gpu=p4d.24xlarge+SPOT"."""
    kinds = {each.kind for each in queue.usable}
    if queue.fargate:
        return f"{queue.name}={'FARGATE_SPOT' if 'FARGATE_SPOT' in kinds else 'FARGATE'}"
    names = dict.fromkeys(each.name for environment in queue.usable for each in environment.types)
    names.update(dict.fromkeys(name for each in queue.usable for name in each.unknown if "." in name))
    return "=".join(filter(None, (queue.name, "+".join([*names, *(["SPOT"] if "SPOT" in kinds else [])]))))


def prepare(options: Mapping[str, Any], store: str, details: Mapping[str, str]) -> Preparation | None:
    """The log group and the rights that are missing."""
    return preparation(lambda settings: BatchClient(settings, patience=PERSON_WAITS), options, store)


def preparation(
    open_api: Callable[[BatchSettings], AwsApi], options: Mapping[str, Any], store: str
) -> Preparation | None:
    """What must be made before a stack with these settings works; None where nothing is missing.

    A log group that the settings name is made. Where this identity may not do what a run does, the least policies are
    the text, for whoever manages the account.
    """
    settings = BatchSettings(**options)
    api = open_api(settings)
    identity = api.call("sts", "get_caller_identity")
    try:
        read_account(api, settings)
        group = log_group(settings)
        missing = bool(group) and group != LOG_GROUP and not _has_group(api, group)
    except BackendError as error:
        if not is_denied(error):
            raise
        text = least_policies(settings, account=str(identity.get("Account") or "*"), store=store)
        return Preparation(text=text, what=f"rights for {identity.get('Arn')}: {error.message}", apply=None)
    if not missing:
        return None

    def create() -> None:
        open_api(settings).call("logs", "create_log_group", logGroupName=group)

    return Preparation(
        text=f"aws logs create-log-group --log-group-name {group}", what=f"the log group {group}", apply=create
    )


def least_policies(settings: BatchSettings, *, account: str = "*", store: str = "") -> str:
    """The least policies of all who act, with a line before each that says whose it is."""
    region = str(settings.get("region") or log_options(settings).get("awslogs-region") or "*")
    policies = {
        "whoever runs Stoker": driver_policy(settings, account=account, region=region, store=store),
        "the role of steps (iam_role)": policy(STORE, store=store),
        "who may take the roles of jobs (trust policy of iam_role and execution_role)": trust_policy(TRUSTED),
    }
    if settings.get("schedule_role"):
        places = {"account": account, "region": region}
        role = _role_arn(settings.get("schedule_role"), account)
        policies |= {
            "whoever adds schedules": policy(SCHEDULES, **places, passed=[role], trusted=SCHEDULER),
            "the role of schedules (schedule_role)": policy(SUBMITS, **places),
            "who may take the role of schedules (trust policy of schedule_role)": trust_policy(SCHEDULER),
            "the execution role, for schedules": policy(READS, **places),
        }
    return f"{policies_text(policies)}\n# execution_role: the managed policy {EXECUTION_POLICY}"


def driver_policy(settings: BatchSettings, *, account: str = "*", region: str = "*", store: str = "") -> dict[str, Any]:
    """The least policy of whoever runs Stoker; with roles in the settings, also the right to hand them to jobs."""
    named = [settings.get(name) for name in ("iam_role", "execution_role") if settings.get(name)]
    roles = {_role_arn(name, account) for name in named}
    group = log_group(settings) or LOG_GROUP
    places = {"account": account, "region": region, "store": store, "group": group}
    return policy(RIGHTS, **places, passed=sorted(roles), trusted=TRUSTED)


def _role_arn(name: str, account: str) -> str:
    return name if name.startswith("arn:") else f"arn:aws:iam::{account}:role/{name}"


def _has_group(api: AwsApi, group: str) -> bool:
    answer = api.call("logs", "describe_log_groups", logGroupNamePrefix=group)
    return any(each.get("logGroupName") == group for each in answer.get("logGroups") or ())


# What runs left

LEFT: Final = Leftovers(BatchClient, BatchSettings, ("profile", "region", "endpoint_url", "queues", "queue"))
left_jobs, end_left, end_recorded = LEFT.left_jobs, LEFT.end_left, LEFT.end_recorded


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """End the jobs of this database's runs that nobody continues, and deregister definitions that no job uses."""
    counts = {"jobs": 0, "definitions": 0}
    kept_tags = {tag_text(run) for run in sweep.kept}
    ours = {tag_text(run) for run in sweep.ours}

    def clean(client: BatchClient) -> None:
        used: set[str] = set()
        for row in _live_jobs(client):
            run = str(row["tags"][RUN_TAG])
            if run in ours and run not in kept_tags:
                counts["jobs"] += 1
                if not sweep.dry_run:
                    client.end(str(row["jobId"]))
            else:
                used.add(str(row["jobDefinition"]))
        for definition in list(client.definitions()):
            arn = str(definition["jobDefinitionArn"])
            if (definition.get("tags") or {}).get(TAG) == "definition" and arn not in used:
                counts["definitions"] += 1
                if not sweep.dry_run:
                    client.deregister(arn)

    LEFT.sweep(parts, sweep, clean)
    yield Leftover(kind="batch_jobs", noun="job", rest="of runs on AWS Batch", count=counts["jobs"])
    yield Leftover(
        kind="batch_definitions", noun="job definition", rest="that no job uses", count=counts["definitions"]
    )


def _live_jobs(client: BatchClient) -> Iterator[Mapping[str, Any]]:
    """Stoker's jobs that are not over, of all runs."""
    for queue in client.stack_queues():
        rows = client.named(queue, "stoker-*")
        for row in client.jobs([str(row["jobId"]) for row in rows if row.get("status") not in OVER]).values():
            if RUN_TAG in (row.get("tags") or {}):
                yield row
