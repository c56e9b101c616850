"""What happened when: rows of phases over one axis of time, as HTML with SVG. Pure."""

from __future__ import annotations

import math
from typing import Final, Literal, Mapping, Sequence

from stoker.core.values import frozen
from stoker.core.words import count_text, time_text
from stoker.report.design import icon, tone_of
from stoker.report.markup import NOTHING, Html, element, joined, link
from stoker.report.svg import time_axis

Phase = Literal["queue", "image", "start", "run", "save"]
MOST_ROWS: Final = 200
"""Rows that are drawn; a page with more gets slow."""
_WIDTH: Final = 1000
_HEIGHT: Final = 20
_HEIGHTS: Final[Mapping[str, int]] = {"queue": 4, "image": 8, "start": 12, "run": 20, "save": 14}
"""Phase → how high its bar is, so that it is told without colour; in the order of an attempt."""
_WORDS: Final[Mapping[str, str]] = {
    "queue": "in a queue",
    "image": "image",
    "start": "start",
    "run": "run",
    "save": "save",
}


@frozen(kw_only=True)
class PhaseSpan:
    """A stretch of time in one phase; seconds since the epoch, or any common beginning."""

    phase: Phase
    start: float
    end: float


@frozen(kw_only=True)
class TimelineRow:
    """One attempt at a step, or a step that had none."""

    name: str
    state: str
    spans: Sequence[PhaseSpan] = ()
    took: str = ""
    """Beside the bars, in words."""
    address: str = ""
    """Where its name leads; empty for nowhere."""


def timeline(rows: Sequence[TimelineRow], *, begin: float | None = None, end: float | None = None) -> Html:
    """The rows over the time from `begin` to `end`, by default from the first span to the last; empty without spans."""
    spans = [span for row in rows for span in row.spans if math.isfinite(span.start) and math.isfinite(span.end)]
    if not spans:
        return NOTHING
    first = min(span.start for span in spans) if begin is None else begin
    last = max(span.end for span in spans) if end is None else end
    width = max(last - first, 1e-9)
    parts: list[Html] = []
    for row in rows[:MOST_ROWS]:
        words = link(row.address, row.name) if row.address else element("span", None, row.name)
        name = joined([icon(row.state), words])
        parts.append(element("div", {"class": "name", "title": row.name}, name))
        parts.append(_bars(row, first, width))
        parts.append(element("div", {"class": "took"}, row.took))
    parts.append(element("div", {"class": "clock"}, time_axis(width)))
    hidden = len(rows) - MOST_ROWS
    more = element("p", {"class": "muted"}, f"… and {count_text(hidden, 'more row')}") if hidden > 0 else NOTHING
    return joined([element("div", {"class": "timeline"}, *parts), more, _legend(spans)])


def _bars(row: TimelineRow, first: float, width: float) -> Html:
    bars = []
    for span in row.spans:
        left = _WIDTH * min(max((span.start - first) / width, 0.0), 1.0)
        right = _WIDTH * min(max((span.end - first) / width, 0.0), 1.0)
        if not right >= left:
            continue
        height = _HEIGHTS[span.phase]
        words = f"{row.name}: {_WORDS[span.phase]} {time_text(max(0.0, span.end - span.start))}"
        # What was short is seen too.
        bar = {"x": f"{min(left, _WIDTH - 2):.1f}", "y": (_HEIGHT - height) / 2, "width": f"{max(right - left, 2):.1f}"}
        bars.append(
            element(
                "g",
                None,
                element("title", None, words),
                element("rect", {"class": span.phase, **bar, "height": height}),
            )
        )
    words = ", ".join(f"{_WORDS[span.phase]} {time_text(max(0.0, span.end - span.start))}" for span in row.spans)
    picture = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "preserveAspectRatio": "none", "class": tone_of(row.state)}
    return element("svg", {**picture, "role": "img", "aria-label": f"{row.name}: {words or 'did not run'}"}, *bars)


def _legend(spans: Sequence[PhaseSpan]) -> Html:
    phases = {span.phase for span in spans}
    if phases == {"run"}:
        return NOTHING  # there is nothing to tell it from
    items = []
    for phase, height in _HEIGHTS.items():
        if phase in phases:
            bar = {"class": phase, "x": 0, "y": (_HEIGHT - height) / 2, "width": 28, "height": height}
            picture = {"viewBox": f"0 0 28 {_HEIGHT}", "aria-hidden": "true"}
            items.append(element("li", None, element("svg", picture, element("rect", bar)), _WORDS[phase]))
    return element("ul", {"class": "legend"}, *items)
