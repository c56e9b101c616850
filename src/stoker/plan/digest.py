"""The digest of a function's code and of all code of the user's own that it reaches: part of its results' cache key.

The user's own code is neither the standard library nor installed nor Stoker: the functions, classes, values and modules
that the code names. Of other packages the name and the version count. The digest is the same in every process, and the
same whether a file is run as a script or imported as a module, since a module goes by the name of its file.

Code counts by its bytecode, values by their pickle with tokens for functions and classes, modules without importing
them.
"""

from __future__ import annotations

import bisect
import dis
import functools
import hashlib
import logging
import os
import pickle
import sys
import types
from collections import deque
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Callable, Final, Iterable, Mapping

import attrs

import stoker.core

FORMAT: Final = b"stoker-code-1"
"""Version of the digests' computation."""
_MODULE_ATTRIBUTES: Final = frozenset(
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
"""Attributes that Python sets on a module; they say where it is, not what it does."""
_PARTIALS: Final = (functools.partial, functools.partialmethod, functools.cached_property)
_FIELD_TABLES: Final = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__")
"""Class attributes in which libraries keep the fields of a class with their defaults."""
_SKIPPED: Final = frozenset({"NOP", "CACHE", "RESUME", "EXTENDED_ARG", "PRECALL", "NOT_TAKEN"})
_IGNORED_STORES: Final = frozenset({"__doc__", "__firstlineno__"})
_LOOKUPS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_CONSTANTS: Final = frozenset(dis.hasconst)
_NAMED: Final = frozenset({*dis.hasname, *dis.haslocal, *dis.hasfree})
_SIMPLE: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), range, type(NotImplemented)})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY: Final = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
_STOKER: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(stoker.core.__file__))), "")

Tokenize = Callable[[Any], bytes]


def code_digest(function: Callable[..., Any]) -> str:
    """The hexadecimal SHA-256 of a function's code and of what it reaches."""
    walk = _Walk()
    hasher = hashlib.sha256(FORMAT)
    hasher.update(walk.token(function))
    for label, token in walk.finish():
        hasher.update(label.encode("utf-8", "surrogatepass") + b"\0" + token)
    return hasher.hexdigest()


def code_parts(function: Callable[..., Any]) -> list[tuple[str, str]]:
    """(label, digest) of each part that a function reaches, sorted; two such lists show why a cache key differs."""
    walk = _Walk()
    function_digest = walk.token(function)
    parts = [(_label(function), function_digest), *walk.finish()]
    return [(label, hashlib.sha256(token).hexdigest()[:16]) for label, token in parts]


