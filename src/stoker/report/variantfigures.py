"""Many variants of one thing, elements of a fan-out or runs: each metric as one chart with all curves, and a table.

Curves have the colour of what their variant was given: a ramp for numbers, a look for each text. Pure: a page says
which addresses choose another colour, order or filter; without addresses it stands by itself.
"""

from __future__ import annotations

import math
from typing import Callable, Final, Iterator, Mapping, Sequence

from attrs import evolve

from stoker.client.metrics import Metric
from stoker.client.variants import (
    WHICH,
    Choice,
    Plain,
    Variant,
    colourings,
    given_names,
    is_number,
    metric_names,
    metric_value,
)
from stoker.core.values import frozen
from stoker.core.words import count_text, number_text, short, time_text
from stoker.report.design import badge
from stoker.report.markup import NOTHING, Content, Html, element, joined, link
from stoker.report.svg import LOOKS, Drawing, Line, chart

MOST: Final = 200
"""Variants in one chart and one table."""
_TONES: Final = 10
"""Steps of the ramp."""
_WIDE: Final = 100.0
"""The highest of positive values over the lowest from which on a ramp and an axis follow their logarithms."""
_POINTS: Final = 9_000
"""Points of one chart: 200 curves of 45 are 100 kB."""
_COLUMNS: Final = 12
"""Names of what variants were given that a table has, and metrics that it has and that are drawn."""
_MARKS: Final = 8
"""Values that are no numbers which a chart marks."""

Address = Callable[[Choice], str]
"""The address of the page that makes another choice."""


@frozen(kw_only=True)
class View:
    """How variants are shown."""

    choice: Choice = Choice()
    noun: str = "element"
    """What a variant is."""
    title: str = ""
    """What the table has, for those who hear the page."""
    address: Address | None = None
    """None for a page that stands by itself."""
    page_of: Callable[[Variant], str] | None = None
    """The address of a variant's own page."""
    charts: int = _COLUMNS
    rows: int = MOST
    points: int = _POINTS


def variants_part(variants: Sequence[Variant], found: Sequence[Variant], view: View) -> Html:
    """Charts of the variants that are `found`, in the colours that they have among all, and beside them a table.

    The table begins where the choice says; a page with addresses leads to what comes behind its end.
    """
    shown = found[view.choice.start :][: view.rows]
    left = len(found) - len(shown) if view.address is None else 0
    more = element("p", {"class": "muted"}, f"… and {count_text(left, f'more {view.noun}')}") if left else NOTHING
    table = element("div", None, _table(variants, shown, view), more)
    return element("div", {"class": "variants"}, variant_charts(variants, found, view), table)


def elements_part(variants: Sequence[Variant], view: View) -> Html:
    """The elements of a fan-out on a page that stands by itself: in the table those first that failed."""
    return variants_part(variants, sorted(variants, key=lambda one: one.status != "failed"), view)


