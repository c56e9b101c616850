"""Which queue holds a step: by what the compute environments of each may start. Pure.

AWS Batch places a job by vCPUs, memory and the number of GPUs; it knows no model of GPU, and counts no Neuron device. A
queue holds a step if every instance type on which its job could be placed is one that the step asks for.
"""

from __future__ import annotations

import math
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.aws.api import whole
from stoker.backends.aws.instances import InstanceType, expand
from stoker.backends.aws_batch.definitions import fargate_sizes
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.resources import ResourceSettings, describe

FARGATE: Final = ("FARGATE", "FARGATE_SPOT")
SPOT: Final = ("SPOT", "FARGATE_SPOT")
OTHERS: Final = ("EKS", "SAGEMAKER_TRAINING")
"""Types of queues whose jobs are no containers of ECS, but EKS pods and training jobs of SageMaker."""
KINDS: Final = ("EC2", *SPOT, "FARGATE")
"""Types of compute environments of which it is known what they may start; AWS has others, and adds to them."""
_UNTOLD: Final = "of types that AWS does not tell"
_SHOWN: Final = 3
"""Instance types that a message names of one queue."""


@attrs.frozen(kw_only=True)
class ComputeEnvironment:
    """What starts the instances of a queue."""

    name: str
    kind: str = "EC2"
    """One of `KINDS`; "UNMANAGED" where a person starts instances; empty for one that is not known."""
    types: tuple[InstanceType, ...] = ()
    unknown: tuple[str, ...] = ()
    """Names of types of which nothing is known."""
    vcpus: int | None = None
    """`maxvCpus`; None where that is not known."""
    problem: str = ""
    """Why it starts nothing: "is DISABLED", "is INVALID: …"."""


@attrs.frozen(kw_only=True)
class JobQueue:
    """A queue, with its compute environments in their order."""

    name: str
    environments: tuple[ComputeEnvironment, ...] = ()
    problem: str = ""
    """Why it takes no job: "is DISABLED", "is INVALID: …"."""
    fair: bool = False
    """Whether it has a scheduling policy, so that each job needs a share identifier."""

    @property
    def usable(self) -> tuple[ComputeEnvironment, ...]:
        """The compute environments that may start something."""
        return tuple(each for each in self.environments if not each.problem)

    @property
    def fargate(self) -> bool:
        """Whether its jobs run on Fargate: compute environments of both kinds cannot be in one queue."""
        return bool(self.environments) and all(each.kind in FARGATE for each in self.environments)

    @property
    def text(self) -> str:
        """The queue with what it may start: "gpu-q (p3.2xlarge: 1 × V100)"."""
        if self.problem:
            return f"{self.name} ({self.problem})"
        if self.fargate:
            return f"{self.name} (Fargate)"
        problems = [f"{each.name} {each.problem}" for each in self.environments if each.problem]
        types = [each for environment in self.usable for each in environment.types]
        names = [each.text for each in types] + [name for each in self.usable for name in each.unknown]
        more = [f"{len(names) - _SHOWN} more types"] if len(names) > _SHOWN else []
        return f"{self.name} ({', '.join((*names[:_SHOWN], *more, *problems)) or 'no compute environment'})"


@attrs.frozen(kw_only=True)
class QueueChoice:
    """The queue of a step, and what may run it there."""

    queue: str
    types: tuple[InstanceType, ...] = ()
    """The instance types on which the job may be placed; empty where they are not known, and on Fargate."""
    fargate: bool = False
    spot: bool = False
    """Whether the instance may be taken away."""
    among: int = 1
    """How many queues there were to choose from."""

    @property
    def text(self) -> str:
        """The choice in words: "queue gpu-q: p4d.24xlarge: 8 × A100"."""
        kinds = "Fargate" if self.fargate else " or ".join(each.text for each in self.types[:_SHOWN])
        if len(self.types) > _SHOWN:
            kinds += f" or {len(self.types) - _SHOWN} more types"
        spot = ", spot" if self.spot else ""
        return f"queue {self.queue}: {kinds or 'instance types not known'}{spot}"


