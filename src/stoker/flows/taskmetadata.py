"""What is known of a task beside its artifacts, by Metaflow's names and by Stoker's, as a list of facts with times."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, Sequence

from stoker.core.status import STEP_GOOD
from stoker.flows.exceptions import MetaflowNotFound
from stoker.flows.lineage import place

_RUN: Final = "origin-run-id"
_TASK: Final = "origin-task-id"


class Metadata(NamedTuple):
    """One fact: its name, its value as a text, when it was noted (milliseconds since 1970), its kind and the task."""

    name: str
    value: str
    created_at: int
    type: str
    task: Any


def metadata_of(task: Any, splits: Sequence[str], python: str, *, gang: bool) -> list[Metadata]:
    """The facts of a task, attempt after attempt; `splits` are the steps whose foreaches it is in, `python` is the
    version that its run was started with.

    Of a gang the first node is the one that Metaflow calls control, also where a failure left no other. A task that a
    resumed run took over has the facts of its origin, which it names.
    """
    cloned = _taken_from(task)
    if cloned is not None:
        taken = [one._replace(task=task) for one in cloned.metadata if one.name not in (_RUN, _TASK)]
        run, key = cloned.path_components[1], cloned.id
        moment = int(1000 * task._run.created.timestamp())
        return [*taken, Metadata(_RUN, run, moment, _RUN, task), Metadata(_TASK, key, moment, _TASK, task)]
    row, ended = task._row, {one.number - 1: one for one in task.attempt_rows}
    facts: list[Metadata] = []

    def note(name: str, value: Any, seconds: float | None, kind: str = "") -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        moment = seconds or row.started or task._run.created.timestamp()
        facts.append(Metadata(name, text, int(1000 * moment), kind or name, task))

    origin = (task.origin_pathspec or "").split("/")
    indexes = (*place(row), *(() if task.node is None else (task.node,)))
    path = ",".join(f"{step}:{index}" for step, index in zip(splits, indexes))
    for number in _attempts(task):
        attempt = ended.get(number)
        start = None if attempt is None else attempt.started
        note("attempt", str(number), start)
        if task._run.origin is not None:
            note(_RUN, task._run.origin, start)
        if len(origin) > 1:
            note(_TASK, origin[3], start)
        if python:
            note("python_version", python, start)
        if path:
            note("foreach-execution-path", path, start)
        if gang and not task.node:
            note("internal_task_type", "control_task", start)
        if attempt is not None:
            note("attempt_ok", str(attempt.status in STEP_GOOD), attempt.ended, "internal_attempt_status")
    if task._is_last:
        known = {"status": row.status, "cause": row.cause, "attempts": row.attempts, **row.usage}
        for name, value in known.items():
            note(name, value, row.ended, "stoker")
    return facts


def _taken_from(task: Any) -> Any:
    """The task whose result a resumed run took over; None for one that ran itself, or whose origin is gone."""
    path = task.origin_pathspec
    if path is None or path.split("/")[1] != task._run.origin:
        return None
    try:
        return type(task)(path, _namespace=None)
    except MetaflowNotFound:
        return None


def _attempts(task: Any) -> Sequence[int]:
    """The numbers of its attempts. A task that was taken over has one, and where the process of the last one was killed
    what `@catch` does after it is one."""
    if task._attempt is not None:
        return [task._attempt]
    last = next(reversed(task.attempt_rows), None)
    killed = last is not None and last.status not in STEP_GOOD and not last.error.get("type")
    caught = killed and task.successful and not task.node
    return range(max(task._row.attempts, int(task.finished)) + caught)
