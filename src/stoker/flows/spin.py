"""One task of an earlier run once more, on its own: `python flow.py spin train`.

What the task is given is found by following that run: it is the same flow, whose tasks are asked for what they kept
instead of being started. Nothing of the earlier run is changed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import GraphError, NotFound, UsageError, nearest
from stoker.core.flow import OWN
from stoker.core.plan import Plan, StepPlan
from stoker.core.retry import NO_RETRY
from stoker.core.status import STEP_GOOD
from stoker.flows.joins import Task, Trees, Ways, Wire
from stoker.plan.planner import ORCHESTRATOR
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.records import Records
from stoker.store.rows import StepRow

LEFT_OUT: Final = ("retry", "cache")
"""Decorators that a task on its own does not have, beside those of platforms: it is tried once, computed anew, and runs
here."""
_WAS: Final = {"failed": "failed", "cancelled": "was cancelled", "skipped": "was skipped", "pending": "did not begin"}
"""A task's status in words, where it has not succeeded; anything else did not end."""


class Earlier:
    """A run that is over, or stopped, with what its tasks kept."""

    def __init__(self, run: str, records: Records, ways: Ways) -> None:
        self._run = run
        self._records = records
        self._ways = ways
        self._rows: Mapping[str, StepRow] = {row.key: row for row in records.all_steps(run)}
        self._seen: list[str] = []
        self._open: list[tuple[Task, str]] = []
        self._astray: list[GraphError] = []

    def given(self, step: str, key: str = "", *, ancestors: frozenset[str]) -> tuple[Task, Trees]:
        """A task of a step, its first one if no key is named, and what it is given.

        `ancestors` are the steps from which the step can be reached. `NotFound` where the run did not come so far.
        """
        for task, trees in self._tasks():
            if task.step != step:
                continue
            if key in ("", task.key):
                return task, trees
            if task.nodes and key.startswith(f"{task.key}["):
                raise UsageError(
                    f"'{key}' is one node of {task.nodes}, which run together or not at all",
                    fix=f"spin all of them: spin {self._run}/{step}/{task.key}",
                )
            self._seen.append(task.key)
        raise self._not_found(step, key, ancestors)

    def _tasks(self) -> Iterator[tuple[Task, Trees]]:
        """Every task that was started, or could have been, in the order in which they follow each other."""
        line = deque(self._ways.begin().tasks)
        while line:
            task, trees = line.popleft()
            yield task, trees
            row = self._rows.get(task.key)
            if row is None or row.status not in STEP_GOOD:
                self._open.append((task, "did not end" if row is None else _WAS.get(row.status, "did not end")))
                continue
            made = {out.name: out.artifact.wire() for out in self._records.outputs(self._run, task.key)}
            try:
                line.extend(self._ways.after(task, made).tasks)
            except GraphError as error:
                self._astray.append(error)

    def _not_found(self, step: str, key: str, ancestors: frozenset[str]) -> NotFound:
        if self._seen:
            return NotFound(f"run {self._run} has no task '{key}' of step '{step}'{nearest(key, self._seen)}")
        waits = next(((task, was) for task, was in self._open if task.step in ancestors), None)
        if waits is not None:
            task, was = waits
            return NotFound(
                f"run {self._run} did not come to step '{step}': task '{task.key}' {was}",
                fix=f"`resume` the run (spin {self._run}/{task.key} tries that task alone), or name another run: "
                f"spin RUN/{step}",
            )
        astray = f": {self._astray[0].message}" if self._astray else ", it went another way"
        return NotFound(
            f"run {self._run} did not come to step '{step}'{astray}",
            fix=f"run the flow with the step in it, or name another run: spin RUN/{step}",
        )


def with_artifacts(trees: Trees, values: Mapping[str, Any], blobs: Blobs) -> Trees:
    """What a task is given, with other values for some artifacts and parameters; in a join those of every input."""
    own = sorted(name for name in values if name in OWN)
    if own:
        raise UsageError(f"'{own[0]}' is the flow's own, and no artifact", fix="leave it out")
    wires = {name: artifacts.save(value, blobs).wire() for name, value in values.items()}
    parameters = {name: wire for name, wire in wires.items() if name in trees["parameters"]["dict"]}
    rest = {name: wire for name, wire in wires.items() if name not in parameters}
    found = {**trees, "parameters": _replaced(trees["parameters"], parameters)}
    if "inputs" not in trees:
        return {**found, "artifacts": _replaced(trees["artifacts"], rest)}
    entries = [{**entry, "artifacts": {**entry["artifacts"], **rest}} for entry in joined(trees, blobs)]
    return {**found, "inputs": {"value": artifacts.save(entries, blobs).wire()}}


def _replaced(tree: Trees, wires: Mapping[str, Wire]) -> Trees:
    return {"dict": {**tree["dict"], **{name: {"value": wire} for name, wire in wires.items()}}}


def joined(trees: Trees, blobs: Blobs) -> list[dict[str, Any]]:
    """The tasks that meet in a join; none for another task."""
    found: list[dict[str, Any]] = (
        artifacts.load(from_wire(trees["inputs"]["value"]), blobs) if "inputs" in trees else []
    )
    return found


def alone(made: Plan, step: StepPlan, key: str, trees: Trees) -> Plan:
    """The plan of a task on its own: it is tried once, in this machine's Python, and is not found again."""
    settings = attrs.evolve(step.settings, retry=NO_RETRY, cache=False, docker=None, step_operator=None)
    one = attrs.evolve(step, key=key, inputs=trees, after=(), settings=settings, backend=ORCHESTRATOR)
    return attrs.evolve(made, steps=(one,), dynamic=False, source=None)
