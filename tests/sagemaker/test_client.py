"""The client and the platform against the double: names that are taken, jobs that are gone, quotas, rights."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from tests.sagemaker.account import IMAGE, ROLE, SagemakerAccount
from tests.sagemaker.test_requests import BASE, SITE, job_of
from tests.waiting import until

from stoker.backends.aws.api import AwsError
from stoker.backends.aws.outside import trust_policy
from stoker.backends.base.platforms import JobReport
from stoker.backends.sagemaker import backend
from stoker.backends.sagemaker import client as account
from stoker.backends.sagemaker.backend import SagemakerPlatform, waits_for
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import Away, BackendError


@pytest.fixture
def client(sagemaker_account: SagemakerAccount, monkeypatch: pytest.MonkeyPatch) -> Iterator[SagemakerClient]:
    for name, text in sagemaker_account.environment.items():
        monkeypatch.setenv(name, text)
    client = sagemaker_account.client()
    yield client
    sagemaker_account.control(hold=False, quota=1000, silent="", closed=False)
    client.close()


def request(name: str, bucket: str) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["/bin/echo", "a line"],
        },
        "InputDataConfig": [
            {
                "ChannelName": "stoker",
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"{bucket}/"}},
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"{bucket}/output"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    }


def test_a_name_is_taken_once(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    bucket = sagemaker_account.bucket(f"c-{uuid.uuid4().hex[:12]}")
    sagemaker_account.control(hold=True)
    run = f"stoker-{uuid.uuid4().hex[:8]}"
    names = [f"{run}-{number}" for number in range(5)]
    for name in names:
        client.create(request(name, bucket))
        client.create(request(name, bucket))
    assert sorted(str(row["TrainingJobName"]) for row in client.named(run)) == names, "from three pages"
    assert sorted(client.live(run)) == names
    row = client.describe(names[0])
    assert row is not None and row["SecondaryStatus"] == "Starting"
    for name in names:
        client.end(name)
    sagemaker_account.control(hold=False)
    client.end("stoker-never-was")
    assert client.describe("stoker-never-was") is None
    assert client.streams("stoker-never-was") == []


def test_what_the_service_refuses(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    with pytest.raises(AwsError, match="does not fit") as caught:
        client.create(request("a_b", "s3://bucket"))
    assert not waits_for(caught.value)
    none = AwsError("sagemaker create_training_job", "InsufficientInstanceCapacity", "no ml.p5.48xlarge now")
    assert "no ml.p5.48xlarge now" in waits_for(none)


@pytest.fixture
def watched(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> SagemakerPlatform:
    """The platform that a driver has, with a bucket of its own."""
    store = f"{sagemaker_account.bucket(f'p-{uuid.uuid4().hex[:12]}')}/store"
    return SagemakerPlatform(attrs.evolve(SITE, artifacts=store, bundle=""), {}, client)


def looked_at(platform: SagemakerPlatform, name: str, handle: Any, ready: Callable[[JobReport], Any]) -> JobReport:
    """The first report that is `ready`."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        report = platform.look({name: handle}).get(name)
        if report is not None and ready(report):
            return report
        time.sleep(0.05)
    raise AssertionError("no such report came")


def idle(account: SagemakerAccount) -> None:
    """Wait until no job of other tests goes on."""
    until(lambda: not account.live(), account.live)


def test_a_quota_is_waited_for_or_named(watched: SagemakerPlatform, sagemaker_account: SagemakerAccount) -> None:
    idle(sagemaker_account)
    sagemaker_account.control(hold=True, quota=2)
    run = f"q{uuid.uuid4().hex[:8]}"
    job, large = job_of({}, BASE, run=run), job_of({"nodes": 3}, BASE, run=f"{run}-large")
    answers = watched.send([job, large])
    refused = answers[large.name]
    assert (refused.state, refused.cause) == ("failed", "refused"), "more than the account ever has"
    assert "is 2, 1 of it in use, and the job needs 3" in refused.message
    assert "ask for 'ml.m5.large for training job usage' in Service Quotas" in refused.message
    sagemaker_account.control(quota=1)
    second = attrs.evolve(job, name=f"{run}/train/2", attempt=2)
    (waits,) = watched.send([second]).values()
    assert waits.state == "queued" and "is 1, 1 of it in use" in waits.message, waits
    before = sagemaker_account.control()["calls"]["CreateTrainingJob"]
    assert watched.send([second]) == {second.name: waits}, "AWS is not asked at every turn"
    assert sagemaker_account.control()["calls"]["CreateTrainingJob"] == before
    watched.end({job.name: answers[job.name]}, grace=0.0)


