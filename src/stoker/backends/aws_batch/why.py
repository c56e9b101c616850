"""Why a job of AWS Batch waits, in words, from what the API says of it, of its queue and of its compute environments.

Pure. AWS itself says why only for the job at the head of a queue, and late; what the queue and its compute environments
show is said at once.
"""

from __future__ import annotations

import math
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.aws.api import amount, whole
from stoker.backends.aws_batch.queues import ComputeEnvironment, JobQueue, queues_of_account


@attrs.frozen(kw_only=True)
class Waiting:
    """Why a job waits."""

    text: str
    """In words, with numbers."""
    key: str
    """The same as long as the reason is."""
    fix: str = ""
    hopeless: bool = False
    """Whether it will never start unless somebody changes something."""


REASONS: Final[Mapping[str, Waiting]] = {
    # What AWS writes into `statusReason` of the job at the head of a blocked queue: https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY": Waiting(
        key="capacity",
        text="EC2 has no {instance} free in the zones of the compute environment",
        fix="wait, or give the compute environment more subnets (zones) or instance types",
    ),
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE": Waiting(
        key="max-vcpus",
        text="it needs more vCPUs than maxvCpus of each compute environment",
        fix="raise maxvCpus, or ask for fewer CPUs or nodes",
        hopeless=True,
    ),
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT": Waiting(
        key="no-instance",
        text="no instance type of the queue has the vCPUs, the memory and the GPUs that it asks for",
        fix="ask for less (the system keeps a part of an instance's memory), or add a larger type",
        hopeless=True,
    ),
    "MISCONFIGURATION:EC2_INSTANCE_CONFIGURATION_UNSUPPORTED": Waiting(
        key="unsupported",
        text="EC2 starts no instance as the compute environment is configured: its zones lack the types, or its launch "
        "template does not fit them",
        fix="change the types, the subnets or the launch template",
        hopeless=True,
    ),
    "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS": Waiting(
        key="service-role",
        text="the service role of AWS Batch lacks rights",
        fix="use the service-linked role AWSServiceRoleForBatch",
        hopeless=True,
    ),
    "ACTION_REQUIRED": Waiting(
        key="action", text="AWS Batch says that a person must do something", fix="see the queue in AWS's console"
    ),
    "UNDETERMINED": Waiting(
        key="undetermined",
        text="AWS Batch does not know why it does not start",
        fix="see the activity of the compute environment's Auto Scaling group: limits of the account, roles, subnets",
    ),
}


def why_waiting(
    job: Mapping[str, Any], queue: Mapping[str, Any], environments: Sequence[Mapping[str, Any]]
) -> Waiting | None:
    """Why a job waits; None for one that runs or has ended.

    `queue` is what DescribeJobQueues says of its queue, `environments` what DescribeComputeEnvironments says of the
    queue's; either may be empty where it is not known.
    """
    status = str(job.get("status") or "")
    if status == "STARTING":
        return Waiting(key="starting", text="its container is being started: the instance pulls the image")
    if status in ("SUBMITTED", "PENDING"):
        depends = [str(each.get("jobId", "")) for each in job.get("dependsOn") or ()]
        words = f"waits for {', '.join(depends)}" if depends else "AWS Batch has taken it, and not yet looked at it"
        return Waiting(key=status.lower(), text=words)
    if status in ("RUNNING", "SUCCEEDED", "FAILED"):
        return None
    if status != "RUNNABLE":
        return Waiting(
            key=status, text=f"AWS Batch calls it {status}" if status else "AWS Batch does not say how it is"
        )
    rows = queues_of_account([queue] if queue else [], environments)
    if rows:
        shown = _of_queue(job, rows[0], environments)
        if shown is not None:
            return shown
    explained = _of_status_reason(job)
    if explained is not None:
        return explained
    name = f"the queue {rows[0].name}" if rows else "its queue"
    return Waiting(key="queued", text=f"waits in {name} for an instance, or for jobs before it")


