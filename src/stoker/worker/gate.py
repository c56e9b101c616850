"""The gate: before user code runs, a step that holds accelerators proves that it can use them.

First the devices, then the frameworks of the step's environment, read from their files; both are judged by the
devices' vendor (`vendors.base`). Several may be installed, and not each is meant to use the devices. The gate refuses

* where every framework that user code has imported already is unfit, or
* where it has imported none, and every one that is installed is unfit.

An unfit one beside a fit one is a fact of the proof. `watch_imports` looks again when user code imports one.

Of simulated devices no driver is asked, and a CPU build is a fact: to try things out on a laptop is their point.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Callable, Final, Sequence

import attrs

from stoker.core import status
from stoker.core.devices import Device, Lease
from stoker.core.errors import StokerError
from stoker.devices import builds
from stoker.vendors.base import PATIENCE, GateRequest, GateResult, Vendor
from stoker.vendors.builds import Build, Hardware, Problem, dotted, hardware_of
from stoker.vendors.registry import by_vendor, notes, unfit
from stoker.worker import imports


class GateError(StokerError):
    """A device or a framework is not what the step needs; `cause` is one of `core.status`.

    It is no ImportError, so that it passes a user's `except ImportError`.
    """

    def __init__(self, message: str, *, cause: str, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.cause = cause


@attrs.define(kw_only=True)
class Proof:
    """What the gate found, by name, as text; not frozen, because imports add to it while the step runs.

    `fallback`: why the step runs without devices, or as if it had none; empty where it has them. `refused` is an error
    that an import has raised: user code may have caught it, and the step has failed all the same. `held` is what builds
    have to fit.
    """

    facts: dict[str, str] = attrs.field(factory=dict)
    fallback: str = ""
    refused: GateError | None = None
    held: tuple[Hardware, ...] = ()


_IMPORTED: Final = tuple(name for name in builds.FRAMEWORKS if name != "cupy")
"""Frameworks that are looked at again when they are imported."""


def opened(lease: Lease, *, root: Path = Path("/"), patience: float = PATIENCE) -> Proof:
    """Prove what a step holds, or raise a `GateError`; under the policy "prefer", say why it runs without.

    `root` is where /dev and /proc are; `patience` the seconds in which memory may still become free.
    """
    if lease.fallback or not lease.held:
        return Proof(fallback=lease.fallback)
    proof = Proof()
    vendors = by_vendor(lease.held)
    for vendor, devices in vendors.items():
        look = _simulated if lease.simulated else _looked
        presence = look(vendor, devices, lease, root, patience)
        # Devices of several vendors at once are the exception: then each fact has its vendor before it.
        mark = f"{vendor.name} " if len(vendors) > 1 else ""
        proof.facts.update({mark + name: text for name, text in presence.facts.items()})
        if presence.problem is not None:
            return _refuse(presence.problem, lease, proof)
        side = hardware_of(devices, driver=presence.driver, cuda=presence.cuda, machine=platform.machine())
        proof.held = (*proof.held, side)
    problem = _frameworks(builds.builds(), simulated=lease.simulated, proof=proof)
    return proof if problem is None else _refuse(problem, lease, proof)


def watch_imports(lease: Lease, proof: Proof) -> Callable[[], None]:
    """Look at each framework once more as user code imports it, or now if it has; what is returned ends the watch.

    Real devices only. What does not hold raises a `GateError` out of the import, or becomes the proof's fallback.
    """
    if lease.simulated or proof.fallback or not lease.held:
        return _nothing

    def check(name: str) -> None:
        _imported(name, lease, proof)

    names = dict.fromkeys([*_IMPORTED, *(name for vendor in by_vendor(lease.held) for name in vendor.frameworks)])
    for name in names:
        if sys.modules.get(name) is not None:
            check(name)
    return imports.watch(names, check)


def _looked(vendor: Vendor, devices: Sequence[Device], lease: Lease, root: Path, patience: float) -> GateResult:
    ask = GateRequest(
        devices=devices,
        memory=lease.memory,
        driver=lease.driver,
        cuda=lease.cuda,
        root=root,
        patience=patience,
        environment=dict(os.environ),
    )
    return vendor.prove(ask)


def _simulated(vendor: Vendor, devices: Sequence[Device], lease: Lease, root: Path, patience: float) -> GateResult:
    models = ", ".join(sorted({device.model for device in devices}))
    facts = {"devices": f"{len(devices)} simulated ({models})"}
    driver, cuda = (lease.driver, lease.cuda) if vendor.simulation and vendor.simulation.facts else ("", None)
    if driver or cuda:
        named = " ".join([driver, *([f"(CUDA {dotted(cuda)})"] if cuda else [])])
        facts["driver"] = f"{named.strip()}, simulated"
    return GateResult(facts=facts, driver=driver, cuda=cuda)


def _frameworks(found: Sequence[Build], *, simulated: bool, proof: Proof) -> Problem | None:
    """Note what the builds are, and the problem if none that counts is fit."""
    problems: dict[str, Problem | None] = {}
    for build in found:
        problem = problems[build.framework] = _unfit(build, proof.held)
        if problem is not None and problem.cause == status.NO_GPU_BUILD and simulated:
            kind = "a CPU build" if build.cpu else f"built for {build.target}"
            proof.facts[build.framework] = f"{build.version} is {kind}: on real devices the gate would refuse it"
            problems[build.framework] = None
        elif problem is not None:
            proof.facts[build.framework] = f"{builds.words(build)}; unfit: {problem.sentence}"
        else:
            remarks = [note for side in proof.held for note in notes(build, side)]
            proof.facts[build.framework] = "; ".join([builds.words(build), *remarks])
    if not found:
        proof.facts["frameworks"] = f"none of {', '.join(builds.FRAMEWORKS)} is installed"
    counted = [name for name in problems if sys.modules.get(name) is not None] or list(problems)
    if not counted or any(problems[name] is None for name in counted):
        return None
    return problems[counted[0]]


def _unfit(build: Build, sides: Sequence[Hardware]) -> Problem | None:
    """Why a build can use no kind of the devices; it is fit if it can use one."""
    problems = [unfit(build, side) for side in sides]
    return problems[0] if all(problems) else None


def _imported(name: str, lease: Lease, proof: Proof) -> None:
    """Look at a framework that has just been imported."""
    problem = _wrong_build(name, proof)
    if problem is None:
        fact, problem = imports.asked(name, lease.held)
        if fact:
            proof.facts[f"{name} in use"] = fact
    if problem is None:
        return
    if lease.policy == "prefer":
        proof.fallback = proof.fallback or problem.sentence
        return
    proof.refused = _error(problem, lease)
    raise proof.refused


def _wrong_build(name: str, proof: Proof) -> Problem | None:
    """Why an imported framework is unfit by its build; none while another that is imported is fit."""
    problems = {
        build.framework: _unfit(build, proof.held)
        for build in builds.builds()
        if build.framework == name or sys.modules.get(build.framework) is not None
    }
    return problems.get(name) if all(problems.values()) else None


def _refuse(problem: Problem, lease: Lease, proof: Proof) -> Proof:
    if lease.policy != "prefer":
        raise _error(problem, lease)
    proof.fallback = problem.sentence
    return proof


def _error(problem: Problem, lease: Lease) -> GateError:
    asked = f" (asked for: {lease.asked})" if lease.asked else ""
    return GateError(f"{problem.sentence}{asked}", cause=problem.cause, fix=problem.fix)


def _nothing() -> None:
    """The end of a watch that never began."""
