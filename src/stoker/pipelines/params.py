"""Values against annotations: is this value one that the annotation allows, and which value does a text mean?

In doubt a value is allowed: what an annotation of a foreign library means is known to that library only.
"""

from __future__ import annotations

import builtins
import types
import typing
from collections import abc
from typing import Any, Callable, Final, ForwardRef, Literal, Mapping, TypeVar, Union

from stoker.core.errors import ParameterError, did_you_mean
from stoker.core.registry import ArtifactRef, is_artifact_text, parse_reference
from stoker.core.secret import Secret, is_reference

LOOKED_AT: Final = 1000
"""Elements of a container whose types are looked at: a list of a million numbers must not cost a second a call."""
TRUE: Final = frozenset({"true", "yes", "on", "1"})
FALSE: Final = frozenset({"false", "no", "off", "0"})
NONE: Final = frozenset({"none", "null", ""})
_SHOWN: Final = 60
"""Characters of a value that an error shows."""


def check(value: Any, annotation: Any) -> str | None:
    """What is wrong with a value for an annotation, such as "takes float, got 'abc' (str)"; None if nothing is."""
    return None if allows(annotation, value) else f"takes {text_of(annotation)}, got {describe(value)}"


def allows(annotation: Any, value: Any) -> bool:
    """Whether a value is one of a type, as far as that can be said."""
    annotation = bare(annotation)
    if annotation is Any or annotation is object or type(value) is ArtifactRef:
        return True
    if annotation is None:
        return value is None
    if isinstance(annotation, TypeVar):
        return annotation.__bound__ is None or allows(annotation.__bound__, value)
    origin = typing.get_origin(annotation)
    if origin is not None:
        return _allows_generic(annotation, origin, value)
    if not isinstance(annotation, type):
        return True
    rule = _RULES.get(annotation)
    if rule is not None:
        return rule(value)
    if typing.is_typeddict(annotation):
        return isinstance(value, abc.Mapping)
    return _is_instance(value, annotation)


def convert(value: Any, annotation: Any) -> Any:
    """The value in the type that the function expects: a text for a `Path` becomes one, everything else stays."""
    kind = type(value)
    if kind not in (str, list, tuple, dict) or not _mentions_path(annotation):
        return value
    annotation = bare(annotation)
    options = typing.get_args(annotation) if typing.get_origin(annotation) in UNIONS else (annotation,)
    if kind is str:
        if any(bare(option) is str for option in options) or not any(_is_path(bare(option)) for option in options):
            return value
        from pathlib import Path

        return Path(value)
    fitting = next((option for option in options if _mentions_path(option) and allows(option, value)), Any)
    if kind is dict:
        return {key: convert(item, value_of(fitting)) for key, item in value.items()}
    args = typing.get_args(bare(fitting))
    if kind is tuple and args and args[-1] is not Ellipsis:
        return tuple(convert(item, arg) for item, arg in zip(value, args))
    return kind(convert(item, element_of(fitting)) for item in value)


def parse(text: str, annotation: Any) -> Any:
    """The value that a text on the command line means; `ParameterError` says which type was expected."""
    annotation = bare(annotation)
    origin = typing.get_origin(annotation)
    if is_reference(text) and allows(annotation, text):
        return Secret.parse(text)
    if is_artifact_text(text):
        return ArtifactRef(*parse_reference(text))
    if annotation is str:
        return text
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return _json(text, text)
    if annotation is None or annotation is type(None):
        return _word(text, NONE, None, annotation)
    if origin in UNIONS:
        return _parse_union(text, annotation)
    if origin is Literal:
        return _parse_literal(text, annotation)
    container = origin if origin is not None else annotation
    if isinstance(container, type) and container in _CONTAINERS:
        return _parse_items(text, annotation, container)
    if isinstance(container, type) and issubclass(container, abc.Mapping):
        return _parse_mapping(text, annotation)
    if isinstance(annotation, type):
        return _parse_class(text, annotation)
    return _json(text, text)


