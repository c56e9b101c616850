"""`--detach` on a cluster: the driver is a small job, and submits the steps from there."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.servers.s3 import S3
from tests.servers.slurm import Cluster
from tests.waiting import until

from stoker.backends.slurm.cluster import ClusterFacts, Partition
from stoker.backends.slurm.detach import longest, script
from stoker.backends.slurm.settings import SlurmSettings
from stoker.store.rows import DRIVER_JOB, DRIVER_PLACE

PIPELINE = """
    import os
    import socket
    import subprocess

    from stoker import pipeline, step


    @step(cache=False)
    def look() -> dict:
        return {name: text for name, text in os.environ.items() if name.startswith("SLURM")}


    @step(resources={"nodes": 2, "memory": "200MB"}, cache=False)
    def gang() -> str:
        return socket.gethostname()


    @step
    def double(number: int) -> int:
        return number * 2


    @pipeline
    def looking(more: bool = False, count: int = 3):
        look()
        double.map(list(range(1, count + 1)))
        if more:
            gang()


    if __name__ == "__main__":
        looking()
"""


def detached(project: Any, *argv: str) -> str:
    done = project.stoker("run", "looking.py", "--detach", *argv)
    assert "goes on by itself: Slurm job" in done.stderr
    id: str = done.stdout.strip()
    return id


def ended(project: Any, id: str) -> Any:
    run = project.client().run(id).wait(180)
    output = project.home / "logs" / id / "driver.out"
    assert run.status == "succeeded", output.read_text() if output.exists() else run.awaits
    return run


@pytest.fixture
def closed(clustered: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Nothing starts on the cluster until this is called; the working folder is the project's, where its stack is."""
    monkeypatch.chdir(clustered.folder)
    clustered.write({"looking.py": PIPELINE})
    cluster.run("scontrol", "update", "partitionname=main", "state=down")

    def opened() -> None:
        cluster.run("scontrol", "update", "partitionname=main", "state=up")

    yield opened
    opened()


def test_driver_and_steps_are_jobs(clustered: Any, cluster: Cluster, closed: Callable[[], None]) -> None:
    """With a gang, too: srun refuses memory by CPU beside memory by node, and knows its own job by variables."""
    id = detached(clustered, "--more", "--set", "steps.double.orchestrator.slurm.partition=short")
    driver = cluster.jobs()[-1]
    assert (driver["state"], driver["name"]) == ("PENDING", f"stoker-driver-{id}")
    assert f"has not begun yet: Slurm job {driver['id']}, which writes to" in clustered.stoker("show", id).stdout
    # The code was sent along when the run was started, not when the driver's turn came.
    clustered.write({"looking.py": PIPELINE.replace("number * 2", "number * 3")})
    closed()
    run = ended(clustered, id)
    assert run.sessions == 1 and run.steps["gang"].status == "succeeded"
    until(lambda: any(job["id"] == driver["id"] and job["state"] == "COMPLETED" for job in cluster.jobs()))
    seen = run.steps["look"].load()
    assert seen["SLURM_JOB_ID"] != driver["id"]
    clustered.stoker("run", "looking.py")
    assert set(seen) == set(clustered.client().runs()[0].steps["look"].load()), "nothing of the driver's own job"
    assert [one.load() for one in run.steps["double"]] == [2, 4, 6]
    shown = cluster.run("scontrol", "--oneliner", "show", "job", driver["id"]).stdout
    assert "NumCPUs=1 " in shown
    assert "Requeue=1" in shown
    assert f"WorkDir={clustered.folder}" in shown


def test_a_run_is_cancelled_while_the_drivers_job_waits(
    clustered: Any, cluster: Cluster, closed: Callable[[], None]
) -> None:
    id = detached(clustered)
    clustered.stoker("cancel", id)
    assert clustered.client().run(id).status == "cancelled"
    closed()
    until(lambda: cluster.jobs()[-1]["state"] == "COMPLETED")
    assert "somebody was first" in (clustered.home / "logs" / id / "driver.out").read_text()
    assert clustered.client().run(id).status == "cancelled"


