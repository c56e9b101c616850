"""`stoker gc` and `stoker cancel` where a driver was killed while its steps run in a pool of jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.servers.slurm import Cluster
from tests.waiting import until

PIPELINE = """
    import os
    import sys
    import time

    from stoker import pipeline, step

    FOLDER = sys.argv[1]


    @step(cache=False)
    def part(name: str, folder: str) -> bytes:
        with open(f"{folder}/begins", "a") as file:
            file.write(name + "\\n")
        while not os.path.exists(f"{folder}/{name}"):
            time.sleep(0.05)
        return os.urandom(1 << 20)


    @pipeline
    def parts(folder: str):
        part.map(["first", "second", "third"], folder=folder)


    if __name__ == "__main__":
        parts(FOLDER)
"""


def begins(project: Any) -> list[str]:
    path = project.folder / "begins"
    return path.read_text().split() if path.exists() else []


def killed(project: Any, pipeline: str = PIPELINE) -> str:
    """The id of a run whose driver was killed while parts run; with a pool the only job runs the first one."""
    stack = (project.folder / "stoker.toml").read_text()
    project.write({"parts.py": pipeline, "stoker.toml": stack.replace("poll", "max_jobs = 1, poll", 1)})
    driver = subprocess.Popen(
        [sys.executable, "parts.py", str(project.folder)],
        cwd=project.folder,
        env={**os.environ, "STOKER_HOME": str(project.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: begins(project))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    id: str = project.client().runs()[0].id
    return id


def age(folder: Path) -> None:
    """Make everything look two days old."""
    old = time.time() - 2 * 86400
    for path in folder.rglob("*"):
        os.utime(path, (old, old))


def live(cluster: Cluster) -> list[str]:
    return [job["id"] for job in cluster.jobs() if job["state"] in ("RUNNING", "PENDING", "COMPLETING")]


def test_what_a_killed_driver_left_stays_until_it_is_adopted(clustered: Any, cluster: Cluster) -> None:
    id = killed(clustered)
    (name,) = begins(clustered)
    (clustered.folder / name).touch()
    until(lambda: len(begins(clustered)) == 2)
    age(clustered.home)
    with cluster.silent_controller():
        clustered.stoker("gc")
    assert json.loads(clustered.stoker("gc", "--json").stdout)["job_folders"] == 0
    assert len(live(cluster)) == 1
    for other in ("first", "second", "third"):
        (clustered.folder / other).touch()
    clustered.stoker("resume", id)
    assert sorted(begins(clustered)) == ["first", "second", "third"]
    run = clustered.client().run(id)
    assert [len(one.load()) for one in run.steps["part"]] == [1 << 20] * 3


def test_a_killed_drivers_pool_is_ended_and_its_results_are_kept(clustered: Any, cluster: Cluster) -> None:
    id = killed(clustered)
    (first,) = begins(clustered)
    (clustered.folder / first).touch()
    until(lambda: len(begins(clustered)) == 2)
    second = begins(clustered)[1]
    said = clustered.stoker("cancel", id).stderr
    assert "ended 2 jobs that it left running" in said, "the one that ran, and the one that waited for its worker"
    assert not live(cluster)
    assert "nothing of it runs any more" in clustered.stoker("cancel", id).stderr
    for name in ("first", "second", "third"):
        (clustered.folder / name).touch()
    clustered.stoker("resume", id)
    assert sorted(begins(clustered)) == sorted(["first", "second", "third", second])
    assert clustered.client().run(id).status == "succeeded"


def test_a_deleted_runs_jobs_are_ended(clustered: Any, cluster: Cluster) -> None:
    id = killed(clustered)
    before = clustered.home / "scratch" / "slurm" / id
    assert before.exists()
    said = clustered.stoker("gc", "--keep", "0").stderr
    assert f"run {id} stays: jobs of it run or wait to be adopted" in said
    assert len(live(cluster)) == 1
    clustered.stoker("gc", "--keep", "0", "--force")
    assert not live(cluster)
    assert not before.exists()
    assert clustered.client().runs() == []


def test_jobs_of_their_own_and_gangs_are_ended(alone: Any, cluster: Cluster) -> None:
    gang = PIPELINE.replace("@step(cache=False)", '@step(cache=False, resources={"nodes": 2, "memory": "200MB"})')
    stack = (alone.folder / "stoker.toml").read_text()
    id = killed(alone, gang.replace('["first", "second", "third"]', '["first"]'))
    until(lambda: len(begins(alone)) == 2)
    assert "ended 1 job that it left running" in alone.stoker("cancel", id).stderr
    assert not live(cluster)
    (alone.folder / "begins").unlink()
    alone.write({"stoker.toml": stack})
    id = killed(alone)
    until(lambda: len(begins(alone)) == 3)
    (alone.folder / "second").touch()
    until(lambda: len(live(cluster)) == 2)
    assert "ended 2 jobs that it left running" in alone.stoker("cancel", id, "--now").stderr
    assert not live(cluster)
    for name in ("first", "third"):
        (alone.folder / name).touch()
    alone.stoker("resume", id)
    assert sorted(begins(alone)) == ["first", "first", "second", "third", "third"]
