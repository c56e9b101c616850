"""Steps and tasks of a flow's run, and their artifacts, by Metaflow's names."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Iterator, Mapping

from stoker.client.runs import Run as StoredRun
from stoker.client.times import local, moment
from stoker.core.artifact import Artifact, from_wire
from stoker.core.errors import NotFound, nearest
from stoker.core.flow import GANG, CaughtFailure
from stoker.core.status import STEP_DONE, STEP_GOOD
from stoker.flows.namespaces import constants_of, parts_of, rows_by_step, stored_run
from stoker.store import artifacts
from stoker.store.rows import StepRow


class Step:
    """A step of a run, with all its tasks."""

    def __init__(self, pathspec: str, *, _of: tuple[StoredRun, list[StepRow]] | None = None) -> None:
        self._run: StoredRun
        self._rows: list[StepRow]
        if _of is None:
            name, id, step = parts_of(pathspec, 3, "Step")
            run = stored_run(name, id)
            rows = rows_by_step(run)
            if step not in rows:
                raise NotFound(f"run {id} has no step '{step}'{nearest(step, rows)}")
            _of = (run, rows[step])
        self._run, self._rows = _of
        self.pathspec = pathspec

    @property
    def id(self) -> str:
        """Its name."""
        return self._rows[0].name

    @property
    def task(self) -> Task | None:
        """One of its tasks: its only one, if it has one."""
        return next(iter(self), None)

    def tasks(self, *tags: str) -> Iterator[Task]:
        """Its tasks, in their order."""
        store = self._run._store
        for row in self._rows:
            if row.count is not None:
                continue
            gang = next((out for out in store.records.outputs(row.run_id, row.key) if out.name == GANG), None)
            if gang is None:
                yield Task(f"{self.pathspec}/{row.key}", _of=(self._run, row, None))
                continue
            nodes = len(artifacts.items(gang.artifact, store.blobs)) if gang.artifact.serializer == "list" else 1
            for node in range(nodes):
                yield Task(f"{self.pathspec}/{row.key}[{node}]", _of=(self._run, row, node))

    def control_tasks(self) -> Iterator[Task]:
        """The first node of each gang."""
        return (task for task in self.tasks() if task.node == 0)

    def __iter__(self) -> Iterator[Task]:
        return self.tasks()

    def __getitem__(self, id: str) -> Task:
        for task in self.tasks():
            if task.id == id:
                return task
        raise KeyError(f"step {self.pathspec} has no task '{id}'{nearest(id, [task.id for task in self.tasks()])}")

    @property
    def finished_at(self) -> datetime | None:
        """When its last task ended."""
        ends = [row.ended for row in self._rows if row.ended is not None]
        return moment(max(ends)) if ends else None

    @property
    def created_at(self) -> datetime | None:
        """When its first task began."""
        starts = [row.started for row in self._rows if row.started is not None]
        return local(min(starts)) if starts else None

    def __repr__(self) -> str:
        return f"Step('{self.pathspec}')"


class Task:
    """One task; of a `num_parallel` one node."""

    def __init__(self, pathspec: str, *, _of: tuple[StoredRun, StepRow, int | None] | None = None) -> None:
        self._run: StoredRun
        self._row: StepRow
        self.node: int | None
        if _of is None:
            name, id, step, task = parts_of(pathspec, 4, "Task")
            found = Step(f"{name}/{id}/{step}")[task]
            _of = (found._run, found._row, found.node)
        self._run, self._row, self.node = _of
        self.pathspec = pathspec

    @property
    def id(self) -> str:
        """Its key in the run, such as "train[3]"."""
        return self._row.key if self.node is None else f"{self._row.key}[{self.node}]"

    @property
    def successful(self) -> bool:
        """Whether it went well, or its failure was caught."""
        return self._row.status in STEP_GOOD

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._row.status in STEP_DONE

    @property
    def index(self) -> int | None:
        """Its place in a foreach, or among nodes."""
        return self._row.idx if self.node is None else self.node

    @property
    def created_at(self) -> datetime | None:
        """When it began."""
        return moment(self._row.started)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return moment(self._row.ended)

    @property
    def current_attempt(self) -> int:
        """The number of its last attempt, from 0."""
        return max(0, self._row.attempts - 1)

    @property
    def exception(self) -> str | CaughtFailure | None:
        """Why it failed, or what `@catch` kept of it; None where it went well."""
        caught = next((art.data for art in self if art.type.endswith("CaughtFailure")), None)
        return caught or self._row.message or None

    @property
    def stdout(self) -> str:
        """What its last attempt wrote to standard output."""
        return self._lines("stdout")

    @property
    def stderr(self) -> str:
        """What its last attempt wrote to standard error."""
        return self._lines("stderr")

    def loglines(self, stream: str, as_unicode: bool = True) -> Iterator[tuple[datetime, str]]:
        """Times and lines of a stream."""
        store = self._run._store
        attempts = store.logs.attempts(self._row.run_id, self._row.key)
        if attempts:
            found = store.logs.lines(self._row.run_id, self._row.key, max(attempts), rank=self.node)
            yield from ((local(line.time), line.text) for line in found if line.stream == stream)

    def _lines(self, stream: str) -> str:
        return "".join(f"{text}\n" for _, text in self.loglines(stream))

    @property
    def artifacts(self) -> Any:
        """Its artifacts by name, not loaded."""
        return TaskArtifacts(self._found())

    @property
    def data(self) -> TaskData:
        """Its artifacts as attributes, loaded when they are read."""
        return TaskData(self._found())

    @property
    def metadata_dict(self) -> dict[str, Any]:
        """What is known of it beside artifacts."""
        row = self._row
        return {"status": row.status, "cause": row.cause, "attempts": row.attempts, **dict(row.usage)}

    def __iter__(self) -> Iterator[DataArtifact]:
        return iter(self._found().values())

    def __getitem__(self, name: str) -> DataArtifact:
        found = self._found()
        if name not in found:
            raise KeyError(f"task {self.pathspec} has no artifact '{name}'{nearest(name, found)}")
        return found[name]

    def __contains__(self, name: str) -> bool:
        return name in self._found()

    def _found(self) -> dict[str, DataArtifact]:
        store = self._run._store
        rows = {row.name: row.artifact for row in store.records.outputs(self._row.run_id, self._row.key)}
        if self.node is not None:
            part = rows.pop(GANG)
            if part.serializer == "list":
                part = artifacts.items(part, store.blobs)[self.node]
            rows = {name: from_wire(wire) for name, wire in artifacts.load(part, store.blobs).items()}
        rows = {name: found for name, found in rows.items() if not name.startswith("_")}
        return {
            name: DataArtifact(f"{self.pathspec}/{name}", _of=(self, name, found))
            for name, found in {**constants_of(self._run), **rows}.items()
        }

    def __repr__(self) -> str:
        return f"Task('{self.pathspec}')"


class DataArtifact:
    """One artifact of a task."""

    def __init__(self, pathspec: str, *, _of: tuple[Task, str, Artifact] | None = None) -> None:
        self._task: Task
        self.id: str
        self._artifact: Artifact
        if _of is None:
            flow, run, step, task, name = parts_of(pathspec, 5, "DataArtifact")
            found = Task(f"{flow}/{run}/{step}/{task}")[name]
            _of = (found._task, found.id, found._artifact)
        self._task, self.id, self._artifact = _of
        self.pathspec = pathspec

    @property
    def data(self) -> Any:
        """The value."""
        return artifacts.load(self._artifact, self._task._run._store.blobs)

    @property
    def sha(self) -> str:
        """The digest of its bytes."""
        return self._artifact.digest

    @property
    def size(self) -> int:
        """Bytes as stored."""
        return self._artifact.size

    @property
    def type(self) -> str:
        """The name of the value's type."""
        return self._artifact.type

    def __repr__(self) -> str:
        return f"DataArtifact('{self.pathspec}')"


class TaskArtifacts:
    """A task's artifacts as attributes."""

    def __init__(self, found: Mapping[str, DataArtifact]) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._found:
            raise AttributeError(f"there is no artifact '{name}'{nearest(name, self._found)}")
        return self._found[name]

    def __iter__(self) -> Iterator[DataArtifact]:
        return iter(self._found.values())

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._found)}>"


class TaskData(TaskArtifacts):
    """A task's values as attributes."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name).data
