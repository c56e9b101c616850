"""`from stoker.flow import current`: what a running task of a flow knows of itself, by Metaflow's names.

Stands on `worker.context`, which knows the run, the attempt and the place among nodes. What is the same for the whole
run comes in an environment variable, so that it makes no difference to what a result is cached by.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping, NamedTuple

import attrs

from stoker.core.errors import UsageError, nearest
from stoker.launchers.base import LOOPBACK, Launcher
from stoker.worker.context import context

if TYPE_CHECKING:
    from stoker.flows.client import Run, Task

VARIABLE: Final = "STOKER_FLOW_RUN"
"""JSON: {"flow", "tags", "user", "namespace", "origin", "project", "branch", "production"}."""


class Parallel(NamedTuple):
    """A task's place in a `num_parallel`: where node 0 is reached, how many nodes, which one this is, node 0's task."""

    main_ip: str
    num_nodes: int
    node_index: int
    control_task_id: str


class _Parameters:
    """`current.parameters`: their values as attributes."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        names = self._task.parameters() if not name.startswith("__") else ()
        parameter = next((one for one in names if one.replace("-", "_") == name), None)
        if parameter is None:
            raise AttributeError(f"the flow has no parameter '{name}'{nearest(name, names)}")
        return self._task.parameter(parameter)

    def __iter__(self) -> Iterator[str]:
        return iter(self._task.parameters())

    def get(self, name: str, default: Any = None) -> Any:
        """A parameter's value, or a default where there is none."""
        return self._task.parameter(name) if self._task.has_parameter(name) else default


