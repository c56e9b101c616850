"""Runs of flows by Metaflow's names: `Flow("X").latest_successful_run.data.y`. Thin views of the same store.

Flow → Run → Step → Task → DataArtifact. A task's id is its key in the run, such as "train[3]". Only runs of the
namespace are seen (`flows.namespaces`). Children come newest first, as Metaflow's do.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, ClassVar, Final, Iterable, Iterator, Mapping, Sequence

from stoker.client.runs import Run as StoredRun
from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import NotFound, nearest
from stoker.core.graph import GANG, OWN, CaughtFailure
from stoker.core.status import STEP_DONE, STEP_GOOD
from stoker.core.units import UNSET
from stoker.flows.exceptions import MetaflowNamespaceMismatch, MetaflowNotFound, failure_of
from stoker.flows.namespaces import (
    attempt_number,
    client,
    get_namespace,
    one_or_more,
    parts_of,
    replace_tags,
    rows_by_step,
    stored_run,
    system_tags_of,
    wired_constants,
)
from stoker.flows.provenance import Lineage, Metadata, MetaflowCode, code_of, metadata_of
from stoker.store import artifacts
from stoker.store.rows import AttemptRow, StepRow, local_time
from stoker.worker.context import context

_PAGE: Final = 100


class Metaflow:
    """All flows of the store."""

    @property
    def flows(self) -> list[Flow]:
        """Every flow that was run in the namespace."""
        return list(self)

    def __iter__(self) -> Iterator[Flow]:
        return map(Flow, dict.fromkeys(run.pipeline for run in client().runs(limit=None, tag=get_namespace())))

    def __getitem__(self, name: str) -> Flow:
        return Flow(name)

    def __repr__(self) -> str:
        return "Metaflow()"


class MetaflowObject:
    """What flows, runs, steps, tasks and artifacts have in common. They keep the namespace that they were found in.

    They can be pickled: the pickle has the path, and is looked up in the store of whoever loads it.
    """

    _parts: ClassVar[int]
    """How many names its path has."""
    _child_noun: ClassVar[str] = "child"
    _run: StoredRun
    _attempt: int | None = None
    """The attempt that was chosen, if one was."""

    def __init__(self, pathspec: str, namespace: Any) -> None:
        self.pathspec = pathspec
        self._namespace: str | None = get_namespace() if namespace is UNSET else namespace

    @property
    def id(self) -> str:
        """The last name of its path."""
        return self.path_components[-1]

    @property
    def path_components(self) -> list[str]:
        """The names of its path."""
        return self.pathspec.split("/")

    @property
    def parent(self) -> Any:
        """What it is part of: a run's flow, a step's run, a task's step, an artifact's task; None for a flow."""
        raise NotImplementedError

    @property
    def tags(self) -> frozenset[str]:
        """The tags of the run."""
        return frozenset(self._run.tags)

    @property
    def user_tags(self) -> frozenset[str]:
        """The tags that people gave the run."""
        return self.tags - self.system_tags

    @property
    def system_tags(self) -> frozenset[str]:
        """The tags that the run got by itself."""
        return frozenset(system_tags_of(self._run))

    def is_in_namespace(self) -> bool:
        """Whether it is in the namespace of now."""
        return get_namespace() in (None, *self.tags)

    def _children(self) -> Iterable[Any]:
        return ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._children())

    def __getitem__(self, id: str) -> Any:
        children = {child.id: child for child in self._children()}
        if id not in children:
            raise KeyError(f"{self.pathspec} has no {self._child_noun} '{id}'{nearest(id, children)}")
        return children[id]

    def __contains__(self, id: str) -> bool:
        try:
            self[id]
        except KeyError:
            return False
        return True

    def _with_tags(self, tags: Sequence[str]) -> Iterator[Any]:
        return (child for child in self if set(tags) <= child.tags)

    def _ipython_key_completions_(self) -> list[str]:
        return [child.id for child in self]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.pathspec == self.pathspec

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.pathspec))

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.pathspec}')"

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"_namespace": self._namespace, **({} if self._attempt is None else {"attempt": self._attempt})}
        return _found_again, (type(self), self.pathspec, options)


def _found_again(kind: type[MetaflowObject], pathspec: str, options: Mapping[str, Any]) -> MetaflowObject:
    return kind(pathspec, **options)


class Flow(MetaflowObject):
    """A flow by its name, newest run first; `MetaflowNotFound` if nobody ran it."""

    _parts = 1

    def __init__(self, pathspec: str, *, _namespace: Any = UNSET) -> None:
        super().__init__(pathspec, _namespace)
        parts_of(pathspec, type(self).__name__, self._parts)
        self._client = client()
        if next(self.runs(), None) is None:
            if self._client.runs(pipeline=pathspec, limit=1):
                raise MetaflowNamespaceMismatch(self._namespace, f"flow {pathspec}")
            names = {run.pipeline for run in self._client.runs()}
            raise MetaflowNotFound(f"there is no run of a flow '{pathspec}'{nearest(pathspec, names)}")

    @property
    def parent(self) -> None:
        """None."""

    @property
    def tags(self) -> frozenset[str]:
        """None: runs have tags."""
        return frozenset()

    @property
    def system_tags(self) -> frozenset[str]:
        """None: runs have tags."""
        return frozenset()

    @property
    def created_at(self) -> datetime:
        """When its first run that is still in the store was created."""
        return _naive(min(run.created for run in self._client.runs(pipeline=self.id, limit=None)))

    def is_in_namespace(self) -> bool:
        """Whether one of its runs is in the namespace of now."""
        return bool(self._client.runs(pipeline=self.id, tag=get_namespace(), limit=1))

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
        required = [tag for tag in (self._namespace, *tags) if tag]
        last: StoredRun | None = None
        while True:
            tag = required[0] if required else None
            page = self._client.runs(pipeline=self.id, tag=tag, limit=_PAGE, before=last)
            for run in page:
                if set(required) <= set(run.tags):
                    yield Run(f"{self.id}/{run.id}", _of=run, _namespace=self._namespace)
            if len(page) < _PAGE:
                return
            last = page[-1]

    def _children(self) -> Iterator[Run]:
        return self.runs()

    def __getitem__(self, id: str) -> Run:
        try:
            return Run(f"{self.id}/{id}", _namespace=self._namespace)
        except MetaflowNamespaceMismatch:
            raise
        except NotFound as error:
            raise KeyError(error.message) from None


class Run(MetaflowObject):
    """One run: `Run("Train/1qge…")`."""

    _parts = 2
    _child_noun = "step"

    def __init__(
        self, pathspec: str, *, _of: StoredRun | None = None, _namespace: Any = UNSET, _namespace_check: bool = True
    ) -> None:
        _namespace = _namespace if _namespace_check else None
        super().__init__(pathspec, _namespace)
        flow, id = parts_of(pathspec, type(self).__name__, self._parts)
        self._run = _of or stored_run(flow, id, self._namespace)
        self.pathspec = f"{self.path_components[0]}/{self._run.id}"

    @property
    def parent(self) -> Flow:
        """Its flow."""
        return Flow(self.path_components[0], _namespace=self._namespace)

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
        return None if self._run.origin is None else f"{self.path_components[0]}/{self._run.origin}"

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return _naive(self._run.created)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        ended = self._run.refresh().ended
        return None if ended is None else _naive(ended)

    def add_tag(self, tag: str | Iterable[str]) -> None:
        """Give it a tag."""
        self.replace_tags((), one_or_more(tag))

    def add_tags(self, tags: Iterable[str]) -> None:
        """Give it tags; those that it has by itself are left out."""
        self.replace_tags((), tags)

    def remove_tag(self, tag: str | Iterable[str]) -> None:
        """Take a tag off; one that it does not have is fine."""
        self.replace_tags(one_or_more(tag), ())

    def remove_tags(self, tags: Iterable[str]) -> None:
        """Take tags off."""
        self.replace_tags(tags, ())

    def replace_tag(self, tag_to_remove: str | Iterable[str], tag_to_add: str | Iterable[str]) -> None:
        """One tag for another."""
        self.replace_tags(one_or_more(tag_to_remove), one_or_more(tag_to_add))

    def replace_tags(self, tags_to_remove: Iterable[str], tags_to_add: Iterable[str]) -> None:
        """Take some tags off and give others, all or none; those that it got by itself stay."""
        replace_tags(self._run, tags_to_remove, tags_to_add)

    def steps(self, *tags: str) -> Iterator[Step]:
        """Its steps that were reached, the last first."""
        return self._with_tags(tags)

    def _children(self) -> list[Step]:
        return [self._step(rows) for rows in rows_by_step(self._run).values()][::-1]

    def _step(self, rows: list[StepRow]) -> Step:
        return Step(f"{self.pathspec}/{rows[0].name}", _of=(self._run, rows), _namespace=self._namespace)

    @property
    def end_task(self) -> Task | None:
        """The task of the last step; None before that has begun."""
        rows = rows_by_step(self._run)
        step_rows = rows.get(Lineage(self._run, rows).end)
        if step_rows is None or step_rows[0].status == "pending":
            return None
        return self._step(step_rows).task

    @property
    def data(self) -> TaskData | None:
        """The artifacts of the last step as attributes; None before it has begun."""
        end = self.end_task
        return None if end is None else end.data

    @property
    def code(self) -> MetaflowCode | None:
        """The files of the run's code, as they were; None where they were not kept."""
        return code_of(self._run)

    @property
    def trigger(self) -> None:
        """None: no event starts a run here."""


