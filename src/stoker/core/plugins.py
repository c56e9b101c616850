"""Built-in parts by name, one table a kind, and third parties' parts by entry point.

A part is named `"module:attribute"` and imported when first asked for. Entry points are looked up only for names that
the table lacks, because scanning the installed distributions costs tens of milliseconds.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, Mapping

from stoker.core.errors import MissingPackage, UsageError, nearest

BACKENDS: Final[Mapping[str, tuple[str, str]]] = {
    "docker": ("stoker.backends.docker.backend:DockerBackend", "docker"),
    "inline": ("stoker.backends.inline:InlineBackend", ""),
    "local": ("stoker.backends.local.backend:LocalBackend", ""),
    "ray": ("stoker.backends.ray.backend:RayBackend", ""),
    "slurm": ("stoker.backends.slurm.backend:SlurmBackend", ""),
}
"""name → (where, extra that brings its packages)"""

DRIVERS: Final[Mapping[str, tuple[str, str]]] = {
    "flow": ("stoker.flows.cli:main", ""),
    "run": ("stoker.run.start:run", ""),
    "task": ("stoker.flows.task:FlowTask", ""),
}
"""The way up from a called pipeline, a flow or one of its tasks to what runs it (docs/dev/decisions/0003)."""

LAUNCHERS: Final[Mapping[str, tuple[str, str]]] = {
    "accelerate": ("stoker.launchers.accelerate:LAUNCHER", ""),
    "command": ("stoker.launchers.command:LAUNCHER", ""),
    "deepspeed": ("stoker.launchers.deepspeed:LAUNCHER", ""),
    "jax": ("stoker.launchers.jax:LAUNCHER", ""),
    "mpi": ("stoker.launchers.mpi:LAUNCHER", ""),
    "single": ("stoker.launchers.single:LAUNCHER", ""),
    "torchrun": ("stoker.launchers.torchrun:LAUNCHER", ""),
}

TABLES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "stoker.backends": BACKENDS,
    "stoker.drivers": DRIVERS,
    "stoker.launchers": LAUNCHERS,
}


def load(kind: str, name: str) -> Any:
    """The part called `name` of a kind such as `"stoker.backends"`; an unknown name is a `UsageError`."""
    table = TABLES.get(kind, {})
    if name in table:
        target, extra = table[name]
        return resolve(target, extra=extra)
    for entry in third_party(kind):
        if entry.name == name:
            return entry.load()
    known = [*table, *(entry.name for entry in third_party(kind))]
    raise UsageError(f"there is no {kind.removeprefix('stoker.').rstrip('s')} called '{name}'{nearest(name, known)}")


def third_party(kind: str) -> list[Any]:
    """Entry points that other distributions offer for a kind."""
    from importlib import metadata

    return list(metadata.entry_points(group=kind))


def resolve(target: str, *, extra: str = "") -> Any:
    """The object at `"module:attribute"`; a package that is not installed is named together with its extra."""
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "stoker" or not extra:
            raise
        raise MissingPackage(
            f"{module_name} needs the package '{missing}'", fix=f"pip install 'stoker[{extra}]'"
        ) from error
    return getattr(module, attribute)
