"""Jobs that take steps one after another: how many there are, which steps they take, and what their ends mean."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.slurm import Cluster
from tests.slurm.bench import Bench
from tests.slurm.test_slurm_adoption import left_alone
from tests.waiting import until

from stoker.backends.slurm import limits as slurmlimits
from stoker.backends.slurm.limits import QueueLimits
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.plan import Job
from stoker.core.protocol import JOB, WorkerEvent

REUSE = {"reuse": "auto"}


def counting(bench: Bench, folder: Path, names: str, **given: Any) -> list[Job]:
    """Steps that note each time that they begin, and end when `folder/flag` is there."""
    return [
        bench.job("counts", key=name, inputs={"path": str(folder / name), "until": str(folder / "flag")}, **given)
        for name in names
    ]


def begins(folder: Path, names: str) -> Mapping[str, int]:
    paths = {name: folder / name for name in names}
    return {name: path.read_text().count("\n") if path.exists() else 0 for name, path in paths.items()}


def test_steps_in_a_row_share_one_job(bench: Bench) -> None:
    backend = bench.backend(**REUSE)
    for number in range(3):
        job = bench.job("add", key=f"add{number}", inputs={"a": number, "b": 1})
        assert bench.output(bench.over(backend, job)) == number + 1
        assert bench.texts(job) == [f"adding {number} 1"]
        assert bench.texts(job, "stderr") == ["to stderr"]
    assert [job["name"] for job in bench.jobs()] == ["stoker/add"]
    where = bench.output(bench.over(backend, bench.job("where")))
    assert not [name for name in where["environment"] if name.startswith("SLURM_ARRAY")]
    backend.close()
    bench.made.clear()
    until(lambda: bench.jobs()[0]["state"] == "COMPLETED")
    assert len(bench.jobs()) == 1
    assert not list(Path(bench.site.scratch, "slurm").glob("*/*"))


def test_a_fan_out_is_taken_by_the_jobs_that_start(bench: Bench) -> None:
    backend = bench.backend(**REUSE)
    jobs = [bench.job("add", key=f"add[{number}]", inputs={"a": number, "b": 1}) for number in range(20)]
    bench.over(backend, *jobs)
    assert [bench.output(bench.ended(job)) for job in jobs] == list(range(1, 21))
    assert len({job["comment"] for job in bench.jobs()}) <= 2, "8 and 12 workers at most"
    backend.close()
    bench.made.clear()
    until(lambda: {job["state"] for job in bench.jobs()} <= {"COMPLETED", "CANCELLED"})


def test_steps_that_ask_for_something_else_or_for_a_job_of_their_own_get_one(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(**REUSE)
    for number, given in enumerate(
        (
            {},
            {"environment": {"NAME": "value"}},  # of the process, not of the job
            {"backend": {"orchestrator": {"time_limit": 600.0}}},
            {"backend": {"orchestrator": {"reuse": False}}},
            {"backend": {"orchestrator": {"requeue": True}}},
        )
    ):
        bench.over(backend, bench.job("add", key=f"add{number}", inputs={"a": 1, "b": number}, **given))
    assert len({job["comment"] for job in bench.jobs()}) == 4


def test_a_killed_drivers_steps_are_found_and_run_once(bench: Bench, tmp_path: Path) -> None:
    """One that is over, one that runs, and two that no job has taken."""
    first = bench.backend(**REUSE, max_jobs=1)
    done = bench.job("add", key="done", inputs={"a": 1, "b": 2})
    jobs = counting(bench, tmp_path, "abc")
    first.submit(done)
    bench.until(first, lambda: bench.ended(done) is not None)
    for job in jobs:
        first.submit(job)
    bench.until(first, lambda: "counting" in bench.texts(jobs[0]) and bool(bench.messages(jobs[1])))
    assert "max_jobs=1" in bench.messages(jobs[1])[-1]
    bench.jobs()
    left_alone(bench, first)
    second = bench.backend(**REUSE, max_jobs=1)
    again = [attrs.evolve(job, name=f"r1/{job.key}/2", attempt=2) for job in (done, *jobs)]
    for job in again:
        second.submit(job)
    bench.until(second, lambda: bench.ended(again[0]) is not None and "counting" in bench.texts(again[1]))
    (tmp_path / "flag").touch()
    bench.end(second, *again)
    assert [bench.output(bench.ended(job)) for job in again] == [3, 1, 1, 1]
    assert begins(tmp_path, "abc") == {"a": 1, "b": 1, "c": 1}
    assert len(bench.jobs()) == 1
    assert bench.events(again[1]) == ["adopted"]
    second.close()
    bench.made.clear()
    assert not list(Path(bench.site.scratch, "slurm").glob("*/*"))


def test_what_nobody_adopts_is_taken_back(bench: Bench, tmp_path: Path) -> None:
    first = bench.backend(**REUSE, max_jobs=1)
    running, _ = jobs = counting(bench, tmp_path, "ab")
    for job in jobs:
        first.submit(job)
    bench.until(first, lambda: "counting" in bench.texts(running))
    bench.jobs()
    left_alone(bench, first)
    second = bench.backend(**REUSE)
    assert bench.output(bench.over(second, bench.job("add", inputs={"a": 1, "b": 2}))) == 3
    second.close()
    bench.made.clear()
    until(lambda: all(job["state"] not in ("RUNNING", "PENDING", "COMPLETING") for job in bench.jobs()))
    assert begins(tmp_path, "ab") == {"a": 1, "b": 0}


def test_ending_one_step_leaves_its_job_to_the_others(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(**REUSE, max_jobs=1)
    slow = bench.job("slow")
    never, then = counting(bench, tmp_path, "ab")
    for job in (slow, never, then):
        backend.submit(job)
    bench.until(backend, lambda: "slow begins" in bench.texts(slow))
    backend.cancel(never.name, grace=5.0)
    assert bench.end(backend, never).cause == "cancelled"
    backend.cancel(slow.name, grace=20.0)
    assert bench.end(backend, slow).cause == "cancelled"
    assert "slow was asked to end" in bench.texts(slow)
    (tmp_path / "flag").touch()
    assert bench.output(bench.end(backend, then)) == 1
    assert begins(tmp_path, "ab") == {"a": 0, "b": 1}
    deaf = bench.job("deaf")
    backend.submit(deaf)
    bench.until(backend, lambda: "deaf begins" in bench.texts(deaf))
    backend.cancel(deaf.name, grace=0.0)
    assert bench.end(backend, deaf).cause == "cancelled"
    assert bench.over(backend, bench.job("dies")).cause == bench.over(backend, bench.job("dies", key="again")).cause
    assert bench.over(backend, bench.job("leaves")).exit_code == 7
    assert len(bench.jobs()) == 1


def test_the_end_of_a_job_is_the_end_of_the_step_that_it_runs(bench: Bench, cluster: Cluster, tmp_path: Path) -> None:
    backend = bench.backend(**REUSE, max_jobs=1)
    lost, killed, last = jobs = counting(bench, tmp_path, "abc")
    for job in jobs:
        backend.submit(job)
    bench.until(backend, lambda: "counting" in bench.texts(lost))
    node = bench.jobs()[-1]["nodes"]
    cluster.node_fails(node)
    assert bench.end(backend, lost).cause == "node-lost"
    bench.until(backend, lambda: "counting" in bench.texts(killed))
    cluster.run("scancel", bench.jobs()[-1]["id"])
    assert bench.end(backend, killed).cause == "killed"
    (tmp_path / "flag").touch()
    assert bench.output(bench.end(backend, last)) == 1
    assert begins(tmp_path, "abc") == {"a": 1, "b": 1, "c": 1}
    assert len(bench.jobs()) == 3


def test_a_line_before_the_worker_that_fails_ends_the_steps_as_in_jobs_of_their_own(bench: Bench) -> None:
    backend = bench.backend(**REUSE, setup=["false # no such module"], poll=3.0)
    jobs = [bench.job("add", key=f"add[{number}]", inputs={"a": number, "b": 1}) for number in range(3)]
    bench.over(backend, *jobs)
    for job in jobs:
        status = bench.ended(job)
        assert status is not None
        assert status.cause == "setup-failed"
        assert "`false # no such module`" in status.message
        assert status.message.count("false") == 1, "said once"
        states = {one["state"]: one for news in bench.news[job.name] for one in map(_place, news.events) if one}
        sent, running = states["sent"], states["running"]
        assert running["node"] in status.message
        assert sent["time"] <= running["time"] <= sent["time"] + 2.0, "by Slurm, and not when it was noticed"
        assert status.ended is not None and status.ended <= sent["time"] + 2.0
    assert len({job["id"] for job in bench.jobs()}) == 3


def _place(event: WorkerEvent) -> Mapping[str, Any]:
    return event.data if event.note == JOB else {}


def test_what_slurm_refuses_is_refused(bench: Bench) -> None:
    backend = bench.backend(**REUSE, partition="nowhere")
    status = bench.over(backend, bench.job("add", inputs={"a": 1, "b": 1}))
    assert status.cause == "refused"
    assert "invalid partition" in status.message


def test_a_job_begins_no_step_for_which_it_has_no_time(bench: Bench, tmp_path: Path) -> None:
    """Of a second, more than a tenth is over when the first step is, which had all of it, as in a job of its own."""
    backend = bench.backend(**REUSE, time_limit=1.0)
    first = bench.job("waits", inputs={"path": str(tmp_path / "flag")})
    backend.submit(first)
    bench.until(backend, lambda: "waiting" in bench.texts(first))
    time.sleep(0.2)
    (tmp_path / "flag").touch()
    bench.end(backend, first)
    bench.over(backend, bench.job("add", inputs={"a": 1, "b": 1}))
    assert len({job["id"] for job in bench.jobs()}) == 2


def test_a_job_leaves_when_no_step_comes(bench: Bench) -> None:
    """The next step gets another one at once, since the first said that it left."""
    backend = bench.backend(**REUSE, idle_after=0.3)
    bench.over(backend, bench.job("add", key="first", inputs={"a": 1, "b": 1}))
    until(lambda: bench.jobs()[0]["state"] == "COMPLETED")
    bench.over(backend, bench.job("add", key="second", inputs={"a": 1, "b": 2}))
    assert len(bench.jobs()) == 2


@pytest.fixture
def crowded(tmp_path: Path, accounted: Cluster, bundle: Path) -> Iterator[Bench]:
    """A bench on a cluster where an account may have three jobs."""
    accounted.enforce_limits()
    accounted.run("sacctmgr", "-i", "modify", "account", "lab", "set", "MaxSubmitJobs=3")
    made = Bench(tmp_path, accounted, bundle)
    yield made
    made.close()
    accounted.run("sacctmgr", "-i", "modify", "account", "lab", "set", "MaxSubmitJobs=-1")


@pytest.mark.parametrize("reuse", ["auto", False])
def test_a_sites_limit_makes_steps_wait(crowded: Bench, tmp_path: Path, reuse: str | bool) -> None:
    backend = crowded.backend(reuse=reuse)
    names = "abcde"
    jobs = counting(crowded, tmp_path, names)
    for job in jobs:
        backend.submit(job)
    crowded.until(backend, lambda: sum("counting" in crowded.texts(job) for job in jobs) == 3)
    waiting = [job for job in jobs if not crowded.texts(job)]
    crowded.until(backend, lambda: all(crowded.messages(job) for job in waiting))
    for job in waiting:
        (message,) = {text for text in crowded.messages(job) if "queue" in text}
        assert "the site lets you have 3 jobs in the queue now (AssocMaxSubmitJobLimit): 2 steps wait" in message
    crowded.cluster.run("sacctmgr", "-i", "modify", "account", "lab", "set", "MaxSubmitJobs=2")
    (tmp_path / "flag").touch()
    crowded.end(backend, *jobs)
    assert [crowded.output(crowded.ended(job)) for job in jobs] == [1] * len(jobs)
    assert set(begins(tmp_path, names).values()) == {1}


def test_max_submit_and_a_full_cluster_make_steps_wait(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of sbatch waits for a full queue, as sbatch itself does."""
    shim, marker = tmp_path / "bin" / "sbatch", tmp_path / "called"
    shim.parent.mkdir()
    shim.write_text(FULL.format(marker=marker, sbatch=shutil.which("sbatch")))
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(slurmlimits, "BUSY", 1.0)
    backend = bench.backend(max_submit=2)
    jobs = counting(bench, tmp_path, "abc")
    for job in jobs:
        backend.submit(job)
    bench.until(backend, lambda: any("the cluster's queue is full" in text for text in bench.messages(jobs[0])))
    bench.until(backend, lambda: sum("counting" in bench.texts(job) for job in jobs) == 2)
    (last,) = [job for job in jobs if not bench.texts(job)]
    bench.until(backend, lambda: any("max_submit=2" in text for text in bench.messages(last)))
    backend.cancel(last.name, grace=5.0)
    assert bench.end(backend, last).cause == "cancelled"
    (tmp_path / "flag").touch()
    bench.end(backend, *jobs)
    assert sum(begins(tmp_path, "abc").values()) == 2


