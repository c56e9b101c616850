"""What an account says of itself: who asks, its queues, and what their compute environments hold.

Everything goes through an `AwsApi`, which `AwsClient` implements.
"""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.aws_batch.instances import InstanceType, described
from stoker.backends.aws_batch.queues import JobQueue, queues_of_account, unknown_types
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.aws import DENIED, AwsApi
from stoker.core.errors import BackendError

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


def pages(api: AwsApi, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
    """All entries of a list that comes in pages."""
    token = "NextToken" if service == "ec2" else "nextToken"
    following: dict[str, Any] = {}
    while True:
        answer = api.call(service, operation, **arguments, **following)
        yield from answer.get(key) or ()
        if not answer.get(token):
            return
        following = {token: answer[token]}


def code_of(error: BackendError) -> str:
    """The service's own code of a refusal; empty where there is none."""
    return str(getattr(error, "code", ""))


def is_denied(error: BackendError) -> bool:
    """Whether a refusal says that a right is missing."""
    return code_of(error) in DENIED


def _batches(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), _MOST):
        yield names[first : first + _MOST]
