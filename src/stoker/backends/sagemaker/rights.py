"""The rights that the backend uses, and the least policies that give them. Pure.

Two identities act: the one that runs Stoker (`driver_policy`), and the job's `role`, by which SageMaker pulls the image
and writes the log, and the step's code reads and writes the artifact store (`job_policy`).
"""

from __future__ import annotations

import json
from typing import Any, Final, Mapping, Sequence

from stoker.backends.sagemaker.client import LOG_GROUP
from stoker.backends.sagemaker.settings import SagemakerSettings

TRUSTED: Final = "sagemaker.amazonaws.com"
"""Who takes the role of jobs: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html"""
_JOBS: Final = "arn:aws:sagemaker:{region}:{account}:training-job/*"
_LOGS: Final = f"arn:aws:logs:{{region}}:{{account}}:log-group:{LOG_GROUP}:*"
_S3: Final[Sequence[tuple[Sequence[str], str]]] = (
    (("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), "arn:aws:s3:::{bucket}/{prefix}*"),
    (("s3:ListBucket",), "arn:aws:s3:::{bucket}"),
)
DRIVER: Final[Sequence[tuple[Sequence[str], str]]] = (
    (
        (
            "sagemaker:CreateTrainingJob",
            "sagemaker:DescribeTrainingJob",
            "sagemaker:StopTrainingJob",
            "sagemaker:AddTags",
        ),
        _JOBS,
    ),
    (("sagemaker:ListTrainingJobs",), "*"),
    (("logs:GetLogEvents", "logs:DescribeLogStreams"), _LOGS),
    *_S3,
)
"""What whoever runs Stoker calls, and on what: https://docs.aws.amazon.com/sagemaker/latest/dg/api-permissions-reference.html"""
JOB: Final[Sequence[tuple[Sequence[str], str]]] = (
    (("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"), _LOGS),
    (("cloudwatch:PutMetricData",), "*"),
    (
        (
            "ecr:GetAuthorizationToken",
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        ),
        "*",
    ),
    *_S3,
)
"""What a job's role is for: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html#sagemaker-roles-createtrainingjob-perms"""


def driver_policy(
    settings: SagemakerSettings, *, account: str = "*", region: str = "*", store: str = ""
) -> dict[str, Any]:
    """The least policy of whoever runs Stoker."""
    statements = _statements(DRIVER, account, region, store)
    if settings.get("role"):
        condition = {"StringEquals": {"iam:PassedToService": TRUSTED}}
        passing = {"Effect": "Allow", "Action": ["iam:PassRole"], "Resource": settings.get("role")}
        statements.append({**passing, "Condition": condition})
    return {"Version": "2012-10-17", "Statement": statements}


def job_policy(*, account: str = "*", region: str = "*", store: str = "") -> dict[str, Any]:
    """The least policy of the role of jobs."""
    return {"Version": "2012-10-17", "Statement": _statements(JOB, account, region, store)}


def trust_policy() -> dict[str, Any]:
    """Who may take the role of jobs."""
    statement = {"Effect": "Allow", "Principal": {"Service": TRUSTED}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def policies_text(settings: SagemakerSettings, *, account: str = "*", region: str = "*", store: str = "") -> str:
    """All policies, with a line before each that says whose it is."""
    parts: Mapping[str, dict[str, Any]] = {
        "# whoever runs Stoker": driver_policy(settings, account=account, region=region, store=store),
        "# the role of jobs (role)": job_policy(account=account, region=region, store=store),
        "# who may take it (its trust policy)": trust_policy(),
    }
    return "\n".join(f"{head}\n{json.dumps(policy, indent=2)}" for head, policy in parts.items())


def _statements(
    rights: Sequence[tuple[Sequence[str], str]], account: str, region: str, store: str
) -> list[dict[str, Any]]:
    scheme, _, rest = store.partition("://")
    bucket, _, prefix = rest.partition("/") if scheme == "s3" else ("*", "", "")
    places = {
        "account": account,
        "region": region,
        "bucket": bucket or "*",
        "prefix": f"{prefix.strip('/')}/" if prefix.strip("/") else "",
    }
    return [
        {"Effect": "Allow", "Action": list(actions), "Resource": resource.format(**places)}
        for actions, resource in rights
    ]
