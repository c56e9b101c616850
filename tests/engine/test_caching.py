"""What runs again after a change, and what does not, over whole runs in processes of their own."""

from __future__ import annotations

import time
from typing import Any

SCRIPT = """
import dataclasses
import os
from stoker import pipeline, step

FACTOR = 2

@dataclasses.dataclass
class Scaler:
    by: int = 3

    def scale(self, x):
        return x * self.by

def helper(x):
    return x + 1

def ran(name):
    with open("ran", "a") as file:
        file.write(name + chr(10))

@step
def load(seed: int) -> int:
    ran("load")
    return seed

@step
def sign(x: int) -> int:
    "Whether it is positive: often the same for different inputs."
    ran("sign")
    return 1 if helper(x) > 0 else -1

@step
def scaled(x: int) -> int:
    ran("scaled")
    return Scaler().scale(x) * FACTOR

@step
def final(sign: int, x: int) -> list[int]:
    ran("final")
    return [sign, x]

@step(cache=False)
def always(x: int) -> int:
    ran("always")
    return x

@step(cache_key={"version": 1})
def keyed(x: int) -> int:
    ran("keyed")
    return x + 1

@step(cache_expires=0.3)
def expires(x: int) -> int:
    ran("expires")
    return x + 2

@step
def element(x: int) -> int:
    ran(f"element {x}")
    return x + 3

@pipeline
def caching(seed: int = 5, items: list[int] = [1, 2]):
    x = load(seed)
    final(sign(x), scaled(x))
    always(x)
    keyed(x)
    expires(x)
    element.map(items)

if __name__ == "__main__":
    caching()
"""
EVERYTHING = ["always", "element 1", "element 2", "expires", "final", "keyed", "load", "scaled", "sign"]


class Changes:
    """Runs the script again and again, each time a bit different, and says what ran."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.text = SCRIPT.replace("@step(cache_expires=0.3)", '@step(cache_expires="1h")')
        self.count = 0

    def __call__(self, *changes: tuple[str, str], argv: tuple[str, ...] = ("script.py",)) -> list[str]:
        for old, new in changes:
            assert self.text.count(old) == 1, old
            self.text = self.text.replace(old, new)
        self.lab.write("script.py", self.text).run(*argv)
        lines = self.lab.read("ran")
        new = sorted(lines[self.count :])
        self.count = len(lines)
        return new


def test_exactly_what_changed_runs_again(lab: Any) -> None:
    again = Changes(lab)
    assert again() == EVERYTHING
    first = lab["caching"]
    assert again() == ["always"]
    second = lab["caching"]
    statuses = {key: step.status for key, step in second.steps.items() if key != "always"}
    assert set(statuses.values()) == {"cached"}, statuses
    assert second.steps["final"].cached_from == f"{first.id}/final"
    assert second.steps["element"][1].cached_from == f"{first.id}/element[1]"
    assert second.steps["final"].load() == first.steps["final"].load() == [1, 30]
    assert not second.steps["final"].attempts

    # Code changes and its results do not: what comes after it is not run again.
    assert again(
        ("return x + 1\n\ndef ran", "return x + 2 - 1\n\ndef ran"), ("return x * self.by", "return self.by * x")
    ) == ["always", "scaled", "sign"]
    # Their results do, a list has one element more, and a step has another key.
    assert again(
        ("FACTOR = 2", "FACTOR = 4"),
        ("by: int = 3", "by: int = 7"),
        ("[1, 2]", "[1, 2, 9]"),
        ('"version": 1', '"version": 2'),
    ) == ["always", "element 9", "final", "keyed", "scaled"]
    assert [element.status for element in lab["caching"].steps["element"]] == ["cached", "cached", "succeeded"]
    assert lab["caching"].steps["element"].status == "succeeded"

    # Other inputs, and results that were made without looking: both are found by later runs.
    other = again(argv=("script.py", "--seed", "6"))
    assert other == ["always", "expires", "final", "keyed", "load", "scaled", "sign"]
    assert again(argv=("stoker", "run", "script.py", "--no-cache")) == sorted([*EVERYTHING, "element 9"])
    assert again(argv=("stoker", "run", "script.py")) == ["always"]
    assert lab["caching"].steps["load"].cached_from != f"{first.id}/load"


def test_results_expire(lab: Any) -> None:
    again = Changes(lab)
    again.text = SCRIPT
    assert "expires" in again()
    run = lab["caching"]
    made = run.steps["expires"].ended.timestamp()
    while time.time() < made + 0.35:
        time.sleep(0.01)
    assert again() == ["always", "expires"]
