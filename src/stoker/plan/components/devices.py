"""The devices: their chips, their driver, the CUDA of the image, and the condition of the container runtime."""

from __future__ import annotations

from typing import Final, Iterator, Sequence

from stoker.core.accelerators import MODELS
from stoker.core.imagenames import has_no_gate
from stoker.core.proof import Fact, UnknownFact
from stoker.core.units import size_text
from stoker.plan.components.base import CHIP, DRIVER, Evidence, ProofComponent, driver_text, models_text, runs_cuda
from stoker.plan.distributions import StepDistribution
from stoker.plan.requirements import numbers
from stoker.plan.rules import PlanFacts
from stoker.plan.rules_device import condition_holds, gate_condition
from stoker.vendors.builds import Hardware, dotted
from stoker.vendors.nvidia.chips import forward_compatible

CHIPS: Final = "https://developer.nvidia.com/cuda-gpus"
DATA_SHEETS: Final = "the vendors' data sheets, as in stoker.core.accelerators"
RUNTIME: Final = "https://github.com/NVIDIA/nvidia-container-toolkit, internal/requirements"
PARENTS: Final = "https://github.com/pytorch/pytorch, docker.Makefile: the images for running are made from Ubuntu's"
REQUIRE: Final = "NVIDIA_REQUIRE_CUDA"
NGC_NOTES: Final = "https://docs.nvidia.com/deeplearning/frameworks/support-matrix/"


def chip_and_driver(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether it is known which devices the step gets, and their driver."""
    if not facts.targets:
        reason = "which device the step gets is not known: it asks for any" if not facts.lacking else facts.lacking
        yield UnknownFact(component=CHIP, reason=reason)
    for held in facts.targets:
        if held.kind == "nvidia":
            yield from _nvidia_chips(held)
        for name in held.models:
            model = MODELS.get(name)
            if model is not None and held.kind != "nvidia":
                text = f"{name} has {size_text(model.memory[-1])}"
                yield Fact(component=CHIP, fact=text, source=model.source or DATA_SHEETS)
            elif model is None:
                yield UnknownFact(component=CHIP, reason=f"no facts for the chip {name}")


def _nvidia_chips(held: Hardware) -> Iterator[Evidence]:
    for chip, model in held.chips.items():
        known = MODELS.get(model)
        memory = f", {size_text(known.memory[-1])}" if known is not None else ""
        yield Fact(component=CHIP, fact=f"{model} is sm_{chip[0]}{chip[1]}{memory}", source=CHIPS)
    if not held.chips:
        yield UnknownFact(component=CHIP, reason=f"the compute capability of {models_text(held)} is not known")
    if held.driver or held.cuda:
        newest = f" is for CUDA {dotted(held.cuda)}" if held.cuda and held.driver else ""
        yield Fact(component=DRIVER, fact=f"{driver_text(held)}{newest}", source="the machine's inventory")
    else:
        yield UnknownFact(component=DRIVER, reason=f"the driver of {models_text(held)} is not known")


def image_cuda(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether the driver runs the image's own CUDA, if no framework is known to bring another."""
    cuda = numbers(facts.image.cuda)[:2]
    if cuda and not any(package.build.cuda or package.build.cpu for package in facts.packages):
        yield from runs_cuda(facts, cuda, facts.reference)


def gate(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether the container runtime starts the image with the driver: its NVIDIA_REQUIRE_CUDA.

    Of an image that was not read only the CUDA of its name is known. The condition of NVIDIA's own images begins with
    that CUDA, and the runtime takes the same one for images from before the variable.
    """
    if not facts.in_image or not facts.reference:
        return
    condition = gate_condition(facts)
    cuda = numbers(facts.image.cuda)[:2]
    for held in facts.targets:
        if held.kind != "nvidia" or not (held.driver or held.cuda):
            continue
        if facts.image_read:
            yield from _condition(facts, condition, held)
        elif REQUIRE in facts.image.env:
            yield from _known_condition(facts, condition, held)
        elif has_no_gate(facts.reference):
            yield Fact(component="gate", fact=f"{facts.reference} has no {REQUIRE}", source=PARENTS)
        elif cuda and held.cuda is not None and tuple(held.cuda) >= cuda:
            text = (
                f"{driver_text(held)} satisfies cuda>={dotted(cuda)}, the strictest that {facts.reference} can ask for"
            )
            yield Fact(component="gate", fact=text, source=RUNTIME)
        elif cuda:
            reason = f"{REQUIRE} of {facts.reference} was not read, and {driver_text(held)} is for an older CUDA"
            yield UnknownFact(component="gate", reason=reason)


def _known_condition(facts: PlanFacts, condition: str, held: Hardware) -> Iterator[Evidence]:
    """Evidence of an image whose publisher writes the same condition into all of them, whatever their CUDA.

    It says nothing of older drivers, which the publisher lists by branch, for data-centre GPUs.
    """
    cuda = numbers(facts.image.cuda)[:2]
    older = not (held.cuda is not None and cuda and tuple(held.cuda) >= cuda)
    listed = numbers(held.driver)[:1] in _PRODUCTION and all(forward_compatible(name) for name in held.chips.values())
    if older and not listed:
        reason = f"{driver_text(held)} is for an older CUDA than {facts.reference}, and not among those listed for it"
        yield UnknownFact(component="gate", reason=reason)
        return
    yield from _condition(facts, condition, held, NGC_NOTES)


# The branches that stay supported for data-centre GPUs, and that the images' release notes list.
_PRODUCTION: Final = frozenset({(470,), (525,), (535,), (550,), (570,), (580,)})


def _condition(
    facts: PlanFacts, condition: str, held: Hardware, source: str = "the image's configuration"
) -> Iterator[Evidence]:
    if not condition:
        yield Fact(component="gate", fact=f"{facts.reference} has no {REQUIRE}", source=source)
        return
    holds, asks = condition_holds(condition, held), condition.partition(" ")[0]
    if holds:
        text = f"{driver_text(held)} satisfies {REQUIRE} of {facts.reference}: {asks}"
        yield Fact(component="gate", fact=text, source=source)
    else:
        what = "is not satisfied by" if holds is False else "may not be satisfied by"
        reason = f"{REQUIRE} of {facts.reference} ({asks} …) {what} {driver_text(held)}"
        yield UnknownFact(component="gate", reason=reason)


CHIP_AND_DRIVER: Final = ProofComponent(name="chip", check=chip_and_driver)
CUDA: Final = ProofComponent(name="cuda", check=image_cuda)
GATE: Final = ProofComponent(name="gate", check=gate)
