"""One quantity over time as an SVG picture that is embedded in a page, without scripts and fonts.

Pure: it knows no receipt and no page. Texts are escaped here; values that are not finite are gaps.
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
_TOP: Final = 26
_BOTTOM: Final = 22
_MAX_DISTANCE: Final = 1.75
"""Times the median distance between two values: a longer distance is a gap in the curve."""
_COLOUR: Final = "#2f7dd1"
"""Readable on white and on black."""

Point = tuple[float, float]


@attrs.frozen(kw_only=True)
class Drawing:
    """How a chart is drawn."""

    width: int = 640
    """Pixels."""
    height: int = 130
    """Pixels."""
    words: Callable[[float], str] = "{:g}".format
    """A value of the scale in words."""
    end: float | None = None
    """Seconds at the right end; None is the time of the last value."""
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

    `values[i]` was measured around `times[i]`, seconds; None is a gap, in which nothing is drawn. The scale ends at
    `high`, by default at a round number above the highest value; values beyond the scale are drawn at its edge.
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
    wide, tall = drawing.width - _LEFT - _RIGHT, drawing.height - _TOP - _BOTTOM
    bottom = _TOP + tall

    def position(time: float, value: float) -> Point:
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
    for stretch in _stretches(points):
        parts += _curve([position(time, value) for time, value in stretch], bottom, colour)
    return "".join(parts) + "</svg>"


def _scale(top: float, drawing: Drawing, wide: int, tall: int) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = _TOP + tall * (1 - share)
        yield (
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{_number(y)}" y2="{_number(y)}" '
            'stroke="currentColor" stroke-opacity="0.2"/>'
        )
        yield _text(escape(drawing.words(top * share)), _LEFT - 6, y + 4, anchor="end")


def _clock(end: float, wide: int, y: float) -> Iterator[str]:
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        label = escape(time_text(end * share)) if share else "0 s"
        yield _text(label, _LEFT + wide * share, y, anchor=anchor)


def _text(markup: str, x: float, y: float, *, anchor: str = "start", weight: str = "400") -> str:
    """A text element; `markup` is escaped already."""
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" font-weight="{weight}">{markup}</text>'


def _stretches(points: Sequence[tuple[float, float | None]]) -> Iterator[list[Point]]:
    """The stretches of time without a gap, each with one point at least."""
    distances = sorted(later - earlier for (earlier, _), (later, _) in itertools.pairwise(points))
    reach = _MAX_DISTANCE * distances[len(distances) // 2] if distances else math.inf
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
