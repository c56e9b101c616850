"""The calls to SageMaker that the backend makes, and what is asked of an account outside of a run.

Two identities act: the one that runs Stoker (`DRIVER`), and the job's `role`, by which SageMaker pulls the image and
writes the log, and the step's code reads and writes the artifact store (`JOB`).
"""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.aws.api import AwsApi, AwsClient, AwsError, is_denied, moment
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
from stoker.backends.base.backend import Leftover, Preparation, ProbeRequest, Sweep
from stoker.backends.sagemaker.causes import OVER
from stoker.backends.sagemaker.requests import run_prefix
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import BackendError
from stoker.core.findings import Check

LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"
"""Of all training jobs: https://docs.aws.amazon.com/sagemaker/latest/dg/logging-cloudwatch.html"""
PAGE: Final = 100
"""Jobs of one ListTrainingJobs: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ListTrainingJobs.html"""
POLICY: Final = "`stoker stacks setup sagemaker` prints the least policy where one is missing"
TRUSTED: Final = "sagemaker.amazonaws.com"
"""Who takes the role of jobs: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html"""
_JOBS: Final = "arn:aws:sagemaker:{region}:{account}:training-job/*"
_LOGS: Final = f"arn:aws:logs:{{region}}:{{account}}:log-group:{LOG_GROUP}:*"
DRIVER: Final[Sequence[AwsRight]] = (
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
    *STORE,
)
"""What whoever runs Stoker calls, and on what: https://docs.aws.amazon.com/sagemaker/latest/dg/api-permissions-reference.html"""
JOB: Final[Sequence[AwsRight]] = (
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
    *STORE,
)
"""What a job's role is for: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-roles.html#sagemaker-roles-createtrainingjob-perms"""


