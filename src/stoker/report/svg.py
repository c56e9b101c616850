"""One quantity over time as an SVG picture: text that stands in a page as it is, without script and without a font.

Pure: it knows no receipt and no page. What a person or a driver wrote is escaped here, numbers that are none are gaps.
"""

from __future__ import annotations

import itertools
import math
from html import escape
from typing import Callable, Final, Iterator, Sequence

import attrs

from stoker.core.words import time_text
from stoker.report.charts import ceiling

_LEFT: Final = 72
"""Pixels for the scale's words, such as "85.9 GB"."""
_RIGHT: Final = 12
_ABOVE: Final = 26
_BELOW: Final = 22
_BRIDGED: Final = 1.75
"""Distances between two values beyond which the line is broken: nothing is known there."""
_COLOUR: Final = "#2f7dd1"
"""Readable on white and on black."""

Point = tuple[float, float]


@attrs.frozen(kw_only=True)
class Drawing:
    """How a chart is drawn: its size, a value of the scale in words, when the time ends (else with the last value)."""

    width: int = 640
    height: int = 130
    words: Callable[[float], str] = "{:g}".format
    end: float | None = None
    colour: str = _COLOUR


def chart(
    times: Sequence[float],
    values: Sequence[float | None],
    *,
    label: str,
    high: float | None = None,
    drawing: Drawing | None = None,
) -> str:
    """The picture: a filled curve with its scale at the left and the time below.

    `values[i]` is what was measured around `times[i]`, seconds; None is a gap, in which nothing is drawn. `high` is
    where the scale ends, else what is just above the highest value; what is beyond the scale is drawn at its edge.
    """
    drawing = drawing or Drawing()
    points = sorted(
        (time, value if value is not None and math.isfinite(value) else None)
        for time, value in dict(zip(times, values)).items()
        if math.isfinite(time)
    )
    highest = max((value for _, value in points if value is not None), default=0.0)
    top = high if high is not None and high > 0 and math.isfinite(high) else ceiling(highest)
    end = drawing.end
    if end is None or not math.isfinite(end) or end <= 0:
        end = max((time for time, _ in points), default=0.0)
    wide, tall = drawing.width - _LEFT - _RIGHT, drawing.height - _ABOVE - _BELOW
    bottom = _ABOVE + tall

    def place(time: float, value: float) -> Point:
        across = min(max(time / end, 0.0), 1.0) if end > 0 else 0.0
        up = min(max(value / top, 0.0), 1.0)
        return _LEFT + across * wide, bottom - up * tall

    title = escape(label)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width} {drawing.height}"',
        f' width="{drawing.width}" height="{drawing.height}" role="img" aria-label="{title}"',
        ' font-family="system-ui, sans-serif" font-size="11" fill="currentColor">',
        f"<title>{title}</title>",
        _text(title, _LEFT, 14, weight="600"),
        *_scale(top, drawing, wide, tall),
        *_clock(end, wide, bottom + 15),
    ]
    colour = escape(drawing.colour)
    for run in _runs(points):
        parts += _curve([place(time, value) for time, value in run], bottom, colour)
    return "".join(parts) + "</svg>"


def _scale(top: float, drawing: Drawing, wide: int, tall: int) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = _ABOVE + tall * (1 - share)
        yield (
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{_number(y)}" y2="{_number(y)}" '
            'stroke="currentColor" stroke-opacity="0.2"/>'
        )
        yield _text(escape(drawing.words(top * share)), _LEFT - 6, y + 4, anchor="end")


def _clock(end: float, wide: int, y: float) -> Iterator[str]:
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        shown = escape(time_text(end * share)) if share else "0 s"
        yield _text(shown, _LEFT + wide * share, y, anchor=anchor)


def _text(shown: str, x: float, y: float, *, anchor: str = "start", weight: str = "400") -> str:
    """Words at a place; they are escaped already."""
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" font-weight="{weight}">{shown}</text>'


def _runs(points: Sequence[tuple[float, float | None]]) -> Iterator[list[Point]]:
    """The stretches of time in which something is known, each at least one point."""
    distances = sorted(later - earlier for (earlier, _), (later, _) in itertools.pairwise(points))
    reach = _BRIDGED * distances[len(distances) // 2] if distances else math.inf
    run: list[Point] = []
    for time, value in points:
        if run and (value is None or time - run[-1][0] > reach):
            yield run
            run = []
        if value is not None:
            run.append((time, value))
    if run:
        yield run


def _curve(run: Sequence[Point], bottom: float, colour: str) -> Iterator[str]:
    if len(run) == 1:
        yield f'<circle cx="{_number(run[0][0])}" cy="{_number(run[0][1])}" r="2" fill="{colour}"/>'
        return
    line = " ".join(f"{_number(x)},{_number(y)}" for x, y in run)
    first, last = f"{_number(run[0][0])},{_number(bottom)}", f"{_number(run[-1][0])},{_number(bottom)}"
    yield f'<polygon points="{first} {line} {last}" fill="{colour}" fill-opacity="0.18"/>'
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-linejoin="round"/>'


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