FULL = """#!/bin/sh
[ -e "{marker}" ] && exec {sbatch} "$@"
touch "{marker}"
echo "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying" >&2
exec sleep 300
"""


@pytest.mark.parametrize("limit", [1, 3, 5, 40, 300])
def test_a_limit_is_found_by_halving(limit: int) -> None:
    limits, live, calls = QueueLimits(SlurmSettings()), 0, 0
    while room := min(limits.room(live, 0.0), 1000 - live):
        calls += 1
        if live + room > limit:
            limits.refused(room, live, 0.0, "AssocMaxSubmitJobLimit")
        else:
            limits.accepted(0.0)
            live += room
    assert live == limit
    assert calls <= 2 * math.log2(1000)
    assert limits.reason(live, 0.0) == "AssocMaxSubmitJobLimit"
    assert limits.room(live - 1, 1.0) == 1, "one has left"
    assert limits.room(live, slurmlimits.PROBE) == 1, "others may have left"
    limits.accepted(slurmlimits.PROBE)
    assert limits.room(live + 1, slurmlimits.PROBE) > 1000, "the limit was another one"


def test_submissions_of_a_minute_are_counted() -> None:
    limits = QueueLimits(SlurmSettings(submit_rate=2))
    for moment in (0.0, 10.0):
        assert limits.room(0, moment) > 0
        limits.accepted(moment)
    assert limits.room(0, 20.0) == 0
    assert "submit_rate=2" in limits.message(3, 0, 20.0)
    assert limits.room(0, 61.0) > 0
    assert limits.message(3, 0, 61.0) == ""


