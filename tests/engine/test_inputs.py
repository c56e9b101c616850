"""Binding inputs, counting fan-outs, the pace of short elements, and what a cache key is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from stoker.core.artifact import from_wire
from stoker.core.graph import StepOutput
from stoker.core.plan import Capacity, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.engine.execution import element_task, lines_up, step_task
from stoker.engine.inputs import StepBindings, UnequalLengths, key_parts, tree_digest
from stoker.engine.jobs import LONGEST_LINE, Pace
from stoker.plan.cachekey import FixedEnvironment, InputCode
from stoker.store import artifacts
from stoker.store.blobs import Blobs

SOURCE = FunctionSource(kind="module", module="m", qualname="f")


def step(key: str = "f", **fields: Any) -> StepPlan:
    return StepPlan(
        **{
            "key": key,
            "name": key,
            "source": SOURCE,
            "outputs": (StepOutput(name="output"),),
            "unpack": False,
            "inputs": {},
            "settings": StepSettings(),
            "backend": "orchestrator",
            "code": "",
            **fields,
        }
    )


class Desk:
    def __init__(self, folder: Path) -> None:
        self.blobs = Blobs(str(folder))
        self.inputs = StepBindings(self.blobs)

    def wire(self, value: Any) -> dict[str, Any]:
        return artifacts.save(value, self.blobs).wire()

    def listed(self, *values: Any) -> dict[str, Any]:
        return {"value": artifacts.save_split(values, self.blobs).wire()}

    def load(self, tree: Any) -> Any:
        if "value" in tree:
            return artifacts.load(from_wire(tree["value"]), self.blobs)
        if "list" in tree:
            return [self.load(item) for item in tree["list"]]
        return {name: self.load(item) for name, item in tree["dict"].items()}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_links_become_the_values_of_finished_steps(desk: Desk) -> None:
    desk.inputs.keep("a", {"output": desk.wire(5), "other": desk.wire("x")})
    made = step(
        inputs={
            "x": {"step": "a", "output": "output"},
            "y": {"list": [{"value": desk.wire(1)}, {"step": "a", "output": "other"}]},
            "z": {"dict": {"k": {"step": "a", "output": "output"}}},
        }
    )
    bound = desk.inputs.bind(made)
    assert {name: desk.load(tree) for name, tree in bound.items()} == {"x": 5, "y": [1, "x"], "z": {"k": 5}}


def test_a_fan_out_takes_one_element_of_each_list(desk: Desk) -> None:
    made = step(
        mapped=("x", "y"),
        inputs={"x": desk.listed(1, 2, 3), "y": desk.listed("a", "b", "c"), "fixed": {"value": desk.wire(9)}},
    )
    assert desk.inputs.expand(made) == 3 == desk.inputs.count("f")
    rows = [{name: desk.load(tree) for name, tree in desk.inputs.bind(made, index).items()} for index in range(3)]
    assert rows == [{"fixed": 9, "x": x, "y": y} for x, y in ((1, "a"), (2, "b"), (3, "c"))]


def test_lists_of_different_lengths_are_refused_with_their_lengths(desk: Desk) -> None:
    made = step(mapped=("x", "y"), where="p.py:3", inputs={"x": desk.listed(1, 2), "y": desk.listed(1)})
    with pytest.raises(UnequalLengths, match="x has 2, y has 1"):
        desk.inputs.expand(made)


def test_elements_of_one_fan_out_feed_those_of_the_next(desk: Desk) -> None:
    first = step("f", mapped=("x",), inputs={"x": desk.listed(1, 2)})
    second = step("g", mapped=("x",), inputs={"x": {"step": "f", "output": "output"}})
    desk.inputs.expand(first)
    assert desk.inputs.expand(second) == 2
    assert desk.inputs.elements_of(second, 1) == ["f[1]"]
    desk.inputs.keep("f[1]", {"output": desk.wire(40)}, fanout="f", index=1)
    assert desk.load(desk.inputs.bind(second, 1)["x"]) == 40


def test_a_fan_outs_output_is_the_list_of_its_elements(desk: Desk) -> None:
    desk.inputs.expand(step("f", mapped=("x",), inputs={"x": desk.listed(1, 2, 3)}))
    for index in range(3):
        desk.inputs.keep(f"f[{index}]", {"output": desk.wire(index * 10)}, fanout="f", index=index)
    assert desk.load({"value": desk.inputs.output("f", "output")}) == [0, 10, 20]
    assert desk.inputs.output("f", "output") is desk.inputs.output("f", "output"), "written down once"


def test_a_list_that_is_no_list_is_an_error_of_ours(desk: Desk) -> None:
    from stoker.core.errors import StokerError

    with pytest.raises(StokerError):
        desk.inputs.expand(step(mapped=("x",), inputs={"x": {"value": desk.wire(3)}}))


def test_a_digest_says_structure_serializer_and_bytes(desk: Desk) -> None:
    one, text = desk.wire(1), desk.wire("1")
    assert one["d"] == text["d"] and tree_digest({"value": one}) != tree_digest({"value": text})
    assert tree_digest({"list": [{"value": one}]}) != tree_digest({"value": one})
    assert tree_digest({"dict": {"a": {"value": one}}}) != tree_digest({"dict": {"b": {"value": one}}})


def test_a_task_requires_what_its_inputs_come_from() -> None:
    made = step(
        "g",
        mapped=("x",),
        after=("first",),
        inputs={"x": {"step": "f", "output": "o"}, "y": {"list": [{"step": "a", "output": "o"}]}},
    )
    assert step_task(made, {"f", "g"}, 0).requires == ("first", "f[]", "a")
    assert step_task(made, {"g"}, 0).requires == ("first", "f", "a")


def test_only_elements_that_nothing_hangs_on_stand_in_line() -> None:
    assert lines_up(step()) and element_task(step(), "f")("f[0]", [], 0).ahead
    assert not lines_up(step(settings=StepSettings(timeout=5.0)))
    assert not lines_up(step(settings=StepSettings(isolation="fresh")))
    assert not lines_up(step(hooks={"on_success": SOURCE}))
    assert not step_task(step(), set(), 0).ahead


class Room:
    """A backend of which only the room is asked."""

    name = "room"

    def capacity(self) -> Capacity:
        return Capacity(cpus=2, memory=100, slots=16)

    def wakeups(self) -> tuple[int, ...]:
        return (0,)


def test_lines_are_long_for_short_elements_and_empty_for_long_ones() -> None:
    pace = Pace({"p": Room()}, None)  # type: ignore[dict-item]
    assert pace.updates() == []
    for _ in range(50):
        pace.add_duration(True, 0.0001)
    assert pace.updates()[0].ahead == 2 * LONGEST_LINE
    for _ in range(200):
        pace.add_duration(True, 5.0)
    assert pace.updates()[0].ahead == 0
    assert pace.updates() == [], "said once"


def test_a_limit_of_steps_at_once_is_a_limit_of_lines_too() -> None:
    pace = Pace({"p": Room()}, 3)  # type: ignore[dict-item]
    pace.add_duration(True, 0.0001)
    room = pace.capacities()["p"]
    assert pace.updates() == [] and room is not None and room.slots == 3


KEYED = step("train", code="abc")
HERE, THERE = "image@sha256:1", "image@sha256:2"


def key(environment: str = "here", **changes: Any) -> str:
    return key_parts(attrs.evolve(KEYED, **changes), {}, FixedEnvironment("packages", environment), InputCode()).key


def test_another_image_is_another_key() -> None:
    assert key(image=HERE) == key(image=HERE)
    assert len({key(), key(image=HERE), key(image=THERE)}) == 3


def test_in_an_image_this_environment_does_not_count() -> None:
    assert key("here", image=HERE) == key("elsewhere", image=HERE)
    assert key("here") != key("elsewhere")