def _of_queue(job: Mapping[str, Any], queue: JobQueue, environments: Sequence[Mapping[str, Any]]) -> Waiting | None:
    """What the queue and its compute environments show, the surest first."""
    name = queue.name
    if queue.problem:
        fix = "enable the queue" if "DISABLED" in queue.problem else "see the queue in AWS's console"
        return Waiting(key="queue", text=f"the queue {name} {queue.problem}", fix=fix, hopeless=True)
    if not queue.usable:
        text = ", ".join(f"{each.name} {each.problem}" for each in queue.environments)
        words = f"no compute environment of the queue {name} works: {text or 'it has none'}"
        return Waiting(key="environments", text=words, fix="enable or mend one of them", hopeless=True)
    needs = _needs(job)
    asked = needs.all_vcpus
    short = [each for each in queue.usable if each.vcpus is not None and asked is not None and asked > each.vcpus]
    if len(short) == len(queue.usable):
        limits = ", ".join(f"{each.name} {each.vcpus}" for each in short)
        text = f"it needs {asked} vCPUs, more than maxvCpus of {limits}"
        return Waiting(key="max-vcpus", text=text, fix=REASONS[_MAX].fix, hopeless=True)
    if all(each.types and not each.unknown for each in queue.usable) and not any(
        _holds(needs, each) for each in queue.usable
    ):
        text = f"it needs {needs.text}, and none of {queue.text} has that"
        return Waiting(key="no-instance", text=text, fix=REASONS[_REQUIREMENT].fix, hopeless=True)
    full = [each for each in queue.usable if _is_full(each, environments)]
    explained = _of_status_reason(job)
    if len(full) == len(queue.usable) and (explained is None or explained.key == "undetermined"):
        limits = ", ".join(f"all {each.vcpus} vCPUs of {each.name}" for each in full)
        text = f"{limits} are in use: it waits until other jobs of the queue {name} end"
        return Waiting(key="full", text=text, fix="raise maxvCpus if that takes too long")
    return None


_MAX: Final = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
_REQUIREMENT: Final = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"


@attrs.frozen(kw_only=True)
class _Needs:
    """What one node of a job needs, and all together; None where AWS does not say it."""

    vcpus: int | None
    memory: int | None
    gpus: int | None
    nodes: int | None

    @property
    def all_vcpus(self) -> int | None:
        return None if self.vcpus is None or self.nodes is None else self.vcpus * self.nodes

    @property
    def text(self) -> str:
        amounts = ((self.vcpus, "vCPUs"), (self.memory, "MiB"), (self.gpus, "GPUs"))
        return ", ".join(f"{count} {unit}" for count, unit in amounts if count)


def _needs(job: Mapping[str, Any]) -> _Needs:
    nodes = job.get("nodeProperties") or {}
    groups = nodes.get("nodeRangeProperties") or ()
    container = (groups[0].get("container") if groups else None) or job.get("container") or {}
    amounts = {each.get("type"): each.get("value") for each in container.get("resourceRequirements") or ()}
    vcpus = amount(amounts.get("VCPU", container.get("vcpus")))
    return _Needs(
        vcpus=None if vcpus is None else math.ceil(vcpus),
        memory=whole(amounts.get("MEMORY", container.get("memory"))),
        gpus=whole(amounts.get("GPU", 0)),
        nodes=whole(nodes.get("numNodes")) if nodes else 1,
    )


def _holds(needs: _Needs, environment: ComputeEnvironment) -> bool:
    """Whether an instance of the environment may hold a node, as far as its needs are known."""
    return any(
        (needs.vcpus is None or each.vcpus >= needs.vcpus)
        and (needs.memory is None or each.memory > needs.memory)
        and (not needs.gpus or (each.count >= needs.gpus and not each.is_neuron))
        for each in environment.types
    )


def _is_full(environment: ComputeEnvironment, environments: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a compute environment is known to have started all that it may."""
    rows = (each for each in environments if each.get("computeEnvironmentName") == environment.name)
    wanted = whole((next(rows, {}).get("computeResources") or {}).get("desiredvCpus"))
    return wanted is not None and environment.vcpus is not None and wanted >= environment.vcpus > 0


def _of_status_reason(job: Mapping[str, Any]) -> Waiting | None:
    words = " ".join(str(job.get("statusReason") or "").split())
    for code, reason in REASONS.items():
        if words.startswith(code):
            kind = words.rpartition("instance type ")[2].strip("[]. ") if "instance type" in words else "instance"
            return attrs.evolve(reason, text=reason.text.replace("{instance}", kind))
    return Waiting(key="words", text=f"AWS Batch says: {words}") if words else None
