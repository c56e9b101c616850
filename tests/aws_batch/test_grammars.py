"""Numbers, times and answers of AWS over the whole of their grammars: what an answer does not say refuses nothing.

The grammars are those of botocore's models (shapes and enumerations) and of
https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.aws_batch.test_causes import WAITS, failed
from tests.aws_batch.test_instances import EC2
from tests.aws_batch.test_queues import CHOICES, ENVIRONMENTS, queue
from tests.servers.awsmodel import NEWER, service, thinned

from stoker.backends.aws.api import amount, moment, whole
from stoker.backends.aws.instances import described
from stoker.backends.aws.outside import _trusted
from stoker.backends.aws_batch.causes import end_of, why_waiting
from stoker.backends.aws_batch.queues import QueueChoice, choose, queues_of_account
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.resources import ResourceSettings

SEEDS = st.integers(0, 2**32).map(random.Random)
DIGITS = st.text("0123456789", min_size=1, max_size=15)


@given(DIGITS, st.none() | DIGITS)
def test_every_number_has_its_value(digits: str, part: str | None) -> None:
    text = digits if part is None else f"{digits}.{part}"
    found = amount(text)
    assert found is not None and found == pytest.approx(float(Decimal(text)))
    assert whole(text) == (int(found) if found == int(found) else None)
    assert amount(int(digits)) == whole(int(digits)) == int(digits)


@given(
    DIGITS, st.sampled_from(["-{}", "+{}", " {}", "{} ", "{}.", ".{}", "{}e3", "{}Gi", "0x{}", "{}_0", "٣{}", "{},0"])
)
def test_what_is_no_number_is_unknown(digits: str, form: str) -> None:
    assert amount(form.format(digits)) is whole(form.format(digits)) is None


@pytest.mark.parametrize("value", [None, True, False, "", -1, 10**15, float("nan"), float("inf"), [], {}, "NaN", NEWER])
def test_what_is_no_number_at_all_is_unknown(value: Any) -> None:
    assert amount(value) is whole(value) is moment(value) is None


@given(st.integers(10**11, 10**14 - 1))
def test_times_are_in_milliseconds(milliseconds: int) -> None:
    assert moment(milliseconds) == milliseconds / 1000
    assert moment(milliseconds // 1000 % 10**11) is None, "a number of seconds, or none"
    assert moment(str(milliseconds)) is None


# Instance types


RECORDED: Mapping[str, Any] = json.loads(gzip.decompress(EC2.read_bytes()))


@given(st.sampled_from(sorted(RECORDED)), SEEDS)
def test_a_type_of_which_less_is_told_is_the_same_or_unknown(name: str, dice: random.Random) -> None:
    answer = thinned(RECORDED[name], service("ec2").shape_for("InstanceTypeInfo"), dice, part=0.15)
    known, less = described(RECORDED[name]), described({**answer, "InstanceType": name})
    if less is not None:
        assert known is not None
        gone = not known.count or "GpuInfo" in answer or "NeuronInfo" in answer
        chip = {} if gone else {"accelerator": "", "count": 0}
        assert less.efa in (None, known.efa)
        assert attrs.evolve(less, efa=None) == attrs.evolve(known, efa=None, **chip)


@pytest.mark.parametrize("change", [{"Count": None}, {"Count": 0}, {"GpuPartitionSize": 0.5}, {"Name": None}])
def test_an_accelerator_of_which_too_little_is_told(change: dict[str, Any]) -> None:
    answer = RECORDED["g6.xlarge"]
    (chip,) = answer["GpuInfo"]["Gpus"]
    assert described(answer) is not None
    assert described({**answer, "GpuInfo": {"Gpus": [{**chip, **change}]}}) is None
    small = {"MemoryInfo": {"SizeInMiB": 2861}}
    assert described({**answer, "GpuInfo": {"Gpus": [{**chip, **small}]}}) is None, "an eighth of an L4 is no L4"
    either = {**RECORDED["p4d.24xlarge"]["GpuInfo"]["Gpus"][0], "MemoryInfo": {}}
    assert described({**answer, "GpuInfo": {"Gpus": [either]}}) is None, "an A100 of 40 GB, or of 80"


# Queues


@given(st.sampled_from(sorted(CHOICES)), SEEDS)
def test_an_account_that_tells_less_refuses_nothing(case: str, dice: random.Random) -> None:
    names, words, _ = CHOICES[case]
    model = service("batch")
    environments = [thinned(one, model.shape_for("ComputeEnvironmentDetail"), dice) for one in ENVIRONMENTS]
    rows = [queue(f"{name}-q", name, jobQueueArn=f"arn:{name}", priority=1) for name in names.split()]
    rows = [thinned(row, model.shape_for("JobQueueDetail"), dice) for row in rows]
    answer = choose(ResourceSettings(**words), BatchSettings(), queues_of_account(rows, environments))
    assert isinstance(answer, QueueChoice), answer


def test_kinds_of_queues_that_are_new() -> None:
    """`ECS_MANAGED_INSTANCES` was such a kind: botocore 1.43.117 has it for queues and for compute environments."""
    environment = {**ENVIRONMENTS[0], "computeResources": {"type": "ECS_MANAGED_INSTANCES", "maxvCpus": 0}}
    rows = [queue("q", "cpu", jobQueueType="ECS_MANAGED_INSTANCES"), queue("pods", "cpu", jobQueueType="EKS")]
    (known,) = queues_of_account(rows, [environment])
    assert known.text == "q (of types that AWS does not tell (ECS_MANAGED_INSTANCES))"
    answer = choose(ResourceSettings(gpu_count=8), BatchSettings(), (known,))
    assert isinstance(answer, QueueChoice) and answer.text == "queue q: instance types not known"
    fargate = choose(ResourceSettings(), BatchSettings(platform="FARGATE"), (known,))
    assert isinstance(fargate, QueueChoice) and fargate.fargate


# Jobs


@given(st.sampled_from(sorted(WAITS)), SEEDS)
def test_a_wait_of_which_less_is_told_is_no_more_hopeless(case: str, dice: random.Random) -> None:
    job, its_queue, environments, _, hopeless = WAITS[case]
    model = service("batch")
    less = thinned(job, model.shape_for("JobDetail"), dice)
    rows = [thinned(one, model.shape_for("ComputeEnvironmentDetail"), dice) for one in environments]
    reason = why_waiting(less, thinned(its_queue, model.shape_for("JobQueueDetail"), dice) if its_queue else {}, rows)
    if less["status"] == NEWER:
        assert reason is not None and reason.text == f"AWS Batch calls it {NEWER}"
    assert reason is None or not reason.hopeless or hopeless


@given(SEEDS)
def test_an_end_of_which_less_is_told_is_no_success(dice: random.Random) -> None:
    less = thinned({**failed(exitCode=1), "jobId": "j"}, service("batch").shape_for("JobDetail"), dice)
    end = end_of(less)
    assert (end is None) == (less["status"] == NEWER)
    assert end is None or (end.state == "failed" and end.exit_code in (None, 1))


@pytest.mark.parametrize(
    ("document", "services"),
    [
        ({"Statement": [{"Principal": {"Service": ["a", "b"]}}, {"Principal": {"AWS": "*"}}]}, {"a", "b"}),
        ('%7B"Statement":%7B"Principal":%7B"Service":"a"%7D%7D%7D', {"a"}),
        ({"Statement": [{"Principal": "*"}]}, None),
        ({"Statement": [{"NotPrincipal": {"Service": "a"}}]}, None),
        ({}, None), (None, None), ("<html>", None), ({"Statement": "any"}, None),
    ],
)  # fmt: skip
def test_who_may_take_a_role(document: Any, services: set[str] | None) -> None:
    assert _trusted(document) == services
