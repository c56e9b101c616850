"""`stoker rerun` starts a new run like another one; of several drivers that go on with one run, one does."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.waiting import until

TRAIN = """
from pathlib import Path

from helpers import scale
from stoker import pipeline, step

def note(text):
    with open("ran", "a") as file:
        file.write(text + chr(10))

class Rate:
    def __init__(self, value):
        self.value = value

@step
def load(n: int) -> list[int]:
    note("load")
    return list(range(n))

@step
def each(x: int) -> int:
    note(f"each {x}")
    return scale(x)

@step
def total(values: list[int], rate: Rate) -> float:
    note("total")
    return sum(values) * rate.value

@step
def other(n: int) -> int:
    note("other")
    return n

@pipeline
def training(n: int = 3, rate: Rate = Rate(0.5)):
    other(n)
    total(each.map(load(n)), rate)

@pipeline(dynamic=True)
def grown(n: int = 2):
    return total([each(value) for value in load(n)], Rate(1.0))

if __name__ == "__main__":
    import sys
    if "grown" in sys.argv:
        grown()
    else:
        training(4, rate=Rate(2.0))
"""
HELPERS = "def scale(x):\n    return x * FACTOR\n"


def test_a_pipeline_is_run_again_as_it_was_and_changed_as_asked(lab: Any) -> None:
    lab.write("helpers.py", HELPERS.replace("FACTOR", "1")).write("train.py", TRAIN)
    lab.write("run.yaml", "steps:\n  total:\n    environment:\n      MOOD: good\n")
    lab.run("train.py")
    lab.client  # noqa: B018 opened before the file is looked at
    first = lab["training"]
    assert first.origin is None and first.steps["total"].load() == 12.0
    ran = lab.read("ran")

    # As a whole: parameters as they were, also those that are no JSON, and what is known comes from the cache.
    lab.run("stoker", "rerun", first.id, "--config", "run.yaml", "--tag", "again")
    second = lab["training"]
    assert (second.origin, second.steps["total"].load(), second.tags) == (first.id, 12.0, ("again",))
    assert {step.status for step in second.steps.values() if step.count is None} == {"cached"}
    assert lab.read("ran") == ran

    # Changed: another parameter. Settings and tags of the other run's command line count again, its file need not be.
    (lab.folder / "run.yaml").unlink()
    lab.run("stoker", "rerun", second.id, "--n", "2")
    third = lab["training"]
    assert (third.origin, third.steps["total"].load(), third.tags) == (second.id, 2.0, ("again",))
    plan = json.loads(lab.client.store.records.plan(third.id))
    assert any(settings.get("environment") == {"MOOD": "good"} for settings in plan["shared"]["settings"])

    # With the code as it is now, and as it was.
    lab.write("helpers.py", HELPERS.replace("FACTOR", "10"))
    lab.run("stoker", "rerun", first.id)
    assert lab["training"].steps["total"].load() == 120.0
    lab.run("stoker", "rerun", first.id, "--code", "original", "--no-cache")
    fifth = lab["training"]
    assert (fifth.steps["total"].load(), fifth.steps["total"].status) == (12.0, "succeeded")

    # From a step on: what is before it is taken whatever its code says, what is not after it as well.
    before = len(lab.read("ran"))
    lab.run("stoker", "rerun", first.id, "--from", "each")
    run = lab["training"]
    assert sorted(lab.read("ran")[before:]) == ["each 0", "each 1", "each 2", "each 3", "total"], "without the cache"
    assert (run.steps["load"].cached_from, run.steps["other"].cached_from) == (f"{first.id}/load", f"{first.id}/other")
    before = len(lab.read("ran"))
    lab.run("stoker", "rerun", run.id, "--from", "total")
    run = lab["training"]
    assert lab.read("ran")[before:] == ["total"] and run.steps["total"].load() == 120.0
    assert [element.cached_from for element in run.steps["each"]] == [
        f"{run.origin}/each[{index}]" for index in range(4)
    ]
    # A step before it that is given something else is not taken: its result would be a wrong one.
    before = len(lab.read("ran"))
    said = lab.run("stoker", "rerun", first.id, "--from", "total", "--n", "5", "--no-cache")
    assert lab["training"].steps["total"].load() == 200.0
    assert "other: its inputs are others than in the run that is repeated" in said
    assert len(lab.read("ran")[before:]) == 8

    # A dynamic pipeline: the steps that it called before that one.
    lab.run("train.py", "grown")
    grown = lab["grown"]
    before = len(lab.read("ran"))
    lab.run("stoker", "rerun", grown.id, "--from", "each_2")
    again = lab["grown"]
    assert lab.read("ran")[before:] == ["each 1", "total"]
    assert again.steps["total"].load() == grown.steps["total"].load() == 10.0

    for words, message in (
        (["--from", "totl"], "did you mean 'total'"),
        (["--from", "each[1]"], "runs again as a whole"),
        (["--code", "newest"], "neither current nor original"),
        (["--m", "1"], "--m"),
    ):
        assert message in lab.run("stoker", "rerun", first.id, *words, code=2)
    assert "no run is named" in lab.run("stoker", "rerun", code=2)
    assert json.loads(lab.run("stoker", "show", again.id, "--json"))["origin"] == grown.id


def test_a_run_that_repeats_another_goes_on_after_its_driver_was_killed(lab: Any) -> None:
    """What it takes from its origin it takes also when another driver goes on with it; detached ones do as well."""
    lab.write(
        "slow.py",
        """
        import time
        from pathlib import Path
        from stoker import pipeline, step

        def note(text):
            with open("ran", "a") as file:
                file.write(text + chr(10))

        @step(cache=False)
        def one() -> int:
            note("one")
            return 1

        @step(cache=False)
        def two(x: int) -> int:
            while Path("hold").exists():
                Path("waits").touch()
                time.sleep(0.01)
            note("two")
            return x + 1

        @step(cache=False)
        def side() -> int:
            note("side")
            return 5

        @step(cache=False)
        def three(x: int, y: int) -> int:
            note("three")
            return x + y

        @pipeline(max_parallel=1)
        def slow():
            three(two(one()), side())

        if __name__ == "__main__":
            slow()
        """,
    )
    lab.run("slow.py")
    first = lab["slow"]
    (lab.folder / "hold").touch()
    driver = lab.start("stoker", "rerun", first.id, "--from", "two")
    driver.until((lab.folder / "waits").exists)
    run = lab["slow"]
    driver.signal(signal.SIGKILL)
    driver.wait(-signal.SIGKILL)
    (lab.folder / "hold").unlink()
    lab.run("stoker", "resume", run.id)
    run = run.refresh()
    assert (run.status, run.origin, run.steps["three"].load()) == ("succeeded", first.id, 7)
    assert (run.steps["one"].status, run.steps["side"].status) == ("cached", "cached")
    assert sorted(lab.read("ran")) == ["one", "side", "three", "three", "two", "two"]
    lab.run("stoker", "rerun", first.id, "--from", "three", "--detach")
    detached = lab["slow"].wait(120)
    assert (detached.status, detached.steps["two"].cached_from) == ("succeeded", f"{first.id}/two")


WAITS = """
import time
from pathlib import Path
from stoker import pipeline, step

