"""Rules of preflight, the facts that they check, and the distributions that a step will find. Pure.

A distribution registers a rule by an entry point in the group `stoker.rules` that names a `Rule`.
"""

from __future__ import annotations

from typing import Callable, Final, Iterable, Mapping

import attrs

from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.findings import Finding
from stoker.core.imagenames import is_plain, parse
from stoker.core.packages import Resolution, canonical
from stoker.core.plan import StepPlan
from stoker.plan.packages import FrameworkPackage, Origin
from stoker.plan.requirements import Release, Requirements, numbers
from stoker.vendors.builds import Hardware

MACHINES: Final[Mapping[str, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
"""A registry's or Go's name of a processor → the kernel's."""


@attrs.frozen(kw_only=True)
class ClientPython:
    """The Python that makes the plan; the image's Python reads what it pickles."""

    python: Release
    versions: Mapping[str, str] = attrs.field(factory=dict)
    """Distribution → its version, of those whose objects travel between steps."""
    machine: str = ""
    """The processor, in the kernel's words."""


@attrs.frozen(kw_only=True)
class PlanFacts:
    """One step, and what is known of its image, its packages and its devices. What is not known is empty."""

    step: StepPlan
    docker: DockerSettings
    reference: str
    """The image to build upon, or to run as it is; empty if it is not known."""
    image: ImageFacts
    image_read: bool
    """Whether the image's configuration was read; otherwise its facts are those of its name."""
    builds: bool
    """Whether Stoker builds an image and installs `requirements` into it."""
    requirements: Requirements
    packages: tuple[FrameworkPackage, ...]
    """The frameworks that the step will find."""
    gpus: int
    """Devices of each node."""
    kind: str
    """The vendor of the devices; empty if several are possible."""
    targets: tuple[Hardware, ...]
    """The kinds of device that the step could get, with their driver."""
    simulated: bool
    """Whether the devices are simulated."""
    listed: frozenset[str] = frozenset()
    """The models of the machine's devices, as its drivers list them; empty if the machine is not known."""
    lacking: str
    """Why no known machine has the devices; empty if one has them."""
    machine: str
    """The processor of the step's machine, in the kernel's words; empty if it is not known."""
    client: ClientPython
    last_digest: str = ""
    """The digest that the reference had when it was last used."""
    in_image: bool = True
    """False for a step that runs without a container: nothing is known of an image then."""
    installed: Mapping[str, str] | None = None
    """For a step that runs in the Python that makes the plan: canonical name → version of all distributions that are
    installed there. None for all other steps."""
    locked: str = ""
    """What resolved the requirements, such as "uv 0.9.2": `requirements` then pins every distribution that will be
    installed, also those that others require. Empty if they are as a person wrote them."""
    resolution: Resolution = attrs.field(factory=Resolution)
    """The lock of the image's packages, or why there is none."""
    refused: bool = False
    """Whether the backend refuses the devices already, so that no rule reports it again."""

    @property
    def where(self) -> str:
        """The step's location, as findings name it."""
        return f"{self.step.where} step '{self.step.name}'"

    @property
    def required(self) -> bool:
        """Whether the step must not run without its devices."""
        return self.step.settings.accelerator_policy != "prefer"

    def machine_lists(self, models: Iterable[str]) -> bool:
        """Whether the step's machine is known to have devices of these models, so that its driver knows them."""
        return set(models) <= self.listed

    @property
    def python(self) -> Release:
        """The image's Python as numbers; empty if it is not known."""
        return numbers(self.image.python)

    @property
    def bare(self) -> bool:
        """Whether the image is known to have nothing but an operating system and Python."""
        return is_plain(self.reference)

    def package(self, framework: str) -> FrameworkPackage | None:
        """A framework as the step will find it; None if it is not known to be there."""
        return next((package for package in self.packages if package.build.framework == framework), None)


@attrs.frozen(kw_only=True)
class Rule:
    """One check of a step before a run; a distribution registers its own by an entry point in `stoker.rules`.

    Findings of level "error" stop the run. A rule whose facts are missing reports nothing, or that they are missing.
    """

    name: str
    check: Callable[[PlanFacts], Iterable[Finding]]
    """Called once for each distinct step; it starts nothing and uses no network."""
    explains: Mapping[str, str] = attrs.field(factory=dict)
    """Code → the text that `stoker explain CODE` prints, in Markdown. It begins with a sentence in bold that names the
    level: `**error: …**`. Stoker's own codes are explained in docs/findings.md."""
    every_step: bool = True
    """Whether steps that run without a container are checked, too."""


def repository(reference: str) -> str:
    """The name without tag and digest, as a person writes it."""
    parts = parse(reference)
    return parts.name if parts is not None else reference


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
