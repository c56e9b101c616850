"""Runs of flows by Metaflow's names: `Flow("X").latest_successful_run.data.y`. Thin views of the same store.

Flow → Run → Step → Task → DataArtifact. A task's id is its key in the run, such as "train[3]". Only runs of the
namespace are seen (`namespace`).
"""

from __future__ import annotations

import getpass
import json
import os
from datetime import datetime
from typing import Any, Final, Iterable, Iterator, Mapping

from stoker.client.client import Client
from stoker.client.runs import Run as StoredRun
from stoker.client.times import local_time, optional_time
from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import UsageError, nearest
from stoker.core.flow import GANG, OWN, CaughtFailure
from stoker.core.printable import check_names
from stoker.core.status import STEP_DONE, STEP_GOOD
from stoker.flows.exceptions import MetaflowInvalidPathspec, MetaflowNamespaceMismatch, MetaflowNotFound
from stoker.store import artifacts
from stoker.store.rows import StepRow

_SYSTEM: Final = ("user:", "project:", "project_branch:")
_TRIES: Final = 20
"""How often tags are set again when the run's driver changed in between."""
_PAGE: Final = 100


def _runs(client: Client, name: str, tags: Iterable[str]) -> Iterator[Run]:
    required = [tag for tag in (get_namespace(), *tags) if tag]
    offset = 0
    while True:
        page = client.runs(pipeline=name, tag=required[0] if required else None, limit=_PAGE, offset=offset)
        for run in page:
            if set(required) <= set(run.tags):
                yield Run(run)
        if len(page) < _PAGE:
            return
        offset += _PAGE


class Metaflow:
    """All flows of the store."""

    def __init__(self) -> None:
        self._client = Client()

    @property
    def flows(self) -> list[Flow]:
        """Every flow that was run in the namespace."""
        return list(self)

    def __iter__(self) -> Iterator[Flow]:
        names = [run.pipeline for run in self._client.runs(limit=None, tag=get_namespace())]
        return (Flow(name) for name in dict.fromkeys(names))

    def __getitem__(self, name: str) -> Flow:
        return Flow(name)


class Flow:
    """A flow by its name, newest run first; `NotFound` if nobody ran it in the namespace."""

    def __init__(self, pathspec: str) -> None:
        self._client = Client()
        self.id = pathspec
        if next(_runs(self._client, pathspec, ()), None) is None:
            if self._client.runs(pipeline=pathspec, limit=1):
                raise MetaflowNamespaceMismatch(get_namespace(), f"flow {pathspec}")
            names = {run.pipeline for run in self._client.runs()}
            raise MetaflowNotFound(f"there is no run of a flow '{pathspec}'{nearest(pathspec, names)}")

    @property
    def pathspec(self) -> str:
        """Its name."""
        return self.id

    @property
    def latest_run(self) -> Run | None:
        """The newest run, however it went."""
        return next(self.runs(), None)

    @property
    def latest_successful_run(self) -> Run | None:
        """The newest run that went well."""
        return next((run for run in self.runs() if run.successful), None)

    def runs(self, *tags: str) -> Iterator[Run]:
        """Runs, newest first; only those with all the tags."""
        return _runs(self._client, self.id, tags)

    def __iter__(self) -> Iterator[Run]:
        return self.runs()

    def __getitem__(self, id: str) -> Run:
        return Run(f"{self.id}/{id}")

    def __repr__(self) -> str:
        return f"Flow('{self.id}')"


