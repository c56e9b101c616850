"""How accelerators are asked of Slurm: names of the catalog as the types, GRES or features that a site calls them.

Slurm knows a GPU by a type that the site's administrator chose (https://slurm.schedmd.com/gres.html), and takes one
type in a request. Among alternatives it can choose only where they are features of nodes: `--constraint="h100|a100"`
(https://slurm.schedmd.com/sbatch.html#OPT_constraint). Otherwise the first one is asked for, and that is said. Nothing
of a site is known here but `gres_types`; whether a type is there is proved against the cluster.
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
class Named:
    """What a site calls a kind: the GRES and its type, or the feature of its nodes. `guess`: nobody said so."""

    gres: str = GPU
    type: str = ""
    feature: str = ""
    guess: bool = False

    @property
    def text(self) -> str:
        """As `--gres` takes it, without a count."""
        return f"{self.gres}:{self.type}" if self.type else self.gres


@attrs.frozen(kw_only=True)
class DeviceProblem:
    """Why Slurm cannot be asked for some devices, as the parts of a finding."""

    code: str
    what: str
    why: str
    fix: str


@attrs.frozen(kw_only=True)
class Asked:
    """The accelerators of each node as Slurm is asked for them. `constraint` has features, with those that settings
    give; `told` says in words where it is not literally what the step asks for."""

    named: Named | None = None
    count: int = 0
    constraint: str = ""
    told: tuple[str, ...] = ()
    problem: DeviceProblem | None = None

    def gres(self, settings: SlurmSettings, extended: Mapping[str, float]) -> tuple[str, ...]:
        """The entries of `--gres`; GPUs are not among them where they are asked for by another option."""
        found = [] if self.named is None or self.per_node(settings) else [f"{self.named.text}:{self.count}"]
        return (*found, *(f"{name}:{round(amount)}" for name, amount in sorted(extended.items())))

    def per_node(self, settings: SlurmSettings) -> str:
        """The value of `--gpus-per-node`, where that is how GPUs are asked for."""
        if self.named is None or self.named.gres != GPU or settings.get("gpus_as", "gres") == "gres":
            return ""
        return f"{self.named.type}:{self.count}" if self.named.type else str(self.count)


def asked(resources: ResourceSettings, settings: SlurmSettings) -> Asked:
    """How a step's accelerators are asked for, or why they cannot be."""
    count, own = resources.gpus_per_node, settings.get("constraint", "")
    if not count:
        return Asked(constraint=own)
    if resources.get("share"):
        return Asked(problem=_shared(resources))
    types = settings.get("gres_types", {})
    kinds: Sequence[Accelerator] = resources.get("accelerators", ())
    told: list[str] = []
    if not kinds and (resources.get("gpu_memory") or resources.get("gpu_vendor")):
        kinds, problem = _picked(resources, types)
        if problem is not None:
            return Asked(problem=problem)
        told.append(f"{_wanted(resources)} is asked for as {kinds[0]}, by gres_types")
    if not kinds:
        return Asked(named=Named(), count=count, constraint=own)
    found = {kind: named(kind, types) for kind in kinds}
    unknown = next((kind for kind, one in found.items() if one is None), None)
    if unknown is not None:
        return Asked(problem=_unknown(unknown))
    return _of_kinds({kind: one for kind, one in found.items() if one is not None}, resources, own, told)


def named(kind: Accelerator, types: Mapping[str, str]) -> Named | None:
    """What the site calls a kind; None where nobody can guess.

    A GPU is guessed to be called by the chip alone, in small letters: "A100-80GB" by "a100"; its MIG slice by both:
    "a100_1g.10gb", which is what sites make of the names that AutoDetect=nvml finds
    (https://slurm.schedmd.com/gres.html#MIG_Management).
    """
    whole = types.get(kind.name)
    said = types.get(f"{kind.name}/{kind.slice}") if kind.slice else whole
    if said:
        return _said(said)
    if kind.slice and whole and not whole.startswith((FEATURE, OF_ITS_OWN)):
        return Named(type=f"{whole}_{kind.slice}", guess=True)
    if VENDORS.load(kind.model.vendor).noun != "GPU":
        return None  # each site has a name of its own for these
    chip = kind.name.partition("-")[0].lower()
    return Named(type=f"{chip}_{kind.slice}" if kind.slice else chip, guess=True)


