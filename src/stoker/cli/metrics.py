"""`stoker metrics RUN [STEP]`: what steps logged of themselves with `log_metrics` and `log_metadata`."""

from __future__ import annotations

import csv
import io
import json
import sys
from typing import Any, Final, Iterator, Mapping, Sequence

import click

from stoker.cli.output import json_option, line_width, print_json, run_argument, stack_option, table
from stoker.client import Client, Run
from stoker.client.metrics import Metric, Metrics, last_metrics
from stoker.client.variants import Plain, given_to
from stoker.core.errors import UsageError
from stoker.core.words import number_text, short
from stoker.report.charts import glyphs_for, sparkline
from stoker.report.figures import given_text
from stoker.report.streams import echo, write

_WIDTH: Final = 24
"""Characters of a curve at most."""
_LEAST_WIDTH: Final = 8
"""Characters of a curve where there is little room."""
_GIVEN: Final = 60
"""Characters of what an element was given."""
_FACT: Final = 100
"""Characters of a fact."""


@click.command("metrics")
@run_argument
@click.argument("step", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Of a distributed step: this rank's.")
@click.option("--against", metavar="RUN", help="Beside them the last values of another run, by step and name.")
@click.option("--csv", "as_csv", is_flag=True, help="Every point that is kept, as CSV.")
@stack_option
@json_option
def command(
    *, run_id: str, step: str | None, rank: int | None, against: str | None, as_csv: bool, client: Client, as_json: bool
) -> None:
    """Show what steps logged of themselves; of a run that goes on, what they logged until now.

    STEP is a step's key, such as train, or that of a fan-out's element, such as "train[3]". Of a fan-out it shows all
    elements with what each was given. Without it: all steps.
    """
    if as_csv and (as_json or against):
        raise UsageError("--csv prints points, and neither JSON nor another run", fix="leave one of the options out")
    run = client.run(run_id)
    logged = logged_by(run, step)
    given = _given(run, step)
    if as_csv:
        write(_csv(logged, rank), sys.stdout)
        return
    other = logged_by(client.run(against), step) if against else {}
    if as_json:
        print_json(_document(logged, rank, other, given))
        return
    found = list(_rows(logged, rank, other if against else None, given))
    heads = (
        "step",
        "given" if any(given.values()) else "",
        "metric",
        "last",
        "there" if against else "",
        "lowest",
        "highest",
        "values",
        "",
    )
    rows = with_curves(heads, [row for row, _ in found], [metric for _, metric in found])
    if rows:
        echo(table(heads, rows, right=("last", "there", "lowest", "highest", "values")))
    facts = [(key, name, fact_text(fact)) for key, one in logged.items() for name, fact in one.facts.items()]
    if facts:
        echo(("\n" if rows else "") + table(("step", "fact", ""), facts))
    for key, one in logged.items():
        if one.left_out:
            echo(f"{key}: {one.left_out:,} values are not kept: it logged under too many names")
    if not rows and not facts:
        echo(
            f"no step of run {run.id} logged anything: call stoker.log_metrics in a step"
            if step is None
            else f"'{step}' logged nothing: call stoker.log_metrics in it"
        )


def logged_by(run: Run, step: str | None = None) -> dict[str, Metrics]:
    """What the steps and elements of a run logged, or one of them, by key; without those that logged nothing, but for
    the elements of a fan-out in which any did."""
    if step is None:
        return run.metrics
    one = run.steps[step]
    if one.count is not None:
        logged = last_metrics(run.store.records, run.id, parent=step)
        return {element.key: logged.get(element.key, Metrics.none()) for element in one} if logged else {}
    metrics = one.metrics
    return {step: metrics} if metrics or metrics.facts else {}


def _given(run: Run, step: str | None) -> Mapping[str, Mapping[str, Plain]]:
    """What each element of a fan-out was given, by key; empty where no fan-out is named."""
    one = run.steps[step] if step is not None else None
    if one is None or one.count is None:
        return {}
    return {element.key: given for element, given in zip(one, given_to(run.store, one))}


def fact_text(fact: Any) -> str:
    """A fact in one line."""
    return short(fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False), _FACT)