class Run:
    """One run: `Run("Train/1qge…")`."""

    def __init__(self, pathspec: str | StoredRun) -> None:
        if isinstance(pathspec, str):
            self._run = stored_run(*parts_of(pathspec, 2, "Run"))
        else:
            self._run = pathspec

    @property
    def id(self) -> str:
        """Its id."""
        return self._run.id

    @property
    def pathspec(self) -> str:
        """Flow and id."""
        return f"{self._run.pipeline}/{self._run.id}"

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._run.refresh().status != "running"

    @property
    def successful(self) -> bool:
        """Whether it went well."""
        return self._run.refresh().status == "succeeded"

    @property
    def status(self) -> str:
        """Where it stands, in Stoker's words."""
        return self._run.refresh().status

    @property
    def origin_run_id(self) -> str | None:
        """The id of the run that it repeats, as `resume` does; None for a run of its own."""
        return self._run.origin

    @property
    def origin_pathspec(self) -> str | None:
        """Flow and id of the run that it repeats; None for a run of its own."""
        return None if self._run.origin is None else f"{self._run.pipeline}/{self._run.origin}"

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return self._run.created

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return self._run.refresh().ended

    @property
    def tags(self) -> frozenset[str]:
        """Its tags."""
        return frozenset(self._run.tags)

    @property
    def user_tags(self) -> frozenset[str]:
        """The tags that people gave it."""
        return frozenset(tag for tag in self._run.tags if not tag.startswith(_SYSTEM))

    @property
    def system_tags(self) -> frozenset[str]:
        """The tags that it got by itself."""
        return self.tags - self.user_tags

    def add_tag(self, tag: str) -> None:
        """Give it a tag."""
        self.add_tags([tag])

    def add_tags(self, tags: Iterable[str]) -> None:
        """Give it tags."""
        self.replace_tags((), tags)

    def remove_tag(self, tag: str) -> None:
        """Take a tag off."""
        self.remove_tags([tag])

    def remove_tags(self, tags: Iterable[str]) -> None:
        """Take tags off."""
        self.replace_tags(tags, ())

    def replace_tag(self, tag_to_remove: str, tag_to_add: str) -> None:
        """One tag for another."""
        self.replace_tags([tag_to_remove], [tag_to_add])

    def replace_tags(self, tags_to_remove: Iterable[str], tags_to_add: Iterable[str]) -> None:
        """Take some tags off and give others; those that it got by itself stay."""
        off, on = _texts(tags_to_remove), check_names(_texts(tags_to_add), "a tag")
        fixed = sorted(tag for tag in off if tag.startswith(_SYSTEM))
        if fixed:
            raise UsageError(f"the tag '{fixed[0]}' was not given by a person and stays")
        records = self._run._store.records
        for _ in range(_TRIES):
            row = records.run(self.id)
            remaining = [tag for tag in row.tags if tag not in off]
            if records.set_run(self.id, row.token, tags=list(dict.fromkeys([*remaining, *on]))):
                self._run.refresh()
                return
        raise UsageError(f"run {self.id} changes hands all the time; its tags were not set")

    def steps(self, *tags: str) -> Iterator[Step]:
        """Its steps that were reached, the last first."""
        return iter(list(self._steps().values())[::-1])

    def __iter__(self) -> Iterator[Step]:
        return self.steps()

    def __getitem__(self, name: str) -> Step:
        steps = self._steps()
        if name not in steps:
            raise KeyError(f"run {self.pathspec} has no step '{name}'{nearest(name, steps)}")
        return steps[name]

    def __contains__(self, name: str) -> bool:
        return name in self._steps()

    @property
    def end_task(self) -> Task | None:
        """The task of the last step; None before it is done."""
        last = next(self.steps(), None)
        if not self.successful or last is None:
            return None
        return last.task

    @property
    def data(self) -> TaskData | None:
        """The artifacts of the last step as attributes; None before it is done."""
        end = self.end_task
        return None if end is None else end.data

    def _steps(self) -> dict[str, Step]:
        rows = rows_by_step(self._run)
        return {name: Step(f"{self.pathspec}/{name}", _of=(self._run, step_rows)) for name, step_rows in rows.items()}

    def __repr__(self) -> str:
        return f"Run('{self.pathspec}')"


