"""Stoker: pipelines of ordinary Python functions that keep accelerators fed.

Names are imported when they are first used, so that `import stoker` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.core import version as _version

if TYPE_CHECKING:
    from stoker.client import Client as Client
    from stoker.core.secret import Secret as Secret
    from stoker.pipelines.functional import each as each
    from stoker.pipelines.functional import step as step
    from stoker.report.notebook import run_report as run_report
    from stoker.run.calling import pipeline as pipeline
    from stoker.worker.context import context as context
    from stoker.worker.memory import cleanup_memory as cleanup_memory
    from stoker.worker.metrics import log_metadata as log_metadata
    from stoker.worker.metrics import log_metrics as log_metrics

__version__ = _version.VERSION

__all__ = [
    "Client",
    "Secret",
    "cleanup_memory",
    "context",
    "each",
    "log_metadata",
    "log_metrics",
    "pipeline",
    "run_report",
    "step",
]

_HOMES = {
    "Client": "stoker.client",
    "Secret": "stoker.core.secret",
    "cleanup_memory": "stoker.worker.memory",
    "context": "stoker.worker.context",
    "each": "stoker.pipelines.functional",
    "log_metadata": "stoker.worker.metrics",
    "log_metrics": "stoker.worker.metrics",
    "pipeline": "stoker.run.calling",
    "run_report": "stoker.report.notebook",
    "step": "stoker.pipelines.functional",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute '{name}'")
    import importlib

    from stoker.core.collector import seldom_collected
    from stoker.pipelines.scripts import watch_script

    watch_script()  # a mistake in a decorator ends a script as one in a pipeline does
    with seldom_collected():
        part = globals()[name] = getattr(importlib.import_module(home), name)
    return part


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
