"""The calls to SageMaker that the backend makes."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.aws.api import AwsClient, AwsError, moment
from stoker.backends.sagemaker.causes import OVER
from stoker.backends.sagemaker.requests import run_prefix

LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"
"""Of all training jobs: https://docs.aws.amazon.com/sagemaker/latest/dg/logging-cloudwatch.html"""
PAGE: Final = 100
"""Jobs of one ListTrainingJobs: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ListTrainingJobs.html"""


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