class _Walk:
    """Follows an object to everything that it reaches.

    A token is the digest of one object. Globals are followed from a queue, so that recursion ends.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[Any, bytes]] = {}
        self._in_progress: set[int] = set()
        self._queue: deque[tuple[str, _CodeReading, dict[str, Any]]] = deque()
        self._queued: set[tuple[int, int]] = set()
        self._opened: set[tuple[int, int]] = set()
        self._modules: set[str] = set()
        self._reached: set[tuple[str, bytes]] = set()

    def finish(self) -> list[tuple[str, bytes]]:
        """Follow the queue to its end; returns (label, token) of everything that was reached, sorted."""
        while self._queue:
            label, reading, names = self._queue.popleft()
            for name in sorted(reading.globals & names.keys() - _MODULE_ATTRIBUTES):
                self._follow_global(f"{label} → {name}", names[name], reading.names)
            for level, module, imported in reading.imports:
                self._follow_import(level, module, imported, names)
        return sorted(self._reached)

    def token(self, value: Any) -> bytes:
        """The token of an object; functions and classes of the user's own are queued."""
        value = _unwrap(value)
        cached = self._tokens.get(id(value))
        if cached is not None:
            return cached[1]
        if id(value) in self._in_progress:
            return b"again:" + _label(value).encode()
        self._in_progress.add(id(value))
        try:
            token = self._object_token(value)
        finally:
            self._in_progress.discard(id(value))
        self._tokens[id(value)] = (value, token)  # the value is kept alive, so that its id stays unique
        return token

    def _follow_global(self, label: str, value: Any, names: frozenset[str]) -> None:
        """Follow a global, and in a module of the user's own every attribute that the code names."""
        self._reached.add((label, self.token(value)))
        opened = (id(value), id(names))
        if not isinstance(value, types.ModuleType) or opened in self._opened or not _is_user_module(value):
            return
        self._opened.add(opened)
        contents = vars(value)
        for name in sorted(names & contents.keys() - _MODULE_ATTRIBUTES):
            self._follow_global(f"{label}.{name}", contents[name], names)

    def _follow_import(self, level: int, module: str, taken: Iterable[str], names: dict[str, Any]) -> None:
        """Follow an import inside a function: a module of the user's own counts as a whole, loaded or not."""
        package = names.get("__package__") or ""
        if level:
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - level + 1])
            module = f"{base}.{module}" if module and base else module or base
        for name in (module, *(f"{module}.{item}" for item in taken)):
            if name in self._modules:
                continue
            self._modules.add(name)
            code = _module_code(name)
            if code is not None:
                reading = _read_code(code)
                self._reached.add((f"import {name}", reading.digest))
                inner = {"__package__": name if _is_package(name) else name.rpartition(".")[0]}
                for nested in reading.imports:
                    self._follow_import(*nested, inner)

    def _object_token(self, value: Any) -> bytes:
        if isinstance(value, types.FunctionType):
            return self._function_token(value)
        if isinstance(value, type):
            return self._class_token(value)
        if isinstance(value, types.ModuleType):
            return _token(
                "module", _module_label(value), "" if _is_user_module(value) else _package_version(value.__name__)
            )
        if isinstance(value, types.MethodType):
            return _token("method", self.token(value.__func__), self.token(value.__self__))
        if isinstance(value, (staticmethod, classmethod)):
            return _token(type(value).__name__, self.token(value.__func__))
        if isinstance(value, property):
            return _token("property", *(self.token(part) for part in (value.fget, value.fset, value.fdel)))
        wrapped = _attribute(value, "__wrapped__")
        if wrapped is not None and callable(value):
            return _token("wrapper", _external(type(value)), self.token(wrapped))
        if isinstance(value, _PARTIALS):
            rest = (getattr(value, "args", ()), getattr(value, "keywords", {}))
            return _token(type(value).__name__, self.token(value.func), *(self.token(part) for part in rest))
        if isinstance(value, types.BuiltinFunctionType):
            return _external(value)
        return _value_token(value, self.token)

    def _function_token(self, function: types.FunctionType) -> bytes:
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        closure = [(name, cell.cell_contents) for name, cell in cells if not _is_empty(cell)]
        wrapped = function.__dict__.get("__wrapped__")
        if not _is_user_function(function):
            # A package's decorator around the user's functions; functools.singledispatch keeps them in a dict.
            wrapped_items = [
                found for _, found in closure if isinstance(found, (types.FunctionType, dict, list, tuple))
            ]
            # Wrappers copy the name and the module of what they wrap; their code and globals are their own.
            module = str(function.__globals__.get("__name__", ""))
            name = _token("external", module.partition(".")[0], function.__code__.co_name, _package_version(module))
            return _token(name, *map(self.token, wrapped_items), *([self.token(wrapped)] if wrapped else []))
        reading = _read_code(function.__code__)
        queued = (id(function.__code__), id(function.__globals__))
        if queued not in self._queued:
            self._queued.add(queued)
            self._queue.append((_label(function), reading, function.__globals__))
        self._follow_annotations(function)
        return _token(
            "function",
            reading.digest,
            self.token(function.__defaults__ or ()),
            self.token(function.__kwdefaults__ or {}),
            *(part for name, found in sorted(closure, key=lambda cell: cell[0]) for part in (name, self.token(found))),
            *([self.token(wrapped)] if wrapped is not None else []),
        )

    def _follow_annotations(self, function: types.FunctionType) -> None:
        """Follow the user's classes in annotations, whose methods the function may call."""
        try:
            annotations = dict(function.__annotations__)
        except Exception:  # from 3.14 on the user's code runs here
            return
        for annotation in annotations.values():
            kind = function.__globals__.get(annotation) if isinstance(annotation, str) else annotation
            if isinstance(kind, type) and _is_user_class(kind):
                self._reached.add((f"{_label(function)} → {kind.__qualname__}", self.token(kind)))

    def _class_token(self, kind: type) -> bytes:
        if not _is_user_class(kind):
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
        for name in _FIELD_TABLES:
            parts += self._field_defaults(vars(kind).get(name))
        return _token(*parts)

    def _field_defaults(self, fields: Any) -> list[Any]:
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
    return _token("external", module.partition(".")[0], name, _package_version(module))