def test_a_driver_that_waits_or_is_started_again_and_whose_job_is_cancelled(
    clustered: Any, cluster: Cluster, closed: Callable[[], None]
) -> None:
    """Waiting goes on while its job is in the queue; then it is never started, and the run can be resumed."""
    id = detached(clustered, "--count", "2")
    store = clustered.client().store
    row = store.records.run(id)
    place = row.driver[DRIVER_PLACE]
    # As after the loss of the node on which the driver ran: a process that is dead, and the job that restarts it.
    job = {DRIVER_PLACE: place, "token": row.token, "starts": 1, "since": 0.0, "settled": 0}
    dead = {"pid": 2**22 + 1, "host": "another", "started": 1.0, DRIVER_JOB: job}
    store.records.set_run(id, row.token, driver=dead, heartbeat=time.time() - 300.0)
    run = clustered.client().run(id)
    assert run.status == "interrupted" and run.restarted_by == place
    began = time.monotonic()
    run.wait(1.5)
    assert time.monotonic() >= began + 1.5, "it goes on waiting while the job is in the queue"
    store.records.set_run(id, row.token, driver=row.driver, heartbeat=row.heartbeat)
    shown = clustered.stoker("show", id).stdout
    assert "has not begun yet: Slurm job" in shown and "running" in shown.splitlines()[0]
    number = place.rpartition(" ")[2]
    cluster.run("scancel", number)
    assert clustered.client().run(id).wait(60).status == "interrupted", "nobody waits for ever"
    shown = clustered.stoker("show", id).stdout
    assert f"Slurm job {number}, which was to start its driver, is not in the queue any more" in shown
    assert f"stoker resume {id}" in shown
    assert shown.splitlines()[0].endswith("interrupted")
    closed()
    clustered.stoker("resume", id, timeout=240.0)
    run = clustered.client().run(id)
    assert run.status == "succeeded" and len(run.steps["double"]) == 2, "with its parameters"
    assert not run.error


def test_what_sbatch_refuses_leaves_nothing(clustered: Any, cluster: Cluster) -> None:
    clustered.write({"looking.py": PIPELINE})
    refused = clustered.stoker(
        "run", "looking.py", "--detach", "--set", "orchestrator.slurm.driver.partition=long", code=4
    )
    assert "sbatch refused" in refused.stderr
    assert clustered.stoker("runs", "--json").stdout.strip() == "[]"
    assert not list((clustered.home / "logs").glob("*"))


