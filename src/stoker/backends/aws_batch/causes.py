"""How a job of AWS Batch ended and why, and why one waits, in words, from what the API says. Pure.

AWS has no codes for most ends: `statusReason` of the job, `reason` of its container and its exit code are read against
`ENDS`, the first row that fits, each with the page or the words that it is known by. Why a job waits AWS itself says
only for the one at the head of a queue, and late; what the queue and its compute environments show is said at once.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.aws.api import amount, moment, whole
from stoker.backends.aws.platform import AwsEnd, EndRow, Object, end_row
from stoker.backends.aws_batch.queues import ComputeEnvironment, JobQueue, queues_of_account
from stoker.backends.kubernetes.explain.refusals import pull_problem
from stoker.core.status import (
    CANCELLED,
    CRASHED,
    DISK_FULL,
    HOST_OOM,
    KILLED,
    NO_DRIVER,
    NO_GPU,
    NODE_LOST,
    PREEMPTED,
    REFUSED,
    SETUP_FAILED,
    TIMED_OUT,
    USER_ERROR,
    WORKER_LOST,
)

_ECS: Final = "https://docs.aws.amazon.com/AmazonECS/latest/developerguide"
_BATCH: Final = "https://docs.aws.amazon.com/batch/latest/userguide"
_LIMITS: Final = f"{_BATCH}/job_stuck_in_runnable_time_limit_actions.html"
_SIGNALS: Final[Mapping[int, str]] = {
    132: "an illegal instruction (SIGILL)",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    139: "a segmentation fault (SIGSEGV)",
}
"""Exit codes by which a process died of its own making: 128 and the signal's number."""
_TIME_LIMIT: Final = re.compile(r"JobStateTimeLimit action due to reason: (?P<reason>[\w:]+)")
_PULL_FIXES: Final[Mapping[str, str]] = {
    "unauthorized": "let the role pull it: `execution_role`, else the instance's role, needs "
    "ecr:GetAuthorizationToken, ecr:BatchGetImage and ecr:GetDownloadUrlForLayer; another registry than ECR needs "
    "`repository_credentials`",
    "rate": "wait, or copy the image to ECR",
    "architecture": "build it for the architecture of the queue's instances",
    "network": "give the subnets a way to the registry: a NAT gateway, or VPC endpoints of ECR and S3",
    "host": "check the image's name, and the DNS of the subnets",
    "disk": "use a smaller image, or a larger root volume in the compute environment's launch template",
}


