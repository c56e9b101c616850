"""What befalls a cluster while jobs run: nodes fail, jobs are started again, the controller is away or forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.slurm import Cluster
from tests.slurm.bench import Bench
from tests.waiting import until

from stoker.backends.slurm import task as slurmtask


def node_of(bench: Bench) -> str:
    return bench.jobs()[-1]["nodes"]


def test_a_node_that_fails_is_the_cause(bench: Bench, cluster: Cluster) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    node = node_of(bench)
    cluster.node_fails(node)
    status = bench.end(backend, job)
    assert (status.state, status.cause) == ("failed", "node-lost")
    assert node in status.message
    assert "NODE_FAIL" in status.message


@pytest.mark.long
def test_a_node_that_loses_its_power_is_the_cause(bench: Bench, cluster: Cluster) -> None:
    """Slurm misses it after a quarter of a minute, and then says what it says of one that is set down."""
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    cluster.kill_node(node_of(bench))
    assert bench.end(backend, job).cause == "node-lost"


@pytest.mark.slow
def test_slurm_starts_a_job_again_by_itself(bench: Bench, cluster: Cluster, tmp_path: Path) -> None:
    backend = bench.backend(requeue=True)
    starts, flag = tmp_path / "starts", tmp_path / "flag"
    job = bench.job("counts", inputs={"path": str(starts), "until": str(flag)})
    backend.submit(job)
    bench.until(backend, lambda: "counting" in bench.texts(job))
    cluster.run("scontrol", "requeue", bench.jobs()[-1]["id"])
    bench.until(backend, lambda: bench.texts(job).count("counting") == 2)
    flag.write_text("")
    assert bench.output(bench.end(backend, job)) == 2
    assert bench.events(job) == ["requeued"]
    assert len(bench.jobs()) == 1


def test_a_controller_that_is_away_is_waited_for(bench: Bench, cluster: Cluster, tmp_path: Path) -> None:
    backend = bench.backend()
    flag = tmp_path / "flag"
    first = bench.job("waits", key="first", inputs={"path": str(flag)})
    backend.submit(first)
    bench.until(backend, lambda: "waiting" in bench.texts(first))
    cluster.stop_controller()
    second = bench.job("add", key="second", inputs={"a": 1, "b": 2})
    backend.submit(second)
    bench.until(backend, lambda: bool(bench.messages(second)))
    assert "controller does not answer" in bench.messages(second)[-1]
    cluster.start_controller()
    flag.write_text("")
    bench.end(backend, first, second)
    assert bench.output(bench.ended(first))["host"]
    assert bench.output(bench.ended(second)) == 3
    assert len(bench.jobs()) == 2


def test_a_job_ends_while_the_controller_is_away(bench: Bench, cluster: Cluster, tmp_path: Path) -> None:
    """And the controller has forgotten it when it is back: its result says how it went."""
    backend = bench.backend()
    flag = tmp_path / "flag"
    job = bench.job("waits", inputs={"path": str(flag)})
    backend.submit(job)
    bench.until(backend, lambda: "waiting" in bench.texts(job))
    cluster.stop_controller()
    flag.write_text("")
    assert bench.output(bench.end(backend, job))["host"]
    cluster.start_controller(clear=True)


def test_a_job_that_nobody_knows_is_lost_after_a_while(bench: Bench, cluster: Cluster, monkeypatch: Any) -> None:
    monkeypatch.setattr(slurmtask, "LOST", 3.0)  # minutes, for everybody else
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    id = bench.jobs()[-1]["id"]
    cluster.stop_controller()
    cluster.start_controller(clear=True)
    status = bench.end(backend, job)
    assert (status.state, status.cause) == ("failed", "worker-lost")
    assert f"no longer knows job {id}" in status.message
    until(lambda: not cluster._steps())


def test_a_job_that_waits_says_why(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(nodelist="n1", exclusive=True)
    flag = tmp_path / "flag"
    first = bench.job("waits", key="first", inputs={"path": str(flag)})
    backend.submit(first)
    bench.until(backend, lambda: "waiting" in bench.texts(first))
    second = bench.job("add", key="second", inputs={"a": 1, "b": 2})
    backend.submit(second)
    bench.until(backend, lambda: any("(Resources)" in text or "(Priority)" in text for text in bench.messages(second)))
    flag.write_text("")
    bench.end(backend, second)