def from_document(value: Any, annotation: Any) -> Any:
    """The value that one from the command line, JSON, YAML or TOML means: texts inside are parsed, lists converted."""
    if is_reference(value) and allows(annotation, value):
        return Secret.parse(value)
    if is_artifact_text(value):
        return ArtifactRef(*parse_reference(value))
    if allows(annotation, value):
        return convert(value, annotation)
    if isinstance(value, str):
        return parse(value, annotation)
    bared = bare(annotation)
    if typing.get_origin(bared) in UNIONS:
        for option in typing.get_args(bared):
            try:
                return from_document(value, option)
            except ParameterError:
                continue
    container = typing.get_origin(bared) or bared
    if isinstance(value, list) and isinstance(container, type) and container in _CONTAINERS:
        return _build(value, bared, container)
    if isinstance(value, abc.Mapping) and isinstance(container, type) and issubclass(container, abc.Mapping):
        kinds = typing.get_args(bared) or (Any, Any)
        return {from_document(key, kinds[0]): from_document(item, kinds[1]) for key, item in value.items()}
    raise _type_error(value, annotation)


def describe(value: Any) -> str:
    """A value as an error shows it: short, with its type."""
    kind = type(value)
    if value is None:
        return "None"
    if kind in (str, int, float, bool, bytes, complex) or (kind in (list, tuple, dict, set) and len(value) < LOOKED_AT):
        text = repr(value)
        text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
        return f"{text} ({kind.__name__})"
    return text_of(kind)


# What a value is


def _is_instance(value: Any, kind: type) -> bool:
    if _is_path(kind) and isinstance(value, str):
        return True
    try:
        return isinstance(value, kind) or (kind.__module__ == "__main__" and _is_earlier_class(value, kind))
    except TypeError:  # a Protocol that cannot be asked at run time
        return True


def _is_earlier_class(value: Any, kind: type) -> bool:
    """Whether a value is of an earlier definition of a class: one of a notebook's cell that was run again."""
    return any(
        base.__module__ == kind.__module__ and base.__qualname__ == kind.__qualname__ for base in type(value).__mro__
    )


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__.startswith("pathlib") and hasattr(kind, "exists")


def _mentions_path(annotation: Any) -> bool:
    annotation = bare(annotation)
    return _is_path(annotation) or any(map(_mentions_path, typing.get_args(annotation)))


def _is_number(*abstract: str) -> Callable[[Any], bool]:
    def rule(value: Any) -> bool:
        import numbers

        # numpy's scalars are registered with the abstract classes.
        return not isinstance(value, bool) and any(isinstance(value, getattr(numbers, name)) for name in abstract)

    return rule


_RULES: Final[Mapping[type, Callable[[Any], bool]]] = {
    bool: lambda value: isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"),
    int: _is_number("Integral"),
    float: _is_number("Real"),
    complex: _is_number("Complex"),
    str: lambda value: isinstance(value, (str, Secret)),
    bytes: lambda value: isinstance(value, (bytes, bytearray)),
    type(None): lambda value: value is None,
}


def _allows_generic(annotation: Any, origin: Any, value: Any) -> bool:
    args = typing.get_args(annotation)
    if origin in UNIONS:
        return any(allows(arg, value) for arg in args)
    if origin is Literal:
        return any(type(arg) is type(value) and arg == value for arg in args)
    if not isinstance(origin, type):
        return True
    if not _is_instance(value, origin):
        return False
    if origin is tuple and args and args[-1] is not Ellipsis:
        items = () if args == ((),) else args
        return len(value) == len(items) and all(allows(kind, item) for kind, item in zip(items, value))
    if isinstance(value, abc.Mapping) and len(args) == 2:
        return all(allows(args[0], key) and allows(args[1], item) for key, item in _first_items(value.items()))
    if isinstance(value, (list, tuple, set, frozenset)) and args and issubclass(origin, abc.Collection):
        return all(allows(args[0], item) for item in _first_items(value))
    return True


def _first_items(items: typing.Iterable[Any]) -> typing.Iterable[Any]:
    for count, item in enumerate(items):
        if count == LOOKED_AT:
            return
        yield item


# What a text means

_CONTAINERS: Final[Mapping[type, Callable[[list[Any]], Any]]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Iterable: list,
    abc.Collection: list,
    abc.Set: set,
}


def _type_error(value: Any, annotation: Any, more: str = "") -> ParameterError:
    text = repr(value) if isinstance(value, str) else describe(value)
    return ParameterError(f"expected {text_of(annotation)}, got {text}{more}")


def _word(text: str, words: frozenset[str], value: Any, annotation: Any) -> Any:
    if text.strip().lower() in words:
        return value
    raise _type_error(text, annotation)


