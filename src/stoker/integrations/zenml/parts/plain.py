"""Small names of ZenML's: loggers, schedules, tags, `unmapped`."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from stoker.integrations.zenml.parts import note
from stoker.integrations.zenml.parts.context import get_step_context, save_artifact
from stoker.integrations.zenml.parts.steps import Step, Unmapped
from stoker.integrations.zenml.parts.versions import ArtifactVersion, Model, find_artifact
from stoker.pipelines.tracing import ACTIVE
from stoker.worker.memory import cleanup_memory

__version__: Final = "0.94.0"
"""The release of ZenML whose names are served."""
unmapped: Final = Unmapped


def get_logger(name: str) -> logging.Logger:
    """A logger whose messages of level INFO are shown, as ZenML's are, unless the program configures logging."""
    if not logging.getLogger().handlers:
        level = os.environ.get("ZENML_LOGGING_VERBOSITY", "INFO")
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        logging.getLogger(name).setLevel(level)
    return logging.getLogger(name)


def cleanup_gpu_memory(force: bool = False) -> None:
    """Free the accelerator's memory that nothing uses."""
    cleanup_memory()


def run_with_accelerate(step: Any = None, /, **arguments: Any) -> Any:
    """Run a step's ranks under Accelerate; as a function in a pipeline's body, too."""
    from stoker.integrations import huggingface
    from stoker.launchers.accelerate import Accelerate

    if ACTIVE.get() is None or not isinstance(step, Step):
        return (
            huggingface.run_with_accelerate(step, **arguments) if step else huggingface.run_with_accelerate(**arguments)
        )
    return step.with_options(launch=Accelerate(**arguments))


class Schedule(SimpleNamespace):
    """When a pipeline is to run, which `stoker schedule add` does here."""


class Tag(SimpleNamespace):
    """A tag; its name counts."""

    def __init__(self, name: str, **others: Any) -> None:
        super().__init__(name=name, **others)


class GlobalConfiguration:
    """ZenML's settings of a user, of which a server's address and an id are asked for."""

    store_configuration = SimpleNamespace(url="")
    user_id = ""
    analytics_opt_in = False

    @property
    def config_directory(self) -> str:
        """The folder in which Stoker keeps its history."""
        from stoker.stacks import load

        return str(load(None).home)


def get_environment() -> str:
    """Where this runs."""
    return platform.system().lower()


def get_run_url(run: Any) -> str:
    """How to see a run."""
    return f"stoker show {run.id}"


def register_artifact(folder_or_file_uri: str, name: str, **others: Any) -> Any:
    """Save a file or a folder of this machine under a name."""
    return save_artifact(Path(folder_or_file_uri), name, tags=others.get("tags"))


def link_artifact_to_model(artifact_version: Any, model: Any = None, **others: Any) -> None:
    """Add a version of an artifact to a version of a model."""
    if model is None:
        model = get_step_context().model
    version = artifact_version if isinstance(artifact_version, ArtifactVersion) else find_artifact(artifact_version)
    (model if isinstance(model, Model) else Model(name=str(model))).of.link(version.of)


def show(*args: Any, **kwargs: Any) -> None:
    """Say how to look at runs."""
    note("`stoker runs`, `stoker show latest` and `stoker ui` show what there is")


class _Integrations:
    """ZenML's integrations, whose packages a step imports itself."""

    def select_integration_requirements(self, name: str, *args: Any, **kwargs: Any) -> list[str]:
        """The package that has the integration's name."""
        return [name]


class _Materializers:
    """The registry of materializers: Stoker's serializers."""

    def register_materializer_type(self, key: type, type_: Any) -> None:
        """Let a materializer save and load values of a type."""
        type_.serve(key)

    register_and_overwrite_type = register_materializer_type


integration_registry: Final = _Integrations()
materializer_registry: Final = _Materializers()
