"""Deadlines, budgets and price lists: a run ends in good order before it passes one, and goes on with another."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from stoker.core.costs import Budget, deadline_of, parse_deadline
from stoker.engine.limits import ENDING, RunLimits

TRAIN = """
import os, sys, time
from stoker import context, pipeline, step, sweep
from stoker.config import ResourceSettings

@step(resources=ResourceSettings(accelerators="H100:1"), cache=False)
def train() -> str:
    saved = context.checkpoint_dir / "half"
    while context.attempt == 1 and not saved.exists():
        time.sleep(0.01)
        if context.should_stop:
            saved.touch()
            sys.exit()
    return f"attempt {context.attempt}"

@step(resources=ResourceSettings(accelerators="H100:1"))
def trial(x: int) -> int:
    return x

@pipeline
def spend():
    train()

@pipeline
def search():
    sweep(trial, space={"x": [3, 1, 2]}, method="grid", budget="5 USD")

"""
PRICES = """
stack = "mine"
[stacks.mine.prices]
date = "2020-01-01"
source = "our contract"
H100 = 3600.0
"""


@pytest.fixture
def spending(project: Any) -> Any:
    return project.write({"script.py": TRAIN})


DEVICE = ("--simulate", "1xH100-80GB")


def test_a_run_ends_before_its_budget_and_goes_on_with_a_larger_one(lab: Any) -> None:
    lab.write("script.py", TRAIN)
    (lab.folder / "stoker.toml").write_text(PRICES)
    command = ("stoker", "run", "script.py:spend", *DEVICE, "--set")
    said = lab.run(*command, "budget=1 USD", code=130)
    assert "the run is stopped: " in said and " of 1 USD are used, and what runs takes 3,600 USD an hour" in said
    assert " of 1 USD are used" in lab["spend"].error
    said = lab.run("stoker", "resume", "latest", *DEVICE, "--set", "budget=0.0001 USD", code=3)
    assert "STK117" in said and " that are used; its budget is 0.0001 USD" in said and "--set budget=" in said
    lab.run("stoker", "resume", "latest", *DEVICE, "--set", "budget=1000 USD")
    assert lab["spend"].steps["train"].load() == "attempt 2"
    assert "(median: train " in lab.run(*command, "budget=0.0000001 USD", code=3), "what it took before is known"


def test_what_has_no_price_is_refused_and_prices_have_a_date(spending: Any) -> None:
    said = spending.stoker("run", "script.py:spend", *DEVICE, "--set", "budget=1 USD", code=3).stderr
    assert "STK117 error" in said and "what its machine costs is not known" in said
    spending.write({"stoker.toml": PRICES})
    shown = spending.stoker("plan", "script.py:spend", *DEVICE, "--where").stdout
    assert "mine   local: $3600.00 an hour, by prices of 2020-01-01, " in shown
    assert "days old: look whether they still hold" in shown and "our contract (stoker.toml:" in shown
    answers = json.loads(spending.stoker("plan", "script.py:spend", *DEVICE, "--where", "--json").stdout)["where"]
    mine = next(one for one in answers["train"] if one["stack"] == "mine")
    assert (mine["price"], mine["priced"]) == (3600.0, "2020-01-01")
    mistakes = {"3600.0": ("-1", "prices.H100"), "H100": ("GTX9", "GTX9"), '"2020-01-01"': ('"x"', "no date")}
    for right, (wrong, words) in mistakes.items():
        spending.write({"stoker.toml": PRICES.replace(right, wrong)})
        assert words in spending.stoker("plan", "script.py:spend", code=2).stderr


def test_a_sweep_counts_in_us_dollars(spending: Any) -> None:
    spending.write({"stoker.toml": PRICES})
    spending.stoker("run", "script.py:search", *DEVICE)
    shown = spending.stoker("show", "latest", "--json").stdout
    assert json.loads(shown)["status"] == "succeeded"


def test_a_deadline_leaves_time_for_a_good_end() -> None:
    began = datetime.fromisoformat("2026-11-29T18:00").timestamp()
    for text, seconds in {"2h": 7200, "18:30": 1800, "17:00": 23 * 3600, "2026-11-30T18:00": 86_400, 90: 90}.items():
        assert deadline_of(parse_deadline(text) or 0.0, began) == began + seconds
    limits = RunLimits(deadline=1000.0, budget=None)
    assert limits.problem(1000.0 - ENDING - 0.1) == ""
    assert limits.problem(1000.0 - ENDING) == "its deadline is in 15.0 s"
    assert RunLimits(deadline=None, budget=Budget.parse("1 device hour")).problem(0.0) == ""
