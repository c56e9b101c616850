"""What is said in the plan of a request that AWS Batch cannot give, or gives in other words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from tests.aws_batch.test_queues import account

from stoker.backends.aws_batch import check as batchcheck
from stoker.core.docker import DockerSettings
from stoker.core.findings import Finding
from stoker.core.plan import Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.launchers.options import resolve_launch

SITE = Site(artifacts="s3://bucket/store", scratch="/home/me/.stoker/scratch", path=(), folder="/home/me/project")
ROLES = {"iam_role": "arn:aws:iam::123456789012:role/step", "execution_role": "arn:aws:iam::123456789012:role/ecs"}
IMAGE = {"image": "team/train:1", **ROLES}
GPU = {"queues": {"gpu": ["p4d.24xlarge"]}}
TRN = {"queues": {"trn": ["trn1.32xlarge"]}}
FARGATE = {"queues": {"cpu": ["FARGATE"]}}
SIZED = {"cpu_count": 2, "memory": "8GiB"}


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
    return list(batchcheck.check(plan_of(resources, {**IMAGE, **settings}, **step), {}, site))


CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], str, str]] = {
    # resources, settings, the step's other settings, level and code, words
    "share": ({"gpu_memory": "10GB", "share": True}, GPU, {}, "error STK310", "whole GPUs"),
    "slice": ({"accelerators": "A100/1g.10gb", "gpu_count": 1}, GPU, {}, "error STK310", "no MIG slices"),
    "disk": ({**SIZED, "disk": "100GB"}, GPU, {}, "error STK310", "launch template"),
    "shm": ({"memory": "1GB", "shared_memory": "2GB"}, GPU, {}, "error STK310", "counts as the container's memory"),
    "type": (SIZED, {**GPU, "instance_type": "p4d.24xlarge"}, {}, "error STK310", "multi-node parallel jobs only"),
    "ephemeral": (SIZED, {**GPU, "ephemeral_storage": 50}, {}, "error STK310", "for Fargate only"),
    "priority": (SIZED, {**GPU, "scheduling_priority": 5}, {}, "error STK310", "share_identifier"),
    "rules": (SIZED, {**GPU, "retry_rules": [{"onReason": "a*", "action": "RETRY"}]}, {}, "error STK310", "attempts=3"),
    "mounts": (SIZED, {**GPU, "host_volumes": {"/a": "/d", "/b": "/d"}}, {}, "error STK310", "two volumes at /d"),
    "reserved": (SIZED, GPU, {"environment": {"AWS_BATCH_X": "1"}}, "error STK310", "keeps these names"),
    "mpirun": (
        {**SIZED, "nodes": 2},
        GPU,
        {"launch": resolve_launch({"launcher": "mpi"})},
        "error STK310",
        "by ssh",
    ),
    "devices": (SIZED, TRN, {"environment": {"NEURON_RT_VISIBLE_CORES": "0"}}, "error STK112", "ask for gpu_count"),
    "whole CPUs": ({"cpu_count": 2.5, "memory": "1GB"}, GPU, {}, "translated STK311", "gets 3 vCPUs and 954 MiB"),
    "nothing asked": ({}, GPU, {}, "info STK311", "gets 1 vCPU and 4096 MiB"),
    "a part": ({"accelerators": "A100:2"}, GPU, {}, "info STK311", "gets 24 vCPUs and 265420 MiB, 132710 MiB of it in"),
    "shm of GPUs": ({"accelerators": "A100:2", **SIZED}, GPU, {}, "info STK311", "4096 MiB of it in /dev/shm"),
    "prefer": ({"gpu_count": 1}, GPU, {"accelerator_policy": "prefer"}, "translated STK311", "waits for accelerators"),
    "any model": (
        {"accelerators": "A100:2"},
        {"queue": "q"},
        {},
        "translated STK311",
        "2 GPUs of any model, not for A100",
    ),
    "consumable": (
        {**SIZED, "extended": {"licence": 1}},
        GPU,
        {},
        "translated STK311",
        "consumable resource 'licence'",
    ),
    "overlay": (
        SIZED,
        {**GPU, "overlay": {"linuxParameters": {"tmpfss": []}}},
        {},
        "error STK310",
        "there is no containerProperties.linuxParameters.tmpfss, did you mean 'tmpfs'?",
    ),
    "overlay's kinds": (SIZED, {**GPU, "overlay": {"ulimits": [1]}}, {}, "error STK310", "ulimits[0] is no structure"),
    "log": (SIZED, {**GPU, "log_driver": "fluentd"}, {}, "translated STK311", "writes its log to fluentd"),
    "plain Python": (SIZED, {**GPU, "image": None}, {}, "error STK312", "python:3."),
    "to be built": (
        SIZED,
        GPU,
        {"docker": DockerSettings(parent_image="python:3.11", requirements=["six"])},
        "error STK312",
        "the stack names none to push to",
    ),
    "a folder": (SIZED, GPU, {"site": attrs.evolve(SITE, artifacts="/home/me/store")}, "error STK313", "s3://"),
    "no queue holds it": (
        {"accelerators": "H100:8"},
        GPU,
        {},
        "error STK314",
        "gpu (p4d.24xlarge: 8 × A100) does not hold H100:8",
    ),
    "the queue": (
        {"accelerators": "A100:8"},
        GPU,
        {},
        "info STK314",
        "is sent to the queue gpu: p4d.24xlarge: 8 × A100",
    ),
    "not known": (SIZED, {}, {}, "info STK314", "chosen when the account is asked"),
    "named": (SIZED, {"queue": "q"}, {}, "info STK314", "its settings name the queue"),
    "named amiss": (
        SIZED,
        {"queue": "gpus", "queues": {"gpu": ["p4d"], "cpu": ["FARGATE"]}},
        {},
        "info STK314",
        "none of the stack's, did you mean 'gpu'?",
    ),
    "privileged": (SIZED, {**FARGATE, "privileged": True}, {}, "error STK315", "rights of its host"),
    "ulimits": (SIZED, {**FARGATE, "ulimits": {"nofile": 9}}, {}, "error STK315", "sets no limits"),
    "Fargate's shm": ({**SIZED, "shared_memory": "1GB"}, FARGATE, {}, "error STK315", "/dev/shm"),
    "Fargate's GPU": ({"gpu_count": 1}, {"queue": "f", "platform": "FARGATE"}, {}, "error STK315", "no accelerators"),
    "Fargate's nodes": ({"nodes": 2}, {"queue": "f", "platform": "FARGATE"}, {}, "error STK315", "2 nodes"),
    "Fargate's sizes": ({"cpu_count": 64}, {"queue": "f", "platform": "FARGATE"}, {}, "error STK315", "largest pairs"),
    "Fargate's disk": ({**SIZED, "disk": "300GiB"}, FARGATE, {}, "error STK315", "200 GiB at most"),
    "Fargate's log": (SIZED, {**FARGATE, "log_driver": "syslog"}, {}, "error STK315", "awslogs, splunk"),
    "Fargate's days": (SIZED, FARGATE, {"timeout": 15 * 86400.0}, "error STK315", "14 days"),
    "Fargate's pairs": ({"cpu_count": 3, "memory": "9GiB"}, FARGATE, {}, "translated STK311", "gets 4 vCPUs and 9216"),
    "Fargate's memory": (
        {"cpu_count": 8, "memory": "17GiB"},
        FARGATE,
        {},
        "translated STK311",
        "gets 8 vCPUs and 20480",
    ),
    "Neuron": (
        {"accelerators": "trainium:4"},
        TRN,
        {},
        "info STK316",
        "gets 4 Neuron devices, which are chips of 2 cores each: 8 cores",
    ),
    "Neuron's CPUs": (
        {"accelerators": "trainium:4", "cpu_count": 2, "memory": "8GiB"},
        TRN,
        {},
        "translated STK311",
        "gets 32 vCPUs and 8192 MiB, where it asks for 2 CPUs",
    ),
    "Neuron's user": ({"accelerators": "trainium:4"}, {**TRN, "user": "1000"}, {}, "error STK316", "remove `user`"),
    "Neuron somewhere": (
        {"accelerators": "inferentia2:2"},
        {"queue": "q"},
        {},
        "translated STK316",
        "takes /dev/neuron0 to /dev/neuron1 alone",
    ),
    "no roles on Fargate": (SIZED, {**FARGATE, "iam_role": None}, {}, "error STK317", "cannot read the artifact store"),
    "no role for secrets": (
        SIZED,
        {**GPU, "secrets": {"A": "arn:b"}, "execution_role": None},
        {},
        "error STK317",
        "has no execution_role, and has secrets",
    ),
    "the instance's role": (SIZED, {**GPU, "iam_role": None}, {}, "info STK317", "rights of its instance's role"),
}


@pytest.mark.parametrize("case", CASES)
def test_finding(case: str) -> None:
    resources, settings, step, sort, words = CASES[case]
    every = findings(resources, settings, **step)
    matching = [one for one in every if words in f"{one.what}; {one.why}; {one.fix}"]
    assert len(matching) == 1, [one.text() for one in every]
    assert f"{matching[0].level} {matching[0].code}" == sort
    assert matching[0].fix or matching[0].level != "error"
    if matching[0].level != "error":
        assert [one.text() for one in every if one.level == "error"] == []


@pytest.mark.parametrize(
    ("resources", "settings"),
    [
        (SIZED, GPU),
        (SIZED, FARGATE),
        ({**SIZED, "shared_memory": "1GiB", "accelerators": "A100:8", "nodes": 4, "spot": False}, {**GPU, "efa": 4}),
        ({"cpu_count": 16, "memory": "8GiB", "shared_memory": "1GiB", "accelerators": "trainium:2"}, TRN),
    ],
)
def test_what_is_honoured_is_silent_but_for_the_queue(
    resources: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    codes = [one.code for one in findings(resources, settings)]
    assert [code for code in codes if code != "STK316"] == ["STK314"]


def test_the_account_counts_more_than_the_settings_say() -> None:
    step = plan_of({"accelerators": "A100:8"}, {**IMAGE, "queues": ["a100-q", "v100-q"]})
    queues = account("v100", "a100", "h100")
    [about] = [one for one in batchcheck.check(step, {}, SITE, queues) if one.code == "STK314"]
    assert about.level == "info" and "a100-q: p4d.24xlarge" in about.what and "among 2 queues" in about.why
    other = plan_of({"accelerators": "H100:8"}, {**IMAGE, "queues": ["a100-q", "v100-q"]})
    [about] = [one for one in batchcheck.check(other, {}, SITE, queues) if one.code == "STK314"]
    assert about.level == "error" and "h100" not in about.what, "the stack does not name that queue"


def test_an_image_of_the_docker_settings() -> None:
    docker = DockerSettings(parent_image="team/other:2", skip_build=True)
    step = plan_of(SIZED, {**IMAGE, **GPU}, docker=docker)
    choice = batchcheck.choice_of(step, batchcheck.settings_of(step, batchcheck.BatchSettings, {}))
    assert isinstance(choice, batchcheck.QueueChoice)
    request = batchcheck.request_of(step, batchcheck.BatchSettings(**IMAGE), choice)
    assert request.image == "team/other:2" and request.types[0].name == "p4d.24xlarge"
    assert any("runs in the image of its docker settings" in one.what for one in findings(SIZED, GPU, docker=docker))
