"""`stoker plan --where`: what each stack could give a step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.skypilot.test_requests import VMS

from stoker.backends.skypilot import catalog

PROGRAM = """
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(settings={"resources": ResourceSettings(accelerators="V100:4")})
def train() -> int:
    return 1

@step
def report(x: int) -> int:
    return x

@pipeline
def training():
    report(train())

if __name__ == "__main__":
    training()
"""
STACKS = f"""
stack = "clouds"
[stacks.clouds]
artifact_store = "s3://bucket/store"
orchestrator = {{flavor = "skypilot", sky = "{sys.executable}"}}
[stacks.missing]
artifact_store = "s3://bucket/store"
orchestrator = {{flavor = "skypilot", sky = "/nowhere/bin/sky"}}
[stacks.here]
orchestrator = "local"
"""


def test_what_each_stack_could_give(project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ".sky/catalogs/v8/aws"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(VMS)
    monkeypatch.setenv(catalog.RUNTIME, str(tmp_path))
    project.write({"train.py": PROGRAM, "stoker.toml": STACKS})
    shown = project.stoker("plan", "train.py", "--where", code=None)
    assert "skypilot: p3.8xlarge in aws/us-east-1: $12.24 an hour" in shown.stdout, shown.stdout + shown.stderr
    assert "no: SkyPilot's command '/nowhere/bin/sky' is not here (STK327)" in shown.stdout
    assert "fix: install SkyPilot" in shown.stdout
    document = json.loads(project.stoker("plan", "train.py", "--where", "--json", code=None).stdout)["where"]
    fits = {key: {row["stack"]: row["fits"] for row in rows} for key, rows in document.items()}
    assert fits["train"]["clouds"] and not fits["train"]["here"] and not fits["train"]["missing"]
    assert fits["report"]["clouds"] and fits["report"]["here"]
    [here] = [row for row in document["report"] if row["stack"] == "here"]
    assert here["text"] == "no price is known"


SEARCH = """
from stoker import pipeline, step, sweep

@step(resources={"accelerators": "V100:4"})
def trial(x: int) -> int:
    return x

@pipeline
def search():
    sweep(trial, space={"x": [1, 2]}, method="grid", budget="50 USD")
"""


def test_a_sweep_counts_by_the_prices_of_the_catalog(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".sky/catalogs/v8/aws"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(VMS)
    monkeypatch.setenv(catalog.RUNTIME, str(tmp_path))
    project.write({"search.py": SEARCH, "stoker.toml": STACKS})
    plan = json.loads(project.stoker("plan", "search.py", "--json").stdout)
    assert plan["steps"][0]["sweep"]["budget"]["rate"] == plan["steps"][0]["price"] == 12.24


def test_how_machines_get_a_login_for_a_registry_is_said(project: Any) -> None:
    project.write({"train.py": PROGRAM})
    image = ("--set", "docker.parent_image=registry.invalid/team/train:1", "--set", "docker.skip_build=true")
    said = project.stoker("plan", "train.py", "--with", "skypilot", *image, code=3).stdout
    assert "give it a login for registry.invalid by the variables SKYPILOT_DOCKER_USERNAME" in said
    assert "SkypilotSettings(envs={…})" in said
