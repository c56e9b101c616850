"""Artifacts that are lost or damaged are computed again, a wrong value is never used; a store that disappears under a
run ends it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DAMAGED = """
import os
import sys
from pathlib import Path
from typing import Annotated

import numpy as np

from stoker import pipeline, step

HOW, WHOLE = os.environ.get("HOW", ""), 499999500000

def damage():
    if not HOW or os.path.exists("damaged"):
        return
    Path("damaged").touch()
    for path in Path(os.environ["STOKER_HOME"]).glob("artifacts/objects/*/*"):
        if path.stat().st_size < 300_000:
            continue
        if HOW == "lost":
            path.unlink()
            continue
        path.chmod(0o644)
        if HOW == "cut":
            os.truncate(path, 5000)
            continue
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)

def note(text):
    with open("ran", "a") as file:
        file.write(text + chr(10))

@step
def array(n: int) -> Annotated[np.ndarray, "array"]:
    note("array")
    return np.arange(n, dtype=np.int64)

@step
def parts(n: int) -> list[bytes]:
    note("parts")
    return [bytes([number]) * 400_000 for number in range(n)]

@step
def before(values: np.ndarray) -> int:
    damage()
    return 1

@step
def total(values: np.ndarray, one: int) -> int:
    note("total")
    return int(values.sum())

@step
def length(part: bytes, one: int) -> bytes:
    damage()
    return part[:300_001] + b"."

@step
def lengths(parts: list[bytes]) -> list[int]:
    return [len(part) + part[0] for part in parts]

@pipeline
def summing(n: int = 1_000_000):
    values = array(n)
    total(values, before(values))

@pipeline(max_parallel=1)
def mapping(n: int = 3):
    lengths(length.map(parts(n), one=1))

if __name__ == "__main__":
    if sys.argv[1] == "summing":
        run = summing()
        assert run.steps["total"].output.load() == WHOLE
    else:
        run = mapping()
        assert run.steps["lengths"].output.load() == [300_002, 300_003, 300_004]
"""


@pytest.mark.parametrize("how", ["flipped", pytest.param("cut", marks=pytest.mark.long)])
def test_a_lost_input_is_computed_again(lab: Any, how: str) -> None:
    """While the run goes on, by the step that made it; hit or fresh makes no difference."""
    lab.write("damaged.py", DAMAGED)
    text = lab.run("damaged.py", "summing", env={"HOW": how})
    run = lab["summing"]
    assert run.status == "succeeded" and "array runs again" in text
    assert lab.read("ran") == ["array", "array", "total"]
    failures = [attempt.failure for attempt in run.steps["before"].attempts]
    assert [failure and failure.cause for failure in failures] == ["damaged-input", None]
    assert run.steps["array"].output.load().sum() == 499999500000

    (Path(lab.folder) / "damaged").unlink()
    text = lab.run("damaged.py", "mapping", env={"HOW": how})
    run = lab["mapping"]
    assert run.status == "succeeded"
    assert [element.status for element in run.steps["length"]] == ["succeeded"] * 3
    assert "parts runs again" in text


@pytest.mark.parametrize("how", ["flipped", pytest.param("lost", marks=pytest.mark.long)])
def test_a_hit_needs_its_blobs(lab: Any, how: str) -> None:
    """Between two runs: what a step reads is computed again, also where the large array's step itself is a hit."""
    lab.write("damaged.py", DAMAGED)
    lab.run("damaged.py", "summing")
    lab.run("-c", f"import damaged; damaged.HOW = '{how}'; damaged.damage()")
    # A new consumer of the cached array.
    changed = DAMAGED.replace("int(values.sum())", "int(values.sum()) + 0 * len(values)")
    lab.write("damaged.py", changed)
    lab.run("damaged.py", "summing")
    # Whether the content of a large blob is right is seen by the step that reads it; it runs again then.
    refused = ["total"] if how == "flipped" else []
    assert lab.read("ran") == ["array", "total", *refused, "array", "total"]
    assert lab["summing"].status == "succeeded"


def test_a_resumed_run_computes_what_was_lost(lab: Any) -> None:
    """Between a run's end and its resumption; a finished step whose output is lost is not finished any more."""
    failing = DAMAGED.replace("return int(values.sum())", "raise ValueError('not yet')")
    lab.write("damaged.py", failing).run("damaged.py", "summing", code=1)
    run = lab["summing"]
    lab.run("-c", "import damaged; damaged.HOW = 'lost'; damaged.damage()")
    lab.write("damaged.py", DAMAGED)
    lab.run("stoker", "resume", run.id)
    run = lab["summing"]
    assert (run.status, run.steps["total"].output.load()) == ("succeeded", 499999500000)
    assert lab.read("ran") == ["array", "total", "array", "total"]


