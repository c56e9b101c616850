"""Values against annotations, and texts of a command line."""

from __future__ import annotations

import datetime
import enum
import typing
from collections import abc
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, Protocol, TypedDict, TypeVar, Union

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import ParameterError
from stoker.pipelines.params import (
    LOOKED_AT,
    Unknown,
    check,
    convert,
    describe,
    from_document,
    incompatible,
    parse,
    resolve,
    text_of,
)

T = TypeVar("T")
N = TypeVar("N", bound=int)
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Row(TypedDict):
    name: str


class Runs(Protocol):
    def run(self) -> None: ...


class Custom: ...


class Derived(Custom): ...


ALLOWED: list[tuple[Any, Any]] = [
    (1, int),
    (np.int64(1), int),
    (1, float),
    (1.5, float),
    (np.float32(1), float),
    (1, complex),
    (True, bool),
    (np.bool_(True), bool),
    ("a", str),
    (b"a", bytes),
    (None, None),
    (None, type(None)),
    (None, Optional[int]),
    (3, Union[int, str]),
    ("x", int | str),
    ([1, 2], list[int]),
    ([1, 2.5], list[float]),
    ([], list[int]),
    ([1, "a"], list),
    ((1, "a"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ((), tuple[()]),
    ({"a": 1}, dict[str, int]),
    ({"a": 1}, abc.Mapping[str, int]),
    ({1, 2}, set[int]),
    ([1], abc.Sequence[int]),
    ((1,), typing.Sequence[int]),
    ("adam", Literal["adam", "sgd"]),
    (Color.RED, Color),
    (Path("x"), Path),
    ("x", Path),
    ("x", Optional[Path]),
    (object(), Any),
    (object(), object),
    (3, T),
    (3, N),
    (3, UserId),
    (3, Annotated[int, "n"]),
    (np.zeros(3), np.ndarray),
    ({"name": "x"}, Row),
    (3, Runs),
    (Derived(), Custom),
    (Custom, type[Custom]),
    (len, abc.Callable[[Any], int]),
    (3, Unknown("torch.Tensor")),
]


@pytest.mark.parametrize(("value", "annotation"), ALLOWED, ids=lambda item: str(item).partition(" at 0x")[0][:30])
def test_allowed(value: Any, annotation: Any) -> None:
    assert check(value, annotation) is None


REFUSED: list[tuple[Any, Any, str]] = [
    ("abc", float, "takes float, got 'abc' (str)"),
    (1.5, int, "takes int, got 1.5 (float)"),
    (True, int, "takes int, got True (bool)"),
    (True, float, "takes float, got True (bool)"),
    (1, bool, "takes bool, got 1 (int)"),
    (1, str, "takes str, got 1 (int)"),
    (None, int, "takes int, got None"),
    (0, None, "takes None, got 0 (int)"),
    ("a", Optional[int], "takes int | None, got 'a' (str)"),
    ([1, "a"], list[int], "takes list[int], got [1, 'a'] (list)"),
    ((1,), tuple[int, str], "takes tuple[int, str], got (1,) (tuple)"),
    ({"a": "b"}, dict[str, int], "takes dict[str, int], got {'a': 'b'} (dict)"),
    ({1: 1}, abc.Mapping[str, int], "takes Mapping[str, int], got {1: 1} (dict)"),
    ("Adam", Literal["adam"], "takes Literal['adam'], got 'Adam' (str)"),
    (1, Literal[True], "takes Literal[True], got 1 (int)"),
    ("RED", Color, f"takes {__name__}.Color, got 'RED' (str)"),
    ("a", N, "takes N, got 'a' (str)"),
    ("a", UserId, "takes UserId, got 'a' (str)"),
    ([1.0], np.ndarray, "takes numpy.ndarray, got [1.0] (list)"),
    (np.zeros(3), list, "takes list, got numpy.ndarray"),
    (Custom(), Derived, f"takes {__name__}.Derived, got {__name__}.Custom"),
]


@pytest.mark.parametrize(("value", "annotation", "problem"), REFUSED, ids=lambda item: str(item)[:30])
def test_refused(value: Any, annotation: Any, problem: str) -> None:
    assert check(value, annotation) == problem


def test_only_the_first_elements_are_looked_at() -> None:
    assert check([1] * LOOKED_AT + ["a"], list[int]) is None
    assert check([1] * (LOOKED_AT - 1) + ["a"], list[int]) is not None


def test_shown_is_short_and_never_calls_a_strangers_repr() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "Rude" in describe(Rude())
    assert len(describe("x" * 1000)) < 80
    assert describe([0] * 10_000) == "list"


def test_a_text_becomes_a_path_only_where_a_path_is_wanted() -> None:
    assert convert("x", Path) == Path("x")
    assert convert("x", Path | None) == Path("x")
    assert convert("x", str | Path) == "x"
    assert convert(3, Path) == 3
    assert convert(["x"], list[Path]) == [Path("x")]
    assert convert(("x", "y"), tuple[str, Path]) == ("x", Path("y"))
    assert convert({"a": ["x"]}, dict[str, list[Path]] | None) == {"a": [Path("x")]}


PARSED: list[tuple[str, Any, Any]] = [
    ("3e-4", float, 3e-4),
    ("3", float, 3.0),
    ("1_000", int, 1000),
    ("-3", int, -3),
    ("yes", bool, True),
    ("False", bool, False),
    ("0", bool, False),
    ("text", str, "text"),
    ("none", Optional[int], None),
    ("3", Optional[int], 3),
    ("", Optional[str], ""),
    ("null", Optional[str], None),
    ("3", int | str, 3),
    ("x", int | str, "x"),
    ("[1, 2]", list[int], [1, 2]),
    ("1,2", list[int], [1, 2]),
    ("[a, b]", list[str], ["a", "b"]),
    ("a", list[str], ["a"]),
    ("", list[int], []),
    ("1,a", tuple[int, str], (1, "a")),
    ("(1,2,)", tuple[int, ...], (1, 2)),
    ("1,2", set[int], {1, 2}),
    ("1,x", list, [1, "x"]),
    ("0.1,0.2", abc.Sequence[float], [0.1, 0.2]),
    ('["a,b"]', list[str], ["a,b"]),
    ('{"a": 1}', dict[str, int], {"a": 1}),
    ('{"a": "2024-01-01"}', dict[str, datetime.date], {"a": datetime.date(2024, 1, 1)}),
    ("RED", Color, Color.RED),
    ("2", Color, Color.GREEN),
    ("sgd", Literal["adam", "sgd"], "sgd"),
    ("2", Literal[1, 2], 2),
    ("data/x", Path, Path("data/x")),
    ("2024-01-01", datetime.date, datetime.date(2024, 1, 1)),
    ("1.5", Decimal, Decimal("1.5")),
    ("abc", bytes, b"abc"),
    ("1", Any, 1),
    ("abc", Any, "abc"),
    ("3", Annotated[int, "n"], 3),
    ("3", UserId, 3),
    ("[1]", Unknown("X"), [1]),
    ("none", None, None),
]


@pytest.mark.parametrize(("text", "annotation", "value"), PARSED, ids=lambda item: str(item)[:30])
def test_parsed(text: str, annotation: Any, value: Any) -> None:
    found = parse(text, annotation)
    assert found == value
    assert type(found) is type(value)


UNPARSED: list[tuple[str, Any, str]] = [
    ("abc", float, "expected float, got 'abc'"),
    ("1.5", int, "expected int, got '1.5'"),
    ("maybe", bool, "expected bool, got 'maybe' (true or false, yes or no, on or off, 1 or 0)"),
    ("x", Optional[int], "expected int | None, got 'x'"),
    ("1,a", list[int], "expected list[int], got '1,a': expected int, got 'a'"),
    ("1", tuple[int, int], "expected tuple[int, int], got '1': expected 2 items, got 1"),
    ("a=1", dict[str, int], "expected dict[str, int], got 'a=1' (write JSON, such as {\"key\": 1})"),
    ("Red", Color, "expected one of RED, GREEN, got 'Red', did you mean 'RED'?"),
    ("adm", Literal["adam", "sgd"], "expected one of adam, sgd, got 'adm', did you mean 'adam'?"),
    ("x", np.ndarray, "expected numpy.ndarray, which cannot be written on a command line"),
    ("x", datetime.date, "expected datetime.date, got 'x'"),
]


@pytest.mark.parametrize(("text", "annotation", "message"), UNPARSED, ids=lambda item: str(item)[:30])
def test_unparsed(text: str, annotation: Any, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse(text, annotation)
    assert caught.value.message == message


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans()))
def test_what_python_prints_is_parsed(value: Any) -> None:
    assert parse(repr(value), type(value)) == value


@given(
    st.text(), st.sampled_from([int, float, bool, list[int], dict, Color, Optional[int], Literal["a"], tuple[int, str]])
)
def test_any_text_is_a_value_of_the_type_or_an_error_of_ours(text: str, annotation: Any) -> None:
    try:
        value = parse(text, annotation)
    except ParameterError:
        return
    assert check(value, annotation) is None


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ([1, 2], tuple[int, int], (1, 2)),
        (["1", 2], list[int], [1, 2]),
        ({"a": "1"}, dict[str, int], {"a": 1}),
        ([["x"]], list[list[Path]], [[Path("x")]]),
        ([1], Optional[tuple[int, ...]], (1,)),
        (1, float, 1),
    ],
)
def test_values_of_documents(value: Any, annotation: Any, expected: Any) -> None:
    found = from_document(value, annotation)
    assert found == expected
    assert type(found) is type(expected)


