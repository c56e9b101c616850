"""What a cluster of Slurm will never give a step, proved before anything is submitted: what is asked, what there is.

What only has to wait is no finding: nodes that are down or busy count as there. Where not everything is known, as with
cloud nodes that are off, or where a plugin of the site's chooses the partition, nothing is refused that could be meant
well; Slurm itself is asked at the end (`sbatch --test-only`).
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.logins import NOT_FOUND, Login
from stoker.backends.base.platforms import Away
from stoker.backends.slurm.cluster import UNLIMITED, Facts, Gres, Group, Partition, facts, gres_of
from stoker.backends.slurm.devices import Asked, asked
from stoker.backends.slurm.script import arguments, time_limit
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.accelerators import Accelerator
from stoker.core.errors import BackendError, nearest
from stoker.core.findings import Finding, Level, errors
from stoker.core.plan import Job, StepPlan, reporter_of
from stoker.core.units import duration_text, size_text
from stoker.core.words import count_text, memory_text

__all__ = ["Facts", "facts", "prove"]

NO_ANSWER: Final = "STK170"
NO_SLURM: Final = "STK171"
NO_PARTITION: Final = "STK172"
NO_NODE: Final = "STK173"
TOO_MANY_NODES: Final = "STK174"
NO_DEVICES: Final = "STK175"
NO_FEATURE: Final = "STK176"
TOO_LONG: Final = "STK177"
NOT_YOURS: Final = "STK178"
REFUSED: Final = "STK179"
_TESTED: Final = 50
"""Different requests of which Slurm is asked whether it takes them; each costs a controller some milliseconds."""
# What sbatch says of requests that no waiting helps → the code, and the setting to change. Of others it cannot be told
# whether it is for now: "Requested node configuration is not available" is also said while nodes are down.
# https://github.com/SchedMD/slurm/blob/master/src/common/slurm_errno.c
_WORDS: Final = (
    (r"Invalid account|account/partition combination", NOT_YOURS, "account"),
    (r"Invalid qos|QOS not permitted", NOT_YOURS, "qos"),
    (r"reservation is invalid|Access denied to requested reservation", NOT_YOURS, "reservation"),
    (r"User's group not permitted|Access/permission denied", NOT_YOURS, "partition"),
    (r"[Ii]nvalid partition|No partition specified|partition not available", NO_PARTITION, "partition"),
    (r"Invalid feature specification", NO_FEATURE, "constraint"),
    (r"Invalid node name", NO_FEATURE, "nodelist"),
    (r"generic resource|\(gres\) specification", NO_DEVICES, "gres_types"),
    (r"Node count specification invalid", TOO_MANY_NODES, "partition"),
    (r"time limit is invalid", TOO_LONG, "time_limit"),
    (r"license specification", REFUSED, "options"),
    (r"wckey", REFUSED, "options"),
    (r"unrecognized option|invalid option|Invalid --|is not a valid|Invalid argument", REFUSED, "options"),
)
_MIB: Final = 1 << 20
_OWN_LIMITS: Final = frozenset({"overcommit"})
"""Options with which a node's CPUs are no limit."""


@attrs.frozen(kw_only=True)
class _Request:
    """What a step asks of a partition; memory and disk in MiB, time in seconds. `lifted`: by a QOS, which may lift the
    limits of its partition."""

    name: str
    nodes: int
    cpus: int
    memory: int
    disk: int
    seconds: float | None
    devices: Asked
    gres: tuple[str, ...]
    kinds: tuple[Accelerator, ...]
    settings: SlurmSettings
    lifted: bool


@attrs.frozen(kw_only=True)
class _No:
    """Why a partition cannot: a code, what is asked and what there is, and the setting that would do."""

    code: str
    what: str
    why: str
    fix: str
    level: Level = "error"


