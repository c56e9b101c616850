"""What a run's record says of its jobs on the cluster: when they waited and why, where they ran, and for how long."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.servers.drivers import Driver
from tests.servers.slurm import Cluster
from tests.waiting import until

STACK = """
stack = "cluster"
[stacks.cluster]
orchestrator = {flavor = "slurm", poll = 0.2, nodelist = "n1"}
"""
PIPELINE = """
import os, time
from stoker import pipeline, step

@step(cache=False)
def wait(flag: str) -> None:
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)

@pipeline
def queued(flag: str):
    wait(flag)

if __name__ == "__main__":
    import sys
    queued(sys.argv[1])
"""
HELD = 4.0
"""Seconds for which the job waits at least."""
RUNS = 3.0
"""Seconds for which the step runs at least."""


def shown(project: Any) -> dict[str, Any]:
    document = json.loads(project.stoker("show", "last", "--json").stdout)
    (step,) = document["steps"]
    return {**step, "run": document["id"]}


def test_a_job_that_waits_runs_and_outlives_its_driver(project: Any, cluster: Cluster, tmp_path: Path) -> None:
    project.write({"stoker.toml": STACK, "queued.py": PIPELINE})
    flag = tmp_path / "flag"
    words = ["--parsable", "--exclusive", "--nodelist=n1", "--output=/dev/null", "--wrap", "sleep 1000"]
    blocker = cluster.run("sbatch", *words).stdout.strip()
    began = time.monotonic()
    driver = Driver(project, "queued.py", str(flag))
    line = driver.says("wait: ", "(Resources)")
    follower = Driver(project, "-m", "stoker", "logs", "last", "wait", "--follow")
    follower.says("wait is pending: ", "in use by other jobs", "(Resources)")
    assert "(Resources)" in project.stoker("logs", "last").stderr
    waited = time.monotonic()
    step = shown(project)
    assert (step["status"], step["started"], step["seconds"]) == ("pending", None, None)
    assert "in use by other jobs" in step["message"]
    text = project.stoker("show", "last").stdout
    assert "pending" in text and "in use by other jobs" in text and "running" not in text.split("took")[-1]
    time.sleep(max(0.0, waited + HELD - time.monotonic()))
    cluster.run("scancel", blocker)
    until(lambda: shown(project)["status"] == "running")
    job = cluster.jobs()[-1]
    assert job["name"] == "queued/wait"
    placement = shown(project)["placement"]
    assert (placement["id"], placement["partition"], placement["attempt"]) == (job["id"], "main", 1)
    assert placement["node"] in ("n1", job["nodes"])
    assert placement["queue_seconds"] >= HELD
    assert any("(Resources)" in reason for _, reason in placement["waits"])
    until(lambda: "waiting" in project.stoker("logs", "last", "wait").stdout)
    follower.says("wait runs as job ")
    run = shown(project)["run"]
    beside = project.stoker("exec", run, "wait", "--", "sh", "-c", 'echo "$SLURM_JOB_ID"; exit 5', code=5)
    assert beside.stdout.strip() == job["id"]
    assert "queued.py" in project.stoker("dump", run, "wait").stdout
    driver.process.kill()
    driver.end()
    follower.process.kill()
    follower.end()
    pending = [line for line in follower.lines if "is pending" in line]
    assert len(pending) == len(set(pending)) <= 3, pending
    resumed = Driver(project, "-m", "stoker", "resume", step["run"])
    time.sleep(RUNS)
    flag.touch()
    assert resumed.end() == 0, resumed.text
    after = shown(project)
    assert (after["status"], after["attempt_count"], len(after["attempts"])) == ("succeeded", 1, 1)
    assert after["attempts"][0]["number"] == 1
    assert RUNS <= after["seconds"] < time.monotonic() - began - HELD, "the queue is no part of what it took"
    assert after["placement"]["queue_seconds"] == placement["queue_seconds"]
    assert after["placement"]["ended"] and after["placement"]["noticed"]
    assert project.stoker("logs", "last").stdout.count("waiting") == 1
    assert after["attempts"][0]["placement"] == after["placement"]
    assert after["placement"]["run_seconds"] >= RUNS
    document = json.loads(project.stoker("show", "last", "--json").stdout)
    assert document["queue_seconds"] >= HELD
    assert RUNS <= document["active_seconds"] < time.monotonic() - began - HELD
    text = project.stoker("show", "last").stdout
    assert f"job {job['id']}" in text and "main" in text and "of waiting for a place" in text
    assert line.count("wait") == 1


MAPPED = """
import os, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(cache=False, resources=ResourceSettings(cpu_count=2))
def square(n: int) -> int:
    return n * n

@pipeline
def many():
    square.map(list(range(12)))

if __name__ == "__main__":
    many()
"""


def test_a_fan_out_that_waits_is_a_line_for_each_reason(project: Any, cluster: Cluster) -> None:
    project.write({"stoker.toml": STACK, "many.py": MAPPED})
    words = ["--parsable", "--exclusive", "--nodelist=n1", "--output=/dev/null", "--wrap", "sleep 1000"]
    blocker = cluster.run("sbatch", *words).stdout.strip()
    driver = Driver(project, "many.py")
    driver.says("square: ", "12 waiting", "(Resources)")
    shown = project.stoker("show", "last").stdout
    assert "12 pending" in shown and "12 waits: " in shown
    (step,) = json.loads(project.stoker("show", "last", "--json").stdout)["steps"]
    assert (step["status"], step["counts"], list(step["waits"].values())) == ("pending", {"pending": 12}, [12])
    assert "(Resources)" in next(iter(step["waits"]))
    time.sleep(HELD)
    cluster.run("scancel", blocker)
    assert driver.end() == 0, driver.text
    assert "of waiting for a place" in driver.says("many succeeded in ")
    (step,) = json.loads(project.stoker("show", "last", "--json", "--elements").stdout)["steps"]
    assert (step["status"], step["counts"]) == ("succeeded", {"succeeded": 12})
    first = min(element["placement"]["started"] for element in step["elements"])
    assert step["started"] >= first, "the queue is no part of what a fan-out took"
    waiting = [line for line in driver.lines if " waiting: " in line]
    assert len(waiting) <= 3, "a line for each reason, not for each element"
    assert not [line for line in driver.lines if line.partition(" ")[2].startswith("square[")], driver.text
    run = project.client().run("last")
    assert [len(run.placements[f"square[{index}]"]) for index in range(12)] == [1] * 12
    named = {one.job.removeprefix("job ") for (one,) in run.placements.values()}
    assert named and named <= {job["id"] for job in cluster.jobs() if job["name"] == "many/square"}
