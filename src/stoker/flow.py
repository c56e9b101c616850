"""The class form of a pipeline, by Metaflow's names: `from stoker.flow import FlowSpec, step`.

Names are imported when they are first used. docs/flows.md says of every name of Metaflow's whether and how it is here.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from stoker.core.cards import Artifact, Frame, Image, Markdown, ProgressBar, Table
    from stoker.core.graph import CaughtFailure
    from stoker.core.secret import Secret
    from stoker.flows.checkpoint import Checkpoint
    from stoker.flows.client import (
        DataArtifact,
        Flow,
        Metaflow,
        Run,
        Step,
        Task,
    )
    from stoker.flows.current import current
    from stoker.flows.datatools import S3
    from stoker.flows.decorators import (
        accelerate,
        airflow_external_task_sensor,
        airflow_s3_key_sensor,
        cache,
        card,
        catch,
        checkpoint,
        conda,
        conda_base,
        deepspeed,
        environment,
        exit_hook,
        gpu_profile,
        huggingface_hub,
        mpi,
        parallel,
        project,
        pypi,
        pypi_base,
        pytorch_parallel,
        resources,
        retry,
        schedule,
        secrets,
        timeout,
        torchrun,
        trigger,
        trigger_on_finish,
        uv,
    )
    from stoker.flows.instance import step
    from stoker.flows.mutators import FlowMutator, MutableFlow, MutableStep, StepMutator
    from stoker.flows.namespaces import (
        default_metadata,
        default_namespace,
        get_metadata,
        get_namespace,
        metadata,
        namespace,
    )
    from stoker.flows.parameters import (
        Config,
        ConfigValue,
        IncludeFile,
        JSONType,
        JSONTypeClass,
        Parameter,
        config_expr,
    )
    from stoker.flows.parsers import (
        conda_environment_yml_parser,
        pyproject_toml_parser,
        requirements_txt_parser,
        yaml_parser,
    )
    from stoker.flows.runner import ExecutingRun, NBRunner, Runner
    from stoker.flows.spec import FlowSpec
    from stoker.flows.standins import (
        namespaced_event_name,
        package_sources,
        parallel_imap_unordered,
        parallel_map,
        profile,
    )
    from stoker.flows.user_decorators import USER_SKIP_STEP, UserStepDecorator, user_step_decorator

    cards: ModuleType
    datatools: ModuleType
    batch: Callable[..., Any]
    kubernetes: Callable[..., Any]
    ray: Callable[..., Any]
    slurm: Callable[..., Any]

__all__ = [
    "S3",
    "USER_SKIP_STEP",
    "Artifact",
    "CaughtFailure",
    "Checkpoint",
    "Config",
    "ConfigValue",
    "DataArtifact",
    "ExecutingRun",
    "Flow",
    "FlowMutator",
    "FlowSpec",
    "Frame",
    "Image",
    "IncludeFile",
    "JSONType",
    "JSONTypeClass",
    "Markdown",
    "Metaflow",
    "MutableFlow",
    "MutableStep",
    "NBRunner",
    "Parameter",
    "ProgressBar",
    "Run",
    "Runner",
    "Secret",
    "Step",
    "StepMutator",
    "Table",
    "Task",
    "UserStepDecorator",
    "accelerate",
    "airflow_external_task_sensor",
    "airflow_s3_key_sensor",
    "batch",
    "cache",
    "card",
    "cards",
    "catch",
    "checkpoint",
    "conda",
    "conda_base",
    "conda_environment_yml_parser",
    "config_expr",
    "current",
    "datatools",
    "deepspeed",
    "default_metadata",
    "default_namespace",
    "environment",
    "exit_hook",
    "get_metadata",
    "get_namespace",
    "gpu_profile",
    "huggingface_hub",
    "kubernetes",
    "metadata",
    "mpi",
    "namespace",
    "namespaced_event_name",
    "package_sources",
    "parallel",
    "parallel_imap_unordered",
    "parallel_map",
    "profile",
    "project",
    "pypi",
    "pypi_base",
    "pyproject_toml_parser",
    "pytorch_parallel",
    "ray",
    "requirements_txt_parser",
    "resources",
    "retry",
    "schedule",
    "secrets",
    "slurm",
    "step",
    "timeout",
    "torchrun",
    "trigger",
    "trigger_on_finish",
    "user_step_decorator",
    "uv",
    "yaml_parser",
]

_HOMES = {
    "__version__": "stoker.flows.standins",
    "Artifact": "stoker.core.cards",
    "CaughtFailure": "stoker.core.graph",
    "Checkpoint": "stoker.flows.checkpoint",
    "Config": "stoker.flows.parameters",
    "ConfigValue": "stoker.flows.parameters",
    "DataArtifact": "stoker.flows.client",
    "ExecutingRun": "stoker.flows.runner",
    "Flow": "stoker.flows.client",
    "FlowMutator": "stoker.flows.mutators",
    "FlowSpec": "stoker.flows.spec",
    "Frame": "stoker.core.cards",
    "Image": "stoker.core.cards",
    "IncludeFile": "stoker.flows.parameters",
    "JSONType": "stoker.flows.parameters",
    "JSONTypeClass": "stoker.flows.parameters",
    "Markdown": "stoker.core.cards",
    "Metaflow": "stoker.flows.client",
    "MutableFlow": "stoker.flows.mutators",
    "MutableStep": "stoker.flows.mutators",
    "NBRunner": "stoker.flows.runner",
    "Parameter": "stoker.flows.parameters",
    "ProgressBar": "stoker.core.cards",
    "Run": "stoker.flows.client",
    "Runner": "stoker.flows.runner",
    "S3": "stoker.flows.datatools",
    "Secret": "stoker.core.secret",
    "Step": "stoker.flows.client",
    "StepMutator": "stoker.flows.mutators",
    "Table": "stoker.core.cards",
    "Task": "stoker.flows.client",
    "USER_SKIP_STEP": "stoker.flows.user_decorators",
    "UserStepDecorator": "stoker.flows.user_decorators",
    "accelerate": "stoker.flows.decorators",
    "airflow_external_task_sensor": "stoker.flows.decorators",
    "airflow_s3_key_sensor": "stoker.flows.decorators",
    "cache": "stoker.flows.decorators",
    "card": "stoker.flows.decorators",
    "catch": "stoker.flows.decorators",
    "checkpoint": "stoker.flows.decorators",
    "huggingface_hub": "stoker.flows.decorators",
    "conda": "stoker.flows.decorators",
    "conda_base": "stoker.flows.decorators",
    "conda_environment_yml_parser": "stoker.flows.parsers",
    "config_expr": "stoker.flows.parameters",
    "current": "stoker.flows.current",
    "deepspeed": "stoker.flows.decorators",
    "default_metadata": "stoker.flows.namespaces",
    "default_namespace": "stoker.flows.namespaces",
    "environment": "stoker.flows.decorators",
    "get_metadata": "stoker.flows.namespaces",
    "get_namespace": "stoker.flows.namespaces",
    "exit_hook": "stoker.flows.decorators",
    "gpu_profile": "stoker.flows.decorators",
    "metadata": "stoker.flows.namespaces",
    "mpi": "stoker.flows.decorators",
    "namespace": "stoker.flows.namespaces",
    "namespaced_event_name": "stoker.flows.standins",
    "package_sources": "stoker.flows.standins",
    "parallel": "stoker.flows.decorators",
    "parallel_imap_unordered": "stoker.flows.standins",
    "parallel_map": "stoker.flows.standins",
    "profile": "stoker.flows.standins",
    "project": "stoker.flows.decorators",
    "pypi": "stoker.flows.decorators",
    "pypi_base": "stoker.flows.decorators",
    "pyproject_toml_parser": "stoker.flows.parsers",
    "pytorch_parallel": "stoker.flows.decorators",
    "requirements_txt_parser": "stoker.flows.parsers",
    "resources": "stoker.flows.decorators",
    "retry": "stoker.flows.decorators",
    "schedule": "stoker.flows.decorators",
    "secrets": "stoker.flows.decorators",
    "step": "stoker.flows.instance",
    "timeout": "stoker.flows.decorators",
    "torchrun": "stoker.flows.decorators",
    "trigger": "stoker.flows.decorators",
    "trigger_on_finish": "stoker.flows.decorators",
    "user_step_decorator": "stoker.flows.user_decorators",
    "uv": "stoker.flows.decorators",
    "yaml_parser": "stoker.flows.parsers",
}


__path__: list[str] = []
"""Makes this module a package, whose modules are served: `stoker.flow.cards`."""


class _Modules:
    """Finds the modules below this one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("stoker.flow."):
            return None
        from stoker.migrate.metaflow import spec_of
        from stoker.migrate.names import fate_of

        return spec_of(name, name.removeprefix("stoker.flow."), lambda theirs: fate_of(theirs).message)


sys.meta_path.append(_Modules)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is not None:
        from stoker.pipelines.scripts import watch_script

        watch_script()
        value = getattr(importlib.import_module(home), name)
    else:
        value = _decorator(name)
    globals()[name] = value
    return value


def _decorator(name: str) -> Any:
    """The decorator of a backend or a launcher, Stoker's own or another distribution's."""
    if not name.startswith("_"):
        from stoker.flows.decorators import KINDS, decorator

        if name in KINDS:
            return decorator(name)
        from stoker.backends.registry import refusal
        from stoker.core.errors import absent

        if refusal(name):
            raise absent(refusal(name), above=2)
        from stoker.migrate import metaflow

        if metaflow.is_served(name):
            return importlib.import_module(f"stoker.flow.{name}")
        if name in metaflow.NAMES:
            raise absent(f"metaflow.{name} is not here: {metaflow.advice(name)}", above=2)
    raise AttributeError(f"module 'stoker.flow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if __name__ == "__main__":
    from stoker.core.standins import METAFLOW

    METAFLOW.run_main("run …")
