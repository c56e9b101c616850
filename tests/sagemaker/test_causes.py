"""How training jobs end, and why they wait, from what DescribeTrainingJob says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sagemaker.model import MODEL

from stoker.backends.aws.platform import AwsEnd
from stoker.backends.sagemaker.causes import (
    ENDS,
    OVER,
    PREPARING,
    WAITING,
    Quota,
    end_of,
    is_running,
    quota_of,
    why_waiting,
)
from stoker.core import status

REASONS = {
    "InternalServerError: We encountered an internal error. Please try again.": (status.NODE_LOST, None),
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance "
    "type.": (status.QUOTA, None),
    "ClientError: InsufficientInstanceCapacity: no ml.p5.48xlarge": (status.QUOTA, None),
    "ResourceLimitExceeded: The account-level service limit 'ml.p5.48xlarge for training job usage' is 0 Instances": (
        status.REFUSED,
        None,
    ),
    "ClientError: Please use an instance type with more memory, or reduce the size of training data processed on an "
    "instance.": (status.HOST_OOM, None),
    "ClientError: No space left on device": (status.DISK_FULL, None),
    "ClientError: Data download failed:PermanentDownloadError: AccessDenied (403)": (status.REFUSED, None),
    "ClientError: Data download failed: No S3 objects found under S3 URL s3://b/p": (status.SETUP_FAILED, None),
    "ClientError: Artifact upload failed: Failed to upload": (status.SETUP_FAILED, None),
    "ClientError: Cannot find repository train in registry ID 123456789012": (status.REFUSED, None),
    "ClientError: CannotPullContainerError: manifest unknown": (status.REFUSED, None),
    "AlgorithmError: , exit code: 1": (status.USER_ERROR, 1),
    "AlgorithmError: the step ran out of memory in the user's words, exit code: 1": (status.USER_ERROR, 1),
    "AlgorithmError: , exit code: 137": (status.KILLED, 137),
    "AlgorithmError: , exit code: 139": (status.CRASHED, 139),
    "AlgorithmError: , exit code: 143": (status.KILLED, 143),
    "AlgorithmError: , exit code: 127": (status.REFUSED, 127),
    'AlgorithmError: exec: "python9": executable file not found in $PATH': (status.REFUSED, None),
    "": (status.WORKER_LOST, None),
    "something new": (status.WORKER_LOST, None),
}


def ended(reason: str = "", *, state: str = "Failed", secondary: str = "Failed") -> AwsEnd:
    end = end_of({"TrainingJobStatus": state, "SecondaryStatus": secondary, "FailureReason": reason})
    assert end is not None
    return end


@pytest.mark.parametrize("reason", REASONS)
def test_reasons(reason: str) -> None:
    cause, code = REASONS[reason]
    end = ended(reason)
    assert (end.cause, end.exit_code) == (cause, code), end
    assert end.cause in status.CAUSES and end.message
    assert end.free == (cause in (status.NODE_LOST, status.QUOTA)) and end.later == (cause == status.QUOTA)
    assert end.source or end.exit_code is not None


def test_ends_without_a_reason() -> None:
    assert ended(state="Completed", secondary="Completed").state == "succeeded"
    assert ended(state="Stopped", secondary="MaxRuntimeExceeded").cause == status.TIMED_OUT
    waited = ended(state="Stopped", secondary="MaxWaitTimeExceeded")
    assert waited.cause == status.PREEMPTED and not waited.free and "max_wait" in waited.message
    taken = ended(state="Failed", secondary="Interrupted")
    assert taken.cause == status.PREEMPTED and taken.free and taken.state == "interrupted"
    assert ended(state="Stopped", secondary="Stopped").cause == status.CANCELLED
    assert end_of({"TrainingJobStatus": "Stopping", "SecondaryStatus": "Stopping"}) is None


LIMIT = "The account-level service limit {} Instances, with current utilization of {} Instances and a request delta of "


@pytest.mark.parametrize(
    ("words", "quota", "frees"),
    [
        # As users of AWS quote it.
        (
            LIMIT.format("'ml.p3.2xlarge for training job usage' is 0", 0) + "1 Instances. Please contact AWS support",
            Quota(name="ml.p3.2xlarge for training job usage", limit=0, used=0, asked=1),
            False,
        ),
        (
            LIMIT.format("'ml.p3.8xlarge for training job usage' is 2", 3) + "1 Instances.",
            Quota(name="ml.p3.8xlarge for training job usage", limit=2, used=3, asked=1),
            True,
        ),
        (
            LIMIT.format("'Number of instances across all processing jobs' is 4", 1) + "11 Instances.",
            Quota(name="Number of instances across all processing jobs", limit=4, used=1, asked=11),
            False,
        ),
        (
            LIMIT.format("for training-job/ml.p2.xlarge is 0", 0) + "2 Instances.",
            Quota(name="training-job/ml.p2.xlarge", limit=0, used=0, asked=2),
            False,
        ),
        ("something else", None, False),
    ],
)
def test_quotas(words: str, quota: Quota | None, frees: bool) -> None:
    assert quota_of(words) == quota
    assert bool(quota and quota.frees) == frees


def test_the_states_are_the_services() -> None:
    answer = MODEL.operation_model("DescribeTrainingJob").output_shape
    assert set(OVER) <= set(answer.members["TrainingJobStatus"].enum)
    assert {*WAITING, *PREPARING} <= set(answer.members["SecondaryStatus"].enum)
    assert all(row.source.startswith("https://docs.aws.amazon.com/") for row in ENDS)


def test_why_it_waits() -> None:
    def row(state: str, message: str = "") -> dict[str, Any]:
        change = {"Status": state, "StatusMessage": message}
        return {"TrainingJobStatus": "InProgress", "SecondaryStatus": state, "SecondaryStatusTransitions": [change]}

    assert why_waiting(row("Starting", "Insufficient capacity error from EC2")) == (
        "Insufficient capacity error from EC2",
        "Starting",
    )
    assert "has not given it" in why_waiting(row("Pending"))[0]
    assert "spot" in why_waiting(row("Interrupted"))[0]
    assert "image" in why_waiting(row("DownloadingTrainingImage"))[0]
    assert not is_running(row("Starting")) and not is_running(row("Interrupted"))
    assert is_running(row("Training")) and is_running(row("Uploading"))
