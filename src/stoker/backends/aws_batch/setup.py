"""How a person makes a stack of an account: its region, its queues with what they hold, roles, and what is missing."""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping

from stoker.backends.aws_batch import iam
from stoker.backends.aws_batch.account import is_denied, read_account
from stoker.backends.aws_batch.definitions import LOG_GROUP, log_group, log_options
from stoker.backends.aws_batch.queues import JobQueue
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.aws import AwsApi
from stoker.backends.base.backend import Preparation
from stoker.core.errors import BackendError

OPEN: Final = ("profile", "iam_role", "execution_role", "image")
"""Questions to which nothing is the usual answer."""


def suggest(api: AwsApi, answers: Mapping[str, str]) -> Mapping[str, str]:
    """What the other settings usually are in a region: all of its queues."""
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


def prepare(open_api: Callable[[BatchSettings], AwsApi], options: Mapping[str, Any], store: str) -> Preparation | None:
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
        text = policies_text(settings, account=str(identity.get("Account") or "*"), store=store)
        return Preparation(text=text, what=f"rights for {identity.get('Arn')}: {error.message}", apply=None)
    if not missing:
        return None

    def create() -> None:
        open_api(settings).call("logs", "create_log_group", logGroupName=group)

    return Preparation(
        text=f"aws logs create-log-group --log-group-name {group}", what=f"the log group {group}", apply=create
    )


def policies_text(settings: BatchSettings, *, account: str = "*", store: str = "") -> str:
    """The least policies of all who act, with a line before each that says whose it is."""
    region = str(settings.get("region") or log_options(settings).get("awslogs-region") or "*")
    driver = iam.driver_policy(settings, account=account, region=region, store=store)
    return "\n".join(
        (
            "# whoever runs Stoker",
            iam.policy_text(driver),
            "# the role of steps (iam_role)",
            iam.policy_text(iam.job_policy(settings, store=store)),
            "# who may take the roles of jobs (trust policy of iam_role and execution_role)",
            iam.policy_text(iam.trust_policy()),
            f"# execution_role: the managed policy {iam.EXECUTION_POLICY}",
        )
    )


def _has_group(api: AwsApi, group: str) -> bool:
    answer = api.call("logs", "describe_log_groups", logGroupNamePrefix=group)
    return any(each.get("logGroupName") == group for each in answer.get("logGroups") or ())
