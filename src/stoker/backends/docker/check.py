"""What a container engine makes of each field of a step's request: honoured, translated, or refused with what to do."""

from __future__ import annotations

import os
import shutil
from typing import Final, Iterator

from stoker.backends.base.messages import missing_source
from stoker.backends.base.overlays import Mount
from stoker.backends.docker.requests import own_container
from stoker.backends.docker.settings import ContainerSettings
from stoker.core.findings import Finding, Reporter
from stoker.core.hosts import is_folder_elsewhere
from stoker.core.plan import Capacity, Site, StepPlan, reporter_of
from stoker.core.resources import ResourceSettings, describe
from stoker.core.units import size_text
from stoker.core.words import memory_text
from stoker.vendors.registry import VENDORS

FAR_DEVICES: Final = "STK141"
FAR_STORE: Final = "STK142"
FAR_CHECKPOINTS: Final = "STK143"
SHARED_OVER_MEMORY: Final = "STK144"
NO_SOURCE: Final = "STK145"
NO_NETWORK: Final = "STK146"
FAR_DISK: Final = "STK147"
FAR_READ_ONLY: Final = "STK240"
NOT_SHARED: Final = "STK254"
NOT_HANDED_IN: Final = "STK367"
_NEVER_LESS: Final = "a step is never silently given less than it asks for"


def check(
    step: StepPlan, settings: ContainerSettings, site: Site, room: Capacity | None, *, leases: bool
) -> Iterator[Finding]:
    """Field by field; `room` is what the engine's machine has, None for one that is elsewhere.

    `leases`: devices are handed out, and what of them is wanted is for `leasing` to judge.
    """
    resources = step.settings.resources
    report = reporter_of(step)
    yield from _size(resources, room, report)
    if resources.gpus_per_node and room is None:
        what = f"asks for {describe(resources)}; the container engine is on another machine"
        why = "which devices are there, and who holds them, is only known of this machine"
        yield report.refused(FAR_DEVICES, what, why, "resources.gpu_count=null")
    elif resources.gpus_per_node and not leases:
        why = "nobody hands out devices here: the backend was made without a ledger of them"
        yield report.refused("STK103", f"asks for {describe(resources)}", why, "resources.gpu_count=null")
    elif resources.gpus_per_node and not site.simulate:
        yield from _handed_in(resources, report)
    if resources.get("extended"):
        named = ", ".join(f"{name}={amount:g}" for name, amount in resources.get("extended").items())
        why = "only a cluster's scheduler knows these"
        yield report.refused("STK106", f"asks for extended resources {named}", why, "resources.extended=null")
    if resources.get("spot"):
        what = "asks for a spot machine; it runs on the engine's own"
        yield report.translated("STK109", what, "that machine is never taken away")
    yield from _places(step, settings, site, report, near=room is not None)
    why = own_container(step, settings, shares_files=room is not None, store=site.artifacts)
    if settings.get("reuse", "auto") is True and why:
        fix = "reuse='auto', which gives a step its own container where it needs one, or take back what asks for it"
        yield report.error(NOT_SHARED, "has reuse=true, but needs a container of its own", why, fix)


def _handed_in(resources: ResourceSettings, report: Reporter) -> Iterator[Finding]:
    """Devices that no engine can give a container."""
    kinds = resources.get("accelerators", ())
    name = kinds[0].model.vendor if kinds else resources.get("gpu_vendor", "")
    vendor = VENDORS.load(name) if name in VENDORS else None
    if vendor is not None and vendor.container is None and not vendor.toolkit:
        what = f"asks for {describe(resources)} in a container"
        why = f"Stoker knows no way to hand a {vendor.title} device into one"
        yield report.error(NOT_HANDED_IN, what, why, "run the step on a stack whose orchestrator is local")


