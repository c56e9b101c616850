"""Rules of preflight about devices: whether the image and its packages can use the step's chips and driver."""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, Sequence

from stoker.core.findings import Finding, Level
from stoker.core.status import DRIVER_TOO_OLD, NO_GPU_BUILD, NO_KERNEL_IMAGE
from stoker.core.units import UNSET
from stoker.plan.packages import FrameworkPackage, brings_cuda, may_bring_cuda
from stoker.plan.requirements import numbers
from stoker.plan.rules import PlanFacts, repository
from stoker.vendors.builds import Build, Hardware, Problem, Version, dotted
from stoker.vendors.nvidia.builds import FLOORS, runs
from stoker.vendors.nvidia.chips import LAST_BRANCH, forward_compatible, is_geforce
from stoker.vendors.registry import USUAL, VENDORS, unfit

NO_CUDA: Final = "STK201"
CPU_BUILD: Final = "STK202"
DRIVER_OLD: Final = "STK203"
NO_CODE: Final = "STK204"
OTHER_RUNTIME: Final = "STK205"
NOT_ROCM: Final = "STK214"
NOT_NEURON: Final = "STK215"

_CODES: Final[Mapping[str, str]] = {
    NO_GPU_BUILD: CPU_BUILD,
    DRIVER_TOO_OLD: DRIVER_OLD,
    NO_KERNEL_IMAGE: NO_CODE,
}
"""Why a build does not fit → the code of the finding."""

# The first CUDA that compiles for a chip; its driver is the first that runs one:
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes and "Virtual Architecture Feature List" of
# https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc.
FIRST_CUDA: Final[Mapping[tuple[int, int], Version]] = {
    (7, 0): (9, 0),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}
_WITH_COMPAT: Final = re.compile(r"(?:nvcr\.io/)?nvidia/cuda|nvcr\.io/nvidia/.+")
"""Repositories whose images have the compatibility package of their CUDA."""
_CONTENTS_UNKNOWN: Final = "what was installed into it is not written in its configuration"


def _runtime(facts: PlanFacts) -> str:
    """The software that the step's devices need in an image; that of the usual vendor if several are possible."""
    return VENDORS.load(facts.kind or USUAL).runtime


def _runtime_of(held: Hardware) -> str:
    return VENDORS.load(held.kind).runtime


def no_cuda(facts: PlanFacts) -> Iterator[Finding]:
    """The step asks for a GPU, and nothing in its image is made for one: it would run, on the CPU.

    kubeflow/pipelines 2561: the step completes, and does not use the GPU that it has.
    """
    image = facts.image
    image_known = facts.bare or facts.image_read
    if not facts.gpus or _runtime(facts) != "cuda" or image.cuda or image.rocm or image.neuron or not image_known:
        return
    if any(package.build.framework not in ("", "cupy") for package in facts.packages):
        return  # `unfit_builds` checks whether a framework's build fits
    brings = brings_cuda(facts.requirements) if facts.builds else False
    if brings:
        return
    sure = facts.bare and brings is False
    what = f"asks for a GPU, and its image {facts.reference} has no CUDA"
    fix = 'take a parent image with CUDA (parent_image="pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime", or accelerator='
    fix += '"cuda12.4"), or require a framework whose wheels bring it'
    if not sure:
        undecided = may_bring_cuda(facts.requirements)
        why = f"whether {', '.join(undecided[:5])} brings it is not known" if undecided else _CONTENTS_UNKNOWN
        what = f"asks for a GPU, and the configuration of its image {facts.reference} names no CUDA"
        yield _finding(facts, NO_CUDA, "info", what, why=why, fix=fix)
        return
    why = "none of its requirements brings CUDA either: the step would run, and gain nothing from the GPU"
    yield _finding(facts, NO_CUDA, _level(facts), what, why=why, fix=fix)


