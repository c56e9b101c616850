"""The digest of a function's code and of all code of the user's own that it reaches: what its results are cached by.

Own is what is neither the standard library nor installed nor Stoker: functions, classes, values and modules that the
code names. Of everybody else's packages the name and the version count. The digest is the same in every process, and
the same whether a file is run as a script or imported as a module: a module is called after its file.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections import deque
from typing import Any, Callable, Final, Iterable

from stoker.plan import bytecode
from stoker.plan.modules import code_of, is_own_file, is_own_module, label_of_module, version_of
from stoker.plan.values import value_token

FORMAT: Final = b"stoker-code-1"
"""Another way to compute digests gets another number."""
_MODULE_NAMES: Final = frozenset(
    {
        "__name__",
        "__file__",
        "__doc__",
        "__spec__",
        "__loader__",
        "__package__",
        "__builtins__",
        "__path__",
        "__cached__",
    }
)
"""What Python itself puts into a module: where it is, not what it does."""
_HOLDERS: Final = (functools.partial, functools.partialmethod, functools.cached_property)
_DECLARED: Final = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__")
"""Where libraries keep the fields of a class, and so their defaults."""


def code_digest(function: Callable[..., Any]) -> str:
    """The hexadecimal SHA-256 of a function's code and of what it reaches."""
    walk = Walk()
    hasher = hashlib.sha256(FORMAT)
    hasher.update(walk.token(function))
    for label, token in walk.finished():
        hasher.update(label.encode("utf-8", "surrogatepass") + b"\0" + token)
    return hasher.hexdigest()


def reached(function: Callable[..., Any]) -> list[tuple[str, str]]:
    """(what is reached, the digest of it alone), sorted: two such lists say why a result was not found in the cache."""
    walk = Walk()
    own = walk.token(function)
    found = [(_label(function), own), *walk.finished()]
    return [(label, hashlib.sha256(token).hexdigest()[:16]) for label, token in found]


