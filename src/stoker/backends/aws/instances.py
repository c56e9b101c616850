"""Types of EC2 instances: vCPUs, memory, accelerators, Elastic Fabric Adapters. Pure; `EC2.DescribeInstanceTypes` says
the same of types that no table here has."""

from __future__ import annotations

import functools
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.backends.aws.api import amount, whole
from stoker.core.accelerators import MODELS, model
from stoker.core.errors import SettingsError

SOURCES: Final[Mapping[str, str]] = {
    # What the API answers, as Karpenter prints it for every type; core counts of Neuron devices included.
    "api": "https://karpenter.sh/docs/reference/instance-types/",
    # Types that Karpenter leaves out because they are of an earlier generation, and the newest ones.
    "ac": "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html",
    "neuron": "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/",
    "gp": "https://docs.aws.amazon.com/ec2/latest/instancetypes/gp.html",
    "co": "https://docs.aws.amazon.com/ec2/latest/instancetypes/co.html",
    "mo": "https://docs.aws.amazon.com/ec2/latest/instancetypes/mo.html",
}
"""The key of a row's source → the page."""

_ROWS: Final = """
g4ad.xlarge      4     16  RadeonProV520:1  0   api
g4ad.2xlarge     8     32  RadeonProV520:1  0   api
g4ad.4xlarge    16     64  RadeonProV520:1  0   api
g4ad.8xlarge    32    128  RadeonProV520:2  0   api
g4ad.16xlarge   64    256  RadeonProV520:4  0   api
g4dn.xlarge      4     16  T4:1             0   api
g4dn.2xlarge     8     32  T4:1             0   api
g4dn.4xlarge    16     64  T4:1             0   api
g4dn.8xlarge    32    128  T4:1             1   api
g4dn.12xlarge   48    192  T4:4             1   api
g4dn.16xlarge   64    256  T4:1             1   api
g4dn.metal      96    384  T4:8             1   api
g5.xlarge        4     16  A10G:1           0   api
g5.2xlarge       8     32  A10G:1           0   api
g5.4xlarge      16     64  A10G:1           0   api
g5.8xlarge      32    128  A10G:1           1   api
g5.12xlarge     48    192  A10G:4           1   api
g5.16xlarge     64    256  A10G:1           1   api
g5.24xlarge     96    384  A10G:4           1   api
g5.48xlarge    192    768  A10G:8           1   api
g5g.xlarge       4      8  T4G:1            0   api
g5g.2xlarge      8     16  T4G:1            0   api
g5g.4xlarge     16     32  T4G:1            0   api
g5g.8xlarge     32     64  T4G:1            0   api
g5g.16xlarge    64    128  T4G:2            0   api
g5g.metal       64    128  T4G:2            0   api
g6.xlarge        4     16  L4:1             0   api
g6.2xlarge       8     32  L4:1             0   api
g6.4xlarge      16     64  L4:1             0   api
g6.8xlarge      32    128  L4:1             1   api
g6.12xlarge     48    192  L4:4             1   api
g6.16xlarge     64    256  L4:1             1   api
g6.24xlarge     96    384  L4:4             1   api
g6.48xlarge    192    768  L4:8             1   api
gr6.4xlarge     16    128  L4:1             0   api
gr6.8xlarge     32    256  L4:1             1   api
g6e.xlarge       4     32  L40S:1           0   api
g6e.2xlarge      8     64  L40S:1           0   api
g6e.4xlarge     16    128  L40S:1           0   api
g6e.8xlarge     32    256  L40S:1           1   api
g6e.12xlarge    48    384  L40S:4           1   api
g6e.16xlarge    64    512  L40S:1           1   api
g6e.24xlarge    96    768  L40S:4           2   api
g6e.48xlarge   192   1536  L40S:8           4   api
g7.2xlarge       8     32  RTXPRO4500:1     0   api
g7.4xlarge      16     64  RTXPRO4500:1     0   api
g7.8xlarge      32    128  RTXPRO4500:1     1   api
g7.12xlarge     48    192  RTXPRO4500:2     1   api
g7.24xlarge     96    384  RTXPRO4500:4     1   api
g7.48xlarge    192    768  RTXPRO4500:8     2   api
g7e.2xlarge      8     64  RTXPRO6000:1     0   api
g7e.4xlarge     16    128  RTXPRO6000:1     0   api
g7e.8xlarge     32    256  RTXPRO6000:1     1   api
g7e.12xlarge    48    512  RTXPRO6000:2     1   api
g7e.24xlarge    96   1024  RTXPRO6000:4     2   api
g7e.48xlarge   192   2048  RTXPRO6000:8     4   api
p3.2xlarge       8     61  V100:1           0   ac
p3.8xlarge      32    244  V100:4           0   ac
p3.16xlarge     64    488  V100:8           0   ac
p3dn.24xlarge   96    768  V100-32GB:8      1   api
p4d.24xlarge    96   1152  A100:8           4   api
p4de.24xlarge   96   1152  A100-80GB:8      4   api
p5.4xlarge      16    256  H100:1           1   api
p5.48xlarge    192   2048  H100:8          32   api
p5e.48xlarge   192   2048  H200:8          32   api
p5en.48xlarge  192   2048  H200:8          16   api
p6-b200.48xlarge 192 2048  B200:8           8   api
p6-b300.48xlarge 192 4096  B300:8          16   api
inf1.xlarge      4      8  inferentia:1     0   api
inf1.2xlarge     8     16  inferentia:1     0   api
inf1.6xlarge    24     48  inferentia:4     0   api
inf1.24xlarge   96    192  inferentia:16    1   api
inf2.xlarge      4     16  inferentia2:1    0   api
inf2.8xlarge    32    128  inferentia2:1    0   api
inf2.24xlarge   96    384  inferentia2:6    0   api
inf2.48xlarge  192    768  inferentia2:12   0   api
trn1.2xlarge     8     32  trainium:1       0   api
trn1.32xlarge  128    512  trainium:16      8   api
trn1n.32xlarge 128    512  trainium:16     16   api
trn2.3xlarge    12    128  trainium2:1      1   ac
trn2.48xlarge  192   2048  trainium2:16    16   api
trn2u.48xlarge 192   2048  trainium2:16    16   ac
"""
"""Type, vCPUs, GiB of memory, accelerators, EFA interfaces, the key of the source."""
CORES: Final[Mapping[str, int]] = {"inferentia": 4, "inferentia2": 2, "trainium": 2, "trainium2": 8, "trainium3": 8}
"""Neuron model → physical NeuronCores of one device, which is a chip (`SOURCES["neuron"]`)."""
_FAMILIES: Final[Mapping[str, tuple[float, int, str]]] = {
    **{f"m{generation}": (4.0, most, "gp") for generation, most in (("4", 16), ("5", 24), ("5a", 24), ("6i", 32))},
    **{f"m{generation}": (4.0, most, "gp") for generation, most in (("6a", 48), ("7i", 48), ("7a", 48))},
    **{f"m{generation}": (4.0, most, "gp") for generation, most in (("6g", 16), ("7g", 16), ("8g", 48))},
    **{f"c{generation}": (2.0, most, "co") for generation, most in (("5", 24), ("5a", 24), ("6i", 32), ("6a", 48))},
    **{f"c{generation}": (2.0, most, "co") for generation, most in (("7i", 48), ("7a", 48), ("6g", 16), ("7g", 16))},
    "c8g": (2.0, 48, "co"),
    "r4": (7.625, 16, "mo"),
    **{f"r{generation}": (8.0, most, "mo") for generation, most in (("5", 24), ("5a", 24), ("6i", 32), ("6a", 48))},
    **{f"r{generation}": (8.0, most, "mo") for generation, most in (("7i", 48), ("7a", 48), ("6g", 16), ("7g", 16))},
    "r8g": (8.0, 48, "mo"),
}
"""Family without accelerators → GiB for each vCPU, the largest size in "xlarge", and the source. A size of N "xlarge"
has 4 × N vCPUs."""
OPTIMAL: Final = ("optimal", "default_x86_64", "default_arm64")
"""What stands for general families in a compute environment:
https://docs.aws.amazon.com/batch/latest/userguide/instance-type-compute-table.html"""
_GENERAL: Final[Mapping[str, tuple[str, ...]]] = {
    "optimal": ("m5", "c5", "r5"),
    "default_x86_64": ("m7i", "c7i", "r7i"),
    "default_arm64": ("m7g", "c7g", "r7g"),
}