def _texts(tags: Iterable[str]) -> list[str]:
    texts = list(tags)
    if isinstance(tags, str) or not all(texts):
        raise UsageError(f"{tags!r} is not a list of tags", fix='write ["tested"]')
    return texts


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
                raise MetaflowNotFound(f"run {id} has no step '{step}'{nearest(step, rows)}")
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
        return optional_time(max(ends)) if ends else None

    @property
    def created_at(self) -> datetime | None:
        """When its first task began."""
        starts = [row.started for row in self._rows if row.started is not None]
        return local_time(min(starts)) if starts else None

    def __repr__(self) -> str:
        return f"Step('{self.pathspec}')"


class Task:
    """One task; of a `num_parallel` one node."""

    def __init__(self, pathspec: str, *, _of: tuple[StoredRun, StepRow, int | None] | None = None) -> None:
        self._run: StoredRun
        self._row: StepRow
        self.node: int | None
        if _of is None:
            name, id, step, task_id = parts_of(pathspec, 4, "Task")
            task = Step(f"{name}/{id}/{step}")[task_id]
            _of = (task._run, task._row, task.node)
        self._run, self._row, self.node = _of
        self.pathspec = pathspec

    @property
    def id(self) -> str:
        """Its key in the run, such as "train[3]"."""
        return self._row.key if self.node is None else f"{self._row.key}[{self.node}]"

    @property
    def origin_pathspec(self) -> str | None:
        """The task of the run that this one repeats, where its result was taken from there; None for one that ran."""
        run, _, key = self._row.cached_from.partition("/")
        if run != self._run.origin:
            return None
        return f"{self._run.pipeline}/{run}/{self._row.name}/{key}" + ("" if self.node is None else f"[{self.node}]")

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
        return optional_time(self._row.started)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return optional_time(self._row.ended)

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
            lines = store.logs.lines(self._row.run_id, self._row.key, max(attempts), rank=self.node)
            yield from ((local_time(line.time), line.text) for line in lines if line.stream == stream)

    def _lines(self, stream: str) -> str:
        return "".join(f"{text}\n" for _, text in self.loglines(stream))

    @property
    def artifacts(self) -> Any:
        """Its artifacts by name, not loaded."""
        return TaskArtifacts(self._artifacts_by_name())

    @property
    def data(self) -> TaskData:
        """Its artifacts as attributes, loaded when they are read."""
        return TaskData(self._artifacts_by_name())

    @property
    def metadata_dict(self) -> dict[str, Any]:
        """What is known of it beside artifacts."""
        row = self._row
        return {"status": row.status, "cause": row.cause, "attempts": row.attempts, **dict(row.usage)}

    def every_artifact(self, *, private: bool) -> list[DataArtifact]:
        """Its artifacts; with `private` also those whose names begin with an underscore."""
        return [artifact for name, artifact in self._artifacts_by_name().items() if private or name[0] != "_"]

    def __iter__(self) -> Iterator[DataArtifact]:
        return iter(self.every_artifact(private=False))

    def __getitem__(self, name: str) -> DataArtifact:
        artifacts_by_name = self._artifacts_by_name()
        if name not in artifacts_by_name:
            raise KeyError(f"task {self.pathspec} has no artifact '{name}'{nearest(name, artifacts_by_name)}")
        return artifacts_by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._artifacts_by_name()

    def _artifacts_by_name(self) -> dict[str, DataArtifact]:
        store = self._run._store
        rows = {row.name: row.artifact for row in store.records.outputs(self._row.run_id, self._row.key)}
        if self.node is not None:
            part = rows.pop(GANG)
            if part.serializer == "list":
                part = artifacts.items(part, store.blobs)[self.node]
            rows = {name: from_wire(wire) for name, wire in artifacts.load(part, store.blobs).items()}
        rows = {name: artifact for name, artifact in rows.items() if name not in OWN}
        return {
            name: DataArtifact(f"{self.pathspec}/{name}", _of=(self, name, artifact))
            for name, artifact in {**constants_of(self._run), **rows}.items()
        }

    def __repr__(self) -> str:
        return f"Task('{self.pathspec}')"


