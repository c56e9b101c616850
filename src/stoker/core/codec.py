"""Our values as JSON and back: plans, settings, findings, messages, and whatever else is an attrs class of ours.

A field that is `UNSET` is left out. A class with `COMPACT = True` leaves out every field that has its default: messages
between processes are small so. One with `AS_TEXT = True` is written as its `str`, and read by its `parse`. Reading is
strict for what a person wrote, and tolerant for a document of ours that a newer version may have written. How a class
is written and read is worked out once, from its fields and annotations; a job's message takes some microseconds. Names
in annotations that are imported late stand in the class's `LATE`, with their modules.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import operator
import sys
import types
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence as AbstractSequence
from typing import Any, Callable, Final, Literal, Mapping, TypeVar, Union, get_args, get_origin

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET
from stoker.core.words import shown

T = TypeVar("T")
Decode = Callable[[Any], Any]

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_WORDS: Final[Mapping[type, str]] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_EXACT: Final[Mapping[type, Callable[[Any], Any]]] = {str: str.__str__, int: int.__int__, float: float.__float__}
"""A built-in type → what makes a value of exactly that type of one of a subclass, whatever the subclass overrides."""
_FIELDS: Final[dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], tuple[Any, ...] | None]]] = {}
"""class → its fields' names, what reads them all at once (a loop of getattr takes twice as long), and the defaults that
are left out, None for a class that writes them."""
_REQUIRED: Final = object()
"""Stands for the default of a field without one; equal to nothing else."""


def to_json(value: Any) -> Any:
    """Dicts, lists, texts, numbers, true, false and null; a `TypeError` for what has no such form.

    A value that occurs many times (the steps of a plan share their settings) is one object in the result, too.
    """
    return _encode(value, {})


def from_json(cls: type[T], data: Any, *, strict: bool, where: str = "") -> T:
    """The value of a JSON form. `strict`: an unknown key is an error. `where` is the document's name in errors."""
    annotation: Any = cls
    try:
        value: T = _decoder(annotation, strict)(data)
        return value
    except Exception as error:  # whatever the classes' own converters raise
        raise _refusal(error, where) from error


def parse_json(data: str | bytes, *, where: str = "") -> Any:
    """The document of a JSON text; a `SettingsError` for a text that is none, whatever is wrong with it."""
    try:
        return json.loads(data)
    except RecursionError:
        raise SettingsError("it is nested too deeply", where=where) from None
    except ValueError as error:  # no JSON, no UTF-8, or a number with more digits than Python converts
        raise SettingsError(f"it is not JSON: {error}", where=where) from None


def parse_object(data: str | bytes, *, where: str = "") -> dict[str, Any]:
    """The object of a JSON text; a `SettingsError` for another document."""
    document = parse_json(data, where=where)
    if not isinstance(document, dict):
        raise SettingsError(f"{shown(document)} is not a JSON object", where=where)
    return document


# Writing


def _encode(value: Any, documents: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    fields = _FIELDS.get(kind)
    if fields is not None:
        document = documents.get(id(value))
        if document is None:
            names, read, defaults = fields
            document = documents[id(value)] = {}
            if defaults is None:
                for name, item in zip(names, read(value)):
                    if type(item) in _PLAIN:
                        document[name] = item
                    elif item is not UNSET:
                        document[name] = _encode(item, documents)
            else:
                for name, item, default in zip(names, read(value), defaults):
                    if item is not default and item != default:
                        document[name] = item if type(item) in _PLAIN else _encode(item, documents)
        return document
    if kind is tuple or kind is list:
        return [_encode(item, documents) for item in value]
    if kind is dict:
        return {
            name if type(name) is str else _key(name): item if type(item) in _PLAIN else _encode(item, documents)
            for name, item in value.items()
        }
    return _encode_other(value, kind, documents)


def _encode_other(value: Any, kind: type, documents: dict[int, Any]) -> Any:
    if getattr(kind, "AS_TEXT", False):
        return str(value)
    if attrs.has(kind):
        names = tuple(field.name for field in attrs.fields(kind))
        read = operator.attrgetter(*names) if len(names) > 1 else _one_by_one(names)
        compact = getattr(kind, "COMPACT", False)
        _FIELDS[kind] = (names, read, tuple(map(_default, attrs.fields(kind))) if compact else None)
        return _encode(value, documents)
    if isinstance(value, Mapping):
        return {_key(name): _encode(item, documents) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item, documents) for item in value]
    if isinstance(value, frozenset):
        return sorted(_encode(item, documents) for item in value)
    for plain, exact in _EXACT.items():  # a subclass, such as numpy's float64 or torch's version
        if isinstance(value, plain):
            return exact(value)
    raise TypeError(f"{kind.__name__} has no JSON form")


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    if default is attrs.NOTHING:
        return _REQUIRED
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _one_by_one(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    # attrgetter gives no tuple for a single name, and takes no empty list of names.
    return lambda value: tuple(getattr(value, name) for name in names)


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} cannot be a key in JSON")
    return name


# Reading


class _Misfit(Exception):
    """An error inside a document: where, and what it was."""

    def __init__(self, position: str, error: Exception) -> None:
        super().__init__(position)
        inner = error if isinstance(error, _Misfit) else None
        self.position: str = position + (inner.position if inner else "")
        self.error: Exception = inner.error if inner else error


