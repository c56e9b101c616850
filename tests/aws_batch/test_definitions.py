"""The requests of representative steps: exact (golden files), and valid by botocore's own model of AWS Batch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import botocore.session
import pytest
from botocore import xform_name
from botocore.validate import validate_parameters

from stoker.backends.aws.api import misfit
from stoker.backends.aws.instances import expand, table
from stoker.backends.aws_batch import definitions
from stoker.backends.aws_batch.definitions import BatchRequest, fargate_sizes, job_definition, sizes_of, submission
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.errors import BackendError, SettingsError
from stoker.core.resources import ResourceSettings

GOLDEN = Path(__file__).parent / "golden"
ARN = "arn:aws:batch:eu-west-1:123456789012:job-definition/stoker-train:3"
METAFLOW: Mapping[str, Any] = {
    "queue": "train",
    "iam_role": "arn:aws:iam::123456789012:role/step",
    "execution_role": "arn:aws:iam::123456789012:role/ecs",
    "max_swap": 2048,
    "swappiness": 10,
    "aws_batch_tags": {"team": "ml"},
    "use_tmpfs": True,
    "tmpfs_tempdir": True,
    "tmpfs_size": 512,
    "tmpfs_path": "/fast",
    "efa": 2,
    "host_volumes": ["/data"],
    "efs_volumes": {"fs-0123456789abcdef0": "/efs"},
    "log_driver": "awslogs",
    "log_options": ["awslogs-group:/team/steps", "awslogs-stream-prefix:stoker"],
    "executable": "python3.11",
    "privileged": True,
}
OTHERS: Mapping[str, Any] = {
    "share_identifier": "ml",
    "scheduling_priority": 7,
    "repository_credentials": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:login",
    "secrets": {"HF_TOKEN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hub"},
    "user": "1000",
    "readonly_root": True,
    "init_process": True,
    "enable_execute_command": True,
    "ulimits": {"nofile": 65536, "stack": [8192, -1]},
    "efs_volumes": {
        "fs-0123456789abcdef0": {"path": "/efs", "root": "/team", "access_point": "fsap-1", "iam": True},
        "fs-00000000000000001": {"encrypted": False, "read_only": True},
    },
    "attempts": 3,
    "retry_rules": [{"onStatusReason": "Host EC2*", "action": "retry"}],
    "overlay": {
        "logConfiguration": {"logDriver": "splunk", "secretOptions": [{"name": "splunk-token", "valueFrom": "arn:t"}]},
        "linuxParameters": {"tmpfs": [{"containerPath": "/fast", "size": 64, "mountOptions": ["noexec"]}]},
        "ulimits": [{"name": "core", "softLimit": 0, "hardLimit": 0}],
    },
}


def request(types: str = "", /, settings: Mapping[str, Any] | None = None, **words: Any) -> BatchRequest:
    own = {
        name: words.pop(name) for name in tuple(words) if name in {field.name for field in attrs.fields(BatchRequest)}
    }
    return BatchRequest(
        resources=ResourceSettings(**words),
        settings=BatchSettings(**(settings or {})),
        image="123456789012.dkr.ecr.eu-west-1.amazonaws.com/train@sha256:00",
        command=("python3", "-c", "pass", "job"),
        types=expand(types.split())[0],
        **{"name": "train", **own},
    )


REQUESTS: Mapping[str, BatchRequest] = {
    "plain": request(),
    "cpus": request(cpu_count=2.5, memory="10GB", shared_memory="1GiB", environment={"WORD": "a b"}),
    "metaflow": request("p4d", settings=METAFLOW, gpu_count=8, seconds=30.0),
    "others": request(
        settings=OTHERS, seconds=3600.0, secrets={"KEY": "arn:aws:ssm:eu-west-1:123456789012:parameter/k"}
    ),
    "gpus": request("p3.8xlarge", accelerators="V100:2"),
    "gpus-of-unknown-types": request(gpu_count=1),
    "fargate": request(
        fargate=True,
        settings={"execution_role": "arn:aws:iam::123456789012:role/ecs", "assign_public_ip": True},
        cpu_count=3,
        memory="9GiB",
        disk="50GB",
    ),
    "fargate-arm": request(fargate=True, settings={"cpu_architecture": "arm64", "platform_version": "1.4.0"}),
    "gang": request("p4d p4de", accelerators="A100:8", nodes=4, settings={"efa": 4}, job_environment={"RUN": "r1"}),
    "fan-out": request(elements=500, labels={"stoker:run": "r1", "stoker:step": "train"}, job_environment={"A": "1"}),
    "extended": request(extended={"license": 2}),
    "trainium": request("trn1.32xlarge", accelerators="trainium:4", cache="s3://bucket/neuron-cache"),
    "inferentia-unknown": request(accelerators="inferentia2:2"),
    "trainium-gang": request("trn1.2xlarge trn1.32xlarge", accelerators="trainium:16", nodes=2, settings={"efa": 8}),
}


def valid(operation: str, arguments: Mapping[str, Any]) -> None:
    """By the types, the members and the required fields of the API's model."""
    model = botocore.session.get_session().get_service_model("batch").operation_model(operation)
    validate_parameters(dict(arguments), model.input_shape)


