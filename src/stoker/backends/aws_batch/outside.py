"""What is asked of an account outside of a run: what a stack needs there and how it is made, and what runs left.

Three identities act: the one that runs Stoker, the step's code (`iam_role`), and ECS, which pulls images, reads secrets
and writes logs (`execution_role`: AWS's own AmazonECSTaskExecutionRolePolicy).
"""

from __future__ import annotations

from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.backends.aws.api import PERSON_WAITS, AwsApi, is_denied
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
from stoker.backends.aws_batch.client import OVER, Account, BatchClient, read_account
from stoker.backends.aws_batch.definitions import LOG_GROUP, log_group, log_options
from stoker.backends.aws_batch.queues import JobQueue
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import Leftover, Preparation, ProbeRequest, Sweep
from stoker.core.errors import BackendError
from stoker.core.findings import Check

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
