"""`stoker plan` on a stack whose steps run in images: what speaks against them, proofs and locks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.packageindex import PackageIndex, running_index

OFFLINE = {"PATH": str(Path(sys.executable).parent), "HTTPS_PROXY": "http://127.0.0.1:9"}
"""No engine and no other program than those of this Python, and a way out that leads nowhere."""
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


def codes(box: Any, *arguments: str, code: int = 0) -> set[tuple[str, str]]:
    found = box.json("plan", "gpu.py", *arguments, code=code)["findings"]
    return {(finding["code"], finding["level"]) for finding in found}


def test_a_driver_that_is_too_old_is_refused_and_nothing_runs(box: Any) -> None:
    told = box("plan", "gpu.py", "--stack", "box", *OLD, code=3).stdout
    for words in ("STK203 error", "step 'train'", "470.82.01", "CUDA 12 needs driver 525.60.13"):
        assert words in told
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


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs()
        index.put("torch", "2.4.0+cu121")
        index.put("trainer", "1.0", requires=["torch==2.4.0+cu121"])
        yield index


@pytest.fixture
def locking(stoker: Any, index: PackageIndex, monkeypatch: pytest.MonkeyPatch) -> Any:
    stack = STACK.replace("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", "python:3.11-slim")
    more = f'requirements = ["trainer"]\npython_package_installer_args = {{index-url = "{index.url}"}}\n'
    stoker.project.write({"stoker.toml": 'stack = "box"\n' + stack + more, "gpu.py": TRAIN})
    monkeypatch.setenv("PATH", OFFLINE["PATH"])
    monkeypatch.delenv("STOKER_OFFLINE")
    return stoker


def test_the_plan_has_the_lock_and_the_proof_and_the_image_are_of_it(locking: Any, index: PackageIndex) -> None:
    document = locking.json("plan", "gpu.py", *NEW, "--render")
    (lock,) = document["locks"].values()
    assert document["steps"][0]["lock"] == lock["digest"]
    assert "torch 2.4.0+cu121" in json.dumps(document["steps"][0]["proof"])
    (rendered,) = document["rendered"]
    assert "--no-deps -r /opt/stoker/requirements-1-listed.txt" in rendered["dockerfile"]
    lines = rendered["files"]["stoker-build/requirements-1-listed.txt"].splitlines()
    assert lines == lock["lists"][0]["lines"]
    assert [line.partition(" --hash=sha256:")[0] for line in lines] == ["torch==2.4.0+cu121", "trainer==1.0"]
    old = locking("plan", "gpu.py", "--simulate", "1xH100;driver=470.82.01", "--lock", code=3).stdout
    assert "STK203 error" in old and "torch 2.4.0+cu121" in old
    assert "train  " in old and "for Python 3.11 on manylinux_2_36_x86_64, by " in old
    assert "\n  torch==2.4.0+cu121\n  trainer==1.0\n" in old


def test_a_contradiction_ends_the_run_before_it_costs_anything(locking: Any, index: PackageIndex) -> None:
    index.put("torch", "2.3.0")
    refused = locking("run", "gpu.py", *NEW, "--set", 'docker.requirements=["trainer", "torch==2.3.0"]', code=3)
    assert "STK231 error" in refused.stderr and "torch==2.3.0" in refused.stderr
    assert not locking.project.client().runs()
    missing = locking("plan", "gpu.py", *NEW, "--set", 'docker.requirements=["trainer==8"]', code=3).stdout
    assert "STK232 error" in missing and "trainer==8" in missing


def test_a_file_of_locks_is_written_and_read(locking: Any, index: PackageIndex, tmp_path: Path) -> None:
    told = locking("plan", "gpu.py", *NEW, "--lock=stoker.lock").stderr
    assert "stoker.lock has 1 lock, 1 of them of this plan" in told
    index.put("trainer", "2.0")
    monkey = {"STOKER_HOME": str(tmp_path / "elsewhere")}
    shown = locking("plan", "gpu.py", *NEW, "--lock", env=monkey).stdout
    assert "\n  trainer==1.0\n" in shown, "on another machine, too"


CLUSTER = """
stack = "cluster"
[stacks.cluster]
container_registry = "registry.invalid/team"
orchestrator = {flavor = "docker"}
"""
BUILT = """
    from stoker import pipeline, step
    from stoker.config import DockerSettings

    @step(settings={"docker": DockerSettings(parent_image="registry.invalid/base:1", target_repository="train")})
    def train() -> int:
        return 1

    @pipeline
    def training():
        train()
"""


def findings(project: Any, **environment: str) -> dict[str, dict[str, Any]]:
    shown = project.stoker("plan", "train.py", "--json", env=environment, code=None)
    return {one["code"]: one for one in json.loads(shown.stdout)["findings"]}


def test_offline_asks_no_registry_elsewhere(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", OFFLINE["PATH"])
    project.write({"stoker.toml": CLUSTER, "train.py": BUILT})
    asked = findings(project, STOKER_OFFLINE="")
    assert "registry.invalid does not answer" in asked["STK218"]["what"] or "STK220" in asked
    said = findings(project, STOKER_OFFLINE="1")
    assert "registry.invalid is not asked: STOKER_OFFLINE is set" in said["STK218"]["what"]
    assert "not checked: whether registry.invalid/team/train takes the image" in said["STK246"]["what"]
    assert "STK220" not in said and said["STK246"]["level"] == "info"
