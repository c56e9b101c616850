"""Curves over time or steps, histograms and small curves as HTML with SVG, without scripts and fonts.

Pure: it knows no receipt and no page. The curves stretch with the page while words keep their size. What the classes
look like is in `design.css`. However many points a line has, its extremes are drawn.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from typing import Callable, Final, Iterator, Literal, Sequence

from attrs import evolve

from stoker.core.metrics import thinned
from stoker.core.values import frozen
from stoker.core.words import count_text, number_text, time_text
from stoker.report.charts import ceiling
from stoker.report.markup import NOTHING, Attributes, Content, Html, element, joined

WIDTH: Final = 1000
HEIGHT: Final = 120
"""The units of a drawing; on the page they are stretched to the space there is."""
COLUMNS: Final = 400
"""Parts of the axis of which a line keeps its extremes: about as many as a chart has pixels on a telephone."""
LOOKS: Final = 8
"""Colours and dashes of lines, which repeat after these."""
_POINTS_OF_PART: Final = 5
"""Points of a part that `thinned` keeps at most."""
_MAX_DISTANCE: Final = 1.75
"""Times the median distance between two values: a longer distance is a gap in the curve."""
_SOME_DISTANCES: Final = 2000
"""Distances of which the median is taken."""

Value = float | None


@frozen(kw_only=True)
class Line:
    """Values in the order of an axis."""

    places: Sequence[float]
    """Where on the axis each value is, such as seconds after the start."""
    values: Sequence[Value]
    """None and what is no finite number are gaps, in which nothing is drawn."""
    name: str = ""
    look: str = ""
    """The class of its look, so that the same thing has the same one in several charts; empty: by its order."""


@frozen(kw_only=True)
class Band:
    """A stretch of the axis behind the curves."""

    start: float
    end: float
    kind: Literal["idle", "outside"]
    """`idle`: nothing happened; `outside`: before or after what the chart is about."""


@frozen(kw_only=True)
class Drawing:
    """How a chart is drawn."""

    words: Callable[[float], str] = "{:g}".format
    """A value of the scale in words."""
    axis: Callable[[float], str] = time_text
    """A place on the axis in words."""
    low: float | None = 0.0
    """The bottom of the scale; None: a round number below the lowest value."""
    high: float | None = None
    """The top of the scale; None: a round number above the highest value."""
    wide: bool = False
    """Whether places are shown by their logarithms; all of them are positive then, and `begin` and `end` None."""
    begin: float | None = 0.0
    """The left end of the axis; None: the first place."""
    end: float | None = None
    """The right end of the axis; None: the last place."""
    filled: bool = True
    """Whether the area below a single line is filled."""
    smooth: bool = False
    """Whether a line of many values is drawn faintly, and the mean of each part of the axis over it."""
    breaks: bool = True
    """Whether a distance much longer than the others is a gap, as where a sampler paused."""
    named: bool = True
    """Whether a legend names the lines, where there is more than one."""
    limit: float | None = None
    """A value that is marked by a line across, such as a device's memory."""
    limit_name: str = "limit"
    bands: Sequence[Band] = ()
    band_names: Sequence[tuple[str, str]] = (("idle", "idle"), ("outside", "leased, the step did not run"))
    """Kinds of bands with their words in the legend."""
    columns: int = COLUMNS
    """Parts of the axis of which a line keeps its extremes."""
    marks: Sequence[tuple[float, str]] = ()
    """Places that are marked by a line down, with what happened there."""


