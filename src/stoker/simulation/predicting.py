"""Predicts a plan's run on a cluster: the real engine runs it against a `SimulatedCluster`.

Steps have no values here: each is recorded, submitted, retried and followed as in a run, in a store of its own that is
removed afterwards.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import UsageError
from stoker.core.plan import Plan, StepPlan
from stoker.core.values import frozen
from stoker.engine import clock
from stoker.engine.execution import Policy
from stoker.engine.inputs import StepBindings
from stoker.engine.recorder import Recorder
from stoker.engine.runner import RunLoop
from stoker.plan.cachekey import FixedEnvironment
from stoker.simulation.backend import Events, SimulatedAttempt, SimulatedBackend, SimulatedCluster
from stoker.simulation.cluster import ClusterFile, Spread, StepFacts
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.records import Records, RunFilter
from stoker.store.rows import RunRow
from stoker.store.store import open_store

NOTHING: Final = {"d": "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b", "s": "json"} | {
    "t": "builtins.NoneType",
    "n": 4,
    "i": "null",
}
"""The value of every output and input."""
RUNS: Final = 20
"""How many of a pipeline's last runs durations are taken from."""
_EPOCH: Final = 1_700_000_000.0
"""When simulated runs begin; times are told from there on."""


@frozen(kw_only=True)
class StepTimes:
    """A step, or all elements of a fan-out; in seconds from the run's beginning."""

    start: float | None
    """When the first of it began; None where nothing did."""
    end: float | None
    wait: float
    """The longest time from a submission to a beginning."""
    attempts: int
    lost: int
    """Attempts that did not succeed."""


@frozen(kw_only=True)
class SimulatedRun:
    """What became of one run."""

    seed: int
    status: str
    makespan: float
    """Seconds from its beginning to its end."""
    steps: Mapping[str, StepTimes]
    attempts: int
    lost: int
    device_seconds: float
    cpu_seconds: float
    cost: float | None
    """USD for what attempts held of their nodes; None where a price is not known."""
    cost_of_nodes: float | None
    """USD for all nodes from beginning to end; None likewise."""
    utilization: float | None
    """The part of all accelerators, or cores where there are none, that attempts held; None of a run without time."""


@frozen(kw_only=True)
class History:
    """What earlier runs of a pipeline tell."""

    durations: Mapping[str, Spread]
    """Of attempts that succeeded, by the step's name."""
    elements: Mapping[str, int]
    """How many elements a fan-out had last, by its key."""


def read_history(records: Records, pipeline: str) -> History:
    """What the last runs of a pipeline tell: times of attempts of its steps, and of elements of its fan-outs."""
    seconds: dict[str, list[float]] = {}
    elements: dict[str, int] = {}
    for run in records.runs(RunFilter(pipeline=pipeline, limit=RUNS)):
        for row in records.all_steps(run.id):
            if row.count is not None:
                elements.setdefault(row.key, row.count)
            if row.status != "succeeded" or row.started is None or row.ended is None or row.count is not None:
                continue
            # A step's own time is that of its last attempt: the row's begins with the first.
            tries = records.attempts(run.id, row.key) if row.attempts > 1 else ()
            spans = [(one.started, one.ended) for one in tries if not one.cause] or [(row.started, row.ended)]
            seconds.setdefault(row.name, []).extend(end - start for start, end in spans if start and end)
    return History(durations={name: Spread.of(times) for name, times in seconds.items()}, elements=elements)