def _size(resources: ResourceSettings, room: Capacity | None, report: Reporter) -> Iterator[Finding]:
    nodes = resources.get("nodes", 1)
    each = f" on each of {nodes} nodes" if nodes > 1 else ""
    cpus, memory, shared = (
        resources.get("cpu_count", 0.0),
        resources.get("memory", 0),
        resources.get("shared_memory", 0),
    )
    if room is not None and cpus * nodes > room.cpus:
        what = f"asks for {cpus:g} CPUs{each}; this machine has {room.cpus:g}"
        yield report.refused("STK101", what, _NEVER_LESS, f"resources.cpu_count={room.cpus / nodes:g}")
    if room is not None and memory * nodes > room.memory:
        what = f"asks for {size_text(memory)} of memory{each}; this machine has {memory_text(room.memory)}"
        yield report.refused("STK102", what, _NEVER_LESS, f"resources.memory={size_text(room.memory // 2**30 * 2**30)}")
    if memory and shared > memory:
        what = f"asks for {size_text(shared)} of shared memory and {size_text(memory)} of memory"
        why = "what lies in /dev/shm counts as the container's memory: it would be killed before that is full"
        yield report.refused(SHARED_OVER_MEMORY, what, why, f"resources.memory={size_text(2 * shared)}")
    if room is not None and nodes > room.slots:
        what = f"asks for {nodes} nodes; this machine runs {room.slots} containers at once"
        yield report.refused(
            "STK104", what, "each node is a container of its own here", f"resources.nodes={room.slots}"
        )
    elif nodes > 1:
        what = f"asks for {nodes} nodes; they are containers of one machine"
        why = "everything happens as on several machines but what goes over the cable"
        yield report.translated("STK104", what, why)
    if not resources.get("disk"):
        return
    if room is None:
        what = f"asks for {size_text(resources.get('disk'))} of disk; how much is free at the engine is not known"
        yield report.translated(FAR_DISK, what, "an engine does not tell, and sets no limit")
    elif resources.get("disk") > (free := shutil.disk_usage(".").free):
        what = f"asks for {size_text(resources.get('disk'))} of disk; {memory_text(free)} are free here"
        yield report.refused("STK108", what, _NEVER_LESS, "resources.disk=null")


def _places(
    step: StepPlan, settings: ContainerSettings, site: Site, report: Reporter, *, near: bool
) -> Iterator[Finding]:
    """Where the container finds what it needs."""
    if is_folder_elsewhere(site.artifacts):
        what = f"runs in a container, which does not reach the artifact store {site.artifacts}"
        why = "containers have neither your ssh nor its keys"
        fix = "name another store in the stack: artifact_store = 's3://…', or a folder of this machine"
        yield report.error(FAR_STORE, what, why, fix)
    elif not near and "://" not in site.artifacts:
        what = f"runs on a container engine elsewhere, which does not see the artifact store {site.artifacts}"
        why = "a step loads its inputs from there and saves its outputs there"
        fix = "name a remote store in the stack: artifact_store = 's3://…'; or shares_files=true where it does see it"
        yield report.error(FAR_STORE, what, why, fix)
    if not near and (step.settings.retry.times or step.settings.retry.on_oom):
        what = f"copies its checkpoints to {site.artifacts} while it runs, and a further attempt gets them from there"
        yield report.info(FAR_CHECKPOINTS, what, "the container engine does not see this machine's folders")
    if not near and settings.get("run_options", {}).get("read_only"):
        what = "has a read-only root on a container engine elsewhere"
        why = "its job and its secrets are put into the container's file system there"
        yield report.error(FAR_READ_ONLY, what, why, "run_options.read_only=null, or shares_files=true where it holds")
    for name, source in sorted(settings.get("secrets", {}).items()):
        missing = missing_source(source)
        if missing:
            fix = "set it where the pipeline is started, or name another source"
            what = f"wants the secret '{name}': {missing}"
            yield report.error(NO_SOURCE, what, fix=fix)
    for text in settings.get("mounts", ()):
        source = Mount.parse(text).source
        if near and source.startswith("/") and not os.path.exists(source):
            what, fix = f"wants {source} in its container, which is not there", "make it, or remove it from mounts"
            yield report.error(NO_SOURCE, what, fix=fix)
    if settings.get("network") == "none" and ("://" in site.artifacts or step.settings.resources.get("nodes", 1) > 1):
        needs = "its artifact store" if "://" in site.artifacts else "the other nodes of its gang"
        why = "a container without a network reaches only what is mounted"
        what = f"has network='none', but must reach {needs}"
        yield report.error(NO_NETWORK, what, why, "remove network='none' from its container's settings")
