"""What follows from how things ended: an attempt's facts, a fan-out's status, and whether and when to try again."""

from __future__ import annotations

import signal
import time
import zlib
from typing import Any, Callable, Collection, Final, Mapping, Sequence

import attrs

from stoker.core.events import Task
from stoker.core.plan import JobStatus, StepPlan
from stoker.core.status import CANCELLED, KILLED, NEVER_RETRIED, RETRIED_IF_NAMED, TIMED_OUT, StepStatus
from stoker.core.words import time_text
from stoker.engine.doing import Doing
from stoker.worker.failure import ASK_THE_KERNEL, Ending, Explanation, asks_the_log, explained
from stoker.worker.kernel_log import KernelLog
from stoker.worker.memory_pressure import OomKills

EXPLAINED: Final = ("why", "advice", "evidence")
"""What the error document of an attempt has of its explanation, beside `retryable`."""
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


def retried_after(cause: str, task: Task) -> bool:
    """Whether a retry, if any are left, is meant for this cause."""
    named_only = bool(task.retry_on) or cause in task.climbs
    wanted = cause in task.retry_on if named_only else cause not in RETRIED_IF_NAMED
    return wanted and cause not in NEVER_RETRIED


class Witness:
    """What else is known of an attempt's end: the last lines that it wrote, and what this machine's kernel counted."""

    def __init__(self, tail: Callable[[str, int, int | None], Sequence[str]], here: Collection[str]) -> None:
        self._tail = tail
        self._here = here
        self._kills = OomKills()
        self._kernel = KernelLog()

    def begin(self, now: float) -> dict[str, Any]:
        """What to remember of the moment in which an attempt is submitted."""
        return {"submitted": now, "oom_kills": self._kills.now()}

    def explained(self, key: str, attempt: int, doing: Doing, error: Mapping[str, Any], ending: Ending) -> Explanation:
        """Why an attempt failed; asks the kernel only where it may know more."""
        # A rank that died has said it in its own lines, and others' end with complaints about that.
        lines = self._tail(key, attempt, error.get("rank")) if asks_the_log(error, ending.cause) else ()
        found = explained(error, lines, ending)
        if found.cause not in ASK_THE_KERNEL or doing.step.backend not in self._here:
            return found
        # SIGTERM is never the OOM killer's. Evidence for "killed" is that a child was, by SIGKILL.
        by_kill = found.cause == KILLED and (ending.signal == signal.SIGKILL or found.evidence)
        oom = self._kills.since(doing.facts.get("oom_kills")) if by_kill else ""
        kernel = self._kernel.since(time.time() - doing.facts.get("submitted", time.time()))
        return explained(error, lines, attrs.evolve(ending, oom=oom, kernel=tuple(kernel)))


def facts_of(key: str, attempt: int, status: JobStatus, doing: Doing, witness: Witness) -> dict[str, Any]:
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
    code = status.exit_code
    by_signal = code is not None and code < 0
    ending = Ending(
        cause=status.cause,
        message=status.message,
        code=None if by_signal else code,
        signal=-code if code is not None and by_signal else None,
    )
    message = error.get("message") or status.message
    if doing.ending:
        # We ended it: what the platform saw of that is only how.
        ending, message = Ending(cause=doing.ending, message=_ended_by(doing.ending, doing.step)), ""
    elif status.cause == CANCELLED:
        # Not by us: a platform that takes its machine back, or a person with `kill` or `scancel`.
        said = status.message or "the step's process was ended by SIGTERM from outside"
        ending, message = Ending(cause=KILLED, message=said, signal=signal.SIGTERM), ""
    found = witness.explained(key, attempt, doing, error, ending)
    message = message or found.sentence
    document = {"why": found.sentence if found.evidence else "", "advice": found.advice, "evidence": found.evidence}
    document = {name: text for name, text in document.items() if text and text != message}
    return {
        **facts,
        "cause": found.cause,
        "message": message,
        "error": {**error, **document, "retryable": found.retryable},
    }


def shown(facts: Mapping[str, Any], *, parent: str, index: int | None) -> dict[str, Any]:
    """What an observer is told of a step that is over."""
    started, ended = facts.get("started"), facts.get("ended")
    error = facts.get("error") or {}
    return {
        "parent": parent,
        "index": index,
        "seconds": ended - started if started and ended else None,
        "cause": facts.get("cause", ""),
        "message": facts.get("message", ""),
        "traceback": error.get("traceback", ""),
        **{name: error.get(name, "") for name in EXPLAINED},
        **{name: error[name] for name in ("rank", "world_size") if name in error},
        "attempt": facts.get("attempt"),
        "receipt": facts.get("receipt", ""),
        "warning": facts.get("warning", ""),
        **(facts.get("usage") or {}),
    }


def told(pipeline: str, key: str, status: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a hook is told of a step that is over, or, without a key, of a run."""
    return {
        "pipeline": pipeline,
        "step": key,
        "status": status,
        "cause": facts.get("cause", ""),
        "message": facts.get("message", ""),
        "traceback": (facts.get("error") or {}).get("traceback", ""),
        "advice": (facts.get("error") or {}).get("advice", ""),
    }


def _ended_by(cause: str, step: StepPlan) -> str:
    if cause == TIMED_OUT:
        return f"the step ran longer than its timeout of {time_text(step.settings.timeout or 0.0)}"
    if cause == CANCELLED:
        return "the step was ended before it was done"
    return ""
