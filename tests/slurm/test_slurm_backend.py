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

from stoker.core.plan import JobStatus
from stoker.core.protocol import StepError
from stoker.core.settings import ResourceSettings


def test_how_steps_end(bench: Bench) -> None:
    """All of them at once, some as tasks of an array."""
    backend = bench.backend()
    add = bench.job("add", inputs={"a": 2, "b": 3})
    fails, leaves, dies, where = (bench.job(name) for name in ("fails", "leaves", "dies", "where"))
    hungry = bench.job("hungry", resources=ResourceSettings(memory="300MiB"))
    without = bench.job("where", key="without", resources=ResourceSettings(gpu_count=1))
    refused = bench.job("add", key="refused", resources=ResourceSettings(cpu_count=64), inputs={"a": 1, "b": 2})
    jobs = (add, fails, leaves, dies, where, hungry, without, refused)
    bench.over(backend, *jobs)
    ended = {job.key: status for job in jobs if (status := bench.ended(job))}
    assert {key: (status.state, status.cause, status.exit_code) for key, status in ended.items()} == {
        "add": ("succeeded", "", None),
        "fails": ("failed", "user-error", None),
        "leaves": ("failed", "", 7),
        "dies": ("failed", "", -9),
        "where": ("succeeded", "", None),
        "hungry": ("failed", "host-oom", -9),
        "without": ("failed", "no-gpu", None),
        "refused": ("failed", "refused", None),
    }
    assert bench.output(ended["add"]) == 5
    assert (bench.texts(add), bench.texts(add, "stderr")) == (["adding 2 3"], ["to stderr"])
    assert any(one.started for one in bench.news[add.name])
    assert error_of(ended["fails"]).message == "no such thing"
    assert f"{bench.code}/steps.py" in error_of(ended["fails"]).place
    # Here slurmstepd looks once a second and kills; the job is FAILED, and only its stderr says why.
    assert "300MiB" in ended["hungry"].message
    exceeded = re.search(r"[Ee]xceeded (?:job )?memory limit", ended["hungry"].message)
    assert exceeded, "Slurm looks at the step and at the job"
    found = bench.output(ended["where"])
    assert (found["visible"]["CUDA_VISIBLE_DEVICES"], found["devices"]) == ("", [])
    assert found["host"] in NODES or os.getuid() != 0
    # The files of this cluster's GPUs are no GPUs: without pretending, the step does not begin.
    assert "CUDA_VISIBLE_DEVICES='0'" in error_of(ended["without"]).message
    words = "sbatch: error: Batch job submission failed: More processors requested than permitted"
    assert words in ended["refused"].message
    folders = Path(bench.site.scratch, "slurm").glob("*/*/jobs.json")
    assert not [folder for folder in folders if "refused" in folder.read_text()]


def error_of(status: JobStatus) -> StepError:
    assert status.result is not None and status.result.error is not None
    return status.result.error


def test_how_steps_are_ended(bench: Bench, cluster: Cluster) -> None:
    backend = bench.backend()
    slow = bench.job("slow")
    deaf = bench.job("deaf", resources=ResourceSettings(cpu_count=2))
    other = bench.job("slow", key="other", resources=ResourceSettings(cpu_count=3))
    held = bench.job("add", inputs={"a": 1, "b": 2}, backend={"orchestrator": {"options": {"hold": True}}})
    for job in (slow, deaf, other, held):
        backend.submit(job)
    bench.until(backend, lambda: all(f"{job.step.name} begins" in bench.texts(job) for job in (slow, deaf, other)))
    bench.until(backend, lambda: any("held" in message for message in bench.messages(held)))

    backend.cancel(slow.name, grace=60.0)
    backend.cancel(deaf.name, grace=0.0)
    backend.cancel(held.name, grace=30.0)
    _, id = (row["id"] for row in bench.jobs() if row["name"] == "stoker/slow")
    cluster.run("scancel", id)
    bench.end(backend, slow, deaf, other, held)
    causes = {job.key: status.cause for job in (slow, deaf, other, held) if (status := bench.ended(job))}
    assert causes == {"slow": "cancelled", "deaf": "cancelled", "other": "killed", "add": "cancelled"}
    assert "slow was asked to end" in bench.texts(slow)
    # scancel signals all processes of a job at once: what holds the step must not go before it.
    assert "slow was asked to end" in bench.texts(other)
    status = bench.ended(other)
    assert status is not None and "was cancelled, not by Stoker" in status.message
    states = {job["name"]: job["state"] for job in bench.jobs()}
    assert states["stoker/add"] == "CANCELLED", "it left the queue"
    until(lambda: {job["name"]: job["state"] for job in bench.jobs()}["stoker/deaf"] == "CANCELLED")


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