@attrs.frozen(kw_only=True)
class InstanceType:
    """One type of EC2 instance."""

    name: str
    """Such as "p4d.24xlarge"."""
    vcpus: int
    memory: int
    """MiB, the operating system's part included."""
    accelerator: str = ""
    """The model's name in Stoker's catalog; empty without accelerators."""
    count: int = 0
    """Accelerators: GPUs, or Neuron devices, which are chips."""
    efa: int | None = None
    """Elastic Fabric Adapters that it may have; None where that is not known."""
    source: str = ""
    """The page that says so."""

    @property
    def is_neuron(self) -> bool:
        """Whether its accelerators are AWS's own."""
        return self.accelerator in CORES

    @property
    def text(self) -> str:
        """The type with its accelerators: "p4d.24xlarge: 8 × A100"."""
        return f"{self.name}: {self.count} × {self.accelerator}" if self.count else self.name


@functools.cache
def table() -> Mapping[str, InstanceType]:
    """The types with accelerators, by name."""
    types = {}
    for line in _ROWS.split("\n"):
        if line.strip():
            name, vcpus, memory, accelerators, efa, source = line.split()
            chip, _, count = accelerators.partition(":")
            types[name] = InstanceType(
                name=name,
                vcpus=int(vcpus),
                memory=int(memory) * 1024,
                accelerator=chip,
                count=int(count),
                efa=int(efa),
                source=SOURCES[source],
            )
    return types


