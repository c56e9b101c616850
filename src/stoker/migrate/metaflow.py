"""What replaces Metaflow's names when a flow is migrated, and Metaflow's modules, served below the module that users
import: `….exception` of `MetaflowNotFound`.

Knows nothing of code: `migrate.names` looks names up here. The tables are `metaflow.json` beside this module; a test
keeps its names equal to the table in docs/flows.md. Served modules have no files: `HOMES` says where their names live,
and `stoker.flow` lets the import system find them by `spec_of`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from stoker.core.errors import RefusedName, absent

State = Literal["works", "works differently", "not here"]

TARGET: Final = "stoker.flow"

_DATA: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("metaflow.json").read_text(encoding="utf-8"))

NAMES: Final[Mapping[str, tuple[State, str]]] = {name: (row[0], row[1]) for name, row in _DATA["names"].items()}
"""name → (state, how it differs or what to do instead), in the order of docs/flows.md."""

MODULES: Final[Mapping[str, str]] = _DATA["modules"]
"""module → what to do about a name of it that is in no table"""

DECORATOR_MODULES: Final = ("gpu_profile", "metaflow_gpu_profile")
"""Modules that offer `gpu_profile`: a file copied from the extension's repository, or its package.
https://github.com/outerbounds/metaflow-gpu-profile"""

CURRENT: Final[Mapping[str, str]] = {
    "trigger": "nothing here waits for events; give the run a parameter",
}
"""attribute of `current` → what to do instead"""

HOMES: Final[Mapping[str, Mapping[str, str]]] = _DATA["homes"]
"""Module of Metaflow → module of Stoker → names that it has for it, in one text."""

OTHERS: Final = frozenset(_DATA["others"].split())
"""Modules of Metaflow 2.19.39 that are not here, or only in part: an import says so in a sentence."""


def advice(name: str) -> str:
    """What to do about a name, with "as above" replaced by the text of the nearest row above."""
    above = ""
    for row, (_, text) in NAMES.items():
        above = text.replace("as above", above, 1) if text.startswith("as above") else text
        if row == name:
            return above
    raise KeyError(name)


def homes_of(module: str) -> dict[str, str]:
    """Name → module of Stoker, for one module of Metaflow; empty for a package that only holds others."""
    return {name: home for home, names in HOMES.get(module, {}).items() for name in names.split()}


def is_served(module: str) -> bool:
    """Whether a module of Metaflow, such as `plugins.cards`, is in the table or holds one that is."""
    return any(f"{known}.".startswith(f"{module}.") for known in HOMES)


def has(module: str, name: str) -> bool:
    """Whether a module of Metaflow, "" for the top, has a name here, which may be a module."""
    return name in homes_of(module) or is_served(f"{module}.{name}".lstrip("."))


class ServedModule(ModuleType):
    """A module whose names are imported from their homes when they are first used."""

    def __init__(self, name: str, module: str, advice: Callable[[str], str]) -> None:
        super().__init__(name, f"Names of `metaflow.{module}`; docs/flows.md says how they differ.")
        self.__path__: list[str] = []
        self._module = module
        self._advice = advice
        self._homes = homes_of(module)
        self.__all__ = sorted(self._homes)

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(importlib.import_module(self._homes[name]), name)
            setattr(self, name, value)
            return value
        if name.startswith("_"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        theirs = f"metaflow.{self._module}.{name}"
        raise absent(f"{theirs} is not here: {self._advice(theirs)}")

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._homes})


class _Served(Loader):
    def __init__(self, module: str, advice: Callable[[str], str]) -> None:
        self._module = module
        self._advice = advice

    def create_module(self, spec: ModuleSpec) -> ServedModule:
        return ServedModule(spec.name, self._module, self._advice)

    def exec_module(self, module: ModuleType) -> None:
        """All is there: names come when they are used."""


def spec_of(name: str, module: str, advice: Callable[[str], str]) -> ModuleSpec | None:
    """How the import system gets a module of Metaflow under a name; None for a name that Metaflow has not either.

    `advice` says what to do about a name of Metaflow's, such as `metaflow.tracing`, that is not here.
    """
    if is_served(module):
        return ModuleSpec(name, _Served(module, advice), is_package=True)
    if module.partition(".")[0] in OTHERS or is_served(module.partition(".")[0]):
        raise RefusedName(f"metaflow.{module} is not here: {advice(f'metaflow.{module}')}")
    return None
