"""What a backend is told of a plan whose steps run in several places."""

from __future__ import annotations

from typing import Any

from stoker.core.plan import StepPlan, steps_of
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings


def step(key: str, backend: str, *sources: str, after: tuple[str, ...] = ()) -> StepPlan:
    inputs: dict[str, Any] = {
        f"x{number}": {"step": source, "output": "output"} for number, source in enumerate(sources)
    }
    return StepPlan(
        key=key,
        name=key,
        source=FunctionSource(kind="module", module="train", qualname=key),
        outputs=(),
        unpack=False,
        inputs=inputs,
        after=after,
        settings=StepSettings(),
        backend=backend,
        code="",
        where="train.py:7",
    )


def test_what_lies_between_two_steps_of_a_backend_keeps_their_order() -> None:
    steps = [
        step("load", "here"),
        step("split", "there", "load"),
        step("train", "there", "split", after=("load",)),
        step("other", "here"),
        step("total", "here", "train", "other"),
        step("show", "here", "total", "train", "gone"),
    ]
    assert {one.key: one.after for one in steps_of("here", steps)} == {
        "load": (),
        "other": (),
        "total": ("load",),
        "show": ("load",),
    }
    assert [one.key for one in steps_of("there", steps)] == ["split", "train"]
    assert steps_of("here", steps)[0] is steps[0]