def prove(steps: Sequence[StepPlan], settings: Mapping[str, SlurmSettings], login: Login) -> Iterator[Finding]:
    """Requests that can never be met, by the settings of each step's key; one error if the cluster does not answer."""
    where = f"{steps[0].where} step '{steps[0].name}'" if steps else ""
    try:
        cluster = facts(login)
        tried: set[tuple[str, ...]] = set()
        for step in steps:
            said = list(_proved(step, settings[step.key], cluster))
            yield from said
            if not errors(said):
                yield from tested(step, settings[step.key], login, tried)
    except Away as error:
        why = "nothing is submitted to a cluster that was not asked"
        yield Finding(code=NO_ANSWER, level="error", where=where, what=error.message, why=why, fix=error.fix)
    except BackendError as error:
        yield Finding(code=NO_SLURM, level="error", where=where, what=error.message, fix=error.fix)


def _proved(step: StepPlan, settings: SlurmSettings, cluster: Facts) -> Iterator[Finding]:
    wanted = step.settings.resources
    devices = asked(wanted, settings)
    per_node = devices.per_node(settings)
    request = _Request(
        name=step.name,
        nodes=int(wanted.get("nodes", 1)),
        cpus=math.ceil(wanted.get("cpu_count", 0)),
        memory=math.ceil(wanted.get("memory", 0) / _MIB),
        disk=math.ceil(wanted.get("disk", 0) / _MIB),
        seconds=time_limit(job_of(step), settings),
        devices=devices,
        gres=(*devices.gres(settings, wanted.get("extended", {})), *([f"gpu:{per_node}"] if per_node else [])),
        kinds=wanted.get("accelerators", ()),
        settings=settings,
        lifted=bool(settings.get("qos") or cluster.given.get("SBATCH_QOS")),
    )
    for no in _refusals(request, cluster):
        fix = no.fix.replace("orchestrator.", f"{part_of(step)}.")
        way = f"--set steps.{step.name}.{fix}" if fix and " " not in fix else fix
        other = "a stack that has it (--stack)"
        yield Finding(
            code=no.code,
            level=no.level,
            where=f"{step.where} step '{step.name}'",
            what=no.what,
            why=no.why,
            fix=f"{way}, or {other}" if way else other,
        )


def _refusals(request: _Request, cluster: Facts) -> list[_No]:
    named = [
        name for name in request.settings.get("partition", cluster.given.get("SBATCH_PARTITION", "")).split(",") if name
    ]
    unknown = [name for name in named if name not in cluster.partitions]
    if unknown:
        what = f"asks for the partition '{unknown[0]}', which the cluster does not have"
        why = nearest(unknown[0], cluster.partitions).strip(" ,()")
        best = sorted(_fitting(request, cluster), key=lambda name: f"'{name}'" not in why)
        return [_No(code=NO_PARTITION, what=what, why=why, fix=f"orchestrator.partition={best[0]}" if best else "")]
    candidates = [cluster.partitions[name] for name in named]
    if not candidates and (cluster.routed or cluster.default is None):
        candidates = list(cluster.partitions.values())  # the site sends it to one of them, or refuses it itself
    elif not candidates and cluster.default is not None:
        candidates = [cluster.default]
    against = [_against(request, partition) for partition in candidates]
    if not against or not all(against):
        return _waiting(candidates)
    fitting = _fitting(request, cluster)
    if fitting and all(no.code != NOT_YOURS for no in against[0]):
        others = " or ".join(f"'{name}'" for name in fitting[:3])
        return [
            attrs.evolve(no, why=f"{no.why}; the partition {others} has it", fix=f"orchestrator.partition={fitting[0]}")
            for no in against[0]
        ]
    return against[0]


def _waiting(candidates: Sequence[Partition]) -> list[_No]:
    """What is no refusal, and good to know: nothing starts where it is to go."""
    if not candidates or any(partition.state != "DOWN" for partition in candidates):
        return []
    name = candidates[0].name
    what = f"would go to the partition '{name}', which starts no jobs now: it is down"
    fix = "name another: orchestrator.partition; `sinfo -s` lists them"
    return [_No(code=NO_PARTITION, what=what, why="the step waits until it is up", fix=fix, level="info")]


