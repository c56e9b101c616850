"""Curves as SVG: well-formed whatever they are given, to scale, with gaps where nothing is known, extremes kept."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from stoker.core.words import time_text
from stoker.report.svg import HEIGHT, WIDTH, Band, Drawing, Line, chart, histogram, spark


def figure(*lines: Line, label: str = "x", drawing: Drawing | None = None, remark: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(chart(lines, label=label, drawing=drawing, remark=remark).markup)


def curves(root: ElementTree.Element, name: str = "curve") -> list[list[tuple[float, float]]]:
    """The points of each curve in the picture itself."""
    picture = root.find("svg")
    assert picture is not None
    paths = [one.attrib["d"] for one in picture.iter("path") if one.attrib["class"].split()[0] == name]
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)] for path in paths]


def words(root: ElementTree.Element, name: str) -> list[str]:
    [part] = [one for one in root.iter() if one.attrib.get("class") == name]
    return ["".join(one.itertext()) for one in (part[0] if name == "clock" else part)]


def test_a_curve_goes_from_the_scale_s_bottom_to_its_top() -> None:
    root = figure(Line(places=[0, 1, 2], values=[0, 50, 100]), drawing=Drawing(high=100))
    assert curves(root) == [[(0, HEIGHT), (WIDTH / 2, HEIGHT / 2), (WIDTH, 0)]]
    assert words(root, "scale") == ["0", "50", "100"] and words(root, "clock") == ["0", "500 ms", "1 s", "1.5 s", "2 s"]


@pytest.mark.parametrize(
    ("end", "axis", "shown"),
    [
        (9_999, "step {:,.6g}".format, ["0", "2,000", "4,000", "6,000", "8,000"]),
        (3, "step {:,.6g}".format, ["0", "1", "2", "3"]),
        (0.3, "{:g}".format, ["0", "0.1", "0.2", "0.3"]),
        (320, time_text, ["0", "2 m", "4 m"]),
        (30_000, time_text, ["0", "2 h", "4 h", "6 h", "8 h"]),
    ],
)
def test_words_below_stand_at_round_places(end: float, axis: Callable[[float], str], shown: list[str]) -> None:
    root = figure(Line(places=[0, end], values=[1, 2]), drawing=Drawing(axis=axis))
    assert words(root, "clock") == shown


def test_noise_is_drawn_faintly_under_its_mean_and_keeps_its_extremes() -> None:
    values = [50.0 + (-1) ** place * 10 for place in range(10_000)]
    values[5_000] = 99.0
    root = figure(Line(places=range(10_000), values=values), drawing=Drawing(high=100, smooth=True))
    [raw], [mean] = curves(root), curves(root, "mean")
    assert min(y for _, y in raw) == round(HEIGHT * 0.01, 1)
    assert len(mean) == 100 and all(abs(y - HEIGHT / 2) < 1 for _, y in mean)
    assert not curves(figure(Line(places=range(50), values=values), drawing=Drawing(smooth=True)), "mean")


def test_what_is_unknown_breaks_the_line_and_one_value_is_a_dot() -> None:
    values = [1.0, 2.0, None, 3.0, math.nan, 4.0, 5.0]
    root = figure(Line(places=range(7), values=values))
    assert [len(one) for one in curves(root)] == [2, 2] and len(curves(root, "dot")) == 1


def test_a_pause_of_the_sampler_is_a_gap_and_a_distance_of_steps_is_none() -> None:
    line = Line(places=[0, 1, 2, 3, 40, 41], values=[1] * 6)
    assert [len(one) for one in curves(figure(line))] == [4, 2]
    assert [len(one) for one in curves(figure(line, drawing=Drawing(breaks=False)))] == [6]


def test_values_beyond_the_scale_stay_inside() -> None:
    root = figure(Line(places=[-5, 0, 1, 2], values=[-5, 1e300, 50, 7]), drawing=Drawing(high=10, end=1))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in curves(root)[0])


@pytest.mark.parametrize(
    ("places", "values"),
    [([], []), ([0.0], [None]), ([math.inf, math.nan], [1.0, 2.0]), ([1.0, 1.0], [math.nan, math.inf])],
)
def test_nothing_to_draw_is_a_picture_too(places: list[float], values: list[float | None]) -> None:
    root = figure(Line(places=places, values=values), drawing=Drawing(end=math.nan, low=None))
    assert not curves(root) and len(words(root, "scale")) == 3


@pytest.mark.parametrize("values", [[-1.5e308, 1.5e308], [0.0, 0.0], [5e-324, 0.0], [-3.0, -3.0], [1e300, 1e300]])
def test_any_numbers_have_a_scale(values: list[float]) -> None:
    for low in (0.0, None):
        [points] = curves(figure(Line(places=[0, 1], values=values), drawing=Drawing(low=low)))
        assert all(0 <= y <= HEIGHT for _, y in points)


def test_a_scale_that_may_begin_anywhere_begins_near_its_values() -> None:
    line = Line(places=[0, 1], values=[97.0, 99.0])
    assert words(figure(line, drawing=Drawing(low=None)), "scale")[0] == "97"
    assert words(figure(line), "scale")[0] == "0"


def test_a_hundred_thousand_samples_keep_their_extremes() -> None:
    source = random.Random(1)
    values = [50.0 + source.random() for _ in range(100_000)]
    values[50_003], values[70_001] = 99.5, 1.25
    line = Line(places=[float(place) for place in range(100_000)], values=values)
    markup = chart([line], label="x", drawing=Drawing(high=100)).markup
    [points] = curves(ElementTree.fromstring(markup))
    heights = [y for _, y in points]
    assert min(heights) == round(HEIGHT * (1 - 0.995), 1) and max(heights) == HEIGHT * (1 - 0.0125)
    assert len(points) <= 2100 and len(markup) < 80_000


def test_lines_are_told_apart_and_share_a_scale() -> None:
    lines = [Line(name=f"rank {number}", places=[0, 1], values=[0, number + 1]) for number in range(3)]
    root = figure(*lines)
    assert [one[-1][1] for one in curves(root)] == [80, 40, 0] and words(root, "legend") == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    picture = root.find("svg")
    assert picture is not None and len({one.attrib["class"] for one in picture.iter("path")}) == 3


def test_limits_bands_and_marks_stand_in_the_picture_and_in_the_legend() -> None:
    drawing = Drawing(
        limit=80,
        limit_name="the device's",
        bands=[Band(start=0, end=1, kind="outside"), Band(start=1, end=2, kind="idle")],
        marks=[(2, "NaN at step 2")],
    )
    root = figure(Line(places=[0, 4], values=[1, 2]), drawing=drawing)
    assert words(root, "legend") == ["the device's", "idle", "leased, the step did not run", "NaN at step 2"]
    assert [(one.attrib["x"], one.attrib["width"]) for one in root.iter("rect") if "y" in one.attrib][:2] == [
        ("0", "250"),
        ("250", "250"),
    ]
    assert words(root, "scale")[-1] == "80"


def test_nobody_s_words_get_out_of_the_picture() -> None:
    bad = "</title></svg><script>alert('1')</script>\"&"
    drawing = Drawing(words=lambda _: bad, axis=lambda _: bad, limit=1, limit_name=bad, marks=[(1, bad)])
    text = chart([Line(name=bad, places=[0, 1], values=[1, 2])] * 2, label=bad, drawing=drawing, remark=bad).markup
    assert "<script" not in text
    assert words(ElementTree.fromstring(text), "scale") == [bad] * 3


def test_histograms_and_small_curves() -> None:
    root = ElementTree.fromstring(histogram([0, 1, 1000], -3, 3, label="values").markup)
    heights = [float(one.attrib["height"]) for one in root.iter("rect")]
    assert heights == [0, 1.5, 100] and [one.text for one in root.iter("title")][1] == "-1 to 1: 1 value"
    assert not histogram([], 0, 1, label="none") and not histogram([0, 0], 0, 1, label="none")
    assert not spark([1.0], label="x") and not spark([math.nan, math.inf, 2.0], label="x")
    [path] = ElementTree.fromstring(spark([1.0, math.nan, 3.0], label="loss").markup)
    assert path.attrib["d"] == "M0 22L100 2"