def _parse_union(text: str, annotation: Any) -> Any:
    options = list(typing.get_args(annotation))
    # A text is always a str: ask the others first. None needs its word.
    options.sort(key=lambda option: (bare(option) is str, bare(option) not in (None, type(None))))
    for option in options:
        if bare(option) in (None, type(None)) and not text and str in map(bare, options):
            continue  # an empty text is a text
        try:
            return parse(text, option)
        except ParameterError:
            continue
    raise _type_error(text, annotation)


def _parse_literal(text: str, annotation: Any) -> Any:
    choices = {str(choice): choice for choice in typing.get_args(annotation)}
    if text in choices:
        return choices[text]
    raise ParameterError(f"expected one of {', '.join(choices)}, got {text!r}{did_you_mean(text, choices)}")


def _parse_class(text: str, kind: type) -> Any:
    import enum

    if issubclass(kind, bool):
        words = {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}
        if text.strip().lower() not in words:
            raise _type_error(text, kind, " (true or false, yes or no, on or off, 1 or 0)")
        return words[text.strip().lower()]
    if issubclass(kind, enum.Enum):
        return _parse_enum(text, kind)
    if _is_path(kind):
        return convert(text, kind)
    if issubclass(kind, bytes):
        try:
            return text.encode("utf-8", "surrogateescape")  # as a command line has bytes that are no UTF-8
        except UnicodeEncodeError:
            raise _type_error(text, kind) from None
    # datetime, date and time, and whatever else is written that way; then numbers.
    make: Any = getattr(kind, "fromisoformat", None) or (kind if kind in _FROM_TEXT else None)
    if make is None and kind.__name__ in ("Decimal", "Fraction", "UUID"):
        make = kind
    if make is None:
        raise ParameterError(f"expected {text_of(kind)}, which cannot be written on a command line")
    try:
        return make(text.strip())
    except (ValueError, ArithmeticError):
        raise _type_error(text, kind) from None


_FROM_TEXT: Final = frozenset({int, float, complex})


def _parse_enum(text: str, kind: Any) -> Any:
    if text in kind.__members__:
        return kind[text]
    for member in kind:
        if str(member.value) == text:
            return member
    names = ", ".join(kind.__members__)
    raise ParameterError(f"expected one of {names}, got {text!r}{did_you_mean(text, kind.__members__)}")


def _json(text: str, otherwise: Any) -> Any:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _parse_items(text: str, annotation: Any, container: type) -> Any:
    """ "[1, 2]" as JSON, or "1,2" with or without brackets: each item is parsed as what the container holds."""
    inside = text.strip()
    items = _json(inside, None) if inside.startswith("[") else None
    if not isinstance(items, list):
        if inside[:1] + inside[-1:] in ("[]", "()", "{}"):
            inside = inside[1:-1]
        items = [item.strip() for item in inside.rstrip(",").split(",")] if inside.strip() else []
    try:
        return _build(items, annotation, container)
    except ParameterError as error:
        raise _type_error(text, annotation, f": {error.message}") from None


def _build(items: list[Any], annotation: Any, container: type) -> Any:
    args = typing.get_args(annotation)
    if container is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise ParameterError(f"expected {len(args)} items, got {len(items)}")
        return tuple(from_document(item, kind) for item, kind in zip(items, args))
    kind = args[0] if args else Any
    values = [_json(item, item) if kind is Any and isinstance(item, str) else item for item in items]
    return _CONTAINERS[container]([from_document(value, kind) for value in values])


def _parse_mapping(text: str, annotation: Any) -> Any:
    mapping = _json(text, None)
    if not isinstance(mapping, dict):
        raise _type_error(text, annotation, ' (write JSON, such as {"key": 1})')
    return from_document(mapping, annotation)


ANYTHING: Final[Any] = Any
UNIONS: Final = (Union, types.UnionType)


class Unknown:
    """A name in an annotation that cannot be found at run time; everything is compatible with it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self.text}.{name}")

    def __getitem__(self, item: Any) -> Unknown:
        items = item if isinstance(item, tuple) else (item,)
        return Unknown(f"{self.text}[{', '.join(text_of(one) for one in items)}]")

    def __or__(self, other: Any) -> Unknown:
        return Unknown(f"{self.text} | {text_of(other)}")

    def __ror__(self, other: Any) -> Unknown:
        return Unknown(f"{text_of(other)} | {self.text}")

    def __call__(self) -> None:
        """What typing asks of everything that is put into brackets."""


class _Names(dict[str, Any]):
    """A function's view of names; one that is not there is `Unknown`."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        super().__init__()
        self._scope = scope

    def __missing__(self, name: str) -> Any:
        if name in self._scope:
            return self._scope[name]
        return getattr(builtins, name) if hasattr(builtins, name) else Unknown(name)


