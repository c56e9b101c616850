"""Stoker: pipelines of ordinary Python functions that keep accelerators fed.

Names are imported when they are first used, so that `import stoker` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.client import Client as Client
    from stoker.frontends.functional import each as each
    from stoker.frontends.functional import pipeline as pipeline
    from stoker.frontends.functional import step as step

__version__ = "0.1.0"

__all__ = ["Client", "each", "pipeline", "step"]

_HOMES = {
    "Client": "stoker.client",
    "each": "stoker.frontends.functional",
    "pipeline": "stoker.frontends.functional",
    "step": "stoker.frontends.functional",
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
