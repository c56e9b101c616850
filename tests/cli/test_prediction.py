"""`stoker simulate`: what it says is what follows from its file; what it cannot know it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
    from stoker import pipeline, step
    from stoker.config import ResourceSettings


    @step(resources=ResourceSettings(cpu_count=1), cache=False)
    def load() -> list[int]:
        return [1, 2, 3]


    @step(resources=ResourceSettings(cpu_count=1), retry=5, cache=False)
    def train(number: int) -> int:
        return number


    @step(resources=ResourceSettings(cpu_count=2), cache=False)
    def wide(number: int) -> int:
        return number


    @step(resources=ResourceSettings(accelerators="H100:2"), cache=False)
    def tune(numbers: list[int]) -> int:
        return sum(numbers)


    @step(resources=ResourceSettings(cpu_count=1), cache=False, timeout="1m")
    def slow() -> int:
        return 1


    @pipeline
    def whole():
        tune(train.map([1, 2, 3, 4]))


    @pipeline
    def mapped():
        train.map(load())


    @pipeline
    def mixed():
        train(1)
        wide(2)
        train.with_options(id="short")(3)


    @pipeline
    def late():
        slow()


    @pipeline(dynamic=True)
    def dynamic():
        train(1)
"""
NODES = """
    [[nodes]]
    name = "cpu"
    cpus = 2
    memory = "8GB"
    price = 3.6

    [[nodes]]
    name = "gpu"
    count = 2
    cpus = 8
    memory = "64GB"
    accelerators = "H100:4"
    price = 36

    [queue]
    start = "10s"

    [steps.train]
    duration = "50s"
    [steps.tune]
    duration = "100s"
"""
ONE = """
    [[nodes]]
    name = "n"
    cpus = 2
    memory = "8GB"
"""


@pytest.fixture
def simulated(project: Any) -> Callable[..., Any]:
    """`simulated("whole", toml)`: the document of `--json`; with a code, what is said instead."""
    project.write({"steps.py": PROGRAM})

    def run(pipeline: str, cluster: str, *options: str, code: int = 0) -> Any:
        project.write({"cluster.toml": cluster})
        words = ("simulate", f"steps.py:{pipeline}", "--cluster", "cluster.toml", *options)
        ended = project.stoker(*words, *(() if code else ("--json",)), code=code)
        return ended.stderr if code else json.loads(ended.stdout)

    return run


def test_times_and_costs_follow_from_the_file(simulated: Callable[..., Any]) -> None:
    """Eighteen places of 50 s and 10 s of start for four elements, then 2 of 8 accelerators for 110 s."""
    found = simulated("whole", NODES, "--seeds", "2")
    first, second = found["runs"]
    assert first["steps"] == {
        "train": {"start": 10.0, "end": 60.0, "wait": 10.0, "attempts": 4, "lost": 0},
        "tune": {"start": 70.0, "end": 170.0, "wait": 10.0, "attempts": 1, "lost": 0},
    }
    assert (first["status"], first["makespan"], first["device_seconds"]) == ("succeeded", 170.0, 220.0)
    assert first["utilization"] == pytest.approx(220 / (8 * 170))
    # Two elements take both cores of the first node, two others an eighth of one each; two of four is a half.
    assert first["cost"] == pytest.approx((2 * 60 * 0.5 * 3.6 + 2 * 60 * 36 / 8 + 110 * 36 / 2) / 3600)
    assert first["cost_of_nodes"] == pytest.approx(170 * (3.6 + 2 * 36) / 3600)
    assert {**second, "seed": 1} == first, "nothing of it is drawn"
    assert found["makespan"] == {"p10": 170.0, "p50": 170.0, "p90": 170.0} and found["succeeded"] == 2


MIXED = """
    [queue]
    policy = "{policy}"
    [steps.train]
    duration = "100s"
    [steps.wide]
    duration = "10s"
"""


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("fifo", {"train": 0.0, "wide": 100.0, "short": 110.0}),
        ("backfill", {"train": 0.0, "wide": 100.0, "short": 0.0}),
        ("none", {"train": 0.0, "wide": 100.0, "short": 0.0}),
    ],
)
def test_the_queue_decides_who_waits(policy: str, starts: Any, simulated: Callable[..., Any]) -> None:
    """A core is free beside `train`, `wide` wants both, and `short` is behind it and over when `train` is."""
    (run,) = simulated("mixed", ONE + MIXED.format(policy=policy), "--seeds", "1")["runs"]
    assert {key: times["start"] for key, times in run["steps"].items()} == starts