def unfit_builds(facts: PlanFacts) -> Iterator[Finding]:
    """A framework's build is for the CPU, for a CUDA that the driver does not run, or for other chips.

    The driver: skypilot 9406, a cu130 wheel on driver 535. The CPU: clearml-agent 152, and a lock file that was made on
    a machine without a GPU, zonca/jupyterhub-deploy-kubernetes-jetstream 72. Chips: pytorch 190385, V100 from 2.15 on.
    """
    if not facts.gpus:
        return
    targets = facts.targets or ((Hardware(),) if _runtime(facts) == "cuda" else ())
    useful = [one for one in facts.packages if _computes(one.build) and _fits(one.build, targets)]
    for package in facts.packages:
        problems = [(held, unfit(package.build, held)) for held in targets]
        unfit_targets = [(held, problem) for held, problem in problems if problem is not None]
        if not unfit_targets:
            continue
        held, problem = unfit_targets[0]
        code = _CODES[problem.cause]
        if code == DRIVER_OLD and compat_package_runs(facts, package.build, held):
            yield _compatibility_finding(facts, package, held)
            continue
        level: Level = _level(facts)
        why = f"it comes from {package.origin} '{package.text}'"
        if code == CPU_BUILD and useful:
            level, why = "info", f"{why}; {useful[0].build.framework} computes on the device"
        elif len(unfit_targets) < len(problems):
            level, why = "info", f"{why}; other devices that it may get do run it"
        elif not package.sure and any(_fits(older, targets) for older in package.older):
            level, why = "info", f"{why}, if nothing else that is installed holds it back to an older release"
        yield _finding(facts, code, level, problem.sentence, why=why, fix=_package_fix(problem, package))


def minor_compatibility(facts: PlanFacts) -> Iterator[Finding]:
    """The driver is older than the CUDA that a framework is built for, of the same first number: it runs, with limits.

    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    for package in facts.packages:
        build = package.build
        for held in facts.targets:
            newer = build.cuda and held.cuda and len(build.cuda) > 1
            if newer and build.cuda > held.cuda and unfit(build, held) is None:  # type: ignore[operator]
                what = f"{build.framework} {build.version} is built for {build.target}, and the driver is for CUDA "
                what += dotted(held.cuda or ())
                why = "minor-version compatibility runs it; code that has to be compiled for the chip (PTX, and kernels"
                why += " that are compiled while it runs) may fail with 'unsupported toolchain'"
                yield _finding(facts, DRIVER_OLD, "info", what, why=why)
                break


def gate(facts: PlanFacts) -> Iterator[Finding]:
    """The container runtime refuses to start a container whose NVIDIA_REQUIRE_CUDA the driver does not satisfy.

    skypilot 5867. https://github.com/NVIDIA/nvidia-container-toolkit/blob/main/internal/requirements/requirements.go
    """
    condition = gate_condition(facts)
    if not facts.gpus:
        return
    for held in facts.targets:
        if _runtime_of(held) != "cuda" or not condition or condition_holds(condition, held) is not False:
            continue
        what = f"the container runtime will not start {facts.reference} with driver {held.driver}: it asks for "
        what += condition.split()[0]
        why = f"the driver is for CUDA {dotted(held.cuda)}" if held.cuda else "NVIDIA_REQUIRE_CUDA is not satisfied"
        fix = "take a parent image with an older CUDA, or have the driver updated; where the CUDA in the image is not "
        fix += 'what computes, runtime_environment={"NVIDIA_DISABLE_REQUIRE": "1"}'
        yield _finding(facts, DRIVER_OLD, _level(facts), what, why=why, fix=fix)
        return


def image_driver(facts: PlanFacts) -> Iterator[Finding]:
    """The image's own CUDA needs a newer driver, and no framework was found that brings another. clearml 725"""
    cuda = numbers(facts.image.cuda)[:2]
    if not facts.gpus or not cuda or any(package.build.cuda or package.build.cpu for package in facts.packages):
        return
    build = Build(framework="CUDA", version=facts.image.cuda, cuda=cuda)
    for held in facts.targets:
        if _runtime_of(held) != "cuda" or runs(cuda, held.driver, held.cuda):
            continue
        if compat_package_runs(facts, build, held):
            yield _compatibility_finding(
                facts, FrameworkPackage(build=build, text=facts.reference, origin="image"), held
            )
            return
        floor = FLOORS.get(cuda[0], "")
        what = f"driver {held.driver or 'of CUDA ' + dotted(held.cuda or ())} is too old for CUDA {dotted(cuda)} of "
        what += facts.reference + (f", which needs {floor} or later" if floor else "")
        fix = f"take a parent image with CUDA {held.cuda[0]}" if held.cuda else "take a parent image with an older CUDA"
        yield _finding(facts, DRIVER_OLD, _level(facts), what, fix=f"{fix}, or have the driver updated")
        return