class Current:
    """The task that runs in this process.

    Where none runs, what tells of one is None; in a parameter's default `flow_name` and what tells of the project are
    known already. What a task works with, such as `card`, is a `UsageError` there.
    """

    def __init__(self) -> None:
        self._task: Any = None
        self._run: dict[str, Any] = {}
        self._resources: dict[str, Any] = {}

    @property
    def is_running_flow(self) -> bool:
        """Whether a task of a flow runs here."""
        return self._task is not None

    @property
    def flow_name(self) -> str | None:
        """The flow's name."""
        return self._run_value("flow") or None

    @property
    def run_id(self) -> str | None:
        """The run's id."""
        return None if self._task is None else context.run_id

    @property
    def step_name(self) -> str | None:
        """The step's name."""
        return None if self._task is None else str(self._task.place["step"])

    @property
    def task_id(self) -> str | None:
        """The task's key in its run: the step's name, with the index in a foreach, or the node's: "train[3]"."""
        if self._task is None:
            return None
        gang = self._task.place.get("parallel")
        return context.step if gang is None else f"{context.step}[{context.node}]"

    @property
    def pathspec(self) -> str | None:
        """Flow, run, step and task."""
        if self._task is None:
            return None
        return f"{self.flow_name}/{self.run_id}/{self.step_name}/{self.task_id}"

    @property
    def task(self) -> Task | None:
        """The task as the client has it, in any namespace."""
        if self._task is None:
            return None
        from stoker.flows.client import Task
        from stoker.flows.namespaces import stored_run
        from stoker.store.rows import StepRow

        # An element of a foreach has its row when it has ended.
        parent, _, index = context.step.rpartition("[")
        idx = int(index.removesuffix("]")) if parent else None
        name = str(self.step_name)
        row = StepRow(run_id=context.run_id, key=context.step, name=name, parent=parent, idx=idx, status="running")
        run = stored_run(str(self.flow_name), context.run_id, None)
        return Task(str(self.pathspec), _of=(run, row, context.node if self.is_parallel else None), _namespace=None)

    @property
    def run(self) -> Run | None:
        """The run as the client has it, in any namespace."""
        from stoker.flows.client import Run

        return None if self._task is None else Run(f"{self.flow_name}/{self.run_id}", _namespace=None)

    @property
    def retry_count(self) -> int | None:
        """0 at the first try."""
        return None if self._task is None else context.attempt - 1

    @property
    def origin_run_id(self) -> str | None:
        """The run that this one repeats: `resume` and `stoker rerun` start such runs. None in any other run."""
        return self._run_value("origin") or None

    @property
    def namespace(self) -> str | None:
        """The namespace of the run: "user:" and the name of the user who started it, unless another was given."""
        return self._run_value("namespace") or None

    @property
    def username(self) -> str | None:
        """Who started the run."""
        return self._run_value("user") or None

    @property
    def tags(self) -> set[str]:
        """The tags that were given to the run; those that Stoker adds for namespace and project are not among them."""
        return set(self._run_value("tags") or ())

    @property
    def graph(self) -> dict[str, Any]:
        """The flow's steps, parameters and constants as plain values: `current.graph["steps"]["train"]["next"]`."""
        return dict(self._require_task("graph").flow._graph_info)

    @property
    def parameters(self) -> _Parameters:
        """The flow's parameters as attributes."""
        return _Parameters(self._require_task("parameters"))

    @property
    def parameter_names(self) -> list[str] | None:
        """The attributes of the flow that are its parameters and configs."""
        return None if self._task is None else self._task.parameter_names()

    @property
    def tempdir(self) -> str | None:
        """A folder for the task's scratch files, which is removed after it."""
        if self._task is None:
            return None
        if "tempdir" not in self._resources:
            self._resources["tempdir"] = tempfile.mkdtemp(prefix="stoker-task-")
        return str(self._resources["tempdir"])

    @property
    def is_parallel(self) -> bool:
        """Whether the task runs on the nodes of a `num_parallel`."""
        return self._task is not None and self._task.place.get("parallel") is not None

    @property
    def parallel(self) -> Parallel:
        """The task's place among the nodes of a `num_parallel`; alone, it is node 0 of 1."""
        gang = self._require_task("parallel").place.get("parallel")
        if gang is None:
            return Parallel(LOOPBACK, 1, 0, context.step)
        head = os.environ.get("MASTER_ADDR", LOOPBACK)
        return Parallel(head, int(gang[0]), context.node, f"{gang[1]}[0]")

    @property
    def project_name(self) -> str | None:
        """Of a flow with `@project`."""
        return self._run_value("project") or None

    @property
    def branch_name(self) -> str | None:
        """Of a flow with `@project`."""
        return self._run_value("branch") or None

    @property
    def is_production(self) -> bool:
        """Whether the `@project` says so."""
        return bool(self._run_value("production"))

    @property
    def is_user_branch(self) -> bool:
        """Whether neither a branch nor production was asked for."""
        return bool(self.branch_name) and str(self.branch_name).startswith("user.")

    @property
    def project_flow_name(self) -> str | None:
        """Project, branch and flow, with dots."""
        if not self.project_name:
            return None
        return f"{self.project_name}.{self.branch_name}.{self.flow_name}"

    @property
    def checkpoint(self) -> Any:
        """What every attempt of the task gets again: `directory`, `is_loaded`, `save()`, `list()`, `load()`."""
        from stoker.flows.checkpoint import CurrentCheckpoint

        task = self._require_task("checkpoint")
        if "checkpoint" not in self._resources:
            values = task.note("checkpoint")
            if values is None:
                raise AttributeError("current.checkpoint is there in steps with @checkpoint only")
            location = self._checkpoint_location()
            self._resources["checkpoint"] = CurrentCheckpoint(location, values["load_policy"], values["temp_dir_root"])
        return self._resources["checkpoint"]

    def _checkpoint_location(self) -> Any:
        from stoker.flows import checkpoint as flowcheckpoint

        scopes = sorted(tag for tag in self.tags if tag.startswith(flowcheckpoint.SCOPE))
        return flowcheckpoint.location_of(
            context.checkpoint_dir,
            str(self.pathspec),
            attempt=context.attempt - 1,
            scope=scopes[0] if scopes else str(self.namespace),
            elements=self._task.digests(),
            nodes=self.parallel.num_nodes,
        )

    @property
    def huggingface_hub(self) -> Any:
        """The repositories of the hub that the task's step loads: `loaded["org/model"]` is a path."""
        from stoker.flows.decorators import LoadedRepositories
        from stoker.worker.data import data

        values = self._require_task("huggingface_hub").note("huggingface_hub")
        if values is None:
            raise AttributeError("current.huggingface_hub is there in steps with @huggingface_hub only")
        return LoadedRepositories(values["load"], data)

    @property
    def card(self) -> Any:
        """The cards of the task: `append(Markdown("…"))`, and `current.card["id"]` for a `@card` with an id."""
        task = self._require_task("card")
        if task.cards is None:
            raise AttributeError("current.card is there in steps with @card only")
        return task.cards

    @property
    def devices(self) -> Any:
        """The accelerators that the task holds."""
        self._require_task("devices")
        return context.devices

    def get(self, key: str, default: Any = None) -> Any:
        """A property by its name, or a default where it is not known."""
        try:
            value = None if key.startswith("_") else getattr(self, key)
        except (AttributeError, UsageError):
            return default
        return default if value is None else value

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from stoker.flows.launch import launcher_of

        launcher = launcher_of(name)
        if launcher is not None:
            return self._launching(name, launcher)
        if hasattr(type(self), name):  # Python asks here, too, when a property raises an AttributeError
            raise AttributeError(f"current.{name} is there in steps with @{name} only")
        names = [word for word in dir(type(self)) if not word.startswith("_")]
        raise AttributeError(f"current has no '{name}'{nearest(name, names)}")

    def _launching(self, name: str, launcher: Launcher) -> Any:
        from stoker.flows.launch import launching

        task = self._require_task(name)
        values = task.note(launcher.name)
        if values is None:
            raise AttributeError(f"current.{name} is there in steps with @{launcher.name} only")
        return launching(launcher, values, task.token)

    def __repr__(self) -> str:
        return f"<current: {self.pathspec}>" if self._task is not None else "<current: no task runs here>"

    def __reduce__(self) -> str:
        return "current"

    def _require_task(self, attribute: str) -> Any:
        if self._task is None:
            raise UsageError(f"current.{attribute} is asked for where no task runs", fix="read it inside a step")
        return self._task

    def _run_value(self, name: str) -> Any:
        return self._run.get(name)


current: Final = Current()
"""The only instance."""


@contextlib.contextmanager
def enter_start(run: Mapping[str, Any]) -> Iterator[None]:
    """While it lasts, `current` knows what is said of a run before it begins."""
    previous, current._run = current._run, dict(run)
    try:
        yield
    finally:
        current._run = previous


@contextlib.contextmanager
def enter_task(task: Any) -> Iterator[None]:
    """While it lasts, `current` is that of a task."""
    previous = (current._task, current._run, current._resources)
    current._task, current._resources = task, {}
    current._run = json.loads(os.environ.get(VARIABLE, "{}"))
    if task.note("checkpoint") is not None:
        from stoker.flows import checkpoint as flowcheckpoint

        os.environ[flowcheckpoint.VARIABLE] = json.dumps(attrs.asdict(current._checkpoint_location()))
    try:
        yield
    finally:
        if "tempdir" in current._resources:
            import shutil

            shutil.rmtree(current._resources["tempdir"], ignore_errors=True)
        if "checkpoint" in current._resources:
            current._resources["checkpoint"].close()
        current._task, current._run, current._resources = previous