@pytest.mark.parametrize("name", REQUESTS)
def test_exact_and_valid(name: str) -> None:
    one = REQUESTS[name]
    definition = job_definition(one)
    sent = submission(one, "train", ARN, name="digits train 1")
    valid("RegisterJobDefinition", definition)
    valid("SubmitJob", sent)
    text = json.dumps({"RegisterJobDefinition": _short(definition), "SubmitJob": sent}, indent=1, sort_keys=True) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert file.read_text() == text


def _short(definition: Any) -> Any:
    """The definition with a word for the program that takes Neuron devices, so that a change of it changes no file."""
    text = (Path(definitions.__file__).parent / "neuron.py").read_text()
    if isinstance(definition, dict):
        return {
            key: "NAME" if key == "jobDefinitionName" and text in json.dumps(definition) else _short(part)
            for key, part in definition.items()
        }
    if isinstance(definition, list):
        return [_short(part) for part in definition]
    return "PROGRAM" if definition == text else definition


def test_every_golden_file_is_of_a_request() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(REQUESTS)


def test_a_name_follows_from_the_content() -> None:
    one = REQUESTS["plain"]
    name = job_definition(one)["jobDefinitionName"]
    same = attrs.evolve(one, job_environment={"A": "1"}, labels={"b": "2"}, elements=5, seconds=9.0)
    assert job_definition(same)["jobDefinitionName"] == name, "what differs between jobs is in the submission"
    assert job_definition(attrs.evolve(one, image="other"))["jobDefinitionName"] != name
    for text in ("x" * 500, "Übung: 1/2", "--", "", "a b"):
        job = attrs.evolve(one, name=text)
        for plain in (job_definition(job)["jobDefinitionName"], submission(job, "q", ARN)["jobName"]):
            assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", plain)


@pytest.mark.parametrize("operation", ["RegisterJobDefinition", "SubmitJob"])
def test_every_field_of_the_api_is_written_or_refused_in_words(operation: str) -> None:
    """Also those that a newer botocore brings: a field of the container is reached by an overlay."""
    model = botocore.session.get_session().get_service_model("batch").operation_model(operation)
    sent = {name for one in REQUESTS.values() for name in {**job_definition(one), **submission(one, "q", ARN)}}
    ours = {field.name for field in attrs.fields(BatchSettings)} | set(BatchSettings.INSTEAD)
    for name in set(model.input_shape.members) - sent:
        assert xform_name(name).removesuffix("_override") in ours, f"{name} is neither written nor refused"
    shape = botocore.session.get_session().get_service_model("batch").shape_for("ContainerProperties")
    example = {"structure": {}, "list": [], "string": "a", "boolean": True, "integer": 1}
    for name, member in shape.members.items():
        part = {name: example[member.type_name]}
        try:
            changed = job_definition(request(settings={"overlay": part}))["containerProperties"]
        except SettingsError as error:
            assert error.fix
        else:
            assert name in changed and not misfit("batch", "RegisterJobDefinition", {"containerProperties": part})


def test_fargate_pairs_are_those_of_the_api() -> None:
    """The table, against the documentation of the API in botocore."""
    model = botocore.session.get_session().get_service_model("batch")
    shape = model.shape_for("ResourceRequirement")
    text = re.sub(r"<[^>]+>", " ", shape.members["value"].documentation)
    rows = re.findall(r"value\s+= ([\d.]+)(?: or ([\d.]+))?\s+MEMORY\s+= ([\d, or]+)", text)
    theirs = {float(vcpus): [int(each) for each in re.findall(r"\d+", amounts)] for vcpus, _, amounts in rows}
    assert {float(vcpus): list(amounts) for vcpus, amounts in definitions.FARGATE.items()} == theirs