def variant_charts(variants: Sequence[Variant], found: Sequence[Variant], view: View) -> Html:
    """A chart for each metric, with what the colours say; empty where nothing was logged.

    Of more than `MOST` variants those at equal distances are drawn.
    """
    names = metric_names(variants)
    if not names:
        return NOTHING
    known, by = colourings(variants), view.choice.by
    if by not in known:
        by = "" if by == view.noun or not known else known[0]
    looks, legend = _colours(variants, by)
    numbers = _numbers([by, *known] if by else known, variants)
    number = min(MOST, len(found))
    some = [found[place * len(found) // number] for place in range(number)]
    drawn = [_chart(name, variants, some, looks, numbers, view) for name in names[: view.charts] if number]
    remarks = [f"{number:,} of {len(found):,} are drawn"] if number < len(found) else []
    if len(names) > view.charts:
        remarks.append(f"{count_text(len(names) - view.charts, 'more metric')} in no chart")
    return element(
        "div",
        {"class": "charts"},
        _colour_links([*known, view.noun], by or view.noun, view),
        legend,
        element("div", {"class": "grid"}, *drawn),
        element("p", {"class": "muted"}, "; ".join(remarks)) if remarks else NOTHING,
    )


# Colours


@frozen
class _Ramp:
    """Numbers from the lowest to the highest as shares of the way between them."""

    low: float
    high: float

    @property
    def wide(self) -> bool:
        """Whether the numbers lie so far apart that their logarithms are meant."""
        return self.low > 0 and self.high / self.low >= _WIDE

    def share(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.wide else (self.low, self.high)
        place = math.log(value) if self.wide else value
        return (place / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)


def _colours(variants: Sequence[Variant], by: str) -> tuple[Mapping[int, str], Html]:
    """The look of each variant, by its index, for what it was given under a name or its place; and a legend."""
    values: dict[int, Plain] = {
        one.index: one.given[by] if by else one.index for one in variants if not by or by in one.given
    }
    missing = dict.fromkeys((one.index for one in variants), f"line-{LOOKS - 1}")
    if values and all(map(is_number, values.values())):
        numbers = {index: float(value) for index, value in values.items()}
        ramp = _Ramp(min(numbers.values()), max(numbers.values()))
        looks = {index: f"tone-{round(_TONES * ramp.share(number))}" for index, number in numbers.items()}
        rects = [
            element("rect", {"class": f"tone-{tone}", "x": 10 * tone, "width": 10, "height": 10})
            for tone in range(_TONES + 1)
        ]
        ends = [number_text(number) for number in (ramp.low, ramp.high)]
        picture = element("svg", {"viewBox": f"0 0 {10 * _TONES + 10} 10", "aria-hidden": "true"}, *rects)
        scale = element("span", {"class": "ramp"}, ends[0], picture, ends[1])
        legend = [element("li", None, scale)] if by else []
    else:
        texts = sorted(dict.fromkeys(map(given_text, values.values())))
        places = {text: f"line-{min(place, LOOKS - 1)}" for place, text in enumerate(texts)}
        looks = {index: places[given_text(value)] for index, value in values.items()}
        legend = [_entry(look, text) for text, look in places.items() if look != f"line-{LOOKS - 1}"]
        others = len(texts) - len(legend)
        legend += [_entry(f"line-{LOOKS - 1}", f"{others:,} others")] if others > 0 else []
    if len(looks) < len(missing):
        legend.append(_entry(f"line-{LOOKS - 1}", "not given"))
    shown = element("ul", {"class": "legend"}, *legend) if legend else NOTHING
    return {**missing, **looks}, shown


def _entry(look: str, words: str) -> Html:
    sample = element("path", {"class": f"curve {look}", "d": "M0 6H28"})
    picture = element("svg", {"viewBox": "0 0 28 12", "aria-hidden": "true"}, sample)
    return element("li", None, picture, short(words, 60))


def _colour_links(names: Sequence[str], chosen: str, view: View) -> Html:
    """What the curves are coloured by, and links to the other names."""
    if view.address is None or len(names) < 2:
        return element("p", {"class": "small muted"}, f"coloured by {chosen}")
    links = [
        element("strong", None, name)
        if name == chosen
        else _choosing(view.address(evolve(view.choice, by=name)), f"by-{place}", name)
        for place, name in enumerate(names)
    ]
    return element("p", {"class": "small colouring"}, "coloured by ", joined(links, " · "))


def _choosing(address: str, anchor: str, *words: Content) -> Html:
    """A link that makes another choice, in place where there are scripts."""
    return element("a", {"href": address, "hx-get": address, "id": anchor}, *words)


# Charts


def _numbers(names: Sequence[str], variants: Sequence[Variant]) -> str:
    """The first name under which all were given numbers, over which single values are drawn; empty without one."""
    return next((name for name in names if all(is_number(one.given.get(name, 0)) for one in variants)), "")


def _chart(
    name: str,
    variants: Sequence[Variant],
    shown: Sequence[Variant],
    looks: Mapping[int, str],
    numbers: str,
    view: View,
) -> Html:
    """All curves of a metric; where each has one value, the values over the numbers that were given."""
    logged = [(one, one.metrics[name]) for one in shown if name in one.metrics]
    single = _is_single(name, variants)
    over = numbers if single else ""
    places: dict[int, float] = {one.index: float(one.given.get(over, "nan") if over else one.index) for one in variants}
    known = [place for place in places.values() if math.isfinite(place)]
    lines = [
        Line(
            places=[places[one.index]] if single else metric.curve[0],
            values=metric.curve[1],
            name=one.key,
            look=looks[one.index],
        )
        for one, metric in logged
        if math.isfinite(places[one.index])
    ]
    drawing = Drawing(
        words=number_text,
        axis=number_text if single else "step {:,.6g}".format,
        low=None,
        begin=None,
        filled=False,
        smooth=len(lines) == 1,
        breaks=False,
        named=False,
        wide=bool(over and known) and _Ramp(min(known), max(known)).wide,
        marks=[] if single else list(_marks(logged)),
        columns=max(8, view.points // max(1, len(lines)) // 3),
    )
    return chart(lines, label=name, drawing=drawing, remark=f"over {over or view.noun}" if single else "")


def _is_single(name: str, variants: Sequence[Variant]) -> bool:
    """Whether no variant logged a metric more than once."""
    return all(one.metrics[name].count == 1 for one in variants if name in one.metrics)


def _marks(logged: Sequence[tuple[Variant, Metric]]) -> Iterator[tuple[float, str]]:
    odd = [(one, metric.odd) for one, metric in logged if metric.odd is not None]
    for one, point in odd[:_MARKS]:
        yield point.step, f"{one.key}: {point.value} at step {point.step:g}"


# The table


def given_text(value: Plain) -> str:
    """What a variant was given, in words."""
    return number_text(value) if is_number(value) and isinstance(value, float) else str(value)


def _table(variants: Sequence[Variant], shown: Sequence[Variant], view: View) -> Html:
    if not shown:
        return element("p", {"class": "empty"}, f"No {view.noun} is like that.")
    given, metrics = given_names(variants)[:_COLUMNS], metric_names(variants)[:_COLUMNS]
    values = [(name, which) for name in metrics for which in (("",) if _is_single(name, variants) else WHICH)]
    took = ["took"] if any(one.seconds is not None for one in shown) else []
    reasons = any(one.reason for one in shown)
    logged = [f"{name} {which}".rstrip() for name, which in values]
    heads = [view.noun, "status", *took, *given, *logged]
    numeric = {name for name in given if all(is_number(one.given.get(name, 0)) for one in variants)}.union(took, logged)
    head = [_head(name, place, number=name in numeric, view=view) for place, name in enumerate(heads)]

    def row(one: Variant) -> Html:
        cells: list[Content] = [
            link(view.page_of(one), one.key) if view.page_of is not None else one.key,
            badge(one.status),
            *(time_text(one.seconds) if one.seconds is not None else "" for _ in took),
            *(short(given_text(one.given[name]), 60) if name in one.given else "" for name in given),
            *(_words(metric_value(one, name, which or "last")) for name, which in values),
        ]
        tags = (element("td", _NUMBER if name in numeric else None, cell) for name, cell in zip(heads, cells))
        return element("tr", {"data-name": one.key}, *tags, element("td", None, one.reason) if reasons else NOTHING)

    cause = element("th", {"scope": "col"}, "cause") if reasons else NOTHING
    table = element(
        "table",
        {"class": "rows"},
        element("caption", {"class": "hidden"}, view.title),
        element("thead", None, element("tr", None, *head, cause)),
        element("tbody", None, *map(row, shown)),
    )
    return element("div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": view.title}, table)


_NUMBER: Final = {"class": "number"}


def _head(name: str, place: int, *, number: bool, view: View) -> Html:
    """The head of a column; a link that sorts by it, or turns the order round."""
    order = {name: "ascending", f"-{name}": "descending"}.get(view.choice.sort)
    words: Content = name
    if view.address is not None:
        sign = {"ascending": " ▲", "descending": " ▼"}.get(order or "", "")
        other = evolve(view.choice, sort=f"-{name}" if order == "ascending" else name, start=0)
        words = _choosing(view.address(other), f"sort-{place}", name, element("span", {"aria-hidden": "true"}, sign))
    return element("th", {"scope": "col", "class": "number" if number else None, "aria-sort": order}, words)


def _words(value: float | None) -> str:
    return "" if value is None else number_text(value)
