"""`Client()` as ZenML's code asks it: runs, artifacts, models and secrets of the active stack's store."""

from __future__ import annotations

import logging
import os
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, Iterator, Mapping, NoReturn, Sequence, TypeVar

from stoker import stacks
from stoker.core.errors import NotFound, StokerError, UsageError
from stoker.core.usercode import caller
from stoker.integrations.zenml.parts import note
from stoker.integrations.zenml.parts.versions import (
    ArtifactVersion,
    Model,
    NoSuchVersion,
    find_artifact,
    find_in_pipeline,
    store_client,
)
from stoker.migrate import zenml
from stoker.worker.context import context

T = TypeVar("T")


class Page(Generic[T]):
    """A page of a list: it iterates, and `items` are its own."""

    def __init__(self, items: Sequence[T], index: int = 1, max_size: int = 50) -> None:
        self.items = list(items)
        self.index = index
        self.max_size = max_size
        self.total = (index - 1) * max_size + len(self.items)
        self.total_pages = index

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __getitem__(self, which: Any) -> Any:
        return self.items[which]

    def __len__(self) -> int:
        return len(self.items)


class _Outputs(list[ArtifactVersion]):
    """The outputs of one name; what a single one has, the list has, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not self:
            raise AttributeError(name)
        return getattr(self[0], name)


class StepRun:
    """A step of a run."""

    def __init__(self, step: Any) -> None:
        self.of = step
        self.name = step.key
        self.id = f"{step.run_id}/{step.key}"
        self.status = _STATUS.get(step.status, step.status)

    @property
    def outputs(self) -> dict[str, _Outputs]:
        """Its outputs by name."""
        return {name: _Outputs([ArtifactVersion(output)]) for name, output in self.of.outputs.items()}

    @property
    def output(self) -> ArtifactVersion:
        """Its only output."""
        if len(self.of.outputs) != 1:
            raise UsageError(f"step '{self.name}' has {len(self.of.outputs)} outputs: use .outputs", where=caller())
        return next(iter(self.outputs.values()))[0]

    @property
    def run_metadata(self) -> dict[str, Any]:
        """What it logged, and what was logged of it."""
        return {**self.of.metrics.facts, **self.of.metadata}

    def __repr__(self) -> str:
        return repr(self.of)


class PipelineRun:
    """A run."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.id = run.id
        self.extra: Mapping[str, Any] = {}

    @classmethod
    def by_id(cls, id: str, extra: Mapping[str, Any]) -> PipelineRun:
        """A run that is read when more than its id is asked for."""
        made = cls(SimpleNamespace(id=id))
        made._run = None
        made.extra = extra
        return made

    @property
    def of(self) -> Any:
        """Stoker's own."""
        if self._run is None:
            self._run = store_client().run(self.id)
        return self._run

    @property
    def name(self) -> str:
        """Its id, by which it is found."""
        return str(self.id)

    @property
    def status(self) -> str:
        """Its status by ZenML's word."""
        return _STATUS.get(self.of.status, self.of.status)

    @property
    def steps(self) -> dict[str, StepRun]:
        """Its steps by key."""
        return {key: StepRun(step) for key, step in self.of.steps.items()}

    @property
    def pipeline(self) -> Any:
        """The pipeline's name."""
        return SimpleNamespace(name=self.of.pipeline, id=self.of.pipeline)

    @property
    def config(self) -> Any:
        """The pipeline's `extra`."""
        return SimpleNamespace(extra=self.extra, parameters=None, name=self.name)

    @property
    def stack(self) -> ActiveStack:
        """The active stack."""
        return ActiveStack()

    @property
    def run_metadata(self) -> dict[str, Any]:
        """What was logged of the run."""
        return dict(getattr(self.of, "metadata", {}))

    start_time = property(lambda self: self.of.started)
    end_time = property(lambda self: self.of.ended)
    creation_time = created = property(lambda self: self.of.created)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.of, name)

    def __repr__(self) -> str:
        return repr(self.of)