def _unwrap(value: Any) -> Any:
    function = None if isinstance(value, type) else _attribute(value, "__stoker_function__")
    return value if function is None else function


def _attribute(value: Any, name: str) -> Any:
    """An attribute in an object's `__dict__`; `__getattr__` is not called."""
    attributes = getattr(value, "__dict__", None)
    return attributes.get(name) if isinstance(attributes, dict) else None


def _label(value: Any) -> str:
    """An object's name, independent of the folder of its file and of being the script."""
    value = _unwrap(value)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{_module_label(module)}.{name}" if module is not None else str(name)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where nothing is assigned yet
    except ValueError:
        return True
    return False


def _is_user_function(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    if file.startswith("<") and function.__module__ != "__main__":
        # What dataclasses, attrs and namedtuple generate belongs to the class's module.
        module = sys.modules.get(function.__module__ or "")
        return module is not None and _is_user_module(module)
    return _is_user_file(file)


def _is_user_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and _is_user_module(module)


def _is_package(name: str) -> bool:
    spec = _module_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


@attrs.frozen(kw_only=True, eq=False)
class _CodeReading:
    """What a code object, with those inside it, does and names."""

    digest: bytes
    """Changes when what the code does changes: not with comments, layout, annotations, docstrings or line numbers."""
    globals: frozenset[str]
    """Names that are looked up in the module."""
    names: frozenset[str]
    """All names, attributes included."""
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    """(level, module, names that are imported from it) of each import statement."""
    code: CodeType


_readings: dict[int, _CodeReading] = {}


def _read_code(code: CodeType) -> _CodeReading:
    """The reading of a code object; made once in a process, since code objects do not change."""
    reading = _readings.get(id(code))
    if reading is None:
        reading = _readings[id(code)] = _analyze(code)  # the reading keeps the code alive, so that its id stays unique
    return reading


def _constant_token(value: Any, code_token: Callable[[CodeType], bytes]) -> bytes:
    """A constant of a code object as bytes that are the same in every process."""
    if isinstance(value, CodeType):
        return b"code:" + code_token(value)
    if isinstance(value, tuple):
        return b"(" + b",".join(_constant_token(item, code_token) for item in value) + b")"
    if isinstance(value, frozenset):
        # Its order follows the process's hash seed.
        return b"{" + b",".join(sorted(_constant_token(item, code_token) for item in value)) + b"}"
    return f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass")


def _analyze(code: CodeType) -> _CodeReading:
    # Constants count where they are used, not in their table, which a docstring shifts; NOPs are left by some layouts.
    names = set(code.co_names)
    looked_up: set[str] = set()
    imports: list[tuple[int, str, tuple[str, ...]]] = []

    def inner(nested: CodeType) -> bytes:
        reading = _read_code(nested)
        names.update(reading.names)
        looked_up.update(reading.globals)
        imports.extend(reading.imports)
        return reading.digest

    instructions = _without_docstring(
        [instruction for instruction in dis.get_instructions(code) if instruction.opname not in _SKIPPED]
    )
    # A jump's target is the number of the instruction that it leads to, or of the next one that is not skipped.
    offsets = [instruction.offset for instruction in instructions]
    hasher = hashlib.sha256()
    for value in (
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_posonlyargcount,
        # How the function is called and what it is; not the flags of __future__ imports.
        code.co_flags & 0x3FF,
        code.co_freevars,
        code.co_cellvars,
        code.co_varnames[: code.co_argcount + code.co_kwonlyargcount],
    ):
        hasher.update(f"{value!r};".encode())
    for index, instruction in enumerate(instructions):
        hasher.update(instruction.opname.encode() + b" " + _argument_bytes(instruction, offsets, inner) + b"\n")
        if instruction.opname in _LOOKUPS:
            looked_up.add(instruction.argval)
        if instruction.opname == "IMPORT_NAME":
            level, taken = instructions[index - 2].argval, instructions[index - 1].argval
            imports.append((level or 0, str(instruction.argval), tuple(taken or ())))
    # Which instructions a try covers; empty before 3.11, where instructions say it.
    hasher.update(getattr(code, "co_exceptiontable", b""))
    return _CodeReading(
        digest=hasher.digest(),
        globals=frozenset(looked_up),
        names=frozenset(names),
        imports=tuple(imports),
        code=code,
    )


def _without_docstring(instructions: list[dis.Instruction]) -> list[dis.Instruction]:
    """The instructions without those that store the docstring and the line number of a class or module."""
    remaining: list[dis.Instruction] = []
    for instruction in instructions:
        if instruction.opname == "STORE_NAME" and instruction.argval in _IGNORED_STORES and remaining:
            remaining.pop()
        else:
            remaining.append(instruction)
    return remaining


def _argument_bytes(instruction: dis.Instruction, offsets: list[int], inner: Callable[[CodeType], bytes]) -> bytes:
    if instruction.opcode in _CONSTANTS:
        return _constant_token(instruction.argval, inner)
    if instruction.opcode in _JUMPS:
        return b"%d" % bisect.bisect_left(offsets, instruction.argval)
    if instruction.opcode in _NAMED:
        return repr(instruction.argval).encode()
    return repr(instruction.arg).encode()


def _value_token(value: Any, token: Tokenize) -> bytes:
    """The token of a value, the same in every process; `token` makes those of its items, functions and classes."""
    kind = type(value)
    if kind in _SIMPLE:
        return _hash(kind.__name__, repr(value).encode("utf-8", "surrogatepass"))
    if kind in (list, tuple):
        return _hash(kind.__name__, *(token(item) for item in value))
    if kind in (set, frozenset):
        return _hash(kind.__name__, *sorted(token(item) for item in value))
    if isinstance(value, (dict, types.MappingProxyType)):
        # The order of a dict's keys is part of what it does.
        return _hash(kind.__name__, *(part for key, item in value.items() for part in (token(key), token(item))))
    if isinstance(value, logging.Logger):
        # Named after its module, which is `__main__` in a script.
        return _hash("logger")
    return _hash(kind.__name__, _pickle_digest(value, token))


def _hash(kind: str, *parts: bytes) -> bytes:
    hasher = hashlib.sha256(kind.encode())
    for part in parts:
        hasher.update(b"%d:" % len(part) + part)
    return hasher.digest()


class _HashingFile:
    """A file that computes the digest of what is written to it."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes."""
        self.sha256.update(data)
        return len(data)


class _Pickler(pickle.Pickler):
    """Pickles an object with tokens in place of the functions, classes, modules and sets in it."""

    def __init__(self, file: _HashingFile, value: Any, token: Tokenize, *, fast: bool) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: bool(file.write(buffer.raw())) and False)
        self._value = value
        self._token = token
        # Without a memo the bytes do not depend on which equal objects are the same object.
        self.fast = fast

    def persistent_id(self, item: Any) -> Any:
        """The token of an item; None for an item that is pickled."""
        if item is self._value:
            return None
        if isinstance(item, (type, types.FunctionType, types.ModuleType, set, frozenset, logging.Logger)):
            return self._token(item)
        return None


