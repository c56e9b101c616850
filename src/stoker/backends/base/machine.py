"""The capacity of this machine, what a job requests of it, and what it refuses of a request."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.backends.base.leasing import claim_document
from stoker.backends.base.messages import nodes_of
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Job, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.settings import Launch, demand
from stoker.core.units import size_text, value_or
from stoker.core.words import memory_text
from stoker.system import system

_SLOTS_PER_CPU: Final = 8
"""How many steps may run at once for each CPU when they ask for less than one; each is a process of some 20 MB."""
_NEVER_LESS: Final = "a step is never silently given less than it asks for"
_NO_LEASES: Final = "nobody hands out devices here: the backend was made without a ledger of them"
_REFUSED: Final[Mapping[str, tuple[str, str, str]]] = {
    "shared_memory": (
        "STK105",
        "{} of shared memory",
        "/dev/shm is the machine's, and no step has one of its own",
    ),
    "extended": ("STK106", "extended resources {}", "only a cluster's scheduler knows these"),
}
"""field → code, what it asks for, why this machine cannot give it"""


def machine_capacity(*, cpus: float | None = None, memory: int | None = None, slots: int | None = None) -> Capacity:
    """The capacity of this machine for steps, by cgroup limits and CPU affinity; arguments replace what is measured."""
    cpus = value_or(cpus, float(cpu_count()))
    memory = value_or(memory, memory_size())
    return Capacity(cpus=cpus, memory=memory, slots=value_or(slots, max(1, int(cpus)) * _SLOTS_PER_CPU))


def cpu_count() -> int:
    """CPUs that this process may use: its affinity, or fewer if a cgroup's quota says so."""
    return min(system.cpus(), value_or(system.limits()[0], sys.maxsize))


def memory_size() -> int:
    """Bytes of memory of this machine, or of the cgroup that holds this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, value_or(system.limits()[1], total))


def request_of(job: Job) -> dict[str, Any]:
    """What a job requests of this machine, as data: what each node counts for in admission, and the claimed devices.

    `process` is "warm" for one that other steps use too, "fresh" for one that begins and ends with the job.
    """
    nodes, settings = nodes_of(job), job.step.settings
    if job.kind == "hook":
        return {"nodes": nodes, "process": "warm"}
    claim = claim_document(job)
    alone = claim or nodes > 1 or settings.launch is not None
    return {
        "nodes": nodes,
        "process": "fresh" if alone else settings.isolation,
        "admission": attrs.asdict(demand(settings)),
        "claim": claim,
    }


def check(step: StepPlan, room: Capacity, *, leases: bool) -> Iterator[Finding]:
    """Findings on each field of a step's request: refused, or taken in another way.

    `leases`: devices are leased, and `leasing` checks the request for them.
    """
    resources = step.settings.resources
    report = reporter_of(step)
    nodes = int(resources.get("nodes", 1))
    each = f" on each of {nodes} nodes" if nodes > 1 else ""
    cpus, memory = value_or(resources.cpu_count, 0.0), value_or(resources.memory, 0)
    if cpus and cpus * nodes > room.cpus:
        what = f"asks for {cpus:g} CPUs{each}; this machine has {room.cpus:g}"
        yield report.refused("STK101", what, _NEVER_LESS, f"resources.cpu_count={room.cpus / nodes:g}")
    if nodes > room.slots:
        what = f"asks for {nodes} nodes; this machine runs {room.slots} processes at once"
        yield report.refused("STK104", what, "each node is a process of its own here", f"resources.nodes={room.slots}")
    elif nodes > 1 and (other := _no_mpi(step.settings.launch)):
        what = f"asks for {nodes} nodes with {other}"
        why = "the nodes here are processes of one machine, on which only Open MPI 4 can start ranks"
        yield report.refused("STK104", what, why, "resources.nodes=1")
    elif nodes > 1:
        what = f"asks for {nodes} nodes; they are processes of this machine"
        why = "everything happens as on several machines but what goes over the cable"
        yield report.translated("STK104", what, why)
    if memory and memory * nodes > room.memory:
        what = f"asks for {size_text(memory)} of memory{each}; this machine has {memory_text(room.memory)}"
        yield report.refused("STK102", what, _NEVER_LESS, f"resources.memory={size_text(room.memory // 2**30 * 2**30)}")
    if resources.gpus_per_node and not leases:
        yield report.refused("STK103", f"asks for {describe(resources)}", _NO_LEASES, "resources.gpu_count=null")
    for name, (code, what, why) in _REFUSED.items():
        value = value_or(resources.get(name, None), None)
        if value:
            yield report.refused(
                code, f"asks for {what.format(_value_text(name, value))}", why, f"resources.{name}=null"
            )
    if (disk := value_or(resources.disk, 0)) > 0 and disk > (free := _free_disk()):
        what = f"asks for {size_text(disk)} of disk; {memory_text(free)} are free here"
        yield report.refused("STK108", what, _NEVER_LESS, "resources.disk=null")
    if value_or(resources.spot, None):
        what = "asks for a spot machine; it runs on this one"
        yield report.translated("STK109", what, "this machine is never taken away")
    if not step.environment and (problem := _missing(step.settings.launch)):
        missing, fix = problem
        what = f"starts its ranks by {missing}, which is not installed here"
        why = "ranks are started in the driver's own Python environment"
        yield report.error("STK140", what, why, fix)
    if step.settings.docker is not None:
        what = "asks for a container image; the local backend runs steps in the driver's own Python environment"
        yield report.refused("STK110", what, "what the image brings would be missing, unsaid", "docker=null")


def _free_disk() -> int:
    """Bytes that are free on the working directory's disk."""
    import shutil

    return shutil.disk_usage(".").free


def _no_mpi(launch: Launch | None) -> str:
    """The MPI that could not start ranks on several nodes of this machine; empty where it can, and for none."""
    if launch is None:
        return ""
    import shutil

    from stoker.launchers.registry import launcher_named

    head = launcher_named(launch.launcher).head(launch.arguments or {})
    if head is None:
        return ""
    if shutil.which(head.program) is None:  # what is not installed is said elsewhere
        return "" if head.by_ssh else head.program
    version = subprocess.run([head.program, "--version"], capture_output=True, text=True, check=False).stdout
    works = head.by_ssh and (head.versions is None or head.versions.search(version))
    return "" if works else version.partition("\n")[0] or head.program


def _missing(launch: Launch | None) -> tuple[str, str] | None:
    """What a launcher needs and is not installed here, and what to do; None where nothing is missing."""
    if launch is None:
        return None
    import shutil

    from stoker.launchers.registry import launcher_named

    launcher = launcher_named(launch.launcher)
    package, program = launcher.package, launcher.program(launch)
    if package and importlib.util.find_spec(package) is None:
        missing = f"the package '{package}'"
        return missing, f"pip install '{launcher.requirement}'" if launcher.requirement else f"install {missing}"
    if program and shutil.which(program) is None:
        return f"the program '{program}'", f"install the program '{program}'"
    return None


def _value_text(name: str, value: Any) -> str:
    """A field's value as in settings."""
    if name == "shared_memory":
        return size_text(value)
    if name == "extended":
        return ", ".join(f"{label}={amount:g}" for label, amount in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
