"""What follows from how things ended: an attempt's facts, a fan-out's status, and whether and when to try again."""

from __future__ import annotations

import signal
import zlib
from typing import TYPE_CHECKING, Any, Callable, Collection, Final, Mapping, Sequence

import attrs

from stoker.core.codec import to_json
from stoker.core.plan import JobStatus, LogLine, StepPlan
from stoker.core.protocol import HookFacts, StepError
from stoker.core.status import (
    CANCELLED,
    CAUSES,
    HOST_OOM,
    KILLED,
    NEVER_RETRIED,
    RETRIED_IF_NAMED,
    STEP_GOOD,
    STOPPED,
    TIMED_OUT,
    USER_ERROR,
    StepStatus,
)
from stoker.core.words import memory_text, time_text
from stoker.engine import clock
from stoker.engine.events import TaskSpec
from stoker.engine.execution import StepExecution
from stoker.worker.failure import ASK_THE_KERNEL, Ending, Explanation, asks_the_log, explain_failure
from stoker.worker.kernel import KernelLog, OomKills

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.worker.signatures import Signature

OBSERVED: Final = ("cause", "message", "attempt", "receipt", "warning")
"""The facts of a settled step that observers get, where it has them."""
OBSERVED_OF_ERRORS: Final = ("traceback", "why", "advice", "evidence", "whole", "rank", "world_size", "earlier")
"""The fields of an attempt's error document that observers get, where it has them."""
_WORST_FIRST: Final[tuple[StepStatus, ...]] = ("failed", "cancelled", "skipped")


def fanout_outcome(causes: Mapping[str, str]) -> tuple[StepStatus, str]:
    """A fan-out's status and cause from those of its elements (status → first cause): the worst one."""
    for status in _WORST_FIRST:
        if status in causes:
            return status, causes[status]
    return ("cached" if set(causes) == {"cached"} else "succeeded"), ""


def sweep_outcome(causes: Mapping[str, str]) -> tuple[StepStatus, str]:
    """The same of a sweep: one trial that succeeded is enough."""
    if "cancelled" in causes or not STEP_GOOD.isdisjoint(causes):
        causes = {status: cause for status, cause in causes.items() if status != "failed"}
    return fanout_outcome({status: cause for status, cause in causes.items() if status != "stopped"})


def retry_delay(task: TaskSpec, failures: int) -> float:
    """Seconds before the next attempt. The jitter is drawn from the key, so that a replay waits the same time."""
    wait = min(task.delay * task.backoff ** (failures - 1), task.max_delay)
    spread = zlib.crc32(f"{task.key}:{failures}".encode()) / 0xFFFFFFFF * 2 - 1
    return float(max(0.0, wait * (1 + task.jitter * spread)))


def retries_after(cause: str, task: TaskSpec) -> bool:
    """Whether a task is retried after this cause, if it has retries left."""
    named_only = bool(task.retry_on) or cause in task.climbs
    allowed = cause in task.retry_on if named_only else not _needs_naming(cause)
    return allowed and cause not in NEVER_RETRIED


def _needs_naming(cause: str) -> bool:
    """Whether another attempt meets the same code and the same environment: only made where a retry names the cause."""
    if not cause or cause in CAUSES:
        return cause in RETRIED_IF_NAMED
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    return signatures.retryable_of(cause) == "never"


class Witness:
    """What explains an attempt's end besides its status: its last lines, and what this machine's kernel logged."""

    def __init__(
        self,
        tail: Callable[[str, int, int | None], Sequence[str]],
        local_backends: Collection[str],
        last_saved: Callable[[str, float], float | None],
    ) -> None:
        self._tail = tail
        self._last_saved = last_saved
        self._local_backends = local_backends
        self._kills = OomKills()
        self._kernel = KernelLog()

    def begin(self, now: float) -> dict[str, Any]:
        """The facts of the moment in which an attempt is submitted."""
        self._kernel.look(now)
        return {"submitted": now, "oom_kills": self._kills.now()}

    def explain(
        self, key: str, attempt: int, execution: StepExecution, error: StepError, ending: Ending
    ) -> Explanation:
        """Why an attempt failed; asks the kernel only where it may know more."""
        # The reason is in the lines of the rank that died; those of others end with complaints about that.
        lines = self._tail(key, attempt, error.rank) if asks_the_log(error, ending.cause) else ()
        explanation = explain_failure(error, lines, ending)
        if explanation.cause not in ASK_THE_KERNEL or execution.step.backend not in self._local_backends:
            return explanation
        # SIGTERM is never the OOM killer's. Evidence for "killed" is that a child was, by SIGKILL.
        by_kill = explanation.cause == KILLED and (ending.signal == signal.SIGKILL or explanation.evidence)
        oom = self._kills.since(execution.facts.get("oom_kills")) if by_kill else ""
        kernel = self._kernel.since(execution.facts.get("submitted", clock.time()))
        return explain_failure(error, lines, attrs.evolve(ending, oom=oom, kernel=tuple(kernel)))

    def lost_work(self, key: str, execution: StepExecution, facts: Mapping[str, Any]) -> float | None:
        """Seconds from the last checkpoint of an attempt that failed, or its beginning, to its end; None where its
        folder for checkpoints is not to be seen from here."""
        began: float | None = facts["started"]
        ended: float = facts["ended"]
        saved = self._last_saved(key, ended)
        if not began or (saved is None and execution.step.backend not in self._local_backends):
            return None
        return max(0.0, ended - max(saved or 0.0, began))


