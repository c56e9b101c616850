"""Series of numbers that a step logs: thinned with their extremes, joined, and kept as bytes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import StoreError
from stoker.core.metrics import MOST_NAMES, MOST_POINTS, MetricBook, Point, book_of, rows_of, thinned

NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**400), 10**400))
VALUES = st.dictionaries(st.text(max_size=5), st.one_of(NUMBERS, st.text(), st.none(), st.booleans()), max_size=3)
ANYTHING = st.one_of(st.none(), st.text(), st.integers(), st.lists(st.integers(), max_size=5), VALUES)
ROWS = st.lists(
    st.one_of(
        st.tuples(NUMBERS, st.integers(0, 3), st.one_of(st.none(), NUMBERS), VALUES).map(list),
        ANYTHING.map(lambda one: [one] * 4),
    ),
    max_size=20,
)


def book(rows: list[list[object]]) -> MetricBook:
    made = MetricBook()
    made.add(rows)
    return made


@given(ROWS)
def test_any_rows_become_a_book_that_survives_its_bytes(rows: list[list[object]]) -> None:
    made = book(rows)
    assert repr(book_of(made.packed()).series) == repr(made.series)
    assert repr(book_of(made.packed()).facts) == repr(made.facts)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=400), st.integers(10, 50))
def test_thinning_keeps_the_ends_the_extremes_and_the_first_that_is_no_number(values: list[float], most: int) -> None:
    kept = thinned(range(len(values)), values, most)
    finite = [value for value in values if math.isfinite(value)]
    remaining = [values[index] for index in kept]
    assert kept == sorted(set(kept))
    assert {0, len(values) - 1} <= set(kept)
    assert len(kept) <= most + 10  # the last part of the axis may be one more
    if finite:
        assert min(finite) in remaining and max(finite) in remaining
    odd = [index for index, value in enumerate(values) if not math.isfinite(value)]
    assert not odd or odd[0] in kept


def test_pieces_of_a_long_training_keep_one_shape_and_stay_small() -> None:
    generator = random.Random(1)
    whole = MetricBook()
    spike, number = 137_531, 200_000
    for first in range(0, number, 1000):
        values = [-50.0 if at == spike else generator.random() for at in range(first, first + 1000)]
        later = book([[float(at), 0, at, {"loss": value}] for at, value in enumerate(values, first)])
        whole.merge(book_of(later.packed()))
    series = whole.series["loss", 0]
    assert series.count == number and len(series.values) <= MOST_POINTS
    assert series.low == Point(float(spike), float(spike), -50.0)
    assert series.last is not None and series.last.step == number - 1
    # The beginning is as fine as the end: what came last may not have been thinned yet.
    tenths = [sum(number * part / 10 <= at < number * (part + 1) / 10 for at in series.steps) for part in range(10)]
    assert min(tenths) > MOST_POINTS / 2 / 30
    assert -50.0 in series.values


def test_names_without_end_are_counted_and_left_out() -> None:
    made = book([[1.0, 0, 0, {f"name{number}": 1.0 for number in range(MOST_NAMES + 7)}]])
    assert (len(made.series), made.left_out) == (MOST_NAMES, 7)


def test_later_facts_replace_earlier_ones() -> None:
    made = book([[1.0, 0, None, {"rows": 3, "name": "a"}], [2.0, 1, None, {"rows": 4}]])
    assert made.facts == {"rows": 4, "name": "a"}


def test_half_a_line_is_passed_over() -> None:
    assert rows_of(b'[1, 0, 0, {"a": 1}]\n{"no": "row"}\n[1, 0, 1, {"a"') == [[1, 0, 0, {"a": 1}]]


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_bytes_that_are_cut_or_others_are_refused(cut: int) -> None:
    data = book([[1.0, 0, at, {"loss": at * 0.7}] for at in range(50)]).packed()
    with pytest.raises(StoreError, match="metrics"):
        book_of(data[:cut])
    with pytest.raises(StoreError, match="metrics"):
        book_of(b"spoiled" + data)
