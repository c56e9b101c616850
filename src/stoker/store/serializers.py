"""Which serializer keeps a value: looked up by the names of its type, so that no library is imported to find out.

A serializer turns a value into bytes and back. Add one with `register`, or, from a package of its own, with an entry
point of the group `stoker.serializers` whose name is the type's full name, for example

    [project.entry-points."stoker.serializers"]
    "xgboost.core.Booster" = "my_package:BOOSTER"

Entry points are asked only for types of installed packages for which nothing but pickle is built in.
"""

from __future__ import annotations

import io
import sys
from typing import Any, BinaryIO, Final, Mapping, Protocol

import attrs

from stoker.core import plugins
from stoker.core.artifact import Artifact
from stoker.core.errors import SerializationError, nearest
from stoker.store.blobs import Blobs


@attrs.frozen
class Stored:
    """A saved value's bytes, as `Serializer.load` gets them."""

    artifact: Artifact
    blobs: Blobs

    @property
    def meta(self) -> Mapping[str, Any]:
        """What `Serializer.save` returned."""
        return self.artifact.meta

    def open(self) -> BinaryIO:
        """The bytes as a file open for reading."""
        if self.artifact.inline is not None:
            return io.BytesIO(self.artifact.inline)
        return self.blobs.open(self.artifact.digest, self.artifact.size)

    def path(self) -> str | None:
        """A local file with the bytes, to map but never to write; None where they are few and live in a row."""
        if self.artifact.inline is not None:
            return None
        return self.blobs.path(self.artifact.digest, self.artifact.size)


class Serializer(Protocol):
    """Turns values of some types into bytes and back, exactly.

    `name` is kept with what it saves and never changes. The bytes must depend on the value alone: equal bytes are
    stored once, and a step whose inputs have the same bytes is not run again. They must not depend on a device.
    """

    @property
    def name(self) -> str:
        """How saved values remember it."""

    def fits(self, value: Any) -> bool:
        """Whether this value comes back as it was; if not, the next serializer is asked, and pickle at last."""

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        """Write the value's bytes; `file` can be written and told, not sought. The facts returned are kept as JSON."""

    def load(self, stored: Stored) -> Any:
        """The value again."""


BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "numpy": ("stoker.store.serializers_arrays:NUMPY", "numpy"),
    "torch": ("stoker.store.serializers_arrays:TORCH", "torch"),
    "pandas": ("stoker.store.serializers_frames:PANDAS", "pandas"),
    "polars": ("stoker.store.serializers_frames:POLARS", "polars"),
    "pyarrow": ("stoker.store.serializers_frames:PYARROW", "pyarrow"),
    "path": ("stoker.store.serializers_files:PATH", ""),
    "pickle": ("stoker.store.serializers_pickle:PICKLE", ""),
    "cloudpickle": ("stoker.store.serializers_pickle:CLOUDPICKLE", ""),
}
"""name → (where, the package that must be loaded already for a value of it to exist)"""

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
}
"""(package, qualified name) of a value's type or one of its bases → serializer. The modules in between move from
version to version: pandas.core.frame.DataFrame has become pandas.DataFrame."""

_loaded: dict[str, Serializer] = {}
_registered: dict[str, Serializer] = {}
_choices: dict[type, tuple[str, ...]] = {}
_scanned: dict[str, Any] = {}


def register(kind: type | str, serializer: Serializer) -> None:
    """Keep values of a type, and of types derived from it, with this serializer.

    To be called in every process that saves or loads them, so where a step's module is imported. `kind` is the type or
    its full name, `"package.module.Type"`, which saves importing the package.
    """
    name = kind if isinstance(kind, str) else full_name(kind)
    _registered[name] = serializer
    _loaded[serializer.name] = serializer
    _choices.clear()


def chosen(value: Any) -> Serializer:
    """The serializer for a value."""
    kind = type(value)
    names = _choices.get(kind)
    if names is None:
        names = _choices[kind] = _candidates(kind)
    for name in names:
        package = BUILT_IN[name][1] if name in BUILT_IN else ""
        if not package or package in sys.modules:
            serializer = named(name)
            if serializer.fits(value):
                return serializer
    return named("pickle")


def named(name: str) -> Serializer:
    """The serializer of a name, as a saved value remembers it."""
    found = _loaded.get(name)
    if found is not None:
        return found
    if name in BUILT_IN:
        built_in: Serializer = plugins.resolve(BUILT_IN[name][0])
        _loaded[name] = built_in
        return built_in
    for entry in _third_party().values():
        serializer: Serializer = entry.load()
        if serializer.name == name:
            _loaded[name] = serializer
            return serializer
    raise SerializationError(
        f"there is no serializer '{name}' here{nearest(name, [*BUILT_IN, *_loaded])}",
        fix="install the package or import the module that registers it",
    )


def full_name(kind: type) -> str:
    """`module.Qualified.Name`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _candidates(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        registered = _registered.get(full_name(base))
        if registered is not None:
            names.append(registered.name)
        built_in = TYPES.get((_package(base), base.__qualname__))
        if built_in is not None:
            names.append(built_in)
    if not names and any(_is_installed(base) for base in kind.__mro__):
        entries = _third_party()
        for base in kind.__mro__:
            entry = entries.get(full_name(base)) or entries.get(f"{_package(base)}.{base.__qualname__}")
            if entry is not None:
                serializer: Serializer = entry.load()
                _loaded[serializer.name] = serializer
                names.append(serializer.name)
    return tuple(dict.fromkeys(names))


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_installed(kind: type) -> bool:
    """Whether a type comes from an installed package: those of the user's own code and of Python need no scan."""
    file = getattr(sys.modules.get(_package(kind)), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _third_party() -> Mapping[str, Any]:
    """Entry points by type name; found once a process, because that takes tens of milliseconds."""
    if "" not in _scanned:
        _scanned.update({entry.name: entry for entry in plugins.third_party("stoker.serializers")})
        _scanned[""] = None
    return {name: entry for name, entry in _scanned.items() if entry is not None}
