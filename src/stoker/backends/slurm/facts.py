"""Finds requests that a cluster can never meet, before anything is submitted, by comparing steps with its facts.

A request that only has to wait is no finding: nodes that are down or busy count. Where not everything is known, as with
cloud nodes that are off, or where a plugin of the site's chooses the partition, nothing is refused that might be met;
the last check is Slurm's own (`sbatch --test-only`).
"""

from __future__ import annotations

import itertools
import math
import re
import time
from typing import Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.logins import NOT_FOUND, Login
from stoker.backends.base.platforms import Away
from stoker.backends.slurm.cluster import ClusterFacts, Group, Partition, cluster_facts
from stoker.backends.slurm.environment import node_python
from stoker.backends.slurm.limits import JobRequest, Limits
from stoker.backends.slurm.script import DeviceRequest, arguments, device_request, image_of, time_limit
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.values import UNLIMITED, Gres, gres_of
from stoker.core.accelerators import Accelerator
from stoker.core.errors import BackendError, nearest
from stoker.core.findings import Finding, Level, Reporter, errors
from stoker.core.plan import Job, StepPlan, reporter_of
from stoker.core.units import duration_text, size_text
from stoker.core.words import count_text, memory_text, shown
from stoker.store.filesystems import store_package

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
ABOVE_LIMIT: Final = "STK270"
NOT_READ: Final = "STK271"
NO_PACKAGE: Final = "STK261"
SOON: Final = 10.0
"""Seconds within which a cluster that did not answer is asked once more; one that took longer is away."""
_TESTED: Final = 50
"""Different requests that Slurm is asked to test, at most; each costs a controller some milliseconds."""
# sbatch's words for requests that will never be met → the code, and the setting to change. Other words may hold for now
# only: "Requested node configuration is not available" is also said while nodes are down.
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
    """A step's request, in Slurm's units."""

    name: str
    nodes: int
    cpus: int
    memory: int
    """MiB of each node."""
    disk: int
    """MiB of each node."""
    seconds: float | None
    """The time limit; None where the partition's own holds."""
    devices: DeviceRequest
    gres: tuple[str, ...]
    """All entries of `--gres` and `--gpus-per-node`."""
    kinds: tuple[Accelerator, ...]
    """The accelerators that the step names."""
    settings: SlurmSettings
    lifted: bool
    """Whether it names a QOS, which may lift the limits of its partition."""


@attrs.frozen(kw_only=True)
class _Refusal:
    """Why a partition cannot run a request: the parts of a finding, and the setting that would help."""

    code: str
    what: str
    why: str
    fix: str
    level: Level = "error"


def prove(
    steps: Sequence[StepPlan], settings: Mapping[str, SlurmSettings], login: Login, *, store: str = ""
) -> Iterator[Finding]:
    """Findings for requests that can never be met, with settings by step key; one error without an answer.

    `store` is the artifact store's URI as the nodes open it.
    """
    where = f"{steps[0].where} step '{steps[0].name}'" if steps else ""
    begun = time.monotonic()
    try:
        try:
            findings = list(_findings(steps, settings, login, store))
        except Away as error:
            if error.lasting or time.monotonic() - begun > SOON:
                raise
            findings = list(_findings(steps, settings, login, store))  # the connection was cut: it is made again
        yield from findings
    except Away as error:
        why = "nothing is submitted to a cluster that was not asked"
        yield Finding(code=NO_ANSWER, level="error", where=where, what=error.message, why=why, fix=error.fix)
    except BackendError as error:
        yield Finding(code=NO_SLURM, level="error", where=where, what=error.message, fix=error.fix)


