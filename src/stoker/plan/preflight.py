"""Checks before a run: the rules compare each step's image, packages, driver and devices. Nothing is started.

Facts of a step are gathered from its plan, its requirement files, the versions that are installed here, and what the
caller provides; what is not known stays empty, and no rule guesses it. Each code of Stoker's own rules has its section
in docs/findings.md, which `stoker explain CODE` prints; a rule of another distribution brings its own text.
"""

from __future__ import annotations

import functools
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.devices import Claim, Device, Inventory, claim_of
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.imagefacts import ImageFacts
from stoker.core.imagenames import merge_facts
from stoker.core.plan import Plan, StepPlan
from stoker.core.plugins import Registry
from stoker.core.units import UNSET, value_or
from stoker.devices.choosing import impossible
from stoker.images import parents
from stoker.images.requirementlines import logical_lines, option_of
from stoker.plan import rules_device, rules_image, rules_packages
from stoker.plan.packages import packages
from stoker.plan.requirements import Requirements, numbers, requirements
from stoker.plan.rules import MACHINES, ClientPython, PlanFacts, Rule
from stoker.vendors.builds import Hardware, dotted, hardware_of
from stoker.vendors.registry import VENDORS

RULES: Final[Registry[Rule]] = Registry(group="stoker.rules", noun="rule", kind=Rule, builtin={})
"""The rules of other distributions; Stoker's own are `BUILTIN_RULES`."""

BUILTIN_RULES: Final[Sequence[Rule]] = tuple(
    Rule(name=check.__name__, check=check, every_step=False)
    for check in (
        rules_image.nowhere,
        rules_image.unreadable,
        rules_image.processor,
        rules_device.no_cuda,
        rules_device.unfit_builds,
        rules_device.image_driver,
        rules_device.gate,
        rules_device.unknown_chip,
        rules_device.minor_compatibility,
        rules_device.rocm,
        rules_device.neuron,
        rules_device.other_runtime,
        rules_packages.companions,
        rules_packages.old_python,
        rules_packages.other_python,
        rules_packages.not_installable,
        rules_packages.other_versions,
        rules_image.launcher,
        rules_image.little_shm,
        rules_image.unpinned,
    )
)
"""Stoker's own rules, in the order in which their findings are shown."""

_REFUSED_BY_BACKENDS: Final = frozenset({"STK103", "STK111"})
"""Codes of a backend's findings about devices that do not exist."""
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
"""Distributions whose objects travel between steps, so that another version may read them differently."""
ARM_HOSTS: Final = frozenset({"GB10", "GB200", "GB300", "GH200", "T4G"})
"""Models that are sold only with an ARM processor of NVIDIA's or Amazon's."""
_NO_SETTINGS: Final = DockerSettings()
_DEEPEST_INCLUDE: Final = 32
"""How deep requirement files may include each other; more is taken to be a circle."""


