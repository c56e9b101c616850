"""A run that stopped goes on where it stopped: what is finished stays, what is not runs with the code as it is now."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from tests.waiting import until

TRAIN = """
import os
import time
from pathlib import Path

from stoker import pipeline, step
from stoker.config import LocalSettings

BROKEN = True

def note(text):
    with open("ran", "a") as file:
        file.write(text + chr(10))

def told():
    note("told")

@step(on_success=told)
def load() -> list[int]:
    note("load")
    return [1, 2, 3, 4]

@step
def train(x: int) -> int:
    note(f"train {x}")
    if BROKEN and x == 3:
        raise ValueError("broken at 3")
    return x * 10

@step
def total(values: list[int]) -> int:
    note("total")
    return sum(values)

@pipeline(failure_mode="continue", max_parallel=1)
def training():
    total(train.map(load()))

if __name__ == "__main__":
    training()
"""


def test_after_a_failure_with_the_code_mended(lab: Any) -> None:
    lab.write("train.py", TRAIN).run("train.py", code=1)
    run = lab["training"]
    first = lab.read("ran")
    assert sorted(first) == ["load", "told", "train 1", "train 2", "train 3", "train 4"]
    lab.run("stoker", "resume", run.id, code=1)
    assert lab.read("ran")[len(first) :] == ["train 3"], "only what failed was tried again"
    lab.write("train.py", TRAIN.replace("BROKEN = True", "BROKEN = False"))
    lab.run("stoker", "resume", run.id)
    assert lab.read("ran")[len(first) + 1 :] == ["train 3", "total"]
    run = run.refresh()
    assert (run.status, run.sessions, run.error) == ("succeeded", 3, "")
    assert len(lab.client.runs()) == 1
    assert run.steps["total"].load() == 100
    assert [element.attempt_count for element in run.steps["train"]] == [1, 1, 3, 1]
    assert run.steps["train"].attempt_count == run.steps["train"].as_dict()["attempt_count"] == 3
    assert [attempt.status for attempt in run.steps["train"][2].attempts] == ["failed", "failed", "succeeded"]
    again = lab.read("ran")
    said = lab.run("stoker", "resume", run.id)
    assert lab.read("ran") == again, "a run that succeeded has nothing left to do"
    assert "Traceback" not in said


SLOW = """
import os
import time
from stoker import pipeline, step

@step(timeout=30, environment={"MOOD": "as written"})
def train() -> str:
    if os.environ["MOOD"] != "as asked":
        raise RuntimeError("not like this")
    return os.environ["MOOD"]

@pipeline
def training():
    train()

if __name__ == "__main__":
    training()
"""


def test_a_resumed_run_takes_new_settings_and_refuses_wrong_ones(lab: Any) -> None:
    lab.write("slow.py", SLOW).run("slow.py", code=1)
    run = lab["training"]
    said = lab.run("stoker", "resume", run.id, "--set", "steps.trian.timeout=5", code=2)
    assert "no step 'trian' in this pipeline, did you mean 'train'" in said
    said = lab.run("stoker", "resume", run.id, "--set", "steps.train.resources.cpu_count=512", code=3)
    assert "STK101" in said
    assert run.refresh().sessions == 1, "nobody took the run over"
    lab.run("stoker", "resume", run.id, "--set", "steps.train.environment.MOOD=as asked")
    run = run.refresh()
    assert (run.status, run.steps["train"].load()) == ("succeeded", "as asked")


KILLED = """
import os
import time
from pathlib import Path

from stoker import pipeline, step
from stoker.config import LocalSettings

def note(text):
    with open("ran", "a") as file:
        file.write(text + chr(10))

@step
def numbers() -> list[int]:
    note("numbers")
    return [1, 2, 3, 4]

@step
def element(x: int) -> int:
    if x > 2 and not Path("go").exists():
        Path(f"waits {os.getpid()}").touch()
        time.sleep(300)
    note(f"element {x}")
    return x

@step
def alone() -> int:
    print("alone begins", flush=True)
    if not Path("go").exists():
        Path(f"waits {os.getpid()}").touch()
        time.sleep(300)
    note("alone")
    return 5

@step
def total(values: list[int], other: int) -> int:
    note("total")
    return sum(values) + other

@pipeline(settings={"orchestrator.local": LocalSettings(cpus=3)})
def killed():
    values = element.map(numbers())
    total(values, alone())

if __name__ == "__main__":
    killed()
