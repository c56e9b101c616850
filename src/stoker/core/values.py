"""How the classes are made that every run loads, and its garbage collector: `frozen` and `define` of attrs.

A small run loads some 210 classes and makes a few instances of a third of them; to compile the methods of all took two
fifths of its driver's time. So the first instances of a class are filled from its fields as attrs names them, and attrs
compiles its methods for the class that has more. A process that forks many calls `complete` before, so that they do not
make them anew.

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


_FEW: Final = 32
"""So many instances of a class are filled without attrs' `__init__`: each takes some microseconds more, and to compile
it takes three hundred."""
_INCOMPLETE: Final[dict[type, list[Callable[..., None]]]] = {}
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


class _FirstInstances(_AtFirstUse):
    """Stands for the `__init__` of a frozen class: fills the first few instances, then has the class made."""

    __slots__ = ("fields", "left", "positional", "raw")

    def __init__(self, cls: type) -> None:
        super().__init__("__init__", cls)
        self.left = _FEW
        self.raw: _FieldsByName | None = None
        self.fields: list[tuple[str, str, Callable[[], Any] | None, Any, Callable[[Any], Any] | None]] = []
        """name, the argument's name, what makes the default, the default, converter"""
        self.positional: list[str] = []

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None or self.left <= 0:
            return super().__get__(instance, owner)
        self.left -= 1
        return functools.partial(self._fill, instance)

    def _fill(self, instance: Any, /, *arguments: Any, **named: Any) -> None:
        try:
            values = self._values(arguments, dict(named))
        except Exception:  # attrs' own `__init__`, and what `when_made` puts around it, say what is wrong
            _make(self.cls)
            vars(self.cls)["__init__"](instance, *arguments, **named)
            return
        vars(instance).update(values)
        finish = getattr(instance, "__attrs_post_init__", None)
        if finish is not None:
            finish()

    def _values(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The value of each field; an error for what attrs must see."""
        if self.raw is None:
            self.read()
        for alias, argument in zip(self.positional, arguments, strict=False):
            if alias in named:
                raise TypeError(alias)
            named[alias] = argument
        if len(arguments) > len(self.positional):
            raise TypeError(arguments)
        values = {}
        for name, alias, make, default, convert in self.fields:
            value = named.pop(alias) if alias in named else make() if make else default
            if value is attrs.NOTHING:
                raise TypeError(name)
            values[name] = value if convert is None else convert(value)
        if named:
            raise TypeError(named)
        return values

    def read(self) -> None:
        """Have attrs name the fields, and the class refuse changes; an error where only attrs can fill it."""
        with _MAKING:
            if self.raw is not None:
                return
            if self.cls not in _INCOMPLETE:
                raise TypeError(f"{self.cls.__name__} has been made by another thread")
            with contextlib.suppress(_FieldsKept):
                _INCOMPLETE[self.cls][0](field_transformer=self._keep)
            self.cls.__setattr__, self.cls.__delattr__ = _FROZEN.__setattr__, _FROZEN.__delattr__  # type: ignore[method-assign]

    def _keep(self, cls: type, fields: list[attrs.Attribute[Any]]) -> Any:
        for field in fields:
            alias = field.alias or field.name.lstrip("_")
            convert: Any = field.converter
            default: Any = field.default
            made = isinstance(default, attrs.Factory)  # type: ignore[arg-type]
            if not field.init or field.validator or hasattr(convert, "takes_self") or (made and default.takes_self):
                raise TypeError(field.name)
            self.fields.append((field.name, alias, default.factory if made else None, default, convert))
            if not field.kw_only:
                self.positional.append(alias)
        self.raw = _FieldsByName(fields)
        raise _FieldsKept


class _FieldsByName(tuple["attrs.Attribute[Any]", ...]):
    """Fields that are also attributes, as those that `attrs.fields` gives."""

    __slots__ = ()

    def __getattr__(self, name: str) -> attrs.Attribute[Any]:
        for field in self:
            if field.name == name:
                return field
        raise AttributeError(name)


class _FieldsAtFirstUse(_AtFirstUse):
    """Stands for the fields of a frozen class, for which attrs need not make it."""

    __slots__ = ("init",)

    def __init__(self, init: _FirstInstances) -> None:
        super().__init__("__attrs_attrs__", init.cls)
        self.init = init

    def __get__(self, instance: Any, owner: type) -> Any:
        with contextlib.suppress(TypeError):
            self.init.read()
        return self.init.raw if self.cls in _INCOMPLETE and self.init.raw else super().__get__(instance, owner)


class _FieldsKept(Exception):
    """attrs has named the fields of a class."""


_FROZEN: Final[Any] = attrs.make_class("_FROZEN", (), frozen=True)
"""Lends attrs' refusal of changes to classes that attrs has not made yet."""


def _decorated(decorate: Callable[..., Any], cls: type | None, options: dict[str, Any]) -> Any:
    if cls is None:
        return lambda decorated: _decorated(decorate, decorated, options)
    own = vars(cls)
    if options.get("repr", True) and "__repr__" not in own:
        cls.__repr__ = _text  # type: ignore[method-assign, assignment]  # attrs keeps what a class has itself
    plain = decorate is attrs.frozen and not {"__eq__", "__hash__", "__init__"} & own.keys()
    if decorate is attrs.frozen and options.get("eq", True) and not {"__eq__", "__hash__"} & own.keys():
        cls.__eq__, cls.__hash__ = _is_equal, _hash  # type: ignore[assignment, method-assign]
    if cls.__bases__ != (object,):
        return decorate(cls, **options)
    # With slots attrs would make the class once more. What stands for `__init__` must not count as the class's own.
    options = {"init": "__init__" not in own, **options, "slots": False, "match_args": False}
    _INCOMPLETE[cls] = [functools.partial(decorate, cls, **options)]
    # These show that a class is used; the rest, as `__setattr__`, needs an instance.
    if plain:
        init = _FirstInstances(cls)
        cls.__init__, cls.__attrs_attrs__ = init, _FieldsAtFirstUse(init)  # type: ignore[misc, attr-defined]
    else:
        for name in ("__init__" if options["init"] else "__attrs_init__", "__attrs_attrs__"):
            setattr(cls, name, _AtFirstUse(name, cls))
    return cls


def _make(cls: type) -> None:
    with _MAKING:
        made = _INCOMPLETE.get(cls)
        if made is None:  # another thread was first
            return
        if vars(cls).get("__setattr__") is _FROZEN.__setattr__:
            del cls.__setattr__, cls.__delattr__
        for make in made:
            make()
        _INCOMPLETE.pop(cls, None)


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