def findings(
    plan: Plan,
    *,
    inventory: Inventory | None,
    image_facts: Callable[[str], ImageFacts | None],
    steps: Iterable[StepPlan] | None = None,
    client: ClientPython | None = None,
    last_digests: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """The findings of all rules for `steps` that run in images; for all steps of the plan if `steps` is None.

    `inventory` is that of the machine they will run on; None if it is not known. `image_facts` reads an image, or
    returns None; it is called once for each image. `last_digests` has the digest that a reference had when it was last
    used.
    """
    client = client or _this_python()
    read_image = functools.cache(image_facts)
    rules = (*BUILTIN_RULES, *third_party_rules())
    for step in _distinct(plan.steps if steps is None else steps):
        facts = _image_facts(
            step,
            inventory=inventory,
            image_facts=read_image,
            client=client,
            last_digests=last_digests,
        )
        yield from _apply(rules, facts, plan)


def findings_without_images(
    plan: Plan, steps: Iterable[StepPlan], *, inventory: Callable[[], Inventory | None]
) -> Iterator[Finding]:
    """The findings of other distributions' rules for steps that run without a container.

    `inventory` is called only if there is such a rule.
    """
    rules = [rule for rule in third_party_rules() if rule.every_step]
    if not rules:
        return
    client, devices = _this_python(), inventory()
    for step in _distinct(steps):
        yield from _apply(rules, _device_facts(step, inventory=devices, client=client), plan)


def third_party_rules() -> tuple[Rule, ...]:
    """The rules of other distributions."""
    return tuple(rule for _, rule in RULES.third_party_parts())


def _distinct(steps: Iterable[StepPlan]) -> Iterator[StepPlan]:
    """One step of each name, backend and settings: the findings of the others are the same."""
    checked: set[tuple[str, str, int]] = set()
    for step in steps:
        key = (step.name, step.backend, id(step.settings))
        if key not in checked:
            checked.add(key)
            yield step


def _apply(rules: Iterable[Rule], facts: PlanFacts, plan: Plan) -> Iterator[Finding]:
    refused = any(finding.code in _REFUSED_BY_BACKENDS and finding.where == facts.where for finding in plan.findings)
    facts = attrs.evolve(facts, refused=refused)
    for rule in rules:
        yield from rule.check(facts)


def _image_facts(
    step: StepPlan,
    *,
    inventory: Inventory | None,
    image_facts: Callable[[str], ImageFacts | None],
    client: ClientPython,
    last_digests: Mapping[str, str] | None = None,
) -> PlanFacts:
    """The facts of a step that runs in an image."""
    docker = step.settings.docker or _NO_SETTINGS
    default = _default_parent(docker, client)
    reference = _reference(step, docker, default)
    known_facts = image_facts(reference) if reference else None
    image = merge_facts(known_facts, reference)
    builds = docker.skip_build is UNSET or not docker.skip_build
    claim = claim_of(step.settings.resources)
    devices = _fitting_devices(claim, inventory)
    machine = _image_machine(docker, devices, claim, client)
    lines, unknown = _requirement_lines(docker) if builds else ((), ())
    python = numbers(image.python)
    wanted = requirements(lines, python=python, machine=machine, options=_options(docker, default) if builds else {})
    wanted = attrs.evolve(wanted, unread=(*wanted.unread, *unknown))
    node = _node_machine(devices, claim, client)
    return PlanFacts(
        step=step,
        docker=docker,
        reference=reference,
        image=image,
        image_read=known_facts is not None and not known_facts.unreadable and known_facts.base != "name",
        builds=builds,
        requirements=wanted,
        packages=packages(wanted, image, machine=machine, python=python),
        gpus=step.settings.resources.gpus_per_node,
        kind=_device_kind(claim, devices),
        targets=_targets(claim, devices, inventory, node),
        simulated=inventory is not None and inventory.simulated,
        lacking=impossible(claim, inventory.devices) if claim is not None and inventory is not None else "",
        machine=node,
        client=client,
        last_digest=(last_digests or {}).get(reference, ""),
    )


def _device_facts(step: StepPlan, *, inventory: Inventory | None, client: ClientPython) -> PlanFacts:
    """The facts of a step that runs without a container: its request and the devices."""
    claim = claim_of(step.settings.resources)
    devices = _fitting_devices(claim, inventory)
    node = _node_machine(devices, claim, client)
    return PlanFacts(
        step=step,
        docker=_NO_SETTINGS,
        reference="",
        image=ImageFacts(reference=""),
        image_read=False,
        builds=False,
        requirements=Requirements(),
        packages=(),
        gpus=step.settings.resources.gpus_per_node,
        kind=_device_kind(claim, devices),
        targets=_targets(claim, devices, inventory, node),
        simulated=inventory is not None and inventory.simulated,
        lacking=impossible(claim, inventory.devices) if claim is not None and inventory is not None else "",
        machine=node,
        client=client,
        in_image=False,
    )


def _this_python() -> ClientPython:
    """This process's Python, and the versions that are installed in it."""
    versions = {}
    for name in COMPARED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ClientPython(python=sys.version_info[:3], versions=versions, machine=platform.machine())


def _requirement_lines(docker: DockerSettings) -> tuple[Sequence[str], Sequence[str]]:
    """The lines that the settings would install, files and their includes read; and what could not be read."""
    unknown = []
    for name in ("pyproject_path", "replicate_local_python_environment", "local_project_install_command"):
        value = getattr(docker, name)
        if value is not UNSET and value:
            unknown.append(name)
    if docker.conda_packages is not UNSET and docker.conda_packages:
        unknown.append("conda_packages")
    written = value_or(docker.requirements, None)
    if written is None:
        return (), unknown
    if not isinstance(written, str):
        return written, unknown
    lines, missing = _read_requirements(Path(written), [])
    return lines, [*unknown, *missing]


def _read_requirements(path: Path, above: list[Path]) -> tuple[list[str], list[str]]:
    if len(above) >= _DEEPEST_INCLUDE or path in above:
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
            more, unread = _read_requirements(path.parent / option[1], [*above, path])
            lines += more
            missing += unread
        else:
            lines.append(line)
    return lines, missing


def _reference(step: StepPlan, docker: DockerSettings, default: parents.Parent | None) -> str:
    if value_or(docker.dockerfile, ""):
        return step.image  # the image of a user's Dockerfile is known once it is built
    parent_image = value_or(docker.parent_image, "")
    if parent_image:
        return parent_image
    return default.image if default is not None else ""


def _default_parent(docker: DockerSettings, client: ClientPython) -> parents.Parent | None:
    """The parent that a build takes if none is named; None if there is none for the accelerator."""
    python = value_or(docker.python_version, dotted(client.python[:2]))
    accelerator = value_or(docker.accelerator, "")
    try:
        return parents.parent_for(accelerator, python=python) if accelerator else parents.plain(python)
    except SettingsError:
        return None  # the build itself reports it, with a fix


def _options(docker: DockerSettings, default: parents.Parent | None) -> Mapping[str, object]:
    options: dict[str, object] = dict(value_or(docker.python_package_installer_args, {}))
    if default is not None and default.wheels:
        options.setdefault("torch-backend", default.wheels)
    return options


def _fitting_devices(claim: Claim | None, inventory: Inventory | None) -> list[Device]:
    """The devices of a machine that a claim could get, leased or not."""
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


def _device_kind(claim: Claim | None, devices: Sequence[Device]) -> str:
    kinds = {device.kind for device in devices}
    if claim is not None and not kinds:
        vendors = [choice.model.vendor for choice in claim.choices] or [claim.vendor]
        kinds = {vendor for vendor in vendors if vendor}
    return kinds.pop() if len(kinds) == 1 else ""


def _targets(
    claim: Claim | None, devices: Sequence[Device], inventory: Inventory | None, machine: str
) -> tuple[Hardware, ...]:
    """One target for each kind and model; for devices that no known machine has, what their names say."""
    if claim is None:
        return ()
    if devices and inventory is not None:
        groups: dict[tuple[str, str], list[Device]] = {}
        for device in devices:
            groups.setdefault((device.kind, device.model), []).append(device)
        return tuple(
            hardware_of(group, driver=inventory.driver, cuda=inventory.cuda, machine=machine)
            if _has_driver(group[0].kind)
            else hardware_of(group, driver="", cuda=None, machine=machine)
            for group in groups.values()
        )
    targets = []
    for choice in claim.choices:
        simulation = VENDORS.load(choice.model.vendor).simulation
        chip = None if simulation is None else simulation.capability(choice.name)
        chips = {chip: choice.name} if chip is not None else {}
        targets.append(Hardware(kind=choice.model.vendor, chips=chips, machine=machine or "x86_64"))
    return tuple(targets)


def _has_driver(name: str) -> bool:
    """Whether the inventory's driver and CUDA are those of a vendor's devices."""
    return VENDORS.load(name).runtime == "cuda"


def _node_machine(devices: Sequence[Device], claim: Claim | None, client: ClientPython) -> str:
    """The processor of the step's machine, in the kernel's words; empty if it is not known."""
    choices = claim.choices if claim is not None else ()
    models = {device.model for device in devices} or {choice.name for choice in choices}
    if models and models <= ARM_HOSTS:
        return "aarch64"
    if devices and not any(device.simulated for device in devices):
        return client.machine
    if claim is None:
        return client.machine
    return "x86_64" if models and not models & ARM_HOSTS else ""


def _image_machine(docker: DockerSettings, devices: Sequence[Device], claim: Claim | None, client: ClientPython) -> str:
    """The processor that the image is for: that of `platform`, else the machine's."""
    if docker.platform is not UNSET and docker.platform:
        word = docker.platform.partition("/")[2].partition("/")[0] or docker.platform
        return MACHINES.get(word, word)
    return _node_machine(devices, claim, client)
