"""What a step logged, its receipt, and many variants of one thing, as HTML: charts, tables and facts. Pure.

A metric has a chart with a line for each rank. A receipt's charts have a line for each device, from the beginning of
the lease to its end; stretches in which every device was idle for long are marked, and so is the time of the lease in
which the step's own code did not run. Variants, elements of a fan-out or runs, have one chart for each metric, with all
curves in the colour of what their variant was given: a ramp for numbers, a look for each text. A page says which
addresses choose another colour, order or filter.

Of a sweep: its best trial, how much each parameter matters, and all trials in parallel coordinates. A trial is a line
across the axes of its parameters to that of the metric; one that has no metric ends before it.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, Callable, Collection, Final, Iterator, Mapping, Sequence

import attrs
from attrs import evolve

from stoker.client.metrics import Metric, Metrics, Usage
from stoker.client.variants import (
    WHICH,
    Choice,
    Plain,
    SweepRecord,
    Variant,
    colourings,
    given_names,
    is_number,
    metric_names,
    metric_value,
)
from stoker.core import receipt as words
from stoker.core.receipt import Receipt, Track, Use
from stoker.core.values import frozen
from stoker.core.words import count_text, memory_text, number_text, short, time_text
from stoker.report.markup import NOTHING, Content, Html, badge, element, facts, joined, link, notice, table
from stoker.report.receipts import DEVICE_ROWS, receipt_facts, round_maximum, scale_end
from stoker.report.svg import COLUMNS, HEIGHT, LOOKS, WIDTH, Band, Drawing, Line, chart, spark, words_below

MOST_CHARTS: Final = 12
"""Metrics of a step that are drawn; the table has all."""
MOST_ROWS: Final = 200
_FACT: Final = 300
"""Characters of a fact."""


def metrics_part(metrics: Metrics, *, columns: int = COLUMNS, most: int = MOST_CHARTS) -> Html:
    """Charts, a table and facts; empty for a step that logged nothing."""
    drawn = [metric_chart(metric, columns=columns) for metric in [*metrics.values()][:most] if metric.count > 1]
    left = len(metrics) - MOST_ROWS
    remarks = [
        f"… and {count_text(left, 'more metric')}" if left > 0 else "",
        f"{metrics.left_out:,} values are not kept: it logged under too many names" if metrics.left_out else "",
    ]
    return joined(
        [
            facts({name: fact_text(fact) for name, fact in metrics.facts.items()}),
            element("div", {"class": "grid"}, *drawn) if drawn else NOTHING,
            metric_table([*metrics.values()][:MOST_ROWS]),
            *(element("p", {"class": "muted"}, remark) for remark in remarks if remark),
        ]
    )


def metric_chart(metric: Metric, *, columns: int = COLUMNS) -> Html:
    """The curve of a metric over the steps of its training, with a line for each rank, up to `LINES`."""
    ranks = [metric.rank(number) for number in metric.ranks[:LINES]]
    lines = []
    marks = []
    for one in ranks:
        points = one.points
        # Of a program that came back to an earlier step, such as one that began anew, the curve goes back as well.
        lines.append(
            Line(
                places=[point.step for point in points],
                values=[point.value for point in points],
                name=f"rank {one.number}",
            )
        )
        if one.odd is not None:
            marks.append((one.odd.step, f"{one.odd.value} at step {one.odd.step:g}"))
    hidden = len(metric.ranks) - len(ranks)
    remark = f"last {number_text(metric.last)}" + (f", {count_text(hidden, 'more rank')}" if hidden else "")
    return chart(lines, label=metric.name, drawing=_drawing(columns, marks), remark=remark)


def metric_table(metrics: list[Metric]) -> Html:
    """A row for each metric: its last, lowest and highest value, how many it has, a small curve."""
    rows = [
        (
            metric.name,
            number_text(metric.last),
            number_text(metric.low.value) if metric.low is not None else "",
            number_text(metric.high.value) if metric.high is not None else "",
            f"{metric.count:,}",
            f"{metric.odd.value} at step {metric.odd.step:g}" if metric.odd is not None else "",
            spark([point.value for point in metric.points], label=f"curve of {metric.name}"),
        )
        for metric in metrics
    ]
    headers = ("metric", "last", "lowest", "highest", "values", "not finite", "")
    return table(headers, rows, right={1, 2, 3, 4}, caption="metrics")


def comparison(metrics: Mapping[str, Metrics], name: str, *, label: str = "", columns: int = COLUMNS) -> Html:
    """One metric of several runs or steps in one chart, by their titles; empty where none logged it."""
    found = list(_found(metrics, name))
    if not found:
        return NOTHING
    lines = [
        Line(
            places=[point.step for point in metric.points], values=[point.value for point in metric.points], name=title
        )
        for title, metric in found[:LINES]
    ]
    return chart(lines, label=label or name, drawing=_drawing(columns))


def _drawing(columns: int, marks: Sequence[tuple[float, str]] = ()) -> Drawing:
    """How values over steps are drawn: a curve that need not begin at zero."""
    return Drawing(
        words=number_text,
        axis="step {:,.6g}".format,
        low=None,
        begin=None,
        filled=False,
        smooth=True,
        breaks=False,
        marks=marks,
        columns=columns,
    )


def _found(metrics: Mapping[str, Metrics], name: str) -> Iterator[tuple[str, Metric]]:
    for title, logged in metrics.items():
        if name in logged:
            yield title, logged[name]


def fact_text(fact: Any) -> str:
    """A fact in one line."""
    text = fact if isinstance(fact, str) else f"{fact:,}" if type(fact) is int else json.dumps(fact, ensure_ascii=False)
    return text if len(text) <= _FACT else f"{text[: _FACT - 1]}…"


LINES: Final = LOOKS
"""Devices, ranks or metrics in one chart: each has a look of its own."""
_IDLE: Final = 0.5
"""Percent of utilisation up to which a device is idle: drivers tell whole percents."""
_SHORTEST_IDLE: Final = 0.03
"""Share of the whole time from which on an idle stretch is marked: shorter ones are too narrow to be seen."""


@attrs.frozen
class Quantity:
    """A track that is drawn."""

    name: str
    """The name of the track."""
    title: str
    words: Callable[[float], str]
    """A value in words, with its unit."""


OF_DEVICES: Final = (
    Quantity("utilization", "utilisation", "{:.0f} %".format),
    Quantity("memory", "memory", memory_text),
    Quantity("power", "power", "{:.0f} W".format),
    Quantity("temperature", "temperature", "{:.0f} °C".format),
    Quantity("clock", "clock", "{:.0f} MHz".format),
    Quantity("pcie_received", "PCIe in", words.rate_text),
    Quantity("pcie_sent", "PCIe out", words.rate_text),
)
OF_PROCESSES: Final = (
    Quantity("cpus", "cores in use", words.cores_text),
    Quantity("memory", "host memory", memory_text),
)


def receipt_part(
    receipt: Receipt,
    tracks: Sequence[Track],
    *,
    running: bool = False,
    usage: Usage | None = None,
    span: tuple[float | None, float | None] = (None, None),
    columns: int = COLUMNS,
) -> Html:
    """Everything that a receipt says, with charts of its tracks; with `running`, a missing end is expected.

    `usage` has the host memory and the waiting of each rank, of a step with a launcher. `span` is when the step's
    own code began and ended, in seconds since the epoch; the lease may begin earlier and end later.
    """
    known: dict[str, list[str]] = {}
    name = ""
    for label, text in receipt_facts(receipt, running=running):
        name = label or name
        known.setdefault(name, []).append(text)
    shown = {
        label: joined(texts, "; ") for label, texts in known.items() if label not in ("verdict", "advice", "evidence")
    }
    so_far = " so far" if running else ""
    reasons = [element("p", None, sentence) for sentence in receipt.evidence]
    advice = [notice("warn", element("p", None, sentence)) for sentence in receipt.advice]
    return joined(
        [
            element("p", None, badge(receipt.verdict, f"{receipt.verdict}{so_far}")),
            *reasons,
            *advice,
            facts(shown),
            device_table(receipt.devices),
            element("div", {"class": "grid"}, *receipt_charts(receipt, tracks, span=span, columns=columns)),
            rank_table(usage or Usage()),
        ]
    )


def device_table(uses: Sequence[Use]) -> Html:
    """A row for each device with every number that is known of it."""
    headers = [name.strip() for name, _ in DEVICE_ROWS]
    # Indented names belong to the one above: "memory", "  peak".
    group = ""
    for place, (name, _) in enumerate(DEVICE_ROWS):
        if name.startswith(" "):
            headers[place] = f"{group} {name.strip()}".strip()
        else:
            group = name
    rows = [[cell(use) for _, cell in DEVICE_ROWS] for use in uses]
    numbers = [place for place, name in enumerate(headers) if name not in ("", "model", "held back", "uuid")]
    return table(headers, rows, right=numbers, caption="devices")


def rank_table(usage: Usage) -> Html:
    """The most host memory that each rank held, and the share of its time in collective operations."""
    rows = [
        [str(rank), memory_text(peak), f"{usage.rank_waits[rank]:.0%}" if rank in usage.rank_waits else ""]
        for rank, peak in sorted(usage.rank_peaks.items())
    ]
    caption = usage.imbalance_text or "ranks"
    return table(["rank", "host memory peak", "in collectives"], rows, right={0, 1, 2}, caption=caption)


def receipt_charts(
    receipt: Receipt,
    tracks: Sequence[Track],
    *,
    span: tuple[float | None, float | None] = (None, None),
    columns: int = COLUMNS,
) -> Iterator[Html]:
    """A chart for each quantity of the devices, then for those of the processes; none without measurements."""
    by_name = {(track.uuid, track.name): track for track in tracks if any(map(_is_known, track.values))}
    times = [time for track in by_name.values() for time in track.times if math.isfinite(time)]
    end = max([receipt.seconds, *times])
    around = _around(receipt, span, end)
    bands = [*around, *_between(idle_stretches(receipt, tracks, end=end), around, end)]
    for quantity in OF_DEVICES:
        drawn = [
            (use, by_name[use.uuid, quantity.name]) for use in receipt.devices if (use.uuid, quantity.name) in by_name
        ]
        # Devices of one receipt share their scales, so that they can be compared.
        same_quantity = [track for _, track in drawn]
        for first in range(0, len(drawn), LINES):
            some = drawn[first : first + LINES]
            high = max(scale_end(quantity.name, use, same_quantity) for use, _ in some)
            yield _chart(
                some, quantity, Drawing(words=quantity.words, high=high, end=end, bands=bands, columns=columns)
            )
    for quantity in OF_PROCESSES:
        track = by_name.get(("", quantity.name))
        if track is not None:
            drawing = Drawing(
                words=quantity.words,
                high=round_maximum([track]),
                end=end,
                bands=around,
                columns=columns,
            )
            yield _chart([(None, track)], quantity, drawing)


def _chart(drawn: Sequence[tuple[Use | None, Track]], quantity: Quantity, drawing: Drawing) -> Html:
    values = [value for _, track in drawn for value in (track.peak, *track.values) if _is_known(value)]
    names = [words.device_name(use) for use, _ in drawn if use is not None]
    title = f"{quantity.title} of {names[0]}" if len(names) == 1 else quantity.title
    memories = {use.memory for use, _ in drawn if use is not None and use.memory}
    if quantity.name == "memory" and len(memories) == 1:
        drawing = attrs.evolve(drawing, limit=float(next(iter(memories))), limit_name="memory of the device")
    lines = [
        Line(places=track.times, values=track.values, name=words.device_name(use) if use is not None else "")
        for use, track in drawn
    ]
    peak = max(value for value in values if value is not None)
    return chart(lines, label=title, drawing=drawing, remark=f"peak {quantity.words(peak)}")


def _around(receipt: Receipt, span: tuple[float | None, float | None], end: float) -> list[Band]:
    """The stretches of the lease before the step's own code began and after it ended."""
    if not receipt.started:
        return []
    began, ended = (None if moment is None else moment - receipt.started for moment in span)
    bands = []
    if began is not None and began > 0:
        bands.append(Band(start=0.0, end=min(began, end), kind="outside"))
    if ended is not None and 0 < ended < end:
        bands.append(Band(start=ended, end=end, kind="outside"))
    return bands


