"""A cluster that keeps accounts of its jobs: who cancelled one, and how one ended that the controller has forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.servers.slurm import Cluster, until
from tests.slurm.bench import Bench

from stoker.backends.base.logins import Here
from stoker.backends.slurm.queue import Controller
from stoker.core.settings import ResourceSettings


@pytest.fixture
def bench(tmp_path: Path, accounted: Cluster) -> Bench:
    return Bench(tmp_path, accounted)


def test_who_cancelled_a_job_is_told(bench: Bench, accounted: Cluster) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    id = bench.jobs()[-1]["id"]
    accounted.run("scancel", id)
    # The accounts learn of it a moment later than the queue.
    until(lambda: Controller(Here()).details([id])[id].by == str(os.getuid()))
    status = bench.end(backend, job)
    assert status.cause == "killed"
    backend.close()


def test_the_end_of_a_job_that_the_controller_has_forgotten_is_in_the_accounts(
    bench: Bench, accounted: Cluster
) -> None:
    backend = bench.backend(poll=1.0)
    job = bench.job("hungry", resources=ResourceSettings(memory="300MiB"))
    backend.submit(job)
    until(lambda: bool(bench.jobs()))
    id = bench.jobs()[-1]["id"]
    until(lambda: "FAILED" in accounted.run("sacct", "-X", "-n", "-j", id, "--format=State").stdout)
    accounted.stop_controller()
    accounted.start_controller(clear=True)
    assert accounted.run("scontrol", "show", "job", id, check=False).returncode != 0
    row = Controller(Here()).details([id])[id]
    assert (row.state, row.signal) == ("FAILED", 9)
    assert bench.end(backend, job).cause == "host-oom"
    backend.close()


def test_tasks_of_an_array_have_accounts_of_their_own(bench: Bench, accounted: Cluster) -> None:
    backend = bench.backend()
    jobs = [bench.job("leaves", key=f"leaves:{number}") for number in range(3)]
    bench.over(backend, *jobs)
    assert [status.exit_code for job in jobs if (status := bench.ended(job))] == [7, 7, 7]
    id = bench.jobs()[-1]["id"].partition("_")[0]
    until(lambda: accounted.run("sacct", "-X", "-n", "-j", id, "--format=State").stdout.count("FAILED") == 3)
    accounted.stop_controller()
    accounted.start_controller(clear=True)
    details = Controller(Here()).details([id])
    assert {key: (row.state, row.code) for key, row in details.items()} == {
        f"{id}_{number}": ("FAILED", 7) for number in range(3)
    }
    backend.close()