def _pickle_digest(value: Any, token: Tokenize) -> bytes:
    for fast in (True, False):  # an object that contains itself needs the memo
        file = _HashingFile()
        try:
            _Pickler(file, value, token, fast=fast).dump(value)
        except Exception:  # the object's own pickling code runs here, and many objects cannot be pickled
            continue
        return file.sha256.digest()
    return _attribute_digest(value, token)


def _attribute_digest(value: Any, token: Tokenize) -> bytes:
    """The token of an object that cannot be pickled: of its class and its attributes with plain values."""
    attributes: Mapping[str, Any] = getattr(value, "__dict__", None) or {}
    plain = {name: item for name, item in sorted(attributes.items()) if type(item) in _SIMPLE}
    return _hash("object", token(type(value)), *(part for item in plain.items() for part in map(token, item)))


@functools.cache
def _is_user_file(filename: str) -> bool:
    """Whether a code object's file is the user's own: not standard library, not installed, not Stoker's."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    path = os.path.abspath(filename)
    if path.startswith((_STANDARD_LIBRARY, _STOKER)):
        return False
    return _INSTALLED.isdisjoint(path.split(os.sep))


def _is_user_module(module: ModuleType) -> bool:
    """Whether a module is the user's own, as `__main__` is, in a notebook too."""
    file = getattr(module, "__file__", None)
    if file:
        return _is_user_file(file)
    if module.__name__ == "__main__":
        return True
    # A namespace package has folders and no file; a module without either is built in, or was made by hand.
    folders = list(getattr(module, "__path__", ()))
    if folders:
        return any(_is_user_file(os.path.join(folder, "__init__.py")) for folder in folders)
    return module.__name__.partition(".")[0] not in sys.stdlib_module_names