def _said(text: str) -> Named:
    if text.startswith(FEATURE):
        return Named(feature=text.removeprefix(FEATURE))
    if text.startswith(OF_ITS_OWN):
        gres, _, type = text.removeprefix(OF_ITS_OWN).partition(":")
        return Named(gres=gres, type=type)
    return Named(type=text)


def _of_kinds(found: Mapping[Accelerator, Named], resources: ResourceSettings, own: str, told: list[str]) -> Asked:
    """One request of all alternatives, if Slurm can choose among them; else of the first."""
    first = next(iter(found))
    counts = {kind.count or resources.gpus_per_node for kind in found}
    features = [one.feature for one in found.values()]
    count = first.count or resources.gpus_per_node
    if all(features) and len(counts) == 1:
        choice = "|".join(dict.fromkeys(features))
        several = "|" in choice
        if several and resources.get("nodes", 1) > 1:
            choice = f"[{choice}]"  # all nodes of one kind
        if own and (several or _COMPOUND & set(own) - {"&"}):
            return Asked(problem=_two_constraints(own, choice))
        return Asked(named=Named(), count=count, constraint=f"{own}&{choice}" if own else choice, told=tuple(told))
    name = found[first]
    others = [str(kind) for kind, one in found.items() if one != name or (kind.count or count) != count]
    if others:
        told.append(f"{first} is asked for, and not {' or '.join(others)}: Slurm takes one type for a request")
    if name.guess and name.type != first.name.lower():
        told.append(f"{attrs.evolve(first, count=None)} is asked for as the type '{name.type}'")
    if name.feature and own and _COMPOUND & set(own) - {"&"}:
        return Asked(problem=_two_constraints(own, name.feature))
    constraint = "&".join(filter(None, (own, name.feature)))
    return Asked(named=name, count=count, constraint=constraint, told=tuple(told))


def _picked(
    resources: ResourceSettings, types: Mapping[str, str]
) -> tuple[Sequence[Accelerator], DeviceProblem | None]:
    """The smallest kind of the site's that has the memory and is of the vendor that the step asks for."""
    memory, vendor = resources.get("gpu_memory", 0), resources.get("gpu_vendor", "")
    fitting = [kind for kind in _kinds(types) if _least(kind) >= memory and (not vendor or kind.model.is_by(vendor))]
    if fitting:
        best = min(fitting, key=lambda kind: (bool(kind.slice), _least(kind)))
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
    """Bytes that each of a kind has, in the smallest size that is sold."""
    return kind.memory if kind.slice else kind.model.memory[0]


def _wanted(resources: ResourceSettings) -> str:
    memory, vendor = resources.get("gpu_memory", 0), resources.get("gpu_vendor", "")
    return " and ".join(
        filter(None, (f"gpu_memory={size_text(memory)}" if memory else "", f"gpu_vendor={vendor}" if vendor else ""))
    )


def _shared(resources: ResourceSettings) -> DeviceProblem:
    return DeviceProblem(
        code=A_PART,
        what=f"asks for {describe(resources)}: Slurm gives no bytes of a GPU",
        why="what a shard, or a part by MPS, is worth differs from site to site "
        "(https://slurm.schedmd.com/gres.html#Sharding)",
        fix='ask for a MIG slice (accelerators="A100-80GB/1g.10gb") or a whole one; where the site has shards, one is '
        'accelerators="A100:1" without share, with gres_types={"A100": "gres/shard"}',
    )


def _unknown(kind: Accelerator) -> DeviceProblem:
    return DeviceProblem(
        code=NO_TYPE,
        what=f"asks for {kind}, which Slurm does not know as a GPU",
        why="each site has a name of its own for these",
        fix=f'say which: gres_types={{"{kind.name}": "gres/neuron"}} of SlurmSettings, for example',
    )


def _two_constraints(own: str, choice: str) -> DeviceProblem:
    return DeviceProblem(
        code=TWO_CONSTRAINTS,
        what=f"asks for nodes with {choice}, and its constraint is '{own}'",
        why="Slurm reads operators from left to right, so that the two cannot be put together safely",
        fix="write both into constraint, and name no accelerators but gpu_count",
    )


def vendor_of(resources: ResourceSettings) -> str:
    """The maker of a step's accelerators, as far as it says; empty where it does not."""
    kinds: Any = resources.get("accelerators", ())
    return str(kinds[0].model.vendor) if kinds else str(resources.get("gpu_vendor", ""))
