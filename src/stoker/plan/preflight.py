"""Checks before a run: the rules compare each step's image, packages, driver and devices. Nothing is started.

Facts of a step are gathered from its plan, its requirement files, the versions that are installed here, and what the
caller provides; what is not known stays empty, and no rule guesses it. Each code of Stoker's own rules has its section
in docs/findings.md, which `stoker explain CODE` prints; a rule of another distribution brings its own text.
"""

from __future__ import annotations

import functools
import platform
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.devices import Claim, Device, Inventory, claim_of
from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.imagenames import merge_facts
from stoker.core.packages import Resolution
from stoker.core.plan import Plan, StepPlan
from stoker.core.plugins import Registry
from stoker.core.receipt import Proof
from stoker.core.units import UNSET, value_or
from stoker.devices import builds
from stoker.devices.choosing import impossible
from stoker.images import parents
from stoker.images.requirements import logical_lines, option_of
from stoker.plan import rules_device, rules_packages
from stoker.plan.locking import with_lock
from stoker.plan.packages import FrameworkPackage, packages
from stoker.plan.proving import prove, required_finding
from stoker.plan.requirements import Requirements, numbers, requirements
from stoker.plan.rules import MACHINES, ClientPython, PlanFacts, Rule
from stoker.vendors.builds import Hardware, dotted, hardware_of
from stoker.vendors.nvidia.chips import NVIDIA
from stoker.vendors.registry import VENDORS

RULES: Final[Registry[Rule]] = Registry(group="stoker.rules", noun="rule", kind=Rule, builtin={})
"""The rules of other distributions; Stoker's own are `BUILTIN_RULES`."""