class Step(MetaflowObject):
    """A step of a run, with all its tasks."""

    _parts = 3
    _child_noun = "task"

    def __init__(
        self,
        pathspec: str,
        *,
        _of: tuple[StoredRun, list[StepRow]] | None = None,
        _namespace: Any = UNSET,
    ) -> None:
        super().__init__(pathspec, _namespace)
        if _of is None:
            name, id, step = parts_of(pathspec, type(self).__name__, self._parts)
            run = stored_run(name, id, self._namespace)
            rows = rows_by_step(run)
            if step not in rows:
                raise MetaflowNotFound(f"run {id} has no step '{step}'{nearest(step, rows)}")
            _of = (run, rows[step])
        self._run, self._rows = _of

    @property
    def parent(self) -> Run:
        """Its run."""
        return Run(self.pathspec.rpartition("/")[0], _of=self._run, _namespace=self._namespace)

    @property
    def origin_pathspec(self) -> str | None:
        """The step of the run that this one repeats; None for a run of its own."""
        origin = self.parent.origin_pathspec
        return None if origin is None else f"{origin}/{self.id}"

    @property
    def task(self) -> Task | None:
        """One of its tasks: its only one, if it has one."""
        return next(iter(self), None)

    def tasks(self, *tags: str) -> Iterator[Task]:
        """Its tasks, the last first."""
        return self._with_tags(tags)

    def in_order(self) -> Iterator[Task]:
        """Its tasks, the first first."""
        for row in self._rows:
            if row.count is None:
                yield from self._tasks_of(row)

    def _tasks_of(self, row: StepRow) -> Iterator[Task]:
        store = self._run.store
        gang = next((out for out in store.records.outputs(row.run_id, row.key) if out.name == GANG), None)
        if gang is None:
            yield self._task(row, None)
            return
        nodes = len(artifacts.items(gang.artifact, store.blobs)) if gang.artifact.serializer == "list" else 1
        for node in range(nodes):
            yield self._task(row, node)

    def _task(self, row: StepRow, node: int | None) -> Task:
        id = row.key if node is None else f"{row.key}[{node}]"
        return Task(f"{self.pathspec}/{id}", _of=(self._run, row, node), _namespace=self._namespace)

    def _children(self) -> list[Task]:
        return list(self.in_order())[::-1]

    @property
    def control_task(self) -> Task | None:
        """The first node of its gang; None for a step without one."""
        return next(self.control_tasks(), None)

    def control_tasks(self, *tags: str) -> Iterator[Task]:
        """The first node of each gang."""
        return (task for task in self.tasks(*tags) if task.node == 0)

    @property
    def parent_steps(self) -> Iterator[Step]:
        """The steps that went to it."""
        return self._steps("before")

    @property
    def child_steps(self) -> Iterator[Step]:
        """The steps that it went to."""
        return self._steps("after")

    def _steps(self, direction: str) -> Iterator[Step]:
        rows = rows_by_step(self._run)
        names = getattr(Lineage(self._run, rows), direction).get(self.id, ())
        return (self.parent._step(rows[name]) for name in names if name in rows)

    @property
    def finished_at(self) -> datetime | None:
        """When its last task ended; None before."""
        ends = [row.ended for row in self._rows if row.count is None]
        return None if None in ends or not ends else _time(max(end for end in ends if end is not None))

    @property
    def created_at(self) -> datetime:
        """When its first task began."""
        starts = [row.started for row in self._rows if row.started is not None]
        return _time(min(starts, default=self._run.created.timestamp()))

    @property
    def environment_info(self) -> None:
        """None, as for its tasks."""