@attrs.frozen(kw_only=True)
class NoQueue:
    """That no queue holds a step."""

    what: str
    why: str
    fix: str


def queues_of_settings(settings: BatchSettings) -> tuple[JobQueue, ...]:
    """The queues whose instance types the settings name."""
    queues = []
    for name, names in settings.get("queues", {}).items():
        if not names:
            continue
        kinds = [each.upper().replace("-", "_") for each in names]
        spot = "SPOT" in kinds
        if any(each in FARGATE for each in kinds):
            kind = "FARGATE_SPOT" if "FARGATE_SPOT" in kinds or spot else "FARGATE"
            environment = ComputeEnvironment(name=name, kind=kind)
        else:
            types, unknown = expand(each for each in names if each.upper() != "SPOT")
            environment = ComputeEnvironment(name=name, kind="SPOT" if spot else "EC2", types=types, unknown=unknown)
        queues.append(JobQueue(name=name, environments=(environment,)))
    return tuple(queues)


def queues_of_account(
    queues: Iterable[Mapping[str, Any]],
    environments: Iterable[Mapping[str, Any]],
    described: Mapping[str, InstanceType] | None = None,
) -> tuple[JobQueue, ...]:
    """The queues as DescribeJobQueues and DescribeComputeEnvironments have them.

    `described` has types that the tables lack (`EC2.DescribeInstanceTypes`). Queues of other kinds than containers are
    left out.
    """
    parts: dict[str, ComputeEnvironment] = {}
    for each in environments:
        part = _environment(each, described or {})
        parts[str(each.get("computeEnvironmentArn"))] = parts[part.name] = part
    rows = []
    for each in queues:
        if each.get("jobQueueType") in OTHERS:
            continue
        order = sorted(each.get("computeEnvironmentOrder") or (), key=lambda row: whole(row.get("order")) or 0)
        names = [str(row.get("computeEnvironment")) for row in order]
        missing = [ComputeEnvironment(name=name, problem="is not there") for name in names if name not in parts]
        if "computeEnvironmentOrder" not in each:
            missing = [ComputeEnvironment(name="its environment", kind="", unknown=(_UNTOLD,))]
        rows.append(
            JobQueue(
                name=str(each["jobQueueName"]),
                environments=(*(parts[name] for name in names if name in parts), *missing),
                problem=_problem(each),
                fair=bool(each.get("schedulingPolicyArn")),
            )
        )
    return tuple(rows)


