"""The class form of a pipeline, by Metaflow's names: `from stoker.flow import FlowSpec, step`.

Names are imported when they are first used. docs/flows.md says of every name of Metaflow's whether and how it is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.client.flowrunner import ExecutingRun, Runner
    from stoker.client.flows import Flow, Metaflow, Run
    from stoker.client.flowspaces import default_namespace, get_namespace, namespace
    from stoker.client.flowtasks import DataArtifact, Step, Task
    from stoker.core.cards import Artifact, Image, Markdown, Table
    from stoker.core.flow import CaughtFailure
    from stoker.frontends.flowconfig import Config, ConfigValue, config_expr
    from stoker.frontends.flowdecorators import (
        accelerate,
        batch,
        cache,
        card,
        catch,
        checkpoint,
        conda,
        conda_base,
        deepspeed,
        environment,
        gpu_profile,
        kubernetes,
        mpi,
        parallel,
        project,
        pypi,
        pypi_base,
        pytorch_parallel,
        ray,
        resources,
        retry,
        schedule,
        secrets,
        slurm,
        timeout,
        torchrun,
        uv,
    )
    from stoker.frontends.flowmutable import MutableFlow, MutableStep
    from stoker.frontends.flowmutators import FlowMutator, StepMutator
    from stoker.frontends.flowparams import IncludeFile, JSONType, JSONTypeClass, Parameter
    from stoker.frontends.flowspec import FlowSpec, step
    from stoker.frontends.flowusers import USER_SKIP_STEP, UserStepDecorator, user_step_decorator
    from stoker.runtime.flowcheckpoint import Checkpoint
    from stoker.runtime.flowcurrent import current

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
    "Image",
    "IncludeFile",
    "JSONType",
    "JSONTypeClass",
    "Markdown",
    "Metaflow",
    "MutableFlow",
    "MutableStep",
    "Parameter",
    "Run",
    "Runner",
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
    "default_namespace",
    "environment",
    "get_namespace",
    "gpu_profile",
    "kubernetes",
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
    "USER_SKIP_STEP": "stoker.frontends.flowusers",
    "Artifact": "stoker.core.cards",
    "CaughtFailure": "stoker.core.flow",
    "Checkpoint": "stoker.runtime.flowcheckpoint",
    "Config": "stoker.frontends.flowconfig",
    "ConfigValue": "stoker.frontends.flowconfig",
    "DataArtifact": "stoker.client.flowtasks",
    "ExecutingRun": "stoker.client.flowrunner",
    "Flow": "stoker.client.flows",
    "FlowMutator": "stoker.frontends.flowmutators",
    "FlowSpec": "stoker.frontends.flowspec",
    "Image": "stoker.core.cards",
    "IncludeFile": "stoker.frontends.flowparams",
    "JSONType": "stoker.frontends.flowparams",
    "JSONTypeClass": "stoker.frontends.flowparams",
    "Markdown": "stoker.core.cards",
    "Metaflow": "stoker.client.flows",
    "MutableFlow": "stoker.frontends.flowmutable",
    "MutableStep": "stoker.frontends.flowmutable",
    "Parameter": "stoker.frontends.flowparams",
    "Run": "stoker.client.flows",
    "Runner": "stoker.client.flowrunner",
    "Step": "stoker.client.flowtasks",
    "StepMutator": "stoker.frontends.flowmutators",
    "Table": "stoker.core.cards",
    "Task": "stoker.client.flowtasks",
    "UserStepDecorator": "stoker.frontends.flowusers",
    "accelerate": "stoker.frontends.flowdecorators",
    "batch": "stoker.frontends.flowdecorators",
    "cache": "stoker.frontends.flowdecorators",
    "card": "stoker.frontends.flowdecorators",
    "catch": "stoker.frontends.flowdecorators",
    "checkpoint": "stoker.frontends.flowdecorators",
    "conda": "stoker.frontends.flowdecorators",
    "conda_base": "stoker.frontends.flowdecorators",
    "config_expr": "stoker.frontends.flowconfig",
    "current": "stoker.runtime.flowcurrent",
    "deepspeed": "stoker.frontends.flowdecorators",
    "default_namespace": "stoker.client.flowspaces",
    "environment": "stoker.frontends.flowdecorators",
    "get_namespace": "stoker.client.flowspaces",
    "gpu_profile": "stoker.frontends.flowdecorators",
    "kubernetes": "stoker.frontends.flowdecorators",
    "mpi": "stoker.frontends.flowdecorators",
    "namespace": "stoker.client.flowspaces",
    "parallel": "stoker.frontends.flowdecorators",
    "project": "stoker.frontends.flowdecorators",
    "pypi": "stoker.frontends.flowdecorators",
    "pypi_base": "stoker.frontends.flowdecorators",
    "pytorch_parallel": "stoker.frontends.flowdecorators",
    "resources": "stoker.frontends.flowdecorators",
    "retry": "stoker.frontends.flowdecorators",
    "schedule": "stoker.frontends.flowdecorators",
    "secrets": "stoker.frontends.flowdecorators",
    "ray": "stoker.frontends.flowdecorators",
    "slurm": "stoker.frontends.flowdecorators",
    "step": "stoker.frontends.flowspec",
    "timeout": "stoker.frontends.flowdecorators",
    "torchrun": "stoker.frontends.flowdecorators",
    "user_step_decorator": "stoker.frontends.flowusers",
    "uv": "stoker.frontends.flowdecorators",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker.flow' has no attribute '{name}'")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
