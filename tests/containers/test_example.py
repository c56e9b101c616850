"""`examples/container_digits.py`: proved against two drivers without an engine, and its small pipeline really run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine

OFFLINE = {"DOCKER_HOST": "unix:///nowhere.sock", "HTTPS_PROXY": "http://127.0.0.1:9"}
NAME = "container_digits.py"
RUNS, REFUSED = '"1xH100;driver=550.54.15"', '"1xH100;driver=470.82.01"'


@pytest.fixture
def example(project: Any, repository: Path) -> Any:
    """The example and its stack, copied to a folder of their own."""
    for name in (NAME, "stoker.toml"):
        shutil.copy(repository / "examples" / name, project.folder / name)
    return project


def commands(project: Any) -> list[str]:
    """The lines of the docstring that are commands, without their comments."""
    text = (project.folder / NAME).read_text(encoding="utf-8")
    return [line.partition("#")[0].strip() for line in re.findall(r"^    (stoker .*)$", text, re.MULTILINE)]


@pytest.mark.parametrize(("driver", "code"), [(RUNS, 0), (REFUSED, 3)])
def test_the_plan_is_as_the_docstring_says(example: Any, driver: str, code: int) -> None:
    (line,) = [line for line in commands(example) if line.endswith(driver)]
    words = [word.strip('"') for word in line.split()[1:]]
    made = json.loads(example.stoker(*words, "--json", env=OFFLINE, code=code).stdout)
    refused = [finding for finding in made["findings"] if finding["level"] == "error"]
    assert {finding["code"] for finding in refused} == ({"STK203"} if code else set())
    assert all("step 'train'" in finding["where"] for finding in refused)
    assert not example.client().runs()


def test_it_is_rendered(example: Any) -> None:
    words = ("--stack", "containers", "--simulate", "1xH100", "--render", "--json")
    made = json.loads(example.stoker("plan", NAME, *words, env=OFFLINE).stdout)
    files = {one["step"]: one["dockerfile"] for one in made["rendered"]}
    assert files["train"].startswith("FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime\n")
    assert "pip install --system" in files["train"]
    assert files["load"] == files["evaluate"] != files["train"]


def test_the_small_pipeline_runs_in_containers(example: Any, engine: Engine, base_image: str) -> None:
    def ran(image: str) -> str:
        words = (f"{NAME}:seven_segments", "--stack", "containers", "--set", f"docker.parent_image={image}")
        # The tests' engine has no network of its own for containers: see tests/servers/containers.py.
        network = ("--set", "orchestrator.network=none")
        return str(example.stoker("run", *words, *network, env=engine.environment).stderr)

    def cached() -> list[bool]:
        return [step.status == "cached" for step in example.client().run("latest").steps.values()]

    assert "✓ nearest succeeded" in ran(base_image)
    run = example.client().run("latest")
    assert run.status == "succeeded" and len(run.steps) == 3 and not any(cached())
    assert run.steps["nearest"].output.load() > 0.9
    assert "of 500 right" in example.stoker("logs", "latest", "nearest").stdout
    assert engine.run("ps", "--all", "--quiet").stdout == "", "containers are removed"
    other = "localhost/stoker-example-other:1"
    engine.run("build", "--network", "host", "--tag", other, "-", input=f"FROM {base_image}\nENV OTHER=1\n".encode())
    ran(other)
    assert not any(cached()), "what ran in another image may have other packages"
    ran(base_image)
    assert all(cached())
