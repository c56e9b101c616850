"""Proofs on the command line: in the plan and its JSON, kept with the run, and required where a person asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.test_plan_images import NEW, OFFLINE, OLD, STACK, TRAIN

DYNAMIC = TRAIN.replace("@pipeline\n", "@pipeline(dynamic=True)\n")
FLOW = """
    from stoker.flow import FlowSpec, resources, step


    class Training(FlowSpec):
        @resources(gpu=1)
        @step
        def start(self):
            self.next(self.end)

        @step
        def end(self):
            pass


    if __name__ == "__main__":
        Training()
"""


@pytest.fixture
def box(stoker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack `box` runs steps in images of an engine that is not there."""
    strict = "\n[stacks.strict]\n[stacks.strict.settings]\nrequire_proof = true\n"
    stoker.project.write({"stoker.toml": STACK + strict, "gpu.py": TRAIN, "dynamic.py": DYNAMIC, "flow.py": FLOW})
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    return stoker


def test_a_plan_says_what_is_proved_refused_and_not_proved(box: Any) -> None:
    [step] = box.json("plan", "gpu.py", "--stack", "box", *NEW)["steps"]
    assert set(step["proof"]) == {"verdict", "facts", "unknown", "refused"}
    assert step["proof"]["verdict"] == "proved"
    assert {"component", "fact", "source"} == set(step["proof"]["facts"][0])
    [step] = box.json("plan", "gpu.py", "--stack", "box", *OLD, code=3)["steps"]
    assert step["proof"]["verdict"] == "refused"
    assert step["proof"]["refused"][0]["code"] == "STK203"
    [step] = box.json("plan", "gpu.py", *NEW)["steps"]
    assert step["proof"]["verdict"] == "not-proved"
    assert set(step["proof"]["unknown"][0]) == {"component", "reason"}


def test_the_text_has_a_line_and_explains_all_of_it(box: Any) -> None:
    text = box("plan", "gpu.py", "--stack", "box", *NEW).stdout
    assert "  proof     proved: torch 2.1.0+cu121 has code for sm_90 (H100); driver 550.54.15 runs CUDA 12.1; " in text
    assert "developer.nvidia.com" not in text
    explained = box("plan", "gpu.py", "--stack", "box", "--explain", *NEW).stdout
    assert "    chip: H100 is sm_90, 80GB   (https://developer.nvidia.com/cuda-gpus)" in explained


def test_what_is_not_proved_is_refused_where_proofs_are_required(box: Any) -> None:
    assert "STK219" not in box("plan", "gpu.py", "--stack", "box", "--require-proof", *NEW).stdout
    text = box("plan", "gpu.py", "--require-proof", *NEW, code=3).stdout
    assert "STK219 error" in text
    assert "must be proved to fit its accelerators, and is not proved: torch" in text
    assert "STK219 error" in box("run", "gpu.py", "--require-proof", *NEW, code=3).stderr
    assert "STK219 error" in box("run", "gpu.py", "--stack", "strict", *NEW, code=3).stderr
    assert not box.project.client().runs()
    box("run", "gpu.py", "--stack", "strict", "--set", "require_proof=false", *NEW)


@pytest.mark.parametrize("file", ["dynamic.py", "flow.py"])
def test_steps_of_dynamic_pipelines_and_flows_are_proved_too(box: Any, file: str) -> None:
    text = box("run", file, "--require-proof", *NEW, code=3).stderr
    assert "STK219 error" in text
    box("run", file, *NEW)


def test_a_repeated_run_requires_what_its_origin_did(box: Any) -> None:
    box("run", "gpu.py", *NEW)
    assert "STK219 error" in box("rerun", "latest", "--require-proof", code=3).stderr
    assert "proved to fit" in box("explain", "STK219").stdout
