"""The cache's key of a step: it is bound to the image in which the step runs, or else to this environment."""

from __future__ import annotations

from typing import Any

import attrs

from stoker.core.graph import StepOutput
from stoker.core.plan import StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.engine.inputs import key_parts
from stoker.plan.cachekey import FixedEnvironment, InputCode

STEP = StepPlan(
    key="train",
    name="train",
    source=FunctionSource(kind="module", module="train", qualname="train", path="train.py", root="."),
    outputs=(StepOutput(name="output"),),
    unpack=False,
    inputs={},
    settings=StepSettings(),
    backend="orchestrator",
    code="abc",
)
HERE, THERE = "image@sha256:1", "image@sha256:2"


def key(environment: str = "here", **changes: Any) -> str:
    return key_parts(attrs.evolve(STEP, **changes), {}, FixedEnvironment("packages", environment), InputCode()).key


def test_another_image_is_another_key() -> None:
    assert key(image=HERE) == key(image=HERE)
    assert len({key(), key(image=HERE), key(image=THERE)}) == 3


def test_in_an_image_this_environment_does_not_count() -> None:
    assert key("here", image=HERE) == key("elsewhere", image=HERE)
    assert key("here") != key("elsewhere")
