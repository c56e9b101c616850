"""Dynamic pipelines: the body sees real values, deals with failures or does not, and goes on after an interruption."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import os
import sys
from typing import Annotated

from stoker import pipeline, step
from stoker.config import LocalSettings
from stoker.core.errors import RunFailed, StokerError

TWO = {"orchestrator.local": LocalSettings(cpus=2)}

@step
def number(x: int) -> int:
    with open("ran", "a") as file:
        file.write(f"number {x}" + chr(10))
    return x

@step
def half(x: int) -> int:
    return x // 2

@step
def pair(x: int) -> tuple[Annotated[int, "less"], Annotated[int, "more"]]:
    return x - 1, x + 1

@step
def fails(x: int) -> int:
    raise ValueError(f"no {x}")

@step
def nothing(x: int) -> None:
    print("x", x)

@step
def meet(mine: str, other: str) -> str:
    import time
    open(mine, "w").close()
    deadline = time.monotonic() + 60
    while not os.path.exists(other):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return mine

@step
def fragile(x: int) -> int:
    with open("ran", "a") as file:
        file.write(f"fragile {x}" + chr(10))
    if not os.path.exists("mended"):
        raise RuntimeError("not yet")
    return x

@pipeline(dynamic=True, settings=TWO)
def values(x: int = 40):
    steps = 0
    while x > 4:
        x = half(x)
        steps += 1
    less, more = pair(x)
    assert (less, more) == (x - 1, x + 1), (less, more)
    assert nothing(x) is None
    one, other = meet.submit("one", "other"), meet.submit("other", "one")
    assert (one.result(), other.result()) == ("one", "other")
    later = pair.submit(10)
    chained = number.submit(later["more"])
    assert chained.result() == 11
    squares = number.map(list(range(more))).result()
    assert squares == list(range(more)), squares
    if sum(squares) > 3:
        number.with_options(id="big")(100)

@pipeline(dynamic=True)
def catches():
    try:
        fails(1)
    except RunFailed as error:
        text = str(error)
    assert "step 'fails' failed" in text and "user-error" in text and "no 1" in text, text
    mapped = fails.map([1, 2])
    try:
        mapped.result()
    except StokerError:
        number(7)

@pipeline(dynamic=True)
def uncaught():
    running = number.submit(3)
    fails(2)

@pipeline(dynamic=True)
def unasked():
    fails.submit(3)
    number(1)

@pipeline(dynamic=True)
def breaks():
    number(1)
    raise KeyError("the body's own")

@pipeline(dynamic=True)
def resumed():
    first = number(1000)
    second = fragile(first + 1)
    number(second + 1)

if __name__ == "__main__":
    wanted = sys.argv[1:] or ["values", "catches", "uncaught", "unasked", "breaks", "resumed"]
    for name in wanted:
        try:
            globals()[name]()
        except RunFailed as error:
            print(f"{name}: RunFailed: {error}")
        except KeyError as error:
            print(f"{name}: KeyError: {error}")
"""


@pytest.fixture(scope="module")
def ran(module_lab: Any) -> Any:
    module_lab.write("script.py", SCRIPT)
    module_lab.said = module_lab.run("script.py")
    return module_lab


def test_the_body_sees_values_and_decides_by_them(ran: Any) -> None:
    run = ran["values"]
    assert run.status == "succeeded", run.error
    keys = list(run.steps)
    assert keys[:4] == ["half", "half_2", "half_3", "half_4"]
    assert "half_5" not in keys and "big" not in keys and keys[-1] == "number_2"
    assert [run.steps[key].load() for key in keys[:4]] == [20, 10, 5, 2]
    assert run.parameters == {"x": 40}


def test_submitted_steps_run_at_the_same_time(ran: Any) -> None:
    one, other = ran["values"].steps["meet"], ran["values"].steps["meet_2"]
    assert max(one.started, other.started) < min(one.ended, other.ended)


def test_a_mapped_step_has_elements(ran: Any) -> None:
    run = ran["values"]
    fanout = next(step for step in run.steps.values() if step.count is not None)
    assert [element.load() for element in fanout] == [0, 1, 2]


def test_a_failure_that_the_body_catches_is_none_of_the_run(ran: Any) -> None:
    run = ran["catches"]
    assert run.status == "succeeded"
    assert [step.status for step in run.steps.values()] == ["failed", "failed", "succeeded"]
    assert run.steps["fails_2"].count == 2


def test_a_failure_that_nobody_catches_is_the_runs(ran: Any) -> None:
    run = ran["uncaught"]
    assert run.status == "failed"
    assert run.steps["fails"].message == "no 2"
    assert "uncaught: RunFailed: run" in ran.said


def test_a_failure_that_nobody_asked_about_is_the_runs(ran: Any) -> None:
    run = ran["unasked"]
    assert run.status == "failed"
    assert run.steps["number"].status in ("succeeded", "cached")
    assert "unasked: RunFailed" in ran.said


def test_an_error_of_the_body_ends_the_run_and_is_recorded(ran: Any) -> None:
    run = ran["breaks"]
    assert run.status == "failed"
    assert "KeyError" in run.error and "the body's own" in run.error
    assert 'breaks: KeyError: "the body\'s own"' in ran.said


def test_resuming_runs_the_body_over_what_is_kept(ran: Any) -> None:
    run = ran["resumed"]
    assert (run.status, run.steps["fragile"].status) == ("failed", "failed")
    before = ran.read("ran")
    (ran.folder / "mended").touch()
    ran.run("stoker", "resume", run.id)
    run = run.refresh()
    assert (run.status, run.sessions) == ("succeeded", 2)
    assert ran.read("ran")[len(before) :] == ["fragile 1001", "number 1002"]
    assert [attempt.number for attempt in run.steps["fragile"].attempts] == [1, 2]
    assert run.steps["number"].attempt_count == 1
    assert [step.load() for step in run.steps.values()] == [1000, 1001, 1002]


def test_ctrl_c_ends_a_body_that_computes(lab: Any) -> None:
    lab.write(
        "body.py",
        """
        import time
        from stoker import pipeline, step

        @step
        def quick() -> int:
            return 1

        @pipeline(dynamic=True)
        def busy():
            quick()
            print("computing", flush=True)
            time.sleep(300)

        if __name__ == "__main__":
            busy()
        """,
    )
    driver = lab.start("body.py")
    driver.until_written("computing")
    driver.signal()
    driver.until_written("stopping")
    driver.signal()
    driver.wait(130)
    assert lab["busy"].status == "cancelled"


def test_what_the_body_writes_stands_behind_the_step_whose_value_it_has(lab: Any) -> None:
    lab.write(
        "steps.py",
        """
        from stoker import pipeline, step

        @step
        def up(x: int) -> int:
            print("in step", x)
            return x + 1

        @pipeline(dynamic=True)
        def climb():
            value = 0
            for _ in range(20):
                value = up(value)
                print("body has", value, flush=True)

        if __name__ == "__main__":
            climb()
        """,
    )
    lines = lab.run("steps.py").partition("\n\n")[0].splitlines()
    kinds = ["body" if "body" in line else "line" if "│" in line else "end" for line in lines]
    assert kinds == ["line", "end", "body"] * 20, lines
