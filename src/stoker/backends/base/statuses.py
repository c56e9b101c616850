"""The status of an ended job, from the worker's answer or the end of its process."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import attrs

from stoker.core.codec import from_json, parse_json
from stoker.core.errors import SettingsError
from stoker.core.plan import JobStatus, JobUsage
from stoker.core.protocol import StepError, StepResult, WorkerExit
from stoker.core.status import HOST_OOM, WORKER_LOST
from stoker.core.units import size_text

if TYPE_CHECKING:
    from stoker.core.devices import Lease


def of_result(result: StepResult, lease: Lease | None) -> JobStatus:
    """The status of a job whose worker answered."""
    return JobStatus(
        state="succeeded" if result.ok else "failed",
        result=result,
        cause=result.cause,
        exit_code=result.exit_code,
        started=result.start,
        ended=result.end,
        usage=JobUsage(
            cpu=result.cpu,
            peak=result.peak or None,
            ranks=result.rank_peaks,
            waits=result.rank_waits,
            lost=result.lost,
            restarting=result.restarting,
        ),
        lease=lease,
    )


def read_result(data: str | bytes) -> StepResult:
    """The result that a worker elsewhere wrote; of one that cannot be read, a failure that says so."""
    try:
        return from_json(StepResult, parse_json(data), strict=False)
    except SettingsError as error:
        return StepResult(
            ok=False, cause=WORKER_LOST, error=StepError(message=f"its result cannot be read: {error.message}")
        )


def of_exit(exited: WorkerExit, lease: Lease | None) -> JobStatus:
    """The status of a job whose worker ended without an answer; `exited` is the fork server's report."""
    return JobStatus(
        state="failed",
        exit_code=_code(exited),
        ended=time.time(),
        usage=JobUsage(peak=exited.peak or None),
        lease=lease,
    )


def of_boot(result: StepResult, lease: Lease | None, *, memory: int) -> JobStatus:
    """The status from the result that `worker.boot` wrote: the worker's answer, or how the worker died.

    `memory` is the step's limit in bytes, 0 for none.
    """
    exited = result.exited
    if exited is None:
        return of_result(result, lease)
    if exited.oom and exited.signal == signal.SIGKILL:
        return killed_for_memory(exited.oom, lease, memory=memory)
    return JobStatus(
        state="failed",
        cause="" if exited.known else WORKER_LOST,
        exit_code=_code(exited),
        ended=time.time(),
        usage=JobUsage(peak=exited.peak or None, cpu=exited.cpu) if exited.known else JobUsage(),
        lease=lease,
    )


def _code(exited: WorkerExit) -> int | None:
    return exited.code if exited.signal is None else -exited.signal


def killed_for_memory(evidence: str, lease: Lease | None, *, memory: int) -> JobStatus:
    """The status of a job that the kernel or a platform ended for want of memory; `memory`: as in `of_boot`."""
    limit = f", whose limit is {size_text(memory)}" if memory else ""
    message = f"the step was ended for want of memory where it ran{limit}: {evidence}"
    return attrs.evolve(failed(HOST_OOM, message, lease), exit_code=-int(signal.SIGKILL))


def failed(cause: str, message: str = "", lease: Lease | None = None) -> JobStatus:
    """The status of a job that failed for another cause than its worker's answer."""
    return JobStatus(state="failed", cause=cause, message=message, ended=time.time(), lease=lease)
