"""Runs with SkyPilot from end to end: its double runs what would be launched as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.programs import SQUARES, WAITS
from tests.servers import sshd
from tests.servers.s3 import S3
from tests.skypilot.conftest import Double
from tests.waiting import until

STACK = """
stack = "sky"
[stacks.sky]
{store}
orchestrator = {{flavor = "skypilot", sky = "{sky}", executable = "{python}", patience = "60s"{more}}}
"""


def stack(double: Double, python: str, *, store: str = "", more: str = "") -> str:
    """The stack's file; without a store, machines see this machine's folders."""
    named = f'artifact_store = "{store}"' if store else ""
    more += "" if store else ", shares_files = true"
    return STACK.format(store=named, sky=double.command, python=python, more=more)


def test_a_pipeline_with_a_fan_out(
    project: Any, double: Double, s3_server: S3, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and machines share an object store, and nothing else; its credentials, and what the step asks for, reach
    them as secrets."""
    for name, value in {**s3_server.environment, "HF_TOKEN": "carried"}.items():
        monkeypatch.setenv(name, value)
    (double.state / "thin").write_text("a release with other fields")
    store = f"{s3_server.bucket('skypilot')}/store"
    project.write(
        {
            "squares.py": SQUARES,
            "stoker.toml": stack(double, python, store=store, more=', clusters = 2, secrets = ["HF_TOKEN"]'),
        }
    )
    done = project.run("squares.py", timeout=240.0)
    run = project.client().runs()[0]
    assert run.status == "succeeded", done.stdout + done.stderr
    assert run.steps["total"].output.load() == 30
    assert [line.text for line in run.steps["load"].logs()] == ["hello you carried", "on stderr"]
    assert len(double.calls("launch")) <= 2
    until(double.is_empty)


def started(
    project: Any, double: Double, python: str, marks: Path, *, more: str = "", program: str = WAITS
) -> subprocess.Popen[bytes]:
    """A driver whose step `waits` runs until the file `go` is there."""
    settings = f', envs = {{MARKS = "{marks}"}}{more}'
    project.write({"long.py": program, "stoker.toml": stack(double, python, more=settings)})
    environment = {**os.environ, "STOKER_HOME": str(project.home), "MARKS": str(marks)}
    driver = subprocess.Popen(
        [sys.executable, "long.py"],
        cwd=project.folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: (marks / "waits").exists())
    return driver


def marks_of(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in ("begin", "waits", "after")}


def test_a_killed_driver_resumed(project: Any, double: Double, python: str, tmp_path: Path) -> None:
    """Its cluster goes on: the next driver adopts what runs, and gives it the rest; then it is taken down."""
    driver = started(project, double, python, tmp_path)
    driver.kill()
    driver.wait()
    [run] = project.client().runs()
    (tmp_path / "go").touch()
    project.stoker("resume", run.id, timeout=240.0)
    run = project.client().run(run.id)
    assert run.status == "succeeded" and run.steps["after"].output.load() == 3
    assert marks_of(tmp_path) == {"begin": "x", "waits": "x", "after": "x"}
    assert len(double.calls("launch")) == 1
    until(double.is_empty)