def _findings(
    steps: Sequence[StepPlan], settings: Mapping[str, SlurmSettings], login: Login, store: str
) -> Iterator[Finding]:
    cluster = cluster_facts(login)
    limits = Limits(login)
    tried: set[tuple[str, ...]] = set()
    for step in steps:
        request = _request(step, settings[step.key], cluster)
        findings = list(_check_step(step, request, cluster))
        if not findings and cluster.limited and not cluster.routed:
            findings = list(_check_accounts(step, request, cluster, limits))
        yield from findings
        if not errors(findings):
            yield from test_submission(step, settings[step.key], login, tried)
    yield from _check_store(steps, settings, login, store)
    if steps:
        yield from _unread(cluster, reporter_of(steps[0]))


def _unread(cluster: ClusterFacts, report: Reporter) -> Iterator[Finding]:
    """What the cluster says of itself and is not understood, which is told once."""
    unread = {
        f"{name}={shown(text)} of {where}": None
        for partition in cluster.partitions.values()
        for where, texts in (
            (f"the partition '{partition.name}'", partition.unread),
            *((f"the nodes {group.names}", group.unread) for group in partition.groups),
        )
        for name, text in texts.items()
    }
    if unread:
        why = "what is not known refuses no step: Slurm itself decides"
        yield report.info(NOT_READ, f"does not understand what Slurm says: {', '.join(unread)}", why)


def _check_store(
    steps: Sequence[StepPlan], settings: Mapping[str, SlurmSettings], login: Login, store: str
) -> Iterator[Finding]:
    """Whether the Python of the nodes has what it needs for the store, as far as the login node's tells."""
    package = store_package(store)
    bare: dict[str, StepPlan] = {}
    for step in steps:
        own = settings[step.key]
        own_packages = any(own.get(name) for name in ("modules", "setup", "conda", "venv"))
        if package and not (own.shares or image_of(step) or own_packages):
            bare.setdefault(node_python(own), step)
    for python, step in bare.items():
        ran = login.run([python, "-c", package_question(package)])
        if not ran.code and ran.out.strip() == "False":
            what = f"{python} of the login node lacks {package}, which steps need for the artifact store {store}"
            why = "nodes often have the same Python; on one that lacks it, the step fails when it loads its code"
            fix = f"install {package} for the nodes' Python, or leave artifact_store out: it is a folder there then"
            yield reporter_of(step).warning(NO_PACKAGE, what, why, fix)


def package_question(package: str) -> str:
    """A program that prints whether Python has a package."""
    return f"import importlib.util as u; print(u.find_spec({package!r}) is not None)"


def _request(step: StepPlan, settings: SlurmSettings, cluster: ClusterFacts) -> _Request:
    resources = step.settings.resources
    devices = device_request(resources, settings)
    per_node = devices.per_node(settings)
    return _Request(
        name=step.name,
        nodes=int(resources.get("nodes", 1)),
        cpus=math.ceil(resources.get("cpu_count", 0)),
        memory=math.ceil(resources.get("memory", 0) / _MIB),
        disk=math.ceil(resources.get("disk", 0) / _MIB),
        seconds=time_limit(job_of(step), settings),
        devices=devices,
        gres=(*devices.gres(settings, resources.get("extended", {})), *([f"gpu:{per_node}"] if per_node else [])),
        kinds=resources.get("accelerators", ()),
        settings=settings,
        lifted=bool(settings.get("qos") or cluster.environment.get("SBATCH_QOS")),
    )


def _check_step(step: StepPlan, request: _Request, cluster: ClusterFacts) -> Iterator[Finding]:
    for refusal in _refusals(request, cluster):
        fix = refusal.fix.replace("orchestrator.", f"{part_of(step)}.")
        way = f"--set steps.{step.name}.{fix}" if fix and " " not in fix else fix
        other = "a stack that has it (--stack)"
        yield Finding(
            code=refusal.code,
            level=refusal.level,
            where=f"{step.where} step '{step.name}'",
            what=refusal.what,
            why=refusal.why,
            fix=f"{way}, or {other}" if way else other,
        )