def metric_row(metric: Metric) -> tuple[str, str, str, str]:
    """A metric in words: its last value, its lowest, its highest, and how many it has."""
    low, high = metric.low, metric.high
    return (
        number_text(metric.last),
        number_text(low.value) if low is not None else "",
        number_text(high.value) if high is not None else "",
        f"{metric.count:,}",
    )


def with_curves(
    headers: Sequence[str], rows: Sequence[tuple[str, ...]], metrics: Sequence[Metric | None], *, indent: str = ""
) -> list[tuple[str, ...]]:
    """The rows of metrics with their curves at the end, as long as the lines have room for them."""
    longest = (max(map(len, column)) for column in zip(headers, *rows))
    room = line_width() - len(indent) - sum(length + 2 for length in longest)
    columns = max(_LEAST_WIDTH, min(_WIDTH, room))
    return [(*row, "" if one is None else _curve(one, columns)) for row, one in zip(rows, metrics)]


def _curve(metric: Metric, columns: int) -> str:
    curve = sparkline([point.value for point in metric.points], columns, glyphs_for(sys.stdout.encoding))
    return curve if metric.odd is None else f"{curve}  {metric.odd.value} at step {metric.odd.step:g}"


def _chosen(metrics: Metrics, rank: int | None) -> Iterator[Metric]:
    for metric in metrics.values():
        if rank is None or rank in metric.ranks:
            yield metric if rank is None else metric.rank(rank)


def _rows(
    logged: Mapping[str, Metrics],
    rank: int | None,
    other: Mapping[str, Metrics] | None,
    given: Mapping[str, Mapping[str, Plain]],
) -> Iterator[tuple[tuple[str, ...], Metric | None]]:
    for key, metrics in logged.items():
        words = short(" ".join(f"{name}={given_text(value)}" for name, value in given.get(key, {}).items()), _GIVEN)
        if key in given and not metrics:
            yield (key, words, *[""] * 6), None
        for metric in _chosen(metrics, rank):
            last, *more = metric_row(metric)
            there = "" if other is None else _there(metric, other.get(key))
            yield (key, words, metric.name, last, there, *more), metric
    for key, metrics in (other or {}).items():
        for name in metrics:
            if key not in logged or name not in logged[key]:
                yield (key, "", name, "", number_text(metrics[name].last), "", "", ""), None


def _there(metric: Metric, metrics: Metrics | None) -> str:
    if metrics is None or metric.name not in metrics:
        return ""
    last = metrics[metric.name].last
    change = metric.last - last
    return f"{number_text(last)} ({change:+.3g})" if change else number_text(last)


def _document(
    logged: Mapping[str, Metrics],
    rank: int | None,
    other: Mapping[str, Metrics],
    given: Mapping[str, Mapping[str, Plain]],
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key in {**logged, **other}:
        here, there = logged.get(key), other.get(key)
        metrics = {} if here is None else {metric.name: metric.as_dict() for metric in _chosen(here, rank)}
        document[key] = {"metrics": metrics, "facts": {} if here is None else dict(here.facts)}
        if key in given:
            document[key]["given"] = dict(given[key])
        if there is not None:
            document[key]["against"] = {name: metric.as_dict() for name, metric in there.items()}
    return document


def _csv(logged: Mapping[str, Metrics], rank: int | None) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step", "metric", "rank", "at", "time", "value"))
    for key, metrics in logged.items():
        for name in metrics:
            for number in metrics[name].ranks:
                if rank is None or number == rank:
                    for point in metrics[name].rank(number).points:
                        writer.writerow((key, name, number, f"{point.step:g}", f"{point.time:.6f}", repr(point.value)))
    return text.getvalue()