ENDS: Final[Sequence[EndRow]] = (
    # The instance went away.
    end_row(
        r"Host EC2 \(instance (?P<instance>i-\w+)\) terminated",
        PREEMPTED,
        "its instance {instance} was terminated: a spot instance that EC2 took back, or one that somebody ended; "
        "checkpoints let it go on where it was",
        f"{_BATCH}/job_retries.html",
        free=True,
    ),
    end_row(
        r"Host EC2 \(instance (?P<instance>i-\w+)\)",
        NODE_LOST,
        "its instance {instance} stopped or failed; checkpoints let it go on where it was",
        f"{_ECS}/stopped-task-error-codes.html",
        free=True,
    ),
    end_row(
        r"Your Spot Task was interrupted",
        PREEMPTED,
        "Fargate Spot took its task away; checkpoints let it go on where it was",
        f"{_ECS}/fargate-capacity-providers.html",
        free=True,
    ),
    end_row(
        r"ECS agent disconnected|Unable to (?:reach|communicate with) (?:the )?(?:container )?agent|^AGENT$",
        NODE_LOST,
        "the ECS agent of its instance went away; checkpoints let it go on where it was",
        f"{_BATCH}/job_retries.html",
        free=True,
    ),
    # Limits.
    end_row(
        r"Job attempt duration exceeded timeout",
        TIMED_OUT,
        "the step ran longer than its limit; raise the step's timeout",
        f"{_BATCH}/job_timeouts.html",
    ),
    end_row(
        r"OutOfMemoryError",
        HOST_OOM,
        "the step needed more than its memory limit{limit}; ask for more memory",
        f"{_ECS}/stopped-task-error-codes.html",
    ),
    # Before the container.
    end_row(
        r"ResourceInitializationError.*(?:secret|ssm|parameter)",
        REFUSED,
        "a secret could not be read: {words}; `execution_role` needs secretsmanager:GetSecretValue or "
        "ssm:GetParameters",
        f"{_ECS}/resource-initialization-error.html",
    ),
    end_row(
        r"ResourceInitializationError.*(?:efs|mount|file system|s3files)",
        SETUP_FAILED,
        "a volume could not be mounted: {words}; see that its security group lets the instances in (NFS, port 2049)",
        f"{_ECS}/resource-initialization-error.html",
    ),
    end_row(
        r"ResourceInitializationError.*(?:log group|awslogs|logs:)|failed to initialize logging driver",
        SETUP_FAILED,
        "its log could not be opened: {words}; create the log group of `log_options`, and see that the role may write "
        "it and that the subnets reach CloudWatch",
        f"{_ECS}/resource-initialization-error.html",
    ),
    end_row(
        r"ResourceInitializationError|ResourceNotReady",
        SETUP_FAILED,
        "what its container needs could not be made ready: {words}",
        f"{_ECS}/resource-initialization-error.html",
    ),
    end_row(
        r"gathering device information while adding custom device \"?(?P<device>/dev/(?:neuron|infiniband)\S*?)\"?:",
        NO_GPU,
        "its instance has no {device}: the image of the compute environment lacks the driver, or the instance has "
        "fewer devices than its type should",
        "https://docs.docker.com/reference/cli/docker/container/run/#device",
    ),
    end_row(
        r"could not select device driver|nvidia-container-cli|libnvidia-ml",
        NO_DRIVER,
        "the container engine of its instance cannot hand in GPUs: {words}; the compute environment needs an image "
        "with the driver, such as ECS_AL2023_NVIDIA",
        f"{_BATCH}/batch-gpu-ami.html",
    ),
    end_row(
        r"no space left on device",
        DISK_FULL,
        "the disk of its instance is full: {words}; give the launch template a larger volume",
        f"{_ECS}/stopped-task-error-codes.html",
    ),
    end_row(
        r"exec format error",
        REFUSED,
        "the image is built for another architecture than the instance has (exec format error)",
        f"{_ECS}/cannot-start-container.html",
    ),
    end_row(
        r"exec: \"(?P<path>[^\"]+)\": (?:stat \S+: no such file|executable file not found)",
        REFUSED,
        "the command {path} does not exist in the image; name another image, or `executable`",
        f"{_ECS}/cannot-start-container.html",
    ),
    end_row(
        r"DockerTimeoutError|CannotInspectContainerError|CannotStopContainerError|InternalError",
        SETUP_FAILED,
        "the container engine of its instance did not answer: {words}",
        f"{_ECS}/stopped-task-error-codes.html",
    ),
    end_row(
        r"CannotStartContainerError|CannotCreateContainerError|CannotCreateVolumeError",
        REFUSED,
        "the container could not be started: {words}",
        f"{_ECS}/cannot-start-container.html",
    ),
    # Batch itself.
    end_row(
        r"Dependent Job failed|Array Child Job failed",
        WORKER_LOST,
        "{words}: a job that belongs to it failed",
        f"{_BATCH}/array_jobs.html",
    ),
    end_row(
        r"is not authorized to perform|AccessDenied|unable to assume (?:the )?role|Role is (?:not valid|invalid)",
        REFUSED,
        "AWS refused it: {words}; see the roles of the job by `stoker doctor --stack`",
        f"{_BATCH}/troubleshooting.html",
    ),
    end_row(
        r"Task failed to start",
        SETUP_FAILED,
        "its container did not start, and AWS does not say why ({words})",
        f"{_BATCH}/job_retries.html",
    ),
)
"""The first row that fits decides. Images that cannot be pulled, cancelled jobs and exit codes are read besides."""


def end_of(job: Object) -> AwsEnd | None:
    """How a job ended, a plain one, an element of an array, or a node; None as long as it has not.

    Of a multi-node parallel job take `gang_end`.
    """
    status = job.get("status")
    if status not in ("SUCCEEDED", "FAILED"):
        return None
    container = last_container(job)
    code = whole(container.get("exitCode"))
    stopped = moment(job.get("stoppedAt"))
    if status == "SUCCEEDED":
        return AwsEnd(state="succeeded", message="finished", exit_code=0 if code is None else code, moment=stopped)
    end = _reading(job, str(container.get("reason") or ""), code)
    return attrs.evolve(end, moment=stopped, part=_part(job), exit_code=code)


def gang_end(job: Object, nodes: Sequence[Object]) -> AwsEnd | None:
    """How a multi-node parallel job ended, by itself and by its nodes; None as long as it has not.

    Batch ends the other nodes when the main one ends, and the job has the main node's end: the node that failed first
    by itself is the one to blame.
    """
    end = end_of(job)
    if end is None or end.state == "succeeded":
        return end
    own = [each for each in (end_of(node) for node in nodes) if each is not None and each.state != "succeeded"]
    blamed = [each for each in own if each.cause not in (CANCELLED, KILLED)]
    if end.cause == CANCELLED or not blamed:
        return end
    first = min(blamed, key=lambda each: (each.moment is None, each.moment or 0.0, each.part or 0))
    return attrs.evolve(first, message=f"node {first.part} of {len(nodes)}: {first.message}; the others were ended")


