"""Binding inputs, counting fan-outs, the pace of short elements, and what a cache key is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from stoker.core.graph import StepOutput
from stoker.core.plan import Capacity, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.engine.execution import element_task, lines_up, step_task
from stoker.engine.inputs import StepBindings, key_parts, tree_digest
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


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


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
