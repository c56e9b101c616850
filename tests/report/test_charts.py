"""Charts of text: always the right size, never an error, and what is higher is drawn higher."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.report.charts import ASCII, BLOCKS, Glyphs, Style, ceiling, chart, glyphs_for, level

anything = st.floats() | st.integers(-(10**6), 10**6).map(float)
points = st.lists(st.tuples(anything, st.none() | anything), max_size=40)
finite = st.floats(-1e12, 1e12)


def drawn(lines: list[str], height: int, glyphs: Glyphs) -> list[str]:
    """The columns of a chart without label and scale, each from the bottom to the top."""
    rows = [line.partition(glyphs.tick)[2] for line in lines[-height - 2 : -2]]
    width = lines[-2].count(glyphs.line)
    return ["".join(row.ljust(width)[place] for row in reversed(rows)) for place in range(width)]


@given(points, st.integers(-3, 120), st.integers(-2, 12), anything, st.none() | anything, st.none() | anything)
def test_whatever_is_given_it_fits(
    given: list[tuple[float, float | None]], width: int, height: int, low: float, high: float | None, end: float | None
) -> None:
    times, values = [time for time, _ in given], [value for _, value in given]
    low = low if math.isfinite(low) else 0.0
    for glyphs in (BLOCKS, ASCII):
        style = Style(glyphs=glyphs, end=end, words="{:.3g}".format)
        lines = chart(times, values, width=width, height=height, low=low, high=high, label="power", style=style)
        assert len(lines) == max(1, height) + 3
        assert all(len(line) <= max(1, width) for line in lines)
        assert glyphs is BLOCKS or "".join(lines).isascii()


@given(finite, finite, finite, st.floats(1e-6, 1e12), st.integers(1, 100))
@example(one=0.0, other=5e-324, low=0.0, span=1.0, levels=1)
def test_what_is_higher_stands_higher(one: float, other: float, low: float, span: float, levels: int) -> None:
    lower, higher = sorted((one, other))
    at = [level(value, low=low, high=low + span, levels=levels) for value in (lower, higher)]
    assert 0 <= at[0] <= at[1] <= levels
    assert (at[1] > 0) == (higher > low) or low + span <= low


@given(st.lists(st.floats(0, 100), min_size=8, max_size=60), st.integers(1, 6))
def test_columns_rise_as_their_values_do(values: list[float], height: int) -> None:
    times = [number + 0.5 for number in range(len(values))]
    for glyphs in (BLOCKS, ASCII):
        style = Style(glyphs=glyphs, end=float(len(values)), words=lambda _: "")
        lines = chart(times, values, width=len(values) + 2, height=height, high=100.0, style=style)
        columns = drawn(lines, height, glyphs)
        levels = height * (len(glyphs.levels) - 1)
        heights = [sum(glyphs.levels.index(character) for character in column) for column in columns]
        assert heights == [level(value, low=0.0, high=100.0, levels=levels) for value in values]
        # A column is full below and empty above.
        assert all(list(column) == sorted(column, key=glyphs.levels.index, reverse=True) for column in columns)


@given(finite, st.floats(-1e9, 1e9))
def test_a_scale_ends_at_or_above_its_values(value: float, low: float) -> None:
    top = ceiling(value, low=low)
    assert top > low and top >= value
    if value > max(low, 0):
        assert top <= 2 * value


@pytest.mark.parametrize(
    ("value", "top"), [(0.0, 1.0), (7.9, 8.0), (99.0, 100.0), (101.0, 150.0), (690.0, 800.0), (1e9, 1e9), (0.03, 0.03)]
)
def test_scales_end_at_round_numbers(value: float, top: float) -> None:
    assert ceiling(value) == pytest.approx(top)


def lines_of(*values: float | None, **options: Any) -> str:
    times = [number + 0.5 for number in range(len(values))]
    style = Style(end=float(len(values)), words="{:.0f} %".format, glyphs=options.pop("glyphs", BLOCKS))
    known: dict[str, Any] = {"width": 27, "height": 3, "high": 100.0, "style": style}
    return "\n".join(chart(times, values, **{**known, **options}))


def test_a_chart_as_it_looks() -> None:
    values = (0, 0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, None, None, 100, 100, 50, 50, 0, 0)
    assert lines_of(*values, label="utilisation") == (
        "utilisation\n"
        "100 % ┤        ▁▃▆█  ██\n"
        " 50 % ┤     ▂▄▆████  ██▄▄\n"
        "  0 % ┤  ▂▅▇███████··████\n"
        "      └────────────────────\n"
        "       0 s           20.0 s"
    )
    assert lines_of(*values, glyphs=ASCII, width=37) == (
        "100 % |              .::#   ###\n"
        " 50 % |        .:::######   ###:::\n"
        "  0 % |   ..:############???######\n"
        "      +------------------------------\n"
        "       0 s         10.0 s      20.0 s"
    )


def test_fewer_values_than_columns_are_held_until_the_next() -> None:
    columns = drawn(lines_of(100.0, 0.0, 100.0, 0.0).splitlines(), 3, BLOCKS)
    assert columns == (["███"] * 5 + ["   "] * 5) * 2


def test_more_values_than_columns_are_averaged() -> None:
    columns = drawn(lines_of(*([100.0, 0.0] * 40), height=2).splitlines(), 2, BLOCKS)
    assert columns == ["█ "] * 20


def test_what_was_measured_only_at_the_start_does_not_last() -> None:
    times = [0.5, 1.5, 2.5]
    style = Style(end=20.0, words=lambda _: "")
    columns = drawn(chart(times, [100.0] * 3, width=22, height=1, high=100.0, style=style), 1, BLOCKS)
    assert columns[:4] == ["█"] * 4 and columns[6:] == ["·"] * 14


def test_nothing_measured_is_a_chart_of_gaps() -> None:
    for times, values in (([], []), ([1.0, 2.0], [None, None]), ([1.0], [math.nan])):
        assert set(drawn(chart(times, values, width=30, height=1), 1, BLOCKS)) == {"·"}


def test_the_scale_goes_where_there_is_no_room_for_it() -> None:
    assert lines_of(50.0, 50.0, width=13).splitlines()[0] == "┤"
    assert lines_of(50.0, 50.0, width=15).splitlines()[0] == "100 % ┤"


def test_charts_with_one_margin_have_their_times_below_each_other() -> None:
    one, other = (
        chart([1.0, 2.0], [1.0, value], width=40, height=2, style=Style(margin=9, words="{:.0f} W".format))
        for value in (5.0, 50_000.0)
    )
    assert one[-1] == other[-1] and one[-2] == other[-2]


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such", ASCII), ("utf-16", BLOCKS)],
)
def test_an_output_gets_what_it_can_show(encoding: str | None, glyphs: Glyphs) -> None:
    assert glyphs_for(encoding) is glyphs
