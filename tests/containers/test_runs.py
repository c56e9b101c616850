"""Whole runs on a stack whose orchestrator is a container engine: from the settings to the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine
from tests.servers.drivers import Driver
from tests.waiting import until

STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {flavor = "docker", network = "host", mounts = ["FLAGS"]}
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
    flags = project.folder / "flags"
    flags.mkdir()
    stack = STACK.replace("FLAGS", str(flags))
    project.write({"stoker.toml": stack, "train.py": PIPELINE.replace("BASE", base_image), "helper.py": HELPER})
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


def test_resume_takes_over_what_a_killed_driver_left(containers: Any, engine: Engine, base_image: str) -> None:
    flag = containers.folder / "flags" / "flag"
    containers.write({"long.py": LONG.replace("BASE", base_image)})
    driver = subprocess.Popen(
        [sys.executable, "long.py", str(flag)],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home), "STOKER_SIMULATE": "1xH100"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    container = until(lambda: names(engine))[0]
    until(lambda: "waiting" in engine.run("logs", container).stdout)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert names(engine) == [container]
    held = containers.stoker("devices", "--simulate", "1xH100", "--json").stdout
    assert json.loads(held)["leases"], "the device is the container's, whoever started it"
    run = json.loads(containers.stoker("runs", "--json").stdout)[0]["id"]
    resumed = subprocess.Popen(
        [str(Path(sys.executable).with_name("stoker")), "resume", run],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home), "STOKER_SIMULATE": "1xH100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    flag.write_text("")
    output = resumed.communicate(timeout=120)[0]
    assert resumed.returncode == 0, output
    assert names(engine, "--all") == []
    shown = json.loads(containers.stoker("show", run, "--json").stdout)
    assert shown["status"] == "succeeded"
    assert not json.loads(containers.stoker("devices", "--simulate", "1xH100", "--json").stdout)["leases"]


ALONE = """
import os, sys, time
from stoker import pipeline, step
from stoker.config import DockerSettings

IMAGE = {"docker": DockerSettings(parent_image="BASE", skip_build=True)}

@step(settings=IMAGE, cache=False)
def waits(path: str) -> int:
    print("before", flush=True)
    while not os.path.exists(path):
        time.sleep(0.05)
    print("after")
    return 1

@pipeline
def alone(path: str):
    waits.map([path, path])

if __name__ == "__main__":
    alone(sys.argv[1])
"""


@pytest.mark.parametrize(
    "over", [pytest.param(False, marks=pytest.mark.long), True], ids=["still running", "over meanwhile"]
)
def test_what_resume_takes_over_is_the_same_attempt_with_all_its_lines(
    containers: Any, engine: Engine, base_image: str, over: bool
) -> None:
    flag = containers.folder / "flags" / "flag"
    containers.write({"alone.py": ALONE.replace("BASE", base_image)})
    driver = Driver(containers, "alone.py", str(flag))
    for element in ("waits[0]", "waits[1]"):
        driver.says(element, "│ before")
    driver.process.kill()
    driver.end()
    if over:
        flag.write_text("")
        scratch = containers.home / "scratch" / "containers"
        until(lambda: len(list(scratch.glob("*/pool/job/result.json"))) == 2)
    run = containers.client().runs()[0].id
    resumed = Driver(containers, "resume", run, python=str(Path(sys.executable).with_name("stoker")))
    if not over:
        flag.write_text("")
    assert resumed.end() == 0, resumed.text
    step = containers.client().run(run).steps["waits"]
    assert step.started == min(element.started for element in step)
    for element in step:
        assert [(one.number, one.status) for one in element.attempts] == [(1, "succeeded")]
        assert [line.text for line in element.logs()] == ["before", "after"]


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
    container = until(lambda: names(engine))[0]
    until(lambda: "waiting" in engine.run("logs", container).stdout)
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


def test_a_tag_that_was_moved_since_the_last_run_is_told(containers: Any, engine: Engine, base_image: str) -> None:
    containers.write({"train.py": PIPELINE.replace("BASE", "localhost/moving:1")})
    engine.run("tag", base_image, "localhost/moving:1")
    assert containers.run("train.py").returncode == 0
    assert "STK211" not in containers.stoker("plan", "train.py").stdout
    engine.run("build", "--tag", "localhost/moving:1", "-", input=f"FROM {base_image}\nENV MOVED=1\n".encode())
    planned = containers.stoker("plan", "train.py").stdout
    assert "STK211" in planned and "its tag was moved" in planned
    assert containers.run("train.py").returncode == 0
    assert "STK211" not in containers.stoker("plan", "train.py").stdout


TWICE = """
import os, time
from pathlib import Path
from stoker import pipeline, step
from stoker.config import DockerSettings, ResourceSettings

@step(cache=False, resources=ResourceSettings(cpu_count=0.1))
def wait(flag: str, number: int) -> str:
    Path(f"{flag}-{number}-waits").touch()
    while not os.path.exists(f"{flag}-{number}"):
        time.sleep(0.05)
    with open(flag + "-ran", "a") as file:
        file.write(f"{number} ")
    return "long " * 5000 + str(number)

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def long(flag: str):
    return [wait(flag, number) for number in range(3)]

if __name__ == "__main__":
    import sys
    long(sys.argv[1])
