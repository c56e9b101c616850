"""How a job ended, from what its worker answered or from the end of its process."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Mapping

import attrs

from stoker.core.plan import JobStatus
from stoker.core.status import HOST_OOM, WORKER_LOST
from stoker.core.units import size_text

if TYPE_CHECKING:
    from stoker.core.devices import Lease


def of_result(result: Mapping[str, Any], lease: Lease | None) -> JobStatus:
    """The worker got through and answered."""
    return JobStatus(
        state="succeeded" if result["ok"] else "failed",
        result=result,
        cause=result.get("cause", ""),
        exit_code=result.get("exit_code"),
        started=result["start"],
        ended=result["end"],
        usage={"cpu": result["cpu"], **({"peak": result["peak"]} if "peak" in result else {})},
        lease=lease,
    )


def of_exit(exited: Mapping[str, Any], lease: Lease | None) -> JobStatus:
    """The worker ended in the middle of it; `exited` is what the fork server says of that."""
    return JobStatus(
        state="failed",
        exit_code=exited["code"] if exited["signal"] is None else -exited["signal"],
        ended=time.time(),
        usage={"peak": exited["peak"]},
        lease=lease,
    )


def of_boot(result: Mapping[str, Any], lease: Lease | None, *, memory: int) -> JobStatus:
    """What `worker.boot` left in its result: the worker's answer, or how the worker died. `memory`: the step's limit
    in bytes, 0 where it has none."""
    if "exited" not in result:
        return of_result(result, lease)
    exited = result["exited"]
    if exited.get("oom") and exited.get("signal") == signal.SIGKILL:
        return killed_for_memory(str(exited["oom"]), lease, memory=memory)
    code = exited.get("code") if exited.get("signal") is None else -int(exited["signal"])
    return JobStatus(
        state="failed",
        cause="" if exited else WORKER_LOST,
        exit_code=code,
        ended=time.time(),
        usage={"peak": exited["peak"], "cpu": exited["cpu"]} if "peak" in exited else {},
        lease=lease,
    )


def killed_for_memory(evidence: str, lease: Lease | None, *, memory: int) -> JobStatus:
    """The kernel, or a platform, ended it for want of memory; `memory` is the step's limit in bytes, 0 for none."""
    limit = f", whose limit is {size_text(memory)}" if memory else ""
    message = f"the step was ended for want of memory where it ran{limit}: {evidence}"
    return attrs.evolve(failed(HOST_OOM, message, lease), exit_code=-int(signal.SIGKILL))


def failed(cause: str, message: str = "", lease: Lease | None = None) -> JobStatus:
    """It ended without a worker's doing."""
    return JobStatus(state="failed", cause=cause, message=message, ended=time.time(), lease=lease)
