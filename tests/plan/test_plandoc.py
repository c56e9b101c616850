"""A plan written and read is the same plan, however many steps share their settings."""

from __future__ import annotations

import json

import attrs
import pytest

from stoker.core.data import StepData
from stoker.core.errors import StoreError
from stoker.core.findings import Finding
from stoker.core.graph import StepOutput
from stoker.core.plan import PLAN_VERSION, Plan, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.receipt import Fact, Proof
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Retry, StepSettings
from stoker.plan import plandoc

SOURCE = FunctionSource(kind="script", module="train", qualname="train", path="/a/train.py", root="/a")
SETTINGS = StepSettings(resources=ResourceSettings(cpu_count=2, memory="4GB"), retry=Retry(2), timeout=60.0)
OUTPUTS = (StepOutput(name="model", type="dict"), StepOutput(name="score", type="float"))


def step(position: int, **changes: object) -> StepPlan:
    made = StepPlan(
        key=f"train_{position}",
        name="train",
        source=SOURCE,
        outputs=OUTPUTS,
        unpack=True,
        inputs={"x": {"value": {"d": "00", "s": "json", "t": "int", "n": 1, "i": str(position)}}},
        settings=SETTINGS,
        backend="orchestrator",
        code="c0de",
        position=position,
        where="train.py:12",
        origins={"resources.cpu_count": "train.py:3 @step"},
    )
    return attrs.evolve(made, **changes)


def plan(*steps: StepPlan) -> Plan:
    return Plan(
        pipeline="training",
        steps=steps,
        parameters={"lr": {"d": "11", "s": "json", "t": "float", "n": 3, "i": "0.1"}},
        failure_mode="continue",
        stack="local",
        where="train.py:30",
        source=SOURCE,
        hooks={"on_failure": SOURCE},
        findings=(Finding(code="STK109", level="translated", what="runs here"),),
    )


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (step(0),),
        (step(0, unpack=False, outputs=(), inputs={}, origins={}, where="", code=""), step(1)),
        (step(0, split=("model",)), step(1, mapped=("x",), after=("train_0",), hooks={"on_success": SOURCE})),
        tuple(step(number) for number in range(50)),
    ],
    ids=["no steps", "one", "empty fields", "every field", "many"],
)
def test_what_is_written_is_read(steps: tuple[StepPlan, ...]) -> None:
    made = plan(*steps)
    assert plandoc.load(plandoc.dump(made)) == made


def test_what_many_steps_share_is_written_once() -> None:
    document = json.loads(plandoc.dump(plan(*(step(number) for number in range(50)))))
    assert [len(document["shared"][name]) for name in ("settings", "source", "outputs")] == [1, 1, 1]


def test_a_proof_is_written_once_for_all_that_share_it_and_not_at_all_where_there_is_none() -> None:
    proof = Proof(verdict="proved", facts=(Fact(component="torch", fact="it fits", source="its page"),))
    proved = plan(*(step(number, proof=proof) for number in range(3)), step(3))
    document = json.loads(plandoc.dump(proved))
    assert len(document["shared"]["proof"]) == 1
    assert [row.get("proof") for row in document["steps"]] == [0, 0, 0, None]
    assert plandoc.load(json.dumps(document)) == proved
    assert "proof" not in json.loads(plandoc.dump(plan(step(0))))["shared"]  # as earlier versions write plans


def test_every_field_of_a_step_is_written() -> None:
    written = {*plandoc._PLAIN, *plandoc._SHARED, *plandoc._RARELY_SHARED, *plandoc._RARE, "inputs"}
    assert written == {field.name for field in attrs.fields(StepPlan)}


def test_what_a_steps_data_is_comes_back() -> None:
    brought = StepData(uri="hf://org/model", include=("*.json",), identity="d1", revision="c0ffee", size=7, files=1)
    planned = plan(attrs.evolve(step(0), data={"base": brought}))
    assert plandoc.load(plandoc.dump(planned)) == planned


def test_fields_of_a_newer_version_are_passed_over() -> None:
    document = json.loads(plandoc.dump(plan(step(0))))
    document["steps"][0]["colour"] = "blue"
    document["mood"] = "good"
    assert plandoc.load(json.dumps(document)) == plan(step(0))


def test_a_newer_form_is_refused() -> None:
    document = json.loads(plandoc.dump(plan(step(0))))
    document["version"] = PLAN_VERSION + 1
    with pytest.raises(StoreError, match=r"newer Stoker wrote the plan(.|\n)*upgrade"):
        plandoc.load(json.dumps(document))
