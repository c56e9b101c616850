"""Finds the serializer for a value by the names of its type, so that no library is imported for the search.

Add a serializer with `register`, or, from a package of its own, with an entry
point of the group `stoker.serializers` whose name is the type's full name, for example

    [project.entry-points."stoker.serializers"]
    "xgboost.core.Booster" = "my_package:BOOSTER"

Entry points are read once a process, and only for a type from outside Python's standard library that no serializer
of Stoker's own fits.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Mapping

from stoker.core import plugins
from stoker.core.errors import SerializationError, nearest
from stoker.store.serializers.base import Serializer, full_name

BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "numpy": ("stoker.store.serializers.arrays:NUMPY", "numpy"),
    "torch": ("stoker.store.serializers.arrays:TORCH", "torch"),
    "pandas": ("stoker.store.serializers.frames:PANDAS", "pandas"),
    "polars": ("stoker.store.serializers.frames:POLARS", "polars"),
    "pyarrow": ("stoker.store.serializers.frames:PYARROW", "pyarrow"),
    "path": ("stoker.store.serializers.files:PATH", ""),
    "secret": ("stoker.store.serializers.base:SECRET", "stoker.core.secret"),
    "pickle": ("stoker.store.serializers.pickles:PICKLE", ""),
    "cloudpickle": ("stoker.store.serializers.pickles:CLOUDPICKLE", ""),
}
"""name → ("module:attribute", the package that must be imported already for such a value to exist)"""

TYPES: Final[Mapping[tuple[str, str], str]] = {
    ("numpy", "ndarray"): "numpy",
    ("torch", "Tensor"): "torch",
    ("torch", "Module"): "torch",
    ("torch", "Optimizer"): "torch",
    # State dicts and checkpoints: only those that hold tensors.
    ("builtins", "dict"): "torch",
    ("builtins", "list"): "torch",
    ("builtins", "tuple"): "torch",
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("pyarrow", "Table"): "pyarrow",
    ("pyarrow", "RecordBatch"): "pyarrow",
    ("pathlib", "Path"): "path",
    ("stoker", "Secret"): "secret",
}
"""(package, qualified name) of a value's type or one of its bases → serializer. The modules in between change with
versions: pandas.core.frame.DataFrame has become pandas.DataFrame."""

OFFERED: Final[plugins.Registry[Serializer]] = plugins.Registry(
    group="stoker.serializers", noun="serializer", kind=Serializer, builtin={}
)
"""Serializers of other distributions, by the full names of types."""

_NEVER_OFFERED: Final = frozenset({*sys.stdlib_module_names, "__main__"})
"""Packages whose types no distribution offers a serializer for: Python's own, and the script that runs."""

_loaded: dict[str, Serializer] = {}
_registered: dict[str, Serializer] = {}
_choices: dict[type, tuple[str, ...]] = {}
"""type → names of serializers that were registered for it or are built in"""
_offers: dict[type, tuple[str, ...]] = {}
"""type → names of serializers that other distributions offer for it"""


def register(kind: type | str, serializer: Serializer) -> None:
    """Use a serializer for values of a type and of types derived from it.

    Call it in every process that saves or loads such values, for example where a step's module is imported. `kind` is
    the type or its full name, `"package.module.Type"`, with which the package need not be imported.
    """
    name = kind if isinstance(kind, str) else full_name(kind)
    _registered[name] = serializer
    _loaded[serializer.name] = serializer
    _choices.clear()


def serializer_for(value: Any) -> Serializer:
    """The serializer for a value."""
    kind = type(value)
    names = _choices.get(kind)
    if names is None:
        names = _choices[kind] = _candidates(kind)
    for name in names:
        package = BUILT_IN[name][1] if name in BUILT_IN else ""
        if not package or package in sys.modules:
            serializer = serializer_named(name)
            if serializer.fits(value):
                return serializer
    for name in _offered_names(kind):
        if serializer_named(name).fits(value):
            return serializer_named(name)
    return serializer_named("pickle")


def serializer_named(name: str) -> Serializer:
    """The serializer with a name, which is stored with saved values."""
    serializer = _loaded.get(name)
    if serializer is not None:
        return serializer
    if name in BUILT_IN:
        built_in: Serializer = plugins.resolve(BUILT_IN[name][0])
        _loaded[name] = built_in
        return built_in
    for _, offered in OFFERED.third_party_parts():
        if offered.name == name:
            _loaded[name] = offered
            return offered
    raise SerializationError(
        f"there is no serializer '{name}' here{nearest(name, [*BUILT_IN, *_loaded])}",
        fix="install the package or import the module that registers it",
    )


def _candidates(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        registered = _registered.get(full_name(base))
        if registered is not None:
            names.append(registered.name)
        built_in = TYPES.get((_package(base), base.__qualname__))
        if built_in is not None:
            names.append(built_in)
    return tuple(dict.fromkeys(names))


def _offered_names(kind: type) -> tuple[str, ...]:
    names = _offers.get(kind)
    if names is None:
        bases = [base for base in kind.__mro__ if _package(base) not in _NEVER_OFFERED]
        types = OFFERED.names() if bases else ()
        candidates = [name for base in bases for name in (full_name(base), f"{_package(base)}.{base.__qualname__}")]
        serializers = [OFFERED.load(name) for name in dict.fromkeys(candidates) if name in types]
        _loaded.update({serializer.name: serializer for serializer in serializers})
        names = _offers[kind] = tuple(serializer.name for serializer in serializers)
    return names


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