def test_without_shared_files_it_is_refused_before_anything_is_written(
    clustered: Any, cluster: Cluster, s3_server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = f'artifact_store = "{s3_server.bucket("detached")}/artifacts"\n'
    text = (clustered.folder / "stoker.toml").read_text().replace("poll = 0.2", "poll = 0.2, shares_files = false")
    clustered.write({"looking.py": PIPELINE, "stoker.toml": text + store})
    before = len(cluster.jobs())
    refused = clustered.stoker("run", "looking.py", "--detach", code=2)
    assert "whose nodes do not see this machine's files" in refused.stderr
    assert clustered.stoker("runs", "--json").stdout.strip() == "[]"
    assert len(cluster.jobs()) == before


LASTING = """
    import os
    import time

    from stoker import pipeline, step


    @step(cache=False)
    def first(folder: str) -> int:
        with open(f"{folder}/begins", "a") as file:
            file.write("first\\n")
        return 1


    @step(cache=False)
    def lasting(number: int, folder: str) -> int:
        with open(f"{folder}/begins", "a") as file:
            file.write("lasting\\n")
        while not os.path.exists(f"{folder}/flag"):
            time.sleep(0.05)
        return number + 1


    @pipeline(dynamic=True)
    def deciding(folder: str):
        if first(folder) == 1:
            lasting(1, folder)


    @pipeline
    def planned(folder: str):
        lasting(first(folder), folder)
"""


class Lasting:
    """A detached run whose second step runs until the test says so."""

    def __init__(self, project: Any, cluster: Cluster, name: str = "planned") -> None:
        self.project = project.write({"looking.py": LASTING})
        self.cluster = cluster
        done = project.stoker("run", "looking.py:" + name, "--detach", "--folder", str(project.folder))
        self.id = done.stdout.strip()
        self.driver = re.findall(r"Slurm job (\d+)", done.stderr)[0]
        until(lambda: self.begins() == ["first", "lasting"], what=self.output)

    def begins(self) -> list[str]:
        path = self.project.folder / "begins"
        return path.read_text().split() if path.exists() else []

    def output(self) -> str:
        path = self.project.home / "logs" / self.id / "driver.out"
        return str(path.read_text()) if path.exists() else ""

    def row(self) -> dict[str, Any]:
        (row,) = self.project.rows("SELECT * FROM runs WHERE id = ?", self.id)
        return {**row, "driver": json.loads(row["driver"])}

    def until_driven(self, sessions: int) -> None:
        """Wait until a driver has taken the run over for that time."""
        until(lambda: self.row()["sessions"] == sessions and "pid" in self.row()["driver"], what=self.output)

    def process(self) -> psutil.Process:
        """The driver's process."""
        return psutil.Process(self.row()["driver"]["pid"])

    def state(self) -> str:
        (state,) = [job["state"] for job in self.cluster.jobs() if job["id"] == self.driver]
        return state

    def finish(self) -> Any:
        """Let the step end, and wait for the run's end."""
        (self.project.folder / "flag").touch()
        run = ended(self.project, self.id)
        assert self.begins() == ["first", "lasting"], self.output()
        assert run.steps["lasting"].load() == 2
        assert len(run.steps["lasting"].attempts) == 1
        until(lambda: self.state() == "COMPLETED")
        return run


RUNS = ("RUNNING", "CONFIGURING", "COMPLETING")
"""States of jobs that are not over; other tests of the same cluster leave jobs that have failed."""


@pytest.mark.slow
def test_a_driver_outlives_its_process_and_its_node(clustered: Any, cluster: Cluster) -> None:
    """No step begins twice, and no job of one is ended; those are on another node. The storm has further ends."""
    stack = (clustered.folder / "stoker.toml").read_text()
    clustered.write({"stoker.toml": stack.replace("poll", 'nodelist = "n3", poll')})
    run = Lasting(clustered, cluster, "deciding")
    run.until_driven(1)
    run.process().kill()
    run.until_driven(2)
    (node,) = [job["nodes"] for job in cluster.jobs() if job["id"] == run.driver]
    assert node != "n3"
    cluster.kill_node(node)
    cluster.node_fails(node)
    run.until_driven(3)
    run.finish()


def test_a_run_that_waits_for_its_driver_is_cancelled(clustered: Any, cluster: Cluster) -> None:
    run = Lasting(clustered, cluster)
    run.until_driven(1)
    cluster.run("scontrol", "requeuehold", run.driver)
    until(lambda: "pid" not in run.row()["driver"], what=run.output)
    shown = clustered.stoker("show", run.id).stdout
    assert "running" in shown and f"goes on as soon as it is started again: Slurm job {run.driver}" in shown
    said = clustered.stoker("cancel", run.id, "--now").stderr
    assert "it waited for its driver to go on, ended 1 job that it left running" in said
    until(lambda: not [job for job in cluster.jobs() if job["state"] in RUNS])
    assert clustered.client().run(run.id).status == "cancelled"
    cluster.run("scontrol", "release", run.driver)
    until(lambda: run.state() == "COMPLETED")
    assert run.row()["status"] == "cancelled" and run.row()["sessions"] == 1
    assert run.begins() == ["first", "lasting"]


def test_scancel_ends_a_driver_and_its_run(clustered: Any, cluster: Cluster) -> None:
    run = Lasting(clustered, cluster)
    run.until_driven(1)
    cluster.run("scancel", run.driver)
    until(lambda: run.row()["status"] == "cancelled", what=run.output)
    until(lambda: not [job for job in cluster.jobs() if job["state"] in (*RUNS, "PENDING")])


SETTINGS: dict[str, Any] = {"partition": "gpu", "account": "vision", "qos": "high"}


def test_the_script() -> None:
    made = script(
        SlurmSettings(**SETTINGS), ["env", "A=b c", "python"], "/w d", "stoker-driver-1", output="/o%", limit=90
    )
    assert made == (Path(__file__).parent / "golden" / "driver.sh").read_text()
    subprocess.run(["bash", "-n"], input=made, text=True, check=True)


def test_the_drivers_own_settings_win() -> None:
    own = {"partition": "long", "qos": None, "memory": "2GiB"}
    settings = SlurmSettings(**SETTINGS, driver=own)
    made = script(settings, ["python"], "/", "n", output="/o", limit=float("inf"))
    assert "--partition=long" in made
    assert "--account=vision" in made
    assert "--qos" not in made
    assert "--mem=2048M" in made
    assert "--time=UNLIMITED" in made


def test_a_driver_may_run_as_long_as_its_partitions_let_it() -> None:
    parts = (Partition(name="a", longest=60.0, default=True), Partition(name="b", longest=30.0), Partition(name="c"))
    cluster = ClusterFacts(partitions={one.name: one for one in parts})
    assert longest(cluster, None) == 60.0
    assert longest(cluster, "a,b") == 30.0
    assert longest(cluster, "c") is None, "it is not known"
    assert longest(cluster, "a,d") is None
