"""`stoker plan` on a stack whose steps run in images: what speaks against them is told before anything is built."""

from __future__ import annotations

from typing import Any

import pytest

OFFLINE = {"DOCKER_HOST": "unix:///nowhere.sock", "HTTPS_PROXY": "http://127.0.0.1:9"}
"""An engine that is not there, and a way out that leads nowhere."""
STACK = """
[stacks.box]
orchestrator = {flavor = "docker"}

[stacks.box.settings.docker]
parent_image = "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
"""
TRAIN = """
    from stoker import pipeline, step


    @step(resources={"gpu_count": 1})
    def train(rate: float) -> float:
        return rate


    @pipeline
    def training(rate: float = 0.5):
        train(rate)


    if __name__ == "__main__":
        training()
"""
OLD = ("--simulate", "1xH100;driver=470.82.01")
NEW = ("--simulate", "1xH100;driver=550.54.15")


@pytest.fixture
def box(stoker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project with a stack `box`, whose engine is not there."""
    stoker.project.write({"stoker.toml": STACK, "gpu.py": TRAIN})
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    return stoker


def codes(box: Any, *arguments: str, code: int = 0) -> set[tuple[str, str]]:
    found = box.json("plan", "gpu.py", *arguments, code=code)["findings"]
    return {(finding["code"], finding["level"]) for finding in found}


def test_a_driver_that_is_too_old_is_refused(box: Any) -> None:
    told = box("plan", "gpu.py", "--stack", "box", *OLD, code=3).stdout
    for words in ("STK203 error", "step 'train'", "470.82.01", "CUDA 12 needs driver 525.60.13"):
        assert words in told
    assert ("STK203", "error") in codes(box, "--stack", "box", *OLD, code=3)


def test_it_is_not_run_either(box: Any) -> None:
    refused = box("run", "gpu.py", "--stack", "box", *OLD, code=3)
    assert "STK203" in refused.stderr and "gpu.py" in refused.stderr
    assert not box.project.client().runs()


def test_a_driver_that_is_new_enough_is_not(box: Any) -> None:
    found = codes(box, "--stack", "box", *NEW)
    assert all(level != "error" for _, level in found) and "STK203" not in {code for code, _ in found}
    assert ("STK218", "info") in found, "an image that was not looked at is said to be unknown"


def test_another_image_of_the_command_line_is_judged(box: Any) -> None:
    image = "docker.parent_image=pytorch/pytorch:1.13.1-cuda11.6-cudnn8-runtime"
    found = codes(box, "--stack", "box", "--simulate", "1xA100;driver=470.82.01", "--set", image)
    assert ("STK203", "error") not in found, "CUDA 11 runs on every driver from 450.80.02"
    assert ("STK203", "error") in codes(box, "--stack", "box", "--simulate", "1xA100;driver=470.82.01", code=3)


def test_a_local_stack_knows_nothing_of_images(box: Any) -> None:
    assert not codes(box, "--stack", "local", *OLD)
