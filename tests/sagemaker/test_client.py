"""The client and the platform against the double: names that are taken, jobs that are gone, quotas, rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.sagemaker.account import IMAGE, ROLE, SagemakerAccount

from stoker.backends.base.aws import AwsError
from stoker.backends.sagemaker import leftovers, probe, rights
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.platform import waits_for_quota
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import BackendError


@pytest.fixture
def client(sagemaker_account: SagemakerAccount, monkeypatch: pytest.MonkeyPatch) -> Iterator[SagemakerClient]:
    for name, text in sagemaker_account.environment.items():
        monkeypatch.setenv(name, text)
    client = sagemaker_account.client()
    yield client
    sagemaker_account.control(hold=False, quota=1000)
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
        client.stop(name)
    sagemaker_account.control(hold=False)
    client.stop("stoker-never-was")
    assert client.describe("stoker-never-was") is None
    assert client.streams("stoker-never-was") == []


def test_what_the_service_refuses(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    with pytest.raises(AwsError, match="does not fit") as caught:
        client.create(request("a_b", "s3://bucket"))
    assert not waits_for_quota(caught.value)
    sagemaker_account.control(quota=0)
    with pytest.raises(AwsError, match="service limit") as caught:
        client.create(request(f"stoker-{uuid.uuid4().hex}", "s3://bucket"))
    assert not waits_for_quota(caught.value), "nothing runs that could end: the account may not at all"
    full = AwsError("x", "ResourceLimitExceeded", "is 2 Instances, with current utilization of 2 Instances")
    assert waits_for_quota(full)


def test_doctor(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    trust = json.dumps(rights.trust_policy())
    name = f"r-{uuid.uuid4().hex[:8]}"
    role = client.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    store = sagemaker_account.bucket(f"d-{uuid.uuid4().hex[:12]}")
    lines = {each.name: each for each in probe.checks(client, SagemakerSettings(role=role), store)}
    assert {name for name, each in lines.items() if each.problem} == set(), lines
    assert set(lines) == {"account", "training jobs", "role", "store"}
    bad = {
        each.name: each.problem for each in probe.checks(client, SagemakerSettings(role=ROLE), "s3://not-there/store")
    }
    assert "training" in bad["role"] and "not-there" in bad["store"]
    assert any(each.problem for each in probe.checks(client, SagemakerSettings(), store) if each.name == "role")
    assert probe.prepare(client, SagemakerSettings(role=role), store) is None
    without = probe.prepare(client, SagemakerSettings(), store)
    assert without is not None and "a role of training jobs" in without.what and "sts:AssumeRole" in without.text


class Denied:
    """An account that may ask who it is, and nothing else."""

    def call(self, service: str, operation: str, **arguments: Any) -> Any:
        """Answers as AWS does."""
        if service == "sts":
            return {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me"}
        raise AwsError(f"{service} {operation}", "AccessDeniedException", "not authorized")


def test_least_rights_are_printed() -> None:
    prepared = probe.prepare(Denied(), SagemakerSettings(role=ROLE, region="eu-west-1"), "s3://bucket/store")
    assert prepared is not None and prepared.apply is None
    for words in (
        "arn:aws:sagemaker:eu-west-1:123456789012:training-job/*",
        "iam:PassRole",
        "sagemaker.amazonaws.com",
        "arn:aws:s3:::bucket/store/*",
        "sagemaker:AddTags",
    ):
        assert words in prepared.text
    lines = {each.name: each for each in probe.checks(Denied(), SagemakerSettings(role=ROLE), "s3://bucket")}
    assert "sagemaker:ListTrainingJobs" in lines["training jobs"].fix


def test_an_account_that_does_not_answer_is_said() -> None:
    class Away:
        def call(self, service: str, operation: str, **arguments: Any) -> Any:
            raise BackendError("no credentials", fix="log in")

    (line,) = probe.checks(Away(), SagemakerSettings(), "s3://bucket")
    assert line.problem == "no credentials" and line.fix == "log in"


def test_recorded_jobs_are_ended(client: SagemakerClient, sagemaker_account: SagemakerAccount) -> None:
    bucket = sagemaker_account.bucket(f"e-{uuid.uuid4().hex[:12]}")
    sagemaker_account.control(hold=True)
    name = f"stoker-{uuid.uuid4().hex[:8]}"
    client.create(request(name, bucket))
    options = {"region": "us-east-1", "endpoint_url": sagemaker_account.address}
    ended = leftovers.end_recorded(options, [{"job": "x", "name": name}, {"job": "y", "name": "stoker-gone"}])
    assert ended == [f"the training job {name}"]
