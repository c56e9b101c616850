"""The gate: before user code runs, a step that holds accelerators proves that it can use them.

The devices' vendor (`vendors.base`) checks first the devices, then the frameworks of the step's environment, read from
their files. Several frameworks may be installed, and not each is meant to use the devices. The gate refuses a step

* if every framework that user code has imported already is unfit, or
* if it has imported none, and every one that is installed is unfit.

An unfit one beside a fit one is a fact of the proof. `watch_imports` checks a framework again when user code imports
it, and asks it whether it can use the devices.

Simulated devices have no driver to ask, and a CPU build is only a fact: they are for trying things out on a laptop.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Final, Sequence

import attrs

from stoker.core import status
from stoker.core.devices import Device, Lease
from stoker.core.errors import StokerError
from stoker.devices import builds
from stoker.vendors.base import PATIENCE, FrameworkCheck, GateRequest, GateResult, Vendor
from stoker.vendors.builds import Build, Hardware, Problem, dotted, hardware_of
from stoker.vendors.registry import by_vendor, notes, unfit
from stoker.worker.imports import call_on_import


class GateError(StokerError):
    """A device or a framework is not what the step needs; `cause` is one of `core.status`.

    Not an ImportError, so that it passes a user's `except ImportError`.
    """

    def __init__(self, message: str, *, cause: str, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.cause = cause


_NVIDIA: Final = "nvidia"
"""The vendor whose driver a lease names."""


@attrs.define(kw_only=True)
class GateProof:
    """What the gate proved; not frozen, because imports add to it while the step runs."""

    facts: dict[str, str] = attrs.field(factory=dict)
    """By name, as text."""
    fallback: str = ""
    """Why the step runs without devices, or as if it had none; empty where it has them."""
    refused: GateError | None = None
    """An error that an import raised: user code may have caught it, and the step fails all the same."""
    hardware: tuple[Hardware, ...] = ()
    """The devices and drivers that builds have to fit, one entry for each vendor."""

    @classmethod
    def of_rank(cls, lease: Lease) -> GateProof:
        """The proof that a rank begins with: its node's agent has opened the gate, and `lease` is what that found."""
        sides = []
        for devices in by_vendor(lease.held).values():
            driver, cuda = (lease.driver, lease.cuda) if devices[0].kind == _NVIDIA else ("", None)
            sides.append(hardware_of(devices, driver=driver, cuda=cuda, machine=platform.machine()))
        return cls(hardware=tuple(sides))

    def with_driver(self, lease: Lease) -> Lease:
        """The lease with the driver as the gate has found it here, which is what ranks check their imports by."""
        for side in self.hardware:
            if side.kind == _NVIDIA:
                cuda = None if side.cuda is None else (side.cuda[0], side.cuda[1])
                return attrs.evolve(lease, driver=side.driver, cuda=cuda)
        return lease


_IMPORTED: Final = tuple(name for name in builds.FRAMEWORKS if name != "cupy")
"""Frameworks that are looked at again when they are imported."""


def prove(lease: Lease, *, run: str = "", root: Path = Path("/"), patience: float = PATIENCE) -> GateProof:
    """Prove that a step's devices can be used, or raise a `GateError`; under "prefer", the proof has a fallback.

    `run`: a health check counts for its other steps, too. `root` is where /dev and /proc are; `patience` the seconds in
    which memory may still become free.
    """
    if lease.fallback or not lease.held:
        return GateProof(fallback=lease.fallback)
    proof = GateProof()
    vendors = by_vendor(lease.held)
    for vendor, devices in vendors.items():
        gate_result = _simulated_result if lease.simulated else _ask_vendor
        result = gate_result(vendor, devices, lease, root, patience)
        # Devices of several vendors at once are the exception: then each fact has its vendor before it.
        mark = f"{vendor.name} " if len(vendors) > 1 else ""
        proof.facts.update({mark + name: text for name, text in result.facts.items()})
        if result.problem is not None:
            return _refuse(result.problem, lease, proof)
        side = hardware_of(devices, driver=result.driver, cuda=result.cuda, machine=platform.machine())
        proof.hardware = (*proof.hardware, side)
    problem = _frameworks(builds.builds(), simulated=lease.simulated, proof=proof)
    if problem is None and lease.health_check != "off":
        from stoker.worker import health  # only for steps that ask for it

        proof.facts["health"], problem = health.check(lease, run)
    return proof if problem is None else _refuse(problem, lease, proof)


def watch_imports(lease: Lease, proof: GateProof) -> Callable[[], None]:
    """Check each framework when user code imports it, or now if it is imported already; returns what ends the watch.

    Real devices only. What does not hold raises a `GateError` out of the import, or becomes the proof's fallback.
    """
    if lease.simulated or proof.fallback or not lease.held:
        return _nothing

    def check(name: str) -> None:
        _check_import(name, lease, proof)

    names = dict.fromkeys([*_IMPORTED, *(name for vendor in by_vendor(lease.held) for name in vendor.frameworks)])
    for name in names:
        if sys.modules.get(name) is not None:
            check(name)
    return call_on_import(names, check)


def _ask_vendor(vendor: Vendor, devices: Sequence[Device], lease: Lease, root: Path, patience: float) -> GateResult:
    request = GateRequest(
        devices=devices,
        memory=lease.memory,
        driver=lease.driver,
        cuda=lease.cuda,
        root=root,
        patience=patience,
        environment=dict(os.environ),
    )
    return vendor.prove(request)