class DataArtifact:
    """One artifact of a task."""

    def __init__(self, pathspec: str, *, _of: tuple[Task, str, StoredArtifact] | None = None) -> None:
        self._task: Task
        self.id: str
        self._artifact: StoredArtifact
        if _of is None:
            flow, run, step, task, name = parts_of(pathspec, 5, "DataArtifact")
            artifact = Task(f"{flow}/{run}/{step}/{task}")[name]
            _of = (artifact._task, artifact.id, artifact._artifact)
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

    def __init__(self, artifacts_by_name: Mapping[str, DataArtifact]) -> None:
        self._artifacts = artifacts_by_name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._artifacts:
            raise AttributeError(f"there is no artifact '{name}'{nearest(name, self._artifacts)}")
        return self._artifacts[name]

    def __iter__(self) -> Iterator[DataArtifact]:
        return iter(self._artifacts.values())

    def __contains__(self, name: str) -> bool:
        return name in self._artifacts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._artifacts)}>"


class TaskData(TaskArtifacts):
    """A task's values as attributes."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name).data


SPIN_SUFFIX: Final = ".spin"
"""What the name of a flow ends in, for runs of one task on its own that were kept."""
_here: dict[str, str | None] = {}
"""The namespace that was chosen in this process, if one was."""


def default_namespace() -> str:
    """Go back to one's own namespace, `user:` and the name; returns it."""
    _here.clear()
    return str(get_namespace())


def get_namespace() -> str | None:
    """The namespace in which flows and runs are looked for; None is everybody's."""
    if "namespace" in _here:
        return _here["namespace"]
    try:
        name = os.environ.get("METAFLOW_USER") or os.environ.get("STOKER_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = "unknown"
    return f"user:{name}"


def namespace(ns: str | None) -> str | None:
    """Look in another namespace from now on; None is everybody's."""
    if ns == "":
        raise UsageError("an empty text is no namespace", fix='write namespace("user:ann") or namespace(None)')
    _here["namespace"] = ns
    return get_namespace()


def parts_of(pathspec: str, count: int, kind: str) -> list[str]:
    """The names in a path; one with too few or too many is refused."""
    parts = pathspec.split("/")
    if len(parts) != count or not all(parts):
        example = "/".join(("Flow", "RUN", "step", "task", "artifact")[:count])
        raise MetaflowInvalidPathspec(f"{pathspec!r} names no {kind}", fix=f"write {kind}('{example}')")
    return parts


def stored_run(flow: str, id: str) -> StoredRun:
    """A run by its path, if it is in the namespace; also a task's that was run on its own, by the flow's name."""
    run = Client().run(id)
    if run.pipeline not in (flow, flow + SPIN_SUFFIX):
        raise MetaflowNotFound(f"run {id} is of '{run.pipeline}', not of '{flow}'")
    current_namespace = get_namespace()
    if current_namespace and current_namespace not in run.tags:
        raise MetaflowNamespaceMismatch(current_namespace, f"run {id}")
    return run


def rows_by_step(run: StoredRun) -> dict[str, list[StepRow]]:
    """The rows of a run by the step's name, in the order of the flow."""
    rows: dict[str, list[StepRow]] = {}
    for row in run._store.records.all_steps(run.id):
        rows.setdefault(row.name, []).append(row)
    return dict(sorted(rows.items(), key=lambda item: (item[1][0].position, item[0])))


def constants_of(run: StoredRun) -> Mapping[str, StoredArtifact]:
    """A run's parameters, which every task has."""
    text = run._store.records.plan(run.id)
    parameters = json.loads(text).get("parameters", {}) if text else {}
    return {name: from_wire(wire) for name, wire in parameters.items()}
