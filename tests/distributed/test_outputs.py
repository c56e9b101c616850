"""What a distributed step's result means to the cache, to steps after it, and to a person who reads of its failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.engine.conftest import Lab

CACHED = """
@step(launch=plain(int(os.environ["RANKS"]), outputs=os.environ["OUTPUTS"]))
def rank() -> object:
    return context.rank

@pipeline
def cached():
    rank()

cached()
"""


def value(lab: Lab, ranks: int, outputs: str) -> tuple[Any, str]:
    lab.run("script.py", env={"RANKS": str(ranks), "OUTPUTS": outputs})
    step = lab["cached"].steps["rank"]
    return step.load(), step.status


def test_a_result_is_kept_and_one_ranks_value_is_not_taken_for_all(script: Callable[[str], Lab]) -> None:
    lab = script(CACHED)
    assert value(lab, 2, "main") == (0, "succeeded")
    assert value(lab, 2, "all") == ([0, 1], "succeeded")
    assert value(lab, 2, "all") == ([0, 1], "cached")


FAILS = """
@step(cache=False, launch=plain(3))
def train() -> None:
    meet("there")
    if context.rank == 1:
        raise ValueError("the second")
    time.sleep(600)

@step(cache=False, launch=plain(2, hang_after="2s"))
def hangs() -> None:
    time.sleep(600)

@pipeline(failure_mode="continue")
def shown():
    train()
    hangs()

shown()
"""


def test_a_failure_says_which_rank(script: Callable[[str], Lab]) -> None:
    lab = script(FAILS)
    live = lab.run("script.py", code=1)
    assert "train failed on rank 1 of 3: user-error" in live
    run = lab["shown"]
    failure = run.steps["train"].failure
    assert (failure.rank, failure.world_size, failure.failed_ranks) == (1, 3, (1,))
    assert failure.where == "rank 1 of 3" and not failure.stacks
    shown = lab.run("stoker", "show", run.id)
    assert "train failed on rank 1 of 3 at " in shown and "script.py" in shown
    assert f"stacks: of 2 ranks: stoker show {run.id} --stacks" in shown and "rank 0 stood in" not in shown
    stacks = lab.run("stoker", "show", run.id, "--stacks")
    for rank in (0, 1):
        assert f"rank {rank} stood in" in stacks
    assert "in hangs" in stacks
    steps = {step["key"]: step for step in json.loads(lab.run("stoker", "show", run.id, "--json"))["steps"]}
    document = steps["hangs"]["attempts"][-1]["failure"]
    assert set(document["stacks"]) == {"0", "1"} and "in hangs" in document["stacks"]["0"]
    assert steps["train"]["attempts"][-1]["failure"]["rank"] == 1