def _simulated_result(
    vendor: Vendor, devices: Sequence[Device], lease: Lease, root: Path, patience: float
) -> GateResult:
    broken = [device for device in devices if device.fault]
    if broken:
        sentence = "; ".join(f"{device.model} {device.index} ({device.uuid}): {device.fault}" for device in broken)
        fix = "the device is pretended: remove bad=… from the simulation, or run where it is not"
        return GateResult(facts={}, problem=Problem(cause=status.GPU_HARDWARE, sentence=sentence, fix=fix))
    models = ", ".join(sorted({device.model for device in devices}))
    facts = {"devices": f"{len(devices)} simulated ({models})"}
    driver, cuda = (lease.driver, lease.cuda) if vendor.simulation and vendor.simulation.facts else ("", None)
    if driver or cuda:
        versions = " ".join([driver, *([f"(CUDA {dotted(cuda)})"] if cuda else [])])
        facts["driver"] = f"{versions.strip()}, simulated"
    return GateResult(facts=facts, driver=driver, cuda=cuda)


def _frameworks(installed: Sequence[Build], *, simulated: bool, proof: GateProof) -> Problem | None:
    """Note the installed builds in the proof; returns the problem if none that counts is fit."""
    problems: dict[str, Problem | None] = {}
    for build in installed:
        problem = problems[build.framework] = _unfit(build, proof.hardware)
        if problem is not None and problem.cause == status.NO_GPU_BUILD and simulated:
            kind = "a CPU build" if build.cpu else f"built for {build.target}"
            proof.facts[build.framework] = f"{build.version} is {kind}: on real devices the gate would refuse it"
            problems[build.framework] = None
        elif problem is not None:
            proof.facts[build.framework] = f"{builds.words(build)}; unfit: {problem.sentence}"
        else:
            remarks = [note for side in proof.hardware for note in notes(build, side)]
            proof.facts[build.framework] = "; ".join([builds.words(build), *remarks])
    if not installed:
        proof.facts["frameworks"] = f"none of {', '.join(builds.FRAMEWORKS)} is installed"
    relevant = [name for name in problems if sys.modules.get(name) is not None] or list(problems)
    if not relevant or any(problems[name] is None for name in relevant):
        return None
    return problems[relevant[0]]


def _unfit(build: Build, sides: Sequence[Hardware]) -> Problem | None:
    """Why a build can use no kind of the devices; it is fit if it can use one."""
    problems = [unfit(build, side) for side in sides]
    return problems[0] if problems and all(problems) else None


def _check_import(name: str, lease: Lease, proof: GateProof) -> None:
    """Check a framework that has just been imported."""
    problem = _wrong_build(name, proof)
    if problem is None:
        fact, problem = _ask_framework(name, lease.held)
        if fact:
            proof.facts[f"{name} in use"] = fact
    if problem is None:
        return
    if lease.policy == "prefer":
        proof.fallback = proof.fallback or problem.sentence
        return
    proof.refused = _error(problem, lease)
    raise proof.refused


def _wrong_build(name: str, proof: GateProof) -> Problem | None:
    """Why an imported framework is unfit by its build; none while another that is imported is fit."""
    problems = {
        build.framework: _unfit(build, proof.hardware)
        for build in builds.builds()
        if build.framework == name or sys.modules.get(build.framework) is not None
    }
    return problems.get(name) if all(problems.values()) else None


def _refuse(problem: Problem, lease: Lease, proof: GateProof) -> GateProof:
    if lease.policy != "prefer":
        raise _error(problem, lease)
    proof.fallback = problem.sentence
    return proof


def _error(problem: Problem, lease: Lease) -> GateError:
    request = f" (asked for: {lease.asked})" if lease.asked else ""
    return GateError(f"{problem.sentence}{request}", cause=problem.cause, fix=problem.fix)


def _nothing() -> None:
    """Ends a watch that never began."""


def _ask_framework(name: str, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """A fact that an imported framework states about the devices, and the problem if it cannot use them."""
    module = sys.modules.get(name)
    facts: list[str] = []
    for vendor, of_vendor in by_vendor(devices).items():
        framework_check = vendor.frameworks.get(name)
        if module is None or framework_check is None:
            continue
        fact, problem = _answer(name, module, framework_check, of_vendor)
        if problem is not None:
            return "", problem
        facts.append(fact)
    return "; ".join(filter(None, facts)), None


def _answer(
    name: str, module: Any, framework_check: FrameworkCheck, devices: Sequence[Device]
) -> tuple[str, Problem | None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fact, problem = framework_check(module, devices)
            raised = []
        except Exception as error:  # a framework's own code, which raises what it likes where a driver fails
            fact, problem, raised = "", None, [f"{type(error).__name__}: {error}"]
    texts = [*raised, *(str(warning.message) for warning in caught)]
    if raised or (problem is not None and texts):
        return "", _classify(name, texts, problem)
    return fact, problem


def _classify(name: str, texts: Sequence[str], problem: Problem | None) -> Problem:
    """The problem behind what a framework raised or warned of, by the table of failures; else the one it reported."""
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    match = signatures.find_signature(texts, "")
    if match is not None:
        row, line = match
        return Problem(cause=row.cause, sentence=f"{name}: {row.why} ({line})", fix=row.advice)
    if problem is not None:
        return problem
    fix = "see whether `nvidia-smi` works here, and import it by hand"
    return Problem(cause=status.DRIVER_BROKEN, sentence=f"{name} fails to look for devices: {texts[0]}", fix=fix)