def test_a_document_of_the_wrong_type() -> None:
    with pytest.raises(ParameterError, match=r"expected list\[int\], got \{'a': 1\}"):
        from_document({"a": 1}, list[int])


COMPATIBLE: list[tuple[Any, Any]] = [
    (int, float),
    (float, int),
    (np.float32, float),
    (bool, int),
    (Derived, Custom),
    (Custom, Derived),
    (int, Any),
    (Any, int),
    (object, int),
    (list[int], abc.Sequence[int]),
    (list[int], list[str]),
    (dict, abc.Mapping[str, int]),
    (Optional[int], int),
    (int, Optional[int]),
    (int, int | str),
    (T, int),
    (Unknown("x"), int),
    (Custom, Runs),
    (Row, dict[str, str]),
    (Literal["a"], str),
    (UserId, int),
    (Annotated[int, "x"], int),
    (None, Optional[int]),
]
WRONG: list[tuple[Any, Any]] = [
    (int, str),
    (str, int),
    (str, Path),
    (list[int], dict[str, int]),
    (np.ndarray, list[float]),
    (dict, str),
    (int | float, str),
    (Literal[1], str),
    (None, int),
    (Custom, int),
]


@pytest.mark.parametrize(("produced", "consumed"), COMPATIBLE, ids=str)
def test_compatible(produced: Any, consumed: Any) -> None:
    assert not incompatible(produced, consumed)