def attempt_facts(
    key: str, attempt: int, status: JobStatus, execution: StepExecution, witness: Witness
) -> dict[str, Any]:
    """What is recorded of an attempt that is over; its "cause" is empty where it succeeded."""
    result = status.result
    facts: dict[str, Any] = {
        "attempt": attempt,
        "started": status.started or execution.facts.get("began") or _submitted(execution),
        "queued": execution.facts.get("queued", False),
        "place": execution.facts.get("place", {}),
        "data_seconds": execution.facts.get("data_seconds"),
        "ended": status.ended or clock.time(),
        "usage": to_json(status.usage),
        "exit_code": status.exit_code,
        "outputs": {} if result is None else result.outputs,
        "cause": "",
    }
    if result is not None and result.called and result.returned:
        facts["usage"] = {**facts["usage"], "called": result.called, "returned": result.returned}
    if status.state != "failed":
        return facts
    if status.usage.lost is None:
        facts["usage"] = {**facts["usage"], "lost": witness.lost_work(key, execution, facts)}
    error = (result.error if result is not None else None) or StepError()
    code = status.exit_code
    by_signal = code is not None and code < 0
    ending = Ending(
        cause=status.cause,
        message=status.message,
        code=None if by_signal else code,
        signal=-code if code is not None and by_signal else None,
        driver=_driver_report(status.lease),
    )
    message = error.message or status.message
    if execution.ending:
        # We ended it: what the platform saw of that is only how.
        ending, message = Ending(cause=execution.ending, message=_reason_to_end(execution.ending, execution.step)), ""
    elif status.cause == CANCELLED:
        # Not by us: a platform that takes its machine back, or a person with `kill` or `scancel`.
        reason = status.message or "the step's process was ended by SIGTERM from outside"
        ending, message = Ending(cause=KILLED, message=reason, signal=signal.SIGTERM), ""
    explanation = witness.explain(key, attempt, execution, error, ending)
    message = message or explanation.sentence
    advice = explanation.advice
    if explanation.cause == HOST_OOM and status.usage.peak:
        advice = f"{advice}; this attempt held {memory_text(status.usage.peak)} at most"
    document = {
        "why": explanation.sentence if explanation.evidence else "",
        "advice": advice,
        "evidence": explanation.evidence,
    }
    document = {name: text for name, text in document.items() if text and text != message}
    return {
        **facts,
        "cause": explanation.cause,
        "message": message,
        "error": {**to_json(error), **document, "retryable": explanation.retryable},
    }


def _driver_report(lease: Lease | None) -> tuple[Signature, str] | None:
    """What the driver reported of an attempt's devices, as far as a monitor's samples can be read from here."""
    if lease is None or lease.simulated or not lease.held:
        return None
    from stoker.devices import samples  # only for steps with devices, as the next one
    from stoker.worker import signatures

    nodes = [one for one in (lease, *lease.others) if one.samples]
    return signatures.reported(event for one in nodes for event in samples.read(one.samples).events)


def last_words(facts: Mapping[str, Any]) -> list[LogLine]:
    """Why an attempt failed, as lines of its own stderr: what ended it, and its traceback where it had one."""
    error = facts["error"]
    trace = error.get("traceback", "")
    text = trace if trace and facts["cause"] == USER_ERROR else f"{facts['message']}\n{trace}"
    return [LogLine(time=facts["ended"], stream="stderr", text=line) for line in text.rstrip().split("\n")]


def _submitted(execution: StepExecution) -> float | None:
    """When an attempt was submitted; None where it waited in a queue after that, and was never seen to run."""
    return None if execution.facts.get("queued") else execution.facts.get("submitted")


def observed_facts(facts: Mapping[str, Any], *, parent: str, index: int | None) -> dict[str, Any]:
    """The facts of a settled step that observers get."""
    started, ended = facts.get("started"), facts.get("ended")
    observed = {name: facts[name] for name in OBSERVED if name in facts}
    if error := facts.get("error"):
        observed |= {name: error[name] for name in OBSERVED_OF_ERRORS if name in error}
    return {
        "parent": parent,
        "index": index,
        "seconds": ended - started if started and ended else None,
        **observed,
        **(facts.get("usage") or {}),
    }


def hook_facts(run: str, pipeline: str, key: str, status: str, facts: Mapping[str, Any]) -> HookFacts:
    """What a hook gets of a settled step, or, without a key, of a run."""
    error = facts.get("error") or {}
    return HookFacts(
        run=run,
        pipeline=pipeline,
        step=key,
        status=status,
        cause=facts.get("cause", ""),
        message=facts.get("message", ""),
        traceback=error.get("traceback", ""),
        advice=error.get("advice", ""),
        type=error.get("type", ""),
    )


def _reason_to_end(cause: str, step: StepPlan) -> str:
    if cause == TIMED_OUT:
        return f"the step ran longer than its timeout of {time_text(step.settings.timeout or 0.0)}"
    if cause == CANCELLED:
        return "the step was ended before it was done"
    if cause == STOPPED:
        return "its sweep ended it early: other trials do better"
    return ""
