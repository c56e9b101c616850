"""What is compiled against one torch: torchvision, torchaudio and triton."""

from __future__ import annotations

from typing import Final, Iterator, Mapping, Sequence

from stoker.core.imagenames import cuda_of_tag
from stoker.core.proof import Fact, UnknownFact
from stoker.plan.components.base import Evidence, ProofComponent, no_facts, problem_finding
from stoker.plan.distributions import StepDistribution
from stoker.plan.packages import torch_default
from stoker.plan.requirements import Release, numbers
from stoker.plan.rules import PlanFacts
from stoker.vendors.builds import Version, dotted

STRANGERS: Final = "STK206"
VISION_SOURCE: Final = "https://github.com/pytorch/vision#installation"
AUDIO_SOURCE: Final = "https://docs.pytorch.org/audio/stable/installation.html#compatibility-matrix"
TRITON_SOURCE: Final = "Requires-Dist in the metadata of torch's wheels for Linux on x86_64"

_VISION_BEHIND: Final = 15
"""torchvision 0.15 belongs to torch 2.0, 0.16 to 2.1, and so on."""
VISION_UNPINNED: Final = (0, 29, 2)
"""The first torchvision whose wheel requires no single release of torch: its Requires-Dist takes 2.14 and 2.15."""
_VISION_1: Final[Mapping[Release, Release]] = {
    (0, 5): (1, 4),
    (0, 6): (1, 5),
    (0, 7): (1, 6),
    (0, 8): (1, 7),
    (0, 9): (1, 8),
    (0, 10): (1, 9),
    (0, 11): (1, 10),
    (0, 12): (1, 11),
    (0, 13): (1, 12),
    (0, 14): (1, 13),
}
"""Release of torchvision → that of torch."""

TRITON: Final[Mapping[str, str]] = {
    "2.0.0": "2.0.0",
    "2.0.1": "2.0.0",
    "2.1.0": "2.1.0",
    "2.1.2": "2.1.0",
    "2.2.0": "2.2.0",
    "2.2.2": "2.2.0",
    "2.3.0": "2.3.0",
    "2.3.1": "2.3.1",
    "2.4.0": "3.0.0",
    "2.4.1": "3.0.0",
    "2.5.0": "3.1.0",
    "2.5.1": "3.1.0",
    "2.6.0": "3.2.0",
    "2.7.0": "3.3.0",
    "2.7.1": "3.3.1",
    "2.8.0": "3.4.0",
    "2.9.0": "3.5.0",
    "2.9.1": "3.5.1",
    "2.10.0": "3.6.0",
    "2.11.0": "3.6.0",
    "2.12.0": "3.7.0",
    "2.12.1": "3.7.1",
    "2.13.0": "3.7.1",
}
"""Release of torch → the one of triton that its wheels require."""


def vision_and_audio(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether torchvision and torchaudio belong to the step's torch, and to its CUDA's major version.

    Releases that do not are findings of `rules_packages.companions`. Each is compiled for the same chips as the torch
    that it belongs to.
    """
    torch = facts.package("torch")
    for item in items:
        if not item.version or torch is None or not torch.build.version:
            yield no_facts(item)
            continue
        release, built_for = numbers(torch.build.version)[:2], _torch_of(item)
        name = f"torch {torch.build.version}"
        if built_for is None:
            yield no_facts(item)
        elif release != built_for:
            reason = f"{item.title} belongs to torch {dotted(built_for)}, and not to {name}"
            yield UnknownFact(component=item.name, reason=reason)
        elif item.origin != torch.origin or _cuda_of(item, facts)[:1] != (torch.build.cuda or ())[:1]:
            reason = f"whether {item.title} is built for the CUDA of {name} is not known"
            yield UnknownFact(component=item.name, reason=reason)
        else:
            source = VISION_SOURCE if item.name == "torchvision" else AUDIO_SOURCE
            yield Fact(component=item.name, fact=f"{item.title} belongs to {name}", source=source)


def triton(facts: PlanFacts, items: Sequence[StepDistribution]) -> Iterator[Evidence]:
    """Whether triton is the one that the step's torch requires."""
    torch = facts.package("torch")
    [item] = items
    version = "" if torch is None else torch.build.release
    required = TRITON.get(version)
    if not item.version or torch is None or required is None:
        yield no_facts(item, f"beside torch {version}" if version else "")
    elif item.version.partition("+")[0] == required:
        text = f"{item.title} is what torch {version} requires"
        yield Fact(component="triton", fact=text, source=TRITON_SOURCE)
    elif item.origin == "requirement" and torch.origin == "requirement" and torch.sure:
        what = f"torch {version} requires triton=={required}, and {item.text} is required: no installer satisfies both"
        fix = f"remove {item.text}: torch brings its own"
        yield problem_finding(facts, STRANGERS, what, why=f"torch is from {torch.text}", fix=fix)
    else:
        reason = f"torch {version} requires triton {required}, and the step has {item.version}"
        yield UnknownFact(component="triton", reason=reason)


def _torch_of(item: StepDistribution) -> Release | None:
    """The release of torch that torchvision or torchaudio belongs to; None if the tables do not have it."""
    release = numbers(item.version)[:2]
    if item.name == "torchaudio":
        return release if release[0] == 2 else (1, release[1]) if release[0] == 0 and release[1] >= 4 else None
    if release in _VISION_1:
        return _VISION_1[release]
    if numbers(item.version) >= VISION_UNPINNED:
        return None
    return (2, release[1] - _VISION_BEHIND) if release[0] == 0 and release[1] >= _VISION_BEHIND else None


def _cuda_of(item: StepDistribution, facts: PlanFacts) -> Version:
    """The CUDA for which a distribution was built; empty if it is not known or none."""
    local = item.version.partition("+")[2]
    if local.startswith("cu"):
        return numbers(cuda_of_tag(local[2:]))
    torch = facts.package("torch")
    if local or torch is None:
        return ()
    if torch.build.cuda and (facts.requirements.backend or facts.requirements.indexes or item.origin != "requirement"):
        return tuple(torch.build.cuda)  # both come from the same index
    return tuple(torch_default(numbers(torch.build.version), facts.machine) or ())


VISION_AND_AUDIO: Final = ProofComponent(
    name="companions", distributions=frozenset({"torchaudio", "torchvision"}), check=vision_and_audio
)
TRITON_COMPONENT: Final = ProofComponent(name="triton", distributions=frozenset({"triton"}), check=triton)
