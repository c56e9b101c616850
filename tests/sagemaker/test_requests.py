"""The requests of representative steps: exact (golden files), and valid by botocore's model with its patterns."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.sagemaker.model import MODEL, problems

from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.backend import SagemakerBackend
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings

GOLDEN = Path(__file__).parent / "golden"
SITE = Site(
    artifacts="s3://bucket/store",
    scratch="/home/me/.stoker/scratch",
    path=(),
    folder="/home/me/project",
    bundle="/home/me/.stoker/wheels/bundle-1",
)
BASE: Mapping[str, Any] = {
    "role": "arn:aws:iam::123456789012:role/training",
    "image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1",
}
ALL: Mapping[str, Any] = {
    "executable": "/opt/conda/bin/python",
    "repository_access": "Vpc",
    "repository_credentials": "arn:aws:lambda:eu-west-1:123456789012:function:login",
    "instance_type": "ml.g5.2xlarge",
    "volume_size": 200,
    "volume_kms_key": "alias/volumes",
    "output_kms_key": "alias/output",
    "keep_alive": 600,
    "training_plan": "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/reserved-capacity",
    "subnets": ["subnet-1", "subnet-2"],
    "security_groups": ["sg-1"],
    "encrypt_traffic": True,
    "max_runtime": 7200,
    "max_wait": 90000,
    "max_pending": 7200,
    "retry_attempts": 3,
    "tags": {"team": "ml"},
    "experiment": "digits",
    "remote_debug": True,
    "overlay": {
        "AlgorithmSpecification": {"MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]},
        "InputDataConfig": [
            {
                "ChannelName": "images",
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/images"}},
                "InputMode": "FastFile",
            }
        ],
        "Tags": [{"Key": "team", "Value": "vision"}],
        "InfraCheckConfig": {"EnableInfraCheck": True},
    },
}


def job_of(resources: Mapping[str, Any], options: Mapping[str, Any], *, run: str = "r1", **step: Any) -> Job:
    plan = StepPlan(
        key="train",
        name="train",
        source=FunctionSource(kind="script", module="t", qualname="train", path="/p/t.py", root="/p"),
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(resources=ResourceSettings(**resources), backend={"orchestrator": dict(options)}, **step),
        backend="orchestrator",
        code="1234",
        where="t.py:7",
    )
    return Job(name=f"{run}/train/1", run=run, key="train", attempt=1, step=plan, inputs={})


def request(resources: Mapping[str, Any], options: Mapping[str, Any] | None = None, **words: Any) -> dict[str, Any]:
    own = {**BASE, **(options or {})}
    passed = words.pop("passed", {})
    return requests.training_job(job_of(resources, own, **words), SITE, {}, passed=passed)


READY = DockerSettings(parent_image=BASE["image"], skip_build=True, runtime_environment={"HF_HOME": "/cache"})
REQUESTS: Mapping[str, dict[str, Any]] = {
    "plain": request({}),
    "gpus": request({"accelerators": "A100:8", "disk": "500GB"}, timeout=3600.0, docker=READY),
    "gang": request({"accelerators": "H100:8", "nodes": 4}, passed={"AWS_DEFAULT_REGION": "eu-west-1"}),
    "spot": request({"gpu_count": 1, "spot": True}, timeout=600.0),
    "trainium": request({"accelerators": "trainium:16"}),
    "all": request({"accelerators": "A10G:1"}, ALL),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_exact_and_valid(name: str) -> None:
    sent = REQUESTS[name]
    assert not problems("CreateTrainingJob", sent)
    text = re.sub(r"program-[0-9a-f]{32}", "program-DIGEST", json.dumps(sent, indent=1, sort_keys=True)) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert file.read_text() == text


def test_every_golden_file_is_of_a_request() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(REQUESTS)


@settings(max_examples=60, deadline=None)
@given(
    words=some.fixed_dictionaries(
        {},
        optional={
            "cpu_count": some.sampled_from([0.25, 1, 2.5, 16, 200]),
            "memory": some.integers(1, 2**42),
            "gpu_count": some.integers(0, 16),
            "accelerators": some.sampled_from(["A100:8", "H100:1", "V100:3", "trainium:16", "trainium2"]),
            "disk": some.integers(1, 2**44),
            "nodes": some.integers(1, 8),
            "spot": some.booleans(),
        },
    ),
    names=some.sets(some.sampled_from(sorted(ALL))),
    run=some.text(min_size=1, max_size=80),
    step=some.text(max_size=40),
    seconds=some.none() | some.floats(0.001, 10**8),
)
def test_any_request(words: dict[str, Any], names: set[str], run: str, step: str, seconds: float | None) -> None:
    try:
        job = job_of(words, {**BASE, **{name: ALL[name] for name in names}}, run=run, timeout=seconds)
    except SettingsError:
        return
    job = attrs.evolve(job, step=attrs.evolve(job.step, name=step))
    sent = requests.training_job(job, SITE, {}, passed={})
    assert not problems("CreateTrainingJob", sent)
    limits = sent["StoppingCondition"]
    assert limits["MaxRuntimeInSeconds"] <= 28 * 86400
    assert limits.get("MaxWaitTimeInSeconds", limits["MaxRuntimeInSeconds"]) >= limits["MaxRuntimeInSeconds"]


def test_names() -> None:
    """One run's jobs are found by their names, and no other run's among them."""
    one, other = job_of({}, BASE, run="train-bcdfg"), job_of({}, BASE, run="train-bcdf")
    assert requests.job_name(one).startswith(requests.run_prefix("train-bcdfg"))
    assert not requests.job_name(one).startswith(requests.run_prefix("train-bcdf"))
    assert requests.job_name(one) != requests.job_name(one, 1) and requests.job_name(one) == requests.job_name(one)
    again = attrs.evolve(one, name="train-bcdfg/train/2", attempt=2)
    assert requests.job_name(again) != requests.job_name(one), "SageMaker takes a name once"
    longest = MODEL.shape_for("TrainingJobName").metadata
    for run in ("x" * 300, "Übung: 1", "--", "a_b"):
        name = requests.job_name(job_of({}, BASE, run=run))
        assert re.fullmatch(longest["pattern"], name) and len(name) <= longest["max"]
    assert requests.job_name(other) != requests.job_name(one)


def test_a_script_for_a_person() -> None:
    options = {**BASE, "region": "eu-west-1"}
    backend = SagemakerBackend(SITE, options)
    job = job_of({}, {})
    text = backend.by_hand(job, backend.render(job))
    assert "aws --region eu-west-1 sagemaker create-training-job" in text
    assert "aws --region eu-west-1 s3 cp" in text and "stoker_start.py" in text
    assert "stoker-token" not in text
    backend.close()
