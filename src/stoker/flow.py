"""The class form of a pipeline, by Metaflow's names: `from stoker.flow import FlowSpec, step`.

Names are imported when they are first used. docs/flows.md says of every name of Metaflow's whether and how it is here.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from stoker.core.cards import Artifact, Frame, Image, Markdown, ProgressBar, Table
    from stoker.core.flow import CaughtFailure
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
    from stoker.flows.decorators import (
        accelerate,
        cache,
        card,
        catch,
        checkpoint,
        conda,
        conda_base,
        deepspeed,
        environment,
        gpu_profile,
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
    from stoker.flows.runner import ExecutingRun, Runner
    from stoker.flows.spec import FlowSpec
    from stoker.flows.user_decorators import USER_SKIP_STEP, UserStepDecorator, user_step_decorator

    batch: Callable[..., Any]
    kubernetes: Callable[..., Any]
    ray: Callable[..., Any]
    slurm: Callable[..., Any]

__all__ = [
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
    "batch",
    "cache",
    "card",
    "catch",
    "checkpoint",
    "conda",
    "conda_base",
    "config_expr",
    "current",
    "deepspeed",
    "default_metadata",
    "default_namespace",
    "environment",
    "get_metadata",
    "get_namespace",
    "gpu_profile",
    "kubernetes",
    "metadata",
    "mpi",
    "namespace",
    "parallel",
    "project",
    "pypi",
    "pypi_base",
    "pytorch_parallel",
    "ray",
    "resources",
    "retry",
    "schedule",
    "secrets",
    "slurm",
    "step",
    "timeout",
    "torchrun",
    "user_step_decorator",
    "uv",
]

_HOMES = {
    "USER_SKIP_STEP": "stoker.flows.user_decorators",
    "Artifact": "stoker.core.cards",
    "CaughtFailure": "stoker.core.flow",
    "Checkpoint": "stoker.flows.checkpoint",
    "Config": "stoker.flows.parameters",
    "ConfigValue": "stoker.flows.parameters",
    "DataArtifact": "stoker.flows.client",
    "ExecutingRun": "stoker.flows.runner",
    "Flow": "stoker.flows.client",
    "FlowMutator": "stoker.flows.mutators",
    "Frame": "stoker.core.cards",
    "FlowSpec": "stoker.flows.spec",
    "Image": "stoker.core.cards",
    "IncludeFile": "stoker.flows.parameters",
    "JSONType": "stoker.flows.parameters",
    "JSONTypeClass": "stoker.flows.parameters",
    "Markdown": "stoker.core.cards",
    "Metaflow": "stoker.flows.client",
    "MutableFlow": "stoker.flows.mutators",
    "MutableStep": "stoker.flows.mutators",
    "Parameter": "stoker.flows.parameters",
    "ProgressBar": "stoker.core.cards",
    "Run": "stoker.flows.client",
    "Runner": "stoker.flows.runner",
    "Step": "stoker.flows.client",
    "Secret": "stoker.core.secret",
    "StepMutator": "stoker.flows.mutators",
    "Table": "stoker.core.cards",
    "Task": "stoker.flows.client",
    "UserStepDecorator": "stoker.flows.user_decorators",
    "accelerate": "stoker.flows.decorators",
    "cache": "stoker.flows.decorators",
    "card": "stoker.flows.decorators",
    "catch": "stoker.flows.decorators",
    "checkpoint": "stoker.flows.decorators",
    "conda": "stoker.flows.decorators",
    "conda_base": "stoker.flows.decorators",
    "config_expr": "stoker.flows.parameters",
    "current": "stoker.flows.current",
    "deepspeed": "stoker.flows.decorators",
    "default_metadata": "stoker.flows.namespaces",
    "default_namespace": "stoker.flows.namespaces",
    "environment": "stoker.flows.decorators",
    "get_metadata": "stoker.flows.namespaces",
    "get_namespace": "stoker.flows.namespaces",
    "gpu_profile": "stoker.flows.decorators",
    "metadata": "stoker.flows.namespaces",
    "mpi": "stoker.flows.decorators",
    "namespace": "stoker.flows.namespaces",
    "parallel": "stoker.flows.decorators",
    "project": "stoker.flows.decorators",
    "pypi": "stoker.flows.decorators",
    "pypi_base": "stoker.flows.decorators",
    "pytorch_parallel": "stoker.flows.decorators",
    "resources": "stoker.flows.decorators",
    "retry": "stoker.flows.decorators",
    "schedule": "stoker.flows.decorators",
    "secrets": "stoker.flows.decorators",
    "step": "stoker.flows.instance",
    "timeout": "stoker.flows.decorators",
    "torchrun": "stoker.flows.decorators",
    "user_step_decorator": "stoker.flows.user_decorators",
    "uv": "stoker.flows.decorators",
}


__path__: list[str] = []
"""Makes this module a package, whose modules are served: `stoker.flow.cards`."""


class _Modules:
    """Finds the modules below this one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("stoker.flow."):
            return None
        from stoker.flows.modules import spec_of

        return spec_of(name, name.removeprefix("stoker.flow."))


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
        from stoker.backends.refused import refusal
        from stoker.core.errors import RefusedName

        if refusal(name):
            # `from stoker.flow import vertex` would make another message of an AttributeError.
            raise RefusedName(refusal(name))
        from stoker.flows.modules import is_served
        from stoker.migrate import metaflow

        if is_served(name):
            return importlib.import_module(f"stoker.flow.{name}")
        if name in metaflow.NAMES:
            raise RefusedName(f"metaflow.{name} is not here: {metaflow.advice(name)}")
    raise AttributeError(f"module 'stoker.flow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _main() -> None:
    """`python -m stoker.flow FILE COMMAND …`: `python FILE COMMAND …` with the hook of `core.metaflow`."""
    import os

    from stoker.core import metaflow
    from stoker.core.errors import StokerError, UsageError

    try:
        if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
            raise UsageError("no file is named", fix="python -m stoker.flow FILE run …")
        if not os.path.isfile(sys.argv[1]):
            raise UsageError(f"there is no file {sys.argv[1]}", fix="python -m stoker.flow FILE run …")
        metaflow.install()
    except StokerError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    own = len(sys.orig_argv) - len(sys.argv) + 1
    flags = [word for word in sys.orig_argv[1:own] if word not in ("-m", __spec__.name, f"-m{__spec__.name}")]
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *flags, *sys.argv[1:]])


if __name__ == "__main__":
    _main()
