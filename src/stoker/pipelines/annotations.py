"""Annotations as values: found, read aloud, and compared with each other.

A name that exists only for a type checker stands as `Unknown` with its text, so that what surrounds it still counts:
`Annotated[np.ndarray, "images"]` names its output also where numpy is not imported.
"""

from __future__ import annotations

import builtins
import types
import typing
from collections import abc
from typing import Any, Final, ForwardRef, Literal, Mapping, TypeVar, Union

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


def resolved(annotation: Any, scope: Mapping[str, Any]) -> Any:
    """An annotation with its texts turned into what they name."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            found = eval(annotation, {"__builtins__": {}}, _Names(scope))
        except Exception:  # the annotation is the user's code; what it means is not known
            return Unknown(annotation)
        return resolved(found, scope) if found != annotation else Unknown(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.Annotated[(resolved(annotation.__origin__, scope), *annotation.__metadata__)]
    if typing.get_origin(annotation) is tuple:
        return tuple[tuple(resolved(item, scope) for item in typing.get_args(annotation))]  # type: ignore[misc]
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
    found = origin if origin is not None else annotation
    if not isinstance(found, type) or found in (object, ANYTHING) or getattr(found, "_is_protocol", False):
        return [None]
    return [found]


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
