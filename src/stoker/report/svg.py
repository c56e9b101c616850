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

from stoker.core.metrics import thinned
from stoker.core.values import frozen
from stoker.core.words import count_text, time_text
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
    look: int | None = None
    """Which of the `LOOKS` it has, so that the same thing has the same one in several charts; None: by its order."""


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
    begin: float | None = 0.0
    """The left end of the axis; None: the first place."""
    end: float | None = None
    """The right end of the axis; None: the last place."""
    filled: bool = True
    """Whether the area below a single line is filled."""
    breaks: bool = True
    """Whether a distance much longer than the others is a gap, as where a sampler paused."""
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
        look = f"line-{(number if line.look is None else line.look) % LOOKS}"
        filled = drawing.filled and len(lines) == 1
        parts += _curve(points, x, y, look, filled=filled, drawing=drawing)
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
    }
    scale = [drawing.words(value) for value in (low, low / 2 + high / 2, high)]
    clock = [drawing.axis(place) if place else "0" for place in (begin, begin / 2 + end / 2, end)]
    return element(
        "figure",
        {"class": "chart"},
        element("figcaption", None, label, element("small", None, remark) if remark else NOTHING),
        element("div", {"class": "scale", "aria-hidden": "true"}, *(element("span", None, one) for one in scale)),
        element("svg", picture, *parts),
        element("div", {"class": "clock", "aria-hidden": "true"}, *(element("span", None, one) for one in clock)),
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
        words = f"{edges[place]:.4g} to {edges[place + 1]:.4g}: {count_text(count, 'value')}"
        bars.append(
            element("g", None, element("title", None, words), element("rect", {**bar, "height": _number(height)}))
        )
    attributes = {"class": "bars", "viewBox": f"0 0 {WIDTH} 100", "preserveAspectRatio": "none", "role": "img"}
    clock = (element("span", None, f"{edge:.4g}") for edge in (low, high))
    return element(
        "figure",
        {"class": "chart"},
        element("div", {"class": "scale"}),
        element("svg", {**attributes, "aria-label": label}, *bars),
        element("div", {"class": "clock"}, *clock),
    )


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
            yield element("path", {"class": f"dot {look}", "d": dot})
            continue
        path = _path(corners)
        if filled:
            area = f"{path}V{HEIGHT}H{_number(corners[0][0])}Z"
            yield element("path", {"class": f"area {look}", "d": area})
        yield element("path", {"class": f"curve {look}", "d": path})


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
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in corners)


def _band(band: Band, x: Callable[[float], float]) -> Html:
    left, right = x(band.start), x(band.end)
    if right <= left:
        return NOTHING
    place = {"x": _number(left), "y": 0, "width": _number(right - left), "height": HEIGHT}
    return element("rect", {"class": band.kind, **place})


def _legend(lines: Sequence[Line], drawing: Drawing) -> Html:
    sample = "M0 6H28"
    entries: list[tuple[Html, Content]] = []
    if len(lines) > 1:
        for number, line in enumerate(lines):
            look = f"line-{(number if line.look is None else line.look) % LOOKS}"
            entries.append((element("path", {"class": f"curve {look}", "d": sample}), line.name))
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
