"""Schedules by EventBridge Scheduler: its objects at moto's server, by botocore, and a driver that is a job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.aws_batch.cluster import BatchAccount
from tests.servers import postgres
from tests.servers.awsmodel import service, unlike
from tests.servers.postgres import Server
from tests.waiting import until

from stoker.backends.aws.api import AwsError
from stoker.backends.aws_batch.client import BatchClient
from stoker.store.database import Database
from stoker.store.schedules import Schedules

ROLES = """
schedule_role = "arn:aws:iam::123456789012:role/team/scheduler"
execution_role = "arn:aws:iam::123456789012:role/ecs"
profile = "team"
"""
TRAIN = """
    from stoker import pipeline, step


    @step(cache=False)
    def train(rate: float) -> float:
        print("trains by", rate)
        return rate


    @pipeline
    def training(rate: float = 0.5):
        train(rate)
"""
CONFIG = "[profile team]\n"
LOGIN = "[{}]\naws_access_key_id = tests\naws_secret_access_key = tests\n"
CREDENTIALS = LOGIN.format("default") + LOGIN.format("team")
HOME = "/root"
"""Of a container's user."""
DAY = 86400.0


@pytest.fixture
def server() -> Iterator[Server]:
    """A database that jobs reach by the name that they know it by."""
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    server = Server(programs)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def aws(project: Any, batch_account: BatchAccount, server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack is the account and the database."""
    for name, text in {**batch_account.environment, "DB_PASSWORD": "hush-hush", "PGHOSTADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, text)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    logins = project.folder.parent / "logins"
    logins.mkdir()
    for name, text in {"config": CONFIG, "credentials": CREDENTIALS}.items():
        (logins / name).write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(logins / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(logins / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    uri = server.uri.replace("stoker@127.0.0.1", "stoker:${DB_PASSWORD}@db.example.com")
    stack = batch_account.stack(f"s-{time.time_ns()}").replace("[stacks.batch]", f'[stacks.batch]\ndatabase = "{uri}"')
    # In place of the job's role, which the double does not give.
    stack = stack.replace("host_volumes = {", f'host_volumes = {{"{logins}" = "{HOME}/.aws", ')
    stack = stack.replace("[stacks.batch.settings.docker]", f"{ROLES}[stacks.batch.settings.docker]")
    return project.write({"stoker.toml": stack, "train.py": TRAIN})


def held(client: BatchClient, mark: str) -> tuple[Any, ...]:
    """What an account has of a schedule: itself, the text of its secret, its active job definitions."""
    found = []
    for service_name, operation, words in (
        ("scheduler", "get_schedule", {"Name": mark}),
        ("secretsmanager", "get_secret_value", {"SecretId": mark}),
    ):
        try:
            found.append(client.call(service_name, operation, **words))
        except AwsError as error:
            assert error.code == "ResourceNotFoundException"
            found.append(None)
    rows = client.pages("batch", "describe_job_definitions", "jobDefinitions", jobDefinitionName=mark, status="ACTIVE")
    return (*found, list(rows))


@pytest.mark.slow
@pytest.mark.timeout(900)  # two jobs, in each of which a driver sends another one
def test_a_job_of_eventbridge_is_the_driver(
    aws: Any, batch_account: BatchAccount, server: Server, long_form: bool
) -> None:
    client = batch_account.client()
    said = aws.stoker("schedule", "add", "0 6 * * 1-5", "train.py", "--rate", "0.25", "--zone", "UTC").stderr
    assert "'training' is added: the schedule stoker-training-" in said and "of EventBridge, with jobs on cpu-q" in said
    (mark,) = [row["Name"] for row in client.pages("scheduler", "list_schedules", "Schedules")]
    before, secret, (definition,) = held(client, mark)
    assert before["ScheduleExpression"] == "cron(0 6 ? * 2,3,4,5,6 *)"
    assert (before["ScheduleExpressionTimezone"], before["State"]) == ("UTC", "ENABLED")
    assert before["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:batch:submitJob"
    words = _as_batch_reads(json.loads(before["Target"]["Input"]))
    assert not list(unlike(words, service("batch").operation_model("SubmitJob").input_shape))
    shown = json.dumps([before, definition], default=str)
    assert "hush-hush" not in shown and "hush-hush" not in secret["SecretString"], "it is compressed there"

    database = Database(server.uri)
    Schedules(database).pause("training", paused=False, now=time.time() - 7 * DAY)
    database.close()
    for _ in range(2 if long_form else 1):  # EventBridge submits at least once
        job = client.submit(words)
        until(lambda job=job: client.jobs([job])[job]["status"] in ("SUCCEEDED", "FAILED"), "the driver's job")
        row = client.jobs([job])[job]
        stream = row["container"]["logStreamName"]
        lines = client.call("logs", "get_log_events", logGroupName="/aws/batch/job", logStreamName=stream)["events"]
        assert row["status"] == "SUCCEEDED", [line["message"] for line in lines]
    (run,) = json.loads(aws.stoker("runs", "--json").stdout)
    shown = json.loads(aws.stoker("show", run["id"], "--json").stdout)
    assert (run["status"], run["parameters"], shown["cause"][:24]) == (
        "succeeded",
        {"rate": 0.25},
        "schedule 'training', due",
    ), [line["message"] for line in lines]
    assert "trains by 0.25" in aws.stoker("logs", run["id"], "train").stdout

    aws.stoker("schedule", "add", "30 7 * * *", "train.py", "--zone", "UTC")
    changed, _, definitions = held(client, mark)
    assert (changed["ScheduleExpression"], len(definitions)) == ("cron(30 7 * * ? *)", 1)
    assert "does not have it" not in aws.stoker("schedule", "list").stderr
    aws.stoker("schedule", "pause", "training")
    assert held(client, mark)[0]["State"] == "DISABLED"
    aws.stoker("schedule", "resume", "training")
    client.call("scheduler", "delete_schedule", Name=mark)
    assert "platform does not have it" in aws.stoker("schedule", "list").stderr
    aws.stoker("schedule", "rm", "training")
    assert held(client, mark) == (None, None, [])
    client.close()


def _as_batch_reads(words: Mapping[str, str]) -> dict[str, str]:
    """Universal targets name parameters with a capital."""
    return {name[0].lower() + name[1:]: text for name, text in words.items()}


@pytest.mark.timeout(900)
def test_what_no_job_could_do_is_refused(
    aws: Any, batch_account: BatchAccount, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = (aws.folder / "stoker.toml").read_text()
    for old, new, words in (
        ("schedule_role =", "# ", ("names no schedule_role", "docs/guide/aws-batch.md")),
        ("execution_role =", "# ", ("names no execution_role", "hands the secret")),
        ("db.example.com", "localhost", ("the database server at localhost is another", "--on crontab")),
        ("database =", "# ", ("does not see this machine's database", "--on crontab")),
        ("s3://", "/tmp/", ("does not see the artifact store", "s3://BUCKET")),
    ):
        aws.write({"stoker.toml": stack.replace(old, new)})
        said = aws.stoker("schedule", "add", "0 6 * * *", "train.py", code=2).stderr
        assert all(word in said for word in words), said
    aws.write({"stoker.toml": stack})
    said = aws.stoker("schedule", "add", "0 6 1 * 1", "train.py", code=2).stderr
    assert "EventBridge takes one of the two" in said
