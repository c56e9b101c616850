"""How accelerators are requested from Slurm: the catalog's names become a site's types, GRES or features.

Slurm knows a GPU by a type that the site's administrator chose (https://slurm.schedmd.com/gres.html), and takes one
type in a request. Among alternatives it can choose only where they are features of nodes: `--constraint="h100|a100"`
(https://slurm.schedmd.com/sbatch.html#OPT_constraint). Otherwise the first one is requested, with a remark. All that
is known of a site here is `gres_types`; `facts` checks whether the cluster has a type.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.slurm.settings import FEATURE, OF_ITS_OWN, SlurmSettings
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.resources import ResourceSettings, describe
from stoker.core.units import size_text
from stoker.vendors.registry import USUAL, VENDORS

GPU: Final = "gpu"
"""The GRES of GPUs."""
NO_TYPE: Final = "STK151"
A_PART: Final = "STK153"
TWO_CONSTRAINTS: Final = "STK158"
_COMPOUND: Final = frozenset("|[](*&")
_WAY: Final = 'gres_types={"H100": "h100"} of SlurmSettings says what the site calls its GPUs'


@attrs.frozen(kw_only=True)
class SiteName:
    """A site's name for a kind of device: a GRES and its type, or a feature of nodes."""

    gres: str = GPU
    type: str = ""
    """Empty for any type."""
    feature: str = ""
    """The feature of nodes that have the kind; empty where the type tells it."""
    guess: bool = False
    """Whether the name is guessed, because `gres_types` lacks the kind."""

    @property
    def text(self) -> str:
        """The value for `--gres`, without a count."""
        return f"{self.gres}:{self.type}" if self.type else self.gres


@attrs.frozen(kw_only=True)
class DeviceProblem:
    """Why accelerators cannot be requested: the parts of a finding."""

    code: str
    what: str
    why: str
    fix: str


@attrs.frozen(kw_only=True)
class DeviceRequest:
    """The request for the accelerators of each node."""

    name: SiteName | None = None
    """None for a step without accelerators."""
    count: int = 0
    constraint: str = ""
    """Features of nodes, with those of the settings."""
    remarks: tuple[str, ...] = ()
    """Sentences about differences from what the step asks for."""
    problem: DeviceProblem | None = None
    """Why there is no request; None where there is one."""

    def gres(self, settings: SlurmSettings, extended: Mapping[str, float]) -> tuple[str, ...]:
        """The entries of `--gres`, without GPUs where another option requests them."""
        entries = [] if self.name is None or self.per_node(settings) else [f"{self.name.text}:{self.count}"]
        return (*entries, *(f"{name}:{round(amount)}" for name, amount in sorted(extended.items())))

    def per_node(self, settings: SlurmSettings) -> str:
        """The value of `--gpus-per-node`, where that option requests GPUs; else empty."""
        if self.name is None or self.name.gres != GPU or settings.get("gpus_as", "gres") == "gres":
            return ""
        return f"{self.name.type}:{self.count}" if self.name.type else str(self.count)


def device_request(resources: ResourceSettings, settings: SlurmSettings) -> DeviceRequest:
    """The request for a step's accelerators, or why there can be none."""
    count, constraint = resources.gpus_per_node, settings.get("constraint", "")
    if not count:
        return DeviceRequest(constraint=constraint)
    if resources.get("share"):
        return DeviceRequest(problem=_no_sharing(resources))
    types = settings.get("gres_types", {})
    kinds: Sequence[Accelerator] = resources.get("accelerators", ())
    remarks: list[str] = []
    if not kinds and (resources.get("gpu_memory") or resources.get("gpu_vendor")):
        kinds, problem = _pick_kind(resources, types)
        if problem is not None:
            return DeviceRequest(problem=problem)
        remarks.append(f"{_request_text(resources)} is asked for as {kinds[0]}, by gres_types")
    if not kinds:
        return DeviceRequest(name=SiteName(), count=count, constraint=constraint)
    site_names = {kind: site_name(kind, types) for kind in kinds}
    unknown = next((kind for kind, name in site_names.items() if name is None), None)
    if unknown is not None:
        return DeviceRequest(problem=_unknown_kind(unknown))
    return _of_kinds(
        {kind: name for kind, name in site_names.items() if name is not None}, resources, constraint, remarks
    )


def site_name(kind: Accelerator, types: Mapping[str, str]) -> SiteName | None:
    """The site's name for a kind; None where it cannot be guessed.

    The guess for a GPU is the chip alone, in small letters: "A100-80GB" by "a100"; its MIG slice by both:
    "a100_1g.10gb", which is what sites make of the names that AutoDetect=nvml finds
    (https://slurm.schedmd.com/gres.html#MIG_Management).
    """
    whole = types.get(kind.name)
    text = types.get(f"{kind.name}/{kind.slice}") if kind.slice else whole
    if text:
        return _parse_site_name(text)
    if kind.slice and whole and not whole.startswith((FEATURE, OF_ITS_OWN)):
        return SiteName(type=f"{whole}_{kind.slice}", guess=True)
    if VENDORS.load(kind.model.vendor).noun != "GPU":
        return None  # each site has a name of its own for these
    chip = kind.name.partition("-")[0].lower()
    return SiteName(type=f"{chip}_{kind.slice}" if kind.slice else chip, guess=True)