def test_want_of_instances_uses_up_no_retry(
    watched: SagemakerPlatform, sagemaker_account: SagemakerAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "SHORTAGES", (0.0, 0.0))
    monkeypatch.setattr(backend, "FULL", 0.0)
    idle(sagemaker_account)
    sagemaker_account.control(hold=True)
    job = job_of({}, BASE, run=f"c{uuid.uuid4().hex[:8]}")
    blocker = job_of({}, BASE, run=f"d{uuid.uuid4().hex[:8]}")
    handles = {**watched.send([job]), **watched.send([blocker])}
    handle = handles[job.name]
    first = handle.name
    sagemaker_account.control(short=first, quota=1)
    report = looked_at(watched, job.name, handle, lambda one: "no such instances" in one.message)
    assert "Unable to provision" in report.message and report.status is None and not report.running
    report = looked_at(watched, job.name, handle, lambda one: "quota" in one.message)
    assert "'ml.m5.large for training job usage'" in report.message and handle.name == first
    sagemaker_account.control(quota=1000)
    report = looked_at(watched, job.name, handle, lambda one: one.events)
    assert handle.name != first and report.events[0].note == "requeued" and report.status is None
    assert handle.name in sagemaker_account.live()
    # As often as it is worth while; then the reason is the step's end.
    for shortage in (2, 3):
        sagemaker_account.control(short=handle.name)
        report = looked_at(watched, job.name, handle, lambda one: one.events or one.status)
        assert (report.status is None) == (shortage == 2)
    assert report.status is not None and report.status.cause == "quota" and "training_plan" in report.status.message
    watched.end({blocker.name: handles[blocker.name]}, grace=0.0)


def test_a_call_without_an_answer_loses_no_lines(
    watched: SagemakerPlatform, sagemaker_account: SagemakerAccount
) -> None:
    """One job's lines are read, then AWS does not answer for the other's: the next look has both."""
    first, second = (job_of({}, BASE, run=f"{word}{uuid.uuid4().hex[:8]}") for word in "ab")
    handles = watched.send([first, second])
    idle(sagemaker_account)
    sagemaker_account.control(silent=handles[second.name].name)
    with pytest.raises(Away):
        watched.look(handles)
    assert handles[first.name].streams, "its lines were read"
    sagemaker_account.control(silent="")
    reports = watched.look(handles)
    for name in handles:
        lines = b"".join(data for _, _, data in reports[name].output)
        assert b"FileNotFoundError" in lines, lines


def test_without_the_right_to_read_logs_lines_come_from_the_copy(
    watched: SagemakerPlatform, sagemaker_account: SagemakerAccount
) -> None:
    sagemaker_account.control(closed=True)
    job = job_of({}, BASE, run=f"l{uuid.uuid4().hex[:8]}")
    handle = watched.send([job])[job.name]
    report = looked_at(watched, job.name, handle, lambda one: one.status)
    assert b"FileNotFoundError" in b"".join(data for _, _, data in report.output), report


def test_doctor(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    trust = json.dumps(trust_policy(account.TRUSTED))
    name = f"r-{uuid.uuid4().hex[:8]}"
    role = client.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    store = sagemaker_account.bucket(f"d-{uuid.uuid4().hex[:12]}")
    lines = {each.name: each for each in account.checks(client, SagemakerSettings(role=role), store)}
    assert {name for name, each in lines.items() if each.problem} == set(), lines
    assert set(lines) == {"account", "training jobs", "role", "store"}
    bad = {
        each.name: each.problem for each in account.checks(client, SagemakerSettings(role=ROLE), "s3://not-there/store")
    }
    assert "training" in bad["role"] and "not-there" in bad["store"]
    assert any(each.problem for each in account.checks(client, SagemakerSettings(), store) if each.name == "role")
    assert account.preparation(client, SagemakerSettings(role=role), store) is None
    without = account.preparation(client, SagemakerSettings(), store)
    assert without is not None and "a role of training jobs" in without.what and "sts:AssumeRole" in without.text


class Denied:
    """An account that may ask who it is, and nothing else."""

    def call(self, service: str, operation: str, **arguments: Any) -> Any:
        """Answers as AWS does."""
        if service == "sts":
            return {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me"}
        raise AwsError(f"{service} {operation}", "AccessDeniedException", "not authorized")


def test_least_rights_are_printed() -> None:
    prepared = account.preparation(Denied(), SagemakerSettings(role=ROLE, region="eu-west-1"), "s3://bucket/store")
    assert prepared is not None and prepared.apply is None
    for words in (
        "arn:aws:sagemaker:eu-west-1:123456789012:training-job/*",
        "iam:PassRole",
        "sagemaker.amazonaws.com",
        "arn:aws:s3:::bucket/store/*",
        "sagemaker:AddTags",
    ):
        assert words in prepared.text
    lines = {each.name: each for each in account.checks(Denied(), SagemakerSettings(role=ROLE), "s3://bucket")}
    assert "sagemaker:ListTrainingJobs" in lines["training jobs"].fix


def test_an_account_that_does_not_answer_is_said() -> None:
    class Away:
        def call(self, service: str, operation: str, **arguments: Any) -> Any:
            raise BackendError("no credentials", fix="log in")

    (line,) = account.checks(Away(), SagemakerSettings(), "s3://bucket")
    assert line.problem == "no credentials" and line.fix == "log in"


def test_recorded_jobs_are_ended(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    bucket = sagemaker_account.bucket(f"e-{uuid.uuid4().hex[:12]}")
    sagemaker_account.control(hold=True)
    name = f"stoker-{uuid.uuid4().hex[:8]}"
    client.create(request(name, bucket))
    options = {"region": "us-east-1", "endpoint_url": sagemaker_account.address}
    ended = account.end_recorded(options, [{"job": "x", "name": name}, {"job": "y", "name": "stoker-gone"}])
    assert ended == [f"the training job {name}"]
