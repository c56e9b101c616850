"""How a job of AWS Batch ended and why, from what DescribeJobs says of it. Pure.

AWS has no codes for most ends: `statusReason` of the job, `reason` of its container and its exit code are read against
`ENDS`, the first row that fits, each with the page or the words that it is known by.
"""

from __future__ import annotations

import re
from typing import Final, Mapping, Sequence

import attrs

from stoker.backends.aws.api import moment, whole
from stoker.backends.aws.platform import AwsEnd, EndRow, Object, end_row
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
