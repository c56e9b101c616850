"""Schedules as those of EventBridge Scheduler: each submits a job of AWS Batch, which is the driver.

What the driver needs, with the credentials of the database, is a secret of AWS Secrets Manager, which ECS hands to the
job's container; Stoker itself and the user's code are in the artifact store. A schedule, its secret and its job
definition have one name.

https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

from stoker.backends.aws.api import PERSON_WAITS, AwsError, usual_region
from stoker.backends.aws.jobs import PASSED, TAG, WORKER
from stoker.backends.aws_batch import driverjob
from stoker.backends.aws_batch.backend import PLACES
from stoker.backends.aws_batch.client import BatchClient, read_account
from stoker.backends.aws_batch.definitions import BatchRequest, job_definition
from stoker.backends.aws_batch.queues import NoQueue, QueueChoice, choose, queues_of_settings
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import RESTARTED_BY, SENDS_LOGS, DriverStart, TimerJob
from stoker.backends.base.drivers import document, loopback
from stoker.backends.base.mailboxes import asked
from stoker.backends.base.timers import PREFIX
from stoker.backends.kubernetes.request.check import OWN_IMAGE
from stoker.backends.kubernetes.request.jobs import user_name, worker_parts
from stoker.backends.kubernetes.request.pods import program
from stoker.backends.kubernetes.running import driverpod
from stoker.core.errors import BackendError, UsageError
from stoker.core.resources import ResourceSettings
from stoker.store import notes

START: Final = "STOKER_START"
"""The variable with what the driver needs."""
TARGET: Final = "arn:{partition}:scheduler:::aws-sdk:batch:submitJob"
TITLE: Final = "stoker schedule"
"""Begins the description of every schedule of Stoker's (`TimerJob.title`)."""
LONGEST: Final = 512
"""Characters of a description: https://docs.aws.amazon.com/scheduler/latest/APIReference/API_CreateSchedule.html"""
CPU: Final = 0.25
MEMORY: Final = 1 << 30
"""What a driver's job asks for: it computes while steps begin and end, and one of ten thousand steps uses 200 MB."""
_KEPT: Final = (
    *("region", "profile", "endpoint_url", "platform", "share_identifier", "executable", "iam_role", "execution_role"),
    *("repository_credentials", "user", "host_volumes", "efs_volumes", "log_driver", "log_options", "aws_batch_tags"),
    *("assign_public_ip", "platform_version", "cpu_architecture"),
)
"""Fields of the stack's settings that hold for a driver's job, too."""
_ABSENT: Final = "ResourceNotFoundException"
_PROFILE: Final = re.compile(r'"profile" = "([\w.@ -]+)"')


