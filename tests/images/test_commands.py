"""`stoker image inspect` and `stoker build` as a person calls them, against a real engine and a real registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.images.test_registry import config, put
from tests.servers.containers import Engine

STACK = """
stack = "mixed"
[stacks.mixed]
orchestrator = "local"
step_operators.engine = {flavor = "docker", network = "host"}
"""
PIPELINE = """
from stoker import pipeline, step
from stoker.config import DockerSettings

docker = DockerSettings(parent_image={base!r}, environment={{"WHERE": "here"}}, python_package_installer="pip")

@step(docker=docker, step_operator="engine")
def first() -> int:
    return 1

@step(docker=docker, step_operator="engine")
def second(value: int) -> int:
    return value + 1

@step
def plain(value: int) -> None:
    print(value)

@pipeline
def training():
    plain(second(first()))

if __name__ == "__main__":
    training()
"""


def test_inspect_tells_what_is_in_an_image(project: Any, registry: str) -> None:
    env = ("CUDA_VERSION=12.4.1", "PYTHON_VERSION=3.11.9", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535")
    put(registry, "shown", "1", config(env=env, created="2025-06-01T12:00:00.123Z"))
    shown = project.stoker("image", "inspect", f"{registry}/shown:1", "--remote").stdout
    assert f"{registry}/shown:1  read from its configuration at the registry" in shown
    assert "12.4.1  (env CUDA_VERSION)" in shown and "3.11.9  (env PYTHON_VERSION)" in shown
    assert "cuDNN       unknown" in shown and "frameworks  unknown" in shown and "linux/amd64" in shown
    assert "2025-06-01 12:00:00" in shown
    document = json.loads(project.stoker("image", "inspect", f"{registry}/shown:1", "--remote", "--json").stdout)
    assert document["cuda"] == "12.4.1" and document["sources"]["cuda"] == "env CUDA_VERSION"
    assert set(document["unknown"]) == {"cudnn", "rocm", "neuron"}


def test_inspect_of_what_is_not_there(project: Any, registry: str) -> None:
    refused = project.stoker("image", "inspect", f"{registry}/not/there:1", "--remote", code=4)
    assert "there is no such image" in refused.stderr and "fix: " in refused.stderr
    assert "does not name an image" in project.stoker("image", "inspect", "Not:An:Image", code=2).stderr


def test_inspect_asks_the_engine(project: Any, engine: Engine, base_image: str) -> None:
    shown = project.stoker("image", "inspect", base_image, env=engine.environment).stdout
    assert "read from this machine's engine" in shown and "(env PYTHON_VERSION)" in shown and "MB here" in shown
    assert " of Python" in shown and "C library   glibc" in shown and "layers      read" in shown
    again = project.stoker("image", "inspect", "--deep", base_image, env=engine.environment).stdout
    assert "layers      read before" in again


@pytest.mark.slow
def test_build_makes_each_image_once(project: Any, engine: Engine, base_image: str, registry: str) -> None:
    project.write({"stoker.toml": STACK, "train.py": PIPELINE.format(base=base_image)})
    repository = f"{registry}/team/training"
    first = project.stoker("build", "train.py", "--push", repository, env=engine.environment)
    assert "first, second" in first.stdout and "built" in first.stdout and "plain" not in first.stdout
    assert "building" in first.stderr and "pushing" in first.stderr
    second = project.stoker("build", "train.py", "--push", repository, "--json", env=engine.environment)
    (image,) = json.loads(second.stdout)
    assert image["reused"] and image["steps"] == ["first", "second"]
    assert image["reference"].startswith(f"{repository}@sha256:") and "building" not in second.stderr
    # The image is ready for Stoker's worker, in the environment that was asked for.
    program = "import os, stoker.worker.worker; print(os.environ['WHERE'])"
    ran = engine.run("run", "--rm", "--network", "host", image["reference"], "python3", "-c", program)
    assert ran.stdout == "here\n"


def test_build_of_a_pipeline_that_needs_no_image(project: Any) -> None:
    project.write(
        {
            "plain.py": PIPELINE.format(base="python:3.11").replace(
                '@step(docker=docker, step_operator="engine")', "@step"
            )
        }
    )
    done = project.stoker("build", "plain.py", env={"DOCKER_HOST": "unix:///nonexistent"})
    assert done.stdout == "" and "no step of training runs in an image" in done.stderr


def test_build_without_an_engine(project: Any) -> None:
    project.write({"stoker.toml": STACK, "train.py": PIPELINE.format(base="127.0.0.1:1/base:1")})
    done = project.stoker("build", "train.py", env={"DOCKER_HOST": "unix:///nonexistent.sock"}, code=4)
    assert "127.0.0.1:1" in done.stderr or "no container engine answers" in done.stderr


PROVED = """
from stoker import pipeline, step
from stoker.config import DockerSettings, ResourceSettings

IMAGE = DockerSettings(parent_image="localhost/own-torch:1", skip_build=True)

@step(settings={"docker": IMAGE}, resources=ResourceSettings(gpu_count=1), step_operator="engine")
def train() -> int:
    return 1

@pipeline
def training():
    train()
"""


def test_a_plan_proves_an_own_image_by_its_layers(
    project: Any, engine: Engine, base_image: str, tmp_path: Path
) -> None:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = engine.run("run", "--rm", "--network", "host", base_image, "python3", "-c", program).stdout.strip()
    folder = f"{site}/torch-2.4.0+cu121.dist-info"
    (tmp_path / "Dockerfile").write_text(f"FROM {base_image}\nRUN mkdir -p {folder} && touch {folder}/METADATA\n")
    engine.run("build", "--network", "host", "-t", "localhost/own-torch:1", str(tmp_path))
    project.write({"stoker.toml": STACK, "train.py": PROVED})
    words = ("plan", "train.py", "--simulate", "1xA100;driver=550.54.15", "--json")
    made = json.loads(project.stoker(*words, env=engine.environment).stdout)
    proof = made["steps"][0]["proof"]
    assert proof["verdict"] == "proved", proof
    facts = {fact["fact"]: fact["source"] for fact in proof["facts"]}
    assert "torch 2.4.0+cu121 has code for sm_80 (A100)" in facts
    assert any("distributions" in fact and source.startswith("its layers") for fact, source in facts.items())
    other = ("plan", "train.py", "--simulate", "1xRTX5090;driver=570.124.06", "--json")
    refused = json.loads(project.stoker(*other, env=engine.environment, code=3).stdout)
    assert refused["steps"][0]["proof"]["verdict"] == "refused"
