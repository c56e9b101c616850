"""Static pipelines with real processes: what runs when and with how much at once, on what, and what comes out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

SHAPES = """
import os
import time
from pathlib import Path
from typing import Annotated

from stoker import each, pipeline, step
from stoker.config import LocalSettings
from stoker.core.errors import RunFailed

TWO = {"orchestrator.local": LocalSettings(cpus=2)}

@step
def numbers(count: int) -> list[int]:
    return list(range(count))

@step
def plus(x: int, y: int = 1) -> int:
    return x + y

@step
def times(x: int, y: int) -> int:
    return x * y

@step
def total(values: list[int]) -> int:
    return sum(values)

@step
def meet(mine: str, other: str, start: int) -> str:
    "Ends well only while the other one runs, too."
    Path(mine).touch()
    deadline = time.monotonic() + 60
    while not Path(other).exists():
        assert time.monotonic() < deadline, f"{other} never came"
        time.sleep(0.002)
    return mine

@step
def join(left: str, right: str, pair: list[str], named: dict[str, str]) -> str:
    return "+".join([left, right, *pair, *named.values()])

@step
def note(text: str) -> None:
    with open("notes", "a") as file:
        file.write(text + chr(10))

@step
def anything():
    return 5

@step
def several() -> tuple[int, str]:
    return 7, "seven"

@step
def named() -> tuple[Annotated[int, "count"], Annotated[str, "word"]]:
    return 8, "eight"

@step
def single() -> Annotated[float, "loss"]:
    return 0.5

@pipeline
def chain(x: int = 1):
    plus(plus(plus(x)))

@pipeline(settings=TWO)
def diamond():
    start = plus(0)
    left, right = meet("left", "right", start), meet("right", "left", start)
    join(left, right, [left, "x"], {"key": right})

@pipeline(settings=TWO)
def fan(count: int = 5):
    total(times.map(plus.map(numbers(count)), y=10))

@pipeline
def zipped():
    total(times.map(numbers(3), each([10, 100, 1000])))

@pipeline
def fixed():
    times.map(each([1, 2, 3]), y=plus(1))

@pipeline
def unequal():
    times.map(numbers(3), [1, 2])

@pipeline
def empty():
    total(plus.map(numbers(0)))

@pipeline(settings=TWO)
def ordered():
    first = note.with_options(id="late-name")("first")
    note.with_options(after=first)("second")
    note.with_options(after=["note"], id="third")("third")

@pipeline
def inner(x: int):
    return plus(plus(x))

@pipeline
def nested():
    total([inner(1), inner(10)])

@pipeline
def results():
    number, word = several()
    both = named()
    single()
    join(word, both["word"], [both[1]], {})
    note("nothing")

@pipeline
def uncounted():
    plus.map(anything())

if __name__ == "__main__":
    for run in (chain, diamond, fan, zipped, fixed, unequal, empty, ordered, nested, results, uncounted):
        try:
            run()
        except RunFailed as error:
            print(f"{run.name} failed: {error}")
