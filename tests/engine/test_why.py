"""`stoker why`: what of a step's key changed since when, also when the files have changed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.client.why import _flat
from stoker.engine.inputs import tree_digest

TRAIN = """
import os
import sys

import helpers
import outside
from stoker import pipeline, step

RATE = 2
API_TOKEN = os.environ.get("GIVEN", "")

@step
def load(n: int) -> list[int]:
    return list(range(n if API_TOKEN is not None else 0))

@step
def each(x: int) -> int:
    return helpers.scale(x)

@step
def total(values: list[int]) -> int:
    if os.environ.get("BREAK"):
        raise RuntimeError("broken")
    return sum(values) * RATE

@step(cache=False)
def never(x: int) -> int:
    return x

@step(cache_expires=0.001)
def short() -> bytes:
    return outside.made()

@step
def large() -> bytes:
    return b"x" * 100_000

@pipeline(failure_mode="continue")
def training(n: int = 3):
    never(n)
    short()
    large()
    total(each.map(load(n)))

if __name__ == "__main__":
    training()
"""
HELPERS = """
def scale(x):
    return x * FACTOR
"""


def _told(run: Any, key: str, **options: Any) -> tuple[str, list[tuple[str, str, str, str]]]:
    answer = run.steps[key].why(**options)
    return answer.reason, [(change.kind, change.name, change.before, change.after) for change in answer.changes]


def test_why_each_step_ran_or_was_cached(lab: Any) -> None:
    lab.write("helpers.py", HELPERS.replace("FACTOR", "1")).write("train.py", TRAIN)
    outside = "__version__ = '{}'\ndef made():\n    return b'made'\n"
    lab.write("site-packages/outside/__init__.py", outside.format("1.0"))
    env = {"PYTHONPATH": str(lab.folder / "site-packages"), "GIVEN": "hf-0123456789abcdef"}
    lab.run("train.py", env=env)
    first = lab["training"]
    assert _told(first, "total") == ("first", [])
    lab.run("train.py", env=env)
    second = lab["training"]
    assert _told(second, "total") == ("cached", [])
    assert second.steps["total"].why().compared_with == f"{first.id}/total"
    assert _told(second, "never") == ("cache-off", [])
    assert _told(second, "short") == ("expired", [])

    # A function in another file, a package, an argument, a constant: each with where it is and how it was.
    lab.write("helpers.py", "# moved\n" + HELPERS.replace("FACTOR", "10"))
    lab.write("train.py", TRAIN.replace("RATE = 2", "RATE = 3"))
    lab.write("site-packages/outside/__init__.py", outside.format("2.0.1"))
    lab.run("train.py", "--n", "4", env=env)
    third = lab["training"]
    lab.write("helpers.py", "something else entirely =")
    answer = third.steps["each"].why()
    assert (answer.step, answer.reason) == ("each[0]", "changed") and answer.text.startswith("4 of 4 elements ran")
    assert answer.compared_with == f"{second.id}/each[0]" and answer.since is not None
    [change] = answer.changes
    assert (change.kind, change.name) == ("code", "helpers.scale")
    assert change.where == f"{lab.folder / 'helpers.py'}:3", "the file as it was then, not as it is now"
    assert "-    return x * 1\n+    return x * 10\n" in change.diff
    assert _told(third, "load") == ("changed", [("argument", "n", "3", "4")])
    assert _told(third, "total")[1][0] == ("value", "train.total → RATE", "2", "3")
    assert _told(third, "total")[1][1][:2] == ("input", "values")
    assert third.steps["total"].why().changes[1].upstream == "each.output"
    assert ("package", "outside 1.0", "outside 2.0.1") in [
        (kind, before, after) for kind, _, before, after in _told(third, "short")[1]
    ]
    # A chosen run in place of the newest.
    assert _told(third, "total", against=first.id)[0] == "changed"

    # What was asked of the run; a failure; a result that the store has lost.
    lab.write("helpers.py", "# moved\n" + HELPERS.replace("FACTOR", "10"))
    lab.run("train.py", "--n", "4", "--no-cache", env=env)
    assert _told(lab["training"], "load") == ("no-cache", [])
    lab.run("train.py", "--n", "4", "--set", 'steps.total.cache_key="other"', env={**env, "BREAK": "1"}, code=1)
    broken = lab["training"]
    assert _told(broken, "total") == ("changed", [("cache_key", "cache_key", "null", "other")])
    blob = Path(lab.client.store.blobs.path(first.steps["large"].output.digest))
    blob.chmod(0o600)
    blob.unlink()
    lab.run("train.py", "--n", "4", "--set", 'steps.total.cache_key="other"', env=env)
    mended = lab["training"]
    assert _told(mended, "large")[0] == "lost"
    assert _told(mended, "total")[0] == "failed" and broken.id in mended.steps["total"].why().text
    lab.run("stoker", "rerun", mended.id, "--from", "total", env=env)
    again = lab["training"]
    assert (_told(again, "total")[0], _told(again, "load")[0]) == ("again", "taken")

    database = lab.client.store.records.database
    texts = [text for (text,) in database.rows("SELECT document FROM recipes")]
    assert any("API_TOKEN" in text for text in texts) and not any(env["GIVEN"] in text for text in texts)
    printed = lab.run("stoker", "why", third.id, "each")
    assert "code helpers.scale changed" in printed and "+    return x * 10" in printed
    document = json.loads(lab.run("stoker", "why", third.id, "each[3]", "--json"))
    assert (document["step"], document["reason"]) == ("each[3]", "first")
    assert "has no step 'ech'" in lab.run("stoker", "why", third.id, "ech", code=2)
    assert f"stoker why {second.id} STEP" in lab.run("stoker", "show", second.id)


FLOW = """
from stoker.flow import FlowSpec, Parameter, cache, step

