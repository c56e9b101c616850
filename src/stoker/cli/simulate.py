"""`stoker simulate FILE --cluster CLUSTER.toml`: what becomes of a pipeline on a cluster, before anything is paid."""

from __future__ import annotations

from typing import Any, Final, Iterator, Sequence

import attrs
import click

from stoker.cli import target as targets
from stoker.cli.output import print_json, table
from stoker.cli.plan import first_call
from stoker.cli.rerun import Unparsed, command_line, help_for
from stoker.core.codec import to_json
from stoker.core.errors import SettingsError, UsageError
from stoker.core.units import count, duration_text
from stoker.core.words import count_text
from stoker.report.streams import echo
from stoker.run import driver
from stoker.run.session import Session
from stoker.simulation.cluster import read_cluster
from stoker.simulation.predicting import Prediction, SimulatedRun, quantiles, read_history

SUMMARY: Final = (
    "Runs a pipeline on a cluster that a file describes, in a time of its own: when each step starts and ends, how "
    "long it waits, what it costs. Nothing of it is computed, sent or paid."
)


@click.command("simulate", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Predict when the steps of a pipeline start and end on a cluster, and what they cost."""
    target, line, options = command_line(words, targets.SIMULATE_OPTIONS)
    if target is None or options.get("help"):
        echo(help_for(target, "simulate", targets.SIMULATE_OPTIONS, SUMMARY))
        return 0
    if not options.get("cluster"):
        raise UsageError("simulate: no cluster is named", fix="add --cluster CLUSTER.toml, a file with [[nodes]]")
    try:
        seeds = count(options.get("seeds", "20"), least=1)
    except SettingsError as error:
        raise UsageError(f"--seeds: {error.message}", fix="write how many runs to simulate, such as 20") from None
    cluster = read_cluster(options["cluster"])
    with first_call(target, line) as (pipeline, arguments, request):
        plan = driver.plan(pipeline, arguments, attrs.evolve(request, offline=True))
        store = Session(request, stack=pipeline.stack).store
    prediction = Prediction(plan, cluster, read_history(store.records, plan.pipeline), store.blobs)
    runs = [prediction.run(seed) for seed in range(1, seeds + 1)]
    if options.get("json"):
        print_json({"durations": to_json(prediction.durations), "runs": to_json(runs), **totals(runs)})
    else:
        echo("\n".join(_lines(prediction, runs)))
    return 0


FIGURES: Final = ("makespan", "device_seconds", "cpu_seconds", "cost", "cost_of_nodes", "utilization", "lost")


def totals(runs: Sequence[SimulatedRun]) -> dict[str, Any]:
    """How many runs succeeded, and of each figure p10, median and p90 over all; None for what is not known."""
    figures: dict[str, Any] = {}
    for name in FIGURES:
        values = [getattr(run, name) for run in runs]
        figures[name] = None if None in values else dict(zip(("p10", "p50", "p90"), quantiles(values)))
    return {"succeeded": sum(run.status == "succeeded" for run in runs), "of": len(runs), **figures}


def _lines(prediction: Prediction, runs: Sequence[SimulatedRun]) -> Iterator[str]:
    yield f"{prediction.plan.pipeline}: {count_text(len(runs), 'simulated run')}, times from its beginning"
    rows = []
    for step in prediction.plan.steps:
        times = [run.steps[step.key] for run in runs]
        begun = [one for one in times if one.start is not None]
        rows.append(
            [
                step.key,
                _spread([one.start for one in begun if one.start is not None]),
                _spread([one.end for one in begun if one.end is not None]),
                _spread([one.wait for one in begun]),
                f"{sum(one.attempts for one in times) / len(times):g}",
                f"{sum(one.lost for one in times) / len(times):g}",
                prediction.durations[step.name].source,
            ]
        )
    yield table(["step", "start", "end", "longest wait", "attempts", "lost", "duration from"], rows)
    whole = totals(runs)
    yield ""
    yield f"succeeded    {whole['succeeded']} of {whole['of']}"
    yield f"makespan     {_spread([run.makespan for run in runs])}"
    hours = [run.device_seconds / 3600 for run in runs]
    if any(hours):
        yield f"device hours {_numbers(hours)}"
    kind = "accelerators" if any(group.devices for group in prediction.cluster.nodes) else "cores"
    used = [100 * run.utilization for run in runs if run.utilization is not None]
    yield f"utilization  {_numbers(used)} % of the {kind}"
    for title, name in (("cost", "cost"), ("all nodes", "cost_of_nodes")):
        costs = [getattr(run, name) for run in runs]
        yield f"{title:<12} " + ("not known: nodes without a price" if None in costs else f"{_numbers(costs)} USD")


def _spread(seconds: Sequence[float]) -> str:
    """p50, and p10 to p90 where they differ."""
    if not seconds:
        return ""
    low, middle, high = (duration_text(round(one, 0 if one >= 10 else 2)) for one in quantiles(seconds))
    return middle if low == high else f"{middle} ({low} to {high})"


def _numbers(values: Sequence[float]) -> str:
    if not values:
        return "none"
    low, middle, high = (f"{one:,.4g}" for one in quantiles(values))
    return middle if low == high else f"{middle} ({low} to {high})"
