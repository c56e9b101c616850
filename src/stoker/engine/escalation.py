"""Climbs a step's ladder after it ran out of memory, and starts with the rungs that an earlier run needed.

A step without `Retry(on_oom=…)` costs nothing. `climb` proposes a changed request; it holds once the machine retries,
which `accept` records.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Mapping, Sequence

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core import ladder
from stoker.core.artifact import StoredArtifact
from stoker.core.codec import to_json
from stoker.core.findings import errors
from stoker.core.ladder import Change, Halve, Rung
from stoker.core.observer import Observer
from stoker.core.plan import StepPlan
from stoker.core.values import frozen
from stoker.engine.events import TaskSpec
from stoker.engine.execution import escalated_task
from stoker.engine.recorder import Recorder

Inputs = Mapping[str, Any]


@frozen(kw_only=True)
class StepRequest:
    """A step and its inputs after the rungs that were taken."""

    step: StepPlan
    inputs: Inputs
    used: tuple[int, ...] = ()
    """The positions of these rungs in the ladder."""
    changes: tuple[Change, ...] = ()
    """What each of them changed."""


@frozen(kw_only=True)
class SkippedRung:
    """A rung that was not taken, and why."""

    rung: Rung
    why: str

    def __str__(self) -> str:
        return f"{self.rung}: {self.why}"

    def as_dict(self) -> dict[str, str]:
        """The rung as JSON."""
        return {"rung": str(self.rung), "why": self.why}


class Escalation:
    """The steps of one run that stand on a ladder."""

    def __init__(
        self,
        recorder: Recorder,
        backends: Mapping[str, RunningBackend],
        observer: Observer,
        *,
        pipeline: str,
        remembers: bool,
    ) -> None:
        self._recorder = recorder
        self._backends = backends
        self._observer = observer
        self._pipeline = pipeline
        self._remembers = remembers
        self._requests: dict[str, StepRequest] = {}
        self._proposals: dict[str, tuple[StepRequest, Rung, Sequence[SkippedRung]]] = {}
        # By step: the key of its request. By that key: the run that learned it and the rungs that worked; how many
        # rungs are known to be needed; and whether this was shown.
        self._keys: dict[str, str] = {}
        self._learned: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._depth: dict[str, int] = {}
        self._announced: set[str] = set()

    # When a step is prepared

    def start(self, key: str, step: StepPlan, inputs: Inputs) -> tuple[StepPlan, Inputs]:
        """The step and its inputs as they are to run: as asked, or as they worked the last time."""
        if not step.settings.retry.on_oom:
            return step, inputs
        request = StepRequest(step=step, inputs=inputs)
        request_digest = request_key(request, pipeline=self._pipeline, backend=self._backends[step.backend].name)
        rungs = ladder.single(step.settings.retry.on_oom)
        for position in self._recall(request_digest)[1]:
            changed_request = (
                self._apply_rung(request, position, rungs[position])
                if position < len(rungs)
                else "the ladder is shorter now"
            )
            request = changed_request if isinstance(changed_request, StepRequest) else request
        self._requests[key], self._keys[key] = request, request_digest
        return request.step, request.inputs

    def announce(self, key: str, parent: str) -> TaskSpec | None:
        """Record and show the changes with which the step starts; the changed task, None where nothing is changed."""
        request = self._requests.get(key)
        if request is None or not request.changes:
            return None
        request_digest = self._keys[key]
        run = self._learned[request_digest][0]
        rungs = ladder.single(request.step.settings.retry.on_oom)
        for position, change in zip(request.used, request.changes):
            facts = {"rung": str(rungs[position]), **change.as_dict(), "cause": "remembered", "attempt": 0, "run": run}
            self._recorder.record_event("escalated", key, facts)
        if request_digest not in self._announced:
            self._announced.add(request_digest)
            changed = ", ".join(map(str, ladder.net(request.changes)))
            how = "--no-cache starts with what it asks for"
            self._observer.message(f"{parent or key}: {changed}, which worked in run {run}; {how}")
        return escalated_task(request.step, key, parent)

    def _recall(self, request_digest: str) -> tuple[str, tuple[int, ...]]:
        learned = self._learned.get(request_digest)
        if learned is None:
            row = self._recorder.learned_changes(request_digest) if self._remembers else None
            learned = ("", ()) if row is None else (row.run_id, tuple(row.changes["used"]))
            self._learned[request_digest] = learned
            # Without earlier knowledge the first success counts, and replaces or forgets what another run learned.
            self._depth[request_digest] = len(learned[1]) if self._remembers else -1
        return learned

    # When an attempt is over

    def changes(self, key: str) -> list[dict[str, Any]]:
        """How a step's request differs from the one in its settings, as JSON."""
        request = self._requests.get(key)
        return [] if request is None else [change.as_dict() for change in ladder.net(request.changes)]

    def climb(self, key: str, parent: str, attempt: int, cause: str) -> TaskSpec | None:
        """The task with the next rung that helps against a cause; None where the ladder has none, or is not for it."""
        self._proposals.pop(key, None)
        request = self._requests.get(key)
        if request is None or cause not in ladder.climbed_after(request.step.settings.retry.on_oom):
            return None
        skipped: list[SkippedRung] = []
        for position, rung in enumerate(ladder.single(request.step.settings.retry.on_oom)):
            if position in request.used:
                continue
            helps = rung.kind in ladder.HELPS[cause]
            changed_request = (
                self._apply_rung(request, position, rung) if helps else f"it does not help against {cause}"
            )
            if isinstance(changed_request, StepRequest):
                self._proposals[key] = (changed_request, rung, skipped)
                return escalated_task(changed_request.step, key, parent)
            skipped.append(SkippedRung(rung=rung, why=changed_request))
        facts = {"cause": cause, "attempt": attempt, "passed": [one.as_dict() for one in skipped]}
        self._recorder.record_event("ladder-ended", key, facts)
        why = "; ".join(map(str, skipped)) or "all were used"
        self._observer.message(f"{key}: no rung of on_oom is left after {cause}: {why}")
        return None

    def accept(self, key: str, attempt: int, cause: str) -> tuple[Change, StepRequest] | None:
        """Record the proposed request, which holds now that the machine retries; None if none was proposed."""
        proposed = self._proposals.pop(key, None)
        if proposed is None:
            return None
        request, rung, skipped = proposed
        change = request.changes[-1]
        facts = {"rung": str(rung), **change.as_dict(), "cause": cause, "attempt": attempt}
        self._recorder.record_event("escalated", key, {**facts, "passed": [one.as_dict() for one in skipped]})
        self._requests[key] = request
        return change, request

    def record_success(self, key: str) -> None:
        """Remember the rungs with which a step succeeded, unless a sibling is known to have needed more."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        request_digest = self._keys.pop(key)
        depth = self._depth[request_digest]
        if len(request.used) <= depth:
            return
        self._depth[request_digest] = len(request.used)
        if request.used:
            changes = [change.as_dict() for change in ladder.net(request.changes)]
            self._recorder.learn_changes(request_digest, {"used": list(request.used), "changes": changes})
        else:
            self._recorder.forget_changes(request_digest)

    # Rungs

    def _apply_rung(self, request: StepRequest, position: int, rung: Rung) -> StepRequest | str:
        """The request with one more rung taken, or why the rung cannot be taken."""
        step, inputs = request.step, request.inputs
        if isinstance(rung, Halve):
            change_or_reason = ladder.halve(rung, whole_number(inputs.get(rung.parameter)))
            if isinstance(change_or_reason, str):
                return change_or_reason
            change = change_or_reason
            inputs = {**inputs, rung.parameter: {"value": number_wire(change.new)}}
        else:
            enlarged = ladder.enlarge(rung, step.settings.resources)
            if isinstance(enlarged, str):
                return enlarged
            change, resources = enlarged
            step = attrs.evolve(step, settings=attrs.evolve(step.settings, resources=resources))
            refused = errors(self._backends[step.backend].check(step))
            if refused:
                return refused[0].what
        return StepRequest(step=step, inputs=inputs, used=(*request.used, position), changes=(*request.changes, change))


def request_key(request: StepRequest, *, pipeline: str, backend: str) -> str:
    """The digest of a step's request, of all that its ladder can change: equal requests share what was learned."""
    settings = request.step.settings
    halved = [rung.parameter for rung in settings.retry.on_oom if isinstance(rung, Halve)]
    document = [
        pipeline,
        request.step.name,
        backend,
        [str(rung) for rung in settings.retry.on_oom],
        to_json(settings.resources),
        {name: whole_number(request.inputs.get(name)) for name in halved},
    ]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def whole_number(tree: Mapping[str, Any] | None) -> int | None:
    """An input's value if it is a whole number, else None."""
    wire = (tree or {}).get("value") or {}
    text = wire.get("i")
    if wire.get("s") != "json" or text is None:
        return None
    value = json.loads(text)
    return value if type(value) is int else None


def number_wire(number: int) -> dict[str, Any]:
    """The number as `store.artifacts.save` writes it, so that a step that asks for it itself has equal inputs."""
    data = str(number).encode()
    digest = hashlib.sha256(data).hexdigest()
    return StoredArtifact(digest=digest, serializer="json", type="builtins.int", size=len(data), inline=data).wire()
