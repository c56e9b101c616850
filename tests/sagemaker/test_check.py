"""What is said in the plan of a request that SageMaker cannot give, or gives in other words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from stoker.backends.base.leasing import OWN_VISIBILITY
from stoker.backends.sagemaker.backend import check
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.plan import Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.launchers.options import resolve_launch
from stoker.settings.options import layer_from

SITE = Site(artifacts="s3://bucket/store", scratch="/home/me/.stoker/scratch", path=(), folder="/home/me/project")
ROLE = "arn:aws:iam::123456789012:role/training"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1"
VPC = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}


def plan_of(resources: Mapping[str, Any], settings: Mapping[str, Any], **step: Any) -> StepPlan:
    return StepPlan(
        key="train",
        name="train",
        source=FunctionSource(kind="script", module="t", qualname="train", path="/p/t.py", root="/p"),
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(
            resources=ResourceSettings(**resources), backend={"orchestrator": dict(settings)}, **step
        ),
        backend="orchestrator",
        code="1234",
        where="t.py:7",
    )


def findings(resources: Mapping[str, Any], settings: Mapping[str, Any], **step: Any) -> list[Finding]:
    site = step.pop("site", SITE)
    own = {name: value for name, value in {"role": ROLE, "image": IMAGE, **settings}.items() if value is not None}
    return list(check(plan_of(resources, own, **step), {}, site))


CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], str, str]] = {
    # resources, settings, the step's other settings, level and code, words
    "share": ({"gpu_memory": "10GB", "share": True}, {}, {}, "error STK360", "shares it with nobody"),
    "slice": ({"accelerators": "A100/1g.10gb", "gpu_count": 1}, {}, {}, "error STK360", "no MIG slices"),
    "shm": ({"shared_memory": "2GB"}, {}, {}, "error STK360", "no size of /dev/shm"),
    "extended": ({"extended": {"fpga": 1}}, {}, {}, "error STK360", "counts no resources"),
    "disk": ({"disk": "100GB"}, {"volume_size": 50}, {}, "error STK360", "would be too small"),
    "long": ({}, {}, {"timeout": 30 * 86400.0}, "error STK360", "28 days"),
    "half a vpc": ({}, {"subnets": ["subnet-1"]}, {}, "error STK360", "without security_groups"),
    "overlay": ({}, {"overlay": {"ProfilerCnfig": {}}}, {}, "error STK360", "did you mean 'ProfilerConfig'"),
    "mpi": ({"nodes": 2}, {}, {"launch": resolve_launch({"launcher": "mpi"})}, "error STK360", "have neither"),
    "cpus": ({"cpu_count": 3}, {}, {}, "translated STK361", "the whole of ml.c5.xlarge"),
    "prefer": ({"gpu_count": 1}, {}, {"accelerator_policy": "prefer"}, "translated STK361", "names its type"),
    "limit": ({}, {}, {}, "info STK361", "is ended after 5d"),
    "type": ({"accelerators": "A100:1"}, {}, {}, "error STK362", "an instance has 8 × A100"),
    "newer": ({"gpu_count": 1}, {"instance_type": "ml.p9.large"}, {}, "translated STK362", "knows nothing"),
    "smallest": ({}, {}, {}, "info STK362", "the smallest of the"),
    "no image": ({}, {"image": None}, {}, "error STK363", "names no image"),
    "hub": ({}, {"image": "python:3.12"}, {}, "error STK363", "push it to ECR"),
    "private": ({}, {"repository_access": "vpc"}, {}, "error STK363", "no VPC"),
    "built": ({}, {}, {"docker": DockerSettings(requirements=["six"])}, "error STK363", "no registry to push to"),
    "no role": ({}, {"role": None}, {}, "error STK364", "has no role"),
    "store": ({}, {}, {"site": attrs.evolve(SITE, artifacts="/home/me/store")}, "error STK365", "a bucket"),
    "gcs": ({}, {}, {"site": attrs.evolve(SITE, artifacts="gs://b")}, "error STK365", "from S3 alone"),
    "spot": ({"spot": True}, {}, {}, "info STK366", "6d at most"),
    "wait": ({}, {"max_wait": 100}, {}, "error STK366", "does not ask for spot"),
    "short": ({"spot": True}, {"max_wait": 60}, {"timeout": 600.0}, "error STK366", "waiting and running together"),
    "kept": ({"spot": True}, {"keep_alive": 60}, {}, "error STK366", "no spot instances"),
    "plan": ({"spot": True}, {"training_plan": "arn"}, {}, "error STK366", "not spot"),
    "visible": ({}, {}, {"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, f"error {OWN_VISIBILITY}", "all devices"),
}


@pytest.mark.parametrize("case", CASES)
def test_said(case: str) -> None:
    resources, settings, step, head, words = CASES[case]
    found = findings(resources, settings, **step)
    lines = [f"{one.level} {one.code} {one.what}; {one.why}; {one.fix}" for one in found]
    level, code = head.split()
    assert any(line.startswith(f"{level} {code}") and words in line for line in lines), "\n".join(lines)


def test_variables_of_an_image() -> None:
    def docker(variables: Mapping[str, str]) -> DockerSettings:
        return DockerSettings(parent_image=IMAGE, skip_build=True, runtime_environment=variables)

    long = findings({}, {}, docker=docker({"WORD": "x" * 513}))
    assert any("513 letters" in one.what for one in long if one.level == "error")
    many = findings({}, {}, docker=docker({f"V{number}": "" for number in range(95)}))
    assert any("variables for its container" in one.what for one in many if one.level == "error")
    assert not [one for one in findings({}, {}, docker=docker({"WORD": "a b"})) if one.level == "error"]


def test_a_good_request_has_no_errors() -> None:
    for resources in ({}, {"accelerators": "A100:8", "nodes": 4}, {"gpu_count": 1, "spot": True, "disk": "200GB"}):
        assert not [one for one in findings(resources, {"image": IMAGE, **VPC}) if one.level == "error"]


WRONG = {
    "role": ("training", "is not the ARN of a role"),
    "instance_type": ("g5.xlarge", 'write "ml.g5.xlarge"'),
    "region": ("eu-west1", "no region of AWS"),
    "repository_access": ("Vpn", "Vpc"),
    "max_runtime": (10**7, "between 1 and 2419200"),
    "max_pending": (10, "between 1800"),
    "keep_alive": (4000, "3600"),
    "retry_attempts": (31, "30"),
    "encrypt_traffic": ("perhaps", "perhaps"),
    "instance_count": (2, "nodes"),
    "use_spot_instances": (True, "spot=True"),
    "overlay": ({"ResourceConfig": {"InstanceGroups": []}}, "the nodes of a step are alike"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words(name: str) -> None:
    value, words = WRONG[name]
    with pytest.raises(SettingsError) as caught:
        layer_from("stoker.toml:3", [{"orchestrator.sagemaker": {name: value}}])
    assert words in f"{caught.value.message} {caught.value.fix}"


def test_every_setting_has_words() -> None:
    assert not set(SagemakerSettings.INSTEAD) & {field.name for field in attrs.fields(SagemakerSettings)}
    assert set(SagemakerSettings.ALIASES.values()) <= {field.name for field in attrs.fields(SagemakerSettings)}
