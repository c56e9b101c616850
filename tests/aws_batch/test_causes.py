"""How jobs end, by the words that AWS uses, and why others wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from tests.aws_batch.test_queues import environment, queue

from stoker.backends.aws.platform import AwsEnd
from stoker.backends.aws_batch.causes import ENDS, REASONS, end_of, gang_end, last_container, why_waiting
from stoker.core import status
from stoker.core.status import CAUSES


def failed(reason: str = "Essential container in task exited", /, **container: Any) -> dict[str, Any]:
    """A job that failed, as DescribeJobs has it."""
    requirements = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "4096"}]
    common = {"image": "team/train:1", "resourceRequirements": requirements}
    return {
        "status": "FAILED",
        "statusReason": reason,
        "stoppedAt": 1700000000500,
        "container": {**common, **container},
    }


PULL = "CannotPullContainerError: Error response from daemon: "
INIT = "ResourceInitializationError: "
START = "CannotStartContainerError: Error response from daemon: failed to create task for container: "
CASES: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "the code": (failed(exitCode=1), status.USER_ERROR, "exit code 1; see the end of its log"),
    "no command": (failed(exitCode=127), status.USER_ERROR, "command not found"),
    "memory": (
        failed(exitCode=137, reason="OutOfMemoryError: Container killed due to memory usage"),
        status.HOST_OOM,
        "more than its memory limit (4096 MiB)",
    ),
    "killed": (failed(exitCode=137), status.KILLED, "AWS names no memory limit"),
    "ended": (failed(exitCode=143), status.KILLED, "SIGTERM"),
    "crashed": (failed(exitCode=139), status.CRASHED, "SIGSEGV"),
    "time": (failed("Job attempt duration exceeded timeout", exitCode=137), status.TIMED_OUT, "longer than its limit"),
    "spot": (
        failed("Host EC2 (instance i-04b17daec78ef4a0b) terminated."),
        status.PREEMPTED,
        "its instance i-04b17daec78ef4a0b was terminated",
    ),
    "spot with an exit code": (
        failed("Host EC2 (instance i-04b17daec78ef4a0b) terminated.", exitCode=143),
        status.PREEMPTED,
        "was terminated",
    ),
    "instance": (failed("Host EC2 (instance i-06aab15) stopped."), status.NODE_LOST, "i-06aab15 stopped or failed"),
    "Fargate Spot": (failed("Your Spot Task was interrupted.", exitCode=137), status.PREEMPTED, "Fargate Spot"),
    "no image": (
        failed("Task failed to start", reason=PULL + "manifest for team/train:1 not found: manifest unknown"),
        status.REFUSED,
        "the image team/train:1 does not exist in the registry",
    ),
    "no login": (
        failed("Task failed to start", reason=PULL + "pull access denied: no basic auth credentials"),
        status.REFUSED,
        "`execution_role`, else the instance's role",
    ),
    "pull on Fargate": (
        failed("CannotPullContainerError: pull image manifest has been retried 7 time(s): i/o timeout"),
        status.SETUP_FAILED,
        "VPC endpoints",
    ),
    "architecture": (
        failed("Task failed to start", reason=PULL + "no matching manifest for linux/arm64/v8"),
        status.REFUSED,
        "not built for the node's architecture",
    ),
    "secret": (
        failed(INIT + "unable to pull secrets or registry auth: execution resource retrieval failed: AccessDenied"),
        status.REFUSED,
        "secretsmanager:GetSecretValue",
    ),
    "EFS": (failed(INIT + "failed to invoke EFS utils commands to set up EFS volumes"), status.SETUP_FAILED, "2049"),
    "log group": (
        failed(
            "Task failed to start",
            reason=INIT + "failed to validate logger args: The specified log group does not exist",
        ),
        status.SETUP_FAILED,
        "create the log group",
    ),
    "no Neuron": (
        failed(
            "Task failed to start",
            reason="CannotStartContainerError: Error response from daemon: error gathering device information while "
            'adding custom device "/dev/neuron4": no such file or directory',
        ),
        status.NO_GPU,
        "no /dev/neuron4",
    ),
    "no NVIDIA": (
        failed("Task failed to start", reason='CannotStartContainerError: could not select device driver ""'),
        status.NO_DRIVER,
        "ECS_AL2023_NVIDIA",
    ),
    "no Python": (
        failed("Task failed to start", reason=START + 'exec: "python3": executable file not found in $PATH'),
        status.REFUSED,
        "the command python3 does not exist in the image",
    ),
    "exec format": (failed("Task failed to start", reason=START + "exec format error"), status.REFUSED, "architecture"),
    "disk": (failed("Task failed to start", reason=START + "no space left on device"), status.DISK_FULL, "volume"),
    "engine": (
        failed("Task failed to start", reason="DockerTimeoutError: Could not transition to created; timed out"),
        status.SETUP_FAILED,
        "did not answer",
    ),
    "start": (failed("Task failed to start", reason="CannotStartContainerError: odd"), status.REFUSED, "odd"),
    "no word": (failed("Task failed to start"), status.SETUP_FAILED, "does not say why"),
    "agent": (failed("ECS agent disconnected"), status.NODE_LOST, "ECS agent"),
    "role": (
        failed("ECS was unable to assume the role 'arn:aws:iam::123456789012:role/x' that was provided for this task."),
        status.REFUSED,
        "AWS refused it",
    ),
    "dependency": (failed("Dependent Job failed"), status.WORKER_LOST, "belongs to it"),
    "unknown": (failed("Something new"), status.WORKER_LOST, "the job failed: Something new"),
    "nothing at all": ({"status": "FAILED"}, status.WORKER_LOST, "it does not say why"),
    "0": (failed("Something new", exitCode=0), status.WORKER_LOST, "exit code 0"),
    "given up": (
        failed("Canceled by JobStateTimeLimit action due to reason: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
        | {"isCancelled": True},
        status.REFUSED,
        "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
    ),
    "cancelled": (failed("not needed") | {"isCancelled": True}, status.CANCELLED, "was cancelled (not needed)"),
    "terminated": (
        failed("by a person", exitCode=137) | {"isTerminated": True},
        status.CANCELLED,
        "was terminated (by a person)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_end(case: str) -> None:
    job, cause, text = CASES[case]
    end = end_of(job)
    assert end is not None and end.cause == cause and end.cause in CAUSES, end
    assert text in end.message
    assert end.free == (end.cause in (status.PREEMPTED, status.NODE_LOST)) == (end.state == "interrupted")
    assert (end.state == "cancelled") == (cause == status.CANCELLED)
    assert "{" not in end.message
    assert job.get("stoppedAt") is None or end.moment == 1700000000.5


def test_every_row_is_met_and_has_a_source() -> None:
    met = set()
    for job, _, _ in CASES.values():
        end = end_of(job)
        assert end is not None
        met.add(end.source)
    assert {row.source for row in ENDS} <= met
    assert all(row.source.startswith("https://") for row in ENDS)
    words = [f"{job.get('statusReason')} {(job.get('container') or {}).get('reason')}" for job, _, _ in CASES.values()]
    for row in ENDS:
        assert any(row.pattern.search(each) for each in words), row.pattern.pattern


@pytest.mark.parametrize("state", ["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING"])
def test_no_end_yet(state: str) -> None:
    assert end_of({"status": state}) is None and gang_end({"status": state}, []) is None


def test_success_and_attempts() -> None:
    assert end_of({"status": "SUCCEEDED", "container": {"exitCode": 0}}) == AwsEnd(
        state="succeeded", message="finished", exit_code=0
    )
    attempts = [{"container": {"exitCode": 1}}, {"container": {"exitCode": 139, "logStreamName": "s/2"}}]
    job = {"status": "FAILED", "container": {"image": "i"}, "attempts": attempts}
    assert last_container(job) == {"image": "i", "exitCode": 139, "logStreamName": "s/2"}
    end = end_of(job)
    assert end is not None and end.cause == status.CRASHED and end.exit_code == 139
    element = end_of(failed(exitCode=3) | {"arrayProperties": {"index": 7}})
    assert element is not None and element.part == 7


def test_the_first_node_that_failed_by_itself_is_blamed() -> None:
    nodes = [
        failed("Terminated by main node", exitCode=143) | {"nodeDetails": {"nodeIndex": 0}, "stoppedAt": 1700000000900},
        failed(exitCode=1) | {"nodeDetails": {"nodeIndex": 1}, "stoppedAt": 1700000002000},
        failed(exitCode=139) | {"nodeDetails": {"nodeIndex": 2}, "stoppedAt": 1700000001000},
    ]
    end = gang_end(failed(exitCode=143), nodes)
    assert end is not None and end.cause == status.CRASHED and end.part == 2
    assert end.message.startswith("node 2 of 3: ") and end.message.endswith("the others were ended")
    assert gang_end(failed(exitCode=143), nodes[:1]) == end_of(failed(exitCode=143))
    cancelled = gang_end(failed("no") | {"isTerminated": True}, nodes)
    assert cancelled is not None and cancelled.state == "cancelled"
    assert attrs.asdict(end)["exit_code"] == 139


def waiting(reason: str = "", vcpus: int = 4, gpus: int = 0, nodes: int = 1) -> dict[str, Any]:
    amounts = {"VCPU": vcpus, "MEMORY": 2048, **({"GPU": gpus} if gpus else {})}
    container = {"resourceRequirements": [{"type": name, "value": str(value)} for name, value in amounts.items()]}
    group = {"numNodes": nodes, "nodeRangeProperties": [{"container": container}]}
    parts = {"container": container} if nodes == 1 else {"nodeProperties": group}
    return {"status": "RUNNABLE", "statusReason": reason, **parts}


def resources(maximum: int, desired: int, *types: str) -> dict[str, Any]:
    return {"type": "EC2", "maxvCpus": maximum, "desiredvCpus": desired, "instanceTypes": list(types)}


ROOM = environment("cpu", computeResources=resources(64, 0, "m5.4xlarge"))
FULL = environment("cpu", computeResources=resources(64, 64, "m5.4xlarge"))
WAITS: Mapping[str, tuple[dict[str, Any], Mapping[str, Any], list[dict[str, Any]], str, bool]] = {
    "in line": (
        waiting(),
        queue("q", "cpu"),
        [ROOM],
        "waits in the queue q for an instance, or for jobs before",
        False,
    ),
    "full": (waiting(), queue("q", "cpu"), [FULL], "all 64 vCPUs of cpu are in use", False),
    "too many vCPUs": (
        waiting(vcpus=16, nodes=8),
        queue("q", "cpu"),
        [ROOM],
        "it needs 128 vCPUs, more than maxvCpus of cpu 64",
        True,
    ),
    "no type": (
        waiting(gpus=1),
        queue("q", "cpu"),
        [ROOM],
        "it needs 4 vCPUs, 2048 MiB, 1 GPUs, and none of q (m5.4xlarge) has that",
        True,
    ),
    "disabled": (waiting(), queue("q", "cpu", state="DISABLED"), [ROOM], "the queue q is DISABLED", True),
    "environment": (
        waiting(),
        queue("q", "cpu"),
        [environment("cpu", "m5", status="INVALID", statusReason="no role")],
        "no compute environment of the queue q works: cpu is INVALID: no role",
        True,
    ),
    "capacity": (
        waiting(
            "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested for "
            "instance type [p4d.24xlarge]"
        ),
        queue("q", "cpu"),
        [FULL],
        "EC2 has no p4d.24xlarge free",
        False,
    ),
    "nothing known": (waiting(), {}, [], "waits in its queue", False),
    "other words": (waiting("Something new"), {}, [], "AWS Batch says: Something new", False),
}


@pytest.mark.parametrize("case", WAITS)
def test_why_runnable(case: str) -> None:
    job, its_queue, environments, text, hopeless = WAITS[case]
    reason = why_waiting(job, its_queue, environments)
    assert reason is not None and text in reason.text and reason.hopeless == hopeless, reason
    assert reason.fix or not hopeless


@pytest.mark.parametrize("code", REASONS)
def test_what_aws_says_itself(code: str) -> None:
    reason = why_waiting(waiting(f"{code} - words"), {}, [])
    assert reason is not None and reason.key == REASONS[code].key and "{" not in reason.text


def test_other_states() -> None:
    starting = why_waiting({"status": "STARTING"}, {}, [])
    assert starting is not None and "pulls the image" in starting.text
    pending = why_waiting({"status": "PENDING", "dependsOn": [{"jobId": "j-1"}]}, {}, [])
    assert pending is not None and pending.text == "waits for j-1"
    assert why_waiting({"status": "RUNNING"}, {}, []) is None
