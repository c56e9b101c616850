"""Steps as tasks of a real Ray cluster: what each may end with, and what it holds."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.ray.bench import Bench
from tests.servers.raycluster import RayCluster
from tests.waiting import until

from stoker.backends.base.platforms import Away
from stoker.backends.ray.job import CUT_OFF, UNREAD, NodeTask, is_cut_off, is_over, lost_tasks
from stoker.backends.ray.jobs import CURRENT, Jobs
from stoker.backends.ray.settings import RaySettings
from stoker.backends.ray.tasks import CHECKPOINTS
from stoker.core.settings import ResourceSettings
from stoker.core.status import CANCELLED, EXITED, NODE_LOST, USER_ERROR, WORKER_LOST
from stoker.store.checkpoints import Checkpoints, step_place

TENTH = ResourceSettings(cpu_count=0.1)
GPU = ResourceSettings(cpu_count=0.1, gpu_count=1)


def jobs_of(bench: Bench, run: str) -> list[Any]:
    """The Ray jobs of a run of this bench."""
    jobs = Jobs(RaySettings(**bench.options), {"TOKEN_OF_RAY": "a-token-for-tests"})
    try:
        return [one for one in jobs.jobs() if marks(one) == (run, bench.site.scratch)]
    finally:
        jobs.close()


def marks(one: Any) -> tuple[str, str]:
    metadata = one["metadata"] or {}
    return metadata.get("stoker.run", ""), metadata.get("stoker.home", "")


def test_a_batch_is_one_ray_job(bench: Bench, tmp_path: Path, ray_cluster: RayCluster) -> None:
    backend = bench.backend()
    pair = {"orchestrator": {"gpu_fraction": 0.5, "resources": {"bench": 0.1}}}
    meeting: dict[str, Any] = {"folder": str(tmp_path)}
    good = bench.job("add", inputs={"a": 1, "b": 2}, resources=TENTH)
    bad, left = bench.job("fails", resources=TENTH), bench.job("leaves", resources=TENTH)
    killed = bench.job("kills_the_task", inputs=meeting, resources=TENTH)
    none = bench.job("sees", resources=TENTH)
    devices = [
        bench.job("meet", key=name, inputs={**meeting, "name": name, "others": ["g1", "g2"]}, resources=GPU)
        for name in ("g1", "g2")
    ]
    halves = [
        bench.job(
            "meet", key=name, inputs={**meeting, "name": name, "others": ["h1", "h2"]}, resources=GPU, backend=pair
        )
        for name in ("h1", "h2")
    ]
    gang = bench.job("place", resources=ResourceSettings(nodes=2, cpu_count=0.1))
    # Of 1 CPU each: with less, Ray would start a worker for each at once.
    many = [bench.job("add", key=f"many-{n}", inputs={"a": n, "b": n}) for n in range(12)]
    all_of_them = [good, bad, left, killed, none, *devices, *halves, gang, *many]
    found = dict(zip([job.key for job in all_of_them], bench.all_over(backend, all_of_them)))
    assert len(jobs_of(bench, "r1")) == 1

    assert bench.output(found["add"]) == 3
    assert "adding 1 2" in bench.texts(good) and "to stderr" in bench.texts(good, "stderr")
    failure = found["fails"].result
    assert found["fails"].cause == USER_ERROR and failure is not None and failure.error is not None
    assert "no such thing" in failure.error.traceback
    assert found["leaves"].exit_code == 7 and found["leaves"].cause in ("", EXITED)
    assert found["kills_the_task"].cause == WORKER_LOST, found["kills_the_task"]
    gone = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert not [pid for pid in gone if alive(pid)], "what the task held ends with it"
    assert bench.output(found["sees"]) == ""

    seen = [bench.output(found[name]) for name in ("g1", "g2", "h1", "h2")]
    assert all(len(uuids) == 1 for _, uuids, _ in seen)
    assert seen[2][1] == seen[3][1], "both halves are of the one GPU that Ray gave to both"
    assert found["g1"].lease.held[0].simulated is True
    assert Path(found["g1"].lease.samples).exists()
    nodes = bench.output(found["place"])
    assert nodes[:2] == [0, 2]
    assert nodes[3] == (ray_cluster.folder / CURRENT).read_text(), "ray.init() joins the step's own cluster"
    assert [bench.output(found[f"many-{n}"]) for n in range(12)] == [2 * n for n in range(12)]


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_step_is_asked_to_end_and_one_that_waits_says_why(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(resources={"bench": 1})
    slow = bench.job("slow", inputs={"folder": str(tmp_path)}, resources=TENTH)
    backend.submit(slow)
    bench.says(backend, slow, "slow begins")
    later = bench.job("add", inputs={"a": 1, "b": 1}, resources=TENTH)
    backend.submit(later)
    bench.until(backend, lambda: any("0 of 1 bench free" in one.message for one in bench.news.get(later.name, ())))
    backend.cancel(later.name, grace=5.0)
    assert bench.end(backend, later).cause == CANCELLED
    backend.cancel(slow.name, grace=10.0)
    bench.end(backend, slow)
    assert "slow saved" in bench.texts(slow) and (tmp_path / "saved").exists()
    deaf = bench.job("deaf", resources=TENTH)
    backend.submit(deaf)
    bench.says(backend, deaf, "deaf begins")
    backend.cancel(deaf.name, grace=0.0)
    assert bench.end(backend, deaf).state == "failed"


def test_a_node_that_dies_is_told_apart_from_a_worker(bench: Bench, ray_cluster: RayCluster, tmp_path: Path) -> None:
    node = ray_cluster.add(num_cpus=2, resources={"doomed": 1})
    backend = bench.backend(resources={"doomed": 1})
    job = bench.job("waits", inputs={"path": str(tmp_path / "never")}, resources=TENTH)
    backend.submit(job)
    bench.says(backend, job, "waiting")
    ray_cluster.kill(node)
    status = bench.end(backend, job)
    assert status.cause == NODE_LOST, status


def test_what_a_task_sent_is_read_after_its_end() -> None:
    """Ray may report the end of a short task before the program has looked at its connection."""
    now = time.monotonic()
    assert not is_over(NodeTask(step=0, node=0, ref=None))
    assert not is_over(NodeTask(step=0, node=0, ref=None, crashed=now)), "its result waits to be read"
    assert is_over(NodeTask(step=0, node=0, ref=None, crashed=now, over={"code": 0}))
    assert is_over(NodeTask(step=0, node=0, ref=None, crashed=now - UNREAD - 1)), "it was never sent"
    assert is_over(NodeTask(step=0, node=0, ref=None, crashed=now - 1, crash=RuntimeError("its worker died")))


def test_a_task_of_a_node_that_is_cut_off_is_given_up() -> None:
    """Nobody closes the connection of a machine that is gone, nor that of a worker whose raylet hangs."""
    now = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        task = NodeTask(step=0, node=0, ref=None, connection=ours)
        assert not is_cut_off(task)
        task.crash, task.crashed = RuntimeError("its node died"), now
        assert not is_cut_off(task), "what it sent may still be read"
        task.crashed = now - CUT_OFF - 1
        assert is_cut_off(task)
    other = NodeTask(step=1, node=0, ref=None, ray_node="n1")
    nodes = [{"NodeID": "n1", "Alive": False}, {"NodeID": "n2", "Alive": True}]
    assert lost_tasks([other, NodeTask(step=2, node=0, ref=None, ray_node="n2")], nodes) == [other]
    assert not lost_tasks([other], nodes[1:])


def test_another_driver_takes_over(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    job = bench.job("waits", inputs={"path": str(flag)}, resources=TENTH)
    other = bench.job("waits", key="other", inputs={"path": str(tmp_path / "never")}, resources=TENTH)
    failing = bench.job("fails", resources=TENTH)
    first = bench.backend()
    for one in (job, other, failing):
        first.submit(one)
    bench.says(first, job, "waiting")
    bench.says(first, other, "waiting")
    bench.end(first, failing)
    first._watcher._closing = True  # as if its process had died: nothing is ended
    first._watcher._flights.clear()
    bench.news.clear()
    bench.lines.clear()

    second = bench.backend()
    again = bench.job("fails", attempt=2, resources=TENTH)
    changed = bench.job("add", key="other", inputs={"a": 1, "b": 1}, resources=TENTH)
    for one in (job, again, changed):
        second.submit(one)
    bench.says(second, job, "waiting")
    flag.touch()
    assert bench.output(bench.end(second, job)) == "seen"
    assert bench.end(second, again).cause == USER_ERROR, "one that had failed is tried again"
    assert bench.output(bench.end(second, changed)) == 2
    assert len(jobs_of(bench, "r1")) == 1, "the program that the first one started takes what is new"
    second.close()
    until(
        lambda: all(one["status"] in ("SUCCEEDED", "FAILED", "STOPPED") for one in jobs_of(bench, "r1")),
        "what nobody wants any more is ended",
    )


def test_a_job_is_sent_once_and_one_that_is_over_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never came, at the one moment that decides: that cannot be had from a real network."""
    submit, lost = Jobs.submit, [True]

    def unheard(self: Jobs, body: Any) -> None:
        submit(self, body)
        if lost and lost.pop():
            raise Away("the connection was cut")

    monkeypatch.setattr(Jobs, "submit", unheard)
    job = bench.job("add", run="r2", inputs={"a": 1, "b": 2}, resources=TENTH)
    backend = bench.backend(idle_after=0.2)
    assert bench.output(bench.over(backend, job)) == 3
    assert len(jobs_of(bench, "r2")) == 1, "it had been heard"
    until(
        lambda: all(one["status"] == "SUCCEEDED" for one in jobs_of(bench, "r2")),
        "its program leaves, since nothing comes",
    )
    bench.news.clear()
    # The driver has not heard that the program has left: its order is never taken.
    assert bench.output(bench.over(backend, job)) == 3
    assert len(jobs_of(bench, "r2")) == 2
    bench.news.clear()


