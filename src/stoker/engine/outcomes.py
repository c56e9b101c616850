"""What follows from how things ended: an attempt's facts, a fan-out's status, and the wait before another attempt."""

from __future__ import annotations

import time
import zlib
from typing import Any, Final, Mapping

from stoker.core.events import Task
from stoker.core.plan import JobStatus, StepPlan
from stoker.core.status import CANCELLED, KILLED, TIMED_OUT, StepStatus
from stoker.core.words import time_text
from stoker.engine.doing import Doing
from stoker.runtime.failure import of_exit

_WORST_FIRST: Final[tuple[StepStatus, ...]] = ("failed", "cancelled", "skipped")


def outcome(causes: Mapping[str, str]) -> tuple[StepStatus, str]:
    """A fan-out's status and cause from those of its elements (status → first cause): the worst one."""
    for status in _WORST_FIRST:
        if status in causes:
            return status, causes[status]
    return ("cached" if set(causes) == {"cached"} else "succeeded"), ""


def pause(task: Task, failures: int) -> float:
    """Seconds before the next attempt. The jitter is drawn from the key, so that a replay waits the same time."""
    wait = min(task.delay * task.backoff ** (failures - 1), task.max_delay)
    spread = zlib.crc32(f"{task.key}:{failures}".encode()) / 0xFFFFFFFF * 2 - 1
    return float(max(0.0, wait * (1 + task.jitter * spread)))


def facts_of(attempt: int, status: JobStatus, doing: Doing) -> dict[str, Any]:
    """Everything that is worth recording of an attempt that is over; its "cause" is empty where it went well."""
    result = status.result or {}
    facts: dict[str, Any] = {
        "attempt": attempt,
        "started": status.started or doing.facts.get("submitted"),
        "ended": status.ended or time.time(),
        "usage": dict(status.usage),
        "exit_code": status.exit_code,
        "outputs": result.get("outputs", {}),
        "cause": "",
    }
    if status.state != "failed":
        return facts
    error = result.get("error") or {}
    cause, message = status.cause, error.get("message") or status.message
    if doing.ending:
        # We ended it: what the platform saw of that is only how.
        cause, message = doing.ending, _ended_by(doing.ending, doing.step)
    elif cause == CANCELLED:
        # Not by us: a platform that takes its machine back, or a person with `kill`.
        cause, message = KILLED, "the step's process was ended by SIGTERM from outside"
    elif not result and not cause:
        code = status.exit_code
        if code is not None and code < 0:
            cause, message = of_exit(code=None, signal_number=-code)
        else:
            cause, message = of_exit(code=code, signal_number=None)
    return {**facts, "cause": cause, "message": message, "error": error}


def told(pipeline: str, key: str, status: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a hook is told of a step that is over, or, without a key, of a run."""
    return {
        "pipeline": pipeline,
        "step": key,
        "status": status,
        "cause": facts.get("cause", ""),
        "message": facts.get("message", ""),
        "traceback": (facts.get("error") or {}).get("traceback", ""),
    }


def _ended_by(cause: str, step: StepPlan) -> str:
    if cause == TIMED_OUT:
        return f"the step ran longer than its timeout of {time_text(step.settings.timeout or 0.0)}"
    if cause == CANCELLED:
        return "the step was ended before it was done"
    return ""
