"""`frozen` and `define` of attrs for the classes that every run loads: what attrs writes for a class is made when it is
first needed, and `__eq__`, `__hash__` and `__repr__` are the same for all of them.

A small run loads some 170 classes and makes instances of half of them; to compile the methods of all took two fifths of
its driver's time. A process that forks others calls `complete` first, so that each of them does not make them anew.
"""

from __future__ import annotations

import functools
import operator
import reprlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Final

import attrs

__all__ = ["complete", "define", "frozen"]

if TYPE_CHECKING:
    from attrs import define, frozen
else:

    def define(cls: type | None = None, **options: Any) -> Any:
        """`attrs.define`, made when it is first needed."""
        return _decorated(attrs.define, cls, options)

    def frozen(cls: type | None = None, **options: Any) -> Any:
        """`attrs.frozen`, made when it is first needed."""
        return _decorated(attrs.frozen, cls, options)


def complete() -> None:
    """Make what attrs writes for every class that has been imported and lacks it."""
    for make in list(_INCOMPLETE.values()):
        make()


_MADE_LATE: Final = ("__init__", "__attrs_attrs__", "__getstate__", "__setstate__", "__match_args__", "__signature__")
"""What shows that a class is used. The rest, as `__setattr__`, needs an instance."""
_LAYOUT: Final = frozenset({"__dict__", "__weakref__"})
_INCOMPLETE: Final[dict[type, Callable[[], None]]] = {}
_MAKING: Final = threading.RLock()
"""One thread makes a class; others that use it meanwhile wait."""
_READERS: Final[dict[type, Callable[[Any], Any]]] = {}


class _AtFirstUse:
    """Stands for an attribute of a class, and has all of them made when it is asked for."""

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[], None]) -> None:
        self.name = name
        self.make = make

    def __get__(self, instance: Any, owner: type) -> Any:
        self.make()
        return getattr(owner if instance is None else instance, self.name)


def _decorated(decorate: Callable[..., Any], cls: type | None, options: dict[str, Any]) -> Any:
    if cls is None:
        return lambda decorated: _decorated(decorate, decorated, options)
    own = vars(cls)
    plain = cls.__bases__ == (object,) and options.get("slots", True) and options.get("init", True)
    plain = plain and not any(map(_knows_its_class, own.values()))
    if options.get("repr", True) and "__repr__" not in own:
        cls.__repr__ = _text  # type: ignore[method-assign, assignment]  # attrs keeps what a class has itself
    if decorate is attrs.frozen and options.get("eq", True) and not {"__eq__", "__hash__"} & own.keys():
        cls.__eq__, cls.__hash__ = _is_equal, _hash  # type: ignore[assignment, method-assign]
    if not plain:
        return decorate(cls, **options)
    names = [name for name, text in cls.__annotations__.items() if not str(text).startswith("ClassVar")]
    layout = {name: value for name, value in own.items() if name not in names and name not in _LAYOUT}
    made = type(cls.__name__, (), {**layout, "__slots__": (*names, "__weakref__")})

    def make() -> None:
        with _MAKING:
            if made not in _INCOMPLETE:
                return  # another thread was first
            for name, value in vars(decorate(cls, **options)).items():
                if name not in vars(made) or isinstance(vars(made)[name], _AtFirstUse):
                    setattr(made, name, value)
            for name in _MADE_LATE:
                if isinstance(vars(made).get(name), _AtFirstUse):
                    delattr(made, name)
            del _INCOMPLETE[made]

    for name in _MADE_LATE:
        if name not in layout:
            setattr(made, name, _AtFirstUse(name, make))
    _INCOMPLETE[made] = make
    return made


def _knows_its_class(value: Any) -> bool:
    """Whether a part of a class is changed with it when attrs makes it anew: by `super()`, or as a cached property."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    return isinstance(value, functools.cached_property) or getattr(function, "__closure__", None) is not None


def _compared(cls: Any) -> Callable[[Any], Any]:
    """What reads the fields of a class that count when two values are compared."""
    read = _READERS.get(cls)
    if read is None:
        names = [field.name for field in attrs.fields(cls) if field.eq]
        read = _READERS[cls] = operator.attrgetter(*names, "__class__")
    return read


def _is_equal(value: Any, other: object) -> Any:
    if other.__class__ is not value.__class__:
        return NotImplemented
    read = _compared(value.__class__)
    return read(value) == read(other)


def _hash(value: Any) -> int:
    return hash(_compared(value.__class__)(value))


@reprlib.recursive_repr("...")
def _text(value: attrs.AttrsInstance) -> str:
    """What attrs' own `__repr__` gives: `Name(field=value, …)`."""
    texts = (
        f"{field.name}={(field.repr if callable(field.repr) else repr)(getattr(value, field.name, attrs.NOTHING))}"
        for field in attrs.fields(type(value))
        if field.repr
    )
    return f"{type(value).__qualname__.rpartition('>.')[2]}({', '.join(texts)})"