class EventBridge:
    """The schedules of an account and region."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._settings = BatchSettings(**options)

    def check(self, job: TimerJob) -> None:
        """It takes what EventBridge's six fields can say, and a driver that a container can be."""
        job.cron.eventbridge()
        facts = _start(job).facts
        if facts.database.startswith("sqlite:"):
            raise UsageError(
                "the schedule's driver is a job of AWS Batch, which does not see this machine's database "
                f"{facts.database.partition('://')[2]}",
                fix='set database = "postgresql://…" in the stack, a server that jobs and you reach; or --on crontab',
            )
        if place := loopback(facts.database):
            raise UsageError(
                f"the schedule's driver is a job of AWS Batch, for which the database server at {place} is another",
                fix="name the server in the stack's database as jobs reach it, or --on crontab",
            )
        if "://" not in facts.artifacts.removeprefix("file://"):
            raise UsageError(
                f"the schedule's driver is a job of AWS Batch, which does not see the artifact store {facts.artifacts}",
                fix="artifact_store = 's3://BUCKET/…' of the stack, or --on crontab",
            )
        for field, what in (("schedule_role", "submits the job"), ("execution_role", "hands the secret to it")):
            if not self._settings.get(field):
                raise UsageError(
                    f"the stack names no {field}, the role that {what}",
                    fix=f"{field} = 'arn:aws:iam::…:role/…' of the orchestrator, with the policy of "
                    "docs/guide/aws-batch.md; or --on crontab",
                )

    def put(self, job: TimerJob) -> str:
        """Create the schedule with its secret and its job definition, or change those that are there."""
        self.check(job)
        with self._reached() as client:
            before = _existing(client, job.mark)
            if before is not None and not str(before.get("Description", "")).startswith(TITLE):
                raise BackendError(
                    f"EventBridge's schedule {job.mark} is there, and is not Stoker's",
                    fix="give the schedule another --name",
                )
            start = _start(job)
            choice = self._queue(client)
            worker = f"{PLACES.root(start.facts.artifacts)}/{os.path.basename(start.code.bundle)}.gz"
            data = b"".join(worker_parts(start.code.bundle))
            if asked("worker", lambda: notes.get(worker)) is None:
                asked("worker", lambda: notes.put(worker, data))
            try:
                secret = _put_secret(client, job.mark, self._start_text(start))
                body = definition(self._settings, start, choice, secret=secret, worker=worker)
                arn = client.register(body)
                words = schedule(self._settings, job, queue=choice.queue, definition=arn)
                client.call("scheduler", "update_schedule" if before else "create_schedule", **words)
            except BaseException:  # also an interrupt leaves nothing behind
                if before is None:
                    with contextlib.suppress(BackendError):
                        _remove(client, job.mark)
                raise
            _deregister(client, job.mark, but=arn)
        return f"the schedule {job.mark} of EventBridge, with jobs on {choice.queue}"

    def remove(self, mark: str) -> None:
        """Delete the schedule with its secret and its definition; jobs that it has submitted go on."""
        with self._reached() as client:
            before = _existing(client, mark)
            if before is None or str(before.get("Description", "")).startswith(TITLE):
                _remove(client, mark)

    def marks(self) -> list[str]:
        """The schedules that are Stoker's and enabled."""
        with self._reached() as client:
            rows = client.pages("scheduler", "list_schedules", "Schedules", NamePrefix=PREFIX)
            return [str(row["Name"]) for row in rows if row.get("State") == "ENABLED"]

    @contextlib.contextmanager
    def _reached(self) -> Iterator[BatchClient]:
        with contextlib.closing(BatchClient(self._settings, patience=PERSON_WAITS)) as client:
            yield client

    def _queue(self, client: BatchClient) -> QueueChoice:
        settings = driver_settings(self._settings)
        known = queues_of_settings(self._settings) or read_account(client, self._settings).queues
        choice = choose(ResourceSettings(cpu_count=CPU), settings, known)
        if isinstance(choice, NoQueue):
            raise BackendError(f"the driver {choice.what}: {choice.why}", fix=choice.fix)
        return choice

    def _start_text(self, start: DriverStart) -> str:
        own = {"LOGNAME": user_name(), RESTARTED_BY: "", SENDS_LOGS: "1"}
        told = document(start, image=_image(self._settings), environment=own)
        return base64.b64encode(gzip.compress(json.dumps(told, separators=(",", ":")).encode(), 9, mtime=0)).decode()


def timer(options: Mapping[str, Any]) -> EventBridge:
    """What starts schedules in an account, by settings of the stack."""
    return EventBridge(options)


# What is sent: pure


def driver_settings(settings: BatchSettings) -> BatchSettings:
    """The stack's settings as far as they are a driver's, with its own."""
    kept = {name: value for name in _KEPT if (value := settings.get(name)) is not None}
    own = settings.get("driver", {})
    queue = own.get("queue") or settings.get("queue")
    return BatchSettings(
        **{
            **kept,
            **({"queue": queue} if queue else {}),
            **({"iam_role": own["iam_role"]} if own.get("iam_role") else {}),
        }
    )