def _fitting(request: _Request, cluster: Facts) -> list[str]:
    """Partitions of which it is known that they could run it."""
    open_to = bool(request.settings.get("account"))
    known = [one for one in cluster.partitions.values() if one.state == "UP" and not one.hidden]
    known = [one for one in known if open_to or one.accounts is None]
    return [one.name for one in known if not _against(request, one)]


def _against(request: _Request, partition: Partition) -> list[_No]:
    """All that keeps a partition from ever running a request."""
    found = [*_closed(request, partition), *_permitted(request, partition), *_limits(request, partition)]
    if partition.hidden or not partition.groups or request.settings.get("reservation"):
        return found  # what its other nodes have is not known
    for check in (_features, _devices, _size):
        said = list(check(request, partition))
        if said:
            return [*found, *said]
    return [*found, *_together(request, partition)]


def _closed(request: _Request, partition: Partition) -> Iterator[_No]:
    if partition.state in ("DRAIN", "INACTIVE"):
        yield _No(
            code=NO_PARTITION,
            what=f"would go to the partition '{partition.name}', which takes no jobs now",
            why=f"its state is {partition.state}",
            fix="name another: orchestrator.partition; `sinfo -s` lists them",
        )


def _permitted(request: _Request, partition: Partition) -> Iterator[_No]:
    """Accounts and QOS that a partition does not let in, as far as the step names one."""
    for kind, allowed, denied in (
        ("account", partition.accounts, partition.denied_accounts),
        ("qos", partition.qoses, partition.denied_qoses),
    ):
        name = request.settings.get(kind, "")
        if not name or ((allowed is None or name in allowed) and name not in denied):
            continue
        has = f"it takes {', '.join(sorted(allowed))}" if allowed else f"it does not take {', '.join(sorted(denied))}"
        fix = f"orchestrator.{kind}={min(allowed)}" if allowed else f"orchestrator.{kind}=null"
        what = f"asks for the {kind} '{name}', which may not use the partition '{partition.name}'"
        yield _No(code=NOT_YOURS, what=what, why=has, fix=fix)


def _limits(request: _Request, partition: Partition) -> Iterator[_No]:
    place = f"the partition '{partition.name}'"
    if request.lifted or partition.qos:
        return  # Slurm itself is asked
    if request.seconds is not None and request.seconds > partition.longest:
        longest = duration_text(partition.longest)
        yield _No(
            code=TOO_LONG,
            what=f"asks for {duration_text(request.seconds)}; {place} gives {longest}",
            why="a step's time limit is its time_limit, else its timeout and five minutes",
            fix=f"orchestrator.time_limit={longest.replace(' ', '')}",
        )
    if request.nodes > partition.most_nodes:
        most = int(partition.most_nodes)
        what = f"asks for {count_text(request.nodes, 'node')}; {place} gives one job {most} at most"
        yield _No(code=TOO_MANY_NODES, what=what, why="its MaxNodes says so", fix=f"resources.nodes={most}")
    if request.nodes < partition.least_nodes:
        what = f"asks for {count_text(request.nodes, 'node')}; {place} gives one job {partition.least_nodes} at least"
        fix = f"resources.nodes={partition.least_nodes}"
        yield _No(code=TOO_MANY_NODES, what=what, why="its MinNodes says so", fix=fix)


def _features(request: _Request, partition: Partition) -> Iterator[_No]:
    """Names in the constraint that no node of the partition has."""
    there = frozenset(itertools.chain.from_iterable(group.features for group in partition.groups))
    for name in _names(request.devices.constraint):
        if name not in there:
            yield _No(
                code=NO_FEATURE,
                what=f"asks for nodes with the feature '{name}'; none of the partition '{partition.name}' has it",
                why=nearest(name, there).strip(" ,()") or "its nodes have no features",
                fix="orchestrator.constraint=null",
            )


