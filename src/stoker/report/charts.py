"""One quantity over time as lines of text: a filled curve with a scale at its left and the time below.

Pure: it knows no receipt and no terminal. No line is wider than `width`, whatever the input.
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
"""Ends of a scale, times a power of ten."""
_MAX_DISTANCE: Final = 1.75
"""Times the median distance between two values: a moment farther from every value is a gap."""
_MIN_CURVE: Final = 8
"""Columns of curve below which the scale is left out."""


@attrs.frozen(kw_only=True)
class Glyphs:
    """The characters of a chart."""

    levels: str
    """From an empty character to a full one."""
    gap: str
    """Where nothing was measured."""
    tick: str
    corner: str
    line: str


BLOCKS: Final = Glyphs(levels=" ▁▂▃▄▅▆▇█", gap="·", tick="┤", corner="└", line="─")
ASCII: Final = Glyphs(levels=" .:#", gap="?", tick="|", corner="+", line="-")


@attrs.frozen(kw_only=True)
class Style:
    """How a chart is written."""

    glyphs: Glyphs = BLOCKS
    words: Callable[[float], str] = "{:g}".format
    """A value of the scale in words."""
    end: float | None = None
    """Seconds at the right end; None is the time of the last value."""
    margin: int = 0
    """Least width of the scale in columns; the time axes of charts with the same margin align."""


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

    `values[i]` was measured around `times[i]`, seconds; None is a gap. The scale ends at `high`, by default at a round
    number above the highest value; values beyond the scale are drawn at its edge.
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
    if width - margin - 1 < _MIN_CURVE:
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
    """The height of a value, from 0 to `levels`; anything above `low` is at least 1."""
    # Halves, so that a scale as wide as all numbers does not overflow.
    if not low < value or not low < high:
        return 0
    part = (value / 2 - low / 2) / (high / 2 - low / 2)
    return levels if part >= 1 else max(1, math.floor(part * levels + 0.5))


def ceiling(value: float, *, low: float = 0.0) -> float:
    """A round number at or above a value and above `low`, for the end of a scale."""
    if not math.isfinite(value) or value <= max(low, 0.0):
        return low + max(1.0, abs(low))
    power = 10.0 ** math.floor(math.log10(value))
    candidates = (nice * power for nice in _NICE if nice * power >= value)
    top = next(candidates, value)
    return top if math.isfinite(top) else value


def _points(times: Sequence[float], values: Sequence[float | None]) -> list[tuple[float, float | None]]:
    """The values by time; one that is not finite is a gap."""
    return sorted(
        (
            (time, value if value is not None and math.isfinite(value) else None)
            for time, value in zip(times, values)
            if math.isfinite(time)
        ),
        key=lambda point: point[0],
    )


def _columns(points: Sequence[tuple[float, float | None]], room: int, last: float) -> list[float | None]:
    """For each column the mean of the values in its span of time, or the nearest value."""
    if not points:
        return [None] * room
    times = [time for time, _ in points]
    distances = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    reach = _MAX_DISTANCE * distances[len(distances) // 2] if distances else math.inf
    columns: list[float | None] = []
    for column in range(room):
        begin, finish = last * (column / room), last * ((column + 1) / room)
        first = bisect.bisect_left(times, begin)
        # The last column includes the last moment.
        beyond = bisect.bisect_right(times, finish) if column == room - 1 else bisect.bisect_left(times, finish)
        inside = [value for _, value in points[first:beyond]]
        columns.append(_mean(inside) if inside else _nearest(points, first, (begin + finish) / 2, reach))
    return columns


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(value / len(numbers) for value in numbers) if numbers else None


def _nearest(points: Sequence[tuple[float, float | None]], index: int, moment: float, reach: float) -> float | None:
    """The value nearest to a moment just before `points[index]`, if it is within reach."""
    around = [points[near] for near in (index - 1, index) if 0 <= near < len(points)]
    time, value = min(around, key=lambda point: abs(point[0] - moment))
    return value if abs(time - moment) <= reach else None


def _row(columns: Sequence[int | None], row: int, height: int, glyphs: Glyphs) -> str:
    """One line of the curve, the highest first."""
    steps = len(glyphs.levels) - 1
    below = (height - 1 - row) * steps
    empty = glyphs.gap if row == height - 1 else " "
    return "".join(empty if column is None else glyphs.levels[min(max(column - below, 0), steps)] for column in columns)


def _scale(low: float, high: float, height: int, words: Callable[[float], str]) -> list[str]:
    """The label of each line: the top, the bottom, and the middle where there is one."""
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
    column = room // 2 - len(middle) // 2
    if column > len(start) + 1 and column + len(middle) + 1 < room - len(finish):
        line[column : column + len(middle)] = middle
    return "".join(line)


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs = BLOCKS) -> str:
    """The values as one line of at most `width` characters, each the last finite value of its part; a part without one
    is a gap."""
    columns = min(width, len(values))
    parts = [values[len(values) * i // columns : len(values) * (i + 1) // columns] for i in range(columns)]
    shown = [next((value for value in reversed(part) if math.isfinite(value)), None) for part in parts]
    finite = [value for value in shown if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    levels = glyphs.levels[1:]
    top = len(levels) - 1
    scale = top / (high - low) if high - low and math.isfinite(high - low) else 0.0
    return "".join(glyphs.gap if value is None else levels[round((value - low) * scale)] for value in shown)