def _parse_site_name(text: str) -> SiteName:
    if text.startswith(FEATURE):
        return SiteName(feature=text.removeprefix(FEATURE))
    if text.startswith(OF_ITS_OWN):
        gres, _, type = text.removeprefix(OF_ITS_OWN).partition(":")
        return SiteName(gres=gres, type=type)
    return SiteName(type=text)


def _of_kinds(
    site_names: Mapping[Accelerator, SiteName], resources: ResourceSettings, constraint_set: str, remarks: list[str]
) -> DeviceRequest:
    """One request of all alternatives, if Slurm can choose among them; else of the first."""
    first = next(iter(site_names))
    counts = {kind.count or resources.gpus_per_node for kind in site_names}
    features = [other.feature for other in site_names.values()]
    count = first.count or resources.gpus_per_node
    if all(features) and len(counts) == 1:
        choice = "|".join(dict.fromkeys(features))
        several = "|" in choice
        if several and resources.get("nodes", 1) > 1:
            choice = f"[{choice}]"  # all nodes of one kind
        if constraint_set and (several or _COMPOUND & set(constraint_set) - {"&"}):
            return DeviceRequest(problem=_two_constraints(constraint_set, choice))
        return DeviceRequest(
            name=SiteName(),
            count=count,
            constraint=f"{constraint_set}&{choice}" if constraint_set else choice,
            remarks=tuple(remarks),
        )
    name = site_names[first]
    others = [str(kind) for kind, other in site_names.items() if other != name or (kind.count or count) != count]
    if others:
        remarks.append(f"{first} is asked for, and not {' or '.join(others)}: Slurm takes one type for a request")
    if name.guess and name.type != first.name.lower():
        remarks.append(f"{attrs.evolve(first, count=None)} is asked for as the type '{name.type}'")
    if name.feature and constraint_set and _COMPOUND & set(constraint_set) - {"&"}:
        return DeviceRequest(problem=_two_constraints(constraint_set, name.feature))
    constraint = "&".join(filter(None, (constraint_set, name.feature)))
    return DeviceRequest(name=name, count=count, constraint=constraint, remarks=tuple(remarks))


def _pick_kind(
    resources: ResourceSettings, types: Mapping[str, str]
) -> tuple[Sequence[Accelerator], DeviceProblem | None]:
    """The site's smallest kind with the memory and of the vendor that the step asks for."""
    memory, vendor = resources.get("gpu_memory", 0), resources.get("gpu_vendor", "")
    suitable = [kind for kind in _kinds(types) if _least(kind) >= memory and (not vendor or kind.model.is_by(vendor))]
    if suitable:
        best = min(suitable, key=lambda kind: (bool(kind.slice), _least(kind)))
        return (attrs.evolve(best, count=resources.gpus_per_node),), None
    what = f"asks for {describe(resources)}: Slurm knows GPUs by their types only"
    why = "none of those in gres_types is of that kind" if types else "which types would do is not known"
    name = VENDORS.load(vendor or USUAL).example or next(
        (n for n, model in MODELS.items() if model.is_by(vendor)), "H100"
    )
    return (), DeviceProblem(code=NO_TYPE, what=what, why=why, fix=f'name the kind: accelerators="{name}:1"; or {_WAY}')


def _kinds(types: Mapping[str, str]) -> Iterable[Accelerator]:
    return (Accelerator.parse(name) for name, text in types.items() if text)


def _least(kind: Accelerator) -> int:
    """Bytes of one device, in the smallest size of its kind that is sold."""
    return kind.memory if kind.slice else kind.model.memory[0]


def _request_text(resources: ResourceSettings) -> str:
    memory, vendor = resources.get("gpu_memory", 0), resources.get("gpu_vendor", "")
    return " and ".join(
        filter(None, (f"gpu_memory={size_text(memory)}" if memory else "", f"gpu_vendor={vendor}" if vendor else ""))
    )


def _no_sharing(resources: ResourceSettings) -> DeviceProblem:
    return DeviceProblem(
        code=A_PART,
        what=f"asks for {describe(resources)}: Slurm gives no bytes of a GPU",
        why="what a shard, or a part by MPS, is worth differs from site to site "
        "(https://slurm.schedmd.com/gres.html#Sharding)",
        fix='ask for a MIG slice (accelerators="A100-80GB/1g.10gb") or a whole one; where the site has shards, one is '
        'accelerators="A100:1" without share, with gres_types={"A100": "gres/shard"}',
    )


def _unknown_kind(kind: Accelerator) -> DeviceProblem:
    return DeviceProblem(
        code=NO_TYPE,
        what=f"asks for {kind}, which Slurm does not know as a GPU",
        why="each site has a name of its own for these",
        fix=f'say which: gres_types={{"{kind.name}": "gres/neuron"}} of SlurmSettings, for example',
    )


def _two_constraints(constraint: str, choice: str) -> DeviceProblem:
    return DeviceProblem(
        code=TWO_CONSTRAINTS,
        what=f"asks for nodes with {choice}, and its constraint is '{constraint}'",
        why="Slurm reads operators from left to right, so that the two cannot be put together safely",
        fix="write both into constraint, and name no accelerators but gpu_count",
    )


def vendor_of(resources: ResourceSettings) -> str:
    """The vendor of a step's accelerators; empty where the step names none."""
    kinds: Any = resources.get("accelerators", ())
    return str(kinds[0].model.vendor) if kinds else str(resources.get("gpu_vendor", ""))
