"""Thousands of steps in every shape: the right result, a small driver, and no more work for a step than among a few."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

MANY, MANY_OF_THE_LONG_FORM = 1_500, 10_000
EMPTY, EACH = 36 * 2**20, 12_000
"""Bytes that the driver's memory may reach, and how many more for each step."""
SIZES = (80, 240, 640)
"""What a step more costs between the first two and between the last two is compared: starting up costs the same."""
GROWTH = 1.5
"""By how much that may seem to grow: how often the driver wakes up differs from run to run. Squares would make it 3."""
STATEMENTS = 10
"""SQL statements for a step at most: those of one transaction, for a step that is recorded alone."""

FLOW = """
import json, os, sys
from stoker import pipeline, step

@step(cache=False)
def plus(number: int) -> int:
    if str(number) == os.environ.get("BROKEN"):
        raise ValueError(number)
    return number + 1

@step(cache=False)
def numbers(count: int) -> list[int]:
    return list(range(count))

@step(cache=False)
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def chain(count: int):
    number = 0
    for _ in range(count):
        number = plus(number)
    total([number])

@pipeline
def gathered(count: int):
    total([plus(number) for number in range(count)])

@pipeline
def fan_out(count: int):
    total(plus.map(numbers(count)))

@pipeline
def fan_outs(count: int):
    total(plus.map(plus.map(numbers(count))))

def peak():
    # Not getrusage: what a process inherits from the one that started it counts there, too.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def counted(run, found):
    # Lines of Python that the driver executes, and calls of C functions by name.
    def trace(frame, event, argument):
        found["lines"] += 1
        return trace
    def profile(frame, event, function):
        if event == "c_call":
            found["calls"] += 1
            if function.__name__ in ("execute", "executemany"):
                found["statements"] += 1
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        return run()
    finally:
        sys.settrace(None)
        sys.setprofile(None)

if __name__ == "__main__":
    found = {"lines": 0, "calls": 0, "statements": 0}
    if sys.argv[1] == "resume":
        from stoker.core.request import RunRequest
        from stoker.run.driver import resume
        run = resume(sys.argv[2], RunRequest())
    else:
        shape, count = globals()[sys.argv[1]], int(sys.argv[2])
        run = counted(lambda: shape(count), found) if sys.argv[3] == "counts" else shape(count)
    json.dump({**found, "run": run.id, "result": run.steps["total"].output.load(), "peak": peak()}, sys.stdout)
"""

SHAPES = {
    "chain": lambda count: count,
    "gathered": lambda count: sum(range(1, count + 1)),
    "fan_out": lambda count: sum(range(1, count + 1)),
}
MORE_SHAPES = {**SHAPES, "fan_outs": lambda count: sum(range(2, count + 2))}
"""shape → what its last step returns"""


@pytest.fixture
def many(long_form: bool) -> int:
    """How many steps there are."""
    return MANY_OF_THE_LONG_FORM if long_form else MANY


@pytest.fixture
def flow(project: Any) -> Any:
    if not Path("/proc/self/status").exists():
        pytest.skip("a process's highest memory is only readable on Linux")
    return project.write({"flow.py": FLOW})


def program(flow: Any, *words: str, **options: Any) -> Any:
    """The script in an interpreter of its own: what the server that forks tests' programs has imported would count."""
    return flow.command([sys.executable, "-u", "flow.py", *words], timeout=240, **options)


def run(flow: Any, shape: str, count: int, what: str) -> dict[str, Any]:
    """One run in a process of its own: what it found out about itself."""
    told: dict[str, Any] = json.loads(program(flow, shape, str(count), what).stdout)
    assert told["result"] == MORE_SHAPES[shape](count)
    return told


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", ["fan_out", *(pytest.param(one, marks=pytest.mark.long) for one in ("chain", "gathered"))]
)
def test_thousands(shape: str, many: int, flow: Any) -> None:
    told = run(flow, shape, many, "memory")
    assert told["peak"] <= EMPTY + EACH * many, f"{told['peak'] / 2**20:.0f} MiB"
    rows = flow.rows("SELECT status, count(*) AS number FROM steps WHERE run_id = ? GROUP BY status", told["run"])
    assert rows == [{"status": "succeeded", "number": many + (1 if shape != "fan_out" else 3)}]
    attempts = flow.rows("SELECT status, count(*) AS number FROM attempts GROUP BY status")
    assert attempts == [{"status": "succeeded", "number": many + (1 if shape != "fan_out" else 2)}]


@pytest.mark.parametrize(
    "shape", ["chain", "fan_outs", *(pytest.param(one, marks=pytest.mark.long) for one in ("gathered", "fan_out"))]
)
def test_the_work_for_a_step_does_not_grow(shape: str, flow: Any) -> None:
    told = [run(flow, shape, count, "counts") for count in SIZES]
    for what in ("lines", "calls"):
        small, middle, large = (one[what] for one in told)
        before = (middle - small) / (SIZES[1] - SIZES[0])
        after = (large - middle) / (SIZES[2] - SIZES[1])
        assert after <= before * GROWTH, f"{what}: {before:.1f} for a step among few, {after:.1f} among many"
    assert (told[2]["statements"] - told[1]["statements"]) / (SIZES[2] - SIZES[1]) <= STATEMENTS


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["fan_out", pytest.param("chain", marks=pytest.mark.long)])
def test_thousands_that_go_on(shape: str, many: int, flow: Any) -> None:
    """One in the middle fails; resumed, what was done is kept, the rest runs, and the driver is no larger."""
    told = program(flow, shape, str(many), "memory", env={"BROKEN": str(many // 2)}, code=None)
    assert told.returncode != 0
    (row,) = flow.rows("SELECT id, status FROM runs")
    assert row["status"] == "failed"
    done = flow.rows("SELECT key, started FROM steps WHERE status = 'succeeded' ORDER BY key")
    assert len(done) >= many // 2
    resumed = json.loads(program(flow, "resume", row["id"], "memory").stdout)
    assert resumed["result"] == MORE_SHAPES[shape](many)
    assert resumed["peak"] <= EMPTY + EACH * many, f"{resumed['peak'] / 2**20:.0f} MiB"
    after = {one["key"]: one["started"] for one in flow.rows("SELECT key, started FROM steps")}
    assert all(after[one["key"]] == one["started"] for one in done)
    again = flow.rows("SELECT count(*) AS number FROM attempts WHERE status = 'succeeded'")
    assert again == [{"number": many + (1 if shape == "chain" else 2)}]