"""


@pytest.fixture(scope="module")
def shapes(module_lab: Any) -> Any:
    module_lab.write("shapes.py", SHAPES)
    module_lab.said = module_lab.run("shapes.py")
    return module_lab


def test_a_chain_runs_in_order(shapes: Any) -> None:
    run = shapes["chain"]
    assert run.status == "succeeded"
    steps = list(run.steps.values())
    assert [step.key for step in steps] == ["plus", "plus_2", "plus_3"]
    assert [step.load() for step in steps] == [2, 3, 4]
    for before, after in pairwise(steps):
        assert before.ended <= after.started, "a step began before the one that it needs had ended"
    assert all(len(step.attempts) == 1 and step.attempts[0].status == "succeeded" for step in steps)
    assert run.started <= steps[0].started <= steps[-1].ended <= run.ended


def test_the_arms_of_a_diamond_run_at_the_same_time(shapes: Any) -> None:
    run = shapes["diamond"]
    assert run.status == "succeeded", run.steps["meet"].message
    left, right = run.steps["meet"], run.steps["meet_2"]
    assert max(left.started, right.started) < min(left.ended, right.ended)
    assert run.steps["join"].load() == "left+right+left+x+right"
    assert run.steps["join"].started >= max(left.ended, right.ended)


def test_a_fan_out_over_a_run_time_list_is_reduced(shapes: Any) -> None:
    run = shapes["fan"]
    assert run.steps["total"].load() == 10 * sum(range(1, 6))
    assert [run.steps[key].count for key in ("numbers", "plus", "times", "total")] == [None, 5, 5, None]
    assert [element.load() for element in run.steps["times"]] == [10, 20, 30, 40, 50]
    assert run.steps["plus"].outputs["output"].load() == [1, 2, 3, 4, 5]
    assert run.steps["times"][3].index == 3


def test_a_map_over_a_map_does_not_wait_for_all_elements(shapes: Any) -> None:
    run = shapes["fan"]
    assert run.steps["times"][0].started >= run.steps["plus"][0].ended
    assert len(run.steps["times"]) == 5


def test_lists_are_zipped_and_the_rest_is_fixed(shapes: Any) -> None:
    assert shapes["zipped"].steps["total"].load() == 0 * 10 + 1 * 100 + 2 * 1000
    assert [element.load() for element in shapes["fixed"].steps["times"]] == [2, 4, 6]


def test_lists_of_unequal_length_fail_with_their_lengths(shapes: Any) -> None:
    run = shapes["unequal"]
    step = run.steps["times"]
    assert (run.status, step.status, step.cause) == ("failed", "failed", "input-error")
    assert "differ in length" in step.message and "x has 3" in step.message and "y has 2" in step.message
    assert "step 'times'" in step.message and "shapes.py:" in step.message
    assert run.steps["numbers"].status in ("succeeded", "cached")


def test_what_is_no_list_cannot_be_mapped_over(shapes: Any) -> None:
    run = shapes["uncounted"]
    assert run.status == "failed"
    failed = next(step for step in run.steps.values() if step.status == "failed")
    assert "int" in failed.message and "list" in failed.message


def test_an_empty_list_makes_no_element_and_an_empty_result(shapes: Any) -> None:
    run = shapes["empty"]
    assert run.status == "succeeded"
    assert (run.steps["plus"].count, run.steps["plus"].status, list(run.steps["plus"])) == (0, "succeeded", [])
    assert run.steps["plus"].load() == []
    assert run.steps["total"].load() == 0


def test_after_orders_steps_and_id_names_them(shapes: Any) -> None:
    run = shapes["ordered"]
    assert list(run.steps) == ["late-name", "note", "third"]
    assert shapes.read("notes")[:3] == ["first", "second", "third"]
    assert all(not step.outputs for step in run.steps.values())


def test_a_pipeline_in_a_pipeline_has_steps_of_its_own(shapes: Any) -> None:
    run = shapes["nested"]
    assert run.steps["total"].load() == 3 + 12
    assert list(run.steps) == ["inner.plus", "inner.plus_2", "inner_2.plus", "inner_2.plus_2", "total"]


def test_outputs_by_tuple_and_by_name(shapes: Any) -> None:
    steps = shapes["results"].steps
    assert [output.load() for output in steps["several"].outputs.values()] == [7, "seven"]
    assert {name: output.load() for name, output in steps["named"].outputs.items()} == {"count": 8, "word": "eight"}
    assert steps["single"].outputs["loss"].load() == 0.5
    assert steps["join"].load() == "seven+eight+eight"
    assert steps["note"].status == "succeeded" and not steps["note"].outputs


def test_equal_inputs_are_computed_once(shapes: Any) -> None:
    """`plus(1)` of the first pipeline is what later ones find."""
    found = shapes["fixed"].steps["plus"]
    assert found.status == "cached"
    assert found.cached_from == f"{shapes['chain'].id}/plus"


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


def test_a_users_own_file_may_have_the_name_of_a_framework(lab: Any) -> None:
    lab.write("torch.py", "NAME = 'mine'\n")
    lab.write("numpy.py", "NAME = 'mine'\n")
    lab.write(
        "script.py",
        "import numpy, torch\nfrom stoker import pipeline, step\n\n@step\ndef named(given: list) -> list:\n"
        "    return [torch.NAME, numpy.NAME, given]\n\n@pipeline\ndef names():\n    named(named([{1}]))\n\nnames()\n",
    )
    lab.run("script.py")
    assert lab["names"].steps["named_2"].load() == ["mine", "mine", ["mine", "mine", [{1}]]]


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


@pytest.mark.parametrize(
    "how",
    [["script.py"], pytest.param(["stoker", "run", "script.py:debugged", "--debug"], marks=pytest.mark.long)],
    ids=["script", "command"],
)
def test_debug_runs_every_step_in_the_driver_one_by_one(lab: Any, how: list[str]) -> None:
    lab.write("script.py", SCRIPT)
    pipelines = "debugged_dynamic debugged" if how == ["script.py"] else ""
    driver = lab.start(*how, env={"PIPELINES": pipelines, "HOW": "--inline"})
    said = driver.wait(1)
    run = lab["debugged"]
    pid = driver.process.pid
    assert run.steps["inline"].load() == [pid, 1, 1]
    assert [element.load() for element in run.steps["inline_2"]] == [[pid, 1, 2], [pid, 1, 3]]
    assert said.count("inline speaks") >= 3
    for dynamic in lab.client.runs(pipeline="debugged_dynamic"):
        assert dynamic.status == "succeeded"
        assert [step.load()[0] for step in dynamic.steps.values()] == [pid] * 2
    assert len(lab.client.runs()) == (2 if how == ["script.py"] else 1)
    failed = run.steps["inline_fails"]
    assert (run.status, failed.status, failed.cause, failed.message) == (
        "failed",
        "failed",
        "user-error",
        "in the driver",
    )