UNANSWERED = """#!/bin/sh
[ -e "{marker}" ] && exec {sbatch} "$@"
touch "{marker}"
{sbatch} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""
LATE_ROWS = """#!/bin/sh
if [ -e "{marker}" ] && [ ! -e "{marker}.hidden" ]; then touch "{marker}.hidden"; exit 0; fi
exec {squeue} "$@"
"""


def test_a_lost_answer_adds_no_worker(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm takes the first submission of workers, its answer is lost, and the first look does not know them."""
    marker = tmp_path / "called"
    (tmp_path / "bin").mkdir()
    for name, text in {"sbatch": UNANSWERED, "squeue": LATE_ROWS}.items():
        shim = tmp_path / "bin" / name
        shim.write_text(text.format(marker=marker, **{name: shutil.which(name)}))
        shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    backend = bench.backend(**REUSE, max_jobs=2)
    jobs = counting(bench, tmp_path, "abc")
    for job in jobs:
        backend.submit(job)
    bench.until(backend, lambda: sum("counting" in bench.texts(job) for job in jobs) == 2)
    (tmp_path / "flag").touch()
    bench.end(backend, *jobs)
    assert len(bench.jobs()) == 2
    assert begins(tmp_path, "abc") == {"a": 1, "b": 1, "c": 1}
