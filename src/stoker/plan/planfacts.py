"""What is known of one step that runs in an image, gathered for the rules of `plan.preflight`.

Reading requirement files and the versions that are installed here is all that is done; the rest is given by the caller
or deduced. What is not known stays empty, and no rule takes that for an answer.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.devices import Claim, Device, Inventory, claim_of
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.imagefacts import ImageFacts
from stoker.core.imagenames import merged, parse, plain
from stoker.core.plan import StepPlan
from stoker.core.units import UNSET, value_or
from stoker.devices.choosing import impossible
from stoker.images import parents
from stoker.images.requirementlines import logical_lines, option_of
from stoker.plan.packages import Package, packages
from stoker.plan.requirements import Release, Requirements, numbers, requirements
from stoker.vendors.builds import Held, dotted, held
from stoker.vendors.registry import VENDORS

COMPARED: Final = (
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "numpy",
    "pandas",
    "scikit-learn",
    "transformers",
    "xgboost",
    "lightgbm",
    "cloudpickle",
)
"""Distributions whose objects travel between steps, so that another version may read them differently"""
ARM_HOSTS: Final = frozenset({"GB10", "GB200", "GB300", "GH200", "T4G"})
"""Models that are only sold with a processor of NVIDIA's or Amazon's own, which is an ARM one"""
MACHINES: Final[Mapping[str, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
"""a registry's or Go's word for a processor → the kernel's"""
_NOTHING: Final = DockerSettings()
_MOST_INCLUDED: Final = 32
"""Requirement files that include each other; more is a circle."""

RULES: Final = "stoker.rules"
"""The group of entry points by which other distributions offer rules."""

Listed = Callable[[DockerSettings], tuple[Sequence[str], Sequence[str]]]
"""Finds the lines that would be installed, and says in words what of them it could not tell."""


@attrs.frozen(kw_only=True)
class Client:
    """The Python that made the plan: what it pickles, the image has to read."""

    python: Release
    versions: Mapping[str, str] = attrs.field(factory=dict)
    machine: str = ""


@attrs.frozen(kw_only=True)
class PlanFacts:
    """One step and what is known of the image, the packages and the devices that it will have.

    `in_image` is False for a step that runs without a container: of its image and packages nothing is known then.
    `refused` says whether the backend refuses the devices that are asked for, so that no rule says it again.
    `reference` is the image to build upon, or to run as it is; empty where it is not known. `had` says whether its
    configuration was read. `builds`: Stoker installs `wanted` into it. `kind` is that of the devices, empty where
    several are possible. `targets` are the kinds of device that it could get, with their driver. `lacking` is why no
    known machine has them. `seen` is the digest that the reference had when it was last used.
    """

    step: StepPlan
    docker: DockerSettings
    reference: str
    image: ImageFacts
    had: bool
    builds: bool
    wanted: Requirements
    packages: tuple[Package, ...]
    gpus: int
    kind: str
    targets: tuple[Held, ...]
    simulated: bool
    lacking: str
    machine: str
    client: Client
    seen: str = ""
    in_image: bool = True
    refused: bool = False

    @property
    def where(self) -> str:
        """The step's place, as findings name it."""
        return f"{self.step.where} step '{self.step.name}'"

    @property
    def required(self) -> bool:
        """Whether the step must not run without its devices."""
        return self.step.settings.accelerator_policy != "prefer"

    @property
    def python(self) -> Release:
        """The image's Python as numbers; empty where it is not known."""
        return numbers(self.image.python)

    @property
    def bare(self) -> bool:
        """Whether the image's family is known to hold nothing but an operating system and Python."""
        return plain(self.reference)

    def package(self, framework: str) -> Package | None:
        """The framework as the step will find it."""
        return next((one for one in self.packages if one.build.framework == framework), None)


@attrs.frozen(kw_only=True)
class Rule:
    """One check of a step before anything runs; a distribution offers its own by an entry point in `stoker.rules`.

    Findings of level "error" stop the run. A rule whose fact is missing says nothing, or says that it is missing.
    """

    name: str
    check: Callable[[PlanFacts], Iterable[Finding]]
    """Called once for each step that differs from those before it; it starts nothing and asks no network."""
    explains: Mapping[str, str] = attrs.field(factory=dict)
    """code → what `stoker explain CODE` prints, in Markdown: first a sentence in bold, `**error: …**`, that begins with
    the level. Stoker's own codes are explained in docs/findings.md."""
    every_step: bool = True
    """Whether steps that run without a container are checked, too."""


