"""`stoker plan` resolves what images will install: the lock, and what cannot be installed, before anything is built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_plan_images import NEW, STACK, TRAIN
from tests.servers.packageindex import PackageIndex, running_index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs()
        index.put("torch", "2.4.0+cu121")
        index.put("trainer", "1.0", requires=["torch==2.4.0+cu121"])
        yield index


@pytest.fixture
def box(stoker: Any, index: PackageIndex, monkeypatch: pytest.MonkeyPatch) -> Any:
    stack = STACK.replace("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", "python:3.11-slim")
    more = f'requirements = ["trainer"]\npython_package_installer_args = {{index-url = "{index.url}"}}\n'
    stoker.project.write({"stoker.toml": 'stack = "box"\n' + stack + more, "gpu.py": TRAIN})
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.delenv("STOKER_OFFLINE")
    return stoker


def test_the_plan_has_the_lock_and_the_proof_and_the_image_are_of_it(box: Any, index: PackageIndex) -> None:
    document = box.json("plan", "gpu.py", *NEW, "--render")
    (lock,) = document["locks"].values()
    assert document["steps"][0]["lock"] == lock["digest"]
    assert "torch 2.4.0+cu121" in json.dumps(document["steps"][0]["proof"])
    (rendered,) = document["rendered"]
    assert "--no-deps -r /opt/stoker/requirements-1-listed.txt" in rendered["dockerfile"]
    lines = rendered["files"]["stoker-build/requirements-1-listed.txt"].splitlines()
    assert lines == lock["lists"][0]["lines"]
    assert [line.partition(" --hash=sha256:")[0] for line in lines] == ["torch==2.4.0+cu121", "trainer==1.0"]
    old = box("plan", "gpu.py", "--simulate", "1xH100;driver=470.82.01", "--lock", code=3).stdout
    assert "STK203 error" in old and "torch 2.4.0+cu121" in old
    assert "train  " in old and "for Python 3.11 on manylinux_2_36_x86_64, by " in old
    assert "\n  torch==2.4.0+cu121\n  trainer==1.0\n" in old


def test_a_contradiction_ends_the_run_before_it_costs_anything(box: Any, index: PackageIndex) -> None:
    index.put("torch", "2.3.0")
    refused = box("run", "gpu.py", *NEW, "--set", 'docker.requirements=["trainer", "torch==2.3.0"]', code=3)
    assert "STK231 error" in refused.stderr and "torch==2.3.0" in refused.stderr
    assert not box.project.client().runs()
    missing = box("plan", "gpu.py", *NEW, "--set", 'docker.requirements=["trainer==8"]', code=3).stdout
    assert "STK232 error" in missing and "trainer==8" in missing


def test_a_file_of_locks_is_written_and_read(box: Any, index: PackageIndex, tmp_path: Path) -> None:
    told = box("plan", "gpu.py", *NEW, "--lock=stoker.lock").stderr
    assert "stoker.lock has 1 lock, 1 of them of this plan" in told
    index.put("trainer", "2.0")
    monkey = {"STOKER_HOME": str(tmp_path / "elsewhere")}
    shown = box("plan", "gpu.py", *NEW, "--lock", env=monkey).stdout
    assert "\n  trainer==1.0\n" in shown, "on another machine, too"
