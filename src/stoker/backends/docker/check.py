"""What a container engine makes of each field of a step's request: honoured, translated, or refused with what to do."""

from __future__ import annotations

import os
import shutil
from typing import Final, Iterator

from stoker.backends.docker.secrets import missing_source
from stoker.core.containers import ContainerSettings, Mount
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Site, StepPlan
from stoker.core.resources import ResourceSettings, describe
from stoker.core.units import size_text
from stoker.core.words import memory_text

FAR_DEVICES: Final = "STK141"
FAR_STORE: Final = "STK142"
FAR_CHECKPOINTS: Final = "STK143"
SHARED_OVER_MEMORY: Final = "STK144"
NO_SOURCE: Final = "STK145"
NO_NETWORK: Final = "STK146"
FAR_DISK: Final = "STK147"
_NEVER_LESS: Final = "a step is never silently given less than it asks for"


def check(
    step: StepPlan, settings: ContainerSettings, site: Site, room: Capacity | None, *, leases: bool
) -> Iterator[Finding]:
    """Field by field; `room` is what the engine's machine has, None for one that is elsewhere.

    `leases`: devices are handed out, and what of them is wanted is for `leasing` to judge.
    """
    wanted = step.settings.resources
    say = _Say(step)
    yield from _size(wanted, room, say)
    if wanted.gpus_per_node and room is None:
        what = f"asks for {describe(wanted)}; the container engine is on another machine"
        why = "which devices are there, and who holds them, is only known of this machine"
        yield say.no(FAR_DEVICES, what, why, "resources.gpu_count=null")
    elif wanted.gpus_per_node and not leases:
        why = "nobody hands out devices here: the backend was made without a ledger of them"
        yield say.no("STK103", f"asks for {describe(wanted)}", why, "resources.gpu_count=null")
    if wanted.get("extended"):
        named = ", ".join(f"{name}={amount:g}" for name, amount in wanted.get("extended").items())
        why = "only a cluster's scheduler knows these"
        yield say.no("STK106", f"asks for extended resources {named}", why, "resources.extended=null")
    if wanted.get("spot"):
        what = "asks for a spot machine; it runs on the engine's own"
        yield say.translated("STK109", what, "that machine is never taken away")
    yield from _places(step, settings, site, say, near=room is not None)


def _size(wanted: ResourceSettings, room: Capacity | None, say: _Say) -> Iterator[Finding]:
    nodes = wanted.get("nodes", 1)
    each = f" on each of {nodes} nodes" if nodes > 1 else ""
    cpus, memory, shared = wanted.get("cpu_count", 0.0), wanted.get("memory", 0), wanted.get("shared_memory", 0)
    if room is not None and cpus * nodes > room.cpus:
        what = f"asks for {cpus:g} CPUs{each}; this machine has {room.cpus:g}"
        yield say.no("STK101", what, _NEVER_LESS, f"resources.cpu_count={room.cpus / nodes:g}")
    if room is not None and memory * nodes > room.memory:
        what = f"asks for {size_text(memory)} of memory{each}; this machine has {memory_text(room.memory)}"
        yield say.no("STK102", what, _NEVER_LESS, f"resources.memory={size_text(room.memory // 2**30 * 2**30)}")
    if memory and shared > memory:
        what = f"asks for {size_text(shared)} of shared memory and {size_text(memory)} of memory"
        why = "what lies in /dev/shm counts as the container's memory: it would be killed before that is full"
        yield say.no(SHARED_OVER_MEMORY, what, why, f"resources.memory={size_text(2 * shared)}")
    if room is not None and nodes > room.slots:
        what = f"asks for {nodes} nodes; this machine runs {room.slots} containers at once"
        yield say.no("STK104", what, "each node is a container of its own here", f"resources.nodes={room.slots}")
    elif nodes > 1:
        what = f"asks for {nodes} nodes; they are containers of one machine"
        why = "everything happens as on several machines but what goes over the cable"
        yield say.translated("STK104", what, why)
    if not wanted.get("disk"):
        return
    if room is None:
        what = f"asks for {size_text(wanted.get('disk'))} of disk; how much is free at the engine is not known"
        yield say.translated(FAR_DISK, what, "an engine does not tell, and sets no limit")
    elif wanted.get("disk") > (free := shutil.disk_usage(".").free):
        what = f"asks for {size_text(wanted.get('disk'))} of disk; {memory_text(free)} are free here"
        yield say.no("STK108", what, _NEVER_LESS, "resources.disk=null")


def _places(step: StepPlan, settings: ContainerSettings, site: Site, say: _Say, *, near: bool) -> Iterator[Finding]:
    """Where the container finds what it needs."""
    if not near and "://" not in site.artifacts:
        what = f"runs on a container engine elsewhere, which does not see the artifact store {site.artifacts}"
        why = "a step loads its inputs from there and saves its outputs there"
        fix = "name a remote store in the stack: artifact_store = 's3://…'; or shares_files=true where it does see it"
        yield Finding(code=FAR_STORE, level="error", where=say.where, what=what, why=why, fix=fix)
    if not near and (step.settings.retry.times or step.settings.retry.on_oom):
        what = "keeps its checkpoints inside its container: a further attempt begins anew"
        yield say.translated(FAR_CHECKPOINTS, what, "the container engine does not see this machine's folders")
    for name, source in sorted(settings.get("secrets", {}).items()):
        missing = missing_source(source)
        if missing:
            fix = "set it where the pipeline is started, or name another source"
            what = f"wants the secret '{name}': {missing}"
            yield Finding(code=NO_SOURCE, level="error", where=say.where, what=what, fix=fix)
    for text in settings.get("mounts", ()):
        source = Mount.parse(text).source
        if near and source.startswith("/") and not os.path.exists(source):
            what, fix = f"wants {source} in its container, which is not there", "make it, or remove it from mounts"
            yield Finding(code=NO_SOURCE, level="error", where=say.where, what=what, fix=fix)
    if settings.get("network") == "none" and ("://" in site.artifacts or step.settings.resources.get("nodes", 1) > 1):
        needs = "its artifact store" if "://" in site.artifacts else "the other nodes of its gang"
        why = "a container without a network reaches only what is mounted"
        yield Finding(
            code=NO_NETWORK,
            level="error",
            where=say.where,
            what=f"has network='none', but must reach {needs}",
            why=why,
            fix="remove network='none' from its container's settings",
        )


class _Say:
    """Findings about one step."""

    def __init__(self, step: StepPlan) -> None:
        self.where = f"{step.where} step '{step.name}'"
        self._way = f"--set steps.{step.name}.{{}}, or a stack that has it (--stack)"

    def no(self, code: str, what: str, why: str, fix: str) -> Finding:
        """A refusal; `fix` is the setting that would be taken."""
        fix = self._way.format(fix)
        return Finding(code=code, level="error", where=self.where, what=what, why=why, fix=fix)

    def translated(self, code: str, what: str, why: str) -> Finding:
        """Taken, in another way than asked."""
        return Finding(code=code, level="translated", where=self.where, what=what, why=why)