def unknown_chip(facts: PlanFacts) -> Iterator[Finding]:
    """A simulated driver is too old for the chip, or no longer supports it: no such machine exists.

    skypilot 8408: what a cloud offers as one thing has several drivers. A real driver proves itself by listing a chip.
    """
    for held in facts.targets if facts.simulated else ():
        for chip, name in held.chips.items():
            first = FIRST_CUDA.get(chip)
            if first is not None and held.cuda is not None and held.cuda < first:
                what = f"driver {held.driver or '?'} (CUDA {dotted(held.cuda)}) is older than {name}, which came with "
                what += f"CUDA {dotted(first)}"
                yield _finding(
                    facts, DRIVER_OLD, _level(facts), what, fix="simulate a newer driver, or update it there"
                )
            last = 580 if chip in ((7, 0), (7, 2)) else LAST_BRANCH.get(chip[0])
            if last is not None and held.driver and numbers(held.driver)[0] > last:
                what = f"driver {held.driver} no longer runs {name}; branch {last} is the last that does"
                yield _finding(facts, NO_CODE, _level(facts), what, fix=f"use a driver of branch {last}")


def other_runtime(facts: PlanFacts) -> Iterator[Finding]:
    """The image has one CUDA and the framework's wheel brings another, which is used. skypilot 2694"""
    has = numbers(facts.image.cuda)[:2]
    if not facts.gpus or not has:
        return
    for package in facts.packages:
        build = package.build
        cuda = build.cuda
        if package.origin != "requirement" or not cuda or cuda[: len(has)] == has[: len(cuda)] or build.lacks:
            continue
        what = f"{facts.reference} has CUDA {dotted(has)}, and {package.text} brings {build.target}: its own is used"
        why = "the image's serves only what is compiled against it (nvcc, extensions); LD_LIBRARY_PATH may mix the two"
        fix = f"take a parent image with {build.target}, or one without CUDA, which is smaller"
        yield _finding(facts, OTHER_RUNTIME, "info", what, why=why, fix=fix)


def rocm(facts: PlanFacts) -> Iterator[Finding]:
    """AMD's devices need ROCm in the image, and NVIDIA's have no use for it."""
    image = facts.image
    if not facts.gpus or not facts.reference:
        return
    if _runtime(facts) == "rocm" and image.cuda and not image.rocm:
        what = f"asks for AMD GPUs, and its image {facts.reference} is made for NVIDIA's (CUDA {image.cuda})"
        yield _finding(
            facts, NOT_ROCM, _level(facts), what, fix="take an image with ROCm, such as those of rocm/pytorch"
        )
    elif _runtime(facts) == "rocm" and facts.bare and not any(package.build.rocm for package in facts.packages):
        what = f"asks for AMD GPUs, and neither its image {facts.reference} nor its requirements bring ROCm"
        level: Level = "info" if facts.requirements.unread else _level(facts)
        yield _finding(facts, NOT_ROCM, level, what, fix="take an image with ROCm, such as those of rocm/pytorch")
    elif facts.kind and _runtime(facts) != "rocm" and image.rocm and not image.cuda:
        what = f"its image {facts.reference} is made for AMD's GPUs (ROCm {image.rocm}), and it asks for others"
        yield _finding(facts, NOT_ROCM, _level(facts), what, fix="take an image for the devices, or ask for AMD's")


def neuron(facts: PlanFacts) -> Iterator[Finding]:
    """AWS Neuron devices need the Neuron SDK in the image, and no other device has a use for it. metaflow 3086"""
    image = facts.image
    names = {item.name for item in facts.requirements.items}
    brings = bool(image.neuron) or bool(names & {"torch-neuronx", "jax-neuronx", "neuronx-cc", "torch-neuron"})
    fix = "take one of AWS's images for Neuron (pytorch-training-neuronx), or require torch-neuronx"
    if facts.gpus and _runtime(facts) == "neuron" and not brings and facts.reference:
        sure = bool(facts.bare or image.cuda or image.rocm) and not facts.requirements.unread
        what = f"asks for Neuron devices, and nothing in its image {facts.reference} is known to bring the Neuron SDK"
        yield _finding(facts, NOT_NEURON, _level(facts) if sure else "info", what, fix=fix)
    elif facts.gpus and facts.kind and _runtime(facts) != "neuron" and image.neuron and not image.cuda:
        what = f"its image {facts.reference} is made for AWS Neuron, and it asks for other devices"
        yield _finding(facts, NOT_NEURON, _level(facts), what, fix="take an image with CUDA, or ask for trainium")


_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
"""What Go's `strconv.ParseBool`, by which the runtime reads it, takes for true."""