_STATUS: Mapping[str, str] = {"succeeded": "completed", "success": "completed"}


class PipelineView:
    """A pipeline with its runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = name

    def get_runs(self, size: int = 50, page: int = 1, **filters: Any) -> list[PipelineRun]:
        """Its runs, newest first."""
        return list(Client().list_pipeline_runs(pipeline_name=self.name, size=size, page=page, **filters))

    @property
    def runs(self) -> list[PipelineRun]:
        """Its runs, newest first."""
        return self.get_runs()

    @property
    def last_run(self) -> PipelineRun:
        """Its newest run."""
        return self._first()

    @property
    def last_successful_run(self) -> PipelineRun:
        """Its newest run that succeeded."""
        return self._first(status="completed")

    def _first(self, **filters: Any) -> PipelineRun:
        runs = self.get_runs(size=1, **filters)
        if not runs:
            raise NoSuchVersion(f"pipeline '{self.name}' has no such run", where=caller())
        return runs[0]


class SecretValues(Mapping[str, str]):
    """The values of a secret: those that `stoker secret` keeps, or the environment's variables `NAME_FIELD`."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _kept(self) -> Mapping[str, str]:
        try:
            values: Mapping[str, str] = store_client().secret(self._name.replace(" ", "-")).secret_values
        except StokerError:
            return {}
        return values

    def __getitem__(self, key: str) -> str:
        variable = "".join(letter if letter.isalnum() else "_" for letter in f"{self._name}_{key}").upper()
        value = self._kept.get(key, os.environ.get(variable))
        if value is not None:
            return value
        fix = f"`stoker secret set {self._name} --field {key}`, or the variable {variable}"
        if context:
            raise NoSuchVersion(f"secret '{self._name}' has no value '{key}'", fix=fix)
        note(f"secret '{self._name}' has no value '{key}', and is empty until it has: {fix}")
        return ""

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Client:
    """Reads the active stack's store by ZenML's names; `of` is Stoker's own client."""

    def __init__(self, root: Any = None) -> None:
        self._root = root

    @cached_property
    def of(self) -> Any:
        """Stoker's client."""
        return store_client()

    # The stack

    @property
    def active_stack(self) -> ActiveStack:
        """The active stack."""
        return ActiveStack()

    active_stack_model = active_stack

    def get_stack(self, *args: Any, **kwargs: Any) -> ActiveStack:
        """The active stack."""
        return ActiveStack()

    def activate_stack(self, stack_name_id_or_prefix: Any) -> None:
        """Use another stack of stoker.toml; where there is none of the name, the active one stays."""
        if stack_name_id_or_prefix in [stack.name for stack in stacks.stacks()]:
            os.environ[stacks.NAMED] = str(stack_name_id_or_prefix)
        else:
            note(f"there is no stack '{stack_name_id_or_prefix}' in stoker.toml: the active one stays")

    @property
    def root(self) -> Path:
        """The folder of the project."""
        return Path(self._root or os.getcwd())

    @property
    def active_user(self) -> Any:
        """Who runs."""
        import getpass

        name = getpass.getuser()
        return SimpleNamespace(name=name, id=name, full_name=name)

    @property
    def active_project(self) -> Any:
        """There are no projects: a stack has a store of its own."""
        return SimpleNamespace(name="default", id="default")

    active_workspace = active_project

    @property
    def zen_store(self) -> Any:
        """There is no server: the address is that of the store."""
        return SimpleNamespace(url=self.of.store.records.database.label, get_store_info=SimpleNamespace)

    # Artifacts

    def get_artifact_version(self, name_id_or_prefix: Any, version: Any = None, hydrate: bool = True) -> Any:
        """A version of an artifact, by default the latest."""
        return find_in_pipeline(name_id_or_prefix, version)

    def get_artifact(self, name_id_or_prefix: Any, hydrate: bool = True) -> Any:
        """An artifact, as its latest version; its `versions` are all."""
        return find_in_pipeline(name_id_or_prefix)

    def list_artifact_versions(
        self, artifact: Any = None, name: Any = None, size: int = 50, page: int = 1, **filters: Any
    ) -> Page[ArtifactVersion]:
        """Versions of an artifact, newest first; without a name, the latest of each."""
        key = artifact or name or filters.get("name_id_or_prefix")
        if key is None:
            return self.list_artifacts(size=size, page=page)
        try:
            versions = find_artifact(key).of.versions
        except NoSuchVersion:
            versions = []
        begin = (page - 1) * size
        return Page(list(map(ArtifactVersion, versions[begin : begin + size])), page, size)

    def list_artifacts(self, name: str = "", size: int = 50, page: int = 1, **filters: Any) -> Page[ArtifactVersion]:
        """The latest version of each artifact."""
        found = self.of.artifacts(text=name or "", limit=size, offset=(page - 1) * size)
        return Page(list(map(ArtifactVersion, found)), page, size)

    # Models

    def get_model(self, model_name_or_id: str, **others: Any) -> Model:
        """A model, as its latest version."""
        return self.get_model_version(model_name_or_id)

    def get_model_version(
        self, model_name_or_id: Any = None, model_version_name_or_number_or_id: Any = None, **others: Any
    ) -> Model:
        """A version of a model, by default the latest; a `KeyError` where there is none."""
        model = Model(name=str(model_name_or_id), version=model_version_name_or_number_or_id)
        return Model.of_version(model.of)

    def list_model_versions(
        self, model_name_or_id: Any = None, size: int = 50, page: int = 1, **filters: Any
    ) -> Page[Model]:
        """Versions of a model, newest first."""
        try:
            name = model_name_or_id or filters.get("model")
            versions = Model(name=str(name)).of.versions
        except NoSuchVersion:
            versions = []
        begin = (page - 1) * size
        return Page(list(map(Model.of_version, versions[begin : begin + size])), page, size)

    def list_models(self, name: str = "", size: int = 50, page: int = 1, **filters: Any) -> Page[Model]:
        """The latest version of each model."""
        found = self.of.models(text=name or "", limit=size, offset=(page - 1) * size)
        return Page(list(map(Model.of_version, found)), page, size)

    def create_model_version(
        self, model_name_or_id: str, name: str | None = None, description: str = "", tags: Any = (), **others: Any
    ) -> Model:
        """A new version of a model."""
        names = [*map(str, tags or ()), *([name] if name else [])]
        return Model.of_version(self.of.create_model_version(model_name_or_id, description=description, tags=names))

    def update_model_version(
        self, model_name_or_id: str, version_name_or_id: Any, stage: Any = None, force: bool = False, **others: Any
    ) -> Model:
        """Give a version another stage."""
        model = Model(name=model_name_or_id, version=version_name_or_id)
        if stage is not None:
            model.set_stage(stage, force=force)
        return model

    # Runs

    def get_pipeline(self, name_id_or_prefix: Any, **others: Any) -> PipelineView:
        """A pipeline by its name."""
        return PipelineView(str(name_id_or_prefix))

    def get_pipeline_run(self, name_id_or_prefix: Any, **others: Any) -> PipelineRun:
        """A run by its id."""
        try:
            return PipelineRun(self.of.run(str(name_id_or_prefix)))
        except NotFound as error:
            raise NoSuchVersion(error.message, fix=error.fix) from None

    def list_pipeline_runs(
        self, pipeline_name: str | None = None, status: Any = None, size: int = 50, page: int = 1, **filters: Any
    ) -> Page[PipelineRun]:
        """Runs, newest first."""
        words = {theirs: ours for ours, theirs in _STATUS.items() if ours != "success"}
        asked = None if status is None else str(getattr(status, "value", status))
        runs = self.of.runs(
            pipeline_name or filters.get("pipeline_id") or filters.get("pipeline"),
            status=words.get(asked or "", asked),
            limit=size,
            offset=(page - 1) * size,
        )
        return Page(list(map(PipelineRun, runs)), page, size)

    # Secrets

    def get_secret(self, name_id_or_prefix: Any, *args: Any, **kwargs: Any) -> Any:
        """A secret, whose values `stoker secret` keeps, or the environment's variables `NAME_FIELD`."""
        values = SecretValues(str(name_id_or_prefix))
        return SimpleNamespace(name=str(name_id_or_prefix), secret_values=values, values=values)

    get_secret_by_name_and_scope = get_secret

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(f"Client().{name} is not here: docs/guide/client.md has what there is to read", where=caller())