def _devices(request: _Request, partition: Partition) -> Iterator[_No]:
    for entry in request.gres:
        for one in gres_of(entry):
            if any(group.has(one.name, one.type) >= one.count for group in partition.groups):
                continue
            most = max(group.has(one.name, one.type) for group in partition.groups)
            kinds = sorted({there.type for group in partition.groups for there in group.gres if there.name == one.name})
            if most:
                what = f"asks for {entry} on a node; nodes of the partition '{partition.name}' have {most} at most"
                why = "a step is never silently given less than it asks for"
                fix = _fewer(one, most, request)
            elif not kinds:
                has = sorted({there.name for group in partition.groups for there in group.gres})
                what = f"asks for {entry}; no node of the partition '{partition.name}' has a {one.name}"
                why = f"they have {', '.join(has)}" if has else "they have no generic resources"
                fix = "resources.gpu_count=null" if one.name == "gpu" else "resources.extended=null"
            else:
                what = f"asks for {one.name} of the type '{one.type}', which the partition '{partition.name}' lacks"
                why, fix = _types(one.type, kinds, request)
            yield _No(code=NO_DEVICES, what=what, why=why, fix=fix)


def _fewer(one: Gres, most: int, request: _Request) -> str:
    """The setting that asks for as many of a resource as a node has."""
    named = request.devices.named
    if named is None or (one.name, one.type) != (named.gres, named.type):
        return f"resources.extended.{one.name}={most}"
    kind = next(iter(request.kinds), None)
    return f"resources.gpu_count={most}" if kind is None else f"resources.accelerators={attrs.evolve(kind, count=most)}"


def _types(type: str, kinds: Sequence[str], request: _Request) -> tuple[str, str]:
    """What the site calls its GPUs, and the setting by which a catalog's name means one of them."""
    if not any(kinds):
        return "its GPUs have no types", f"ask for a number only: resources.gpu_count={request.devices.count}"
    why = f"its types are {', '.join(filter(None, kinds))}"
    alike = next((kind for kind in kinds if type in kind.lower() or (kind and kind.lower() in type)), "")
    if not alike:
        count = request.devices.count
        return why, f"ask for one of these, or for any: resources.accelerators=null and resources.gpu_count={count}"
    name = next((kind.name for kind in request.kinds), type)
    return why, f'say what the site calls it, in the stack: orchestrator.gres_types = {{ "{name}" = "{alike}" }}'


def _size(request: _Request, partition: Partition) -> Iterator[_No]:
    """CPUs, memory and disk of one node, each by itself."""
    overcommitted = _OWN_LIMITS & set(request.settings.get("options", {}))
    rows: tuple[tuple[str, int, Callable[[Group], int], float, str], ...] = (
        ("cpu_count", 0 if overcommitted else request.cpus, lambda group: group.cpus, partition.node_cpus, "CPUs"),
        ("memory", request.memory, lambda group: group.memory, partition.node_memory, "of memory"),
        ("disk", request.disk, lambda group: group.disk, UNLIMITED, "of disk"),
    )
    for field, wanted, of, limit, noun in rows:
        most = int(min(max(of(group) for group in partition.groups), limit))
        shown, exact = (str, str) if field == "cpu_count" else (_memory, _mib)
        if wanted > most:
            yield _No(
                code=NO_NODE,
                what=f"asks for {shown(wanted)} {noun} on a node; those of the partition '{partition.name}' have "
                f"{shown(most)} at most",
                why="a step is never silently given less than it asks for",
                fix=f"resources.{field}={exact(most)}" if most else f"resources.{field}=null",
            )


def _together(request: _Request, partition: Partition) -> Iterator[_No]:
    """Nodes that have all of it at once, and enough of them."""
    fitting = [group for group in partition.groups if _fits(request, group)]
    nodes = sum(group.nodes for group in fitting)
    if not fitting:
        yield _No(
            code=NO_NODE,
            what=f"asks for {_text(request)} on one node; no node of the partition '{partition.name}' has all of it",
            why=f"the nearest has {_described(_nearest(request, partition))}",
            fix="ask for what one kind of its nodes has: resources, orchestrator.constraint",
        )
    elif nodes < request.nodes:
        what = f"asks for {request.nodes} nodes; {count_text(nodes, 'node')} of the partition '{partition.name}' "
        what += "would do" if nodes < partition.nodes else "are all there are"
        yield _No(
            code=TOO_MANY_NODES,
            what=what,
            why="the nodes of a step start together, or not at all",
            fix=f"resources.nodes={nodes}",
        )


