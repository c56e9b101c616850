"""Stoker: pipelines of ordinary Python functions that keep accelerators fed.

Names are imported when they are first used, so that `import stoker` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.core import version as _version

if TYPE_CHECKING:
    from stoker.client import Client as Client
    from stoker.pipelines.functional import each as each
    from stoker.pipelines.functional import step as step
    from stoker.run.calling import pipeline as pipeline
    from stoker.worker.context import context as context
    from stoker.worker.memory import cleanup_memory as cleanup_memory

__version__ = _version.VERSION

__all__ = ["Client", "cleanup_memory", "context", "each", "pipeline", "step"]

_HOMES = {
    "Client": "stoker.client",
    "cleanup_memory": "stoker.worker.memory",
    "context": "stoker.worker.context",
    "each": "stoker.pipelines.functional",
    "pipeline": "stoker.run.calling",
    "step": "stoker.pipelines.functional",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute '{name}'")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
