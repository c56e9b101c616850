"""A cluster that keeps accounts of its jobs: who cancelled one, and how one ended that the controller has forgotten."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.slurm import Cluster
from tests.slurm.bench import Bench
from tests.waiting import until

from stoker.backends.base.logins import Here
from stoker.backends.slurm.facts import ABOVE_LIMIT, prove
from stoker.backends.slurm.queue import Controller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.resources import ResourceSettings


@pytest.fixture
def bench(tmp_path: Path, accounted: Cluster, bundle: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, accounted, bundle)
    yield made
    made.close()


def test_who_cancelled_a_job_is_told(bench: Bench, accounted: Cluster) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    id = bench.jobs()[-1]["id"]
    accounted.run("scancel", id)
    # The accounts learn of it a moment later than the queue.
    until(lambda: Controller(Here()).details([id])[id].by == getpass.getuser())
    status = bench.end(backend, job)
    assert status.cause == "killed"


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


QOS = {
    "grouped": "GrpTRES=cpu=2,gres/gpu=1",
    "single": "MaxTRESPerUser=node=1",
    "wide": "MaxTRES=cpu=2 MaxWall=10",
}


@pytest.fixture
def limited(accounted: Cluster) -> Iterator[Cluster]:
    """The cluster with limits: those of `QOS`, and three CPUs for the account."""
    accounted.enforce_limits()
    for name, limits in QOS.items():
        accounted.run("sacctmgr", "-i", "add", "qos", name, *limits.split(), check=False)  # those of an earlier test
    accounted.run("sacctmgr", "-i", "modify", "user", "set", f"qos+={','.join(QOS)}", "where", "account=lab")
    accounted.run("sacctmgr", "-i", "modify", "account", "lab", "set", "GrpTRES=cpu=3")
    yield accounted
    accounted.run("sacctmgr", "-i", "modify", "account", "lab", "set", "GrpTRES=cpu=-1")


ASKED: tuple[tuple[dict[str, Any], dict[str, Any], list[str]], ...] = (
    ({"qos": "grouped"}, {"cpu_count": 4}, ["4 CPUs", "the QOS 'grouped'", "2 CPUs at most (GrpTRES)"]),
    ({"qos": "grouped"}, {"gpu_count": 2}, ["2 GPUs", "1 GPU at most"]),
    ({"qos": "single"}, {"nodes": 2}, ["2 nodes", "the jobs of one user together 1 node"]),
    ({"qos": "wide", "time_limit": "1h"}, {}, ["1h of time", "10m at most (MaxWall)"]),
    ({"qos": "wide"}, {"cpu_count": 3}, ["3 CPUs", "one job 2 CPUs"]),
    ({}, {"cpu_count": 4}, ["4 CPUs", "the account 'lab'", "3 CPUs"]),
    ({"qos": "grouped"}, {"cpu_count": 2, "gpu_count": 1}, []),
    ({"qos": "single"}, {"cpu_count": 3}, []),
    ({}, {"cpu_count": 3}, []),
)
"""Settings, resources, and what the finding says; nothing where there is none."""


def test_more_than_a_limit_can_ever_give_is_refused_while_planning(bench: Bench, limited: Cluster) -> None:
    keys = [f"step{number}" for number in range(len(ASKED))]
    steps = [
        bench.job("add", key=key, resources=ResourceSettings(**resources)).step
        for key, (_, resources, _) in zip(keys, ASKED)
    ]
    steps = [attrs.evolve(step, name=step.key) for step in steps]
    settings = {key: SlurmSettings(**given) for key, (given, _, _) in zip(keys, ASKED)}
    findings = [finding for finding in prove(steps, settings, Here()) if finding.code == ABOVE_LIMIT]
    assert len(findings) == sum(bool(texts) for _, _, texts in ASKED), findings
    for finding, (_, _, texts) in zip(findings, ASKED):
        assert all(text in finding.what for text in texts), finding
        assert "qos" in finding.fix


def test_a_job_that_waits_for_more_than_its_limit_is_refused_and_others_go_on_waiting(
    bench: Bench, limited: Cluster
) -> None:
    backend = bench.backend(qos="grouped")
    first = bench.job("slow", key="first", resources=ResourceSettings(cpu_count=2))
    backend.submit(first)
    bench.until(backend, lambda: "slow begins" in bench.texts(first))
    waits = bench.job("add", key="waits", inputs={"a": 1, "b": 2}, resources=ResourceSettings(cpu_count=1))
    never = bench.job("add", key="never", resources=ResourceSettings(gpu_count=2))
    backend.submit(waits)
    backend.submit(never)
    status = bench.end(backend, never)
    assert status.cause == "refused", status
    assert "2 GPUs" in status.message and "the QOS 'grouped'" in status.message and "QOSGrp" in status.message
    bench.until(backend, lambda: any("QOSGrpCpuLimit" in message for message in bench.messages(waits)))
    until(lambda: sum(job["state"] == "CANCELLED" for job in bench.jobs()) == 1)
    backend.cancel(first.name, grace=0.0)
    assert bench.output(bench.end(backend, waits)) == 3