def chart(lines: Sequence[Line], *, label: str, drawing: Drawing | None = None, remark: str = "") -> Html:
    """A figure: a title, the curves with their scale, the axis below, and a legend where there is more than one line.

    Values beyond the scale are drawn at its edge. `remark` stands beside the title.
    """
    drawing = drawing or Drawing()
    words_of = drawing.axis
    if drawing.wide:
        lines = [evolve(line, places=[math.log10(place) for place in line.places]) for line in lines]
        drawing = evolve(drawing, axis=lambda place: f"{10**place:.1g}")
    cleaned = [_cleaned(line) for line in lines]
    begin, end = _ends(cleaned, drawing)
    low, high = _scale(cleaned, drawing)

    def x(place: float) -> float:
        return WIDTH * min(max((place - begin) / (end - begin), 0.0), 1.0) if end > begin else 0.0

    def y(value: float) -> float:
        # Halves, so that a scale as wide as all numbers does not overflow.
        share = (value / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
        return HEIGHT * (1 - min(max(share, 0.0), 1.0))

    parts = [_band(band, x) for band in drawing.bands]
    for height in (0, HEIGHT // 2, HEIGHT):
        parts.append(element("line", {"class": "rule", "x1": 0, "x2": WIDTH, "y1": height, "y2": height}))
    for number, (line, points) in enumerate(zip(lines, cleaned)):
        filled = drawing.filled and len(lines) == 1
        parts += _curve(points, x, y, _look(number, line), name=line.name, filled=filled, drawing=drawing)
    if drawing.limit is not None and low <= drawing.limit <= high:
        limit = _number(y(drawing.limit))
        parts.append(element("line", {"class": "limit", "x1": 0, "x2": WIDTH, "y1": limit, "y2": limit}))
    for place, words in drawing.marks:
        across = _number(x(place))
        mark = {"class": "mark", "x1": across, "x2": across, "y1": 0, "y2": HEIGHT}
        parts.append(element("g", None, element("title", None, words), element("line", mark)))
    picture = {
        "viewBox": f"0 0 {WIDTH} {HEIGHT}",
        "preserveAspectRatio": "none",
        "role": "img",
        "aria-label": ", ".join(filter(None, (label, remark))),
        # What a page with scripts needs to tell the value under the pointer: the ends of both axes, and their units.
        "data-x": f"{begin!r} {end!r}",
        "data-y": f"{low!r} {high!r}",
        "data-words": f"{words_of(1.0)}|{drawing.words(1.0)}",
        "data-wide": drawing.wide,
    }
    scale = [drawing.words(value) for value in (low, low / 2 + high / 2, high)]
    ticks, unit = _ticks(begin, end, drawing.axis)
    words = ", ".join(filter(None, (remark, f"by {unit}" if unit else "")))
    for place, _ in ticks:
        if begin < place < end:
            across = _number(x(place))
            parts.append(element("line", {"class": "tick", "x1": across, "x2": across, "y1": HEIGHT, "y2": HEIGHT + 4}))
    return element(
        "figure",
        {"class": "chart"},
        element("figcaption", None, label, element("small", None, words) if words else NOTHING),
        element("div", {"class": "scale", "aria-hidden": "true"}, *(element("span", None, one) for one in scale)),
        element("svg", picture, *parts),
        element(
            "div",
            {"class": "clock", "aria-hidden": "true"},
            element("svg", None, *_clock(ticks, lambda one: x(one) / 10)),
        ),
        _legend(lines, drawing),
    )


def spark(values: Sequence[float], *, label: str) -> Html:
    """A small curve for a row of a table; empty without two finite values."""
    points = [(place, value) for place, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return NOTHING
    kept = thinned([float(place) for place, _ in points], [value for _, value in points], 60 * _POINTS_OF_PART)
    low, high = min(value for _, value in points), max(value for _, value in points)
    span = (high / 2 - low / 2) or 1.0
    last = points[-1][0] or 1
    path = _path([(100 * points[index][0] / last, 22 - 20 * (points[index][1] / 2 - low / 2) / span) for index in kept])
    attributes = {"class": "spark", "viewBox": "0 0 100 24", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", {**attributes, "aria-label": label}, element("path", {"d": path}))


def histogram(counts: Sequence[int], low: float, high: float, *, label: str) -> Html:
    """Bars for how many values each of the equal parts between low and high has; empty without counts."""
    if not counts or max(counts) <= 0:
        return NOTHING
    width, top = WIDTH / len(counts), max(counts)
    edges = [low + (high - low) * place / len(counts) for place in range(len(counts) + 1)]
    bars = []
    for place, count in enumerate(counts):
        # What is there at all is seen.
        height = max(1.5, 100 * count / top) if count else 0.0
        bar = {"x": _number(place * width), "y": _number(100 - height), "width": _number(width * 0.92)}
        words = f"{number_text(edges[place])} to {number_text(edges[place + 1])}: {count_text(count, 'value')}"
        bars.append(
            element("g", None, element("title", None, words), element("rect", {**bar, "height": _number(height)}))
        )
    attributes = {"class": "bars", "viewBox": f"0 0 {WIDTH} 100", "preserveAspectRatio": "none", "role": "img"}
    clock = (element("span", None, number_text(edge)) for edge in (low, high))
    return element(
        "figure",
        {"class": "chart"},
        element("div", {"class": "scale"}),
        element("svg", {**attributes, "aria-label": label}, *bars),
        element("div", {"class": "clock"}, *clock),
    )


# Words below

_TICKS: Final = 5
"""Words below a chart, about as many."""
_TIMES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between two words on an axis of time, from one second on."""


def _ticks(begin: float, end: float, axis: Callable[[float], str]) -> tuple[list[tuple[float, str]], str]:
    """Round places on an axis with their words, and what all words begin with, as "step", which is left out of them."""
    length = end - begin
    if not math.isfinite(length) or length <= 0:
        return ([(begin, axis(begin))] if math.isfinite(begin) else []), ""
    rough = length / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next((nice * power for nice in (1, 2, 5) if nice * power >= rough), 10 * power)
    if axis is time_text and rough > 1:
        distance = next((float(seconds) for seconds in _TIMES if seconds >= rough), distance)
    if begin == int(begin) and end == int(end) and axis is not time_text:
        distance = max(1.0, distance)
    first = math.ceil(begin / distance)
    numbers = itertools.takewhile(lambda one: one * distance <= end + distance * 1e-9, range(first, first + 4 * _TICKS))
    places = [number * distance for number in numbers]
    words = [_short(axis(place)) if place or axis is not time_text else "0" for place in places]
    lead = len(words[0]) - len(words[0].lstrip(_LETTERS)) if words else 0
    if not all(word[:lead] == words[0][:lead] for word in words):
        lead = 0
    return [(place, word[lead:]) for place, word in zip(places, words)], words[0][:lead].strip() if lead else ""


def time_axis(seconds: float) -> Html:
    """The words below a picture of this length: round times from its beginning, at their places."""
    ticks, _ = _ticks(0.0, seconds, time_text)
    return element("svg", None, *_clock(ticks, lambda one: 100 * one / seconds))


def words_below(words: Sequence[tuple[float, str]]) -> Html:
    """Words along a picture, each at its percent of the width; for eyes alone."""
    return element("div", {"class": "clock", "aria-hidden": "true"}, element("svg", None, *_clock(words, float)))


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz "


def _short(words: str) -> str:
    """A time without what is nothing: "1 s" and not "1.0 s", "5 m" and not "5 m 00 s"."""
    return words.removesuffix(" 00 s").removesuffix(" 00 m").replace(".0 s", " s")


def _clock(ticks: Sequence[tuple[float, str]], percent: Callable[[float], float]) -> Iterator[Html]:
    for place, words in ticks:
        across = percent(place)
        anchor = "start" if across < 4 else "end" if across > 96 else "middle"
        yield element("text", {"x": f"{_number(across)}%", "y": "1em", "text-anchor": anchor}, words)


# Points

Point = tuple[float, float]


@frozen
class _Points:
    """Places in their order, and the value at each; a value that is no finite number is NaN."""

    places: Sequence[float]
    values: Sequence[float]


def _cleaned(line: Line) -> _Points:
    finite = math.isfinite
    values = [math.nan if value is None or not finite(value) else float(value) for value in line.values]
    places = [float(place) for place in itertools.islice(line.places, len(values))]
    del values[len(places) :]
    if not all(map(finite, places)) or any(map(operator.gt, places, itertools.islice(places, 1, None))):
        points = sorted((point for point in zip(places, values) if finite(point[0])), key=lambda point: point[0])
        places, values = [place for place, _ in points], [value for _, value in points]
    return _Points(places, values)


def _ends(lines: Sequence[_Points], drawing: Drawing) -> Point:
    begin = drawing.begin
    if begin is None or not math.isfinite(begin):
        begin = min((points.places[0] for points in lines if points.places), default=0.0)
    end = drawing.end
    if end is None or not math.isfinite(end) or end <= begin:
        end = max((points.places[-1] for points in lines if points.places), default=begin)
    return begin, end


def _scale(lines: Sequence[_Points], drawing: Drawing) -> Point:
    """The bottom and the top of the scale; the top is above the bottom."""
    known = [[value for value in points.values if not math.isnan(value)] for points in lines]
    lowest = min((min(values) for values in known if values), default=0.0)
    highest = max((max(values) for values in known if values), default=0.0)
    if drawing.limit is not None:
        highest = max(highest, drawing.limit)
    low = drawing.low
    if low is None:
        # Close to nothing or far apart, a scale begins at nothing; elsewhere near its values.
        low = 0.0 if 0 <= lowest <= highest / 2 else _floor(lowest, highest)
    high = drawing.high
    if high is None or not math.isfinite(high) or high <= low:
        high = ceiling(highest) if low == 0 else low + ceiling(highest - low)
    return (low, high) if high > low else (low, low + max(1.0, abs(low)))


def _floor(lowest: float, highest: float) -> float:
    """A round number at or below the lowest value, near it in terms of the distance to the highest."""
    distance = highest - lowest
    if not math.isfinite(distance):
        return lowest
    unit = 10.0 ** math.floor(math.log10(distance or abs(lowest) or 1.0))
    low = math.floor(lowest / unit) * unit
    return low if math.isfinite(low) else lowest


# Pieces of the picture


def _curve(
    points: _Points,
    x: Callable[[float], float],
    y: Callable[[float], float],
    look: str,
    *,
    name: str,
    filled: bool,
    drawing: Drawing,
) -> Iterator[Html]:
    for first, beyond in _stretches(points, breaks=drawing.breaks):
        places, values = points.places[first:beyond], points.values[first:beyond]
        kept = thinned(places, values, drawing.columns * _POINTS_OF_PART)
        corners = [(x(places[index]), y(values[index])) for index in kept]
        if len(corners) == 1:
            # A line without length has round ends, and is not stretched to an ellipse.
            dot = f"M{_number(corners[0][0])} {_number(corners[0][1])}h0.01"
            yield element("path", {"class": f"dot {look}", "d": dot, "data-name": name or None})
            continue
        path = _path(corners)
        if filled:
            area = f"{path}V{HEIGHT}H{_number(corners[0][0])}Z"
            yield element("path", {"class": f"area {look}", "d": area})
        many = drawing.smooth and len(places) > 2 * _MEANS
        kind = "curve raw" if many else "curve"
        yield element("path", {"class": f"{kind} {look}", "d": path, "data-name": name or None})
        if many:
            means = _path([(x(place), y(value)) for place, value in _means(places, values)])
            yield element("path", {"class": f"mean {look}", "d": means})


_MEANS: Final = 100
"""Parts of the axis of which a mean is drawn."""


def _means(places: Sequence[float], values: Sequence[float]) -> Iterator[Point]:
    """The mean of each of equal parts of the values."""
    for part in range(_MEANS):
        first, beyond = len(places) * part // _MEANS, len(places) * (part + 1) // _MEANS
        count = beyond - first
        yield math.fsum(places[first:beyond]) / count, math.fsum(value / count for value in values[first:beyond])


def _stretches(points: _Points, *, breaks: bool) -> Iterator[tuple[int, int]]:
    """The stretches without a gap: the index of the first point, and that behind the last."""
    places, values = points.places, points.values
    reach = math.inf
    if breaks and len(places) > 1:
        some = range(1, len(places), max(1, len(places) // _SOME_DISTANCES))
        reach = _MAX_DISTANCE * statistics.median(places[index] - places[index - 1] for index in some)
    first, before = -1, 0.0
    for index, (place, value) in enumerate(zip(places, values)):
        gap = value != value  # noqa: PLR0124  # NaN, at a third of what math.isnan takes
        if first >= 0 and (gap or place - before > reach):
            yield first, index
            first = -1
        if first < 0 and not gap:
            first = index
        before = place
    if first >= 0:
        yield first, len(places)


def _path(corners: Sequence[Point]) -> str:
    text = "M" + "L".join([f"{x:.1f} {y:.1f}" for x, y in corners])
    # As `_number` writes each, at a third of what that takes for tens of thousands of points.
    return text.replace(".0 ", " ").replace(".0L", "L").removesuffix(".0")


def _band(band: Band, x: Callable[[float], float]) -> Html:
    left, right = x(band.start), x(band.end)
    if right <= left:
        return NOTHING
    place = {"x": _number(left), "y": 0, "width": _number(right - left), "height": HEIGHT}
    return element("rect", {"class": band.kind, **place})


def _look(number: int, line: Line) -> str:
    return line.look or f"line-{number % LOOKS}"


def _legend(lines: Sequence[Line], drawing: Drawing) -> Html:
    sample = "M0 6H28"
    entries: list[tuple[Html, Content]] = []
    if len(lines) > 1 and drawing.named:
        for number, line in enumerate(lines):
            entries.append((element("path", {"class": f"curve {_look(number, line)}", "d": sample}), line.name))
    if drawing.limit is not None:
        entries.append((element("path", {"class": "limit", "d": sample}), drawing.limit_name))
    for kind, words in drawing.band_names:
        if any(band.kind == kind for band in drawing.bands):
            entries.append((element("rect", {"class": kind, "x": 0, "y": 0, "width": 28, "height": 12}), words))
    for words in dict.fromkeys(words for _, words in drawing.marks):
        entries.append((element("path", {"class": "mark", "d": "M14 0V12"}), words))
    if not entries:
        return NOTHING
    picture: Attributes = {"viewBox": "0 0 28 12", "aria-hidden": "true"}
    items = (element("li", None, element("svg", picture, drawn), words) for drawn, words in entries)
    return element("ul", {"class": "legend"}, joined(items))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
