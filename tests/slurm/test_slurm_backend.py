"""Steps on a real cluster: what goes in, what comes out, and how they end."""

from __future__ import annotations

import os
import re
from pathlib import Path

import attrs
import pytest
from tests.servers.slurm import NODES, Cluster
from tests.slurm.bench import Bench
from tests.waiting import until

from stoker.core.settings import ResourceSettings


def test_a_step_runs_on_a_node_and_its_output_and_lines_come_out(bench: Bench) -> None:
    backend = bench.backend()
    job = bench.job("add", inputs={"a": 2, "b": 3})
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status, bench.lines)
    assert bench.output(status) == 5
    assert bench.texts(job) == ["adding 2 3"]
    assert bench.texts(job, "stderr") == ["to stderr"]
    assert any(one.started for one in bench.news[job.name])


def test_an_error_of_the_step_is_told_with_its_place(bench: Bench) -> None:
    status = bench.over(bench.backend(), bench.job("fails"))
    assert (status.state, status.cause) == ("failed", "user-error")
    assert status.result is not None and status.result.error is not None
    assert status.result.error.message == "no such thing"
    assert f"{bench.code}/steps.py" in status.result.error.place


def test_an_exit_code_survives(bench: Bench) -> None:
    status = bench.over(bench.backend(), bench.job("leaves"))
    assert (status.state, status.exit_code, status.cause) == ("failed", 7, "")


def test_a_signal_survives(bench: Bench) -> None:
    status = bench.over(bench.backend(), bench.job("dies"))
    assert (status.state, status.exit_code, status.cause) == ("failed", -9, "")


def test_memory_is_a_limit_and_its_end_has_a_cause(bench: Bench) -> None:
    """Here slurmstepd looks once a second and kills; the job is FAILED, and only its stderr says why."""
    status = bench.over(bench.backend(), bench.job("hungry", resources=ResourceSettings(memory="300MiB")))
    assert (status.state, status.cause) == ("failed", "host-oom"), status
    assert "300MiB" in status.message
    assert re.search(r"[Ee]xceeded (?:job )?memory limit", status.message), "Slurm looks at the step and at the job"


def test_cancel_asks_first(bench: Bench) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    backend.cancel(job.name, grace=60.0)
    status = bench.end(backend, job)
    assert status.cause == "cancelled"
    assert "slow was asked to end" in bench.texts(job)


def test_cancel_insists(bench: Bench) -> None:
    backend = bench.backend()
    job = bench.job("deaf")
    backend.submit(job)
    bench.until(backend, lambda: "deaf begins" in bench.texts(job))
    backend.cancel(job.name, grace=0.0)
    assert bench.end(backend, job).state == "failed"
    until(lambda: bench.jobs()[-1]["state"] == "CANCELLED")


def test_a_job_that_waits_leaves_the_queue(bench: Bench) -> None:
    backend = bench.backend()
    job = bench.job("add", inputs={"a": 1, "b": 2}, backend={"orchestrator": {"options": {"hold": True}}})
    backend.submit(job)
    bench.until(backend, lambda: bool(bench.messages(job)))
    assert "held" in bench.messages(job)[-1]
    backend.cancel(job.name, grace=30.0)
    assert bench.end(backend, job).cause == "cancelled"
    assert bench.jobs()[-1]["state"] == "CANCELLED"


