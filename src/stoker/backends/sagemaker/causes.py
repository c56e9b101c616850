"""How a training job ended and why, and why it waits, from what DescribeTrainingJob says of it. Pure.

SageMaker has no codes for most ends: `FailureReason` is read against `ENDS`, the first row that fits. It begins with
whose error it is: AlgorithmError (the container's), ClientError (the request's) or InternalServerError.
"""

from __future__ import annotations

import re
from typing import Final, Sequence

import attrs

from stoker.backends.aws.platform import AwsEnd, EndRow, Object, end_row
from stoker.core.status import (
    CANCELLED,
    CRASHED,
    DISK_FULL,
    HOST_OOM,
    KILLED,
    NODE_LOST,
    PREEMPTED,
    QUOTA,
    REFUSED,
    SETUP_FAILED,
    TIMED_OUT,
    USER_ERROR,
    WORKER_LOST,
)

OVER: Final = ("Completed", "Failed", "Stopped")
WAITING: Final = ("Starting", "Pending", "LaunchingMLInstances", "PreparingTrainingStack")
"""Values of `SecondaryStatus` before a job has its instances, old ones of the API too:
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html"""
PREPARING: Final = ("Downloading", "DownloadingTrainingImage", "Restarting", "Interrupted")
BEGUN: Final = ("Training", "Updating", "Uploading", "Stopping")
"""Those after its containers have begun, but for the ends."""
_API: Final = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html"
_TROUBLE: Final = "https://docs.aws.amazon.com/sagemaker/latest/dg/model-train-troubleshoot.html"
_SPOT: Final = "https://docs.aws.amazon.com/sagemaker/latest/dg/model-managed-spot-training.html"
_QUOTA: Final = "https://docs.aws.amazon.com/general/latest/gr/sagemaker.html"
_CODE: Final = re.compile(r"exit code:? (?P<code>-?\d+)", re.IGNORECASE)
_LIMIT: Final = re.compile(
    r"limit (?:for )?(?P<quote>'?)(?P<name>.+?)(?P=quote) is (?P<limit>\d+) \w+"
    r"(?:, with current utilization of (?P<used>\d+) \w+ and a request delta of (?P<more>\d+))?"
)
"""What CreateTrainingJob says of a quota, in its present words and in older ones:
https://docs.aws.amazon.com/sagemaker/latest/dg/training-compiler-support.html"""
_CRASHES: Final = frozenset({132, 134, 135, 136, 139})
"""Exit codes by which a process died of its own making: 128 and SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV."""


ENDS: Final[Sequence[EndRow]] = (
    end_row(
        r"CapacityError|InsufficientInstanceCapacity|insufficient capacity|unable to provision requested ML compute "
        r"capacity",
        QUOTA,
        "AWS has no such instances now: {words}; try another type (`instance_type`) or region, or reserve capacity "
        "(`training_plan`)",
        _TROUBLE,
        free=True,
        later=True,
    ),
    end_row(
        r"InternalServerError|internal (?:server )?error|hardware (?:failure|error)",
        NODE_LOST,
        "SageMaker failed, or an instance of its: {words}",
        _API,
        free=True,
    ),
    end_row(
        r"ResourceLimitExceeded|account-level service limit",
        REFUSED,
        "the account's quota does not allow it: {words}; ask for more in Service Quotas, or for another type",
        _QUOTA,
    ),
    end_row(
        r"(?:use an? instance type with more memory|out of memory|OutOfMemory|\bOOM\b)",
        HOST_OOM,
        "the step needed more memory than its instance has: {words}; ask for more memory",
        _TROUBLE,
    ),
    end_row(
        r"no space left|disk (?:is )?full|larger volume|storage (?:volume|space)",
        DISK_FULL,
        "the job's volume is full: {words}; ask for more disk",
        _TROUBLE,
    ),
    end_row(
        r"exec format error",
        REFUSED,
        "the image is built for another architecture than the instance has",
        _TROUBLE,
    ),
    end_row(
        r"(?:executable file not found|no such file or directory).{0,200}|.{0,80}entrypoint.{0,80}not (?:found|exist)",
        REFUSED,
        "the container's command does not exist in the image: {words}; name another image, or `executable`",
        _TROUBLE,
    ),
    end_row(
        r"(?:pull|image).{0,200}(?:not (?:found|exist)|denied|unauthorized|no basic auth|manifest unknown)|"
        r"Cannot find repository|CannotPullContainer|ECR image",
        REFUSED,
        "the image could not be pulled: {words}; `role` needs ecr:GetAuthorizationToken, ecr:BatchGetImage and "
        "ecr:GetDownloadUrlForLayer, and the image must be in this region",
        _TROUBLE,
    ),
    end_row(
        r"(?:access ?denied|not authorized|forbidden|\b403\b|AssumeRole)",
        REFUSED,
        "AWS refused it a right: {words}; `role` must read and write the artifact store, and trust "
        "sagemaker.amazonaws.com",
        _TROUBLE,
    ),
    end_row(
        r"(?:data download failed|no S3 objects found|failed to download data)",
        SETUP_FAILED,
        "SageMaker could not bring the job's document to the instance: {words}; see that `role` may list and read the "
        "artifact store",
        _TROUBLE,
    ),
    end_row(
        r"(?:artifact upload failed|failed to upload)",
        SETUP_FAILED,
        "SageMaker could not write the job's output: {words}; see that `role` may write the artifact store",
        _TROUBLE,
    ),
)
"""The first row that fits decides; exit codes are read besides."""


