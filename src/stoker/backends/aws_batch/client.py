"""The calls to AWS Batch that the backend makes."""

from __future__ import annotations

from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.aws import PATIENCE, AwsClient, place_of

AT_ONCE: Final = 100
"""Jobs of one DescribeJobs: https://docs.aws.amazon.com/batch/latest/APIReference/API_DescribeJobs.html"""


class BatchClient(AwsClient):
    """The account and region that settings name."""

    def __init__(self, settings: BatchSettings, *, patience: float = PATIENCE) -> None:
        super().__init__(place_of("AWS Batch", settings), patience=patience)

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

    def end(self, job: str, reason: str) -> None:
        """End a job, whether it waits or runs: TerminateJob does both. Its container gets SIGTERM, and after the
        instance's `ECS_CONTAINER_STOP_TIMEOUT` (30 s) SIGKILL."""
        self.call("batch", "terminate_job", jobId=job, reason=reason)

    def queues(self, names: Iterable[str] = ()) -> list[Mapping[str, Any]]:
        """Queues by name or ARN; without names all."""
        chosen: dict[str, Any] = {"jobQueues": list(names)} if names else {}
        return list(self.pages("batch", "describe_job_queues", "jobQueues", **chosen))

    def environments(self) -> list[Mapping[str, Any]]:
        """All compute environments."""
        return list(self.pages("batch", "describe_compute_environments", "computeEnvironments"))
