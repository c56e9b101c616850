"""Which queue a step gets, by what the compute environments of each hold, and what is said where none does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stoker.backends.aws.instances import InstanceType
from stoker.backends.aws_batch.queues import (
    JobQueue,
    NoQueue,
    QueueChoice,
    choose,
    queues_of_account,
    queues_of_settings,
    unknown_types,
)
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.resources import ResourceSettings


def environment(name: str, *types: str, kind: str = "EC2", **fields: Any) -> dict[str, Any]:
    """A compute environment as the API describes it."""
    resources = {"type": kind, "maxvCpus": 256, **({"instanceTypes": list(types)} if types else {})}
    arn = f"arn:aws:batch:eu-west-1:123456789012:compute-environment/{name}"
    common = {"computeEnvironmentName": name, "computeEnvironmentArn": arn, "type": "MANAGED", "state": "ENABLED"}
    return {**common, "status": "VALID", "computeResources": resources, **fields}


def queue(name: str, *environments: str, **fields: Any) -> dict[str, Any]:
    """A queue as the API describes it, with the ARNs of its compute environments."""
    order = [
        {"order": number, "computeEnvironment": f"arn:aws:batch:eu-west-1:123456789012:compute-environment/{each}"}
        for number, each in enumerate(environments)
    ]
    common = {"jobQueueName": name, "state": "ENABLED", "status": "VALID", "jobQueueType": "ECS"}
    return {**common, "computeEnvironmentOrder": order, **fields}


ENVIRONMENTS = [
    environment("cpu", "optimal"),
    environment("v100", "p3.2xlarge"),
    environment("a100", "p4d.24xlarge"),
    environment("h100", "p5"),
    environment("spot-h100", "p5.48xlarge", kind="SPOT"),
    environment("mixed", "p3.16xlarge", "p4d.24xlarge"),
    environment("trn", "trn1.32xlarge"),
    environment("trns", "trn1"),
    environment("fargate", kind="FARGATE"),
    environment("broken", "p4d.24xlarge", status="INVALID", statusReason="CLIENT_ERROR -  no role"),
    environment("off", "p4d.24xlarge", state="DISABLED"),
    environment(
        "small", "p4d.24xlarge", computeResources={"type": "EC2", "maxvCpus": 8, "instanceTypes": ["p4d.24xlarge"]}
    ),
    environment("new", "q9.large"),
    environment("own", type="UNMANAGED", computeResources={}),
]


def account(*names: str) -> tuple[JobQueue, ...]:
    """The queues of these compute environments, one each."""
    return queues_of_account([queue(f"{name}-q", name) for name in names], ENVIRONMENTS)


CHOICES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "a step without accelerators stays away from them": ("a100 cpu", {"cpu_count": 2}, "cpu-q"),
    "but runs where there is nothing else": ("a100", {"cpu_count": 2}, "a100-q"),
    "by the model": ("v100 a100 h100", {"accelerators": "A100:4"}, "a100-q"),
    "alternatives in their order": ("v100 a100 h100", {"accelerators": ["H100:8", "A100:8"]}, "h100-q"),
    "a second choice": ("v100 a100", {"accelerators": ["H100:8", "A100:8"]}, "a100-q"),
    "any GPU, with least to spare": ("a100 v100", {"gpu_count": 1}, "v100-q"),
    "by memory": ("v100 h100", {"gpu_count": 1, "gpu_memory": "80GB"}, "h100-q"),
    "on demand before spot": ("spot-h100 h100", {"accelerators": "H100:8"}, "h100-q"),
    "spot where it may be": ("h100 spot-h100", {"accelerators": "H100:8", "spot": True}, "spot-h100-q"),
    "Neuron by its devices": ("cpu trn", {"accelerators": "trainium:4"}, "trn-q"),
    "Fargate": ("fargate", {"cpu_count": 2, "memory": "8GiB"}, "fargate-q"),
    "a gang of one of two models": ("mixed", {"accelerators": "A100:8", "nodes": 2}, "mixed-q"),
    "types that nobody knows": ("new", {"gpu_count": 1}, "new-q"),
    "not the one that is off": ("off a100", {"accelerators": "A100:8"}, "a100-q"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_chosen(case: str) -> None:
    names, words, chosen = CHOICES[case]
    answer = choose(ResourceSettings(**words), BatchSettings(), account(*names.split()))
    assert isinstance(answer, QueueChoice), answer
    assert answer.queue == chosen


REFUSALS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = {
    "count": (
        "v100",
        {"accelerators": "A100:4"},
        {},
        "v100-q (p3.2xlarge: 1 × V100) does not hold A100:4",
    ),
    "none": (
        "v100 cpu",
        {"accelerators": "A100:4"},
        {},
        "none of v100-q (p3.2xlarge: 1 × V100), cpu-q (m5.24xlarge, c5.24xlarge, r5.24xlarge) holds A100:4",
    ),
    "what it has": ("v100", {"accelerators": "V100:4"}, {}, "v100-q has 1 × V100 at most"),
    "no accelerators": ("cpu", {"gpu_count": 1}, {}, "cpu-q has no accelerators"),
    "the model is left to chance": (
        "mixed",
        {"accelerators": "A100:8"},
        {},
        "mixed-q may also place it on p3.16xlarge: 8 × V100: AWS Batch counts GPUs, and does not know their model",
    ),
    "Neuron devices of several counts": (
        "trns",
        {"accelerators": "trainium:1"},
        {},
        "trns-q has instances with 1 or 16 Neuron devices",
    ),
    "a GPU is no Trainium": ("trn", {"gpu_count": 1}, {}, "trn-q has trainium accelerators"),
    "disabled": ("off", {}, {}, "off-q has off, which is DISABLED"),
    "invalid": ("broken", {}, {}, "which is INVALID: CLIENT_ERROR - no role"),
    "not on spot": ("spot-h100", {"spot": False}, {}, "spot-h100-q starts spot instances"),
    "no gang on spot": ("spot-h100", {"nodes": 2}, {}, "only managed, on-demand EC2 ones may"),
    "no gang on Fargate": ("fargate", {"nodes": 2}, {}, "only managed, on-demand EC2 ones may"),
    "no gang on instances of one's own": ("own", {"nodes": 2}, {}, "only managed, on-demand EC2 ones may"),
    "Fargate has no GPU": ("fargate", {"gpu_count": 1}, {}, "which has no accelerators"),
    "Fargate has its pairs": ("fargate", {"cpu_count": 64}, {}, "which has no 64 vCPUs with 0 MiB"),
    "too large": ("v100", {"memory": "61GiB"}, {}, "has no instance with 1 vCPUs and 62464 MiB"),
    "another platform": ("cpu", {}, {"platform": "FARGATE"}, "cpu-q is one of EC2"),
    "adapters": ("a100", {"gpu_count": 8}, {"efa": 8}, "a100-q has p4d.24xlarge, with 4 Elastic Fabric Adapters"),
    "vCPUs of the environment": ("small", {"cpu_count": 16}, {}, "small-q may start 8 vCPUs at most"),
    "the queue that is named": ("a100 v100", {"accelerators": "A100:1"}, {"queue": "v100-q"}, "v100-q (p3.2xlarge"),
    "no queue": ("", {}, {}, "there is no queue"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_in_words(case: str) -> None:
    names, words, settings, text = REFUSALS[case]
    answer = choose(ResourceSettings(**words), BatchSettings(**settings), account(*names.split()))
    assert isinstance(answer, NoQueue), answer
    assert text in f"{answer.what}; {answer.why}"
    assert answer.fix


def test_a_named_queue_of_which_nothing_is_known() -> None:
    answer = choose(ResourceSettings(gpu_count=1), BatchSettings(queue="elsewhere"), account("cpu"))
    assert answer == QueueChoice(queue="elsewhere") and "instance types not known" in answer.text
    arn = "arn:aws:batch:eu-west-1:123456789012:job-queue/cpu-q"
    assert isinstance(choose(ResourceSettings(gpu_count=1), BatchSettings(queue=arn), account("cpu")), NoQueue)


def test_states_of_queues() -> None:
    rows = [
        queue("off", "cpu", state="DISABLED"),
        queue("bad", "cpu", status="INVALID", statusReason="no role"),
        queue("pods", "cpu", jobQueueType="EKS"),
        queue("fair", "cpu", schedulingPolicyArn="arn:aws:batch:eu-west-1:123456789012:scheduling-policy/p"),
        queue("gone", "nothing"),
    ]
    queues = queues_of_account(rows, ENVIRONMENTS)
    assert [each.name for each in queues] == ["off", "bad", "fair", "gone"]
    answer = choose(ResourceSettings(), BatchSettings(), queues)
    assert isinstance(answer, NoQueue)
    assert answer.why == (
        "off is DISABLED; bad is INVALID: no role; fair has a scheduling policy, and "
        "BatchSettings(share_identifier='…') is missing; gone has arn:aws:batch:eu-west-1:123456789012:"
        "compute-environment/nothing, which is not there"
    )
    chosen = choose(ResourceSettings(), BatchSettings(share_identifier="ml"), queues)
    assert isinstance(chosen, QueueChoice) and chosen.queue == "fair" and chosen.among == 4


def test_types_that_ec2_describes() -> None:
    assert unknown_types(ENVIRONMENTS) == ("q9.large",)
    own = {"q9.large": InstanceType(name="q9.large", vcpus=2, memory=8192, accelerator="H100", count=1)}
    queues = queues_of_account([queue("q", "new")], ENVIRONMENTS, own)
    answer = choose(ResourceSettings(accelerators="H100"), BatchSettings(), queues)
    assert isinstance(answer, QueueChoice) and answer.types == tuple(own.values())


def test_queues_of_the_settings_need_no_account() -> None:
    settings = BatchSettings(queues={"gpu": "p4d.24xlarge, spot", "cpu": ["fargate"], "named-only": ""})
    queues = queues_of_settings(settings)
    assert [each.text for each in queues] == ["gpu (p4d.24xlarge: 8 × A100)", "cpu (Fargate)"]
    gpu = choose(ResourceSettings(accelerators="A100"), settings, queues)
    assert isinstance(gpu, QueueChoice) and gpu.text == "queue gpu: p4d.24xlarge: 8 × A100, spot"
    cpu = choose(ResourceSettings(cpu_count=1), settings, queues)
    assert isinstance(cpu, QueueChoice) and cpu.fargate and cpu.text == "queue cpu: Fargate"
