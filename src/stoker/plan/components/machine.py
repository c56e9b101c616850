"""Where a step runs: its devices, their chips and driver; its image, what is known of its contents, its CUDA and its
Python."""

from __future__ import annotations

from typing import Final, Iterator, Sequence

from stoker.core.accelerators import MODELS
from stoker.core.imagenames import has_known_name, has_no_gate, is_for_arm
from stoker.core.receipt import Fact, UnknownFact
from stoker.core.units import size_text
from stoker.plan.components.base import CHIP, DRIVER, Evidence, ProofComponent, driver_text, models_text, runs_cuda
from stoker.plan.packages import TORCH_PYTHONS
from stoker.plan.requirements import numbers
from stoker.plan.rules import MACHINES, PlanFacts, StepDistribution
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


NAMES: Final = "its publisher's naming, as in stoker.core.imagenames"
ARCHITECTURES: Final = "https://hub.docker.com/_/python and its like, supported architectures"
TORCH_PYTHON_SOURCE: Final = "https://github.com/pytorch/pytorch/blob/main/RELEASE.md#release-compatibility-matrix"


def contents(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether it is known what the image has installed, or the Python in which the step runs."""
    image, reference = facts.image, facts.reference
    if not facts.in_image:
        if facts.installed is None and not facts.builds:
            yield UnknownFact(component="packages", reason="what is installed where the step runs is not known here")
        return
    if not reference:
        yield UnknownFact(component="image", reason="which image the step runs in is not known before it is built")
    elif image.distributions is not None:
        text = f"{reference} has {len(image.distributions)} distributions"
        yield Fact(component="image", fact=text, source=f"its layers{f', {image.digest[:19]}' if image.digest else ''}")
    elif facts.bare:
        text = f"{reference} has an operating system and Python, nothing for accelerators"
        yield Fact(component="image", fact=text, source=NAMES)
    elif has_known_name(reference):
        yield Fact(component="image", fact=f"{reference} is known by its name", source=NAMES)
    else:
        why = image.unreadable or ("its layers were not read" if facts.image_read else "its name says nothing of it")
        yield UnknownFact(component="image", reason=f"what is installed in {reference} is not known: {why}")


def processor(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether the image is for the machine's processor."""
    if not facts.in_image or not facts.reference:
        return
    if not facts.machine:
        yield UnknownFact(component="processor", reason="the processor of the step's machine is not known")
        return
    processors = [MACHINES.get(name, name) for name in facts.image.architectures]
    if facts.machine in processors:
        text = f"{facts.reference} is for {facts.machine}"
        yield Fact(component="processor", fact=text, source="the image's manifest")
    elif not processors and facts.machine == "x86_64" and (facts.bare or has_known_name(facts.reference)):
        yield Fact(component="processor", fact=f"{facts.reference} is for x86_64", source=NAMES)
    elif not processors and facts.machine == "aarch64" and is_for_arm(facts.reference):
        yield Fact(component="processor", fact=f"{facts.reference} is for x86_64 and aarch64", source=ARCHITECTURES)
    elif not processors:
        reason = f"whether {facts.reference} is for {facts.machine} is not known"
        yield UnknownFact(component="processor", reason=reason)
    else:
        reason = f"{facts.reference} is for {', '.join(processors)}, and the machine is {facts.machine}"
        yield UnknownFact(component="processor", reason=reason)


def python(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether torch has wheels for the image's Python, if it is to be installed there."""
    package = facts.package("torch")
    if package is None or package.origin != "requirement" or facts.locked:
        return
    release, image = numbers(package.build.version)[:2], facts.python[:2]
    low, high = TORCH_PYTHONS.get(release, ((), None))
    name = f"torch {package.build.version}"
    if not image:
        reason = f"the Python of {facts.reference} is not known, so neither whether {name} has a wheel for it"
        yield UnknownFact(component="python", reason=reason)
    elif low and low <= image and (high is None or image <= high):
        text = f"{name} has wheels for Python {dotted(image)}"
        yield Fact(component="python", fact=text, source=TORCH_PYTHON_SOURCE)
    else:
        yield UnknownFact(component="python", reason=f"no facts for wheels of {name} for Python {dotted(image)}")


IMAGE: Final = ProofComponent(name="image", check=contents)
PROCESSOR: Final = ProofComponent(name="processor", check=processor)
PYTHON: Final = ProofComponent(name="python", check=python)
