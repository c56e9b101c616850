"""Whole runs on a stack whose orchestrator is a cluster: from the settings to the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.slurm import Cluster
from tests.waiting import until

PIPELINE = """
import socket
import helper
from stoker import pipeline, step

@step
def make(n: int) -> list[int]:
    print("made on", socket.gethostname())
    return helper.numbers(n)

@step
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
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


def test_a_pipeline_runs_on_the_cluster(clustered: Any, cluster: Cluster) -> None:
    clustered.write({"train.py": PIPELINE, "helper.py": HELPER})
    done = clustered.run("train.py")
    assert "total 6" in done.stdout
    assert "made on" in clustered.stoker("logs", "last", "make").stdout
    again = clustered.run("train.py")
    assert "cached" in again.stderr
    takes_away_what_drivers_left(clustered)


def takes_away_what_drivers_left(clustered: Any) -> None:
    """`stoker gc`: folders of runs that are over, by the time of their last change."""
    run = json.loads(clustered.stoker("runs", "--json").stdout)[0]
    home = clustered.home / "scratch" / "slurm"
    old, fresh = home / run["id"] / "0123" / "jobs.json", home / "other" / "4567" / "jobs.json"
    of_ray = clustered.home / "scratch" / "ray" / run["id"] / "89ab" / "jobs.json"
    for path in (old, fresh, of_ray):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    for path in (old, of_ray):
        os.utime(path, (0, 0))
    assert "would delete 2 folders of runs on clusters" in clustered.stoker("gc", "--dry-run").stdout
    assert json.loads(clustered.stoker("gc", "--json").stdout)["job_folders"] == 2
    assert not old.exists() and not old.parent.parent.exists() and not of_ray.exists()
    assert fresh.exists()


def test_a_script_that_was_migrated_runs_on_the_cluster(clustered: Any) -> None:
    words = "#SBATCH -J ranks --ntasks=2 --mem=64M --time=5"
    clustered.write({"ranks.slurm": f"#!/bin/bash\n{words}\nexport A=1\nsrun -l sh -c 'echo rank $SLURM_PROCID $A'\n"})
    clustered.stoker("migrate", "ranks.slurm", "--write")
    clustered.run("ranks.py", "--stack", "local")
    said = clustered.stoker("logs", "last", "ranks").stdout
    assert "rank 0 1" in said and "rank 1 1" in said


def test_a_program_with_submitit_that_was_migrated_runs_on_the_cluster(clustered: Any) -> None:
    program = """
    import submitit

    def add(a, b):
        return a + b

    executor = submitit.AutoExecutor(folder="logs")
    executor.update_parameters(timeout_min=5, mem_gb=0.064)
    print("got", [job.result() for job in executor.map_array(add, [1, 2], [3, 4])])
    """
    clustered.write({"add.py": program})
    clustered.stoker("migrate", "add.py", "--write", "--output", "made.py")
    assert "got [4, 6]" in clustered.run("made.py", "--stack", "local").stdout


LONG = """
import os, socket, time
from stoker import context, pipeline, step
from stoker.config import Retry

@step(cache=False, retry=Retry(2))
def wait(flag: str) -> str:
    with open(flag + ".starts", "a") as file:
        file.write(socket.gethostname() + "\\n")
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return socket.gethostname()

@step
def shout(name: str) -> str:
    return name.upper()

@pipeline
def long(flag: str):
    return shout(wait(flag))

if __name__ == "__main__":
    import sys
    run = long(sys.argv[1])
    print("attempts", run.steps["wait"].attempts)
"""