def _between(idle: Sequence[Band], around: Sequence[Band], end: float) -> Iterator[Band]:
    """The parts of idle stretches in which the step's own code ran, as far as they can be seen."""
    first = max((band.end for band in around if band.start == 0.0), default=0.0)
    last = min((band.start for band in around if band.start > 0.0), default=end)
    for band in idle:
        start, over = max(band.start, first), min(band.end, last)
        if over - start >= _SHORTEST_IDLE * end:
            yield attrs.evolve(band, start=start, end=over)


def idle_stretches(receipt: Receipt, tracks: Sequence[Track], *, end: float) -> list[Band]:
    """The stretches in which no device of the receipt computed, as far as they are long enough to be seen.

    A moment in which one of them was not measured is none of them.
    """
    uuids = {use.uuid for use in receipt.devices}
    measured = [track for track in tracks if track.uuid in uuids and track.name == "utilization" and track.times]
    if not measured or len(measured) < len(uuids):
        return []
    busy: dict[float, bool] = {}
    for track in measured:
        for time, value in zip(track.times, track.values):
            busy[time] = busy.get(time, False) or not _is_known(value) or float(value or 0.0) > _IDLE
    moments = sorted(busy)
    bands: list[Band] = []
    for is_busy, group in itertools.groupby(moments, key=busy.__getitem__):
        stretch = list(group)
        if not is_busy and stretch[-1] - stretch[0] >= _SHORTEST_IDLE * end > 0:
            bands.append(Band(start=stretch[0], end=stretch[-1], kind="idle"))
    return bands


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


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
    sweep: SweepRecord | None = None
    """The sweep whose trials the variants are."""
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
    drawn = [_variant_chart(name, variants, some, looks, numbers, view) for name in names[: view.charts] if number]
    together = NOTHING if view.sweep is None else parallel_chart(view.sweep, {one.key for one in some})
    remarks = [f"{number:,} of {len(found):,} are drawn"] if number < len(found) else []
    if len(names) > view.charts:
        remarks.append(f"{count_text(len(names) - view.charts, 'more metric')} in no chart")
    return element(
        "div",
        {"class": "charts"},
        _colour_links([*known, view.noun], by or view.noun, view),
        legend,
        together,
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


def _variant_chart(
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
    best = view.sweep.best if view.sweep is not None else None
    numeric = {name for name in given if all(is_number(one.given.get(name, 0)) for one in variants)}.union(took, logged)
    head = [_head(name, place, number=name in numeric, view=view) for place, name in enumerate(heads)]

    def mark(one: Variant) -> Html:
        return element("strong", None, "\u00a0best") if best is not None and best.key == one.key else NOTHING

    def row(one: Variant) -> Html:
        cells: list[Content] = [
            joined([link(view.page_of(one), one.key) if view.page_of is not None else one.key, mark(one)]),
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


_MOST: Final = 12
"""Parameters that have an axis."""
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


def plain_text(value: Plain | None) -> str:
    """A parameter in words."""
    return number_text(value) if isinstance(value, float) else str(value)


def _looks(sweep: SweepRecord) -> dict[str, str]:
    """Trial → its tone by its place among all, from the worst to the best."""
    known = [one for one in sweep.trials if one.value is not None]
    known.sort(key=lambda one: _number(one.value), reverse=sweep.goal == "minimize")
    last = max(1, len(known) - 1)
    return {one.key: f"tone-{round(_TONES * place / last)}" for place, one in enumerate(known)}


def _axis(name: str, values: Mapping[str, Plain | None]) -> _Axis:
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
