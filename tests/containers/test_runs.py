"""Whole runs on a stack whose orchestrator is a container engine: from the settings to the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine

STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {flavor = "docker", network = "host"}
"""

PIPELINE = """
import os
import helper
from stoker import pipeline, step
from stoker.config import DockerSettings

@step
def make(n: int) -> list[int]:
    print("made in", os.getcwd())
    return helper.numbers(n)

@step
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def count(n: int = 4):
    return total(make(n))

if __name__ == "__main__":
    run = count()
    print("total", run.steps["total"].output.load())
"""
HELPER = """
def numbers(n):
    return list(range(n))
"""


@pytest.fixture
def containers(project: Any, engine: Engine, base_image: str, monkeypatch: Any) -> Any:
    """A project whose stack is the engine."""
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    project.write({"stoker.toml": STACK, "train.py": PIPELINE.replace("BASE", base_image), "helper.py": HELPER})
    return project


def test_a_pipeline_runs_in_containers(containers: Any, engine: Engine) -> None:
    done = containers.run("train.py")
    assert done.returncode == 0, done.stderr
    assert "total 6" in done.stdout
    logs = containers.stoker("logs", "last", "make")
    assert "made in" in logs.stdout
    assert engine.run("ps", "--all", "--quiet").stdout == ""
    again = containers.run("train.py")
    assert "cached" in again.stderr


LONG = """
import os, time
from pathlib import Path
from stoker import pipeline, step
from stoker.config import DockerSettings, ResourceSettings

@step(cache=False, resources=ResourceSettings(gpu_count=1))
def wait(flag: str) -> str:
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return "seen by " + os.environ["HOSTNAME"]

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def long(flag: str):
    return wait(flag)

if __name__ == "__main__":
    import sys
    long(sys.argv[1])
"""


def names(engine: Engine, *more: str) -> list[str]:
    return engine.run("ps", *more, "--format", "{{.Names}}").stdout.split()


def eventually(done: Any, seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("over", [False, True], ids=["still running", "over meanwhile"])
def test_resume_takes_over_what_a_killed_driver_left(
    containers: Any, engine: Engine, base_image: str, over: bool
) -> None:
    flag = containers.home / "scratch" / "flag"
    containers.write({"long.py": LONG.replace("BASE", base_image)})
    driver = subprocess.Popen(
        [sys.executable, "long.py", str(flag)],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home), "STOKER_SIMULATE": "1xH100"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    container = eventually(lambda: names(engine))[0]
    eventually(lambda: "waiting" in engine.run("logs", container).stdout)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert names(engine) == [container]
    held = containers.stoker("devices", "--simulate", "1xH100", "--json").stdout
    assert json.loads(held)["leases"], "the device is the container's, whoever started it"
    if over:
        flag.write_text("")
        eventually(lambda: names(engine) == [])
        flag.unlink()
    else:
        eventually(lambda: names(engine))
    run = json.loads(containers.stoker("runs", "--json").stdout)[0]["id"]
    resumed = subprocess.Popen(
        [str(Path(sys.executable).with_name("stoker")), "resume", run],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home), "STOKER_SIMULATE": "1xH100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if not over:
        time.sleep(0)
        flag.write_text("")
    output = resumed.communicate(timeout=120)[0]
    assert resumed.returncode == 0, output
    assert names(engine, "--all") == []
    shown = json.loads(containers.stoker("show", run, "--json").stdout)
    assert shown["status"] == "succeeded"
    assert not json.loads(containers.stoker("devices", "--simulate", "1xH100", "--json").stdout)["leases"]


def test_ctrl_c_ends_the_containers(containers: Any, engine: Engine, base_image: str, tmp_path: Path) -> None:
    containers.write({"long.py": LONG.replace("BASE", base_image)})
    driver = subprocess.Popen(
        [sys.executable, "long.py", str(tmp_path / "never")],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home), "STOKER_SIMULATE": "1xH100"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    container = eventually(lambda: names(engine))[0]
    eventually(lambda: "waiting" in engine.run("logs", container).stdout)
    driver.send_signal(signal.SIGINT)
    _, stderr = driver.communicate(timeout=60)
    assert driver.returncode == 130, stderr
    assert names(engine, "--all") == []


BUILT = """
from stoker import pipeline, step
from stoker.config import DockerSettings

@step
def where() -> str:
    import stoker
    return stoker.__file__

@pipeline(settings={"docker": DockerSettings(
    parent_image="BASE", python_package_installer="pip", build_config={"options": {"network_mode": "host"}}
)})
def built():
    return where()

if __name__ == "__main__":
    print("worker at", built().steps["where"].output.load())
"""


@pytest.mark.slow
def test_an_image_is_built_once_and_brings_the_worker(containers: Any, engine: Engine, base_image: str) -> None:
    containers.write({"built.py": BUILT.replace("BASE", base_image)})
    done = containers.run("built.py", timeout=280)
    assert "worker at /" in done.stdout
    assert "built the image of step 'where'" in done.stderr
    again = containers.run("built.py")
    assert "built the image" not in again.stderr


def test_gc_removes_what_is_dead_and_nothing_else(containers: Any, engine: Engine, base_image: str) -> None:
    containers.write({"long.py": LONG.replace("BASE", base_image)})
    flag = containers.home / "scratch" / "flag"
    driver = subprocess.Popen(
        [sys.executable, "long.py", str(flag)],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home), "STOKER_SIMULATE": "1xH100"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    container = eventually(lambda: names(engine))[0]
    eventually(lambda: "waiting" in engine.run("logs", container).stdout)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    home = f"{containers.home}/scratch"
    engine.run("create", "--name", "of-others", "--label", "stoker=step", "--label", "stoker.home=/x", base_image)
    engine.run(
        *("create", "--name", "dead", "--label", "stoker=step", "--label", f"stoker.home={home}"),
        *("--label", "stoker.run=long-gone", base_image),
    )
    try:
        told = json.loads(containers.stoker("gc", "--dry-run", "--json").stdout)
        assert told["containers"] == 1
        assert sorted(names(engine, "--all")) == sorted([container, "of-others", "dead"])
        containers.stoker("gc")
        # The orphan still runs, and `stoker resume` may want it.
        assert sorted(names(engine, "--all")) == sorted([container, "of-others"])
        flag.write_text("")
        eventually(lambda: names(engine) == [])
        assert json.loads(containers.stoker("gc", "--json").stdout)["containers"] == 1
        assert names(engine, "--all") == ["of-others"]
    finally:
        engine.run("rm", "--force", "of-others")