def _fits(request: _Request, group: Group) -> bool:
    simple = not set(request.devices.constraint) & set("|[]()*!")
    return (
        (request.cpus <= group.cpus or "overcommit" in request.settings.get("options", {}))
        and request.memory <= group.memory
        and request.disk <= group.disk
        and all(group.has(one.name, one.type) >= one.count for entry in request.gres for one in gres_of(entry))
        and (not simple or set(_names(request.devices.constraint)) <= group.features)
    )


def _nearest(request: _Request, partition: Partition) -> Group:
    """The kind of node that has most of what is asked."""

    def score(group: Group) -> tuple[bool, int, int]:
        has = all(group.has(one.name, one.type) >= one.count for entry in request.gres for one in gres_of(entry))
        return has, min(group.cpus, request.cpus), min(group.memory, request.memory)

    return max(partition.groups, key=score)


def _names(constraint: str) -> list[str]:
    """The features in a constraint; a count behind `*` is none. https://slurm.schedmd.com/sbatch.html#OPT_constraint"""
    return re.findall(r"[^\s&|,*()\[\]!]+", re.sub(r"\*\d+", "", constraint))


def _text(request: _Request) -> str:
    words = [count_text(request.cpus, "CPU")] if request.cpus else []
    words += [_memory(request.memory)] if request.memory else []
    words += [f"{_memory(request.disk)} of disk"] if request.disk else []
    return ", ".join([*words, *request.gres, *_names(request.devices.constraint)])


def _described(group: Group) -> str:
    gres = [f"{one.name}:{one.type}:{one.count}" if one.type else f"{one.name}:{one.count}" for one in group.gres]
    return ", ".join([count_text(group.cpus, "CPU"), _memory(group.memory), *gres, *sorted(group.features)])


def _memory(amount: int) -> str:
    """MiB as a person reads them."""
    return memory_text(amount * _MIB)


def _mib(amount: int) -> str:
    """MiB as a person writes them, in the largest unit that is exact."""
    return size_text(amount * _MIB)


def job_of(step: StepPlan) -> Job:
    """A job of the step, as its first attempt would be."""
    return Job(name=f"plan/{step.key}/1", run="plan", key=step.key, attempt=1, step=step, inputs={})


def part_of(step: StepPlan) -> str:
    """The part of the stack that the step runs on, by which its settings are given: "orchestrator"."""
    return next(iter(step.settings.backend), "orchestrator")


def tested(step: StepPlan, settings: SlurmSettings, login: Login, tried: set[tuple[str, ...]]) -> Iterator[Finding]:
    """What Slurm itself says of the request, without submitting it."""
    options = arguments([job_of(step)], settings, folder="/", token="plan")
    alike = tuple(option for option in options if not option.startswith("--job-name="))
    if alike in tried or len(tried) >= _TESTED:
        return
    tried.add(alike)
    ran = login.run(["sbatch", "--test-only", *options], input=b"#!/bin/sh\n")
    report = reporter_of(step)
    if ran.code == NOT_FOUND:
        what = f"sbatch is not there: {ran.err.strip()}"
        fix = f"put it on PATH (`module load slurm`), or name the login node: {part_of(step)}.host"
        yield report.error(NO_SLURM, what, fix=fix)
    elif ran.code:
        said = " ".join(line.removeprefix("sbatch: error: ").strip() for line in ran.err.splitlines()[-2:])
        for pattern, code, setting in _WORDS:
            if re.search(pattern, said):
                fix = f"change {part_of(step)}.{setting} of the step or the stack"
                yield report.error(code, f"Slurm refuses it: {said}", fix=fix)
                return
        why = "it may be for now only, as while nodes are down; else the step fails when it is submitted"
        yield report.info(REFUSED, f"Slurm would not start it now: {said}", why)
