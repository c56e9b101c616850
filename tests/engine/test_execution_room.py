"""How much runs at once, in which process, with what around it, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import os
import sys
import time
from pathlib import Path

from stoker import pipeline, step
from stoker.config import LocalSettings, ResourceSettings
from stoker.core.errors import PreflightError
from stoker.core.request import REQUEST, RunRequest

def crowd(name, seconds=0.03):
    "How many were here at once, seen by one who is here."
    mine = Path("inside") / f"{name} {os.getpid()} {time.time_ns()}"
    mine.parent.mkdir(exist_ok=True)
    mine.touch()
    most = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, sum(path.name.startswith(name + " ") for path in mine.parent.iterdir()))
        time.sleep(0.003)
    mine.unlink()
    return most

@step(cache=False)
def plain(x: int) -> int:
    return crowd("plain")

@step(cache=False, resources=ResourceSettings(cpu_count=2))
def wide(x: int) -> int:
    return crowd("plain") + 100 * crowd("wide")

@step(cache=False, resources=ResourceSettings(cpu_count=0.25))
def narrow(x: int) -> int:
    "Ends when four were here at once."
    Path(f"narrow {x}").touch()
    deadline = time.monotonic() + 60
    while len(list(Path().glob("narrow *"))) < 4:
        assert time.monotonic() < deadline, "they do not run at once"
        time.sleep(0.003)
    return x

@step(cache=False, resources=ResourceSettings(cpu_count=0.1, memory="600MB"))
def hungry(x: int) -> int:
    return crowd("hungry")

@step(resources=ResourceSettings(cpu_count=64))
def huge() -> int:
    Path("ran").touch()
    return 1

@step(resources=ResourceSettings(memory="100TB"))
def fat() -> int:
    Path("ran").touch()
    return 1

@step(cache=False)
def first() -> int:
    Path("ran").touch()
    return 1

@step(isolation="fresh", cache=False, environment={"STOKER_TEST_COLOUR": "red", "PATH": "/nowhere"})
def fresh(x: int) -> list[str]:
    os.environ["LEAKS"] = "yes"
    return [str(os.getpid()), os.environ["STOKER_TEST_COLOUR"], os.environ["PATH"], os.environ.get("LEAKS_BEFORE", "")]

@step(cache=False, environment={"STOKER_TEST_COLOUR": "blue"})
def warm(x: int) -> list[str]:
    return [str(os.getpid()), os.environ["STOKER_TEST_COLOUR"], os.environ.get("LEAKS", "")]

@step(cache=False)
def bare(x: int) -> list[str]:
    return [str(os.getpid()), os.environ.get("STOKER_TEST_COLOUR", "none")]

@pipeline(settings={"orchestrator.local": LocalSettings(cpus=2, memory="1GB")})
def room():
    for x in range(6):
        plain(x)
    wide(1)
    plain.map([6, 7, 8, 9])
    hungry.map([1, 2, 3])

@pipeline(settings={"orchestrator.local": LocalSettings(cpus=2)})
def shared():
    narrow.map(list(range(6)))

@pipeline(max_parallel=1, settings={"orchestrator.local": LocalSettings(cpus=4)})
def single():
    plain.map(list(range(4)))
    plain(0)

@pipeline(settings={"orchestrator.local": LocalSettings(cpus=1)})
def around():
    for x in range(2):
        fresh(x)
    for x in range(2):
        warm(x)
    bare(0)

@pipeline(settings={"orchestrator.local": LocalSettings(cpus=2)})
def too_big():
    first()
    huge()
    fat()

@pipeline(dynamic=True, settings={"orchestrator.local": LocalSettings(cpus=2)})
def too_big_later():
    first()
    huge()

@step(cache=False)
def inline(x: int) -> list[int]:
    print("inline speaks")
    return [os.getpid(), crowd("inline", 0.01), x]

@step
def inline_fails(x: int) -> int:
    raise ValueError("in the driver")

@pipeline(failure_mode="continue")
def debugged():
    inline(1)
    inline.map([2, 3])
    inline_fails(4)

@pipeline(dynamic=True)
def debugged_dynamic():
    assert inline(1)[2] == 1
    assert inline.submit(2).result()[2] == 2

if __name__ == "__main__":
    REQUEST.set(RunRequest(debug="--inline" in os.environ.get("HOW", "")))
    names = os.environ["PIPELINES"].split()
    for name in names:
        try:
            globals()[name]()
        except PreflightError as error:
            if len(names) == 1:
                raise
            print(f"{name} refused: {error} {[finding.code for finding in error.findings]}")
    print("driver", os.getpid())
"""


