"""Classes of `core.values` behave as attrs' own, also where attrs would have compiled their `__repr__`."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, ClassVar

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
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        point(1).x = 2


@values.frozen(repr=False)
class Plain:
    x: int = 1


def test_no_text_where_none_is_wanted() -> None:
    assert repr(Plain()).startswith("<")
    assert pickle.loads(pickle.dumps(Plain())) == Plain()


def late() -> type[Any]:
    @values.frozen(kw_only=True)
    class Late:
        KIND: ClassVar = "late"
        x: int = attrs.field(converter=int)
        seen: list[int] = attrs.field(factory=list, eq=False)

        def __attrs_post_init__(self) -> None:
            self.seen.append(self.x)

        @property
        def double(self) -> int:
            return self.x * 2

    return Late


FIRST_USES: dict[str, Callable[[type[Any]], object]] = {
    "an instance": lambda kind: kind(x="3").x == 3,
    "its fields": lambda kind: [field.name for field in attrs.fields(kind)] == ["x", "seen"],
    "whether it is of attrs": attrs.has,
    "its signature": lambda kind: list(inspect.signature(kind).parameters) == ["x", "seen"],
    "a class below it": lambda kind: type("Below", (kind,), {})(x=1).double == 2,
    "a class of attrs below it": lambda kind: attrs.frozen(type("Below", (kind,), {}))(x=1).seen == [1],
    "all that are left": lambda kind: values.complete() or ("__init__" in vars(kind) and kind(x=1).KIND == "late"),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_what_attrs_writes_is_there_when_it_is_first_used(use: str) -> None:
    kind = late()
    assert FIRST_USES[use](kind)
    for made in (kind(x=2), [kind(x=2) for _ in range(2 * values._FEW)][-1]):  # before attrs has made it, and after
        assert made.seen == [2] and hash(made) == hash(kind(x="2"))
        assert made == copy.deepcopy(made) == attrs.evolve(made, x="2") != kind(x=1)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            made.x = 3
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            del made.x
    assert kind not in values._INCOMPLETE
    assert not any(isinstance(value, values._AtFirstUse) for value in vars(kind).values())


@pytest.mark.parametrize(
    "give", [lambda kind: kind(), lambda kind: kind(1, 2, 3), lambda kind: kind(x=1, z=2), lambda kind: kind(1, x=1)]
)
def test_what_a_class_does_not_take_is_refused_as_attrs_does(give: Callable[[type[Any]], object]) -> None:
    def made(frozen: Any) -> type[Any]:
        @frozen
        class Pair:
            x: int
            _y: int = attrs.field(default="2", converter=int)

        return Pair

    ours, theirs = made(values.frozen), made(attrs.frozen)
    assert repr(ours(1, y=3)) == repr(theirs(1, 3)) and ours(1)._y == 2
    with pytest.raises(TypeError) as expected:
        give(theirs)
    with pytest.raises(TypeError) as refused:
        give(ours)
    assert str(refused.value) == str(expected.value)


def test_a_class_stays_the_one_that_was_written() -> None:
    @values.frozen
    class Written:
        x: int

        @functools.cached_property
        def double(self) -> int:
            return self.x * 2

        def __str__(self) -> str:
            return super().__str__()

    assert Written in values._INCOMPLETE
    assert (Written(2).double, str(Written(2)), attrs.fields(Written).x.name) == (4, repr(Written(2)), "x")
    assert Written(2) == Written(2) and hash(Written(2)) == hash(Written(2)) != hash(Written(3))


def test_an_own_init_stays() -> None:
    @values.define
    class Own:
        x: int

        def __init__(self, text: str) -> None:
            self.__attrs_init__(int(text))  # type: ignore[attr-defined]

    assert Own("3").x == 3


def test_what_waits_for_a_class_happens_once_it_is_made() -> None:
    kind, seen = late(), list[Any]()
    for _ in range(2):
        values.when_made(kind, lambda: seen.append([field.name for field in attrs.fields(kind)]))
        assert kind(x=1) and not seen
    values.complete()
    values.when_made(kind, lambda: seen.append("at once"))
    kind(x=2)
    assert seen == [["x", "seen"], ["x", "seen"], "at once"]


def test_what_was_pickled_is_the_same_in_a_process_that_has_not_used_the_class() -> None:
    code = (
        "import pickle, sys; a, b = pickle.loads(sys.stdin.buffer.read()); print(a == b, repr(a), hash(a) == hash(b))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps((Plain(x=3), Plain(x=3))), capture_output=True, check=True
    )
    assert done.stdout.startswith(b"True <tests.core.test_values.Plain object at") and done.stdout.endswith(b"True\n")


def test_threads_that_use_a_class_first_at_once_find_it_whole() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns all the time
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(100):
                kind, start = late(), threading.Barrier(4)

                def use(number: int, kind: Any = kind, start: threading.Barrier = start) -> int:
                    start.wait()
                    return int(kind(x=number).double)

                assert list(pool.map(use, range(4))) == [0, 2, 4, 6]
    finally:
        sys.setswitchinterval(interval)


def test_an_instance_that_waits_while_another_thread_makes_its_class_is_whole() -> None:
    @values.frozen
    class Waiting:
        x: int = 1

    fill = vars(Waiting)["__init__"].__get__(value := Waiting.__new__(Waiting), Waiting)
    values.complete()  # as the other thread does between the look at the class and the first field
    fill()
    assert value.x == 1
