"""Whole runs on a stack whose orchestrator is Ray: from the settings to the results."""

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
from tests.programs import HELPER, LEARN, LEARNED
from tests.servers.raycluster import RayCluster

from stoker.backends.ray.beside import METADATA
from stoker.backends.ray.jobs import Jobs
from stoker.backends.ray.settings import RaySettings

PIPELINES = (
    LEARN.replace("TIMEOUT", "4s")
    + """
@pipeline
def learn(n: int = 4):
    ranks()
    return train(make(n))

@step(resources=ResourceSettings(gpu_count=9))
def huge() -> None:
    ...

@pipeline
def never():
    huge()
"""
    + LEARNED
)
FLOW = """
from stoker.flow import FlowSpec, step

class Squares(FlowSpec):
    @step
    def start(self):
        self.items = [1, 2, 3]
        self.next(self.square, foreach="items")

    @step
    def square(self):
        self.value = self.input**2
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = sum(one.value for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        print("total is", self.total)

if __name__ == "__main__":
    Squares()
"""


@pytest.fixture
def programs(raying: Any) -> Any:
    """The project with its programs."""
    return raying.write({"train.py": PIPELINES, "helper.py": HELPER, "squares.py": FLOW})


def test_a_pipeline_with_a_gang_and_a_timeout(programs: Any) -> None:
    done = programs.run("train.py", "learn", env={"STOKER_SIMULATE": "2xH100"}, timeout=240.0)
    assert "total 106" in done.stdout, done.stdout
    ranks = json.loads(done.stdout.partition("ranks ")[2].splitlines()[0].replace("'", '"'))
    assert [(one["rank"], one["node"], one["sum"]) for one in ranks] == [(0, 0, 10), (1, 0, 10), (2, 1, 10), (3, 1, 10)]
    assert "made in" in programs.stoker("logs", "last", "make").stdout
    run = programs.client().run("last")
    failures = [attempt.failure for attempt in run.steps["train"].attempts]
    assert [failure.cause if failure is not None else "" for failure in failures] == ["timed-out", ""]
    receipt = run.steps["ranks"].attempts[0].receipt
    assert receipt is not None and len(receipt.devices) == 4, "two nodes of two"


def test_a_flow_with_a_foreach(programs: Any) -> None:
    done = programs.run("squares.py", "run", timeout=240.0)
    assert "total is 14" in done.stdout + done.stderr


def test_what_can_never_fit_is_refused(programs: Any) -> None:
    done = programs.run("train.py", "never", code=3)
    assert "STK188" in done.stderr and "the largest node has 2 GPUs" in done.stderr
    done = programs.run("train.py", "never", code=3, env={"TOKEN_OF_RAY": "another"})
    assert "STK189" in done.stderr and "does not let us in" in done.stderr


def enter_the_step(programs: Any, ray_cluster: RayCluster) -> None:
    """Commands that print run beside a task; what types or connects is refused."""
    script = 'command -v python; echo "it\'s"; printf half; exit 5'
    done = programs.stoker("exec", "last", "wait", "--", "sh", "-c", script, input="typed", code=5)
    assert done.stdout == f"{Path(sys.executable).with_name('python')}\nit's\nhalf", done
    assert "train.py" in programs.stoker("dump", "last", "wait").stdout
    for words in (("exec", "last", "wait"), ("forward", "last", "wait", "80")):
        refused = programs.stoker(*words, code=2).stderr
        assert "STK345" in refused and "has no channel for what is typed" in refused, refused
    jobs = Jobs(RaySettings(address=ray_cluster.dashboard, token="env:TOKEN_OF_RAY"), os.environ)
    assert not [(job["submission_id"], job["status"]) for job in jobs.jobs() if METADATA in (job["metadata"] or {})]
    jobs.close()


def test_a_step_is_entered_and_resume_takes_over_what_a_killed_driver_left(
    programs: Any, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    driver = subprocess.Popen(
        [sys.executable, "train.py", str(flag)],
        cwd=programs.folder,
        env={**os.environ, "STOKER_HOME": str(programs.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        journals = programs.home / "scratch" / "ray"
        end = time.monotonic() + 120
        while not any("waiting\\n" in path.read_text() for path in journals.rglob("journal")):
            assert time.monotonic() < end
            assert driver.poll() is None
            time.sleep(0.1)
        enter_the_step(programs, ray_cluster)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    flag.touch()
    programs.stoker("resume", "last", timeout=120.0)
    run = programs.client().run("last")
    assert run.status == "succeeded" and run.steps["wait"].output.load() == "seen"
    assert "waiting" in programs.stoker("logs", "last", "wait").stdout
    assert not list(journals.rglob("jobs.json")), "nothing is left behind"
