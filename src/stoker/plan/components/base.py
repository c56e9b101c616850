"""The type of a component, and what components share: does a CUDA run on the driver, does code run on the chips?

A component reads so: its table has the facts of each version, each row with its source; `check` looks the step's
version up and yields

* a `Fact` for what is known and fits, with the row's source;
* an `UnknownFact` for what is not known: no row for this version, a version that is decided only at the installation, a
  device or driver that is not known;
* a `Finding` of level "error" for what is known not to fit. It refuses the plan, so that only facts may lead to it. A
  step with `facts.required` False runs without its devices, and then the level is "info": `problem_finding` does it.

A check that yields nothing says that its component has no part in whether the devices can be used. Checks start
nothing, read no file and use no network.
"""

from __future__ import annotations

from typing import Callable, Final, Iterable, Iterator, Sequence

import attrs

from stoker.core.findings import Finding
from stoker.core.proof import Fact, UnknownFact
from stoker.plan.distributions import StepDistribution
from stoker.plan.rules import PlanFacts
from stoker.vendors.builds import Hardware, Version, dotted, numbers
from stoker.vendors.nvidia.builds import FIRST_CUDA, FLOORS, covers, runs

Evidence = Fact | UnknownFact | Finding

DRIVER: Final = "driver"
CHIP: Final = "chip"
MINOR_VERSIONS: Final = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
TOOLKIT_DRIVERS: Final = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes, table 3"


@attrs.frozen(kw_only=True)
class ProofComponent:
    """One thing that decides whether a step can use its accelerators: a framework, a package, the driver, the chip.

    A distribution registers its own by an entry point in the group `stoker.components`.
    """

    name: str
    """As facts and reasons name it: "torch"."""
    distributions: frozenset[str] = frozenset()
    """Canonical names of the distributions that it knows; with none it is asked of every step with accelerators. A
    distribution of which no component knows counts as one that has no part in it, unless `known.USES_DEVICES` has it.
    """
    check: Callable[[PlanFacts, Sequence[StepDistribution]], Iterable[Evidence]]
    """Called with those of its distributions that the step will find, if there is one, or with all of them if it names
    none."""


def runs_cuda(facts: PlanFacts, cuda: Version, needed_by: str) -> Iterator[Fact | UnknownFact]:
    """Whether the drivers of all devices that the step could get run a CUDA.

    `needed_by` is the title of what was built for it. A driver that is too old is an `UnknownFact` here, so that no
    step is proved with it; refusing the plan is up to the rule or the component that knows more.
    """
    for held in facts.targets:
        if held.kind != "nvidia":
            continue
        if held.cuda is None and not (held.driver and cuda[0] in FLOORS):
            yield UnknownFact(
                component=DRIVER,
                reason=f"the driver of {models_text(held)} is not known: {needed_by} needs one that runs CUDA "
                f"{dotted(cuda)}{_floor_text(cuda)}",
            )
        elif runs(cuda, held.driver, held.cuda):
            yield Fact(
                component=DRIVER,
                fact=f"{driver_text(held)} runs CUDA {dotted(cuda)}",
                source=_driver_source(cuda, held),
            )
        else:
            text = f"{driver_text(held)} does not run CUDA {dotted(cuda)} of {needed_by}{_floor_text(cuda)}"
            yield UnknownFact(component=DRIVER, reason=text)


def has_code(
    facts: PlanFacts, archs: Sequence[str], cuda: Version | None, *, title: str, source: str
) -> Iterator[Fact | UnknownFact]:
    """Whether code for some chips runs on all that the step could get.

    `archs` is a list as `vendors.nvidia.builds.archs_of` gives it, `title` what has the code: "torch 2.4.0+cu121". A
    chip without code is an `UnknownFact`, as in `runs_cuda`.
    """
    component = title.partition(" ")[0]
    for held in facts.targets:
        for chip, model in held.chips.items():
            way = covers(archs, chip, cuda)
            name = f"sm_{chip[0]}{chip[1]}"
            too_new = way == "ptx" and bool(held.cuda and cuda and tuple(held.cuda) < tuple(cuda))
            if way == "code":
                yield Fact(component=component, fact=f"{title} has code for {name} ({model})", source=source)
            elif way == "ptx" and (first := first_cuda(chip, cuda)):
                yield UnknownFact(component=component, reason=only_ptx_text(title, f"{name} ({model})", cuda, first))
            elif way == "ptx" and not too_new:
                text = f"{title} has PTX, which the driver compiles for {name} ({model})"
                yield Fact(component=component, fact=text, source=source)
            else:
                reason = f"{title} has no code for {name} ({model})"
                yield UnknownFact(
                    component=component, reason=reason + (" that this driver compiles" if too_new else "")
                )


def first_cuda(chip: tuple[int, int], cuda: Version | None) -> Version:
    """The first CUDA whose libraries have code for a chip, if `cuda` is older than that; else nothing."""
    first = FIRST_CUDA.get(chip[0], ())
    # (12,) is any CUDA 12
    return first if cuda and tuple(cuda[:2]) < first[: len(cuda)] else ()


def only_ptx_text(title: str, chip: str, cuda: Version | None, first: Version) -> str:
    """Why PTX is no proof: the libraries beside it, cuBLAS and cuDNN, are from before the chip."""
    libraries = f"the libraries of CUDA {dotted(cuda or ())} have no code for it"
    return f"{title} has only PTX for {chip}, and {libraries}: those of {dotted(first)} are the first"


def below_minimum(facts: PlanFacts, least: Version) -> Iterator[tuple[Hardware, str]]:
    """The devices whose compute capability is below a minimum, each with its words: "T4 (sm_75)"."""
    for held in facts.targets:
        for chip, model in held.chips.items():
            if chip < tuple(least):
                yield held, f"{model} (sm_{chip[0]}{chip[1]})"


def problem_finding(facts: PlanFacts, code: str, what: str, *, why: str = "", fix: str = "") -> Finding:
    """The finding about something that is known not to fit: an error unless the step may run without its devices."""
    level = "error" if facts.required else "info"
    return Finding(code=code, level=level, where=facts.where, what=what, why=why, fix=fix)  # type: ignore[arg-type]


def no_facts(item: StepDistribution, of: str = "") -> UnknownFact:
    """That the tables have nothing of a distribution's version, or that its version is not known before it is
    installed; `of` says under which circumstances: "on an image without cuDNN"."""
    if not item.version:
        reason = f"{item.text or item.name}: its version is decided when it is installed, pin it"
    else:
        reason = f"no facts for {item.title}" + (f" {of}" if of else "")
    return UnknownFact(component=item.name, reason=reason)


def models_text(held: Hardware) -> str:
    """The models of some devices, "L4 or A10G"; "the devices" if they are not known."""
    return " or ".join(held.models or tuple(held.chips.values())) or "the devices"


def driver_text(held: Hardware) -> str:
    """`"driver 550.54.15"`; `"the driver (CUDA 12.4)"` if only its CUDA is known."""
    return f"driver {held.driver}" if held.driver else f"the driver (CUDA {dotted(held.cuda or ())})"


def _floor_text(cuda: Version) -> str:
    floor = FLOORS.get(cuda[0])
    return f" (driver {floor} or later)" if floor else ""


def _driver_source(cuda: Version, held: Hardware) -> str:
    if held.cuda is not None and tuple(held.cuda) >= tuple(cuda):
        return TOOLKIT_DRIVERS
    return MINOR_VERSIONS if numbers(held.driver) else TOOLKIT_DRIVERS
