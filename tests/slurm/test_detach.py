"""`--detach` on a cluster: the driver is a small job, and submits the steps from there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.servers.s3 import S3
from tests.servers.slurm import Cluster, until

from stoker.backends.slurm.cluster import ClusterFacts, Partition
from stoker.backends.slurm.detach import longest, script
from stoker.backends.slurm.settings import SlurmSettings

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
    def looking(more: bool = False):
        look()
        double.map([1, 2, 3])
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


def test_driver_and_steps_are_jobs(clustered: Any, cluster: Cluster) -> None:
    clustered.write({"looking.py": PIPELINE})
    id = detached(clustered, "--set", "steps.double.orchestrator.slurm.partition=short")
    run = ended(clustered, id)
    assert run.sessions == 1
    driver = next(job for job in cluster.jobs() if job["name"] == f"stoker-driver-{id}")
    until(lambda: any(job["id"] == driver["id"] and job["state"] == "COMPLETED" for job in cluster.jobs()))
    seen = run.steps["look"].load()
    assert seen["SLURM_JOB_ID"] != driver["id"]
    clustered.stoker("run", "looking.py")
    assert set(seen) == set(clustered.client().runs()[0].steps["look"].load()), "nothing of the driver's own job"
    assert [one.load() for one in run.steps["double"]] == [2, 4, 6]
    shown = cluster.run("scontrol", "--oneliner", "show", "job", driver["id"]).stdout
    assert "NumCPUs=1 " in shown
    assert "Requeue=0" in shown
    assert f"WorkDir={clustered.folder}" in shown


@pytest.mark.slow
def test_a_gang_is_started_from_the_drivers_job(clustered: Any, cluster: Cluster) -> None:
    """srun refuses memory by CPU beside memory by node, and knows its own job by variables."""
    clustered.write({"looking.py": PIPELINE})
    run = ended(clustered, detached(clustered, "--more"))
    assert run.steps["gang"].status == "succeeded"


def test_while_the_drivers_job_waits(clustered: Any, cluster: Cluster) -> None:
    clustered.write({"looking.py": PIPELINE})
    cluster.run("scontrol", "update", "partitionname=main", "state=down")
    try:
        id = detached(clustered)
        job = cluster.jobs()[-1]
        assert (job["state"], job["name"]) == ("PENDING", f"stoker-driver-{id}")
        shown = clustered.stoker("show", id).stdout
        assert f"has not begun yet: Slurm job {job['id']}, which writes to" in shown
        clustered.stoker("cancel", id)
        assert clustered.client().run(id).status == "cancelled"
    finally:
        cluster.run("scontrol", "update", "partitionname=main", "state=up")
    until(lambda: cluster.jobs()[-1]["state"] == "COMPLETED")
    assert "somebody was first" in (clustered.home / "logs" / id / "driver.out").read_text()
    assert clustered.client().run(id).status == "cancelled"


def test_what_runs_is_what_was_submitted(clustered: Any, cluster: Cluster) -> None:
    """The code was sent along when the run was started, not when the driver's turn came."""
    clustered.write({"looking.py": PIPELINE})
    cluster.run("scontrol", "update", "partitionname=main", "state=down")
    try:
        id = detached(clustered)
        clustered.write({"looking.py": PIPELINE.replace("number * 2", "number * 3")})
    finally:
        cluster.run("scontrol", "update", "partitionname=main", "state=up")
    assert [one.load() for one in ended(clustered, id).steps["double"]] == [2, 4, 6]


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


SETTINGS: dict[str, Any] = {"partition": "gpu", "account": "vision", "qos": "high"}


def test_the_script() -> None:
    made = script(
        SlurmSettings(**SETTINGS), ["env", "A=b c", "python"], "/w d", "stoker-driver-1", output="/o%", limit=90
    )
    assert made.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=stoker-driver-1",
        "#SBATCH '--chdir=/w d'",
        "#SBATCH --output=/o%%",
        "#SBATCH --open-mode=append",
        "#SBATCH --export=ALL",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=vision",
        "#SBATCH --qos=high",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --mem=1024M",
        "#SBATCH --time=0-00:01:30",
        "#SBATCH --no-requeue",
        "",
        "for name in ${!SLURM_@} ${!SLURMD_@}; do",
        '  case $name in SLURM_CONF|SLURM_CLUSTERS) ;; *) unset "$name" ;; esac',
        "done",
        "exec env 'A=b c' python",
    ]


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
    assert longest(cluster, "c") == float("inf")
    assert longest(cluster, "a,d") is None