"""


def test_after_the_driver_was_killed(lab: Any, gone: Callable[[int], bool]) -> None:
    lab.write("killed.py", KILLED)
    driver = lab.start("killed.py")
    driver.until(lambda: len(list(lab.folder.glob("waits *"))) == 3)
    # What has ended is recorded before the next news is waited for.
    run = lab["killed"]
    driver.until(lambda: [element.status for element in run.refresh().steps["element"]].count("succeeded") == 2)
    workers = [int(path.name.split()[1]) for path in lab.folder.glob("waits *")]
    driver.signal(signal.SIGKILL)
    driver.wait(-signal.SIGKILL)
    assert all(gone(pid) for pid in workers), "workers end with their driver"
    run = run.refresh()
    assert run.status == "interrupted"
    assert run.steps["alone"].status == "interrupted"
    assert sorted(lab.read("ran")) == ["element 1", "element 2", "numbers"]

    (lab.folder / "go").touch()
    said = lab.run("stoker", "resume", run.id)
    assert sorted(lab.read("ran")) == ["alone", "element 1", "element 2", "element 3", "element 4", "numbers", "total"]
    run = run.refresh()
    assert (run.status, run.sessions) == ("succeeded", 2)
    assert run.steps["total"].load() == 15
    assert run.steps["alone"].attempts[-1].number == run.steps["alone"].attempt_count == 2
    assert [line.text for line in run.steps["alone"].logs(1)] == ["alone begins"]
    assert [line.text for line in run.steps["alone"].logs(2)] == ["alone begins"]
    assert "total" in said


@pytest.mark.long
def test_two_resumes_at_once_and_one_wins(lab: Any) -> None:
    lab.write("killed.py", KILLED)
    driver = lab.start("killed.py")
    driver.until(lambda: len(list(lab.folder.glob("waits *"))) == 3)
    run = lab["killed"]
    told = lab.run("stoker", "resume", run.id, code=2)
    assert "still running" in told and "stoker cancel" in told
    driver.signal(signal.SIGKILL)
    driver.wait(-signal.SIGKILL)
    for path in lab.folder.glob("waits *"):
        path.unlink()
    both = [lab.start("stoker", "resume", run.id) for _ in range(2)]
    until(lambda: any(one.process.poll() is not None for one in both))
    loser, winner = sorted(both, key=lambda one: one.process.poll() is None)
    said = loser.wait(2)
    assert "taken over" in said or "still running" in said
    winner.until(lambda: len(list(lab.folder.glob("waits *"))) == 3)
    winner.signal(signal.SIGINT)
    winner.wait(130)
    assert run.refresh().status == "cancelled"
    (lab.folder / "go").touch()
    lab.run("stoker", "resume", run.id)
    assert (run.refresh().status, run.steps["total"].load()) == ("succeeded", 15)
    assert sorted(lab.read("ran")) == ["alone", "element 1", "element 2", "element 3", "element 4", "numbers", "total"]


def test_a_driver_that_was_only_stopped_writes_nothing_more(lab: Any) -> None:
    """Another driver took the run over while this one was frozen: it notices, and leaves the run alone."""
    lab.write("killed.py", KILLED)
    driver = lab.start("killed.py")
    driver.until(lambda: len(list(lab.folder.glob("waits *"))) == 3)
    run = lab["killed"]
    store = lab.client.store
    row = store.records.run(run.id)
    assert store.records.take_over(run.id, expected=row.token, token="another", driver={"pid": os.getpid()})
    (lab.folder / "go").touch()
    for path in lab.folder.glob("waits *"):
        psutil.Process(int(path.name.split()[1])).send_signal(signal.SIGTERM)
    said = driver.wait(4)
    assert "taken over by another driver" in said
    assert store.records.run(run.id).token == "another"
    assert run.refresh().steps["total"].status == "pending"


OVERTAKEN = """
import sys

from stoker.cli.main import main
from stoker.store.records import Records

take_over = Records.take_over

def overtaken(self, id, **taking):
    taken = take_over(self, id, **taking)
    assert take_over(self, id, expected=taking["token"], token="another", driver={"pid": 1})
    statement = self.database.sql("UPDATE plans SET plan = ? WHERE run_id = ?")
    assert self.database.change(statement, ("the other driver's", id)) == 1
    return taken

Records.take_over = overtaken
sys.exit(main(["resume", sys.argv[1]]))
"""
"""Resumes a run that another driver takes over at once."""


def test_a_driver_that_is_overtaken_leaves_the_others_plan(lab: Any) -> None:
    lab.write("train.py", TRAIN).run("train.py", code=1)
    run, records = lab["training"], lab.client.store.records
    # A run whose code was sent along: its plan names another package each time that it goes on.
    plan = {**json.loads(records.plan(run.id)), "package": "0" * 64}
    records.database.change("UPDATE plans SET plan = ?", (json.dumps(plan),))
    lab.write("overtaken.py", OVERTAKEN)
    output = lab.start("overtaken.py", run.id).wait(4)
    assert "taken over by another driver" in output
    assert records.plan(run.id) == "the other driver's"


def test_settings_of_the_pipeline_hold_after_a_resume(lab: Any) -> None:
    """`max_parallel=1`: what is left runs one by one, as it did before."""
    lab.write(
        "one.py",
        """
        import time
        from pathlib import Path
        from stoker import pipeline, step
        from stoker.config import LocalSettings

        @step
        def breaks() -> int:
            if not Path("go").exists():
                raise ValueError("not yet")
            return 1

        @step
        def alone(x: int, name: int) -> int:
            Path(f"in {name}").touch()
            time.sleep(0.05)
            found = len(list(Path().glob("in *")))
            Path(f"in {name}").unlink()
            return found

        @pipeline(max_parallel=1, settings={"orchestrator.local": LocalSettings(cpus=4)})
        def one():
            start = breaks()
            for name in range(4):
                alone(start, name)

        if __name__ == "__main__":
            one()
        """,
    )
    lab.run("one.py", code=1)
    (lab.folder / "go").touch()
    run = lab["one"]
    lab.run("stoker", "resume", run.id)
    run = run.refresh()
    assert [step.load() for key, step in run.steps.items() if key != "breaks"] == [1, 1, 1, 1]


FANNED = """
from pathlib import Path
from stoker import pipeline, step

@step(cache=False)
def part(n: int) -> int:
    if n == 2 and not Path("mended").exists():
        raise ValueError("not yet")
    return n

@pipeline(failure_mode="continue")
def fanned():
    part.map([0, 1, 2])

if __name__ == "__main__":
    fanned()
"""


def test_a_resumed_fan_out_began_with_its_first_element(lab: Any) -> None:
    lab.write("fanned.py", FANNED).run("fanned.py", code=1)
    run = lab["fanned"]
    lab.write("mended", "")
    lab.run("stoker", "resume", run.id)
    part = run.refresh().steps["part"]
    assert part.status == "succeeded"
    assert part.started <= part[0].started < part[2].started