def instance_type(name: str) -> InstanceType | None:
    """A type by its name; None for one that the tables do not have."""
    if name in table():
        return table()[name]
    family, _, size = name.partition(".")
    if family not in _FAMILIES:
        return None
    ratio, most, source = _FAMILIES[family]
    number = size.removesuffix("xlarge")
    if size == "large":
        vcpus = 2
    elif size.endswith("xlarge") and (not number or number.isdecimal()) and int(number or 1) <= most:
        vcpus = 4 * int(number or 1)
    else:
        return None
    return InstanceType(name=name, vcpus=vcpus, memory=int(vcpus * ratio * 1024), source=SOURCES[source])


def expand(names: Iterable[str]) -> tuple[tuple[InstanceType, ...], tuple[str, ...]]:
    """The types that a compute environment's list stands for, and the names that the tables do not know.

    A family ("p4d") stands for all its types; of families without accelerators for the largest, which holds all that
    any other one does.
    """
    types: dict[str, InstanceType] = {}
    unknown: list[str] = []
    for name in names:
        if name in OPTIMAL:
            largest = [_largest(family) for family in _GENERAL[name]]
        elif name in _FAMILIES:
            largest = [_largest(name)]
        elif "." not in name:
            largest = [each for each in table().values() if each.name.partition(".")[0] == name]
        else:
            exact = instance_type(name)
            largest = [] if exact is None else [exact]
        types.update((each.name, each) for each in largest)
        unknown += [] if largest else [name]
    return tuple(types.values()), tuple(unknown)


def _largest(family: str) -> InstanceType:
    largest = instance_type(f"{family}.{_FAMILIES[family][1]}xlarge")
    assert largest is not None
    return largest


def described(answer: Mapping[str, Any]) -> InstanceType | None:
    """A type as `EC2.DescribeInstanceTypes` describes it; an accelerator that the catalog lacks keeps AWS's name.

    None where the answer does not say what a step would get: every field of it is optional, and an accelerator may be a
    part of one.
    """
    vcpus = whole((answer.get("VCpuInfo") or {}).get("DefaultVCpus"))
    memory = whole((answer.get("MemoryInfo") or {}).get("SizeInMiB"))
    gpus, neurons = answer.get("GpuInfo"), answer.get("NeuronInfo")
    chips = [*((gpus or {}).get("Gpus") or ()), *((neurons or {}).get("NeuronDevices") or ())]
    if not vcpus or not memory or len(chips) != (gpus is not None) + (neurons is not None):
        return None
    name = _catalog_name(chips[0]) if chips else ""
    count = whole(chips[0].get("Count")) if chips else 0
    if chips and not (name and count):
        return None
    network = answer.get("NetworkInfo") or {}
    adapters = whole((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces"))
    return InstanceType(
        name=str(answer.get("InstanceType")),
        vcpus=vcpus,
        memory=memory,
        accelerator=name,
        count=count or 0,
        efa=0 if network.get("EfaSupported") is False else adapters,
        source="https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html",
    )


def _catalog_name(chip: Mapping[str, Any]) -> str:
    """The catalog's name of a chip by AWS's name and the memory of one; empty where they fit several or none of it."""
    name, size = str(chip.get("Name") or ""), whole((chip.get("MemoryInfo") or {}).get("SizeInMiB"))
    if amount(chip.get("GpuPartitionSize", 1)) != 1:
        return ""
    family = [each for each in MODELS if each == name or each.startswith(f"{name}-")]
    if not family:
        try:
            family = [model(name).name]
        except SettingsError:
            family = [each for each in (name.lower(),) if each in MODELS]
    if not family:
        return name
    if size is None:
        return family[0] if len(family) == 1 else ""
    # A driver keeps a part of the memory for itself, and AWS prints sizes of both kinds; of a Trainium2 it prints more.
    most = float("inf") if len(family) == 1 else 1.1
    return next((each for each in family if any(0.9 <= (size << 20) / has <= most for has in MODELS[each].memory)), "")