def unknown_types(environments: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The instance types of compute environments that no table has, so that EC2 is to be asked."""
    names: dict[str, None] = {}
    for each in environments:
        listed = (each.get("computeResources") or {}).get("instanceTypes") or ()
        names.update(dict.fromkeys(expand(map(str, listed))[1]))
    return tuple(name for name in names if "." in name)


def choose(resources: ResourceSettings, settings: BatchSettings, queues: Sequence[JobQueue]) -> QueueChoice | NoQueue:
    """The queue that a step gets: the one that it names, or the one of the stack's that holds it with least to spare.

    A step without accelerators gets a queue with accelerators only where no other holds it; on-demand instances go
    before spot ones, unless the step has `spot=True`.
    """
    name = settings.get("queue")
    if name:
        named = [each for each in queues if each.name == name.rpartition("/")[2]]  # the end of an ARN
        if not named:
            return QueueChoice(queue=name, fargate=settings.get("platform") == "FARGATE")
        queues = named
    if not queues:
        return NoQueue(
            what=f"asks for {describe(resources)}, and there is no queue",
            why="a job of AWS Batch is sent to a queue",
            fix="BatchSettings(queue='…'), or queues of the stack: `stoker stacks setup batch`",
        )
    held, reasons = [], []
    for position, each in enumerate(queues):
        answer = _hold(resources, settings, each)
        if isinstance(answer, str):
            reasons.append(f"{each.name} {answer}")
        else:
            held.append((_rank(resources, answer, position), attrs.evolve(answer, among=len(queues))))
    if held:
        return min(held, key=lambda pair: pair[0])[1]
    listed = ", ".join(each.text for each in queues)
    asked = f"{describe(resources)}{_settings_words(settings)}"
    none = f"{listed} does not hold" if len(queues) == 1 else f"none of {listed} holds"
    return NoQueue(
        what=f"{none} {asked}",
        why="; ".join(reasons),
        fix="ask for what one of them has, name another by BatchSettings(queue='…'), or add a queue to the account",
    )


# One queue


def _hold(resources: ResourceSettings, settings: BatchSettings, queue: JobQueue) -> QueueChoice | str:
    """The choice of a queue that holds a step; else why it does not, in words that follow its name."""
    if queue.problem:
        return queue.problem
    if queue.fair and not settings.get("share_identifier"):
        return "has a scheduling policy, and BatchSettings(share_identifier='…') is missing"
    if not queue.usable:
        return "; ".join(f"has {each.name}, which {each.problem}" for each in queue.environments) or "is empty"
    environments = list(queue.usable)
    platform, nodes = settings.get("platform"), resources.get("nodes", 1)
    if platform and all(each.kind for each in environments) and (platform == "FARGATE") != queue.fargate:
        return f"is one of {'Fargate' if queue.fargate else 'EC2'}"
    if nodes > 1:
        environments = [each for each in environments if each.kind not in (*FARGATE, *SPOT, "UNMANAGED")]
        if not environments:
            # https://docs.aws.amazon.com/batch/latest/userguide/mnp-ce.html
            return "starts no instances for several nodes: only managed, on-demand EC2 ones may"
    if resources.get("spot") is False and any(each.kind in SPOT for each in environments):
        return "starts spot instances"
    if queue.fargate:
        return _hold_on_fargate(resources, queue)
    return _hold_on_ec2(resources, settings, queue, environments)


def _hold_on_fargate(resources: ResourceSettings, queue: JobQueue) -> QueueChoice | str:
    if resources.gpus_per_node:
        return "is one of Fargate, which has no accelerators"
    cpus, memory = resources.get("cpu_count", 1), math.ceil(resources.get("memory", 0) / 2**20)
    if fargate_sizes(cpus, memory) is None:
        return f"is one of Fargate, which has no {cpus:g} vCPUs with {memory} MiB"
    return QueueChoice(queue=queue.name, fargate=True, spot=any(each.kind in SPOT for each in queue.usable))


def _hold_on_ec2(
    resources: ResourceSettings,
    settings: BatchSettings,
    queue: JobQueue,
    environments: Sequence[ComputeEnvironment],
) -> QueueChoice | str:
    count, nodes = resources.gpus_per_node, resources.get("nodes", 1)
    cpus, memory = max(1, math.ceil(resources.get("cpu_count", 1))), math.ceil(resources.get("memory", 0) / 2**20)
    types = list({each.name: each for environment in environments for each in environment.types}.values())
    chosen = settings.get("instance_type")
    if chosen and nodes > 1:
        types = [each for each in types if each.name == chosen]
    unknown = [name for each in environments for name in each.unknown]
    spot = any(each.kind in SPOT for each in environments)
    large = [each for each in types if each.vcpus >= cpus and each.memory > memory]
    placed = [each for each in large if each.count >= count] if count else large
    fitting = [each for each in placed if not count or any(True for _ in _matches(resources, each))]
    if not fitting:
        if unknown:
            return QueueChoice(queue=queue.name, fargate=settings.get("platform") == "FARGATE", spot=spot)
        if types and not large:
            return f"has no instance with {cpus} vCPUs and {memory} MiB of memory beside the system's"
        counted = {each.accelerator for each in placed} if count else set()
        return f"has {' and '.join(sorted(counted)) or 'no'} accelerators" if counted else f"has {_most(types, count)}"
    if nodes == 1 and len(fitting) < len(placed):
        others = ", ".join(each.text for each in placed if each not in fitting)
        return f"may also place it on {others}: AWS Batch counts GPUs, and does not know their model"
    sizes = {each.count for each in fitting}
    if count and nodes == 1 and any(each.is_neuron for each in fitting) and len(sizes) > 1:
        numbers = " or ".join(map(str, sorted(sizes)))
        return f"has instances with {numbers} Neuron devices: the container names as many as its instance has"
    efa = settings.get("efa", 0)
    few = [each for each in fitting if efa and each.efa is not None and each.efa < efa]
    if few:
        return f"has {few[0].name}, with {few[0].efa} Elastic Fabric Adapters"
    limits = [each.vcpus for each in environments if each.vcpus is not None]
    if len(limits) == len(environments) and cpus * nodes > sum(limits):
        return f"may start {sum(limits)} vCPUs at most"
    return QueueChoice(queue=queue.name, types=tuple(fitting), spot=spot)


def _matches(resources: ResourceSettings, each: InstanceType) -> Iterable[Accelerator | None]:
    """The alternatives of a request that an instance type meets."""
    count = resources.gpus_per_node
    kinds: tuple[Accelerator | None, ...] = resources.get("accelerators", ()) or (None,)
    for kind in kinds:
        if kind is not None and (kind.name != each.accelerator or (kind.count or count) > each.count):
            continue
        known = MODELS.get(each.accelerator)
        vendor, memory = resources.get("gpu_vendor"), resources.get("gpu_memory", 0)
        if kind is None and vendor is None and each.is_neuron:
            continue  # a "GPU" of any kind is none of AWS's own chips
        if vendor is not None and (known is None or not known.is_by(vendor)):
            continue
        if memory and (known is None or known.memory[-1] < memory):
            continue
        yield kind


def _most(types: Sequence[InstanceType], count: int) -> str:
    """What the types have in the way of accelerators, where that is too few."""
    largest = max((each for each in types if each.count), key=lambda each: each.count, default=None)
    if largest is None:
        return "no accelerators" if count else "no instance types"
    return f"{largest.count} × {largest.accelerator} at most"


def _rank(resources: ResourceSettings, choice: QueueChoice, position: int) -> tuple[float, ...]:
    """The order among queues that hold a step; the lowest is chosen."""
    count = resources.gpus_per_node
    spare = min((each.count for each in choice.types), default=0) - count
    kinds = [kind.name for kind in resources.get("accelerators", ())]
    models = [kinds.index(each.accelerator) for each in choice.types if each.accelerator in kinds]
    unknown = not choice.types and not choice.fargate
    return (unknown, min(models, default=0), choice.spot != bool(resources.get("spot")), spare, position)


def _settings_words(settings: BatchSettings) -> str:
    words = [
        f" on {settings.get('platform')}" if settings.get("platform") else "",
        f" with {settings.get('efa')} Elastic Fabric Adapters" if settings.get("efa") else "",
        f" on {settings.get('instance_type')}" if settings.get("instance_type") else "",
    ]
    return "".join(words)


# As the API has them


def _environment(each: Mapping[str, Any], described: Mapping[str, InstanceType]) -> ComputeEnvironment:
    resources = each.get("computeResources") or {}
    types, unknown = expand(map(str, resources.get("instanceTypes") or ()))
    more = [described[name] for name in unknown if name in described]
    kind = "UNMANAGED" if each.get("type") == "UNMANAGED" else str(resources.get("type") or "")
    left = tuple(name for name in unknown if name not in described)
    if kind == "UNMANAGED":
        left = ("of a person's choice",)
    elif kind not in KINDS or not (resources.get("instanceTypes") or kind in FARGATE):
        left = (*left, f"{_UNTOLD} ({kind})" if kind else _UNTOLD)
    return ComputeEnvironment(
        name=str(each["computeEnvironmentName"]),
        kind=kind if kind in (*KINDS, "UNMANAGED") else "",
        types=(*types, *more),
        unknown=left,
        vcpus=whole(resources.get("maxvCpus", each.get("unmanagedvCpus"))),
        problem=_problem(each),
    )


def _problem(each: Mapping[str, Any]) -> str:
    """Why a queue or a compute environment does nothing; it works while it is UPDATING."""
    if each.get("state") == "DISABLED":
        return "is DISABLED"
    if each.get("status") in ("INVALID", "DELETING", "DELETED"):
        reason = " ".join(str(each.get("statusReason") or "").split())
        return f"is {each['status']}{f': {reason}' if reason else ''}"
    return ""
