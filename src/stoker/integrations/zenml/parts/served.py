"""Finds ZenML's modules and names below `stoker.integrations.zenml`: what is here by the tables of `migrate.zenml`, and
for all else a value that can be imported, named in an annotation and derived from, and is refused where it is used.

ZenML offers most names from several modules, and moves them between its releases: they are found by their last part.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

from stoker.core.errors import StokerError, UsageError
from stoker.migrate import zenml
from stoker.worker.context import context

_PARTS: Final = "stoker.integrations.zenml.parts"
_FIELDS: Final = ("Settings", "Config", "Configuration", "Parameters", "Requirements")
"""Endings of classes that only hold fields: of what is not here they can be made, and are left out of the settings."""


def names() -> list[str]:
    """The names that are here."""
    return sorted(zenml.homes())


def serve(package: str) -> None:
    """Let the import system find ZenML's modules below a package."""
    if not any(isinstance(finder, _Finder) and finder.package == package for finder in sys.meta_path):
        sys.meta_path.append(_Finder(package))


def value_of(module: str, name: str) -> Any:
    """What a name of one of ZenML's modules is, such as `("config", "DockerSettings")`; "" is the top."""
    if name.startswith("_") and name not in zenml.homes():
        raise AttributeError(f"module '{_dotted(module)}' has no attribute '{name}'")
    home = zenml.home_of(module, name)
    if home is not None:
        return getattr(importlib.import_module(home[0]), home[1])
    if name.islower() and not zenml.is_function(name):
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":
            raise AttributeError(name)  # `from zenml.utils import io_utils` looks for a module next
        raise NotHere(sentence(f"{_dotted(module)}.{name}"))
    if f"{module}.".startswith("integrations.constants."):
        return name.lower()
    where = f"{_dotted(module)}.{name}"
    if name.isupper():
        return _Absent(where)
    if name.islower():
        return importlib.import_module(f"{_PARTS}.steps").absent_step(name, sentence(where))
    if f"{module}.".startswith(("enums.", "model_registries.")):
        return importlib.import_module(f"{_PARTS}.words").Words(name, (), {})
    if name.endswith("ExperimentTracker"):
        return importlib.import_module(f"{_PARTS}.client").Trackers(name, (), {})
    if name.endswith("Materializer"):
        base = importlib.import_module(f"{_PARTS}.materializers").BaseMaterializer
        return type(name, (base,), {"__module__": _dotted(module), "SKIP_REGISTRATION": True})
    if name.endswith(_FIELDS):
        return type(name, (Fields,), {"__module__": f"zenml.{module}"})
    return AbsentClass(name, (), {"__module__": f"zenml.{module}", "_where": where})


def _dotted(module: str) -> str:
    return f"zenml.{module}".rstrip(".")


def sentence(where: str) -> str:
    """Why a name of ZenML's, such as `zenml.services.BaseService`, is not here, and the nearest thing."""
    module, _, name = where.rpartition(".")
    return f"{where} is not here: {zenml.advice(name, module)}"


class NotHere(UsageError, AttributeError):
    """A name of ZenML's is used that is not here; also an `AttributeError`, for who asks whether there is one."""

    __str__ = StokerError.__str__


class _FieldsClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls  # `MetricConfig.metric(…)` makes one, too


class Fields(SimpleNamespace, metaclass=_FieldsClass):
    """Fields of a component that is not here; `settings` leaves it out."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(**fields)


class AbsentClass(type):
    """A class that is not here: it can be named, asked for in `isinstance` and derived from. A module may make one, of
    which a step or a pipeline's body that uses it says that it is not here; these cannot make one themselves."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if context:
            raise NotHere(sentence(cls._where))
        return _Absent(cls._where)

    def __subclasscheck__(cls, other: type) -> bool:
        return isinstance(other, AbsentClass)  # how such classes are related is not known

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name.isupper():
            return name.lower()  # a member of an enum
        raise NotHere(sentence(cls._where))


class _Absent:
    """A value that is not here."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotHere(sentence(self._where))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotHere(sentence(self._where))


class _Module(ModuleType):
    """One of ZenML's modules; its names come when they are used."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name, f"Names of `zenml.{module}`; docs/guide/from-zenml.md says what they do here.")
        self.__path__: list[str] = []
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = value_of(self._module, name)
        setattr(self, name, value)
        return value


class _Finder(Loader):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{self.package}."):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> _Module:
        return _Module(spec.name, spec.name.removeprefix(f"{self.package}."))

    def exec_module(self, module: ModuleType) -> None:
        """All is there: names come when they are used."""
