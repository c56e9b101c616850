"""PyTorch: the chips that each release build has code for, and the CUDA that its driver must run.

The builds and their chips are in `vendors.nvidia.builds.TORCH`, which build a requirement brings in `plan.packages`.
"""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, Sequence

from stoker.core.proof import Fact, UnknownFact
from stoker.plan.components import rocm
from stoker.plan.components.base import Evidence, ProofComponent, has_code, no_facts, problem_finding, runs_cuda
from stoker.plan.components.cudalibraries import requirements_known
from stoker.plan.distributions import StepDistribution, distributions
from stoker.plan.packages import FrameworkPackage
from stoker.plan.requirements import numbers
from stoker.plan.rules import PlanFacts
from stoker.vendors.builds import Version
from stoker.vendors.registry import unfit

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
        yield from rocm.check(facts, package, item)
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