BUILTIN_RULES: Final[Sequence[Rule]] = tuple(
    Rule(name=check.__name__, check=check, every_step=False)
    for check in (
        rules_packages.nowhere,
        rules_packages.unreadable,
        rules_packages.processor,
        rules_packages.other_libc,
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
        rules_packages.launcher,
        rules_packages.little_shm,
        rules_packages.idle_accelerator,
        rules_packages.unpinned,
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
ARM_HOSTS: Final = frozenset({"T4G", *(name for name, chip in NVIDIA.items() if chip.form in ("superchip", "Jetson"))})
"""Models that are sold only with an ARM processor of NVIDIA's or Amazon's."""
_NO_SETTINGS: Final = DockerSettings()
_SIDE_BY_SIDE: Final = 16
"""Steps that are judged at the same time: they mostly wait for registries and indexes."""
_DEEPEST_INCLUDE: Final = 32
"""How deep requirement files may include each other; more is taken to be a circle."""


@attrs.frozen(kw_only=True)
class StepJudgement:
    """What the checks say of one step."""

    findings: tuple[Finding, ...] = ()
    proof: Proof | None = None
    """None for a step that asks for no accelerators."""
    lock: str = ""
    """The digest of the lock of its image; empty without one."""


@attrs.frozen(kw_only=True)
class Surroundings:
    """What is known of where steps run, beside what their plan says."""

    inventory: Callable[[], Inventory | None]
    """The devices of this machine; called if a step runs here and asks for some."""
    image_facts: Callable[[str], ImageFacts | None] = lambda reference: None
    """Reads an image, or returns None; called once for each image."""
    in_images: frozenset[str] = frozenset()
    """The names of the backends that run their steps in images on this machine."""
    here: frozenset[str] = frozenset()
    """The names of the backends that run their steps on this machine without a container."""
    last_digests: Mapping[str, str] = attrs.field(factory=dict)
    """The digest that a reference had when it was last used."""
    resolve: Callable[[StepPlan, ImageFacts, str], Resolution] = lambda step, image, machine: Resolution()
    """Resolves what a step's image will install: its parent's facts, and its processor in the kernel's words."""


def judge(
    plan: Plan, surroundings: Surroundings, *, client: ClientPython | None = None
) -> tuple[tuple[StepPlan, ...], tuple[Finding, ...]]:
    """The plan's steps, each with its proof, and the findings about all of them.

    Steps without accelerators and without an image are checked only by rules of other distributions. If the plan's
    settings require proofs, a step that is not proved is an error.
    """
    client = client or _this_python()
    surroundings = attrs.evolve(
        surroundings,
        inventory=_once(surroundings.inventory),
        image_facts=functools.cache(surroundings.image_facts),
    )
    rules = third_party_rules()
    distinct = {_judged_alike(step): step for step in plan.steps}
    with ThreadPoolExecutor(max(1, min(len(distinct), _SIDE_BY_SIDE))) as pool:  # what they ask has its own limits
        judge_one = functools.partial(_judge_step, plan=plan, surroundings=surroundings, rules=rules, client=client)
        judgements = dict(zip(distinct, pool.map(judge_one, distinct.values())))
    shown: set[tuple[str, str, int]] = set()
    steps: list[StepPlan] = []
    all_findings: list[Finding] = []
    for step in plan.steps:
        key = _judged_alike(step)
        is_first = key not in shown
        shown.add(key)
        if is_first:
            all_findings += judgements[key].findings
        proof, lock = judgements[key].proof, judgements[key].lock
        same = proof is step.proof and lock == step.lock
        steps.append(step if same else attrs.evolve(step, proof=proof, lock=lock))
        refusal = required_finding(steps[-1]) if is_first and plan.settings.require_proof else None
        all_findings += [] if refusal is None else [refusal]
    return tuple(steps), tuple(all_findings)


def _judged_alike(step: StepPlan) -> tuple[str, str, int]:
    return step.name, step.backend, id(step.settings)


def _once(find: Callable[[], Inventory | None]) -> Callable[[], Inventory | None]:
    """The same function, called once, by whichever thread comes first."""
    lock, cached = threading.Lock(), functools.cache(find)

    def found() -> Inventory | None:
        with lock:
            return cached()

    return found


def _judge_step(
    step: StepPlan, plan: Plan, surroundings: Surroundings, rules: Sequence[Rule], client: ClientPython
) -> StepJudgement:
    asks = step.settings.resources.gpus_per_node > 0
    resolution = Resolution()
    if step.backend in surroundings.in_images:
        facts = _image_facts(
            step,
            inventory=surroundings.inventory(),
            image_facts=surroundings.image_facts,
            client=client,
            last_digests=surroundings.last_digests,
            resolve=surroundings.resolve,
        )
        resolution = facts.resolution
        step_findings = (*resolution.findings, *_apply((*BUILTIN_RULES, *rules), facts, plan))
    else:
        rules = [rule for rule in rules if rule.every_step]
        if not rules and not asks:
            return StepJudgement()
        is_here = step.backend in surroundings.here
        inventory = surroundings.inventory() if is_here or rules else None
        facts = _device_facts(step, inventory=inventory, client=client, is_here=is_here)
        step_findings = tuple(_apply(rules, facts, plan))
    lock = "" if resolution.lock is None else resolution.lock.digest
    if not asks:
        return StepJudgement(findings=step_findings, lock=lock)
    refused = [one for one in plan.findings if one.code in _REFUSED_BY_BACKENDS and one.where == facts.where]
    judgement = prove(facts, (*refused, *step_findings))
    return StepJudgement(findings=(*step_findings, *judgement.findings), proof=judgement.proof, lock=lock)


def findings(
    plan: Plan,
    *,
    inventory: Inventory | None,
    image_facts: Callable[[str], ImageFacts | None],
    steps: Iterable[StepPlan] | None = None,
    client: ClientPython | None = None,
    last_digests: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """The findings about `steps` that run in images; about all steps of the plan if `steps` is None.

    `inventory` is that of the machine they will run on; None if it is not known. For the others see `Surroundings`.
    """
    steps = plan.steps if steps is None else tuple(steps)
    surroundings = Surroundings(
        inventory=lambda: inventory,
        image_facts=image_facts,
        in_images=frozenset(step.backend for step in steps),
        last_digests=last_digests or {},
    )
    yield from judge(attrs.evolve(plan, steps=tuple(steps)), surroundings, client=client)[1]


def third_party_rules() -> tuple[Rule, ...]:
    """The rules of other distributions."""
    return tuple(rule for _, rule in RULES.third_party_parts())


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
    last_digests: Mapping[str, str],
    resolve: Callable[[StepPlan, ImageFacts, str], Resolution] = lambda step, image, machine: Resolution(),
) -> PlanFacts:
    """The facts of a step that runs in an image."""
    docker = step.settings.docker or _NO_SETTINGS
    default = _default_parent(docker, client)
    reference = _reference(step, docker, default)
    known_facts = image_facts(reference) if reference else None
    image = _with_python(merge_facts(known_facts, reference), docker, client)
    builds = docker.skip_build is UNSET or not docker.skip_build
    claim = claim_of(step.settings.resources)
    devices = _fitting_devices(claim, inventory)
    machine = _image_machine(docker, devices, claim, client)
    lines, unknown = _requirement_lines(docker) if builds else ((), ())
    python = numbers(image.python)
    wanted = requirements(lines, python=python, machine=machine, options=_options(docker, default) if builds else {})
    wanted = attrs.evolve(wanted, unread=(*wanted.unread, *unknown))
    resolution = resolve(step, image, machine)
    if resolution.lock is not None:
        wanted = with_lock(wanted, resolution.lock)
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
        listed=frozenset(device.model for device in inventory.devices) if inventory is not None else frozenset(),
        lacking=impossible(claim, inventory.devices) if claim is not None and inventory is not None else "",
        machine=node,
        client=client,
        last_digest=last_digests.get(reference, ""),
        locked="" if resolution.lock is None else resolution.lock.resolver,
        resolution=resolution,
    )


def _device_facts(
    step: StepPlan, *, inventory: Inventory | None, client: ClientPython, is_here: bool = False
) -> PlanFacts:
    """The facts of a step that runs without a container: its devices, and its Python where that is on this machine."""
    claim = claim_of(step.settings.resources)
    devices = _fitting_devices(claim, inventory)
    node = _node_machine(devices, claim, client)
    wanted, installed = Requirements(), None
    frameworks: tuple[FrameworkPackage, ...] = ()
    own = step.settings.packages if is_here and step.environment else None
    if own is not None:
        python = numbers(value_or(own.python, "")) or client.python
        wanted = requirements((*own.requirements, *own.indexes), python=python, machine=client.machine)
        wanted = attrs.evolve(wanted, unread=(*wanted.unread, *own.specifications))
        frameworks = packages(wanted, None, machine=client.machine, python=python)
    elif is_here and claim is not None:
        installed = builds.distributions()
        frameworks = tuple(FrameworkPackage(build=build, text=build.how, origin="here") for build in builds.builds())
    return PlanFacts(
        step=step,
        docker=_NO_SETTINGS,
        reference="",
        image=ImageFacts(reference=""),
        image_read=False,
        builds=own is not None,
        requirements=wanted,
        packages=frameworks,
        gpus=step.settings.resources.gpus_per_node,
        kind=_device_kind(claim, devices),
        targets=_targets(claim, devices, inventory, node),
        simulated=inventory is not None and inventory.simulated,
        listed=frozenset(device.model for device in inventory.devices) if inventory is not None else frozenset(),
        lacking=impossible(claim, inventory.devices) if claim is not None and inventory is not None else "",
        machine=node,
        client=client,
        in_image=False,
        installed=installed,
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
    for name in (
        "pyproject_path",
        "pyproject_export_command",
        "replicate_local_python_environment",
        "local_project_install_command",
    ):
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


def _with_python(image: ImageFacts, docker: DockerSettings, client: ClientPython) -> ImageFacts:
    """The image's facts, with the Python that the build installs into one that is known to have none of its own."""
    python = value_or(docker.python_version, dotted(client.python[:2]))
    if image.python or parents.interpreter_of(image.reference, python=python) == "parent":
        return image
    return attrs.evolve(image, python=python)


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
        kind = choice.model.vendor
        targets.append(Hardware(kind=kind, chips=chips, machine=machine or "x86_64", models=(choice.name,)))
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