def end_of(job: Object) -> AwsEnd | None:
    """How a job ended; None as long as it has not."""
    status, secondary = job.get("TrainingJobStatus"), job.get("SecondaryStatus")
    if status not in OVER:
        return None
    if status == "Completed":
        return AwsEnd(state="succeeded", message="finished", exit_code=0)
    if secondary == "MaxRuntimeExceeded":
        text = "the job ran longer than its limit; raise the step's timeout, or `max_runtime`"
        return AwsEnd(state="failed", cause=TIMED_OUT, message=text, source=_API)
    if secondary == "MaxWaitTimeExceeded":
        text = "no spot instances came, or stayed, within the time that it may wait; raise `max_wait`, or spot=False"
        return AwsEnd(state="failed", cause=PREEMPTED, message=text, source=_SPOT)
    if secondary == "Interrupted":
        text = "its spot instances were taken back, and SageMaker did not start it again"
        return AwsEnd(state="interrupted", cause=PREEMPTED, message=text, free=True, source=_SPOT)
    if status == "Stopped":
        return AwsEnd(state="cancelled", cause=CANCELLED, message="somebody stopped the job", source=_API)
    return failure_of(str(job.get("FailureReason") or ""))


def failure_of(reason: str) -> AwsEnd:
    """What `FailureReason` means."""
    words = " ".join(reason.split())
    found = _CODE.search(words)
    code = int(found["code"]) if found else None
    # What the container wrote is the step's own, and may have any of these words: only SageMaker's errors are searched.
    if not words.startswith("AlgorithmError"):
        for row in ENDS:
            if row.pattern.search(words):
                return attrs.evolve(row.end(row.message.format(words=words)), exit_code=code)
    elif "exec format error" in words or "executable file not found" in words:
        text = f"the container did not start: {words}; name another image, or `executable`"
        return AwsEnd(state="failed", cause=REFUSED, message=text, exit_code=code, source=_TROUBLE)
    return attrs.evolve(_by_code(code, words), exit_code=code)


def _by_code(code: int | None, words: str) -> AwsEnd:
    if code is None:
        text = f"the job failed: {words}" if words else "the job failed, and SageMaker does not say why"
        return AwsEnd(state="failed", cause=WORKER_LOST, message=text, source=_API)
    if code == 137:
        text = "its container got SIGKILL (exit code 137), which the kernel sends for want of memory"
        return AwsEnd(state="failed", cause=KILLED, message=text)
    if code == 143:
        return AwsEnd(state="failed", cause=KILLED, message="its container got SIGTERM (exit code 143)")
    if code in (126, 127):
        text = f"its container's command could not be run (exit code {code}); see `executable` and the image"
        return AwsEnd(state="failed", cause=REFUSED, message=text)
    if code in _CRASHES or code < 0:
        text = f"its process died by a signal of its own making (exit code {code})"
        return AwsEnd(state="failed", cause=CRASHED, message=text)
    return AwsEnd(state="failed", cause=USER_ERROR, message=f"its container left with exit code {code}: {words}")


@attrs.frozen(kw_only=True)
class Quota:
    """A quota of the account that refused a job."""

    name: str
    """As Service Quotas lists it: "ml.p4d.24xlarge for training job usage"."""
    limit: int
    used: int | None = None
    """None, as of `asked`, where the refusal does not say it."""
    asked: int | None = None

    @property
    def frees(self) -> bool:
        """Whether the job may fit when others have ended."""
        return (1 if self.asked is None else self.asked) <= self.limit and self.used != 0

    @property
    def text(self) -> str:
        """What the quota has, and what is asked of it."""
        used = "" if self.used is None else f", {self.used} of it in use"
        asked = "the job needs more" if self.asked is None else f"the job needs {self.asked}"
        return f"the quota '{self.name}' is {self.limit}{used}, and {asked}"


def quota_of(words: str) -> Quota | None:
    """The quota of which a refusal speaks (ResourceLimitExceeded); None where it names none.

    AWS refuses in the same words a job that fits later, and one that asks for more than the account ever has.
    """
    found = _LIMIT.search(" ".join(words.split()))
    if found is None:
        return None
    return Quota(
        name=found["name"],
        limit=int(found["limit"]),
        used=None if found["used"] is None else int(found["used"]),
        asked=None if found["more"] is None else int(found["more"]),
    )


def is_running(job: Object) -> bool:
    """Whether its containers are known to have begun, by its state or, in one that is not known, by those before."""
    state = job.get("SecondaryStatus")
    known = state in BEGUN or (state not in (*WAITING, *PREPARING) and has_begun(job))
    return known or job.get("TrainingJobStatus") in OVER


def has_begun(job: Object) -> bool:
    """Whether its containers were ever started, so that there may be lines of theirs."""
    return any(change.get("Status") == "Training" for change in job.get("SecondaryStatusTransitions") or ())


def why_waiting(job: Object) -> tuple[str, str]:
    """Why a job does not run yet, in SageMaker's words, and its state, which changes less often."""
    state = str(job.get("SecondaryStatus") or "")
    changes: Sequence[Object] = job.get("SecondaryStatusTransitions") or ()
    message = str(changes[-1].get("StatusMessage") or "") if changes else ""
    if state == "Interrupted":
        return "its spot instances were taken back; SageMaker starts it again when it gets others", state
    if state in ("DownloadingTrainingImage", "Downloading"):
        what = "the image" if state == "DownloadingTrainingImage" else "the job's document"
        return f"its instances download {what}", state
    if message or state in ("", *WAITING, *PREPARING):
        return message or "SageMaker has not given it its instances yet", state
    return f"SageMaker calls it {state}", state