def started(project: Any, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=project.folder,
        env={**os.environ, "STOKER_HOME": str(project.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_step_whose_node_fails_is_tried_again_on_another(clustered: Any, cluster: Cluster, tmp_path: Path) -> None:
    flag, starts = tmp_path / "flag", tmp_path / "flag.starts"
    clustered.write({"long.py": LONG})
    driver = started(clustered, "long.py", str(flag))
    until(starts.exists)
    failed = cluster.jobs()[-1]["nodes"]
    cluster.node_fails(failed)
    until(lambda: starts.read_text().count("\n") == 2)
    flag.write_text("")
    output = driver.communicate(timeout=180)[0]
    assert driver.returncode == 0, output
    shown = clustered.stoker("show", "last", "--json").stdout
    assert "node-lost" in shown
    lost, again = cluster.jobs()[-2:]
    assert (lost["state"], lost["nodes"]) == ("NODE_FAIL", failed)
    assert again["nodes"] != failed


def test_ctrl_c_ends_the_jobs(clustered: Any, cluster: Cluster, tmp_path: Path) -> None:
    clustered.write({"long.py": LONG})
    driver = started(clustered, "long.py", str(tmp_path / "never"))
    until((tmp_path / "never.starts").exists)
    driver.send_signal(signal.SIGINT)
    output = driver.communicate(timeout=120)[0]
    assert driver.returncode == 130, output
    until(lambda: cluster.jobs()[-1]["state"] in ("CANCELLED", "FAILED", "COMPLETED"))
    assert not list((clustered.home / "scratch" / "slurm").glob("*/*"))


LIMITED = """
import time
from stoker import context, pipeline, step
from stoker.config import Retry

@step(cache=False, retry=Retry(1, on="timed-out"))
def train() -> int:
    place = context.checkpoint_dir / "epoch"
    epoch = int(place.read_text()) if place.exists() else 0
    print("epoch", epoch, flush=True)
    while epoch == 0:
        if context.should_stop and not place.exists():
            place.with_suffix(".new").write_text("1")
            place.with_suffix(".new").rename(place)
            print("checkpoint written", flush=True)
        time.sleep(0.05)
    return epoch

@pipeline
def limited():
    train()

if __name__ == "__main__":
    print("went on at epoch", limited().steps["train"].output.load())
"""


@pytest.mark.slow
def test_a_step_goes_on_after_the_limit_of_its_time(clustered: Any, cluster: Cluster) -> None:
    """Slurm looks at limits every half a minute; the step sees SIGTERM, not a warning before."""
    clustered.write({"limited.py": LIMITED})
    driver = started(clustered, "limited.py")
    until(lambda: "epoch 0" in clustered.stoker("logs", "last", "train", code=None).stdout)
    cluster.run("scontrol", "update", f"jobid={cluster.jobs()[-1]['id']}", "EndTime=now+1")
    output = driver.communicate(timeout=240)[0]
    assert driver.returncode == 0, output
    assert "went on at epoch 1" in output
    shown = clustered.stoker("show", "last", "--json").stdout
    assert "timed-out" in shown
    assert cluster.jobs()[-2]["state"] == "TIMEOUT"


ERRORS = """
from stoker import pipeline, step

def note(told):
    with open(NOTES, "a") as file:
        file.write(f"{told.step or told.pipeline} {told.status} {told.cause}\\n")

NOTES = "FOLDER/notes.txt"

@step(on_failure=note)
def wrong() -> int:
    return 1 // 0

@pipeline(on_failure=note)
def watched():
    wrong()

if __name__ == "__main__":
    watched()
"""


def test_errors_are_shown_and_hooks_called(clustered: Any, tmp_path: Path) -> None:
    clustered.write({"train.py": ERRORS.replace("FOLDER", str(tmp_path))})
    done = clustered.run("train.py", code=1)
    assert "ZeroDivisionError" in done.stderr
    assert "return 1 // 0" in done.stderr
    assert (tmp_path / "notes.txt").read_text().splitlines() == ["wrong failed user-error", "watched failed user-error"]


FLOW = """
from stoker.flow import FlowSpec, current, retry, step

class Squares(FlowSpec):
    @step
    def start(self):
        self.items = [1, 2, 3]
        self.next(self.square, foreach="items")

    @retry(times=1)
    @step
    def square(self):
        if self.input == 2 and current.retry_count == 0:
            raise ValueError("once")
        self.result = self.input ** 2
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = sum(one.result for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        print("total is", self.total)

if __name__ == "__main__":
    Squares()
"""


def test_a_flow_runs_on_the_cluster(alone: Any, cluster: Cluster) -> None:
    alone.write({"flow.py": FLOW})
    before = len(cluster.jobs())
    done = alone.run("flow.py", "run")
    assert "total is 14" in done.stdout + done.stderr
    jobs = cluster.jobs()[before:]
    assert len(jobs) == 7 and len({job["comment"] for job in jobs}) == 5, "elements are one array, but for the retry"


SECRET = """
import os
from stoker import Secret, pipeline, step

@step(cache=False, environment={"HF": Secret.env("HF_TOKEN")})
def use(token: str) -> int:
    assert token == os.environ["HF"] and token.startswith("hf_")
    print("token", token)
    return 1

@step(cache=False)
def fail(token: str, flag: str) -> int:
    open(flag, "w").close()
    while not os.path.exists(flag + ".go"):
        pass
    raise ValueError(token)

@pipeline
def keeps(flag: str, token: str = Secret.env("HF_TOKEN")):
    fail(use(token) and token, flag)

if __name__ == "__main__":
    import sys
    keeps(sys.argv[1])
"""


def test_a_secret_is_in_no_script_and_in_no_file_that_stays(clustered: Any, cluster: Cluster, tmp_path: Path) -> None:
    value = "hf_secret_of_slurm_01"
    flag = tmp_path / "flag"
    clustered.write(
        {"keeps.py": SECRET.replace("fail(use(token) and token, flag)", "use(token)\n    fail(token, flag)")}
    )
    environment = {**os.environ, "STOKER_HOME": str(clustered.home), "HF_TOKEN": value}
    driver = subprocess.Popen(
        [sys.executable, "keeps.py", str(flag)],
        cwd=clustered.folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(flag.exists)
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert {path.name for path in holding} == {"job.json"}, holding
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding)
    (tmp_path / "flag.go").touch()
    _, written = driver.communicate(timeout=200)
    assert driver.returncode == 1 and value not in written
    assert "token ***env:HF_TOKEN***" in written and "ValueError: ***env:HF_TOKEN***" in written
    assert [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()] == []
