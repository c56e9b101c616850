"""Reading an account, proving a plan against it, `doctor`, and setting a stack up: through boto3, on moto's server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import boto3
import pytest
from botocore.exceptions import ClientError
from tests.aws_batch.test_check import IMAGE, plan_of
from tests.servers.s3 import S3, running

from stoker.backends.aws import api as awssettings
from stoker.backends.aws.outside import STORE, policy, trust_policy
from stoker.backends.aws_batch import client as outside
from stoker.backends.aws_batch import registration
from stoker.backends.aws_batch.client import prove, read_account
from stoker.backends.aws_batch.queues import QueueChoice, choose
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.errors import BackendError, SettingsError
from stoker.core.findings import Check
from stoker.core.resources import ResourceSettings


class Refused(BackendError):
    """A refusal with the service's code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen
class Direct:
    """Calls the services by boto3; actions of `denied` are refused as IAM refuses them."""

    environment: Mapping[str, str]
    denied: frozenset[str] = frozenset()
    calls: list[str] = attrs.field(factory=list)

    def call(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        self.calls.append(operation)
        if operation in self.denied:
            raise Refused(f"User is not authorized to perform: {service}:{operation}", "AccessDeniedException")
        try:
            answer: Mapping[str, Any] = getattr(self.client(service), operation)(**arguments)
            return answer
        except ClientError as error:
            raise Refused(str(error), error.response["Error"]["Code"]) from error

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="tests",
            aws_secret_access_key="tests",
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with running(tmp_path_factory.mktemp("moto")) as one:
        _fill(Direct(one.environment))
        one.bucket("store")
        yield one


@pytest.fixture
def api(server: S3) -> Direct:
    return Direct(server.environment)


def _fill(api: Direct) -> None:
    """An account with three queues, two roles, an image and a log group."""
    trust = json.dumps(trust_policy(outside.TRUSTED))
    role = api.call("iam", "create_role", RoleName="step", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    other = trust.replace(outside.TRUSTED, "ec2.amazonaws.com")
    api.call("iam", "create_role", RoleName="instance", AssumeRolePolicyDocument=other)
    profile = api.call("iam", "create_instance_profile", InstanceProfileName="p")["InstanceProfile"]["Arn"]
    subnet = api.call("ec2", "describe_subnets")["Subnets"][0]["SubnetId"]
    group = api.call("ec2", "describe_security_groups")["SecurityGroups"][0]["GroupId"]
    for name, types, fields in (
        ("gpu", ["p4d.24xlarge"], {}),
        ("trn", ["trn1.32xlarge"], {}),
        ("cpu", [], {"type": "FARGATE"}),
        ("off", ["p5.48xlarge"], {}),
    ):
        resources: dict[str, Any] = {"maxvCpus": 256, "subnets": [subnet], "securityGroupIds": [group], "type": "EC2"}
        resources.update({"instanceTypes": types, "instanceRole": profile, "minvCpus": 0} if types else {})
        arn = api.call(
            "batch",
            "create_compute_environment",
            computeEnvironmentName=name,
            type="MANAGED",
            state="DISABLED" if name == "off" else "ENABLED",
            computeResources={**resources, **fields},
            serviceRole=role,
        )["computeEnvironmentArn"]
        order = [{"order": 1, "computeEnvironment": arn}]
        api.call(
            "batch",
            "create_job_queue",
            jobQueueName=f"{name}-q",
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=order,
        )
    api.call("ecr", "create_repository", repositoryName="train")
    api.call("logs", "create_log_group", logGroupName="/team/steps")


def test_an_account_is_read_and_a_queue_chosen(api: Direct) -> None:
    account = read_account(api, BatchSettings())
    texts = sorted(each.text for each in account.queues)
    assert texts == [
        "cpu-q (Fargate)",
        "gpu-q (p4d.24xlarge: 8 × A100)",
        "off-q (off is DISABLED)",
        "trn-q (trn1.32xlarge: 16 × trainium)",
    ]
    for words, name in (
        ({"accelerators": "A100:4"}, "gpu-q"),
        ({"accelerators": "trainium:1"}, "trn-q"),
        ({}, "cpu-q"),
    ):
        choice = choose(ResourceSettings(**words), BatchSettings(), account.queues)
        assert isinstance(choice, QueueChoice) and choice.queue == name
    some = read_account(api, BatchSettings(queues="gpu-q", queue="cpu-q"))
    assert {each.name for each in some.queues} == {"gpu-q", "cpu-q"}


def test_a_plan_is_proved_against_the_account(api: Direct) -> None:
    options = {**IMAGE, "queues": {"gpu-q": ["p4d.24xlarge"], "trn-q": ["trn1.2xlarge"]}}
    steps = [
        plan_of({"accelerators": "A100:8"}, {}),
        plan_of({"accelerators": "H100:8"}, {}),
        plan_of({"accelerators": "trainium:1"}, {}),
        plan_of({}, {"queue": "nowhere"}),
    ]
    [none, other, nowhere] = prove(api, options, steps)
    assert (none.level, none.code) == ("error", "STK314")
    assert "gpu-q (p4d.24xlarge: 8 × A100), trn-q (trn1.32xlarge: 16 × trainium) holds H100:8" in none.what
    assert other.level == "warning" and "trn1.32xlarge" in other.what and "trn1.2xlarge" in other.what
    assert nowhere.level == "error" and "which the account has not" in nowhere.what
    denied = Direct(api.environment, frozenset({"describe_job_queues"}))
    [silent] = prove(denied, IMAGE, steps[:1])
    assert (silent.level, silent.code) == ("warning", "STK318") and "not authorized" in silent.why


def checks(api: Direct, store: str = "s3://store/team", **settings: Any) -> dict[str, Check]:
    return {one.name: one for one in outside.checks(api, BatchSettings(**settings), store)}


def test_doctor(api: Direct) -> None:
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"
    lines = checks(
        api,
        region="us-east-1",
        iam_role="arn:aws:iam::123456789012:role/step",
        execution_role="arn:aws:iam::123456789012:role/instance",
        image=image,
        log_options=["awslogs-group:/team/steps"],
    )
    assert "123456789012, us-east-1, as arn:aws:sts::123456789012" in lines["account"].found
    assert lines["queue gpu-q"].found == "gpu-q (p4d.24xlarge: 8 × A100); gpu up to 256 vCPUs"
    assert lines["queue off-q"].problem == "no compute environment of off-q works: off is DISABLED"
    assert lines["accelerators"].found == "A100 (up to 8 on an instance), trainium (up to 16 on an instance)"
    assert lines["iam_role"].found.endswith("role/step") and not lines["iam_role"].problem
    assert lines["execution_role"].problem == "the role instance cannot be taken by jobs"
    assert "ImageNotFound" in lines["image"].problem
    assert lines["store"].found == "s3://store/team, listed and written"
    assert lines["log group"].found == "/team/steps"


def test_doctor_where_things_are_missing(api: Direct) -> None:
    lines = checks(
        api,
        "s3://nowhere",
        queue="gone",
        iam_role="arn:aws:iam::123456789012:role/none",
        log_options={"awslogs-group": "/none"},
    )
    assert lines["queue gone"].problem == "there is no queue 'gone' for containers"
    assert "NoSuchEntity" in lines["iam_role"].problem and "NoSuchBucket" in lines["store"].problem
    assert lines["store"].fix == "create it, in the region of the jobs"
    assert lines["log group"].fix == "aws logs create-log-group --log-group-name /none"
    assert "jobs do not see" in checks(api, "/home/me/store")["store"].problem
    assert checks(api)["log group"].found == "/aws/batch/job, which the first job creates"
    nobody = Direct(api.environment, frozenset({"get_caller_identity"}))
    assert list(checks(nobody)) == ["account"] and checks(nobody)["account"].problem


def test_doctor_with_fewer_rights(api: Direct) -> None:
    denied = Direct(api.environment, frozenset({"describe_job_queues", "get_role", "describe_log_groups"}))
    lines = checks(denied, iam_role="arn:aws:iam::123456789012:role/step")
    assert "prints the least policy" in lines["queues"].fix
    assert "may not look at" in lines["iam_role"].found and "may not look for" in lines["log group"].found


def test_setup(api: Direct) -> None:
    answers = outside.suggested(api, {"region": "us-east-1"})
    assert sorted(answers["queues"].split(", ")) == ["cpu-q=FARGATE", "gpu-q=p4d.24xlarge", "trn-q=trn1.32xlarge"]
    settings = BatchSettings(region="us-east-1", **{name: text for name, text in answers.items() if text})
    assert settings.queues == {"cpu-q": ("FARGATE",), "gpu-q": ("p4d.24xlarge",), "trn-q": ("trn1.32xlarge",)}
    options = {"region": "us-east-1", "log_options": "awslogs-group:/new/steps"}
    missing = outside.preparation(lambda settings: api, options, "s3://store/team")
    assert missing is not None and missing.what == "the log group /new/steps" and missing.apply is not None
    missing.apply()
    assert outside.preparation(lambda settings: api, options, "s3://store/team") is None
    denied = Direct(api.environment, frozenset({"describe_job_queues"}))
    rights = outside.preparation(lambda settings: denied, options, "s3://store/team")
    assert rights is not None and rights.apply is None and "rights for arn:aws:sts::" in rights.what
    assert '"arn:aws:s3:::store/team/*"' in rights.text and outside.EXECUTION_POLICY in rights.text
    assert "arn:aws:logs:us-east-1:123456789012:log-group:/new/steps:log-stream:*" in rights.text


def test_the_usual_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    with pytest.raises(SettingsError, match="no region is named"):
        awssettings.usual_region()
    file.write_text("[default]\nregion = eu-west-1\n[profile ml]\nregion = us-west-2\n")
    assert awssettings.usual_region() == "eu-west-1"
    monkeypatch.setenv("AWS_PROFILE", "ml")
    assert awssettings.usual_region() == "us-west-2"
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert awssettings.usual_region() == "eu-north-1" and registration.SETUP.name("eu-north-1") == "batch-eu-north-1"


def test_policies_are_those_that_iam_takes(api: Direct) -> None:
    """moto checks the grammar of policies as IAM does."""
    settings = BatchSettings(iam_role="arn:aws:iam::123456789012:role/step", execution_role="ecs")
    policies = {
        "driver": outside.driver_policy(settings, account="123456789012", region="us-east-1", store="s3://store/team"),
        "job": policy(STORE, store="s3://store"),
    }
    for name, granted in policies.items():
        text = json.dumps(granted, indent=2)
        api.call("iam", "create_policy", PolicyName=name, PolicyDocument=text)
        assert len(text.replace(" ", "").replace("\n", "")) < 6144, "the size of a managed policy"
    actions = {action for statement in policies["driver"]["Statement"] for action in statement["Action"]}
    assert actions >= {"batch:SubmitJob", "iam:PassRole", "s3:GetObject"} and "*" not in actions
    passed = next(one for one in policies["driver"]["Statement"] if one["Action"] == ["iam:PassRole"])["Resource"]
    assert passed == ["arn:aws:iam::123456789012:role/ecs", "arn:aws:iam::123456789012:role/step"]
    assert policies["job"]["Statement"][0]["Resource"] == "arn:aws:s3:::store/*"


def test_regions() -> None:
    assert awssettings.complete_region(" EU-west-1 ") == "eu-west-1" and awssettings.complete_region("us-gov-east-1")
    assert awssettings.complete_region("eusc-de-east-1")
    with pytest.raises(SettingsError, match="is no region"):
        awssettings.complete_region("Ireland")


def test_from_a_region_to_a_stack(project: Any, api: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker stacks setup batch` and `stoker doctor --stack`, as a person calls them."""
    for name, text in api.environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("STOKER_STACK", "")
    words = ["stacks", "setup", "batch", "--artifact-store", "s3://store/team", "--yes", "--no-hello", "--force"]
    roles = [
        "--iam-role",
        "arn:aws:iam::123456789012:role/step",
        "--execution-role",
        "arn:aws:iam::123456789012:role/step",
        "--image",
        "registry.example/team/train:1",
    ]
    made = project.stoker(*words, *roles)
    assert "wrote the stack 'batch-us-east-1'" in made.stderr, made.stderr
    written = (Path(project.folder) / "stoker.toml").read_text()
    assert "gpu-q=p4d.24xlarge" in written and 'flavor = "batch"' in written and "profile" not in written
    report = json.loads(project.stoker("doctor", "--stack", "batch-us-east-1", "--json").stdout)
    names = {check["name"] for check in report["checks"]}
    assert report["ok"] and {"account", "queue gpu-q", "accelerators", "iam_role", "store", "log group"} <= names
    program = "from stoker import pipeline, step\n@step(settings={'resources': {'accelerators': 'A100:8'}})\n"
    program += "def train() -> int:\n    return 1\n@step(settings={'resources': {'accelerators': 'trainium:4'}})\n"
    program += "def tune() -> int:\n    return 2\n@pipeline\ndef training():\n    train()\n    tune()\n"
    (Path(project.folder) / "train.py").write_text(program)
    plan = project.stoker("plan", "train.py", "--stack", "batch-us-east-1", "--render")
    assert "is sent to the queue gpu-q: p4d.24xlarge: 8 × A100" in plan.stdout
    assert "4 Neuron devices, which are chips of 2 cores each: 8 cores" in plan.stdout
    assert "/dev/neuron15" in plan.stdout and "s3://store/team/neuron-cache" in plan.stdout
