"""Values as JSON and back: nothing is lost, typos are named with their path, newer documents are read."""

from __future__ import annotations

import copy
import json
from typing import Any, Callable

import attrs
import pytest

from stoker.backends.local.settings import LocalSettings
from stoker.core.accelerators import Accelerator
from stoker.core.codec import from_json, to_json
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.graph import StepOutput
from stoker.core.plan import Plan, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import NO_RETRY, DockerSettings, ResourceSettings, Retry, StepSettings
from stoker.engine.events import TaskSpec

SOURCE = FunctionSource(kind="script", module="train", qualname="train", path="train.py")
SETTINGS = StepSettings(
    resources=ResourceSettings(
        cpu_count=2, memory="16GB", accelerators=["H100:8", "A100-80GB/1g.10gb:8"], extended={"example.com/x": 1}
    ),
    docker=DockerSettings(requirements=["torch"], environment={"A": 1}, python_package_installer_args={"system": None}),
    retry=attrs.evolve(NO_RETRY, times=3, on=["crashed"]),
    timeout=60.0,
    cache_key=[1, {"a": None}],
    environment={"A": "1"},
    backend={"orchestrator": {"max_workers": 2}},
)


def _plan(**changes: Any) -> Plan:
    step = StepPlan(
        key="train",
        name="train",
        source=SOURCE,
        outputs=(StepOutput(name="model", type="dict"), StepOutput(name="score")),
        unpack=True,
        inputs={"images": {"step": "load", "output": "images"}, "lr": {"value": {"d": "ab", "i": "0.1"}}},
        settings=SETTINGS,
        backend="orchestrator",
        code="abc",
        mapped=("images",),
        hooks={"on_failure": SOURCE},
        origins={"resources.memory": "train.py:14 @step  (over stoker.toml:7)"},
    )
    values: dict[str, Any] = {
        "pipeline": "training",
        "steps": (step, attrs.evolve(step, key="other", settings=StepSettings())),
        "parameters": {"lr": 0.1, "names": ["a", None, True]},
        "failure_mode": "continue",
        "stack": "local",
        "source": SOURCE,
        "findings": (Finding(code="STK101", level="error", what="too big", fix="less"),),
    }
    return Plan(**{**values, **changes})


def _through_text(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value)))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("plan", [_plan(), _plan(steps=(), source=None, findings=(), parameters={})])
def test_a_plan_comes_back(plan: Plan, strict: bool) -> None:
    found = from_json(Plan, _through_text(plan), strict=strict)
    assert found == plan
    assert all(isinstance(step.outputs, tuple) for step in found.steps)


@pytest.mark.parametrize(
    "value",
    [
        ResourceSettings(),
        ResourceSettings(gpu_count=None, cpu_count=0.5),
        DockerSettings(requirements="requirements.txt"),
        Retry(3),
        LocalSettings(max_workers=2),
        SOURCE,
        SETTINGS,
    ],
)
def test_values_come_back(value: Any) -> None:
    assert from_json(type(value), _through_text(value), strict=True) == value


def test_what_is_not_given_is_left_out() -> None:
    assert to_json(ResourceSettings(gpu_count=2, memory=None)) == {"gpu_count": 2, "memory": None}
    assert to_json(Retry()) == {}


def test_plain_forms() -> None:
    assert to_json((1, [2.5, None], {"a": True})) == [1, [2.5, None], {"a": True}]
    assert to_json(Accelerator.parse("nvidia-h100-80gb:8")) == "H100:8"
    assert to_json(TaskSpec(key="k", retry_on=frozenset({"killed", "crashed"})))["retry_on"] == ["crashed", "killed"]


@pytest.mark.parametrize(
    ("value", "words"), [(object(), "object has no JSON form"), ({1: 2}, "1 cannot be a key"), (b"x", "bytes has no")]
)
def test_what_has_no_json_form(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        to_json(value)


def _step(document: Any) -> Any:
    return document["steps"][1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(pipelin="x"), "plan.json: there is no 'pipelin' in Plan, did you mean 'pipeline'"),
        (lambda d: _step(d).update(bakend="x"), "steps[1]: there is no 'bakend' in StepPlan, did you mean 'backend'"),
        (
            lambda d: _step(d)["settings"]["resources"].update(gpu_cout=1),
            "steps[1].settings.resources: there is no 'gpu_cout' in ResourceSettings, did you mean 'gpu_count'",
        ),
        (
            lambda d: _step(d)["settings"]["resources"].update(memory="x"),
            "steps[1].settings.resources: memory: 'x' is not a size",
        ),
        (lambda d: _step(d).update(unpack="false"), "steps[1].unpack: 'false' is not true or false"),
        (lambda d: _step(d).update(position=True), "steps[1].position: True is not a whole number"),
        (lambda d: _step(d).pop("key"), "steps[1].key: 'key' is missing"),
        (lambda d: d.update(failure_mode="stop"), "failure_mode: "),
        (
            lambda d: _step(d)["hooks"]["on_failure"].update(module=4),
            "steps[1].hooks.on_failure.module: 4 is not a text",
        ),
    ],
)
def test_strict_reading_names_the_place(change: Callable[[Any], Any], words: str) -> None:
    document = copy.deepcopy(_through_text(_plan()))
    change(document)
    with pytest.raises(SettingsError) as caught:
        from_json(Plan, document, strict=True, where="plan.json")
    assert words in str(caught.value)
    assert caught.value.where == "plan.json"


def test_tolerant_reading_leaves_out_what_a_newer_version_added() -> None:
    document = _through_text(_plan())
    document["colour"] = "blue"
    document["steps"][0]["settings"]["later"] = {"a": 1}
    document["steps"][0]["settings"]["resources"]["quantum"] = 3
    assert from_json(Plan, document, strict=False) == _plan()
    document["steps"][0]["settings"]["timeout"] = "soon"
    with pytest.raises(SettingsError, match="timeout"):
        from_json(Plan, document, strict=False)


def test_shared_settings_are_written_once() -> None:
    steps = tuple(attrs.evolve(_plan().steps[0], key=f"k{number}") for number in range(50))
    document = to_json(_plan(steps=steps))
    assert len({id(step["settings"]) for step in document["steps"]}) == 1
    assert len({step["key"] for step in document["steps"]}) == 50
