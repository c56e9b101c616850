"""A step whose device is faulty is tried again on another one of this machine; that uses up no retry."""

from __future__ import annotations

import json
from typing import Any

from stoker.core.plan import Capacity
from stoker.engine.events import Added, Closed, Ended, Prepared, RecordEnd, RecordRetry, Submit, TaskSpec, Ticked
from stoker.engine.machine import MOVE_LIMIT, Machine

TRAIN = """
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def train() -> str:
    return context.devices[0].uuid

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def further(first: str) -> str:
    return context.devices[0].uuid

@pipeline
def once():
    further(train())

if __name__ == "__main__":
    once()
"""
FIRST, SECOND = (f"GPU-simulated-0000-0000-0000-{number:012d}" for number in range(2))


def test_a_faulty_device_is_left_out_for_the_rest_of_the_run(project: Any) -> None:
    project.write({"train.py": TRAIN})
    done = project.run("train.py", env={"STOKER_SIMULATE": "2xV100;bad=0"})
    assert f"train: device {FIRST} is left out for the rest of this run: gpu-hardware" in done.stderr
    run = project.client().run("last")
    first, second = run.steps["train"].attempts
    assert (first.failure.cause, second.status) == ("gpu-hardware", "succeeded")
    assert f"the device {FIRST} is left out" in first.failure.advice
    assert run.steps["train"].output.load() == run.steps["further"].output.load() == SECOND
    assert len(run.steps["further"].attempts) == 1, "it does not try the faulty device again"
    assert [(one.place, one.step) for one in run.left_out] == [(FIRST, "train")]
    (named,) = json.loads(project.stoker("devices", "--json").stdout)["left_out"]
    assert (named["place"], named["run"], named["cause"]) == (FIRST, run.id, "gpu-hardware")


CHECKED = {"STOKER_SIMULATE": "3xV100;weak=0"}


def test_what_only_the_health_check_finds_is_left_out_and_checked_once(project: Any) -> None:
    project.write({"train.py": TRAIN})
    project.run("train.py", env=CHECKED)
    assert not project.client().run("last").left_out, "nobody looks unasked"
    done = project.stoker("run", "train.py:once", "--set", "health_check=quick", env=CHECKED)
    assert f"train: device {FIRST} is left out for the rest of this run: gpu-hardware" in done.stderr
    run = project.client().run("last")
    first, second = run.steps["train"].attempts
    assert "the health check failed: " in first.failure.message and f"({FIRST}): a product" in first.failure.message
    assert second.receipt.proved["health"].startswith("simulated; checked in ")
    assert run.steps["further"].attempts[-1].receipt.proved["health"] == "checked earlier in this run"


MANY = """
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def train(number: int) -> str:
    return context.devices[0].uuid

@pipeline
def many():
    train.map(list(range(6)))

if __name__ == "__main__":
    many()
"""


def test_attempts_that_were_on_their_way_to_a_faulty_device_are_moved_too(project: Any) -> None:
    project.write({"train.py": MANY})
    done = project.run("train.py", env={"STOKER_SIMULATE": "4xV100;bad=0+1+2"})
    run = project.client().run("last")
    assert len(set(run.steps["train"].load())) == 1
    assert {one.place for one in run.left_out} <= {f"GPU-simulated-0000-0000-0000-{number:012d}" for number in range(3)}
    assert len(run.left_out) == len({one.place for one in run.left_out}), "each is named once"
    assert "many succeeded" in done.stderr and ": 1 step" in done.stderr, "an element that is retried is no step"


def test_where_no_other_device_is_left_that_is_said_and_a_resumed_run_tries_it_again(project: Any) -> None:
    project.write({"train.py": TRAIN})
    simulated = {"STOKER_SIMULATE": "1xV100;bad=0"}
    project.run("train.py", env=simulated, code=1)
    run = project.client().run("last")
    [attempt] = run.steps["train"].attempts
    assert attempt.failure.cause == "gpu-hardware"
    assert f"no other device is left beside {FIRST}" in attempt.failure.advice
    assert [one.place for one in run.left_out] == [FIRST], "it is named all the same"
    project.stoker("resume", "last", env={"STOKER_SIMULATE": "1xV100"})


def test_a_move_uses_up_no_retry_and_ends_after_some() -> None:
    machine = Machine({"": Capacity(cpus=1.0, memory=1, slots=1)})
    task = TaskSpec(key="a", retries=1)
    actions = machine.handle(Added(tasks=(task,)), 0.0) + machine.handle(Closed(), 0.0)
    actions = machine.handle(Prepared(key="a"), 0.0)
    attempts = 0
    while any(isinstance(action, Submit) for action in actions):
        attempts += 1
        ended = machine.handle(Ended(key="a", attempt=attempts, cause="gpu-hardware", elsewhere=True), float(attempts))
        if any(isinstance(action, RecordEnd) for action in ended):
            break
        assert any(isinstance(action, RecordRetry) for action in ended)
        actions = machine.handle(Ticked(), attempts + 100.0)
    assert attempts == 1 + MOVE_LIMIT + 1, "the first, the moves, and the one retry that was asked for"
    assert machine.status("a") == "failed"