@pytest.fixture(scope="module")
def rooms(module_lab: Any) -> Any:
    module_lab.write("script.py", SCRIPT)
    module_lab.said = module_lab.run("script.py", env={"PIPELINES": "room shared single around"})
    return module_lab


def _loads(step: Any) -> list[Any]:
    return [element.load() for element in step] if step.count is not None else [step.load()]


def test_steps_of_one_cpu_each_never_exceed_the_machine(rooms: Any) -> None:
    run = rooms["room"]
    plain = [seen for key, step in run.steps.items() if key.startswith("plain") for seen in _loads(step)]
    assert len(plain) == 10 and max(plain) == 2, "two at once, and not more"


def test_a_step_that_asks_for_all_runs_alone(rooms: Any) -> None:
    assert rooms["room"].steps["wide"].load() == 101


def test_memory_is_counted_too(rooms: Any) -> None:
    assert _loads(rooms["room"].steps["hungry"]) == [1, 1, 1]


def test_parts_of_a_cpu_share_it(rooms: Any) -> None:
    assert rooms["shared"].status == "succeeded", rooms["shared"].steps["narrow"].message


def test_max_parallel_limits_a_run(rooms: Any) -> None:
    run = rooms["single"]
    assert [seen for step in run.steps.values() for seen in _loads(step)] == [1] * 5


def test_fresh_steps_have_a_process_each_and_warm_ones_share(rooms: Any) -> None:
    steps = rooms["around"].steps
    fresh, warm = [[steps[key].load()[0] for key in (name, f"{name}_2")] for name in ("fresh", "warm")]
    assert len({*fresh, *warm}) == 3
    assert warm[0] == warm[1]
    assert rooms.said.split("driver ")[1].strip() not in (*fresh, *warm)


def test_the_environment_is_the_steps_own(rooms: Any) -> None:
    steps = rooms["around"].steps
    assert steps["fresh"].load()[1:3] == ["red", "/nowhere"]
    assert steps["warm"].load()[1:] == steps["warm_2"].load()[1:] == ["blue", ""]
    assert steps["bare"].load()[1] == "none"


def test_a_request_beyond_the_machine_is_refused_before_anything_runs(lab: Any) -> None:
    lab.write("script.py", SCRIPT)
    said = lab.run("script.py", code=3, env={"PIPELINES": "too_big"})
    assert "STK101" in said and "asks for 64 CPUs; this machine has 2" in said
    assert "STK102" in said and "of memory" in said, "every reason is told at once"
    assert "script.py:" in said and "step 'huge'" in said and "resources.cpu_count=2" in said
    assert not (lab.folder / "ran").exists() and not lab.client.runs()
    assert "STK101" in lab.run("stoker", "run", "script.py:too_big", code=3, env={"PIPELINES": ""})


def test_a_dynamic_pipeline_is_refused_where_it_asks(lab: Any) -> None:
    lab.write("script.py", SCRIPT)
    said = lab.run("script.py", code=3, env={"PIPELINES": "too_big_later"})
    assert "STK101" in said and "step 'huge'" in said
    run = lab["too_big_later"]
    assert (run.status, list(run.steps)) == ("failed", ["first"])
    assert "STK101" in run.error


@pytest.mark.parametrize("how", [["script.py"], ["stoker", "run", "script.py:debugged", "--debug"]])
def test_debug_runs_every_step_in_the_driver_one_by_one(lab: Any, how: list[str]) -> None:
    lab.write("script.py", SCRIPT)
    pipelines = "debugged debugged_dynamic" if how == ["script.py"] else ""
    driver = lab.start(*how, env={"PIPELINES": pipelines, "HOW": "--inline"})
    said = driver.wait(1)
    run = lab["debugged"]
    pid = driver.process.pid
    assert run.steps["inline"].load() == [pid, 1, 1]
    assert [element.load() for element in run.steps["inline_2"]] == [[pid, 1, 2], [pid, 1, 3]]
    assert said.count("inline speaks") >= 3
    failed = run.steps["inline_fails"]
    assert (run.status, failed.status, failed.cause, failed.message) == (
        "failed",
        "failed",
        "user-error",
        "in the driver",
    )


def test_debug_runs_a_dynamic_pipeline_too(lab: Any) -> None:
    driver = lab.write("script.py", SCRIPT).start("script.py", env={"PIPELINES": "debugged_dynamic", "HOW": "--inline"})
    driver.wait(0)
    run = lab["debugged_dynamic"]
    assert run.status == "succeeded"
    assert [step.load()[0] for step in run.steps.values()] == [driver.process.pid] * 2