def _check_accounts(step: StepPlan, request: _Request, cluster: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """What the limits of the step's QOS or account can never give."""
    settings, environment = request.settings, cluster.environment
    amounts: dict[str, float] = {"node": request.nodes, "cpu": request.nodes * max(1, request.cpus)}
    if request.memory:
        amounts["mem"] = request.nodes * request.memory
    for _, gres, count in _wanted(request):
        for name in {f"gres/{gres.name}", f"gres/{gres.name}:{gres.type}" if gres.type else f"gres/{gres.name}"}:
            amounts[name] = amounts.get(name, 0) + request.nodes * count
    names = settings.get("partition", environment.get("SBATCH_PARTITION", ""))
    default = cluster.default.name if cluster.default is not None else ""
    above = limits.excess(
        JobRequest(
            amounts=amounts,
            nodes=request.nodes,
            seconds=request.seconds,
            qos=settings.get("qos", environment.get("SBATCH_QOS", "")),
            account=settings.get("account", environment.get("SBATCH_ACCOUNT", "")),
            partitions=tuple(filter(None, (names or default).split(","))),
        )
    )
    if above is not None:
        part = part_of(step)
        yield reporter_of(step).error(
            ABOVE_LIMIT,
            f"asks for {above.asks}, which it can never get: {above.gives}",
            f"Slurm would take the job, and it would wait for ever ({above.name})",
            fix=f"ask for less, or name another QOS or account that has more: {part}.qos, {part}.account; "
            "`sacctmgr show assoc user=$USER format=account,qos` lists yours",
        )


def _refusals(request: _Request, cluster: ClusterFacts) -> list[_Refusal]:
    names = [
        name
        for name in request.settings.get("partition", cluster.environment.get("SBATCH_PARTITION", "")).split(",")
        if name
    ]
    unknown = [name for name in names if name not in cluster.partitions]
    if unknown:
        what = f"asks for the partition '{unknown[0]}', which the cluster does not have"
        why = nearest(unknown[0], cluster.partitions).strip(" ,()")
        best = sorted(_suitable_partitions(request, cluster), key=lambda name: f"'{name}'" not in why)
        return [
            _Refusal(code=NO_PARTITION, what=what, why=why, fix=f"orchestrator.partition={best[0]}" if best else "")
        ]
    candidates = [cluster.partitions[name] for name in names]
    if not candidates and (cluster.routed or cluster.default is None):
        candidates = list(cluster.partitions.values())  # the site sends it to one of them, or refuses it itself
    elif not candidates and cluster.default is not None:
        candidates = [cluster.default]
    against = [_refusals_by(request, partition) for partition in candidates]
    if not against or not all(against):
        return _check_down(candidates)
    suitable = _suitable_partitions(request, cluster)
    if suitable and all(no.code != NOT_YOURS for no in against[0]):
        others = " or ".join(f"'{name}'" for name in suitable[:3])
        return [
            attrs.evolve(
                no, why=f"{no.why}; the partition {others} has it", fix=f"orchestrator.partition={suitable[0]}"
            )
            for no in against[0]
        ]
    return against[0]


def _check_down(candidates: Sequence[Partition]) -> list[_Refusal]:
    """A remark, not an error: the partitions that a step would go to start no jobs now."""
    if not candidates or any(partition.state != "DOWN" for partition in candidates):
        return []
    name = candidates[0].name
    what = f"would go to the partition '{name}', which starts no jobs now: it is down"
    fix = "name another: orchestrator.partition; `sinfo -s` lists them"
    return [_Refusal(code=NO_PARTITION, what=what, why="the step waits until it is up", fix=fix, level="info")]


def _suitable_partitions(request: _Request, cluster: ClusterFacts) -> list[str]:
    """Partitions that are known to be able to run a request."""
    open_to = bool(request.settings.get("account"))
    partitions = [
        partition for partition in cluster.partitions.values() if partition.state == "UP" and not partition.hidden
    ]
    partitions = [partition for partition in partitions if open_to or partition.accounts is None]
    return [partition.name for partition in partitions if not _refusals_by(request, partition)]


def _refusals_by(request: _Request, partition: Partition) -> list[_Refusal]:
    """All reasons for which a partition can never run a request."""
    refusals = [
        *_check_state(request, partition),
        *_check_access(request, partition),
        *_check_limits(request, partition),
    ]
    if partition.hidden or not partition.groups or request.settings.get("reservation"):
        return refusals  # its other nodes are not known
    for check in (_check_features, _check_devices, _check_size):
        further = list(check(request, partition))
        if further:
            return [*refusals, *further]
    return [*refusals, *_check_node_count(request, partition)]


def _check_state(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    if partition.state in ("DRAIN", "INACTIVE"):
        yield _Refusal(
            code=NO_PARTITION,
            what=f"would go to the partition '{partition.name}', which takes no jobs now",
            why=f"its state is {partition.state}",
            fix="name another: orchestrator.partition; `sinfo -s` lists them",
        )


def _check_access(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    """The step's account and QOS, if the partition does not admit them."""
    for kind, allowed, denied in (
        ("account", partition.accounts, partition.denied_accounts),
        ("qos", partition.qoses, partition.denied_qoses),
    ):
        name = request.settings.get(kind, "")
        if not name or ((allowed is None or name in allowed) and name not in denied):
            continue
        reason = (
            f"it takes {', '.join(sorted(allowed))}" if allowed else f"it does not take {', '.join(sorted(denied))}"
        )
        fix = f"orchestrator.{kind}={min(allowed)}" if allowed else f"orchestrator.{kind}=null"
        what = f"asks for the {kind} '{name}', which may not use the partition '{partition.name}'"
        yield _Refusal(code=NOT_YOURS, what=what, why=reason, fix=fix)


def _check_limits(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    where = f"the partition '{partition.name}'"
    if request.lifted or partition.qos:
        return  # Slurm itself decides
    if request.seconds is not None and partition.longest is not None and request.seconds > partition.longest:
        longest = duration_text(partition.longest)
        yield _Refusal(
            code=TOO_LONG,
            what=f"asks for {duration_text(request.seconds)}; {where} gives {longest}",
            why="a step's time limit is its time_limit, else its timeout and five minutes",
            fix=f"orchestrator.time_limit={longest.replace(' ', '')}",
        )
    if request.nodes > partition.most_nodes:
        most = int(partition.most_nodes)
        what = f"asks for {count_text(request.nodes, 'node')}; {where} gives one job {most} at most"
        yield _Refusal(code=TOO_MANY_NODES, what=what, why="its MaxNodes says so", fix=f"resources.nodes={most}")
    if request.nodes < partition.least_nodes:
        what = f"asks for {count_text(request.nodes, 'node')}; {where} gives one job {partition.least_nodes:g} at least"
        fix = f"resources.nodes={partition.least_nodes:g}"
        yield _Refusal(code=TOO_MANY_NODES, what=what, why="its MinNodes says so", fix=fix)


def _check_features(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    """Names in the constraint that no node of the partition has."""
    features = frozenset(itertools.chain.from_iterable(group.features for group in partition.groups))
    for name in _names(request.devices.constraint):
        if name not in features:
            yield _Refusal(
                code=NO_FEATURE,
                what=f"asks for nodes with the feature '{name}'; none of the partition '{partition.name}' has it",
                why=nearest(name, features).strip(" ,()") or "its nodes have no features",
                fix="orchestrator.constraint=null",
            )


def _wanted(request: _Request) -> Iterator[tuple[str, Gres, float]]:
    """The entries of a request's generic resources, with their counts."""
    for entry in request.gres:
        for gres in gres_of(entry):
            if gres.count is not None:
                yield entry, gres, gres.count


def _check_devices(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    for entry, gres, count in _wanted(request):
        most = max(group.has(gres.name, gres.type) for group in partition.groups)
        if most >= count:
            continue
        kinds = sorted({other.type for group in partition.groups for other in group.gres if other.name == gres.name})
        if most:
            what = f"asks for {entry} on a node; nodes of the partition '{partition.name}' have {most:g} at most"
            why = "a step is never silently given less than it asks for"
            fix = _fewer(gres, int(most), request)
        elif not kinds:
            names = sorted({other.name for group in partition.groups for other in group.gres})
            what = f"asks for {entry}; no node of the partition '{partition.name}' has a {gres.name}"
            why = f"they have {', '.join(names)}" if names else "they have no generic resources"
            fix = "resources.gpu_count=null" if gres.name == "gpu" else "resources.extended=null"
        else:
            what = f"asks for {gres.name} of the type '{gres.type}', which the partition '{partition.name}' lacks"
            why, fix = _types(gres.type, kinds, request)
        yield _Refusal(code=NO_DEVICES, what=what, why=why, fix=fix)


def _fewer(gres: Gres, most: int, request: _Request) -> str:
    """The setting that asks for as many of a resource as a node has."""
    site_name = request.devices.name
    if site_name is None or (gres.name, gres.type) != (site_name.gres, site_name.type):
        return f"resources.extended.{gres.name}={most}"
    kind = next(iter(request.kinds), None)
    return f"resources.gpu_count={most}" if kind is None else f"resources.accelerators={attrs.evolve(kind, count=most)}"


def _types(type: str, kinds: Sequence[str], request: _Request) -> tuple[str, str]:
    """The site's types of GPUs, and the setting that maps a catalog's name to one of them."""
    if not any(kinds):
        return "its GPUs have no types", f"ask for a number only: resources.gpu_count={request.devices.count}"
    why = f"its types are {', '.join(filter(None, kinds))}"
    alike = next((kind for kind in kinds if type in kind.lower() or (kind and kind.lower() in type)), "")
    if not alike:
        count = request.devices.count
        return why, f"ask for one of these, or for any: resources.accelerators=null and resources.gpu_count={count}"
    name = next((kind.name for kind in request.kinds), type)
    return why, f'say what the site calls it, in the stack: orchestrator.gres_types = {{ "{name}" = "{alike}" }}'


def _check_size(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    """CPUs, memory and disk of one node, each by itself."""
    overcommitted = _OWN_LIMITS & set(request.settings.get("options", {}))
    rows: tuple[tuple[str, int, Callable[[Group], float | None], float, str], ...] = (
        ("cpu_count", 0 if overcommitted else request.cpus, lambda group: group.cpus, partition.node_cpus, "CPUs"),
        ("memory", request.memory, lambda group: group.memory, partition.node_memory, "of memory"),
        ("disk", request.disk, lambda group: group.disk, UNLIMITED, "of disk"),
    )
    for field, amount, of, limit, noun in rows:
        highest = min(max(_most(of(group)) for group in partition.groups), limit)
        as_text, exact = (str, str) if field == "cpu_count" else (_memory, _mib)
        if amount > highest:
            most = int(highest)
            yield _Refusal(
                code=NO_NODE,
                what=f"asks for {as_text(amount)} {noun} on a node; those of the partition '{partition.name}' have "
                f"{as_text(most)} at most",
                why="a step is never silently given less than it asks for",
                fix=f"resources.{field}={exact(most)}" if most else f"resources.{field}=null",
            )


def _check_node_count(request: _Request, partition: Partition) -> Iterator[_Refusal]:
    """Whether enough nodes have all of the request at once."""
    suitable = [group for group in partition.groups if _fits(request, group)]
    nodes = sum(group.nodes for group in suitable)
    if not suitable:
        yield _Refusal(
            code=NO_NODE,
            what=f"asks for {_text(request)} on one node; no node of the partition '{partition.name}' has all of it",
            why=f"the nearest has {_describe(_nearest(request, partition))}",
            fix="ask for what one kind of its nodes has: resources, orchestrator.constraint",
        )
    elif nodes < request.nodes:
        what = f"asks for {request.nodes} nodes; {count_text(nodes, 'node')} of the partition '{partition.name}' "
        what += "would do" if nodes < _most(partition.nodes) else "are all there are"
        yield _Refusal(
            code=TOO_MANY_NODES,
            what=what,
            why="the nodes of a step start together, or not at all",
            fix=f"resources.nodes={nodes}",
        )


def _fits(request: _Request, group: Group) -> bool:
    simple = not set(request.devices.constraint) & set("|[]()*!")
    return (
        (request.cpus <= _most(group.cpus) or "overcommit" in request.settings.get("options", {}))
        and request.memory <= _most(group.memory)
        and request.disk <= _most(group.disk)
        and all(group.has(gres.name, gres.type) >= count for _, gres, count in _wanted(request))
        and (not simple or set(_names(request.devices.constraint)) <= group.features)
    )


def _most(number: float | None) -> float:
    """The most that there may be: no limit where it is not known."""
    return UNLIMITED if number is None else number


def _nearest(request: _Request, partition: Partition) -> Group:
    """The group of nodes that has most of a request."""

    def score(group: Group) -> tuple[bool, float, float]:
        has_gres = all(group.has(gres.name, gres.type) >= count for _, gres, count in _wanted(request))
        return has_gres, min(_most(group.cpus), request.cpus), min(_most(group.memory), request.memory)

    return max(partition.groups, key=score)


def _names(constraint: str) -> list[str]:
    """The features in a constraint; a count behind `*` is none. https://slurm.schedmd.com/sbatch.html#OPT_constraint"""
    return re.findall(r"[^\s&|,*()\[\]!]+", re.sub(r"\*\d+", "", constraint))


def _text(request: _Request) -> str:
    words = [count_text(request.cpus, "CPU")] if request.cpus else []
    words += [_memory(request.memory)] if request.memory else []
    words += [f"{_memory(request.disk)} of disk"] if request.disk else []
    return ", ".join([*words, *request.gres, *_names(request.devices.constraint)])


def _describe(group: Group) -> str:
    cpus = [] if group.cpus is None else [count_text(int(group.cpus), "CPU")]
    memory = [] if group.memory is None else [_memory(int(group.memory))]
    counts = ("?" if item.count is None else f"{item.count:g}" for item in group.gres)
    gres = [":".join(filter(None, (item.name, item.type, count))) for item, count in zip(group.gres, counts)]
    return ", ".join([*cpus, *memory, *gres, *sorted(group.features)])


def _memory(amount: int) -> str:
    """An amount in MiB, rounded for reading."""
    return memory_text(amount * _MIB)


def _mib(amount: int) -> str:
    """An amount in MiB in the largest unit that is exact, as settings take it."""
    return size_text(amount * _MIB)


def job_of(step: StepPlan) -> Job:
    """A job of the step, as its first attempt would be."""
    return Job(name=f"plan/{step.key}/1", run="plan", key=step.key, attempt=1, step=step, inputs={})


def part_of(step: StepPlan) -> str:
    """The name of the part of the stack that the step runs on, such as "orchestrator"."""
    return next(iter(step.settings.backend), "orchestrator")


def test_submission(
    step: StepPlan, settings: SlurmSettings, login: Login, tried: set[tuple[str, ...]]
) -> Iterator[Finding]:
    """Slurm's own answer to the request, without submitting it."""
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
        answer = " ".join(line.removeprefix("sbatch: error: ").strip() for line in ran.err.splitlines()[-2:])
        for pattern, code, setting in _WORDS:
            if re.search(pattern, answer):
                fix = f"change {part_of(step)}.{setting} of the step or the stack"
                yield report.error(code, f"Slurm refuses it: {answer}", fix=fix)
                return
        why = "it may be for now only, as while nodes are down; else the step fails when it is submitted"
        yield report.info(REFUSED, f"Slurm would not start it now: {answer}", why)
