"""The provenance of a run: the metadata of its tasks, which task led to which, and the code.

A key such as "train[3][0]" has a task's place in the foreaches around it. One task goes to another if its step goes to
the other's, and their places agree as far as both go: a foreach adds an index, a join takes one away.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any, Final, Mapping, NamedTuple, Sequence

from stoker.client.runs import Run
from stoker.core.errors import StoreError
from stoker.core.graph import GANG, TRANSITION
from stoker.core.status import STEP_GOOD
from stoker.core.values import lazy_pattern
from stoker.flows.exceptions import MetaflowNotFound
from stoker.store import artifacts
from stoker.store.rows import StepRow

_RUN: Final = "origin-run-id"
_TASK: Final = "origin-task-id"
_INDEX: Final = lazy_pattern(r"\[(\d+)\]")


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


class Lineage:
    """The tasks of one run, with what led to what, from the plan's graph and the keys of tasks."""

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


class MetaflowCode:
    """The files of a run's code as they were: those that its program had imported when it began.

    A run whose code was sent along as a package has all files of that.
    """

    def __init__(self, run: Run, plan: Mapping[str, Any]) -> None:
        self._run, self._plan = run, plan
        self.path: str = plan["source"]["path"]
        """The flow's file, as it was called."""

    @property
    def script_name(self) -> str:
        """The name of the flow's file."""
        return os.path.basename(self.path)

    @property
    def info(self) -> dict[str, str]:
        """The names of the flow and of its file."""
        return {"script": self.script_name, "flow_name": self._run.pipeline}

    @property
    def flowspec(self) -> str:
        """The text of the flow's file."""
        member = next((name for name in self.tarball.getnames() if self.path.endswith(f"/{name}")), None)
        content = None if member is None else self.tarball.extractfile(member)
        if content is None:
            raise StoreError(f"the code of run {self._run.id} does not have {self.path}")
        return content.read().decode("utf-8", "replace")

    @cached_property
    def tarball(self) -> tarfile.TarFile:
        """All files, by their names below the folder of the flow's file."""
        if self._plan.get("package"):
            return tarfile.open(self._run.store.blobs.path(self._plan["package"]))
        files, root = self._plan["files"], self._plan["source"]["root"] or os.path.dirname(self.path)
        texts = self._run.store.records.sources(files.values())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, digest in sorted(files.items()):
                inside = os.path.commonpath([path, root]) == root
                member = tarfile.TarInfo(os.path.relpath(path, root) if inside else path.lstrip("/"))
                member.size = len(texts[digest])
                archive.addfile(member, io.BytesIO(texts[digest]))
        packed.seek(0)
        return tarfile.open(fileobj=packed)

    def extract(self) -> TemporaryDirectory[str]:
        """A folder with all files, which goes when what is returned does."""
        folder = TemporaryDirectory(prefix="stoker-code-")
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in every Python 3.10
        self.tarball.extractall(folder.name, **safely)
        return folder

    def __repr__(self) -> str:
        return f"<MetaflowCode: {self.script_name}>"


def code_of(run: Run) -> MetaflowCode | None:
    """The code of a run; None where it was not kept."""
    text = run.store.records.plan(run.id)
    plan = json.loads(text) if text else {}
    kept = plan.get("source") and (plan.get("files") or plan.get("package"))
    return MetaflowCode(run, plan) if kept else None