class Task(MetaflowObject):
    """One task; of a `num_parallel` one node. `attempt`, from 0, chooses one of its attempts instead of the last."""

    _parts = 4
    _child_noun = "artifact"

    def __init__(
        self,
        pathspec: str,
        attempt: int | None = None,
        *,
        _of: tuple[StoredRun, StepRow, int | None] | None = None,
        _namespace: Any = UNSET,
        _namespace_check: bool = True,
    ) -> None:
        _namespace = _namespace if _namespace_check else None
        super().__init__(pathspec, _namespace)
        self._attempt = attempt_number(attempt)
        self.node: int | None
        if _of is None:
            _of = self._found()
        self._run, self._row, self.node = _of

    @property
    def parent(self) -> Step:
        """Its step."""
        rows = rows_by_step(self._run).get(self._row.name) or [self._row]
        return Step(self.pathspec.rpartition("/")[0], _of=(self._run, rows), _namespace=self._namespace)

    def _found(self) -> tuple[StoredRun, StepRow, int | None]:
        flow, id, step, key = parts_of(self.pathspec, "Task", self._parts)
        run = stored_run(flow, id, self._namespace)
        rows = rows_by_step(run).get(step, [])
        tasks = Step(f"{flow}/{id}/{step}", _of=(run, rows), _namespace=self._namespace).in_order() if rows else ()
        by_id = {task.id: task for task in tasks}
        if key in by_id:
            return run, by_id[key]._row, by_id[key].node
        if context and context.run_id == run.id and key in (context.step, f"{context.step}[{context.node}]"):
            # The task itself, whose row the driver has not written yet.
            return run, StepRow(run_id=run.id, key=key, name=step, status="running", attempts=1), None
        raise MetaflowNotFound(f"{run.id}/{step} has no task '{key}'{nearest(key, by_id)}")

    @property
    def parent_tasks(self) -> Iterator[Task]:
        """The tasks that led to it."""
        return self._relatives("parents")

    @property
    def child_tasks(self) -> Iterator[Task]:
        """The tasks that it led to."""
        return self._relatives("children")

    @property
    def parent_task_pathspecs(self) -> Iterator[str]:
        """The paths of the tasks that led to it."""
        return (task.pathspec for task in self.parent_tasks)

    @property
    def child_task_pathspecs(self) -> Iterator[str]:
        """The paths of the tasks that it led to."""
        return (task.pathspec for task in self.child_tasks)

    def _relatives(self, direction: str) -> Iterator[Task]:
        rows = rows_by_step(self._run)
        run = self.parent.parent
        for row in getattr(Lineage(self._run, rows), direction)(self._row):
            yield from run._step(rows[row.name])._tasks_of(row)

    @property
    def origin_pathspec(self) -> str | None:
        """The task of the run that this one repeats, where its result was taken from there; None for one that ran."""
        run, _, key = self._row.cached_from.partition("/")
        if run != self._run.origin:
            return None
        node = "" if self.node is None else f"[{self.node}]"
        return f"{self.path_components[0]}/{run}/{self._row.name}/{key}{node}"

    @property
    def attempt_rows(self) -> list[AttemptRow]:
        """What is kept of its attempts that have ended; of the chosen one, if one was chosen."""
        rows = self._run.store.records.attempts(self._row.run_id, self._row.key)
        return [row for row in rows if self._attempt in (None, row.number - 1)]

    @property
    def _is_last(self) -> bool:
        return self._attempt is None or self._attempt >= self._row.attempts - 1

    @property
    def successful(self) -> bool:
        """Whether it went well, or its failure was caught."""
        return self._is_last and self._row.status in STEP_GOOD

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._row.status in STEP_DONE or not self._is_last

    @property
    def index(self) -> int | None:
        """Its place in a foreach, or among nodes."""
        return self._row.idx if self.node is None else self.node

    @property
    def created_at(self) -> datetime:
        """When it began."""
        starts = [*(row.started for row in self.attempt_rows), self._row.started]
        return _time(next((start for start in starts if start is not None), self._run.created.timestamp()))

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        ends = [row.ended for row in self.attempt_rows if row.ended is not None]
        ended = self._row.ended if self._is_last or not ends else ends[-1]
        return None if ended is None else _time(ended)

    @property
    def current_attempt(self) -> int:
        """The number of its last attempt, or of the chosen one, from 0."""
        return max(0, self._row.attempts - 1) if self._attempt is None else self._attempt

    @property
    def exception(self) -> CaughtFailure | None:
        """Why it failed: `type`, `exception` and `stacktrace`; None where it went well, also after a retry or a catch.

        What `@catch(var=…)` caught is the artifact of that name.
        """
        if self.successful or not self.finished:
            return None
        row = next((row for row in reversed(self.attempt_rows) if row.cause), None)
        if row is None:
            words = {"cause": self._row.cause, "message": self._row.message}
            return failure_of(words, self._row.name) if self._row.message else None
        return failure_of({"cause": row.cause, "message": row.message, "error": row.error}, self._row.name)

    @property
    def runtime_name(self) -> str | None:
        """The name of the backend that its last attempt ran on."""
        return next((row.backend for row in reversed(self.attempt_rows)), None)

    @property
    def stdout(self) -> str:
        """What its last attempt wrote to standard output, or the chosen one."""
        return self._lines("stdout")

    @property
    def stderr(self) -> str:
        """What its last attempt wrote to standard error, or the chosen one."""
        return self._lines("stderr")

    @property
    def stdout_size(self) -> int:
        """Bytes of `stdout`."""
        return len(self.stdout.encode())

    @property
    def stderr_size(self) -> int:
        """Bytes of `stderr`."""
        return len(self.stderr.encode())

    def loglines(self, stream: str, as_unicode: bool = True) -> Iterator[tuple[datetime, Any]]:
        """Times, in UTC and without a zone as Metaflow's are, and lines of a stream; texts, or bytes."""
        logs, key = self._run.store.logs, (self._row.run_id, self._row.key)
        attempt = max(logs.attempts(*key), default=0) if self._attempt is None else self._attempt + 1
        for line in logs.lines(*key, attempt, stream=stream, rank=self.node):
            time = datetime.fromtimestamp(line.time, timezone.utc).replace(tzinfo=None)
            yield time, line.text if as_unicode else line.text.encode()

    def _lines(self, stream: str) -> str:
        return "".join(f"{text}\n" for _, text in self.loglines(stream))

    @property
    def metadata(self) -> list[Metadata]:
        """What is known of its attempts beside artifacts, the earliest first; of the chosen one, if one was chosen."""
        lineage = Lineage(self._run, rows_by_step(self._run))
        splits = lineage.splits(self._row.name)
        gang = lineage.is_gang(self._row.name)
        around = (*splits, *lineage.before[self._row.name]) if gang else splits
        return metadata_of(self, around, lineage.python, gang=gang)

    @property
    def metadata_dict(self) -> dict[str, str]:
        """The last value of each name of `metadata`."""
        return {one.name: one.value for one in self.metadata}

    @property
    def code(self) -> MetaflowCode | None:
        """The files of the run's code, as they were; None where they were not kept."""
        return code_of(self._run)

    @property
    def environment_info(self) -> None:
        """None: what a task's environment is made of stands in the run's plan, `stoker show RUN` has it."""

    @property
    def artifacts(self) -> Any:
        """Its artifacts by name, not loaded."""
        return TaskArtifacts({artifact.id: artifact for artifact in self})

    @property
    def data(self) -> TaskData:
        """Its artifacts as attributes, loaded when they are read."""
        return TaskData({artifact.id: artifact for artifact in self})

    def every_artifact(self, *, private: bool) -> list[DataArtifact]:
        """Its artifacts; with `private` also those whose names begin with an underscore."""
        return [artifact for name, artifact in self._artifacts_by_name().items() if private or name[0] != "_"]

    def _children(self) -> list[DataArtifact]:
        return self.every_artifact(private=False)

    def __getitem__(self, name: str) -> DataArtifact:
        artifacts_by_name = self._artifacts_by_name()
        if name not in artifacts_by_name:
            raise KeyError(f"task {self.pathspec} has no artifact '{name}'{nearest(name, artifacts_by_name)}")
        return artifacts_by_name[name]

    def _artifacts_by_name(self) -> dict[str, DataArtifact]:
        store = self._run.store
        rows: dict[str, StoredArtifact] = {}
        if self._is_last:
            rows = {row.name: row.artifact for row in store.records.outputs(self._row.run_id, self._row.key)}
        if self.node is not None and rows:
            part = rows.pop(GANG)
            if part.serializer == "list":
                part = artifacts.items(part, store.blobs)[self.node]
            rows = {name: from_wire(wire) for name, wire in artifacts.load(part, store.blobs).items()}
        return {
            name: DataArtifact(f"{self.pathspec}/{name}", _of=(self, artifact))
            for name, artifact in {**wired_constants(self._run), **rows}.items()
            if name not in OWN
        }

    def __repr__(self) -> str:
        attempt = "" if self._attempt is None else f", attempt={self._attempt}"
        return f"Task('{self.pathspec}'{attempt})"


