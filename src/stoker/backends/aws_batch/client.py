"""The calls to AWS Batch that the backend makes."""

from __future__ import annotations

from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.aws.api import AwsClient
from stoker.backends.aws_batch.definitions import run_prefix

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