def here() -> Client:
    """This Python."""
    versions = {}
    for name in COMPARED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Client(python=sys.version_info[:3], versions=versions, machine=platform.machine())


def listed(docker: DockerSettings) -> tuple[Sequence[str], Sequence[str]]:
    """The requirements of settings as lines, files read with all that they include; and what cannot be told."""
    unknown = []
    for name in ("pyproject_path", "replicate_local_python_environment", "local_project_install_command"):
        value = getattr(docker, name)
        if value is not UNSET and value:
            unknown.append(name)
    if docker.conda_packages is not UNSET and docker.conda_packages:
        unknown.append("conda_packages")
    wanted = value_or(docker.requirements, None)
    if wanted is None:
        return (), unknown
    if not isinstance(wanted, str):
        return wanted, unknown
    lines, missing = _file(Path(wanted), [])
    return lines, [*unknown, *missing]


def _file(path: Path, above: list[Path]) -> tuple[list[str], list[str]]:
    if len(above) >= _MOST_INCLUDED or path in above:
        return [], [str(path)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return [], [str(path)]
    lines: list[str] = []
    missing: list[str] = []
    for _, line in logical_lines(text):
        option = option_of(line)
        if option is not None and option[0] in ("-r", "--requirement"):
            more, lost = _file(path.parent / option[1], [*above, path])
            lines += more
            missing += lost
        else:
            lines.append(line)
    return lines, missing


def gathered(
    step: StepPlan,
    *,
    inventory: Inventory | None,
    image_facts: Callable[[str], ImageFacts | None],
    lines: Listed = listed,
    parent: Callable[[DockerSettings], str] | None = None,
    client: Client,
    seen: Mapping[str, str] | None = None,
) -> PlanFacts:
    """Everything that the rules may know of a step."""
    docker = step.settings.docker or _NOTHING
    usual = _usual(docker, client)
    reference = _reference(step, docker, parent, usual)
    read = image_facts(reference) if reference else None
    image = merged(read, reference)
    builds = docker.skip_build is UNSET or not docker.skip_build
    claim = claim_of(step.settings.resources)
    fitting = _fitting(claim, inventory)
    machine = _machine(docker, fitting, claim, client)
    told, unknown = lines(docker) if builds else ((), ())
    python = numbers(image.python)
    wanted = requirements(told, python=python, machine=machine, options=_options(docker, usual) if builds else {})
    wanted = attrs.evolve(wanted, unread=(*wanted.unread, *unknown))
    node = _node(fitting, claim, client)
    return PlanFacts(
        step=step,
        docker=docker,
        reference=reference,
        image=image,
        had=read is not None and not read.unreadable and read.base != "name",
        builds=builds,
        wanted=wanted,
        packages=packages(wanted, image, machine=machine, python=python),
        gpus=step.settings.resources.gpus_per_node,
        kind=_kind(claim, fitting),
        targets=_targets(claim, fitting, inventory, node),
        simulated=inventory is not None and inventory.simulated,
        lacking=impossible(claim, inventory.devices) if claim is not None and inventory is not None else "",
        machine=node,
        client=client,
        seen=(seen or {}).get(reference, ""),
    )


def gathered_without_image(step: StepPlan, *, inventory: Inventory | None, client: Client) -> PlanFacts:
    """What the rules may know of a step that runs without a container: its request and the devices."""
    claim = claim_of(step.settings.resources)
    fitting = _fitting(claim, inventory)
    node = _node(fitting, claim, client)
    return PlanFacts(
        step=step,
        docker=_NOTHING,
        reference="",
        image=ImageFacts(reference=""),
        had=False,
        builds=False,
        wanted=Requirements(),
        packages=(),
        gpus=step.settings.resources.gpus_per_node,
        kind=_kind(claim, fitting),
        targets=_targets(claim, fitting, inventory, node),
        simulated=inventory is not None and inventory.simulated,
        lacking=impossible(claim, inventory.devices) if claim is not None and inventory is not None else "",
        machine=node,
        client=client,
        in_image=False,
    )


def _reference(
    step: StepPlan, docker: DockerSettings, parent: Callable[[DockerSettings], str] | None, usual: parents.Parent | None
) -> str:
    if value_or(docker.dockerfile, ""):
        return step.image  # what a file of the user's makes is known when it is built
    named = value_or(docker.parent_image, "")
    if named:
        return named
    if parent is not None:
        return parent(docker)
    return usual.image if usual is not None else ""


def _usual(docker: DockerSettings, client: Client) -> parents.Parent | None:
    """What the build takes where no parent is named, and the index of torch's wheels that goes with it."""
    python = value_or(docker.python_version, dotted(client.python[:2]))
    asked = value_or(docker.accelerator, "")
    try:
        return parents.parent_for(asked, python=python) if asked else parents.plain(python)
    except SettingsError:
        return None  # the build says so itself, with what to write instead


def _options(docker: DockerSettings, usual: parents.Parent | None) -> Mapping[str, object]:
    options: dict[str, object] = dict(value_or(docker.python_package_installer_args, {}))
    if usual is not None and usual.wheels:
        options.setdefault("torch-backend", usual.wheels)
    return options


def _fitting(claim: Claim | None, inventory: Inventory | None) -> list[Device]:
    """The devices of a machine that a claim could be given, whoever holds them now."""
    if claim is None or inventory is None:
        return []
    names = {(choice.name, choice.slice) for choice in claim.choices}
    return [
        device
        for device in inventory.devices
        if (not names or (device.model, device.slice.partition("+")[0]) in names)
        and (not claim.vendor or device.kind == claim.vendor)
        and (not claim.memory or not device.memory or device.memory >= claim.memory * 0.9)
    ]


def _kind(claim: Claim | None, fitting: Sequence[Device]) -> str:
    kinds = {device.kind for device in fitting}
    if claim is not None and not kinds:
        vendors = [choice.model.vendor for choice in claim.choices] or [claim.vendor]
        kinds = {vendor for vendor in vendors if vendor}
    return kinds.pop() if len(kinds) == 1 else ""


def _targets(
    claim: Claim | None, fitting: Sequence[Device], inventory: Inventory | None, machine: str
) -> tuple[Held, ...]:
    """One for each kind and model; of devices that no known machine has, as much as their name says."""
    if claim is None:
        return ()
    if fitting and inventory is not None:
        groups: dict[tuple[str, str], list[Device]] = {}
        for device in fitting:
            groups.setdefault((device.kind, device.model), []).append(device)
        return tuple(
            held(group, driver=inventory.driver, cuda=inventory.cuda, machine=machine)
            if _has_driver(group[0].kind)
            else held(group, driver="", cuda=None, machine=machine)
            for group in groups.values()
        )
    found = []
    for choice in claim.choices:
        simulation = VENDORS.load(choice.model.vendor).simulation
        chip = None if simulation is None else simulation.capability(choice.name)
        chips = {chip: choice.name} if chip is not None else {}
        found.append(Held(kind=choice.model.vendor, chips=chips, machine=machine or "x86_64"))
    return tuple(found)


def _has_driver(name: str) -> bool:
    """Whether the inventory's driver and CUDA are those of a vendor's devices."""
    return VENDORS.load(name).runtime == "cuda"


def _node(fitting: Sequence[Device], claim: Claim | None, client: Client) -> str:
    """The processor of the machine that the step will run on, in the kernel's word; empty where it is not known."""
    asked = claim.choices if claim is not None else ()
    models = {device.model for device in fitting} or {choice.name for choice in asked}
    if models and models <= ARM_HOSTS:
        return "aarch64"
    if fitting and not any(device.simulated for device in fitting):
        return client.machine
    if claim is None:
        return client.machine
    return "x86_64" if models and not models & ARM_HOSTS else ""


def _machine(docker: DockerSettings, fitting: Sequence[Device], claim: Claim | None, client: Client) -> str:
    """The processor that the image is for: what is asked for by `platform`, else the node's."""
    if docker.platform is not UNSET and docker.platform:
        word = docker.platform.partition("/")[2].partition("/")[0] or docker.platform
        return MACHINES.get(word, word)
    return _node(fitting, claim, client)


def repository(reference: str) -> str:
    """The name without tag and digest, as a person writes it."""
    parts = parse(reference)
    return parts.name if parts is not None else reference
