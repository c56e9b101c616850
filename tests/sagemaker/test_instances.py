"""Which instance type a step gets, and whether the table is the service's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.sagemaker.model import MODEL

from stoker.backends.aws import instances as ec2
from stoker.backends.sagemaker.requests import NoType, choose, table
from stoker.core.resources import ResourceSettings

NAMES = frozenset(MODEL.shape_for("TrainingInstanceType").enum)
"""All types of training jobs, by botocore's model."""


def test_every_type_of_the_table_is_one_of_training_jobs() -> None:
    assert set(table()) <= NAMES


def test_every_type_with_accelerators_is_in_the_table() -> None:
    """But those that SageMaker no longer starts, and those whose parts no table of EC2 has."""
    known = {name for name in NAMES if (one := ec2.instance_type(name.removeprefix("ml."))) is not None and one.count}
    assert known == {name for name, each in table().items() if each.count}


CHOSEN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "nothing": ({}, "ml.m5.large"),
    "cpus": ({"cpu_count": 8}, "ml.c5.2xlarge"),
    "memory": ({"memory": "100GB"}, "ml.r5.4xlarge"),
    "memory that the system keeps": ({"memory": "16GiB"}, "ml.r5.xlarge"),
    "any gpu": ({"gpu_count": 1}, "ml.g4dn.xlarge"),
    "a gpu with memory": ({"gpu_memory": "40GB"}, "ml.g6e.xlarge"),
    "a model": ({"accelerators": "A10G:4"}, "ml.g5.12xlarge"),
    "a model and cpus": ({"accelerators": "A10G:1", "cpu_count": 20}, "ml.g5.8xlarge"),
    "eight": ({"accelerators": "H100:8"}, "ml.p5.48xlarge"),
    "the second": ({"accelerators": ["A100:1", "H100:1"]}, "ml.p5.4xlarge"),
    "trainium": ({"accelerators": "trainium:16"}, "ml.trn1.32xlarge"),
    "a vendor": ({"gpu_vendor": "neuron", "gpu_count": 1}, "ml.trn1.2xlarge"),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_chosen(case: str) -> None:
    words, name = CHOSEN[case]
    choice = choose(ResourceSettings(**words))
    assert not isinstance(choice, NoType), choice
    assert choice.name == name and choice.among


NOT: Mapping[str, tuple[Mapping[str, Any], str, str, str]] = {
    # resources, the named type, words of the reason, words of the fix
    "part of an instance": ({"accelerators": "A100:1"}, "", "an instance has 8 × A100", "accelerators='A100:8'"),
    "more than an instance": ({"accelerators": "H100:9"}, "", "1 or 8 × H100", "accelerators='H100:8'"),
    "another vendor": ({"accelerators": "MI300X:8"}, "", "training jobs have A100,", "AWS Batch or SkyPilot"),
    "cpus": ({"cpu_count": 200}, "", "96 vCPUs", "instance_type"),
    "cpus beside a gpu": ({"accelerators": "T4:1", "cpu_count": 96}, "", "64 vCPUs", "ask for less"),
    "another type": ({"accelerators": "A100:8"}, "ml.g5.xlarge", "whole", "accelerators='A10G:1'"),
    "none on a gpu": ({}, "ml.g5.xlarge", "whole", "accelerators='A10G:1'"),
    "a gpu on none": ({"gpu_count": 1}, "ml.m5.large", "whole", "gpu_count=0"),
    "too small": ({"memory": "64GB"}, "ml.m5.large", "2 vCPUs", "remove instance_type"),
}


@pytest.mark.parametrize("case", NOT)
def test_none_holds_it(case: str) -> None:
    words, named, why, fix = NOT[case]
    choice = choose(ResourceSettings(**words), named)
    assert isinstance(choice, NoType)
    assert why in choice.why and fix in choice.fix, choice


def test_a_named_type() -> None:
    choice = choose(ResourceSettings(accelerators="A10G:1"), "ml.g5.2xlarge")
    assert not isinstance(choice, NoType) and choice.text == "ml.g5.2xlarge: 8 vCPUs, 32 GiB, 1 × A10G"
    newer = choose(ResourceSettings(gpu_count=3), "ml.p9.48xlarge")
    assert not isinstance(newer, NoType) and newer.type is None
