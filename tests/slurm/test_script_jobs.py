"""Scripts as real jobs: who gets which signal, whose file has which line, and what a launcher may start in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.slurm import Cluster
from tests.waiting import until

from stoker.backends.base.channel import Reader
from stoker.backends.slurm import script as slurm
from stoker.config import SlurmSettings
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import ResourceSettings, StepSettings

STEPS = """
import os
import subprocess
import time
from pathlib import Path

from stoker import context


def says():
    print("word", os.environ["WORD"], "node", context.node, "of", context.nodes)


def waits():
    print("begins on", context.node, flush=True)
    while not context.should_stop:
        time.sleep(0.05)
    print("was told", context.node, flush=True)


def starts():
    if context.node == 0:
        command = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "sh", "-c", "echo rank $SLURM_PROCID"]
        subprocess.run(command, check=True)
    print("started", flush=True)
"""
GOES_ON = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
FOLDER = "a folder, with 100%job $HOME"


class Sent:
    """One submission: its script's folder, and Slurm's number."""

    def __init__(self, cluster: Cluster, folder: Path, number: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.number = number

    def file(self, name: str, index: int = 0) -> str:
        path = self.folder / str(index) / name
        return path.read_text() if path.exists() else ""

    def said(self, node: int = 0, index: int = 0) -> list[str]:
        """Lines of the step, also those of ranks, which come in messages."""
        lines, messages = Reader().read("stdout", self.file(f"out-{node}", index).encode())
        return [line.text for line in lines] + [row[3] for event in messages for row in event.lines]

    def result(self, index: int = 0) -> dict[str, Any]:
        until(lambda: bool(self.file("result.json", index)) or not GOES_ON & set(self.state().split()))
        text = self.file("result.json", index)
        assert text, (self.state(), self.file("err-0", index), self.cluster.run("scontrol", "show", "job", self.number))
        found: dict[str, Any] = json.loads(text)
        return found

    def state(self) -> str:
        """That of the job; of an array all those that its tasks are in."""
        shown = self.cluster.run("squeue", "-h", "-r", "-t", "all", "-o", "%T", "-j", self.number).stdout
        return " ".join(sorted(set(shown.split())))


@pytest.fixture
def send(slurm_cluster: Cluster, tmp_path: Path) -> Callable[..., Sent]:
    """Submit jobs of a function in STEPS; settings of Slurm by `given`, of the step by `settings`."""

    def sent(name: str, *, count: int = 1, given: dict[str, Any] | None = None, **settings: Any) -> Sent:
        (tmp_path / "train.py").write_text(STEPS)
        source = FunctionSource(
            kind="script", module="train", qualname=name, path=str(tmp_path / "train.py"), root=str(tmp_path)
        )
        site = Site(
            artifacts=str(tmp_path / "artifacts"),
            scratch=str(tmp_path),
            folder=str(tmp_path),
            checkpoints=str(tmp_path / "checkpoints"),
        )
        step = StepPlan(
            key=name,
            name=name,
            source=source,
            outputs=(),
            unpack=False,
            inputs={},
            settings=StepSettings(environment={"WORD": "plugh"}, **settings),
            backend="orchestrator",
            code="1",
        )
        keys = [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]
        jobs = [
            Job(name=f"run1/{key}/1", run="run1", key=key, attempt=1, step=attrs.evolve(step, key=key), inputs={})
            for key in keys
        ]
        own, home = SlurmSettings(**(given or {})), str(tmp_path / FOLDER)
        assert len({slurm.group(job, own) for job in jobs}) == 1
        folder = Path(slurm.submission_folder(home, "run1", "t0ken"))
        for index, job in enumerate(jobs):
            (folder / str(index)).mkdir(parents=True)
            told = to_json(slurm.specification(job, site, own, folder=home, token="t0ken", index=index, secret="s"))
            (folder / str(index) / slurm.DOCUMENT).write_text(json.dumps(told))
        (folder / slurm.SCRIPT).write_text(slurm.script(jobs, site, own, folder=home, token="t0ken"))
        done = slurm_cluster.run("sbatch", "--parsable", str(folder / slurm.SCRIPT))
        return Sent(slurm_cluster, folder, done.stdout.strip())

    return sent


def test_a_job_of_one_node_writes_into_its_own_folder(send: Callable[..., Sent]) -> None:
    made = send("says")
    assert made.result()["ok"] is True
    until(lambda: made.state() == "COMPLETED")
    assert made.said() == ["word plugh node 0 of 1"]


def test_each_task_of_an_array_has_a_folder(send: Callable[..., Sent]) -> None:
    made = send("says", count=3)
    for index in range(3):
        assert made.result(index)["job"] == f"run1/says[{index}]/1"
        assert made.said(index=index) == ["word plugh node 0 of 1"]


def test_each_node_of_a_gang_has_files_of_its_own(send: Callable[..., Sent]) -> None:
    made = send("says", resources=ResourceSettings(nodes=2))
    assert made.result()["ok"] is True, made.file("err-0")
    until(lambda: made.state() == "COMPLETED")
    for node in (0, 1):
        assert f"word plugh node {node} of 2" in made.said(node), made.file("err-0")
    assert json.loads(made.file("result-1.json"))["ok"] is True


def test_a_launcher_may_start_ranks_by_srun(send: Callable[..., Sent]) -> None:
    """The nodes' own step has all of the job's CPUs, and would keep those of another one waiting for ever."""
    made = send("starts", resources=ResourceSettings(nodes=2, cpu_count=2))
    assert made.result()["ok"] is True
    assert {"rank 0", "rank 1"} <= set(made.said()), (made.said(), made.file("err-0"))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_warning_is_heard_by_the_step_alone(nodes: int, send: Callable[..., Sent]) -> None:
    """What Slurm does at `--signal=B:USR1@…`: the batch process hears of it."""
    made = send("waits", given={"warn_before": "1m", "time_limit": "10m"}, resources=ResourceSettings(nodes=nodes))
    until(lambda: all(f"begins on {node}" in made.said(node) for node in range(nodes)))
    made.cluster.run("scancel", "--batch", "--signal=USR1", made.number)
    assert made.result()["ok"] is True, made.file("err-0")
    assert all(f"was told {node}" in made.said(node) for node in range(nodes))
    until(lambda: made.state() == "COMPLETED")


@pytest.mark.parametrize("signals", [["--signal=TERM"], []])
def test_a_gang_that_is_asked_to_end_gets_to_tell_its_result(signals: list[str], send: Callable[..., Sent]) -> None:
    made = send("waits", resources=ResourceSettings(nodes=2))
    until(lambda: all(f"begins on {node}" in made.said(node) for node in (0, 1)))
    made.cluster.run("scancel", *signals, made.number)
    assert made.result()["job"] == "run1/waits/1"
    assert "was told 0" in made.said()


def test_the_gangs_end_is_the_jobs(send: Callable[..., Sent]) -> None:
    made = send("nobody", resources=ResourceSettings(nodes=2))
    assert made.result()["ok"] is False
    until(lambda: made.state() == "FAILED")