def test_submitting_twice_starts_once(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend()
    flag = tmp_path / "flag"
    job = bench.job("waits", inputs={"path": str(flag)})
    backend.submit(job)
    backend.submit(job)
    bench.until(backend, lambda: "waiting" in bench.texts(job))
    assert len(bench.jobs()) == 1
    flag.write_text("")
    assert bench.output(bench.end(backend, job))["host"]


def test_a_person_who_cancels_a_job_is_told_of(bench: Bench, cluster: Cluster) -> None:
    backend = bench.backend()
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    cluster.run("scancel", bench.jobs()[-1]["id"])
    status = bench.end(backend, job)
    assert status.cause == "killed"
    assert "was cancelled, not by Stoker" in status.message
    # scancel signals all processes of a job at once: what holds the step must not go before it.
    assert "slow was asked to end" in bench.texts(job)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_step_is_warned_before_the_limit_of_its_time(bench: Bench, cluster: Cluster, nodes: int) -> None:
    """The signal is the one that Slurm sends then, to the same process."""
    backend = bench.backend(warn_before=40, time_limit="10m")
    job = bench.job("heeds", resources=ResourceSettings(nodes=nodes))
    backend.submit(job)
    bench.until(backend, lambda: bench.texts(job).count("heeding") == nodes)
    cluster.run("scancel", "--signal=USR1", "--batch", bench.jobs()[-1]["id"])
    left = bench.output(bench.end(backend, job))
    assert left is not None and 0 < left <= 40


def test_what_slurm_refuses_is_told_in_its_words(bench: Bench) -> None:
    job = bench.job("add", resources=ResourceSettings(cpu_count=64), inputs={"a": 1, "b": 2})
    status = bench.over(bench.backend(), job)
    assert (status.state, status.cause) == ("failed", "refused")
    assert "sbatch: error: Batch job submission failed: More processors requested than permitted" in status.message
    assert not list(Path(bench.site.scratch, "slurm").glob("*/*"))


def test_a_step_without_devices_sees_none(bench: Bench) -> None:
    found = bench.output(bench.over(bench.backend(), bench.job("where")))
    assert found["visible"]["CUDA_VISIBLE_DEVICES"] == ""
    assert found["devices"] == []
    assert found["host"] in NODES or os.getuid() != 0


def test_two_jobs_on_one_node_have_different_devices(bench: Bench, tmp_path: Path) -> None:
    bench.site = attrs.evolve(bench.site, simulate="4xV100")
    backend = bench.backend(nodelist="n1")
    flag = tmp_path / "flag"
    jobs = [
        bench.job("waits", key=key, inputs={"path": str(flag)}, resources=ResourceSettings(gpu_count=2))
        for key in ("a", "b")
    ]
    for job in jobs:
        backend.submit(job)
    bench.until(backend, lambda: all("waiting" in bench.texts(job) for job in jobs))
    flag.write_text("")
    bench.end(backend, *jobs)
    held = []
    for job in jobs:
        status = bench.ended(job)
        found = bench.output(status)
        assert status is not None
        devices = [one.uuid for one in status.lease.held]
        assert len(devices) == 2
        assert found["devices"] == devices
        assert found["visible"]["CUDA_VISIBLE_DEVICES"] == ",".join(devices)
        held += devices
    assert len(set(held)) == 4


def test_fewer_devices_than_asked_for_are_no_step(bench: Bench) -> None:
    """The files of this cluster's GPUs are no GPUs: without pretending, the step does not begin."""
    status = bench.over(bench.backend(), bench.job("where", resources=ResourceSettings(gpu_count=1)))
    assert (status.state, status.cause) == ("failed", "no-gpu")
    assert status.result is not None
    assert "CUDA_VISIBLE_DEVICES='0'" in status.result.error.message


def test_what_a_person_always_tells_slurm_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a job that the driver itself is in."""
    given = {
        "SBATCH_TIMELIMIT": "nonsense",
        "SQUEUE_PARTITION": "short",
        "SQUEUE_NAMES": "x",
        "SCANCEL_INTERACTIVE": "1",
    }
    for name, text in {**given, "SLURM_CPUS_PER_TASK": "3", "SLURM_JOB_ID": "999999"}.items():
        monkeypatch.setenv(name, text)
    backend = bench.backend()
    found = bench.output(bench.over(backend, bench.job("where")))
    assert "SLURM_CPUS_PER_TASK" not in found["environment"]
    assert found["environment"]["SLURM_JOB_ID"] != "999999"
    job = bench.job("slow")
    backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(job))
    backend.cancel(job.name, grace=0.0)
    assert bench.end(backend, job).state == "failed"