class SagemakerClient(AwsClient):
    """SageMaker in the account and region that settings name."""

    title = "SageMaker"

    def create(self, request: Mapping[str, Any]) -> None:
        """Start a training job. One whose name there is already counts as started: names follow from what is asked."""
        try:
            self.call("sagemaker", "create_training_job", **request)
        except AwsError as error:
            if error.code != "ResourceInUse":
                raise

    def describe(self, name: str) -> Mapping[str, Any] | None:
        """A job by its name; None for one that SageMaker does not know."""
        try:
            answer: Mapping[str, Any] = self.call("sagemaker", "describe_training_job", TrainingJobName=name)
        except AwsError as error:
            if error.code == "ResourceNotFound" or is_unknown(error):
                return None
            raise
        return answer

    def named(self, part: str, status: str = "") -> Iterator[Mapping[str, Any]]:
        """Summaries of the jobs with `part` in their names, of one status or of all."""
        words: dict[str, Any] = {"NameContains": part, "MaxResults": PAGE}
        if status:
            words["StatusEquals"] = status
        yield from self.pages("sagemaker", "list_training_jobs", "TrainingJobSummaries", **words)

    def live(self, part: str) -> Iterator[str]:
        """The names of jobs with `part` in them that still run or wait."""
        for row in self.named(part, "InProgress"):
            yield str(row["TrainingJobName"])

    def end(self, job: str) -> None:
        """End a job: its containers get SIGTERM, and after 120 seconds SIGKILL. One that is over or gone is fine."""
        try:
            self.call("sagemaker", "stop_training_job", TrainingJobName=job)
        except AwsError as error:
            if error.code not in ("ValidationException", "ResourceNotFound"):
                raise

    def end_identified(self, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """End jobs by what a driver recorded; the names of those that were there."""
        for job in jobs:
            name = str(job.get("name", ""))
            row = self.describe(name) if name else None
            if row is not None and row.get("TrainingJobStatus") not in OVER:
                self.end(name)
                yield f"the training job {name}"

    def left(self, run: str) -> Iterator[tuple[str, bool]]:
        """The jobs of a run that went well or are not over: their names, and whether they run or wait."""
        for row in self.named(run_prefix(run)):
            if row["TrainingJobStatus"] not in ("Failed", "Stopped"):
                yield str(row["TrainingJobName"]), row["TrainingJobStatus"] != "Completed"

    def streams(self, name: str) -> list[str]:
        """The log streams of a job's instances, the oldest first: "JOB/algo-1-1700000000"; none where they may not be
        listed."""
        try:
            rows = list(
                self.pages(
                    "logs",
                    "describe_log_streams",
                    "logStreams",
                    logGroupName=LOG_GROUP,
                    logStreamNamePrefix=f"{name}/",
                )
            )
        except AwsError as error:
            if error.code == "ResourceNotFoundException" or error.denied:
                return []  # the first job of an account makes the group; without the right, lines come from the copy
            raise
        named = [row for row in rows if row.get("logStreamName")]
        return [
            str(row["logStreamName"]) for row in sorted(named, key=lambda row: moment(row.get("creationTime")) or 0)
        ]


def is_unknown(error: AwsError) -> bool:
    """Whether a ValidationException says that there is no such job: "Requested resource not found."."""
    return error.code == "ValidationException" and "not found" in error.words.lower()


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """For `stoker doctor --stack`: what `checks` finds, with an answer of AWS while a person waits."""
    with LEFT.asked(options) as (client, settings):
        yield from checks(client, settings, request.store)


def checks(api: AwsApi, settings: SagemakerSettings, store: str) -> Iterator[Check]:
    """What a stack with these settings finds."""
    return account_checks(api, settings, store, listed=_jobs_check(api), own=_role_check(api, settings), policy=POLICY)


def _jobs_check(api: AwsApi) -> Iterator[Check]:
    try:
        api.call("sagemaker", "list_training_jobs", MaxResults=1)
    except BackendError as error:
        fix = f"the account needs sagemaker:ListTrainingJobs; {POLICY}" if is_denied(error) else error.fix
        yield Check(name="training jobs", found="", problem=error.message, fix=fix)
    else:
        yield Check(name="training jobs", found="listed")


def _role_check(api: AwsApi, settings: SagemakerSettings) -> Iterator[Check]:
    if settings.get("role"):
        yield role_check(api, "role", str(settings.get("role")), TRUSTED)
    else:
        fix = "name one: role = 'arn:aws:iam::…:role/…'"
        yield Check(name="role", found="", problem="jobs have no role, and do not start without one", fix=fix)


def prepare(options: Mapping[str, Any], store: str, details: Mapping[str, str]) -> Preparation | None:
    """The rights that are missing."""
    with LEFT.asked(options) as (client, settings):
        return preparation(client, settings, store)


def preparation(api: AwsApi, settings: SagemakerSettings, store: str) -> Preparation | None:
    """The least policies where this identity may not list training jobs, or jobs have no role; None otherwise."""
    identity = api.call("sts", "get_caller_identity")
    what = "" if settings.get("role") else "a role of training jobs, with these policies; name it as `role`"
    try:
        api.call("sagemaker", "list_training_jobs", MaxResults=1)
    except BackendError as error:
        if not is_denied(error):
            raise
        what = f"rights for {identity.get('Arn')}: {error.message}"
    if not what:
        return None
    account, region = str(identity.get("Account") or "*"), str(settings.get("region", "*"))
    places = {"account": account, "region": region, "store": store}
    policies = {
        "whoever runs Stoker": policy(DRIVER, **places, passed=settings.get("role", ""), trusted=TRUSTED),
        "the role of jobs (role)": policy(JOB, **places),
        "who may take it (its trust policy)": trust_policy(TRUSTED),
    }
    return Preparation(text=policies_text(policies), what=what, apply=None)


# What runs left: SageMaker keeps the records of jobs for ever.

LEFT: Final = Leftovers(SagemakerClient, SagemakerSettings)
left_jobs, end_left, end_recorded = LEFT.left_jobs, LEFT.end_left, LEFT.end_recorded


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """End the jobs of this database's runs that nobody continues."""
    jobs: set[str] = set()
    ended = tuple(run_prefix(run) for run in set(sweep.ours) - sweep.kept)

    def clean(client: SagemakerClient) -> None:
        for name in list(client.live("stoker-")):
            if name.startswith(ended):
                jobs.add(name)
                if not sweep.dry_run:
                    client.end(name)

    LEFT.sweep(parts, sweep, clean)
    yield Leftover(kind="sagemaker_jobs", noun="training job", rest="of runs on SageMaker", count=len(jobs))
