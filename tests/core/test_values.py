"""Classes of `core.values` behave as attrs' own, also where attrs would have compiled their `__repr__`."""

from __future__ import annotations

import pickle
from typing import Any

import attrs
import pytest

from stoker.core import values


def classes(frozen: Any, define: Any) -> tuple[type[Any], ...]:
    @frozen
    class Point:
        x: int
        hidden: str = attrs.field(default="secret", repr=False)
        starred: str = attrs.field(default="secret", repr=lambda value: "*" * len(value))

    @define(kw_only=True)
    class Node:
        name: str = ""
        below: Any = None
        unset: Any = attrs.field(init=False)

    @frozen(kw_only=True)
    class Named:
        name: str = "a"

        def __repr__(self) -> str:
            return f"named {self.name}"

    @frozen
    class Derived(Point):
        y: float = 0.5

    return Point, Node, Named, Derived


OURS, THEIRS = classes(values.frozen, values.define), classes(attrs.frozen, attrs.define)


def texts(kinds: tuple[type[Any], ...]) -> list[str]:
    point, node, named, derived = kinds
    ring = node(name="ring")
    ring.below = [ring, point(1)]
    ring.unset = 3
    return [repr(one) for one in (point(1), point("'"), node(), ring, named(), derived(2, y=1.5), [derived(3)])]


def test_the_text_is_the_one_of_attrs() -> None:
    assert texts(OURS) == texts(THEIRS)
    assert "secret" not in "".join(texts(OURS))


def test_what_else_attrs_gives_is_there() -> None:
    point = OURS[0]
    assert point(1) == point(1) != point(2)
    assert len({point(1), point(1), point(2)}) == 2
    assert attrs.evolve(point(1), x=2) == point(2)
    assert not hasattr(point(1), "__dict__")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        point(1).x = 2


@values.frozen(repr=False)
class Plain:
    x: int = 1


def test_no_text_where_none_is_wanted() -> None:
    assert repr(Plain()).startswith("<")
    assert pickle.loads(pickle.dumps(Plain())) == Plain()