@step
def first() -> int:
    return 1

@step
def second(x: int) -> int:
    while not Path("go").exists():
        Path("waits").touch()
        time.sleep(0.01)
    return x + 1

@step
def third(x: int) -> int:
    return x + 1

@pipeline
def waits():
    third(second(first()))

if __name__ == "__main__":
    waits()
"""


def test_of_three_resumes_one_goes_on_and_the_others_say_who_and_how_far(lab: Any) -> None:
    lab.write("waits.py", WAITS)
    driver = lab.start("waits.py")
    driver.until((lab.folder / "waits").exists)
    run = lab["waits"]
    driver.signal(signal.SIGKILL)
    driver.wait(-signal.SIGKILL)
    drivers = [lab.start("stoker", "resume", run.id) for _ in range(3)]
    until(lambda: sum(one.process.poll() is not None for one in drivers) == 2)
    winner = next(one for one in drivers if one.process.poll() is None)
    holder = lab.client.store.records.run(run.id).driver
    assert holder["pid"] == winner.process.pid
    for one in drivers:
        if one is not winner:
            said = one.wait(2)
            assert f"pid {winner.process.pid} on {holder['host']}, since 20" in said, said
            assert "1 of 3 steps done" in said and "stoker cancel" in said
    (lab.folder / "go").touch()
    winner.wait(0)
    run = run.refresh()
    assert (run.status, run.sessions, run.steps["third"].load()) == ("succeeded", 2, 3)
    # What has succeeded is taken over by nobody, whatever they think of its token.
    row = lab.client.store.records.run(run.id)
    assert not lab.client.store.records.take_over(run.id, expected=row.token, token="x", driver={})
    assert lab.client.store.records.run(run.id) == row