@functools.cache
def _decoder(annotation: Any, strict: bool) -> Decode:
    """What reads a value of a type."""
    if annotation in _WORDS:
        return _exactly(annotation)
    if getattr(annotation, "AS_TEXT", False):
        return annotation.parse  # type: ignore[no-any-return]
    if isinstance(annotation, type) and attrs.has(annotation):
        return _class_decoder(annotation, strict)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        return _union_decoder(arguments, strict)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return _fixed_tuple(tuple(_decoder(argument, strict) for argument in arguments))
    if origin in (tuple, list, frozenset, AbstractSequence):
        return _items(frozenset if origin is frozenset else list if origin is list else tuple, arguments[0], strict)
    if origin in (dict, AbstractMapping):
        return _mapping(arguments[1], strict)
    return _as_it_is


def _class_decoder(cls: type, strict: bool) -> Decode:
    attributes = {field.name: field for field in attrs.fields(cls)}
    fields: dict[str, tuple[str, Decode | None]] = {}

    def field_decoder(key: str) -> tuple[str, Decode | None] | None:
        """How a field is read; worked out when it is first met, since its type may be one that is imported late."""
        field = attributes.get(key)
        if field is None:
            if strict:
                raise SettingsError(f"there is no '{key}' in {cls.__name__}{nearest(key, list(attributes))}")
            return None
        # A converter parses what a person writes and takes its own results as well.
        decode = None if field.converter is not None else _decoder(_annotation(cls, field.name), strict)
        fields[key] = entry = (field.alias or key, None if decode is _as_it_is else decode)
        return entry

    def read(data: Any) -> Any:
        if type(data) is not dict and not isinstance(data, AbstractMapping):
            raise SettingsError(f"{shown(data)} is no {cls.__name__}")
        values = {}
        for key, item in data.items():
            entry = fields.get(key) or field_decoder(key)
            if entry is None:
                continue
            alias, decode = entry
            try:
                values[alias] = item if decode is None else decode(item)
            except Exception as error:  # whatever a converter below raises
                raise _Misfit(f".{key}", error) from error
        try:
            return cls(**values)
        except TypeError:
            for field in attrs.fields(cls):
                if field.default is attrs.NOTHING and field.name not in data:
                    raise _Misfit(f".{field.name}", SettingsError(f"'{field.name}' is missing")) from None
            raise

    return read


class _Late(dict[str, Any]):
    """The names in annotations that a class has imported only when a document has such a field."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __missing__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._modules[name]), name)


def _annotation(cls: type, name: str) -> Any:
    """The type of a class's field, whose annotation is text in the module of the class that has it."""
    owner = next(kind for kind in cls.__mro__ if name in inspect.get_annotations(kind))
    text = inspect.get_annotations(owner)[name]
    if not isinstance(text, str):
        return text
    return eval(text, vars(sys.modules[owner.__module__]), _Late(getattr(cls, "LATE", {})))


def _exactly(kind: type) -> Decode:
    accepted = (int, float) if kind is float else (kind,)

    def read(data: Any) -> Any:
        if type(data) is kind:
            return data
        # Nothing is turned into a text, and "false" not into true.
        if not isinstance(data, accepted) or (isinstance(data, bool) and kind is not bool):
            raise SettingsError(f"{shown(data)} is not {_WORDS[kind]}")
        return kind(data)

    return read


def _one_of(choices: tuple[Any, ...]) -> Decode:
    def read(data: Any) -> Any:
        if data not in choices:
            raise SettingsError(f"{shown(data)} is not one of {', '.join(map(repr, choices))}")
        return data

    return read


def _union_decoder(arguments: tuple[Any, ...], strict: bool) -> Decode:
    """None, or the first type that takes the value."""
    optional = type(None) in arguments
    decoders = [_decoder(argument, strict) for argument in arguments if argument is not type(None)]

    def read(data: Any) -> Any:
        if data is None and optional:
            return None
        for decode in decoders[:-1]:
            try:
                return decode(data)
            except (_Misfit, SettingsError):
                continue
        return decoders[-1](data)

    return read


def _items(make: Callable[[list[Any]], Any], argument: Any, strict: bool) -> Decode:
    decode = _decoder(argument, strict)

    def read(data: Any) -> Any:
        if not isinstance(data, (list, tuple)):
            raise SettingsError(f"{shown(data)} is not a list")
        values = []
        for item in data:
            try:
                values.append(decode(item))
            except Exception as error:  # whatever a converter below raises
                raise _Misfit(f"[{len(values)}]", error) from error
        return make(values)

    return read


def _fixed_tuple(decoders: tuple[Decode, ...]) -> Decode:
    def read(data: Any) -> Any:
        if not isinstance(data, (list, tuple)) or len(data) != len(decoders):
            raise SettingsError(f"{shown(data)} is not a list of {len(decoders)}")
        return tuple(decode(item) for decode, item in zip(decoders, data))

    return read


def _mapping(argument: Any, strict: bool) -> Decode:
    decode = _decoder(argument, strict)

    def read(data: Any) -> Any:
        if type(data) is not dict and not isinstance(data, AbstractMapping):
            raise SettingsError(f"{shown(data)} is not a table")
        if decode is _as_it_is:
            return dict(data)
        values = {}
        for key, item in data.items():
            try:
                values[key] = decode(item)
            except Exception as error:  # whatever a converter below raises
                raise _Misfit(f".{key}", error) from error
        return values

    return read


def _as_it_is(data: Any) -> Any:
    return data


def _refusal(error: Exception, where: str) -> SettingsError:
    cause, position = (error.error, error.position.strip(".")) if isinstance(error, _Misfit) else (error, "")
    message, fix = str(cause) or type(cause).__name__, ""
    if isinstance(cause, SettingsError):
        message, fix = cause.message, cause.fix
    return SettingsError(f"{position}: {message}" if position else message, where=where, fix=fix)
