"""The Python distributions that a step will find, from its requirements, its image, or this Python. Pure."""

from __future__ import annotations

import attrs

from stoker.core.packages import canonical
from stoker.plan.packages import Origin
from stoker.plan.rules import PlanFacts


@attrs.frozen(kw_only=True)
class StepDistribution:
    """One distribution that the step will find."""

    name: str
    """Its canonical name: "flash-attn"."""
    version: str = ""
    """Its version with the local part, "2.4.0+cu121"; empty if it is decided only when it is installed."""
    extras: frozenset[str] = frozenset()
    """The extras with which it is required: of "jax[cuda12]" `{"cuda12"}`."""
    origin: Origin = "requirement"
    text: str = ""
    """The requirement, or the image, that it comes from; empty for one that is installed here."""

    @property
    def title(self) -> str:
        """Name and version, as a reason or a fact names it: "onnxruntime-gpu 1.19.2"."""
        return f"{self.name} {self.version}".rstrip()


def distributions(facts: PlanFacts) -> tuple[StepDistribution, ...]:
    """All distributions that are known to be there once the requirements are installed.

    An installer keeps an installed version that a requirement allows.
    """
    there: dict[str, StepDistribution] = {}
    if facts.installed is not None:
        for name, version in facts.installed.items():
            there[name] = StepDistribution(name=name, version=version, origin="here")
        return tuple(there.values())
    present = facts.image.frameworks if facts.image.distributions is None else facts.image.distributions
    for name, version in present.items():
        key = canonical(name)
        there[key] = StepDistribution(name=key, version=version, origin="image", text=facts.reference)
    for item in facts.requirements.items:
        earlier = there.get(item.name)
        if earlier is not None and not item.url and not item.extras and item.allows(earlier.version):
            continue
        there[item.name] = StepDistribution(
            name=item.name, version=item.pinned, extras=item.extras, origin="requirement", text=item.text
        )
    return tuple(there.values())