def gate_condition(facts: PlanFacts) -> str:
    """The condition that the container runtime checks before it starts the image; empty for none.

    Only that of the image's configuration is known: one that was not read has none here.
    """
    env = {**facts.image.env, **_image_environment(facts)}
    condition = env.get("NVIDIA_REQUIRE_CUDA", "")
    version = env.get("CUDA_VERSION", "")
    if env.get("NVIDIA_DISABLE_REQUIRE", "") in _TRUE:
        return ""
    if not condition and version:
        # An image from before the variable: https://github.com/NVIDIA/nvidia-container-toolkit, image/cuda_image.go
        return f"cuda>={dotted(numbers(version)[:2])}"
    return condition


def condition_holds(condition: str, held: Hardware) -> bool | None:
    """Whether devices satisfy NVIDIA_REQUIRE_CUDA: a space is "or", a comma "and"; None if a fact is missing."""
    results = [_alternative(text, held) for text in condition.split()]
    return True if True in results else None if None in results else False


def _alternative(text: str, held: Hardware) -> bool | None:
    results: list[bool | None] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\w+)(!=|<=|>=|=|<|>)([\w.]+)", part)
        if match is None:
            return None
        name, sign, value = match.groups()
        if name == "brand":
            # What NVML calls the brand of any other card changed over time.
            models = set(held.chips.values())
            decidable = bool(models) and ("geforce" in value) != any(map(is_geforce, models))
            results.append(False if decidable else None)
            continue
        ours = {"cuda": held.cuda, "driver": numbers(held.driver) or None, "arch": next(iter(held.chips), None)}.get(
            name
        )
        theirs = numbers(value)
        results.append(_holds(ours, sign, theirs) if ours and theirs else None)
    return False if False in results else None if None in results else True


def _holds(ours: Version, sign: str, theirs: Version) -> bool:
    length = max(len(ours), len(theirs))
    left, right = ours + (0,) * (length - len(ours)), theirs + (0,) * (length - len(theirs))
    return {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
    }[sign]


def compat_package_runs(facts: PlanFacts, build: Build, held: Hardware) -> bool:
    """Whether the image's compatibility package lets an older driver of a data-centre GPU run the build."""
    compat = numbers(facts.image.cuda)[:2]
    has_compat = (
        "NVIDIA_REQUIRE_CUDA" in facts.image.env or _WITH_COMPAT.fullmatch(repository(facts.reference)) is not None
    )
    supported = [name for name in held.chips.values() if forward_compatible(name) is not False]
    covered = bool(build.cuda and compat and build.cuda <= compat and compat[0] >= 11)
    return has_compat and covered and bool(held.chips) and len(supported) == len(held.chips)


def _compatibility_finding(facts: PlanFacts, package: FrameworkPackage, held: Hardware) -> Finding:
    build = package.build
    what = f"{build.framework} {build.version} needs a newer driver than {held.driver or 'this one'}; the image's "
    what += f"cuda-compat package for CUDA {facts.image.cuda} may run it"
    why = "forward compatibility is for data-centre GPUs, and for the driver branches that NVIDIA lists for the package"
    return _finding(facts, DRIVER_OLD, "info", what, why=why, fix="have the driver updated to be sure")


def _computes(build: Build) -> bool:
    """Whether a build is known to be for some device."""
    return bool(build.cuda or build.rocm or build.tpu)


def _fits(build: Build, targets: Sequence[Hardware]) -> bool:
    return all(unfit(build, held) is None for held in targets)


def _package_fix(problem: Problem, package: FrameworkPackage) -> str:
    return (
        problem.fix.replace("pip install ", "require ")
        if package.origin == "requirement"
        else (f"take another parent image, or install over it: {problem.fix}")
    )


def _image_environment(facts: PlanFacts) -> dict[str, str]:
    """The variables that settings add to the image's environment."""
    variables: dict[str, str] = {}
    for settings in (facts.docker.environment, facts.docker.runtime_environment):
        if settings is not UNSET and settings:
            variables.update({name: value for name, value in settings.items() if value is not None})
    return variables | dict(facts.step.settings.environment)


def _level(facts: PlanFacts) -> Level:
    """The level of a finding: no error for a step that may run without its devices."""
    return "error" if facts.required else "info"


def _finding(facts: PlanFacts, code: str, level: Level, what: str, *, why: str = "", fix: str = "") -> Finding:
    return Finding(code=code, level=level, where=facts.where, what=what, why=why, fix=fix)