class DataArtifact(MetaflowObject):
    """One artifact of a task."""

    _parts = 5
    _artifact: StoredArtifact

    def __init__(
        self,
        pathspec: str,
        attempt: int | None = None,
        *,
        _of: tuple[Task, StoredArtifact] | None = None,
        _namespace: Any = UNSET,
    ) -> None:
        super().__init__(pathspec, _namespace)
        if _of is None:
            *_, name = parts_of(pathspec, type(self).__name__, self._parts)
            task = Task(pathspec.rpartition("/")[0], attempt, _namespace=self._namespace)
            try:
                _of = (task, task[name]._artifact)
            except KeyError as error:
                raise MetaflowNotFound(str(error.args[0])) from None
        self._task, self._artifact = _of
        self._run, self._namespace, self._attempt = self._task._run, self._task._namespace, self._task._attempt

    @property
    def parent(self) -> Task:
        """Its task."""
        return self._task

    @property
    def origin_pathspec(self) -> str | None:
        """The artifact of the task that its own repeats; None for one that ran."""
        origin = self._task.origin_pathspec
        return None if origin is None else f"{origin}/{self.id}"

    @property
    def data(self) -> Any:
        """The value."""
        return artifacts.load(self._artifact, self._run.store.blobs)

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

    @property
    def created_at(self) -> datetime:
        """When its task ended, or began while it runs."""
        return self._task.finished_at or self._task.created_at

    @property
    def finished_at(self) -> datetime:
        """The same."""
        return self.created_at


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

    def __dir__(self) -> list[str]:
        return [*self._artifacts, *super().__dir__()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._artifacts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._artifacts,)


class TaskData(TaskArtifacts):
    """A task's values as attributes."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name).data


def view_of(run: StoredRun) -> Run:
    """A run of the store as a view, in whichever namespace it is."""
    return Run(f"{run.pipeline}/{run.id}", _of=run, _namespace=None)


def _naive(time: datetime) -> datetime:
    """A time as Metaflow has it: of this machine's zone, without the zone."""
    return time.astimezone().replace(tzinfo=None)


def _time(seconds: float) -> datetime:
    return _naive(local_time(seconds))