@pytest.mark.parametrize(("produced", "consumed"), WRONG, ids=str)
def test_incompatible(produced: Any, consumed: Any) -> None:
    assert incompatible(produced, consumed)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (None, "None"),
        (np.ndarray, "numpy.ndarray"),
        (list[int], "list[int]"),
        (Optional[int], "int | None"),
        (dict[str, list[Any]], "dict[str, list[Any]]"),
        (abc.Callable[[int], str], "Callable[[int], str]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Annotated[int, "x"], "int"),
        (Literal["a", 1], "Literal['a', 1]"),
    ],
)
def test_annotations_are_read_aloud(annotation: Any, text: str) -> None:
    assert text_of(annotation) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", "int"),
        ("np.ndarray", "np.ndarray"),
        ("Annotated[np.ndarray, 'x']", "np.ndarray"),
        ("Optional[Tensor]", "Tensor | None"),
        ("Tensor | None", "Tensor | None"),
        ("None | Tensor", "None | Tensor"),
        ("list[Tensor]", "list[Tensor]"),
        ("Tensor[int, 'x']", "Tensor[int, x]"),
        ("no python", "no python"),
        ("1 / 0", "1 / 0"),
    ],
)
def test_names_that_only_a_type_checker_knows(text: str, expected: str) -> None:
    scope = {"Annotated": Annotated, "Optional": Optional}
    assert text_of(resolve(text, scope)) == expected