def test_steps_in_a_row_are_taken_by_one_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where orders go through Ray, since the cluster sees no folder of ours."""
    put, lost = Jobs.put_package, [True]

    def unheard(self: Jobs, name: str, data: bytes) -> None:
        put(self, name, data)
        if lost and name.endswith("-order-1") and lost.pop():
            raise Away("the connection was cut")

    monkeypatch.setattr(Jobs, "put_package", unheard)
    bench.far()
    run = "row"
    backend = bench.backend()
    taken = [bench.output(bench.over(backend, bench.job("counted", key=f"k{n}", run=run))) for n in range(3)]
    assert [count for count, _ in taken] == [1, 1, 1], "each has a process of its own"
    assert len({pid for _, pid in taken}) == 3
    assert len(jobs_of(bench, run)) == 1
    assert not lost, "an order without an answer is run once"
    slow = bench.job("deaf", run=run, resources=TENTH)
    backend.submit(slow)
    bench.says(backend, slow, "deaf begins")
    backend.cancel(slow.name, grace=0.0)
    assert bench.end(backend, slow).state == "failed"
    assert bench.output(bench.over(backend, bench.job("counted", key="after", run=run)))[0] == 1
    assert len(jobs_of(bench, run)) == 1, "the end of a step ends nothing else"


def test_checkpoints_of_a_node_that_is_gone(bench: Bench) -> None:
    bench.far()
    saved = f"{step_place(bench.site.artifacts, 'gone', 'trains')}/node-0/saved"
    backend = bench.backend()
    killed = bench.job("trains", run="gone", inputs={"saved": saved}, resources=TENTH)
    assert bench.over(backend, killed).state == "failed"
    # The cluster's nodes are processes of this machine: the next one has nothing of the folder.
    shutil.rmtree(Checkpoints(CHECKPOINTS).path("gone", "trains"), ignore_errors=True)
    again = bench.job("trains", run="gone", inputs={"saved": saved}, attempt=2, resources=TENTH)
    assert bench.output(bench.over(backend, again)) == "by attempt 1"
    assert any("checkpoints restored: 1 files" in text for text in bench.texts(again, "stderr"))


def test_a_cluster_that_sees_no_folder_of_ours(bench: Bench) -> None:
    bench.far()
    backend = bench.backend()
    job = bench.job("add", inputs={"a": 1, "b": 2}, resources=TENTH)
    device = bench.job("sees", resources=GPU)
    slow = bench.job("deaf", resources=TENTH)
    for one in (job, device, slow):
        backend.submit(one)
    assert bench.output(bench.end(backend, job)) == 3
    assert "adding 1 2" in bench.texts(job)
    lease = bench.end(backend, device).lease
    assert Path(lease.samples).parent == Path(bench.site.scratch)
    assert Path(lease.samples).read_text().strip(), "its samples came along"
    bench.says(backend, slow, "deaf begins")
    backend.cancel(slow.name, grace=0.0)
    assert bench.end(backend, slow).state == "failed"
