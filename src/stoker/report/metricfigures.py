"""What a step logged of itself as HTML: a chart for each metric with a line for each rank, a table, and facts. Pure."""

from __future__ import annotations

import json
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.client.metrics import Metric, Metrics
from stoker.core.words import count_text, number_text
from stoker.report.markup import NOTHING, Html, element, facts, joined, table
from stoker.report.svg import COLUMNS, LOOKS, Drawing, Line, chart, spark

MOST_CHARTS: Final = 12
"""Metrics of a step that are drawn; the table has all."""
MOST_ROWS: Final = 200
LINES: Final = LOOKS
"""Ranks in one chart: each has a look of its own."""
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
