"""Which tasks of a run came before a task and which after it, from the plan's graph and the keys of tasks.

A key such as "train[3][0]" has a task's place in the foreaches around it. One task goes to another if its step goes to
the other's, and their places agree as far as both go: a foreach adds an index, a join takes one away.
"""

from __future__ import annotations

import json
from typing import Any, Final, Mapping, Sequence

from stoker.client.runs import Run
from stoker.core.flow import GANG, TRANSITION
from stoker.core.status import STEP_GOOD
from stoker.core.values import lazy_pattern
from stoker.store import artifacts
from stoker.store.rows import StepRow

_INDEX: Final = lazy_pattern(r"\[(\d+)\]")


class Lineage:
    """The tasks of one run, with what led to what."""

    def __init__(self, run: Run, rows: Mapping[str, Sequence[StepRow]]) -> None:
        self._store = run.store
        self._rows = {name: [row for row in step_rows if row.count is None] for name, step_rows in rows.items()}
        text = self._store.records.plan(run.id)
        plan = json.loads(text) if text else {}
        steps = plan.get("steps", [])
        self.python: str = plan.get("program", {}).get("python", "")
        """The version of the Python that the run was started with."""
        self.before: dict[str, list[str]] = {step["name"]: list(step.get("after", ())) for step in steps}
        """Each step → the steps that go to it."""
        self.after: dict[str, list[str]] = {
            name: [other for other, earlier in self.before.items() if name in earlier] for name in self.before
        }

    @property
    def end(self) -> str:
        """The flow's last step; empty where the plan is lost."""
        return next((name for name, following in self.after.items() if not following), "")

    def parents(self, row: StepRow) -> list[StepRow]:
        """The tasks that led to a task: all that meet in a join, else the one before it."""
        found = [
            other
            for name in self.before.get(row.name, ())
            for other in self._rows.get(name, ())
            if other.key != row.key and _agree(other, row) and row.name in self._next(other)
        ]
        if "inputs" in row.inputs or len(found) < 2:
            return found
        # Of the turns of a loop the last before this task.
        return [max(found, key=lambda other: (_end(other) <= (row.started or 0), _end(other)))]

    def children(self, row: StepRow) -> list[StepRow]:
        """The tasks that a task led to."""
        return [
            other
            for name in self.after.get(row.name, ())
            for other in self._rows.get(name, ())
            if _agree(row, other) and any(parent.key == row.key for parent in self.parents(other))
        ]

    def splits(self, name: str, _seen: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """The steps whose foreaches are around a step's tasks, outermost first."""
        depth = len(place(self._rows[name][0])) if self._rows.get(name) else 0
        for earlier in self.before.get(name, ()):
            if earlier in _seen or earlier == name or not self._rows.get(earlier):
                continue
            around = self.splits(earlier, _seen | {name})
            if len(around) + 1 == depth:
                return (*around, earlier)
            if len(around) >= depth:
                return around[:depth]
        return ()

    def is_gang(self, name: str) -> bool:
        """Whether a step has several nodes, as the step before it asked for."""
        before = (row for earlier in self.before.get(name, ()) for row in self._rows.get(earlier, ()))
        return any(self._transition(row).get("kind") == "parallel" for row in before)

    def _next(self, row: StepRow) -> Sequence[str]:
        """The steps that a task went to."""
        following: Sequence[str] = self._transition(row).get("next", ())
        return following

    def _transition(self, row: StepRow) -> Mapping[str, Any]:
        if row.status not in STEP_GOOD:
            return {}
        outputs = {out.name: out.artifact for out in self._store.records.outputs(row.run_id, row.key)}
        if GANG in outputs:  # each node says it for itself
            return {"next": self.after[row.name]}
        if TRANSITION not in outputs:
            return {}
        document: Mapping[str, Any] = artifacts.load(outputs[TRANSITION], self._store.blobs)
        return document


def place(row: StepRow) -> tuple[int, ...]:
    """The indexes of a task in the foreaches around it."""
    return tuple(int(index) for index in _INDEX.findall(row.key))


def _agree(earlier: StepRow, later: StepRow) -> bool:
    return all(one == other for one, other in zip(place(earlier), place(later)))


def _end(row: StepRow) -> float:
    return row.ended or 0.0