"""


@pytest.fixture(
    params=[pytest.param("false", marks=pytest.mark.long), '"auto"'],
    ids=["containers of their own", "containers that take several"],
)
def killed(containers: Any, engine: Engine, base_image: str, request: Any) -> tuple[Any, Path, str]:
    """A project with an interrupted run: in one container a step has ended well, in two they still run."""
    containers.write({"twice.py": TWICE.replace("BASE", base_image)})
    stack = (containers.folder / "stoker.toml").read_text().replace("mounts", f"reuse = {request.param}, mounts")
    containers.write({"stoker.toml": stack})
    flag = containers.folder / "flags" / "flag"
    driver = subprocess.Popen(
        [sys.executable, "twice.py", str(flag)],
        cwd=containers.folder,
        env={**os.environ, "STOKER_HOME": str(containers.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list(flag.parent.glob("flag-*-waits"))) == 3)
        assert len(names(engine)) == 3
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    Path(f"{flag}-0").touch()
    until(lambda: list((containers.home / "scratch" / "containers").glob("**/result.json")))
    until(lambda: request.param != "false" or len(names(engine)) == 2)
    return containers, flag, json.loads(containers.stoker("runs", "--json").stdout)[0]["id"]


def times_run(flag: Path) -> list[str]:
    return sorted(Path(f"{flag}-ran").read_text().split())


def test_gc_takes_nothing_of_an_interrupted_run_but_by_force_and_then_keeps_results(
    killed: Any, engine: Engine, base_image: str
) -> None:
    project, flag, run = killed
    home = f"{project.home}/scratch"
    engine.run("create", "--name", "of-others", "--label", "stoker=step", "--label", "stoker.home=/x", base_image)
    engine.run(
        *("create", "--name", "dead", "--label", "stoker=step", "--label", f"stoker.home={home}"),
        *("--label", "stoker.run=long-gone", base_image),
    )
    try:
        ours = sorted(set(names(engine, "--all")) - {"of-others", "dead"})
        told = project.stoker("gc", "--dry-run", "--json")
        assert json.loads(told.stdout)["containers"] == 1
        assert f"3 containers of run {run} stay, 2 of them running" in told.stderr
        assert "dead" in names(engine, "--all")
        # Also where somebody wants old runs to go: this one holds what has not been adopted.
        kept = project.stoker("gc", "--older-than", "0s", "--json")
        assert f"run {run} stays" in kept.stderr
        assert sorted(names(engine, "--all")) == sorted([*ours, "of-others"])
        forced = json.loads(project.stoker("gc", "--force", "--json").stdout)
        assert forced["containers"] == 3
        assert names(engine, "--all") == ["of-others"]
        Path(f"{flag}-1").touch()
        Path(f"{flag}-2").touch()
        project.stoker("resume", run)
        assert times_run(flag) == ["0", "1", "2"], "what was done is not computed again"
        steps = project.client().run(run).steps
        assert [steps[name].output.load()[-1] for name in ("wait", "wait_2", "wait_3")] == ["0", "1", "2"]
        assert not list((project.home / "scratch" / "containers").iterdir())
        assert not list((project.home / "artifacts" / "jobs").iterdir())
    finally:
        engine.run("rm", "--force", "of-others")


def test_cancel_ends_what_a_killed_driver_left_and_resume_finds_what_was_done(killed: Any, engine: Engine) -> None:
    project, flag, run = killed
    said = project.stoker("cancel", run).stderr
    assert "ended 2 jobs that it left running" in said
    assert names(engine, "--all") == []
    assert "nothing of it runs any more" in project.stoker("cancel", run, "--now").stderr
    Path(f"{flag}-1").touch()
    Path(f"{flag}-2").touch()
    project.stoker("resume", run)
    assert times_run(flag) == ["0", "1", "2"]


SECRET = """
import os, time
from stoker import Secret, pipeline, step
from stoker.config import DockerSettings

@step(cache=False, environment={"HF": Secret.env("HF_TOKEN")})
def use(token: str) -> int:
    assert token == os.environ["HF"] and token.startswith("hf_")
    print("token", token, flush=True)
    while not os.path.exists("/tmp/go"):
        time.sleep(0.05)
    raise ValueError(token)

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def keeps(token: str = Secret.env("HF_TOKEN")):
    use(token)

if __name__ == "__main__":
    keeps()
"""


def test_a_secret_is_in_no_request_and_in_no_log(
    containers: Any, engine: Engine, base_image: str, tmp_path: Path
) -> None:
    value = "hf_secret_of_docker_01"
    containers.write({"keeps.py": SECRET.replace("BASE", base_image)})
    environment = {**os.environ, "STOKER_HOME": str(containers.home), "HF_TOKEN": value}
    driver = subprocess.Popen(
        [sys.executable, "keeps.py"], cwd=containers.folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert driver.stderr is not None
    first = driver.stderr.readline()
    while "token" not in first:
        first = driver.stderr.readline()
    assert "token ***env:HF_TOKEN***" in first
    container = engine.run("ps", "--quiet").stdout.split()[0]
    beside = containers.stoker("exec", "last", "use", "--", "sh", "-c", 'echo "HF=$HF"; ls /.dockerenv; exit 5', code=5)
    assert beside.stdout.split() == ["HF=secret:env:HF_TOKEN", "/.dockerenv"]
    assert "in use" in containers.stoker("dump", "last", "use").stdout
    assert value not in engine.run("inspect", container).stdout + engine.run("logs", container).stdout
    engine.run("exec", container, "touch", "/tmp/go")
    _, written = driver.communicate(timeout=200)
    assert driver.returncode == 1 and value not in written
    assert "ValueError: ***env:HF_TOKEN***" in written
    assert [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()] == []