class Prediction:
    """A plan that was found fit to be simulated on a cluster; `UsageError` where something is not known."""

    def __init__(self, plan: Plan, cluster: ClusterFile, history: History, blobs: Blobs) -> None:
        self.plan = plan
        self.cluster = cluster
        self.durations: dict[str, Spread] = {}
        """By a step's name."""
        self._elements: dict[str, int] = {}
        """Of steps over whose outputs others map."""
        if plan.dynamic:
            what = f"{plan.pipeline} decides while it runs which steps there are, which a simulation cannot know"
            raise UsageError(what, fix="simulate a pipeline whose graph is known before it runs")
        unknown = sorted(cluster.steps.keys() - {step.name for step in plan.steps})
        if unknown:
            raise UsageError(f"the cluster's file has [steps.{unknown[0]}], and the pipeline has no such step")
        self._steps = [self._known(step, history, blobs) for step in plan.steps]
        self._refuse_unplaceable()

    def _known(self, step: StepPlan, history: History, blobs: Blobs) -> StepPlan:
        """A step without values, whose duration and elements are noted."""
        if step.sweep is not None:
            what = f"step '{step.key}' is a sweep, which decides by what its trials log"
            raise UsageError(what, fix="simulate the pipeline with its training as a step")
        facts = self.cluster.steps.get(step.name, StepFacts())
        duration = facts.duration or history.durations.get(step.name)
        if duration is None:
            what = f"how long step '{step.name}' takes is not known: no run of '{self.plan.pipeline}' finished it"
            raise UsageError(what, fix=f'add [steps.{step.name}] with duration = "10min" to the cluster\'s file')
        self.durations[step.name] = attrs.evolve(duration, source=duration.source or "the cluster's file")
        inputs = {name: _without_values(tree) for name, tree in step.inputs.items()}
        for name in step.mapped:
            tree = step.inputs[name]
            if "value" in tree:
                count = sum(1 for _ in artifacts.each_item(from_wire(tree["value"]), blobs))
                inputs[name] = {"list": [{"value": NOTHING}] * count}
            elif "step" in tree:
                self._note_elements(tree["step"], step, history)
        return attrs.evolve(step, inputs=inputs)

    def _note_elements(self, source: str, fanout: StepPlan, history: History) -> None:
        made_by = next(step for step in self.plan.steps if step.key == source)
        if made_by.mapped:
            return  # as many as that fan-out has
        count = self.cluster.steps.get(made_by.name, StepFacts()).elements
        count = history.elements.get(fanout.key) if count is None else count
        if count is None:
            what = f"how many elements step '{fanout.key}' has is not known: step '{made_by.name}' decides that"
            raise UsageError(what, fix=f"add elements = 8 to [steps.{made_by.name}] of the cluster's file")
        self._elements[source] = count

    def _refuse_unplaceable(self) -> None:
        cluster = self._cluster_of(0, Events(_EPOCH), {})
        for step in self._steps:
            if not cluster.request(step)["fits"]:
                groups = ", ".join(group.name for group in self.cluster.nodes)
                what = f"step '{step.key}' fits on none of the cluster's nodes ({groups})"
                raise UsageError(what, fix=f"compare `stoker plan` with [[nodes]]: {step.settings.resources!r}")

    def _cluster_of(self, seed: int, events: Events, outputs: Mapping[str, Mapping[str, Any]]) -> SimulatedCluster:
        return SimulatedCluster(
            self.cluster, self.durations, events, seed=seed, results=lambda job: outputs[job.step.key]
        )

    def run(self, seed: int) -> SimulatedRun:
        """One run; the same seed gives the same one."""
        events = Events(_EPOCH)
        # On a disk in memory where there is one: nothing of it is to stay.
        with tempfile.TemporaryDirectory(prefix="stoker-simulation-") as home, clock.replaced(events):
            store = open_store("", "", home)
            try:
                outputs = {step.key: self._outputs(step, store.blobs) for step in self._steps}
                cluster = self._cluster_of(seed, events, outputs)
                row = RunRow(id="simulated", pipeline=self.plan.pipeline, created=_EPOCH, started=_EPOCH, token="one")
                store.records.create_run(row)
                backend = SimulatedBackend(cluster)
                loop = RunLoop(
                    run=row.id,
                    recorder=Recorder(store, run=row.id, token=row.token),
                    inputs=StepBindings(store.blobs),
                    backends=dict.fromkeys({step.backend for step in self._steps}, backend),
                    observer=_Silent(),
                    policy=Policy(
                        pipeline=self.plan.pipeline,
                        environment=FixedEnvironment("image", "simulation"),
                        fail_fast=self.plan.failure_mode == "fail_fast",
                        use_cache=False,
                        max_parallel=self.plan.settings.max_parallel,
                        hooks=self.plan.hooks,
                    ),
                    heartbeat=math.inf,
                )
                try:
                    loop.add(self._steps)
                    loop.close()
                    status = loop.loop()
                finally:
                    backend.close()
            finally:
                store.close()
        return self._summary(seed, status, events.now - _EPOCH, cluster.attempts)

    def _outputs(self, step: StepPlan, blobs: Blobs) -> dict[str, Any]:
        count = self._elements.get(step.key)
        value: Mapping[str, Any] = NOTHING
        if count is not None:
            value = artifacts.gather([from_wire(NOTHING)] * count, blobs).wire()
        return {output.name: value for output in step.outputs}

    def _summary(self, seed: int, status: str, makespan: float, attempts: Sequence[SimulatedAttempt]) -> SimulatedRun:
        groups = {group.name: group for group in self.cluster.nodes}
        by_step: dict[str, list[SimulatedAttempt]] = {step.key: [] for step in self._steps}
        for one in attempts:
            by_step[one.key if one.key in by_step else one.key[:-1].rpartition("[")[0]].append(one)
        held = [one for one in attempts if one.nodes]
        hours = dict.fromkeys(groups, 0.0)
        for one in held:
            hours[one.group] += one.held * one.nodes * one.share / 3600
        devices = sum(group.devices * group.count for group in groups.values())
        device_seconds = sum(one.held * one.nodes * one.devices for one in held)
        cpu_seconds = sum(one.held * one.nodes * one.cpus for one in held)
        cores = sum(group.cpus * group.count for group in groups.values())
        busy = device_seconds / devices if devices else cpu_seconds / cores
        return SimulatedRun(
            seed=seed,
            status=status,
            makespan=makespan,
            steps={key: _times(of_step) for key, of_step in by_step.items()},
            attempts=len(attempts),
            lost=sum(bool(one.cause) for one in attempts),
            device_seconds=device_seconds,
            cpu_seconds=cpu_seconds,
            cost=_cost((hours[name], group.price) for name, group in groups.items()),
            cost_of_nodes=_cost((makespan / 3600 * group.count, group.price) for group in groups.values()),
            utilization=busy / makespan if makespan else None,
        )


def _times(attempts: Iterable[SimulatedAttempt]) -> StepTimes:
    attempts = list(attempts)
    starts = [one.started - _EPOCH for one in attempts if one.started is not None]
    return StepTimes(
        start=min(starts, default=None),
        end=max((one.ended - _EPOCH for one in attempts), default=None),
        wait=max((one.started - one.submitted for one in attempts if one.started is not None), default=0.0),
        attempts=len(attempts),
        lost=sum(bool(one.cause) for one in attempts),
    )


def _cost(parts: Iterable[tuple[float, float | None]]) -> float | None:
    total = 0.0
    for hours, price in parts:
        if hours and price is None:
            return None
        total += hours * (price or 0.0)
    return total


def _without_values(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    if "value" in tree or "named" in tree:
        return {"value": NOTHING}
    if "list" in tree:
        return {"list": [_without_values(item) for item in tree["list"]]}
    if "dict" in tree:
        return {"dict": {name: _without_values(item) for name, item in tree["dict"].items()}}
    return tree


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p10, median and p90."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[4], cuts[8]


class _Silent:
    """An observer that shows nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None
