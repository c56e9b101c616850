"""How the classes are made that every run loads, and its garbage collector: `frozen` and `define` of attrs.

A small run loads some 170 classes and makes instances of half of them; to compile the methods of all took two fifths of
its driver's time. A process that forks many calls `complete` before, so that they do not make them anew.

Also regular expressions that are compiled at their first use, and keys for caches of what follows from large objects.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import re
import reprlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Final, Generic, Iterator, TypeVar, cast

import attrs

__all__ = ["IdentityKey", "complete", "complete_next", "define", "frozen", "lazy_pattern", "when_made"]

if TYPE_CHECKING:
    from attrs import define, frozen
else:

    def define(cls: type | None = None, **options: Any) -> Any:
        """`attrs.define`, made when it is first needed."""
        return _decorated(attrs.define, cls, options)

    def frozen(cls: type | None = None, **options: Any) -> Any:
        """`attrs.frozen`, made when it is first needed."""
        return _decorated(attrs.frozen, cls, options)


_NEW_OBJECTS: Final = 20_000
"""New objects after which the collector looks at them, while modules are imported and a plan is made."""


def complete() -> None:
    """Make what attrs writes for every class that has been imported and lacks it."""
    while complete_next():
        continue


def complete_next() -> bool:
    """The same for one class; False where none is left."""
    cls = next(iter(_INCOMPLETE), None)
    if cls is not None:
        _make(cls)
    return cls is not None


def when_made(cls: type, change: Callable[[], None]) -> None:
    """Change a class once attrs has made it: now, or when it is first used."""
    if cls in _INCOMPLETE:
        _INCOMPLETE[cls].append(change)
    else:
        change()


_INCOMPLETE: Final[dict[type, list[Callable[[], None]]]] = {}
"""Class that has been imported and not been used → what makes it, in order."""
_MAKING: Final = threading.RLock()
"""One thread makes a class; others that use it meanwhile wait."""
_READERS: Final[dict[type, Callable[[Any], Any]]] = {}


class _AtFirstUse:
    """Stands for an attribute of a class, and has the class made when it is asked for."""

    __slots__ = ("cls", "name")

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.cls = cls

    def __get__(self, instance: Any, owner: type) -> Any:
        _make(self.cls)
        made = vars(self.cls)[self.name]
        # `inspect.signature` of Python 3.13 binds what it finds to the class itself.
        return made.__get__(instance, owner) if hasattr(made, "__get__") else made


def _decorated(decorate: Callable[..., Any], cls: type | None, options: dict[str, Any]) -> Any:
    if cls is None:
        return lambda decorated: _decorated(decorate, decorated, options)
    own = vars(cls)
    if options.get("repr", True) and "__repr__" not in own:
        cls.__repr__ = _text  # type: ignore[method-assign, assignment]  # attrs keeps what a class has itself
    if decorate is attrs.frozen and options.get("eq", True) and not {"__eq__", "__hash__"} & own.keys():
        cls.__eq__, cls.__hash__ = _is_equal, _hash  # type: ignore[assignment, method-assign]
    if cls.__bases__ != (object,):
        return decorate(cls, **options)
    # With slots attrs would make the class once more. What stands for `__init__` must not count as the class's own.
    options = {"init": "__init__" not in own, **options, "slots": False, "match_args": False}
    _INCOMPLETE[cls] = [functools.partial(decorate, cls, **options)]
    # These show that a class is used; the rest, as `__setattr__`, needs an instance.
    for name in ("__init__" if options["init"] else "__attrs_init__", "__attrs_attrs__"):
        setattr(cls, name, _AtFirstUse(name, cls))
    return cls


def _make(cls: type) -> None:
    with _MAKING:
        for make in _INCOMPLETE.get(cls, ()):
            make()
        _INCOMPLETE.pop(cls, None)  # where another thread was first, there is nothing to do


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


T = TypeVar("T")


class IdentityKey(Generic[T]):
    """An argument for a function with `functools.lru_cache` that compares by the object's identity.

    The cache keeps the object alive, so that its `id` is not used again. The object must not change.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value


_METHODS: Final = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn")


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, done when a method of the pattern is first used: a small run loads some fifty and uses ten."""
    return cast("re.Pattern[str]", _LazyPattern(text, flags))


class _LazyPattern:
    def __init__(self, text: str, flags: int) -> None:
        self.pattern = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiled = re.compile(self.pattern, self._flags)
        vars(self).update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the garbage collector look at new objects less often than after 700: nearly all that a run makes at its start
    stays, and a tenth of a small run's CPU time went into looking at it again and again.

    Bodies of dynamic programs and steps under `--debug` run as their user set the collector.
    """
    young, *older = gc.get_threshold()
    if 0 < young < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *older)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _NEW_OBJECTS:
            gc.set_threshold(young, *older)
