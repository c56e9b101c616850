"""The active stack as ZenML's code asks for it: what is there answers, and what is not is false and says so."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any, NoReturn

from stoker import stacks
from stoker.core.errors import UsageError
from stoker.core.usercode import caller
from stoker.migrate import zenml


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
