"""A traced pipeline becomes a plan: settings resolved, constants kept, fan-outs prepared, requests checked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stoker import pipeline, step
from stoker.backends.local.backend import LocalBackend
from stoker.config import Stack
from stoker.core.artifact import from_wire
from stoker.core.errors import GraphError, ParameterError, PreflightError, SettingsError
from stoker.core.plan import Plan, Site
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Layer
from stoker.plan.layers import assignments
from stoker.plan.planner import Overrides, Planner, check_names, plan, refuse, split_outputs
from stoker.store import artifacts
from stoker.store.blobs import Blobs


@step(resources=ResourceSettings(cpu_count=1), timeout="2m")
def numbers(count: int) -> list[int]:
    return list(range(count))


@step
def square(x: int, power: int = 2) -> int:
    return x**power


@step
def total(xs: list[int]) -> int:
    return sum(xs)


@step
def takes(x: Any) -> None:
    """Anything."""


def told(run: Any) -> None:
    """A hook."""


@pipeline(retry=1, environment={"WHERE": "pipeline"})
def squares(count: int = 3) -> None:
    total(square.map(numbers(count), power=3))


class Desk:
    """A planner with all it needs."""

    def __init__(self, folder: Path, overrides: Overrides | None = None) -> None:
        self.blobs = Blobs(str(folder / "artifacts"))
        self.stack = Stack(
            name="here",
            home=folder,
            layer=Layer(origin="stoker.toml:3", values={"timeout": 600.0, "retry": {"times": 5}}),
        )
        self.overrides = overrides
        site = Site(artifacts=self.blobs.uri, scratch=str(folder))
        self.backend = LocalBackend(site, {"cpus": 2, "memory": "4GB"})

    def plan(self, made: Any, **arguments: Any) -> Plan:
        graph = made.trace(**arguments)
        planner = Planner(self.stack, self.blobs, layers=graph.layers, overrides=self.overrides)
        found = plan(graph, planner, {"orchestrator": self.backend}, stack="here", failure_mode="fail_fast")
        self.backend.close()
        return found


def test_every_setting_is_resolved_and_knows_its_place(tmp_path: Path) -> None:
    steps = {made.key: made for made in Desk(tmp_path).plan(squares).steps}
    assert steps["numbers"].settings.timeout == 120.0
    assert steps["square"].settings.timeout == 600.0
    assert steps["square"].settings.retry.times == 1
    assert steps["square"].settings.environment == {"WHERE": "pipeline"}
    assert "test_planner.py" in steps["numbers"].origins["timeout"]
    assert steps["numbers"].origins["timeout"].endswith("(over stoker.toml:3)")
    assert steps["square"].origins["timeout"] == "stoker.toml:3"


def test_the_command_line_wins_for_the_step_that_it_names(tmp_path: Path) -> None:
    asked = assignments(["steps.numbers.timeout=5s", "cache=false"])
    desk = Desk(tmp_path, Overrides(every=asked.layers, steps=asked.steps))
    steps = {made.key: made for made in desk.plan(squares).steps}
    assert (steps["numbers"].settings.timeout, steps["square"].settings.timeout) == (5.0, 600.0)
    assert not any(made.settings.cache for made in steps.values())


def test_constants_are_kept_and_links_are_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    steps = {made.key: made for made in desk.plan(squares, count=4).steps}
    kept = from_wire(steps["numbers"].inputs["count"]["value"])
    assert artifacts.load(kept, desk.blobs) == 4
    assert steps["square"].inputs["x"] == {"step": "numbers", "output": "output"}
    assert steps["total"].needs == ("square",)


def test_an_output_that_is_mapped_over_is_kept_element_by_element(tmp_path: Path) -> None:
    steps = {made.key: made for made in Desk(tmp_path).plan(squares).steps}
    assert steps["numbers"].split == ("output",)
    assert (steps["square"].mapped, steps["square"].split) == (("x",), ())


def test_a_list_known_at_once_is_split_at_once(tmp_path: Path) -> None:
    @pipeline
    def fixed() -> None:
        square.map([3, 4])

    desk = Desk(tmp_path)
    (made,) = desk.plan(fixed).steps
    items = artifacts.items(from_wire(made.inputs["x"]["value"]), desk.blobs)
    assert [artifacts.load(item, desk.blobs) for item in items] == [3, 4]


def test_an_output_of_a_fan_out_needs_no_splitting(tmp_path: Path) -> None:
    @pipeline
    def twice() -> None:
        square.map(square.map([1, 2]))

    graph = twice.trace()
    assert split_outputs(graph.nodes) == {"square": ["output"]}
    assert [made.split for made in Desk(tmp_path).plan(twice).steps] == [(), ()]


def test_alike_steps_share_their_settings(tmp_path: Path) -> None:
    @pipeline
    def many() -> None:
        for number in range(100):
            square(number)

    steps = Desk(tmp_path).plan(many).steps
    assert len({id(made.settings) for made in steps}) == 1
    assert [made.position for made in steps] == list(range(100))
    assert len({made.code for made in steps}) == 1


def test_what_the_machine_cannot_give_is_found_for_each_step_once(tmp_path: Path) -> None:
    @pipeline
    def greedy() -> None:
        for number in range(5):
            square.with_options(resources=ResourceSettings(cpu_count=64, memory="1TB"))(number)

    found = Desk(tmp_path).plan(greedy)
    assert {finding.code for finding in found.findings} == {"STK101", "STK102"}
    with pytest.raises(PreflightError, match=r"asks for 64 CPUs; this machine has 2(.|\n)*--set steps\.square"):
        refuse(found)


def test_a_finding_that_only_translates_refuses_nothing(tmp_path: Path) -> None:
    @pipeline(resources=ResourceSettings(spot=True))
    def cheap() -> None:
        square(1)

    found = Desk(tmp_path).plan(cheap)
    assert [finding.level for finding in found.findings] == ["translated"]
    refuse(found)


def test_settings_for_a_step_that_is_not_there_are_refused(tmp_path: Path) -> None:
    asked = assignments(["steps.sqare.timeout=5s"])
    overrides = Overrides(steps=asked.steps)
    found = Desk(tmp_path, overrides).plan(squares)
    with pytest.raises(GraphError, match="no step 'sqare' in this pipeline, did you mean 'square'"):
        check_names(overrides, found.steps)


def test_hooks_are_located_like_steps(tmp_path: Path) -> None:
    @pipeline
    def hooked() -> None:
        square.with_options(on_failure=told)(1)

    (made,) = Desk(tmp_path).plan(hooked).steps
    assert (made.hooks["on_failure"].qualname, made.source.qualname) == ("told", "square")


def test_a_component_that_the_stack_lacks_is_named_with_the_step(tmp_path: Path) -> None:
    @pipeline
    def elsewhere() -> None:
        square.with_options(step_operator="cluster")(1)

    with pytest.raises(SettingsError, match="stack 'here' has no step operator called 'cluster'"):
        Desk(tmp_path).plan(elsewhere)


def test_a_constant_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    @pipeline
    def locked() -> None:
        takes(threading.Lock())

    with pytest.raises(ParameterError, match=r"cannot be given x: a value of type _thread\.lock"):
        Desk(tmp_path).plan(locked)