def test_what_is_lost_is_drawn_by_the_seed_and_costs_time(simulated: Callable[..., Any]) -> None:
    spot = NODES.replace("count = 2", 'count = 2\nmean_time_between_losses = "3min"\nnotice = "5s"\nreturns = "1min"')
    found = simulated("whole", spot.replace('duration = "50s"', 'duration = {median = "50s", p90 = "2min"}'))
    assert found == simulated("whole", spot.replace('duration = "50s"', 'duration = {median = "50s", p90 = "2min"}'))
    failed = [run for run in found["runs"] if run["status"] == "failed"]
    assert failed and all(run["steps"]["tune"]["lost"] for run in failed), "only tune is not tried again"
    assert any(run["steps"]["train"]["lost"] and run["status"] == "succeeded" for run in found["runs"])
    assert found["makespan"]["p10"] < found["makespan"]["p50"] < found["makespan"]["p90"]


def test_a_timeout_is_the_engines(simulated: Callable[..., Any]) -> None:
    (run,) = simulated("late", ONE + '[steps.slow]\nduration = "2min"', "--seeds", "1")["runs"]
    assert (run["status"], run["makespan"], run["steps"]["slow"]["lost"]) == ("failed", 60.0, 1)


def test_what_is_not_known_is_taken_from_earlier_runs_or_refused(project: Any, simulated: Callable[..., Any]) -> None:
    said = simulated("mapped", ONE, code=2)
    assert "how long step 'load' takes is not known: no run of 'mapped' finished it" in said
    assert 'fix: add [steps.load] with duration = "10min" to the cluster\'s file' in said
    times = '[steps.load]\nduration = "1s"\n[steps.train]\nduration = "1s"'
    said = simulated("mapped", ONE + times, code=2)
    assert "how many elements step 'train' has is not known: step 'load' decides that" in said
    project.stoker("run", "steps.py:mapped", "--quiet")
    found = simulated("mapped", ONE, "--seeds", "1")
    assert found["durations"]["train"]["source"] == "3 attempts of earlier runs"
    assert found["runs"][0]["steps"]["train"]["attempts"] == 3
    # Nobody asked for a price.
    assert found["cost"] is None and found["cost_of_nodes"] is None
    shown = project.stoker("simulate", "steps.py:mapped", "--cluster", "cluster.toml").stdout
    assert "not known: nodes without a price" in shown and "succeeded    20 of 20" in shown


@pytest.mark.parametrize(
    ("pipeline", "cluster", "text"),
    [
        ("whole", ONE + '[steps.train]\nduration = "1s"\n[steps.tune]\nduration = "1s"', "step 'tune' fits on none of"),
        ("dynamic", ONE, "dynamic decides while it runs which steps there are"),
        ("late", ONE + '[steps.fast]\nduration = "1s"', "has [steps.fast], and the pipeline has no such step"),
        ("late", "[queue]", "it has no nodes"),
        ("late", ONE + "gpus = 8", "Nodes has no field 'gpus'"),
        ("late", ONE.replace("cpus = 2\n", ""), "[[nodes]] number 1: cpus is not given"),
        ("late", ONE + "[partitions]", "a cluster has no table 'partitions'"),
        ("late", ONE + '[queue]\npolicy = "lifo"', "lifo"),
        ("late", ONE + '[steps.slow]\nduration = {median = "2h", p90 = "1h"}', "p90 is shorter than the median"),
        ("late", ONE + "[steps.slow]\nfailure_rate = 2", "2 is no probability"),
        ("late", ONE + 'accelerators = "H100"', "does not say how many a node has"),
        ("late", ONE + '[steps.slow]\nduration = {p50 = "1h"}', "is no duration"),
        ("late", "steps = 1" + ONE, "[steps] is not a table"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused(
    pipeline: str, cluster: str, text: str, simulated: Callable[..., Any]
) -> None:
    assert text in simulated(pipeline, cluster, code=2)
