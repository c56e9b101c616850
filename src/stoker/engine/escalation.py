"""Climbs ladders: what a step asks for after it ran out of memory, and what it starts with when that is known already.

A step without `Retry(on_oom=…)` costs nothing here. What is changed is told by the machine's retry, not before: `climb`
proposes, `taken` makes it so.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Mapping, Sequence

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core import ladder
from stoker.core.artifact import Artifact
from stoker.core.codec import to_json
from stoker.core.events import Task
from stoker.core.findings import errors
from stoker.core.ladder import Change, Halve, Rung
from stoker.core.observer import Observer
from stoker.core.plan import StepPlan
from stoker.engine.recorder import Recorder
from stoker.engine.tasks import escalated_task

Inputs = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Request:
    """A step with its inputs, as they are now; `used` are the places of the rungs that made it so."""

    step: StepPlan
    inputs: Inputs
    used: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()


@attrs.frozen(kw_only=True)
class Passed:
    """A rung that was passed over, and why."""

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
        self._now: dict[str, Request] = {}
        self._next: dict[str, tuple[Request, Rung, Sequence[Passed]]] = {}
        # By step: the key of what it asks for. By that key: where it was learned and which rungs worked; how many rungs
        # are known to be needed; and whether the person was told.
        self._keys: dict[str, str] = {}
        self._learned: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._depth: dict[str, int] = {}
        self._said: set[str] = set()

    # When a step is prepared

    def start(self, key: str, step: StepPlan, inputs: Inputs) -> tuple[StepPlan, Inputs]:
        """The step and its inputs as they are to run: as asked, or as they worked the last time."""
        if not step.settings.retry.on_oom:
            return step, inputs
        request = Request(step=step, inputs=inputs)
        known = request_key(request, pipeline=self._pipeline, backend=self._backends[step.backend].name)
        rungs = ladder.single(step.settings.retry.on_oom)
        for place in self._recalled(known)[1]:
            made = self._made(request, place, rungs[place]) if place < len(rungs) else "the ladder is shorter now"
            request = made if isinstance(made, Request) else request
        self._now[key], self._keys[key] = request, known
        return request.step, request.inputs

    def begun(self, key: str, parent: str) -> Task | None:
        """Record and say what the step starts with instead of what it asks for; the task that this makes of it."""
        request = self._now.get(key)
        if request is None or not request.changes:
            return None
        known = self._keys[key]
        run = self._learned[known][0]
        rungs = ladder.single(request.step.settings.retry.on_oom)
        for place, change in zip(request.used, request.changes):
            facts = {"rung": str(rungs[place]), **change.as_dict(), "cause": "remembered", "attempt": 0, "run": run}
            self._recorder.event("escalated", key, facts)
        if known not in self._said:
            self._said.add(known)
            changed = ", ".join(map(str, ladder.net(request.changes)))
            how = "--no-cache starts with what it asks for"
            self._observer.said(f"{parent or key}: {changed}, which worked in run {run}; {how}")
        return escalated_task(request.step, key, parent)

    def _recalled(self, known: str) -> tuple[str, tuple[int, ...]]:
        found = self._learned.get(known)
        if found is None:
            row = self._recorder.learned(known) if self._remembers else None
            found = ("", ()) if row is None else (row.run_id, tuple(row.changes["used"]))
            self._learned[known] = found
            # Nothing is known to work until it did: then what another run learned is replaced, or forgotten.
            self._depth[known] = len(found[1]) if self._remembers else -1
        return found

    # When an attempt is over

    def changes(self, key: str) -> list[dict[str, Any]]:
        """How a step's request differs from what was asked, as JSON."""
        request = self._now.get(key)
        return [] if request is None else [change.as_dict() for change in ladder.net(request.changes)]

    def climb(self, key: str, parent: str, attempt: int, cause: str) -> Task | None:
        """The task with the next rung that helps against a cause; None where the ladder has none, or is not for it."""
        self._next.pop(key, None)
        request = self._now.get(key)
        if request is None or cause not in ladder.climbed_after(request.step.settings.retry.on_oom):
            return None
        passed: list[Passed] = []
        for place, rung in enumerate(ladder.single(request.step.settings.retry.on_oom)):
            if place in request.used:
                continue
            helps = rung.kind in ladder.HELPS[cause]
            made = self._made(request, place, rung) if helps else f"it does not help against {cause}"
            if isinstance(made, Request):
                self._next[key] = (made, rung, passed)
                return escalated_task(made.step, key, parent)
            passed.append(Passed(rung=rung, why=made))
        facts = {"cause": cause, "attempt": attempt, "passed": [one.as_dict() for one in passed]}
        self._recorder.event("ladder-ended", key, facts)
        why = "; ".join(map(str, passed)) or "all were used"
        self._observer.said(f"{key}: no rung of on_oom is left after {cause}: {why}")
        return None

    def taken(self, key: str, attempt: int, cause: str) -> tuple[Change, Request] | None:
        """The machine tries again: the proposed request holds from now on, and is recorded; None if none was."""
        proposed = self._next.pop(key, None)
        if proposed is None:
            return None
        request, rung, passed = proposed
        change = request.changes[-1]
        facts = {"rung": str(rung), **change.as_dict(), "cause": cause, "attempt": attempt}
        self._recorder.event("escalated", key, {**facts, "passed": [one.as_dict() for one in passed]})
        self._now[key] = request
        return change, request

    def worked(self, key: str) -> None:
        """The step succeeded as it was: remember that, unless a sibling is known to have needed more."""
        request = self._now.pop(key, None)
        if request is None:
            return
        known = self._keys.pop(key)
        depth = self._depth[known]
        if len(request.used) <= depth:
            return
        self._depth[known] = len(request.used)
        if request.used:
            changes = [change.as_dict() for change in ladder.net(request.changes)]
            self._recorder.learn(known, {"used": list(request.used), "changes": changes})
        else:
            self._recorder.unlearn(known)

    # Rungs

    def _made(self, request: Request, place: int, rung: Rung) -> Request | str:
        """The request with one more rung taken, or why that cannot be."""
        step, inputs = request.step, request.inputs
        if isinstance(rung, Halve):
            found = ladder.halved(rung, whole_number(inputs.get(rung.parameter)))
            if isinstance(found, str):
                return found
            change = found
            inputs = {**inputs, rung.parameter: {"value": number_wire(change.new)}}
        else:
            enlarged = ladder.enlarged(rung, step.settings.resources)
            if isinstance(enlarged, str):
                return enlarged
            change, resources = enlarged
            step = attrs.evolve(step, settings=attrs.evolve(step.settings, resources=resources))
            refused = errors(self._backends[step.backend].check(step))
            if refused:
                return refused[0].what
        return Request(step=step, inputs=inputs, used=(*request.used, place), changes=(*request.changes, change))


def request_key(request: Request, *, pipeline: str, backend: str) -> str:
    """The digest of what a step asks for, as far as its ladder can change it: of the same request the same is true."""
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
    """The whole number that an input is, None where it is anything else."""
    wire = (tree or {}).get("value") or {}
    text = wire.get("i")
    if wire.get("s") != "json" or text is None:
        return None
    value = json.loads(text)
    return value if type(value) is int else None


def number_wire(number: int) -> dict[str, Any]:
    """The number as `store.artifacts.save` keeps it, so that whoever asks for it outright has the same inputs."""
    data = str(number).encode()
    digest = hashlib.sha256(data).hexdigest()
    return Artifact(digest=digest, serializer="json", type="builtins.int", size=len(data), inline=data).wire()