def resolve(annotation: Any, scope: Mapping[str, Any]) -> Any:
    """An annotation with its texts turned into what they name."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            value = eval(annotation, {"__builtins__": {}}, _Names(scope))
        except Exception:  # the annotation is the user's code; what it means is not known
            return Unknown(annotation)
        return resolve(value, scope) if value != annotation else Unknown(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.Annotated[(resolve(annotation.__origin__, scope), *annotation.__metadata__)]
    if typing.get_origin(annotation) is tuple:
        return tuple[tuple(resolve(item, scope) for item in typing.get_args(annotation))]  # type: ignore[misc]
    return annotation


def is_unknown(annotation: Any) -> bool:
    """Whether the annotation, or what it holds, could mean more later than it does now."""
    return isinstance(annotation, (Unknown, ForwardRef)) or any(map(is_unknown, typing.get_args(annotation)))


def bare(annotation: Any) -> Any:
    """The annotation without `Annotated`, `NewType` and alias around it."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = annotation.__origin__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def text_of(annotation: Any) -> str:
    """The annotation as a person writes it."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return text_of(annotation.__origin__)
    if origin in UNIONS:
        return " | ".join(map(text_of, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin is not None and args:
        return f"{text_of(origin)}[{', '.join(map(_argument_text, args))}]"
    if isinstance(annotation, type):
        module = annotation.__module__
        plain = module in ("builtins", "__main__", "collections.abc", "typing")
        return annotation.__qualname__ if plain else f"{module}.{annotation.__qualname__}"
    if isinstance(annotation, TypeVar) or hasattr(annotation, "__supertype__"):
        return str(annotation.__name__)
    return repr(annotation).removeprefix("typing.")


def _argument_text(argument: Any) -> str:
    return f"[{', '.join(map(text_of, argument))}]" if isinstance(argument, list) else text_of(argument)


def element_of(annotation: Any) -> Any:
    """The type of what one gets by iterating over a value of a type; `Any` where that is not said."""
    annotation = bare(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return args[0] if len(args) == 2 and args[1] is Ellipsis else ANYTHING
    if isinstance(origin, type) and len(args) == 1 and issubclass(origin, abc.Iterable):
        return args[0]
    return str if annotation is str else ANYTHING


def value_of(annotation: Any) -> Any:
    """The type of a mapping's values; `Any` where that is not said."""
    annotation = bare(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    return args[1] if isinstance(origin, type) and issubclass(origin, abc.Mapping) and len(args) == 2 else ANYTHING


def is_iterable(annotation: Any) -> bool:
    """False only where a value of the type surely cannot be iterated over."""
    return any(kind is None or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__") for kind in kinds(annotation))


def incompatible(produced: Any, consumed: Any) -> bool:
    """Whether no value of one type can be a value of the other; in doubt, no."""
    if produced is consumed:  # as between most steps of a chain
        return False
    return not any(_may_meet(here, there) for here in kinds(produced) for there in kinds(consumed))


def kinds(annotation: Any) -> list[type | None]:
    """The classes that a value may have; None stands for any."""
    annotation = bare(annotation)
    if annotation is None:
        return [type(None)]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in UNIONS:
        return [kind for arg in args for kind in kinds(arg)]
    if origin is Literal:
        return [type(arg) for arg in args]
    if typing.is_typeddict(annotation):
        return [dict]
    kind = origin if origin is not None else annotation
    if not isinstance(kind, type) or kind in (object, ANYTHING) or getattr(kind, "_is_protocol", False):
        return [None]
    return [kind]


def _may_meet(produced: type | None, consumed: type | None) -> bool:
    if produced is None or consumed is None:
        return True
    try:
        if issubclass(produced, consumed) or issubclass(consumed, produced):
            return True
    except TypeError:  # a class that refuses to be asked
        return True
    import numbers

    # PEP 484's tower, and numpy's scalars, which are registered with these abstract classes.
    return issubclass(produced, numbers.Number) and issubclass(consumed, numbers.Number)
