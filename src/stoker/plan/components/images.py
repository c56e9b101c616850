"""The image: whether its contents are known, for which processors it is, and its Python."""

from __future__ import annotations

from typing import Final, Iterator, Sequence

from stoker.core.imagenames import has_known_name, is_for_arm
from stoker.core.proof import Fact, UnknownFact
from stoker.plan.components.base import Evidence, ProofComponent
from stoker.plan.distributions import StepDistribution
from stoker.plan.packages import TORCH_PYTHONS
from stoker.plan.requirements import numbers
from stoker.plan.rules import MACHINES, PlanFacts
from stoker.vendors.builds import dotted

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
