"""What an object says of itself to a digest: its attributes, closure and classes, without running code of its own; and
its pickle with numbers in place of the code that it names."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import re
import sys
import types
import typing
from contextvars import ContextVar
from typing import Any, Final, Iterable, Literal, Mapping

from stoker.core.usercode import is_user_class, is_user_file, is_user_module
from stoker.plan.modulecode import module_label
from stoker.store.serializers.references import tensor_reduction

PartKind = Literal["function", "class", "module", "value"]
PARTIALS: Final = (functools.partial, functools.partialmethod, functools.cached_property)
SIMPLE: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), range, type(NotImplemented)})
CONTAINERS: Final = frozenset({list, tuple, set, frozenset, dict, types.MappingProxyType})
CACHED_FUNCTION: Final = type(functools.lru_cache(lambda: None))
_REFERENCES: Final = (
    type,
    types.FunctionType,
    types.ModuleType,
    types.BuiltinFunctionType,
    CACHED_FUNCTION,
    set,
    frozenset,
    ContextVar,
)
"""Types of what a pickle has references to, or canonical forms of, in its place; loggers are besides."""


def is_logger(value: Any) -> bool:
    """Whether an object is a logger; where nothing has imported logging, which takes a while, there is none."""
    logging = sys.modules.get("logging")
    return logging is not None and isinstance(value, logging.Logger)


def unwrapped(value: Any) -> Any:
    function = None if isinstance(value, type) else own_attribute(value, "__stoker_function__")
    return value if function is None else function


def own_attribute(value: Any, name: str) -> Any:
    """An attribute in an object's `__dict__`; `__getattr__` is not called."""
    return attributes_of(value).get(name)


def current_value(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:  # it has no default, and was not set
        return None


def attributes_of(value: Any) -> dict[str, Any]:
    try:
        attributes = getattr(value, "__dict__", None)
    except Exception:  # a proxy, such as flask's `request`, whose object is not there yet
        return {}
    return attributes if isinstance(attributes, dict) else {}


def closure_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """(name, value) of the variables around a function that have a value."""
    items = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            items.append((name, cell.cell_contents))
        except ValueError:  # nothing is assigned yet
            continue
    return items


def annotation_classes(annotations: Mapping[str, Any], scope: dict[str, Any]) -> Iterable[type]:
    """The user's classes in annotations, whose methods the function may call."""
    remaining: list[Any] = list(annotations.values())
    while remaining:
        annotation = remaining.pop()
        if isinstance(annotation, str):
            remaining += [scope[name] for name in re.findall(r"[^\W\d]\w*", annotation) if name in scope]
        elif isinstance(annotation, type) and is_user_class(annotation):
            yield annotation
        elif not isinstance(annotation, type):
            remaining += [item for item in typing.get_args(annotation) if item is not annotation]


def annotations_of(kind: type) -> Mapping[str, Any]:
    try:
        return dict(inspect.get_annotations(kind))
    except Exception:  # from 3.14 on the user's code runs here
        return {}


def is_plain_or_own(value: Any) -> bool:
    """Whether a value is plain, a container, or the user's own, so that it says what a package's object was given."""
    kind = type(value)
    if kind in SIMPLE or kind in CONTAINERS or isinstance(value, (types.FunctionType, types.MethodType, *PARTIALS)):
        return True
    return is_user_class(value) if isinstance(value, type) else is_user_class(kind)


def is_own_callable(value: Any) -> bool:
    """Whether a value is a function or a class of the user's own, decorated or not."""
    value = unwrapped(value)
    if isinstance(value, types.FunctionType):
        return is_user_function(value) or is_own_callable(vars(value).get("__wrapped__"))
    if isinstance(value, type):
        return is_user_class(value)
    if isinstance(value, PARTIALS):
        return is_own_callable(value.func)
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        return is_own_callable(value.__func__)
    wrapped = own_attribute(value, "__wrapped__") if callable(value) else None
    return wrapped is not None and is_own_callable(wrapped)


def label_of(value: Any) -> str:
    """An object's name, independent of the folder of its file and of being the script."""
    value = unwrapped(value)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{module_label(module)}.{name}" if module is not None else str(name)


def is_made_dataclass(kind: type) -> bool:
    """Whether `make_dataclass` made a class, which names the module `types` as its own before Python 3.12."""
    return kind.__module__ == "types" and "__dataclass_fields__" in vars(kind)


def is_user_function(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    if file.startswith("<") and function.__module__ != "__main__":
        # What dataclasses, attrs and namedtuple generate belongs to the class's module.
        module = sys.modules.get(function.__module__ or "")
        return module is not None and is_user_module(module)
    return is_user_file(file)


def source_lines(value: Any, kind: PartKind) -> tuple[str, tuple[int, int]]:
    """The file and the first and last line of a part's source."""
    if kind == "module":
        return value.co_filename, (0, 0)
    try:
        value = inspect.unwrap(value)
        file = inspect.getsourcefile(value) or ""
        code = getattr(value, "__code__", None)
        # From Python 3.11 on; before, and for classes, inspect splits the text into tokens.
        if file and code is not None and hasattr(code, "co_positions"):
            return file, (code.co_firstlineno, _last_line(code))
        lines, first = inspect.getsourcelines(value)
    except (OSError, TypeError, ValueError):  # made by a call, or its file is gone
        return "", (0, 0)
    return file, (first, first + len(lines) - 1)


def _last_line(code: types.CodeType) -> int:
    inner = (_last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    lines = (end or first or 0 for first, end, _, _ in code.co_positions())  # type: ignore[attr-defined, unused-ignore]
    return max(code.co_firstlineno, *inner, *lines)


def hides_state(kind: Any) -> bool:
    """Whether a class of the user's own says itself what its pickle is made of, which may leave out what it has."""
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        return False
    return any(
        ("__reduce__" in vars(base) or "__reduce_ex__" in vars(base)) and is_user_class(base) for base in kind.__mro__
    )


class HashingFile:
    """A file that computes the digest of what is written to it."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes."""
        self.sha256.update(data)
        return len(data)


class HashingPickler(pickle.Pickler):
    """Pickles an object with numbers in place of the functions, classes, modules and sets in it, which it collects."""

    def __init__(self, file: HashingFile, value: Any, references: list[Any], *, fast: bool) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: bool(file.write(buffer.raw())) and False)
        self._value = value
        self._references = references
        # Without a memo the bytes do not depend on which equal objects are the same object.
        self.fast = fast

    def reducer_override(self, item: Any) -> Any:
        """Tensors by their numbers: their own pickles name addresses."""
        return tensor_reduction(item)

    def persistent_id(self, item: Any) -> Any:
        """The number of an item that is collected; None for an item that is pickled."""
        if item is self._value or not (isinstance(item, _REFERENCES) or is_logger(item) or hides_state(type(item))):
            return None
        self._references.append(item)
        return len(self._references)
