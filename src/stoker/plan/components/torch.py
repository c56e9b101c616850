"""PyTorch: the chips that each release build has code for, and the CUDA that its driver must run; AMD's GPUs by ROCm.

The builds and their chips are in `vendors.nvidia.builds.TORCH`, which build a requirement brings in `plan.packages`. Of
builds for ROCm, code for one chip runs on that one alone.
"""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, NamedTuple, Sequence

from stoker.core.receipt import Fact, UnknownFact
from stoker.plan.components.base import (
    DRIVER,
    Evidence,
    ProofComponent,
    has_code,
    models_text,
    no_facts,
    problem_finding,
    runs_cuda,
)
from stoker.plan.components.cudalibraries import requirements_known
from stoker.plan.packages import FrameworkPackage
from stoker.plan.requirements import Release, numbers
from stoker.plan.rules import PlanFacts, StepDistribution, distributions
from stoker.vendors.amd import GFX
from stoker.vendors.builds import Hardware, Version, dotted
from stoker.vendors.registry import unfit

NO_CODE: Final = "STK204"
BUILDER: Final = "https://github.com/pytorch/builder, manywheel/build_docker.sh of the release's branch"
PYTORCH: Final = "https://github.com/pytorch/pytorch, .ci/docker/manywheel/build.sh"
MATRIX: Final = "https://rocm.docs.amd.com/en/latest/compatibility/compatibility-matrix.html"
KERNEL_DRIVER: Final = (
    "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html"
)

_TO_1030 = "900 906 908 90a 1030"
_TO_1100 = f"{_TO_1030} 1100"
_TO_942 = f"{_TO_1100} 942"
_TO_1201 = f"{_TO_942} 1101 1102 1200 1201"
_TO_1151 = f"{_TO_1201} 950 1150 1151"


class RocmBuild(NamedTuple):
    """The chips of PyTorch's own builds of some releases for some versions of ROCm."""

    first: Release
    """The first release of torch."""
    last: Release
    rocm: Release
    """The first version of ROCm; the row holds until that of a later row of the same releases."""
    chips: str
    source: str
    unsure: str = ""
    """Chips of which it is not known whether the builds have code for them."""


BUILDS: Final[Sequence[RocmBuild]] = (
    RocmBuild((1, 11), (2, 0), (4, 3), _TO_1030, BUILDER),
    RocmBuild((2, 1), (2, 2), (5, 5), _TO_1100, BUILDER),
    RocmBuild((2, 3), (2, 4), (5, 7), _TO_1100, BUILDER),
    RocmBuild((2, 3), (2, 4), (6, 0), _TO_942, BUILDER),
    RocmBuild((2, 5), (2, 6), (6, 0), _TO_942, PYTORCH),
    RocmBuild((2, 7), (2, 7), (6, 2), _TO_942, PYTORCH, unsure="1101 1102 1200 1201"),
    RocmBuild((2, 7), (2, 7), (6, 3), _TO_1201, PYTORCH),
    RocmBuild((2, 8), (2, 9), (6, 3), _TO_1201, PYTORCH, unsure="950 1150 1151"),
    RocmBuild((2, 10), (2, 13), (7, 0), _TO_1151, PYTORCH, unsure="1103"),
    RocmBuild((2, 14), (2, 14), (7, 2), f"{_TO_1151} 1103", PYTORCH),
)

SUPPORTED_FROM: Final = {"gfx90a": (5, 0), "gfx942": (6, 0), "gfx950": (7, 0)}
"""An Instinct's instruction set → the first ROCm that supports it, and so AMD's images rocm/pytorch of that ROCm."""
UNKNOWN_BEFORE: Final = {"gfx942": (5, 7), "gfx950": (6, 4)}
"""An instruction set → the first ROCm whose compiler knows it at all: https://llvm.org/docs/AMDGPUUsage.html and
https://rocm.docs.amd.com/en/latest/about/release-notes.html."""


def check_rocm(facts: PlanFacts, package: FrameworkPackage, item: StepDistribution) -> Iterator[Evidence]:
    """Whether a build of torch for ROCm has code for the step's chips."""
    for held in facts.targets:
        if held.kind != "amd":
            yield UnknownFact(component="torch", reason=f"{package.build.words}, and the step asks for other devices")
            continue
        for model in held.models:
            gfx = GFX.get(model, "")
            if not gfx:
                yield UnknownFact(component="chip", reason=f"the instruction set of {model} is not known")
            elif package.origin == "image" and facts.reference.startswith("rocm/"):
                yield from _in_amds_image(facts, package, model, gfx)
            else:
                yield from _in_pytorchs_build(facts, package, item, model, gfx)
        yield from _driver(facts, held)


def _in_pytorchs_build(
    facts: PlanFacts, package: FrameworkPackage, item: StepDistribution, model: str, gfx: str
) -> Iterator[Evidence]:
    build = package.build
    release, rocm = numbers(build.version)[:2], numbers(build.rocm)
    rows = [row for row in BUILDS if row.first <= release <= row.last and row.rocm <= rocm]
    chip = gfx.removeprefix("gfx")
    if not rows or chip in rows[-1].unsure.split():
        yield no_facts(item, f"on {model} ({gfx})")
    elif chip in rows[-1].chips.split():
        text = f"torch {build.version} has code for {gfx} ({model})"
        yield Fact(component="torch", fact=text, source=rows[-1].source)
    else:
        chips = " ".join(f"gfx{one}" for one in rows[-1].chips.split())
        what = f"torch {build.version} has no code for {gfx} ({model}): {chips}"
        newer = [row for row in BUILDS if chip in row.chips.split()]
        fix = f"take torch {dotted(newer[0].first)} or later for ROCm {dotted(newer[0].rocm)} or later" if newer else ""
        fix = fix or "ask for another GPU, or build torch for this one"
        yield problem_finding(facts, NO_CODE, what, why=f"torch is from {package.text}", fix=fix)


