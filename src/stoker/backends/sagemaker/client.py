"""The calls to SageMaker that the backend makes."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.aws import PATIENCE, AwsClient, AwsError, moment, place_of
from stoker.backends.sagemaker.settings import SagemakerSettings

LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"
"""Of all training jobs: https://docs.aws.amazon.com/sagemaker/latest/dg/logging-cloudwatch.html"""
PAGE: Final = 100
"""Jobs of one ListTrainingJobs: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ListTrainingJobs.html"""


class SagemakerClient(AwsClient):
    """The account and region that settings name."""

    def __init__(self, settings: SagemakerSettings, *, patience: float = PATIENCE) -> None:
        super().__init__(place_of("SageMaker", settings), patience=patience)

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
        yield from self.pages("sagemaker", "list_training_jobs", "TrainingJobSummaries", key="NextToken", **words)

    def live(self, part: str) -> Iterator[str]:
        """The names of jobs with `part` in them that still run or wait."""
        for row in self.named(part, "InProgress"):
            yield str(row["TrainingJobName"])

    def stop(self, name: str) -> None:
        """End a job: its containers get SIGTERM, and after 120 seconds SIGKILL. One that is over or gone is fine."""
        try:
            self.call("sagemaker", "stop_training_job", TrainingJobName=name)
        except AwsError as error:
            if error.code not in ("ValidationException", "ResourceNotFound"):
                raise

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
