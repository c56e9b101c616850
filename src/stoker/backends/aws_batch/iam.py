"""The rights that the backend uses, one by one with what each is for, and the policies that give them. Pure.

Three identities act: the one that runs Stoker (`driver_policy`), the step's code (`iam_role`: `job_policy`), and ECS,
which pulls images, reads secrets and writes logs (`execution_role`: AWS's own AmazonECSTaskExecutionRolePolicy).
"""

from __future__ import annotations

import json
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.aws_batch.definitions import LOG_GROUP, log_group
from stoker.backends.aws_batch.settings import BatchSettings

EXECUTION_POLICY: Final = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
"""https://docs.aws.amazon.com/batch/latest/userguide/execution-IAM-role.html"""
TRUSTED: Final = "ecs-tasks.amazonaws.com"
"""Who takes the roles of jobs: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html"""


@attrs.frozen(kw_only=True)
class AwsRight:
    """Some actions that the backend calls, and what for."""

    actions: tuple[str, ...]
    use: str
    """What becomes impossible without them."""
    resource: str = "*"
    """The ARN, with "{region}", "{account}", "{bucket}", "{prefix}", "{group}"; "*" where AWS takes no other.
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsbatch.html"""
    needed: bool = True
    """Whether nothing runs without them."""


RIGHTS: Final[Sequence[AwsRight]] = (
    AwsRight(
        actions=("batch:SubmitJob", "batch:TagResource"),
        use="send the jobs of steps, with the tags by which they are found again",
        resource="arn:aws:batch:{region}:{account}:job*/*",
    ),
    AwsRight(
        actions=("batch:RegisterJobDefinition", "batch:DeregisterJobDefinition"),
        use="make the definitions of jobs, and remove old ones (`stoker gc`)",
        resource="arn:aws:batch:{region}:{account}:job-definition/stoker-*",
    ),
    AwsRight(
        actions=("batch:TerminateJob", "batch:CancelJob"),
        use="end jobs",
        resource="arn:aws:batch:{region}:{account}:job/*",
    ),
    AwsRight(
        actions=(
            "batch:DescribeJobs",
            "batch:ListJobs",
            "batch:DescribeJobDefinitions",
            "batch:DescribeJobQueues",
            "batch:DescribeComputeEnvironments",
        ),
        use="follow jobs, find them again, choose queues and say why jobs wait",
    ),
    AwsRight(
        actions=("logs:GetLogEvents",),
        use="show what steps write",
        resource="arn:aws:logs:{region}:{account}:log-group:{group}:log-stream:*",
    ),
    AwsRight(
        actions=("s3:GetObject", "s3:PutObject", "s3:DeleteObject"),
        use="keep artifacts, the user's code and the results of steps",
        resource="arn:aws:s3:::{bucket}/{prefix}*",
    ),
    AwsRight(actions=("s3:ListBucket",), use="find what is in the artifact store", resource="arn:aws:s3:::{bucket}"),
    AwsRight(
        actions=("ec2:DescribeInstanceTypes",),
        use="know instance types that are newer than Stoker's table",
        needed=False,
    ),
    AwsRight(
        actions=("logs:DescribeLogGroups", "iam:GetRole", "ecr:DescribeImages"),
        use="let `stoker doctor --stack` look at log group, roles and images",
        needed=False,
    ),
)


def driver_policy(settings: BatchSettings, *, account: str = "*", region: str = "*", store: str = "") -> dict[str, Any]:
    """The least policy of whoever runs Stoker; with roles in the settings, also the right to hand them to jobs."""
    statements = [_statement(right, _places(settings, account, region, store)) for right in RIGHTS]
    named = [str(settings.get(name)) for name in ("iam_role", "execution_role") if settings.get(name)]
    roles = {name if name.startswith("arn:") else f"arn:aws:iam::{account}:role/{name}" for name in named}
    if roles:
        statements.append(
            {
                "Effect": "Allow",
                "Action": ["iam:PassRole"],
                "Resource": sorted(roles),
                "Condition": {"StringEquals": {"iam:PassedToService": TRUSTED}},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def job_policy(settings: BatchSettings, *, store: str = "") -> dict[str, Any]:
    """The least policy of a step's own role: the artifact store."""
    places = _places(settings, "*", "*", store)
    statements = [_statement(right, places) for right in RIGHTS if right.actions[0].startswith("s3:")]
    return {"Version": "2012-10-17", "Statement": statements}


def trust_policy() -> dict[str, Any]:
    """Who may take a role of jobs."""
    principal = {"Service": TRUSTED}
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}],
    }


def policy_text(policy: Mapping[str, Any]) -> str:
    """A policy as AWS's console and command line take it."""
    return json.dumps(policy, indent=2)


def _places(settings: BatchSettings, account: str, region: str, store: str) -> Mapping[str, str]:
    scheme, _, rest = store.partition("://")
    bucket, _, prefix = rest.partition("/") if scheme in ("s3", "s3a") else ("*", "", "")
    return {
        "account": account,
        "region": region,
        "bucket": bucket or "*",
        "prefix": f"{prefix.strip('/')}/" if prefix.strip("/") else "",
        "group": log_group(settings) or LOG_GROUP,
    }


def _statement(right: AwsRight, places: Mapping[str, str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(right.actions), "Resource": right.resource.format(**places)}