def _in_amds_image(facts: PlanFacts, package: FrameworkPackage, model: str, gfx: str) -> Iterator[Evidence]:
    rocm = numbers(package.build.rocm)
    first = SUPPORTED_FROM.get(gfx)
    if gfx in UNKNOWN_BEFORE and rocm < UNKNOWN_BEFORE[gfx]:
        what = f"{facts.reference} has ROCm {dotted(rocm)}, which does not know {gfx} ({model})"
        fix = f"take an image with ROCm {dotted(first or UNKNOWN_BEFORE[gfx])} or later"
        yield problem_finding(facts, NO_CODE, what, why=f"{MATRIX} has the first one", fix=fix)
    elif first is not None and rocm >= first:
        text = f"ROCm {dotted(rocm)} of {facts.reference} supports {gfx} ({model})"
        yield Fact(component="torch", fact=text, source=MATRIX)
    else:
        yield UnknownFact(component="torch", reason=f"whether {facts.reference} has code for {gfx} is not known")


def _driver(facts: PlanFacts, held: Hardware) -> Iterator[Evidence]:
    """ROCm's libraries run on kernel drivers of other releases; that the machine lists the devices shows that it has
    one for them."""
    if facts.machine_lists(held.models):
        text = f"the machine's kernel driver lists {models_text(held)}"
        yield Fact(component=DRIVER, fact=text, source=KERNEL_DRIVER)
    else:
        reason = f"the driver of {models_text(held)} is not known"
        yield UnknownFact(component=DRIVER, reason=reason)


OTHER_VENDOR: Final = "STK226"
XLA_SOURCE: Final = "https://docs.pytorch.org/xla/master/learn/xla-overview.html"
SOURCE: Final = "https://github.com/pytorch/pytorch, .ci/manywheel/build_cuda.sh"

# The first SDK for the chips; https://awsdocs-neuron.readthedocs-hosted.com/en/latest/release-notes/: 2.21 brings
# Trainium 2, and all that is called "neuronx" knows Trainium and Inferentia 2.
NEURON_SOURCE: Final = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/release-notes/"
NEURON_FROM: Final[Mapping[str, Version]] = {"inferentia2": (2, 4), "trainium": (2, 3), "trainium2": (2, 21)}
"""Model → the first release of the Neuron SDK that compiles for it."""


def check(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether torch's build has code for the step's chips, and whether the driver runs its CUDA."""
    package = facts.package("torch")
    [item] = items
    if facts.image.neuron and facts.targets and all(held.kind == "neuron" for held in facts.targets):
        yield from _neuron(facts)
        return
    if package is None or not item.version:
        yield no_facts(item)
        return
    problems = list(_unfit(facts, package))
    yield from problems
    build = package.build
    if {held.kind for held in facts.targets} == {"tpu"}:
        yield from _tpu(facts)
        return
    if build.rocm:
        yield from check_rocm(facts, package, item)
        return
    if build.cpu:
        if not problems:
            yield UnknownFact(component="torch", reason=build.words)
        return
    if not build.cuda or not build.archs:
        yield no_facts(item, "that say for which chips it was built")
        return
    title = f"torch {build.version}"
    yield from has_code(facts, build.archs, build.cuda, title=title, source=SOURCE)
    yield from runs_cuda(facts, build.cuda, title)
    if package.origin == "requirement" and not facts.locked:
        yield from _pinned_libraries(facts, title)


def _pinned_libraries(facts: PlanFacts, title: str) -> Iterator[UnknownFact]:
    """Libraries of CUDA that are pinned beside torch, whose wheels require exact versions of them."""
    for required in facts.requirements.items:
        if required.pinned and re.fullmatch(r"nvidia-.+-cu\d+", required.name):
            reason = (
                f"{title} requires one version of {required.name}, and whether that is {required.pinned} is not known"
            )
            yield UnknownFact(component="torch", reason=reason)


def _neuron(facts: PlanFacts) -> Iterator[Evidence]:
    """Whether the image's Neuron SDK, with which torch computes on Neuron devices, knows all chips of the step."""
    sdk = facts.image.neuron
    for held in facts.targets:
        for model in held.models:
            first = NEURON_FROM.get(model)
            if first is not None and numbers(sdk) >= first:
                text = f"the Neuron SDK {sdk} of {facts.reference} compiles for {model}"
                yield Fact(component="torch", fact=text, source=NEURON_SOURCE)
            else:
                yield UnknownFact(component="torch", reason=f"no facts for {model} with the Neuron SDK {sdk}")


def _tpu(facts: PlanFacts) -> Iterator[Evidence]:
    """Whether torch-xla, without which torch finds no TPU, is there."""
    if any(one.name == "torch-xla" for one in distributions(facts)):
        return  # its own component says whether it fits
    what = "torch computes on TPUs by torch-xla, which is not among the requirements"
    if requirements_known(facts) and (facts.bare or facts.image.distributions is not None):
        fix = 'require "torch-xla[tpu]" in the release of torch'
        yield problem_finding(facts, OTHER_VENDOR, what, why=f"source: {XLA_SOURCE}", fix=fix)
    else:
        yield UnknownFact(component="torch", reason=what)


def _unfit(facts: PlanFacts, package: FrameworkPackage) -> Iterator[UnknownFact]:
    for held in facts.targets:
        problem = unfit(package.build, held)
        if problem is not None:
            yield UnknownFact(component="torch", reason=problem.sentence)


TORCH: Final = ProofComponent(name="torch", distributions=frozenset({"torch"}), check=check)