class Component:
    """A component of the stack; one that is not there is false, and its name is None."""

    def __init__(
        self, kind: str, name: str | None = None, flavor: str = "", *, there: bool = False, **attributes: Any
    ) -> None:
        self._kind = kind
        self._there = there or name is not None
        self.name = name
        self.flavor = flavor
        self.id = name
        self.__dict__.update(attributes)

    def __bool__(self) -> bool:
        return self._there

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        advice = zenml.COMPONENTS.get(self._kind, "docs/guide/from-zenml.md has what there is")
        raise UsageError(f"active_stack.{self._kind}.{name} is not here: {advice}", where=caller())


class Alerter(Component):
    """Messages go to the log."""

    def post(self, message: Any = None, params: Any = None) -> bool:
        """Write a message to the log."""
        logging.getLogger("stoker.alerter").warning("%s", message)
        return True


class ExperimentTracker(Component):
    """Names none: a step calls the tracker's own package."""

    def get_tracking_uri(self, *args: Any, **kwargs: Any) -> str:
        """MLflow's address, as its variable says."""
        return os.environ.get("MLFLOW_TRACKING_URI", "mlruns")

    def configure_mlflow(self) -> None:
        """MLflow reads its own variables."""


class Trackers(type):
    """Whatever class of trackers the code asks for, the active one is of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ExperimentTracker)

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"{cls.__name__} is not made here: {zenml.COMPONENTS['experiment_tracker']}", where=caller())


class ActiveStack:
    """The stack that is active."""

    def __init__(self) -> None:
        self._stack = stacks.load(None)
        self.name = self._stack.name
        self.id = self._stack.name

    @property
    def components(self) -> dict[str, Any]:
        """Its components by kind."""
        return {kind: getattr(self, kind) for kind in ("orchestrator", "artifact_store", "step_operator")}

    @property
    def orchestrator(self) -> Component:
        """Where steps run."""
        part = self._stack.orchestrator
        config = SimpleNamespace(
            is_local=part.flavor in ("local", "inline"), is_remote=part.flavor not in ("local", "inline")
        )
        return Component("orchestrator", "orchestrator", part.flavor, config=config)

    @property
    def artifact_store(self) -> Component:
        """Where artifacts are kept."""
        path = self._stack.artifact_store or str(self._stack.home)
        return Component(
            "artifact_store", "artifact_store", path.partition("://")[0] if "://" in path else "local", path=path
        )

    @property
    def step_operator(self) -> Component:
        """The stack's first step operator; where it has none, steps run where the orchestrator runs them."""
        return Component("step_operator", next(iter(self._stack.step_operators), None), there=True)

    @property
    def experiment_tracker(self) -> ExperimentTracker:
        """A tracker that does nothing."""
        return ExperimentTracker("experiment_tracker", "experiment_tracker")

    @property
    def alerter(self) -> Alerter:
        """An alerter that writes to the log."""
        return Alerter("alerter")

    def __getattr__(self, name: str) -> Component:
        if name.startswith("_"):
            raise AttributeError(name)
        return Component(name)


def get_tracking_uri() -> str:
    """MLflow's address, as its variable says."""
    return ExperimentTracker("experiment_tracker").get_tracking_uri()


def alerter_failure_hook(exception: Any) -> None:
    """Write a failure to the log."""
    Alerter("alerter").post(f"failed: {exception}")


def alerter_success_hook() -> None:
    """Write a success to the log."""
    Alerter("alerter").post("succeeded")
