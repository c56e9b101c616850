"""How a job ended, from what its worker answered or from the end of its process."""

from __future__ import annotations

import time
from typing import Any, Mapping

from stoker.core.plan import JobStatus


def of_result(result: Mapping[str, Any], lease: Mapping[str, Any] | None) -> JobStatus:
    """The worker got through and answered."""
    return JobStatus(
        state="succeeded" if result["ok"] else "failed",
        result=result,
        cause=result.get("cause", ""),
        exit_code=result.get("exit_code"),
        started=result["start"],
        ended=result["end"],
        usage={"cpu": result["cpu"], **({"peak": result["peak"]} if "peak" in result else {})},
        lease=lease or {},
    )


def of_exit(exited: Mapping[str, Any], lease: Mapping[str, Any] | None) -> JobStatus:
    """The worker ended in the middle of it; `exited` is what the fork server says of that."""
    return JobStatus(
        state="failed",
        exit_code=exited["code"] if exited["signal"] is None else -exited["signal"],
        ended=time.time(),
        usage={"peak": exited["peak"]},
        lease=lease or {},
    )


def failed(cause: str, message: str = "", lease: Mapping[str, Any] | None = None) -> JobStatus:
    """It ended without a worker's doing."""
    return JobStatus(state="failed", cause=cause, message=message, ended=time.time(), lease=lease or {})
