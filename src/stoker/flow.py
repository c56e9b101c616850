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
    from stoker.core.flow import CaughtFailure
    from stoker.frontends.flowdecorators import (
        batch,
        cache,
        card,
        catch,
        checkpoint,
        conda,
        conda_base,
        environment,
        gpu_profile,
        kubernetes,
        parallel,
        project,
        pypi,
        pypi_base,
        resources,
        retry,
        schedule,
        secrets,
        timeout,
        uv,
    )
    from stoker.frontends.flowparams import IncludeFile, JSONType, Parameter
    from stoker.frontends.flowspec import FlowSpec, step
    from stoker.runtime.flowcurrent import current

__all__ = [
    "CaughtFailure",
    "DataArtifact",
    "ExecutingRun",
    "Flow",
    "FlowSpec",
    "IncludeFile",
    "JSONType",
    "Metaflow",
    "Parameter",
    "Run",
    "Runner",
    "Step",
    "Task",
    "batch",
    "cache",
    "card",
    "catch",
    "checkpoint",
    "conda",
    "conda_base",
    "current",
    "default_namespace",
    "environment",
    "get_namespace",
    "gpu_profile",
    "kubernetes",
    "namespace",
    "parallel",
    "project",
    "pypi",
    "pypi_base",
    "resources",
    "retry",
    "schedule",
    "secrets",
    "step",
    "timeout",
    "uv",
]

_HOMES = {
    "CaughtFailure": "stoker.core.flow",
    "DataArtifact": "stoker.client.flowtasks",
    "ExecutingRun": "stoker.client.flowrunner",
    "Flow": "stoker.client.flows",
    "FlowSpec": "stoker.frontends.flowspec",
    "IncludeFile": "stoker.frontends.flowparams",
    "JSONType": "stoker.frontends.flowparams",
    "Metaflow": "stoker.client.flows",
    "Parameter": "stoker.frontends.flowparams",
    "Run": "stoker.client.flows",
    "Runner": "stoker.client.flowrunner",
    "Step": "stoker.client.flowtasks",
    "Task": "stoker.client.flowtasks",
    "batch": "stoker.frontends.flowdecorators",
    "cache": "stoker.frontends.flowdecorators",
    "card": "stoker.frontends.flowdecorators",
    "catch": "stoker.frontends.flowdecorators",
    "checkpoint": "stoker.frontends.flowdecorators",
    "conda": "stoker.frontends.flowdecorators",
    "conda_base": "stoker.frontends.flowdecorators",
    "current": "stoker.runtime.flowcurrent",
    "default_namespace": "stoker.client.flowspaces",
    "environment": "stoker.frontends.flowdecorators",
    "get_namespace": "stoker.client.flowspaces",
    "gpu_profile": "stoker.frontends.flowdecorators",
    "kubernetes": "stoker.frontends.flowdecorators",
    "namespace": "stoker.client.flowspaces",
    "parallel": "stoker.frontends.flowdecorators",
    "project": "stoker.frontends.flowdecorators",
    "pypi": "stoker.frontends.flowdecorators",
    "pypi_base": "stoker.frontends.flowdecorators",
    "resources": "stoker.frontends.flowdecorators",
    "retry": "stoker.frontends.flowdecorators",
    "schedule": "stoker.frontends.flowdecorators",
    "secrets": "stoker.frontends.flowdecorators",
    "step": "stoker.frontends.flowspec",
    "timeout": "stoker.frontends.flowdecorators",
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