def test_a_lost_input_that_no_step_made_fails_with_its_cause(lab: Any) -> None:
    text = DAMAGED.replace("    values = array(n)\n", "    values = np.arange(n, dtype=np.int64)\n")
    lab.write("damaged.py", text)
    output = lab.run("damaged.py", "summing", code=1, env={"HOW": "flipped"})
    step = lab["summing"].steps["before"]
    assert (step.status, step.cause) == ("failed", "damaged-input")
    assert "is damaged" in step.message and "damaged-input" in output


FLOW = """
import os
from pathlib import Path

import numpy as np

from stoker.flow import FlowSpec, step

class Damage(FlowSpec):
    @step
    def start(self):
        self.values = np.arange(1_000_000, dtype=np.int64)
        self.next(self.middle)

    @step
    def middle(self):
        if not os.path.exists("damaged"):
            Path("damaged").touch()
            for path in Path(os.environ["STOKER_HOME"]).glob("artifacts/objects/*/*"):
                if path.stat().st_size > 300_000:
                    path.chmod(0o644)
                    data = bytearray(path.read_bytes())
                    data[5_000_000] ^= 1
                    path.write_bytes(data)
        self.next(self.end)

    @step
    def end(self):
        self.total = int(self.values.sum())
        print("total", self.total)

if __name__ == "__main__":
    Damage()
"""


def test_a_flow_says_what_is_damaged_and_a_resumption_heals_it(lab: Any) -> None:
    """By the commands that the failure names: both are run as they are printed."""
    lab.write("flow.py", FLOW)
    output = lab.run("flow.py", "run", code=1)
    run = lab["Damage"]
    assert "damaged-input" in output and f"stoker resume {run.id}" in output
    lab.run("flow.py", "resume")
    repeated = lab["Damage"]
    assert repeated.id != run.id and repeated.status == "succeeded"
    assert "total 499999500000" in lab.run("stoker", "logs", repeated.id, "end")
    lab.run("stoker", "resume", run.id)
    assert lab.run("stoker", "show", run.id).count("succeeded") >= 3
    assert "total 499999500000" in lab.run("stoker", "logs", run.id, "end")


@pytest.mark.long
def test_a_finished_flow_whose_artifact_is_damaged_later_is_repeated(lab: Any) -> None:
    lab.write("flow.py", FLOW.replace('not os.path.exists("damaged")', "False"))
    lab.run("flow.py", "run")
    run = lab["Damage"]
    lab.write("damaged.py", DAMAGED)
    lab.run("-c", "import damaged; damaged.HOW = 'flipped'; damaged.damage()")
    output = lab.run("flow.py", "resume", "end", code=1)
    assert "damaged-input" in output
    failed = lab["Damage"]
    lab.run("flow.py", "resume", "--origin-run-id", run.id, "end")
    assert lab["Damage"].status == "succeeded"
    lab.run("stoker", "resume", failed.id)
    assert "total 499999500000" in lab.run("stoker", "logs", failed.id, "end")


VANISHING = """
import os
import shutil

from stoker import pipeline, step

HOME = os.environ["STOKER_HOME"]

@step
def first() -> bytes:
    return b"x" * 10_000

@step
def vanish(data: bytes) -> int:
    what = os.environ["WHAT"]
    if what == "home":
        shutil.rmtree(HOME)
    elif what == "database":
        os.unlink(HOME + "/stoker.db")
    elif what == "artifacts":
        shutil.rmtree(HOME + "/artifacts")
    elif what == "renewed":
        os.rename(HOME + "/artifacts", HOME + "/elsewhere")
        os.makedirs(HOME + "/artifacts/objects")
    return 1

@step
def last(one: int) -> bytes:
    return b"y" * 10_000

@pipeline
def vanishing():
    last(vanish(first()))

if __name__ == "__main__":
    vanishing()
"""


@pytest.mark.parametrize(
    "what", ["database", "renewed", *(pytest.param(one, marks=pytest.mark.long) for one in ("home", "artifacts"))]
)
def test_a_store_that_disappears_ends_the_run(lab: Any, what: str) -> None:
    lab.write("vanishing.py", VANISHING)
    output = lab.run("stoker", "run", "vanishing.py", code=4, env={"WHAT": what})
    assert "was removed, replaced or unmounted" in output
    assert "✓ vanishing" not in output and "inside Stoker" not in output


def test_also_at_the_very_end(lab: Any) -> None:
    """Where nothing is written after it: the last step of all takes the store away."""
    lab.write("vanishing.py", VANISHING.replace("last(vanish(first()))", "vanish(first())"))
    output = lab.run("stoker", "run", "vanishing.py", code=4, env={"WHAT": "home"})
    assert "was removed, replaced or unmounted" in output