@pytest.mark.long
def test_a_killed_driver_that_nobody_resumes(
    project: Any, double: Double, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program on the cluster gives up, and the cluster's autostop takes it down; nothing is left by listing."""
    monkeypatch.setenv("SKY_DOUBLE_MINUTE", "0.5")
    more = ', patience = "3s", idle_minutes_to_autostop = 1'
    settings = stack(double, python, more=f', envs = {{MARKS = "{tmp_path}"}}{more}').replace(', patience = "60s"', "")
    monkeypatch.setattr("tests.skypilot.test_runs.stack", lambda *_, **__: settings)
    driver = started(project, double, python, tmp_path)
    driver.kill()
    driver.wait()
    assert len(double.clusters()) == 1
    (tmp_path / "go").touch()
    until(double.is_empty)
    assert not double.calls("down")


@pytest.mark.parametrize(
    "words", [("cancel", "last"), pytest.param(("gc", "--force"), marks=pytest.mark.long)], ids=["cancel", "gc"]
)
def test_what_a_killed_driver_left_is_taken_down_when_asked(
    project: Any, double: Double, python: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    driver = started(project, double, python, tmp_path)
    driver.kill()
    driver.wait()
    kept = project.stoker("gc", timeout=120.0)
    assert len(double.clusters()) == 1, kept.stdout
    project.stoker(*words, timeout=120.0)
    until(double.is_empty)
    assert double.calls("down")


def test_a_step_is_entered_and_the_run_is_interrupted(
    project: Any, double: Double, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of the tests' is what ssh finds under the cluster's name."""
    sshd.refuse(sshd.absence())
    driver = started(project, double, python, tmp_path)
    (cluster,) = double.clusters()
    with sshd.running({}) as server:
        config = tmp_path / "config"
        config.write_text(server.config.read_text().replace(sshd.ALIAS, cluster))
        monkeypatch.setenv("STOKER_SSH_CONFIG", str(config))

        def is_placed() -> bool:
            steps = json.loads(project.stoker("show", "last", "--json").stdout)["steps"]
            return any(step["key"] == "waits" and (step["placement"] or {}).get("node") for step in steps)

        until(is_placed)
        done = project.stoker(
            "exec", "last", "waits", "--", "sh", "-c", 'cat; echo "$MARKS"; exit 5', input="-", code=5
        )
        assert done.stdout == f"-{tmp_path}\n"
        assert "long.py" in project.stoker("dump", "last", "waits").stdout
    refused = project.stoker("dump", "last", "waits", code=2).stderr
    assert "STK345" in refused and f"sky status {cluster}" in refused, refused
    driver.send_signal(signal.SIGINT)
    driver.wait(120)
    [run] = project.client().runs()
    assert run.status == "cancelled"
    until(double.is_empty)


@pytest.mark.parametrize("spot", [True, False], ids=["managed", "cluster"])
def test_a_machine_that_the_cloud_takes_away(
    project: Any, double: Double, python: str, tmp_path: Path, spot: bool
) -> None:
    """The step is sent once more within its attempt: SkyPilot brings a managed job back, a cluster is launched anew."""
    driver = started(project, double, python, tmp_path, more=f", use_spot = true, managed = {str(spot).lower()}")
    name = double.jobs()[0]["job_name"] if spot else next(iter(double.clusters()))
    double.reclaim(name)
    until(lambda: (tmp_path / "waits").read_text() == "xx")
    (tmp_path / "go").touch()
    assert driver.wait(240) == 0
    [run] = project.client().runs()
    assert run.status == "succeeded" and [len(step.attempts) for step in run.steps.values()] == [1, 1, 1]
    assert len(double.calls("jobs launch")) == (1 if spot else 0)
    until(double.is_empty)


GANG = """
from stoker import pipeline, step
from stoker.config import ResourceSettings, Torchrun

@step(cache=False, settings={"resources": ResourceSettings(nodes=2)}, launch=Torchrun(nproc_per_node=1))
def train() -> str:
    import os
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.environ["SKYPILOT_NODE_RANK"])
    return os.environ["RANK"]

@step(cache=False)
def fails() -> int:
    raise ValueError("never")

@pipeline
def gang():
    train()
    fails()

if __name__ == "__main__":
    gang()
"""


def test_a_gang_and_a_failure(project: Any, double: Double, python: str) -> None:
    """Two nodes are one task, which executes the step once."""
    project.write({"gang.py": GANG, "stoker.toml": stack(double, python)})
    done = project.stoker("run", "gang.py", "--set", "failure_mode=continue", code=1, timeout=240.0)
    [run] = project.client().runs()
    assert run.steps["train"].status == "succeeded", done.stdout + done.stderr
    lines = sorted(line.text for line in run.steps["train"].logs() if line.text.startswith("rank"))
    assert lines == ["rank 0 of 2 on 0", "rank 1 of 2 on 1"]
    assert run.steps["train"].output.load() == "0" and len(run.steps["train"].attempts) == 1
    assert "ValueError: never" in done.stdout + done.stderr
    until(double.is_empty)


ONE = """
from stoker import pipeline, step

@step(cache=False)
def one() -> int:
    return 1

@pipeline
def single():
    one()

if __name__ == "__main__":
    single()
"""


def test_no_capacity_and_a_server_that_is_away(project: Any, double: Double, python: str) -> None:
    project.write({"one.py": ONE, "stoker.toml": stack(double, python)})
    (double.state / "capacity").write_text("1")
    project.run("one.py", code=1, timeout=120.0)
    attempt = project.client().runs()[0].steps["one"].attempts[-1]
    assert attempt.status == "failed" and "retry_until_up" in str(attempt.failure)
    shown = project.stoker("doctor", "--stack", "sky", code=None)
    assert "0.14.1" in shown.stdout and "aws" in shown.stdout
    (double.state / "away").touch()
    away = project.stoker("doctor", "--stack", "sky", code=None)
    assert "Could not connect to SkyPilot API server" in away.stdout + away.stderr
    until(double.is_empty)