class Walk:
    """Goes from an object to all that it reaches. A token says what one object is; globals are followed by a queue, so
    that functions which call each other end."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[Any, bytes]] = {}
        self._open: set[int] = set()
        self._queue: deque[tuple[str, bytecode.Reading, dict[str, Any]]] = deque()
        self._queued: set[tuple[int, int]] = set()
        self._opened: set[tuple[int, int]] = set()
        self._modules: set[str] = set()
        self._found: set[tuple[str, bytes]] = set()

    def finished(self) -> list[tuple[str, bytes]]:
        """Follow everything to its end: (label, token) of all that was reached, sorted."""
        while self._queue:
            label, reading, names = self._queue.popleft()
            for name in sorted(reading.globals & names.keys() - _MODULE_NAMES):
                self._global(f"{label} → {name}", names[name], reading.names)
            for level, module, taken in reading.imports:
                self._import(level, module, taken, names)
        return sorted(self._found)

    def token(self, value: Any) -> bytes:
        """What an object is, as bytes; functions and classes of the user's own are put in line to be followed."""
        value = _plain(value)
        known = self._tokens.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._open:
            return b"again:" + _label(value).encode()
        self._open.add(id(value))
        try:
            token = self._made(value)
        finally:
            self._open.discard(id(value))
        self._tokens[id(value)] = (value, token)  # the value is kept, so that no other gets its id
        return token

    def _global(self, label: str, value: Any, names: frozenset[str]) -> None:
        """A value, and of a module of the user's own whatever the code may take from it by name."""
        self._found.add((label, self.token(value)))
        known = (id(value), id(names))
        if not isinstance(value, types.ModuleType) or known in self._opened or not is_own_module(value):
            return
        self._opened.add(known)
        inside = vars(value)
        for name in sorted(names & inside.keys() - _MODULE_NAMES):
            self._global(f"{label}.{name}", inside[name], names)

    def _import(self, level: int, module: str, taken: Iterable[str], names: dict[str, Any]) -> None:
        """A module of the user's own that is imported inside a function counts as a whole, loaded or not."""
        package = names.get("__package__") or ""
        if level:
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - level + 1])
            module = f"{base}.{module}" if module and base else module or base
        for name in (module, *(f"{module}.{item}" for item in taken)):
            if name in self._modules:
                continue
            self._modules.add(name)
            code = code_of(name)
            if code is not None:
                reading = bytecode.read(code)
                self._found.add((f"import {name}", reading.digest))
                inner = {"__package__": name if _is_package(name) else name.rpartition(".")[0]}
                for found in reading.imports:
                    self._import(*found, inner)

    # What one object is

    def _made(self, value: Any) -> bytes:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return _token("module", label_of_module(value), "" if is_own_module(value) else version_of(value.__name__))
        if isinstance(value, types.MethodType):
            return _token("method", self.token(value.__func__), self.token(value.__self__))
        if isinstance(value, (staticmethod, classmethod)):
            return _token(type(value).__name__, self.token(value.__func__))
        if isinstance(value, property):
            return _token("property", *(self.token(part) for part in (value.fget, value.fset, value.fdel)))
        wrapped = _attribute(value, "__wrapped__")
        if wrapped is not None and callable(value):
            return _token("wrapper", _external(type(value)), self.token(wrapped))
        if isinstance(value, _HOLDERS):
            rest = (getattr(value, "args", ()), getattr(value, "keywords", {}))
            return _token(type(value).__name__, self.token(value.func), *(self.token(part) for part in rest))
        if isinstance(value, types.BuiltinFunctionType):
            return _external(value)
        return value_token(value, self.token)

    def _function(self, function: types.FunctionType) -> bytes:
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        closure = [(name, cell.cell_contents) for name, cell in cells if not _is_empty(cell)]
        wrapped = function.__dict__.get("__wrapped__")
        if not _is_own_function(function):
            # A package's decorator around the user's functions; functools.singledispatch keeps them in a dict.
            inside = [found for _, found in closure if isinstance(found, (types.FunctionType, dict, list, tuple))]
            # Wrappers copy the name and the module of what they wrap; their code and globals are their own.
            module = str(function.__globals__.get("__name__", ""))
            name = _token("external", module.partition(".")[0], function.__code__.co_name, version_of(module))
            return _token(name, *map(self.token, inside), *([self.token(wrapped)] if wrapped else []))
        reading = bytecode.read(function.__code__)
        queued = (id(function.__code__), id(function.__globals__))
        if queued not in self._queued:
            self._queued.add(queued)
            self._queue.append((_label(function), reading, function.__globals__))
        self._annotated(function)
        return _token(
            "function",
            reading.digest,
            self.token(function.__defaults__ or ()),
            self.token(function.__kwdefaults__ or {}),
            *(part for name, found in sorted(closure, key=lambda cell: cell[0]) for part in (name, self.token(found))),
            *([self.token(wrapped)] if wrapped is not None else []),
        )

    def _annotated(self, function: types.FunctionType) -> None:
        """Classes of the user's own in annotations: their methods are called on what the function is given."""
        try:
            annotations = dict(function.__annotations__)
        except Exception:  # from 3.14 on the user's code runs here
            return
        for annotation in annotations.values():
            kind = function.__globals__.get(annotation) if isinstance(annotation, str) else annotation
            if isinstance(kind, type) and _is_own_class(kind):
                self._found.add((f"{_label(function)} → {kind.__qualname__}", self.token(kind)))

    def _class(self, kind: type) -> bytes:
        if not _is_own_class(kind):
            return _external(kind)
        parts: list[Any] = ["class", kind.__qualname__, *(self.token(base) for base in kind.__bases__)]
        if type(kind) is not type:
            parts.append(self.token(type(kind)))
        members = getattr(kind, "__members__", None)  # an Enum's
        for name, value in sorted(vars(kind).items()):
            private = name.startswith("__") and name.endswith("__")
            if name.startswith("_abc_") or (members is not None and name.startswith("_") and not callable(value)):
                continue
            if private and not isinstance(value, (types.FunctionType, staticmethod, classmethod, property)):
                continue
            parts += [name, self.token(members[name].value if members is not None and name in members else value)]
        for name in _DECLARED:
            parts += self._declared(vars(kind).get(name))
        return _token(*parts)

    def _declared(self, fields: Any) -> list[Any]:
        """Defaults of a dataclass's, attrs class's or pydantic model's fields."""
        if not fields:
            return []
        rows = fields.items() if isinstance(fields, dict) else [(field.name, field) for field in fields]
        parts: list[Any] = []
        for name, field in rows:
            parts.append(name)
            for attribute in ("default", "default_factory"):
                value = getattr(field, attribute, None)
                # A library's own mark for "none" has no value of interest.
                if value is not None and not type(value).__name__.upper().startswith(
                    ("_MISSING", "MISSING", "_NOTHING")
                ):
                    parts.append(self.token(value))
        return parts


def _token(*parts: bytes | str) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hasher.update(b"%d:" % len(data) + data)
    return hasher.digest()


def _external(value: Any) -> bytes:
    module = str(getattr(value, "__module__", "") or "")
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return _token("external", module.partition(".")[0], name, version_of(module))


def _plain(value: Any) -> Any:
    found = None if isinstance(value, type) else _attribute(value, "__stoker_function__")
    return value if found is None else found


def _attribute(value: Any, name: str) -> Any:
    """An object's own attribute; objects that answer to every name are not asked."""
    found = getattr(value, "__dict__", None)
    return found.get(name) if isinstance(found, dict) else None


def _label(value: Any) -> str:
    """What an object is called, without where its file lies or whether it is the script."""
    value = _plain(value)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{label_of_module(module)}.{name}" if module is not None else str(name)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where nothing is assigned yet
    except ValueError:
        return True
    return False


def _is_own_function(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    if file.startswith("<") and function.__module__ != "__main__":
        # What dataclasses, attrs and namedtuple generate belongs to the class's module.
        module = sys.modules.get(function.__module__ or "")
        return module is not None and is_own_module(module)
    return is_own_file(file)


def _is_own_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and is_own_module(module)


def _is_package(name: str) -> bool:
    from stoker.plan.modules import spec_of

    spec = spec_of(name)
    return spec is not None and spec.submodule_search_locations is not None
