"""What a sweep found, as HTML: its best trial, how much each parameter matters, and all trials in parallel coordinates.

A trial is a line across the axes of its parameters to that of the metric; one that has no metric ends before it.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Final, Mapping

from stoker.client.sweeps import SweepRecord
from stoker.client.variants import is_number
from stoker.core.sweep import Plain
from stoker.core.values import frozen
from stoker.core.words import count_text, number_text, short
from stoker.report.markup import NOTHING, Html, element, facts, joined, link, table
from stoker.report.svg import HEIGHT, WIDTH, words_below

_TONES: Final = 10
"""Steps of the ramp, from the worst trial to the best."""
_MOST: Final = 12
"""Parameters that have an axis."""
_WIDE: Final = 100.0
"""The highest of positive values over the lowest from which on an axis follows their logarithms."""
_LONGEST: Final = 14
"""Characters below an axis."""


@frozen
class _Axis:
    """The values of one parameter, or of the metric, from the bottom to the top."""

    name: str
    low: str
    high: str
    places: Mapping[str, float]
    """Trial → where its value is, from 0 at the bottom to 1."""


def sweep_facts(sweep: SweepRecord, page_of: Callable[[str], str] | None = None) -> Html:
    """The best trial so far, and the importance of each parameter; `page_of` gives the address of a trial's page."""
    best = sweep.best
    if best is None:
        return element("p", {"class": "muted"}, "No trial has succeeded yet.")
    named = link(page_of(best.key), best.key) if page_of is not None else best.key
    words: dict[str, Any] = {
        "best trial": named,
        f"{sweep.metric}, to {sweep.goal}": number_text(_number(best.value)),
        **{name: plain_text(value) for name, value in best.params.items()},
        "method": sweep.method,
    }
    return joined([facts(words), _importance(sweep)])


def _importance(sweep: SweepRecord) -> Html:
    shares = sweep.importance()
    if not any(shares.values()):
        return NOTHING
    rows = [(name, f"{share:.0%}", _bar(share)) for name, share in shares.items()]
    caption = f"share of the variance of {sweep.metric} that a parameter explains by itself, estimated"
    return joined(
        [
            element("p", {"class": "muted small"}, f"{caption}:"),
            table(("parameter", "explains", ""), rows, right={1}, caption=caption),
        ]
    )


def _bar(share: float) -> Html:
    bar = element("rect", {"x": 0, "y": 2, "width": f"{100 * share:.1f}", "height": 8, "class": "tone-10"})
    return element("svg", {"class": "share", "viewBox": "0 0 100 12", "aria-hidden": "true"}, bar)


def parallel_chart(sweep: SweepRecord, shown: Collection[str]) -> Html:
    """The trials whose keys are shown, each a line across all axes, the better the darker; empty without trials."""
    trials = [one for one in sweep.trials if one.key in shown]
    if not trials:
        return NOTHING
    axes = [_axis(name, {one.key: one.params[name] for one in trials}) for name in sweep.names[:_MOST]]
    axes.append(_axis(sweep.metric, {one.key: one.value for one in trials if one.value is not None}))
    distance = WIDTH / (len(axes) - 1)
    looks = _looks(sweep)
    best = sweep.best
    parts = [
        element(
            "line",
            {"class": "tick", "x1": f"{distance * place:.1f}", "x2": f"{distance * place:.1f}", "y1": 0, "y2": HEIGHT},
        )
        for place in range(len(axes))
    ]
    for one in sorted(trials, key=lambda trial: trial is best):  # the best lies over the others
        corners = [
            f"{distance * place:.1f} {HEIGHT * (1 - axis.places[one.key]):.1f}"
            for place, axis in enumerate(axes)
            if one.key in axis.places
        ]
        look = f"curve {looks.get(one.key, 'line-7 raw')}" + (" best" if one is best else "")
        parts.append(element("path", {"class": look, "d": "M" + "L".join(corners), "data-name": one.key}))
    of = count_text(len(trials), "trial")
    label = f"parallel coordinates of {of}: {', '.join(axis.name for axis in axes)}"
    if best is not None and best.key in shown:
        label += f"; the best is {best.key}"
    picture = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "preserveAspectRatio": "none", "role": "img", "aria-label": label}
    ends = [100 * place / (len(axes) - 1) for place in range(len(axes))]
    rows = [[axis.high for axis in axes], [axis.low for axis in axes], [axis.name for axis in axes]]
    above, *below = (words_below(list(zip(ends, (short(word, _LONGEST) for word in row)))) for row in rows)
    remark = f"{of}, the better the darker"
    return element(
        "figure",
        {"class": "chart parallel"},
        element("figcaption", None, "all parameters", element("small", None, remark)),
        above,
        element("svg", picture, *parts),
        *below,
    )


def plain_text(value: Plain) -> str:
    """A parameter in words."""
    return number_text(value) if isinstance(value, float) else str(value)


def _looks(sweep: SweepRecord) -> dict[str, str]:
    """Trial → its tone by its place among all, from the worst to the best."""
    known = [one for one in sweep.trials if one.value is not None]
    known.sort(key=lambda one: _number(one.value), reverse=sweep.goal == "minimize")
    last = max(1, len(known) - 1)
    return {one.key: f"tone-{round(_TONES * place / last)}" for place, one in enumerate(known)}


def _axis(name: str, values: Mapping[str, Plain]) -> _Axis:
    numbers = {key: float(value) for key, value in values.items() if is_number(value)}
    if values and len(numbers) == len(values):
        low, high = min(numbers.values()), max(numbers.values())
        wide = low > 0 and high / low >= _WIDE
        scale: Callable[[float], float] = math.log if wide else float
        span = scale(high) - scale(low)
        places = {key: (scale(one) - scale(low)) / span if span else 0.5 for key, one in numbers.items()}
        return _Axis(name, number_text(low), number_text(high), places)
    words = list(dict.fromkeys(sorted(map(str, values.values()))))
    last = max(1, len(words) - 1)
    places = {key: words.index(str(value)) / last if len(words) > 1 else 0.5 for key, value in values.items()}
    return _Axis(name, words[0] if words else "", words[-1] if words else "", places)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
