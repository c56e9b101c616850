"""Charts as SVG: well-formed whatever they are given, to scale, with gaps where nothing is known."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from stoker.report.svg import Drawing, chart

SVG = "{http://www.w3.org/2000/svg}"


def lines(text: str) -> list[list[tuple[float, float]]]:
    """The points of each curve."""
    found = ElementTree.fromstring(text).iter(f"{SVG}polyline")
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in one.attrib["points"].split())] for one in found
    ]


def words(text: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(text).iter(f"{SVG}text")]


def test_a_curve_goes_from_the_scale_s_bottom_to_its_top() -> None:
    text = chart([0, 1, 2], [0, 50, 100], label="load", high=100, drawing=Drawing(width=284, height=148, end=2))
    [points] = lines(text)
    assert points == [(72, 126), (172, 76), (272, 26)]
    assert words(text) == ["load", "0", "50", "100", "0 s", "1.0 s", "2.0 s"]


def test_what_is_unknown_breaks_the_line_and_one_value_is_a_dot() -> None:
    values = [1.0, 2.0, None, 3.0, math.nan, 4.0, 5.0]
    text = chart(range(7), values, label="x")
    assert [len(one) for one in lines(text)] == [2, 2]
    assert text.count("<circle") == 1


def test_a_pause_of_the_sampler_is_a_gap() -> None:
    assert [len(one) for one in lines(chart([0, 1, 2, 3, 40, 41], [1] * 6, label="x"))] == [4, 2]


def test_values_beyond_the_scale_stay_inside() -> None:
    [points] = lines(chart([-5, 0, 1, 2], [-5, 1e300, 50, 7], label="x", high=10, drawing=Drawing(end=1)))
    assert all(72 <= x <= 628 and 26 <= y <= 108 for x, y in points)


@pytest.mark.parametrize(
    ("times", "values"),
    [([], []), ([0.0], [None]), ([0.0], [0.0]), ([math.inf, math.nan], [1.0, 2.0]), ([1.0, 1.0], [2.0, math.inf])],
)
def test_nothing_to_draw_is_a_picture_too(times: list[float], values: list[float | None]) -> None:
    text = chart(times, values, label="x", drawing=Drawing(end=math.nan))
    assert not lines(text) and words(text)[0] == "x"


def test_nobody_s_words_get_out_of_the_picture() -> None:
    bad = "</title></svg><script>alert('1')</script>\"&"
    text = chart([0, 1], [1, 2], label=bad, drawing=Drawing(words=lambda _: bad, colour='red"><script>'))
    assert "<script" not in text
    assert words(text)[:2] == [bad, bad]


def test_the_same_numbers_make_the_same_text() -> None:
    picture = chart([0, 1], [1, 3], label="a", high=4, drawing=Drawing(width=184, height=68))
    assert picture.endswith(
        '<polygon points="72,46 72,41 172,31 172,46" fill="#2f7dd1" fill-opacity="0.18"/>'
        '<polyline points="72,41 172,31" fill="none" stroke="#2f7dd1" stroke-width="1.5" stroke-linejoin="round"/>'
        "</svg>"
    )