def test_fargate_rounds_up() -> None:
    assert fargate_sizes(3, 9 * 1024) == definitions.Sizes(vcpus=4, memory=9216)
    assert fargate_sizes(0.1, 100) == definitions.Sizes(vcpus=0.25, memory=512)
    assert fargate_sizes(8, 20000) == definitions.Sizes(vcpus=8, memory=20480)
    assert fargate_sizes(1, 250000) is None and fargate_sizes(33, 512) is None


def test_parts_of_an_instance() -> None:
    """Who asks for accelerators alone gets that part of the instance."""
    assert sizes_of(request("p3.8xlarge", accelerators="V100:2")).vcpus == 16
    assert sizes_of(request("p3.8xlarge", accelerators="V100:1", nodes=2)).vcpus == 32, "a node has it for itself"
    assert sizes_of(request("p3.8xlarge", accelerators="V100:2", cpu_count=4)).vcpus == 4
    assert sizes_of(request("g5.xlarge", gpu_count=1)).memory == int(16384 * 0.9)


@pytest.mark.parametrize("name", [each.name for each in table().values() if each.is_neuron])
def test_neuron_jobs_of_an_instance_never_ask_for_more_devices_than_it_has(name: str) -> None:
    instance = table()[name]
    for count in range(1, instance.count + 1):
        sizes = sizes_of(request(name, gpu_count=count, cpu_count=1))
        assert sizes.vcpus <= instance.vcpus, "the job fits"
        assert int(instance.vcpus // sizes.vcpus) * count <= instance.count
        # Also jobs of several sizes: each has at least its part of the vCPUs.
        assert sizes.vcpus / instance.vcpus >= count / instance.count


def test_overrides_that_ecs_would_refuse() -> None:
    with pytest.raises(BackendError, match="8192"):
        submission(request(job_environment={"A": "x" * 9000}), "q", ARN)


WRONG: Mapping[str, str] = {
    "swappiness=200": "more than 100",
    "scheduling_priority=10000": "more than 9999",
    "attempts=11": "more than 10",
    "platform='lambda'": "not one of EC2, FARGATE",
    "log_driver='awslog'": "awslogs",
    "log_options='group'": "no option of a log driver",
    "log_options={'awslogs-group': ' '}": "no option of a log driver",
    "share_identifier='a b'": "letters and digits alone",
    "iam_role='role/step'": 'write "arn:aws:iam::123456789012:role/step"',
    "execution_role='arn:aws:iam::12:role/ecs'": "neither the ARN nor the name",
    "host_volumes='data'": "not the full path",
    "efs_volumes='data'": "no file system of EFS",
    "efs_volumes={'fs-0123456789abcdef0': {'pth': '/d'}}": "no 'pth'",
    "ulimits={'files': 1}": "not one of",
    "ulimits={'nofile': [9, 3]}": "above the hard one",
    "ulimits={'nofile': 'many'}": "no limit",
    "secrets='HF_TOKEN'": "not key=value",
    "retry_rules=[{'onExitCod': '1', 'action': 'RETRY'}]": "onExitCode",
    "retry_rules=[{'action': 'RETRY'}]": "lacks",
    "retry_rules=[{'onExitCode': '1', 'action': 'AGAIN'}]": "not one of RETRY, EXIT",
    "memory=4096": "resources=ResourceSettings(memory",
    "qeue='gpu'": "queue",
    "overlay={'command': ['sh']}": "the step's function",
    "queues='gpu:p4d.24xlarge'": 'write "gpu=p4d.24xlarge"',
    "queue='my queue'": "no name of a queue",
    "region='Ireland'": "eu-west-1",
    "overlay='ulimits'": "does not map",
    "depends_on='job-1'": "an input of the step",
    "eks_properties={}": "kubernetes",
    "trainium=16": "chips",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_no_settings_may_be(words: str) -> None:
    with pytest.raises((SettingsError, TypeError)) as caught:
        eval(f"BatchSettings({words})", {"BatchSettings": BatchSettings})
    text = f"{caught.value} {getattr(caught.value, 'fix', '')}"
    assert WRONG[words] in text
    assert "not one of" not in text or "known:" not in text, "the words are listed once"


def test_other_names() -> None:
    settings = BatchSettings(job_queue="q", job_role="r", tags={"a": "b"}, queues="a, b", host_volumes="/a,/b")
    assert (settings.queue, settings.iam_role, settings.aws_batch_tags) == ("q", "r", {"a": "b"})
    assert settings.queues == {"a": (), "b": ()} and settings.host_volumes == {"/a": "/a", "/b": "/b"}
    assert BatchSettings(queues={"gpu": "p4d, p5"}).queues == {"gpu": ("p4d", "p5")}