class Flow(FlowSpec):
    n = Parameter("n", default=2)
    factor = 2

    @cache
    @step
    def start(self):
        self.items = list(range(self.n))
        self.next(self.one, foreach="items")

    @cache
    @step
    def one(self):
        self.x = self.scaled(self.input)
        self.next(self.all)

    def scaled(self, value):
        return value * self.factor

    @step
    def all(self, inputs):
        self.total = sum(found.x for found in inputs)
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Flow()
"""


def test_why_of_a_flow(lab: Any) -> None:
    lab.write("flow.py", FLOW).run("flow.py", "run")
    lab.write("flow.py", FLOW.replace("value * self.factor", "value + self.factor").replace("= 2\n\n", "= 5\n\n"))
    lab.run("flow.py", "run", "--n", "3")
    run = lab["Flow"]
    answer = run.steps["one"][1].why()
    changes = {change.name: change for change in answer.changes}
    assert answer.reason == "changed" and (changes["parameters.n"].before, changes["parameters.n"].after) == ("2", "3")
    assert "+        return value + self.factor" in changes["flow.Flow.scaled"].diff
    assert (changes["Flow.factor"].before, changes["Flow.factor"].after) == ("2", "5")
    assert changes["artifacts.items"].upstream == "start.items"
    assert _told(run, "all")[0] == "cache-off"


def test_inputs_are_told_apart_by_name() -> None:
    """Names of a dict may have everything in them that its digest is written with."""
    leaf = {"value": {"s": "json", "d": "ab"}}
    other = {"value": {"s": "str", "d": "cd"}}
    names = ["a", "b,c", "d}:{", "e'\"", "f\\"]
    for name in names:
        tree = {"dict": {name: {"list": [leaf, {"dict": {name: other}}]}, "last": other}}
        flat = _flat({"given": tree_digest(tree), "plain": tree_digest(leaf)})
        assert list(flat.values()) == [f"[json:ab,{{{name!r}:str:cd}}]", "str:cd", "json:ab"], flat
    assert _flat({"x": "{}", "y": "[json:ab]"}) == {"y": "[json:ab]"}