def _module_label(module: ModuleType) -> str:
    """A module's name for digests: of the user's own the file name, since a script is `__main__` where it runs."""
    file: str | None = getattr(module, "__file__", None)
    if not file or not _is_user_module(module):
        return module.__name__
    stem = os.path.splitext(os.path.basename(file))[0]
    return os.path.basename(os.path.dirname(file)) if stem == "__init__" else stem


def _package_version(name: str) -> str:
    """The version of a module's package, from `__version__`; "" if it has none."""
    top = name.partition(".")[0]
    # Stoker's version does not count: an upgrade must not run everything again.
    if top == "stoker" or top in sys.stdlib_module_names:
        return ""
    version: Any = vars(sys.modules[top]).get("__version__", "") if top in sys.modules else ""
    return version if isinstance(version, str) else ""


def _module_spec(name: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike `importlib.util.find_spec` it imports no package around it."""
    parent = name.rpartition(".")[0]
    path: Any = None
    if parent:
        package_spec = _module_spec(parent)
        if package_spec is None or package_spec.submodule_search_locations is None:
            return None
        path = package_spec.submodule_search_locations
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec = find_spec(name, path) if find_spec is not None else None
        except KeyError:  # part of a namespace package whose parent is not imported
            continue
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def _module_code(name: str) -> CodeType | None:
    """The code of a module of the user's own, which is not imported for it; None for any other module."""
    top = name.partition(".")[0]
    if not top or top in sys.stdlib_module_names or top == "stoker":
        return None
    try:
        spec = _module_spec(name)
        if spec is None or not spec.origin or not _is_user_file(spec.origin):
            return None
        get_code: Any = getattr(spec.loader, "get_code", None)
        code = get_code(name) if get_code is not None else None
    except (ImportError, SyntaxError, OSError, ValueError):  # the step's import reports it
        return None
    return code if isinstance(code, CodeType) else None
