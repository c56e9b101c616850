"""Our values as JSON and back: plans, settings, findings, and whatever else is an attrs class of ours.

A field that is `UNSET` is left out. Reading is strict for what a person wrote, and tolerant for a document of ours that
a newer version may have written. cattrs is imported when something is first read: writing needs none of it.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator, Mapping, TypeVar

import attrs

from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_FIELDS: Final[dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]]] = {}
"""class → its fields' names, and what reads them all at once: a loop of getattr takes twice as long."""
_NUMBERS: Final[Mapping[type, tuple[type, ...]]] = {str: (str,), bool: (bool,), int: (int,), float: (int, float)}


def to_json(value: Any) -> Any:
    """Dicts, lists, texts, numbers, true, false and null; a `TypeError` for what has no such form.

    A value that occurs many times (the steps of a plan share their settings) is one object in the result, too.
    """
    return _encoded(value, {})


def from_json(cls: type[T], data: Any, *, strict: bool, where: str = "") -> T:
    """The value of a JSON form. `strict`: an unknown key is an error. `where` is the document's name in errors."""
    convert = _converter(strict)
    try:
        return convert.structure(data, cls)
    except Exception as error:  # cattrs gathers whatever the classes' own converters raise
        path, cause, holder = next(_causes(error, "", cls), ("", error, cls))
        raise _refusal(path, cause, holder, where) from error


def _encoded(value: Any, seen: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    fields = _FIELDS.get(kind)
    if fields is not None:
        found = seen.get(id(value))
        if found is None:
            names, read = fields
            found = seen[id(value)] = {}
            for name, item in zip(names, read(value)):
                if type(item) in _PLAIN:
                    found[name] = item
                elif item is not UNSET:
                    found[name] = _encoded(item, seen)
        return found
    if kind is tuple or kind is list:
        return [_encoded(item, seen) for item in value]
    if kind is dict:
        return {_key(name): _encoded(item, seen) for name, item in value.items()}
    return _rare(value, kind, seen)


def _rare(value: Any, kind: type, seen: dict[int, Any]) -> Any:
    if isinstance(value, Accelerator):
        return str(value)
    if attrs.has(kind):
        names = tuple(field.name for field in attrs.fields(kind))
        read = operator.attrgetter(*names) if len(names) > 1 else _one_by_one(names)
        _FIELDS[kind] = (names, read)
        return _encoded(value, seen)
    if isinstance(value, Mapping):
        return {_key(name): _encoded(item, seen) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item, seen) for item in value]
    if isinstance(value, frozenset):
        return sorted(_encoded(item, seen) for item in value)
    raise TypeError(f"{kind.__name__} has no JSON form")


def _one_by_one(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    # attrgetter gives no tuple for a single name, and takes no empty list of names.
    return lambda value: tuple(getattr(value, name) for name in names)


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} cannot be a key in JSON")
    return name


@functools.cache
def _converter(strict: bool) -> Converter:
    from cattrs import Converter

    # Settings have converters of their own, which parse what a person writes and take their own results as well.
    converter = Converter(forbid_extra_keys=strict, prefer_attrib_converters=True)
    for kind, accepted in _NUMBERS.items():
        # cattrs would turn anything into a text, and "false" into true.
        converter.register_structure_hook(kind, functools.partial(_exactly, kind, accepted))
    converter.register_structure_hook(Accelerator, lambda data, _: Accelerator.parse(data))
    return converter


def _exactly(kind: type, accepted: tuple[type, ...], data: Any, _: object) -> Any:
    if not isinstance(data, accepted) or (isinstance(data, bool) and kind is not bool):
        raise SettingsError(f"{data!r} is not {_WORDS[kind]}")
    return kind(data)


_WORDS: Final[Mapping[type, str]] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def _causes(error: BaseException, path: str, cls: Any) -> Iterator[tuple[str, BaseException, Any]]:
    """Each single error inside cattrs' groups, with its path and the class that it was met in."""
    inner = getattr(error, "exceptions", None)
    holder = getattr(error, "cl", cls)
    if inner is None:
        yield path, error, holder
        return
    for one in inner:
        step = path
        for note in getattr(one, "__notes__", ()):
            # A note is a str, whose `index` is a method unless cattrs put a position there.
            name, index = getattr(note, "name", None), getattr(note, "index", None)
            if name is not None or isinstance(index, str):
                step = f"{path}.{index if name is None else name}"
            elif isinstance(index, int):
                step = f"{path}[{index}]"
        yield from _causes(one, step, holder)


def _refusal(path: str, cause: BaseException, holder: Any, where: str) -> SettingsError:
    place = path.strip(".")
    fix = ""
    extra = getattr(cause, "extra_fields", None)
    if extra:
        key = min(extra)
        known = [field.name for field in attrs.fields(getattr(cause, "cl", holder))]
        message = f"there is no '{key}' in {getattr(cause, 'cl', holder).__name__}{nearest(key, known)}"
    elif isinstance(cause, SettingsError):
        message, fix = cause.message, cause.fix
    elif isinstance(cause, KeyError):
        message = f"{cause} is missing"
    else:
        message = str(cause) or type(cause).__name__
    return SettingsError(f"{place}: {message}" if place else message, where=where, fix=fix)