def last_container(job: Object) -> Object:
    """The container of the last attempt: its exit code, its reason, its log stream."""
    container: Object = job.get("container") or {}
    if container.get("exitCode") is not None or container.get("reason"):
        return container
    attempts = job.get("attempts") or ()
    last: Object = (attempts[-1].get("container") or {}) if attempts else {}
    return {**container, **{name: value for name, value in last.items() if value is not None}}


# What a failed job says


def _reading(job: Object, reason: str, code: int | None) -> AwsEnd:
    status_reason = _plain(job.get("statusReason") or _last_attempt(job).get("statusReason"))
    limit = _TIME_LIMIT.search(status_reason)
    if limit is not None:
        message = f"the queue gave it up while it waited ({limit['reason']}): a time limit of the queue says so"
        return AwsEnd(state="failed", cause=REFUSED, message=message, source=_LIMITS)
    if job.get("isCancelled") or job.get("isTerminated"):
        verb = "terminated" if job.get("isTerminated") else "cancelled"
        message = f"cancelled: the job was {verb}{f' ({status_reason})' if status_reason else ''}"
        return AwsEnd(state="cancelled", cause=CANCELLED, message=message, source=f"{_BATCH}/job_states.html")
    if "CannotPull" in reason or "CannotPull" in status_reason:
        image = str((job.get("container") or {}).get("image") or "of the step")
        text = reason if "CannotPull" in reason else status_reason
        problem = pull_problem("", text, image)
        fix = _PULL_FIXES.get(problem.kind, problem.fix if problem.kind in ("absent", "certificate") else "")
        message = f"{problem.text}{f'; {fix}' if fix else ''}"
        return AwsEnd(
            state="failed", cause=problem.cause, message=message, source=f"{_ECS}/task_cannot_pull_image.html"
        )
    for row in ENDS:
        match = row.pattern.search(status_reason) or row.pattern.search(reason)
        if match is not None:
            # The container says more than the job.
            message = row.message.replace("{words}", _plain(reason) or status_reason).replace(
                "{limit}", _memory_words(job)
            )
            for name, text in match.groupdict("").items():
                message = message.replace(f"{{{name}}}", text)
            return row.end(message)
    if code is None:
        words = ": ".join(filter(None, (status_reason, _plain(reason)))) or "it does not say why"
        return AwsEnd(state="failed", cause=WORKER_LOST, message=f"the job failed: {words}")
    return _exit(code, status_reason)


def _exit(code: int, status_reason: str) -> AwsEnd:
    if code in _SIGNALS:
        message = f"the step's process crashed by {_SIGNALS[code]} (exit code {code})"
        return AwsEnd(state="failed", cause=CRASHED, message=message)
    if code == 137:
        message = "the process was killed (exit code 137), and AWS names no memory limit; look who did it"
        return AwsEnd(state="failed", cause=KILLED, message=message)
    if code == 143:
        message = "the process was ended by SIGTERM (exit code 143), and nothing says by whom"
        return AwsEnd(state="failed", cause=KILLED, message=message)
    if code == 0:
        words = (
            f"the container left with exit code 0, and the job failed{f': {status_reason}' if status_reason else ''}"
        )
        return AwsEnd(state="failed", cause=WORKER_LOST, message=words)
    detail = {126: ": command not executable", 127: ": command not found"}.get(code, "")
    message = f"the step's code failed with exit code {code}{detail}; see the end of its log"
    return AwsEnd(state="failed", cause=USER_ERROR, message=message)


def _memory_words(job: Object) -> str:
    container = job.get("container") or {}
    requirements = {each.get("type"): each.get("value") for each in container.get("resourceRequirements") or ()}
    memory = requirements.get("MEMORY") or container.get("memory")
    return f" ({memory} MiB)" if memory else ""


def _last_attempt(job: Object) -> Object:
    attempts = job.get("attempts") or ()
    return attempts[-1] if attempts else {}


def _part(job: Object) -> int | None:
    index = (job.get("nodeDetails") or {}).get("nodeIndex")
    if index is None:
        index = (job.get("arrayProperties") or {}).get("index")
    return whole(index)


def _plain(text: object) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= 400 else words[:399] + "…"


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
