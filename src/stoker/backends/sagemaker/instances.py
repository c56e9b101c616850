"""The instance types of training jobs: which one a step gets. Pure.

SageMaker names the types of EC2 with "ml." before them; what each has is in `aws_batch.instances`, with its sources.
"""

from __future__ import annotations

import functools
from typing import Final, Mapping, Sequence

import attrs

from stoker.backends.aws import instances as ec2
from stoker.backends.aws.instances import InstanceType
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.resources import ResourceSettings, describe
from stoker.core.units import size_text

SOURCE: Final = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html"
"""The page with all types of training jobs (`InstanceType`), read with botocore 1.43."""
PREFIX: Final = "ml."
_SIZES: Final = """
m5   large xlarge 2xlarge 4xlarge 12xlarge 24xlarge
c5   xlarge 2xlarge 4xlarge 9xlarge 18xlarge
r5   large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge
g4dn xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge
g5   xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
g6   xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
g6e  xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
g7   2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge
g7e  2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge
p3   2xlarge 8xlarge 16xlarge
p3dn 24xlarge
p4d  24xlarge
p4de 24xlarge
p5   4xlarge 48xlarge
p5e  48xlarge
p5en 48xlarge
p6-b200 48xlarge
p6-b300 48xlarge
trn1  2xlarge 32xlarge
trn1n 32xlarge
trn2  48xlarge
"""
"""Families among which a step gets its type, and their sizes (`SOURCE`). Of types without accelerators m5, c5 and r5
stand for all: a stack may name another by `instance_type`."""
USABLE: Final = 0.9
"""The part of an instance's memory that a step can count on: the kernel and SageMaker's agents keep some."""
DEFAULT: Final = "ml.m5.large"
"""The type of a step that asks for nothing in particular."""


@attrs.frozen(kw_only=True)
class TypeChoice:
    """The instance type of a step."""

    name: str
    """Such as "ml.g5.2xlarge"."""
    type: InstanceType | None
    """What it has; None of one that no table has."""
    among: int = 0
    """How many types would hold the step; 0 where its settings name the type."""

    @property
    def text(self) -> str:
        """In words: "ml.g5.2xlarge: 8 vCPUs, 32GiB, 1 × A10G"."""
        if self.type is None:
            return f"{self.name}, of which Stoker knows nothing"
        chips = f", {self.type.count} × {self.type.accelerator}" if self.type.count else ""
        return f"{self.name}: {self.type.vcpus} vCPUs, {self.type.memory // 1024} GiB{chips}"


@attrs.frozen(kw_only=True)
class NoType:
    """Why no instance type holds a step."""

    what: str
    why: str
    fix: str


@functools.cache
def table() -> Mapping[str, InstanceType]:
    """The types among which a step gets its own, by SageMaker's name."""
    types = {}
    for line in _SIZES.strip().splitlines():
        family, *sizes = line.split()
        for size in sizes:
            known = ec2.instance_type(f"{family}.{size}")
            assert known is not None, f"{family}.{size}"
            types[f"{PREFIX}{family}.{size}"] = known
    return types


def choose(resources: ResourceSettings, named: str = "") -> TypeChoice | NoType:
    """The type that the settings name, or the smallest that has what a step asks for.

    A training job has its instances whole: a type with more accelerators than are asked for is not chosen, since all of
    them would be paid for.
    """
    if named:
        known = ec2.instance_type(named.removeprefix(PREFIX))
        choice = TypeChoice(name=named, type=known)
        return choice if known is None else _misfit(resources, choice) or choice
    kinds: Sequence[Accelerator | None] = resources.get("accelerators", ()) or (None,)
    for kind in kinds:
        fitting = {name: each for name, each in table().items() if _holds(each, resources, kind)}
        if fitting:
            name = min(fitting, key=lambda name: _size(fitting[name]))
            return TypeChoice(name=name, type=fitting[name], among=len(fitting))
    return _nothing(resources)


def _size(each: InstanceType) -> tuple[int, int, int]:
    memory = MODELS[each.accelerator].memory if each.count else (0,)
    return (max(memory), each.vcpus, each.memory)


def _holds(each: InstanceType, resources: ResourceSettings, kind: Accelerator | None) -> bool:
    return _has_devices(each, resources, kind) and _has_room(each, resources)


def _has_room(each: InstanceType, resources: ResourceSettings) -> bool:
    memory = resources.get("memory", 0)
    return bool(each.vcpus >= resources.get("cpu_count", 0) and each.memory * 2**20 * USABLE >= memory)


def _has_devices(each: InstanceType, resources: ResourceSettings, kind: Accelerator | None) -> bool:
    count = resources.gpus_per_node
    if each.count != count:
        return False
    if not count:
        return True
    model = MODELS[each.accelerator]
    if kind is not None:
        return each.accelerator == kind.name
    vendor = resources.get("gpu_vendor", "nvidia")
    return bool(model.vendor == vendor and max(model.memory, default=0) >= resources.get("gpu_memory", 0))


def _misfit(resources: ResourceSettings, choice: TypeChoice) -> NoType | None:
    """Why the named type does not hold a step; None where it does."""
    each = choice.type
    assert each is not None
    what = f"asks for {describe(resources)} on {choice.text}"
    kinds: Sequence[Accelerator | None] = resources.get("accelerators", ()) or (None,)
    if not any(_has_devices(each, resources, kind) for kind in kinds):
        why = "a training job gets its instance whole, with exactly these accelerators"
        asked = f"accelerators='{each.accelerator}:{each.count}'" if each.count else "gpu_count=0"
        return NoType(what=what, why=why, fix=f"ask for what it has: {asked}; or remove instance_type")
    if not _has_room(each, resources):
        usable = size_text(int(each.memory * 2**20 * USABLE))
        why = f"it has {each.vcpus} vCPUs, and about {usable} of its memory are left to a step"
        return NoType(what=what, why=why, fix="remove instance_type, or name a larger one")
    return None


def _nothing(resources: ResourceSettings) -> NoType:
    what = f"asks for {describe(resources)} on each node"
    count = resources.gpus_per_node
    kinds: Sequence[Accelerator | None] = resources.get("accelerators", ()) or (None,)
    same = [
        each
        for each in table().values()
        if each.count and any(_has_devices(attrs.evolve(each, count=count), resources, kind) for kind in kinds)
    ]
    if not count:
        large = max(table().values(), key=lambda each: (each.vcpus, each.memory) if not each.count else (0, 0))
        why = f"the largest instance without accelerators has {large.vcpus} vCPUs and {large.memory // 1024} GiB"
        return NoType(what=what, why=why, fix="ask for less, or SagemakerSettings(instance_type='ml.…')")
    if not same:
        names = sorted({each.accelerator for each in table().values() if each.count})
        why = f"training jobs have {', '.join(names)}"
        return NoType(what=what, why=why, fix="ask for one of these; or a step operator on AWS Batch or SkyPilot")
    counts = sorted({each.count for each in same})
    chip = same[0].accelerator
    if count in counts:
        largest = max((each for each in same if each.count == count), key=lambda each: each.memory)
        why = f"the largest with {count} × {chip} has {largest.vcpus} vCPUs and {largest.memory // 1024} GiB"
        return NoType(what=what, why=why, fix="ask for less")
    why = f"an instance has {' or '.join(map(str, counts))} × {chip}, and a training job gets it whole"
    larger = next((each for each in counts if each > count), counts[-1])
    fix = f"accelerators='{chip}:{larger}'; or a platform that divides instances: AWS Batch, Kubernetes on EKS"
    return NoType(what=what, why=why, fix=fix)