def definition(
    settings: BatchSettings, start: DriverStart, choice: QueueChoice, *, secret: str, worker: str
) -> dict[str, Any]:
    """The arguments of RegisterJobDefinition for a schedule's driver."""
    own = settings.get("driver", {})
    profiles = ",".join(dict.fromkeys(_PROFILE.findall(start.stack)))
    region = settings.get("region") or usual_region()
    request = BatchRequest(
        resources=ResourceSettings(cpu_count=own.get("cpu_count") or CPU, memory=own.get("memory") or MEMORY),
        settings=driver_settings(settings),
        image=_image(settings),
        command=(settings.get("executable", "python3"), "-c", program_text()),
        environment={
            **{name: os.environ[name] for name in PASSED if os.environ.get(name)},
            "AWS_DEFAULT_REGION": region,
            WORKER: worker,
            **({"AWS_PROFILES": profiles} if profiles else {}),
        },
        secrets={START: secret},
        fargate=choice.fargate,
    )
    body = job_definition(request)
    # `stoker gc` removes definitions of steps that no job uses.
    tags = {**body["tags"], TAG: "schedule"}
    return {**body, "jobDefinitionName": start.name, "tags": tags, "retryStrategy": {"attempts": 1}}


def schedule(settings: BatchSettings, job: TimerJob, *, queue: str, definition: str) -> dict[str, Any]:
    """The arguments of CreateSchedule and of UpdateSchedule. Universal targets take the API's names in capitals."""
    _, partition, _, _, account, *_ = definition.split(":")
    role, share = str(settings.get("schedule_role")), settings.get("share_identifier")
    target = {"JobName": job.mark, "JobQueue": queue, "JobDefinition": definition}
    return {
        "Name": job.mark,
        "Description": job.title[:LONGEST],
        "ScheduleExpression": job.cron.eventbridge(),
        "ScheduleExpressionTimezone": job.zone,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "State": "DISABLED" if job.paused else "ENABLED",
        "Target": {
            "Arn": TARGET.format(partition=partition),
            "RoleArn": role if role.startswith("arn:") else f"arn:{partition}:iam::{account}:role/{role}",
            "Input": json.dumps({**target, **({"ShareIdentifier": share} if share else {})}),
            # A second submission would be a second driver, which finds that the first has the due time.
            "RetryPolicy": {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 3600},
        },
    }


def program_text() -> str:
    """The text of the job's program."""
    shared, _, _ = program(driverpod).partition('\nif __name__ == "__main__"')
    own = Path(driverjob.__file__).read_text(encoding="utf-8").partition("annotations\n")[2]
    return shared + re.sub(r"(?m)^from stoker\..*$", "drive = main", own)


def _image(settings: BatchSettings) -> str:
    return str(settings.get("driver", {}).get("image") or settings.get("image") or OWN_IMAGE)


def _start(job: TimerJob) -> DriverStart:
    if job.start is None:
        raise UsageError("the schedule names no driver that a job could be")
    return job.start()


# What is there


def _existing(client: BatchClient, mark: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = client.call("scheduler", "get_schedule", Name=mark)
    except AwsError as error:
        if error.code == _ABSENT:
            return None
        raise
    return found


def _put_secret(client: BatchClient, mark: str, text: str) -> str:
    """Set the secret's text; its ARN."""
    try:
        return str(client.call("secretsmanager", "put_secret_value", SecretId=mark, SecretString=text)["ARN"])
    except AwsError as error:
        if error.code != _ABSENT:
            raise
    tags = [{"Key": TAG, "Value": "schedule"}]
    return str(client.call("secretsmanager", "create_secret", Name=mark, SecretString=text, Tags=tags)["ARN"])


def _remove(client: BatchClient, mark: str) -> None:
    """Delete all that a schedule has; what is gone is fine. It is told anew what it needs when it is added again."""
    for service, operation, words in (
        ("scheduler", "delete_schedule", {"Name": mark}),
        ("secretsmanager", "delete_secret", {"SecretId": mark, "ForceDeleteWithoutRecovery": True}),
    ):
        try:
            client.call(service, operation, **words)
        except AwsError as error:
            if error.code != _ABSENT:
                raise
    _deregister(client, mark)


def _deregister(client: BatchClient, mark: str, *, but: str = "") -> None:
    rows = client.pages("batch", "describe_job_definitions", "jobDefinitions", jobDefinitionName=mark, status="ACTIVE")
    for arn in [str(row["jobDefinitionArn"]) for row in rows]:
        if arn != but:
            client.deregister(arn)
