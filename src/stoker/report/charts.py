"""One quantity over time as lines of text: a filled curve with a scale at its left and the time below.

Pure: it knows no receipt and no terminal. Every line is at most as wide as it may be, whatever it is given.
"""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Callable, Final, Sequence

import attrs

from stoker.core.words import time_text

STEPS: Final = 8
"""Heights within one character of the Unicode blocks."""
_NICE: Final = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Where a scale may end, times a power of ten."""
_BRIDGED: Final = 1.75
"""Distances between two values: at more than that from every value nothing is known."""
_NARROWEST: Final = 8
"""Columns of curve below which the scale is left out, for the curve to have its room."""


@attrs.frozen(kw_only=True)
class Glyphs:
    """The characters of a chart. `levels` go from nothing to a full one; `gap` stands where nothing was measured."""

    levels: str
    gap: str
    tick: str
    corner: str
    line: str


BLOCKS: Final = Glyphs(levels=" ▁▂▃▄▅▆▇█", gap="·", tick="┤", corner="└", line="─")
ASCII: Final = Glyphs(levels=" .:#", gap="?", tick="|", corner="+", line="-")


@attrs.frozen(kw_only=True)
class Style:
    """How a chart is written: its characters, a value of the scale in words, when the time ends (else the last).

    Charts whose scales have the same `margin`, the width of their widest value, have their times below each other.
    """

    glyphs: Glyphs = BLOCKS
    words: Callable[[float], str] = "{:g}".format
    end: float | None = None
    margin: int = 0


def glyphs_for(encoding: str | None) -> Glyphs:
    """The characters that an output in this encoding can show."""
    try:
        "".join(attrs.astuple(BLOCKS)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def chart(
    times: Sequence[float],
    values: Sequence[float | None],
    *,
    width: int,
    height: int,
    low: float = 0.0,
    high: float | None = None,
    label: str = "",
    style: Style | None = None,
) -> list[str]:
    """The label, `height` lines of curve, and two of time.

    `values[i]` is what was measured around `times[i]`, seconds; None is a gap. `high` is where the scale ends, else
    what is just above the highest value; what is beyond the scale is drawn at its edge.
    """
    style = style or Style()
    glyphs, end = style.glyphs, style.end
    points = _points(times, values)
    highest = max((value for _, value in points if value is not None), default=low)
    top = high if high is not None and high > low else ceiling(highest, low=low)
    last = max([time for time, _ in points], default=0.0) if end is None or not math.isfinite(end) else end
    height, width = max(1, height), max(1, width)
    scale = _scale(low, top, height, style.words)
    margin = max(style.margin, *map(len, scale)) + 1
    if width - margin - 1 < _NARROWEST:
        scale, margin = [""] * height, 0
    room = max(1, width - margin - 1)
    columns = [
        None if value is None else level(value, low=low, high=top, levels=height * (len(glyphs.levels) - 1))
        for value in _columns(points, room, max(last, 0.0))
    ]
    lines = [label] if label else []
    for row, name in enumerate(scale):
        lines.append(
            f"{name:>{max(0, margin - 1)}}{' ' if margin else ''}{glyphs.tick}{_row(columns, row, height, glyphs)}"
        )
    lines.append(" " * margin + glyphs.corner + glyphs.line * room)
    lines.append(" " * (margin + 1) + _clock(last, room))
    return [line[:width].rstrip() for line in lines]


def level(value: float, *, low: float, high: float, levels: int) -> int:
    """How high a value stands, from 0 to `levels`; anything above `low` shows."""
    # Halves, so that a scale as wide as all numbers does not overflow.
    part = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0
    if not part > 0:
        return 0
    return levels if part >= 1 else max(1, math.floor(part * levels + 0.5))


def ceiling(value: float, *, low: float = 0.0) -> float:
    """A round number at or above a value, where a scale may end; above `low` in any case."""
    if not math.isfinite(value) or value <= max(low, 0.0):
        return low + max(1.0, abs(low))
    power = 10.0 ** math.floor(math.log10(value))
    fitting = (nice * power for nice in _NICE if nice * power >= value)
    top = next(fitting, value)
    return top if math.isfinite(top) else value


def _points(times: Sequence[float], values: Sequence[float | None]) -> list[tuple[float, float | None]]:
    """What was measured, by time; a value that is no number is a gap."""
    return sorted(
        (
            (time, value if value is not None and math.isfinite(value) else None)
            for time, value in zip(times, values)
            if math.isfinite(time)
        ),
        key=lambda point: point[0],
    )


def _columns(points: Sequence[tuple[float, float | None]], room: int, last: float) -> list[float | None]:
    """For each column the mean of what was measured in its time, or what was measured nearest to it."""
    if not points:
        return [None] * room
    times = [time for time, _ in points]
    distances = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    reach = _BRIDGED * distances[len(distances) // 2] if distances else math.inf
    found: list[float | None] = []
    for column in range(room):
        begin, finish = last * (column / room), last * ((column + 1) / room)
        first = bisect.bisect_left(times, begin)
        # The last column has the last moment, too.
        beyond = bisect.bisect_right(times, finish) if column == room - 1 else bisect.bisect_left(times, finish)
        inside = [value for _, value in points[first:beyond]]
        found.append(_mean(inside) if inside else _nearest(points, first, (begin + finish) / 2, reach))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return math.fsum(value / len(told) for value in told) if told else None


def _nearest(points: Sequence[tuple[float, float | None]], place: int, moment: float, reach: float) -> float | None:
    """The value measured nearest to a moment that lies before `points[place]`, if it is within reach."""
    around = [points[index] for index in (place - 1, place) if 0 <= index < len(points)]
    time, value = min(around, key=lambda point: abs(point[0] - moment))
    return value if abs(time - moment) <= reach else None


def _row(columns: Sequence[int | None], row: int, height: int, glyphs: Glyphs) -> str:
    """One line of the curve, the highest first."""
    steps = len(glyphs.levels) - 1
    below = (height - 1 - row) * steps
    nothing = glyphs.gap if row == height - 1 else " "
    return "".join(
        nothing if column is None else glyphs.levels[min(max(column - below, 0), steps)] for column in columns
    )


def _scale(low: float, high: float, height: int, words: Callable[[float], str]) -> list[str]:
    """What stands left of each line: the top, the bottom, and the middle where there is one."""
    names = [""] * height
    names[-1] = words(low)
    names[0] = words(high)
    if height % 2 and height > 2:
        names[height // 2] = words(low / 2 + high / 2)
    return names


def _clock(last: float, room: int) -> str:
    """The time below the curve: its start, its middle and its end, as far as there is room."""
    start, middle, finish = "0 s", time_text(last / 2), time_text(last)
    if len(start) + len(finish) + 1 > room:
        return ""
    line = [" "] * room
    line[: len(start)] = start
    line[room - len(finish) :] = finish
    place = room // 2 - len(middle) // 2
    if place > len(start) + 1 and place + len(middle) + 1 < room - len(finish):
        line[place : place + len(middle)] = middle
    return "".join(line)
