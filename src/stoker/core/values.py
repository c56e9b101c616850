"""`frozen` and `define` of attrs, with one `__repr__` for all classes instead of one that is compiled for each.

Two fifths of the time that attrs takes to make a class go into its `__repr__`, which hardly anything ever calls. The
classes that every run loads are made by these.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Callable

import attrs

__all__ = ["define", "frozen"]

if TYPE_CHECKING:
    from attrs import define, frozen
else:

    def define(cls: type | None = None, **options: Any) -> Any:
        """`attrs.define`, with the `__repr__` of this module."""
        return _decorated(attrs.define, cls, options)

    def frozen(cls: type | None = None, **options: Any) -> Any:
        """`attrs.frozen`, with the `__repr__` of this module."""
        return _decorated(attrs.frozen, cls, options)


def _decorated(decorate: Callable[..., Any], cls: type | None, options: dict[str, Any]) -> Any:
    if cls is None:
        return lambda decorated: _decorated(decorate, decorated, options)
    if options.get("repr", True) and "__repr__" not in vars(cls):
        cls.__repr__ = _text  # type: ignore[method-assign, assignment]  # attrs keeps what a class has itself
    return decorate(cls, **options)


@reprlib.recursive_repr("...")
def _text(value: attrs.AttrsInstance) -> str:
    """What attrs' own `__repr__` gives: `Name(field=value, …)`."""
    texts = (
        f"{field.name}={(field.repr if callable(field.repr) else repr)(getattr(value, field.name, attrs.NOTHING))}"
        for field in attrs.fields(type(value))
        if field.repr
    )
    return f"{type(value).__qualname__.rpartition('>.')[2]}({', '.join(texts)})"
