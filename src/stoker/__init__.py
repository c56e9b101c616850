"""Stoker: pipelines of ordinary Python functions that keep accelerators fed.

Names are imported when they are first used, so that `import stoker` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.core import version as _version

if TYPE_CHECKING:
    from stoker.client import Client as Client
    from stoker.core.registry import Artifact as Artifact
    from stoker.core.registry import Model as Model
    from stoker.core.registry import artifact as artifact
    from stoker.core.secret import Secret as Secret
    from stoker.core.sweep import ASHA as ASHA
    from stoker.core.sweep import between as between
    from stoker.naming import load_artifact as load_artifact
    from stoker.naming import log_metadata as log_metadata
    from stoker.naming import save_artifact as save_artifact
    from stoker.pipelines.functional import each as each
    from stoker.pipelines.functional import step as step
    from stoker.pipelines.sweeps import sweep as sweep
    from stoker.report.notebook import run_report as run_report
    from stoker.run.start import pipeline as pipeline
    from stoker.worker.context import context as context
    from stoker.worker.data import data as data
    from stoker.worker.memory import cleanup_memory as cleanup_memory
    from stoker.worker.metrics import log_metrics as log_metrics

__version__ = _version.VERSION

__all__ = [
    "ASHA",
    "Artifact",
    "Client",
    "Model",
    "Secret",
    "artifact",
    "between",
    "cleanup_memory",
    "context",
    "data",
    "each",
    "load_artifact",
    "log_metadata",
    "log_metrics",
    "pipeline",
    "run_report",
    "save_artifact",
    "step",
    "sweep",
]

_HOMES = {
    "ASHA": "stoker.core.sweep",
    "Artifact": "stoker.core.registry",
    "Client": "stoker.client",
    "Model": "stoker.core.registry",
    "Secret": "stoker.core.secret",
    "artifact": "stoker.core.registry",
    "between": "stoker.core.sweep",
    "cleanup_memory": "stoker.worker.memory",
    "context": "stoker.worker.context",
    "data": "stoker.worker.data",
    "each": "stoker.pipelines.functional",
    "load_artifact": "stoker.naming",
    "log_metadata": "stoker.naming",
    "log_metrics": "stoker.worker.metrics",
    "pipeline": "stoker.run.start",
    "run_report": "stoker.report.notebook",
    "save_artifact": "stoker.naming",
    "step": "stoker.pipelines.functional",
    "sweep": "stoker.pipelines.sweeps",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute '{name}'")
    import importlib

    from stoker.core.values import seldom_collected
    from stoker.pipelines.scripts import watch_script

    watch_script()  # a mistake in a decorator ends a script as one in a pipeline does
    with seldom_collected():
        part = globals()[name] = getattr(importlib.import_module(home), name)
    return part


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
