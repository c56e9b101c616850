"""A driver that dies: the next one takes over what it had sent, and nothing runs twice."""

from __future__ import annotations

from pathlib import Path

import attrs
from tests.servers.slurm import Cluster
from tests.slurm.bench import Bench
from tests.waiting import until

from stoker.backends.slurm.backend import SlurmBackend


def left_alone(bench: Bench, backend: SlurmBackend) -> None:
    """As if its driver had been killed: it neither ends its jobs nor takes anything away."""
    backend._watcher._flights.clear()
    platform = backend._watcher._platform
    platform._over, platform._orphans = [], None  # type: ignore[attr-defined]
    platform._pools._pools.clear()  # type: ignore[attr-defined]
    platform._pools._folders.clear()  # type: ignore[attr-defined]
    backend.close()
    bench.made.remove(backend)


def test_a_job_is_taken_over_whose_driver_died_between_sbatch_and_its_answer(bench: Bench, tmp_path: Path) -> None:
    starts, flag = tmp_path / "starts", tmp_path / "flag"
    job = bench.job("counts", inputs={"path": str(starts), "until": str(flag)})
    first = bench.backend()
    first.submit(job)
    bench.until(first, lambda: "counting" in bench.texts(job))
    left_alone(bench, first)
    (submitted,) = Path(bench.site.scratch, "slurm").glob("*/*/submitted")
    submitted.unlink()
    again = attrs.evolve(job, name="r1/counts/2", attempt=2)
    second = bench.backend()
    second.submit(again)
    bench.until(second, lambda: "counting" in bench.texts(again))
    flag.write_text("")
    assert bench.output(bench.end(second, again)) == 1
    assert len(bench.jobs()) == 1


def test_what_is_done_is_taken_over(bench: Bench, cluster: Cluster, tmp_path: Path) -> None:
    """Also where the controller has forgotten it."""
    starts, flag = tmp_path / "starts", tmp_path / "flag"
    flag.write_text("")
    job = bench.job("counts", inputs={"path": str(starts), "until": str(flag)})
    first = bench.backend()
    first.submit(job)
    until(lambda: list(Path(bench.site.scratch, "slurm").glob("*/*/0/result.json")))
    left_alone(bench, first)
    cluster.stop_controller()
    cluster.start_controller(clear=True)
    second = bench.backend()
    assert bench.output(bench.over(second, attrs.evolve(job, name="r1/counts/2", attempt=2))) == 1
    assert starts.read_text().count("\n") == 1


def test_what_failed_is_sent_again(bench: Bench) -> None:
    job = bench.job("fails")
    first = bench.backend()
    first.submit(job)
    until(lambda: list(Path(bench.site.scratch, "slurm").glob("*/*/0/result.json")))
    left_alone(bench, first)
    assert len(bench.jobs()) == 1
    assert bench.over(bench.backend(), job).cause == "user-error"
    assert len({one["comment"] for one in bench.jobs()}) == 2


def test_a_job_that_asks_for_something_else_is_ended_and_sent_anew(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    first = bench.backend()
    job = bench.job("waits", inputs={"path": str(flag)})
    first.submit(job)
    bench.until(first, lambda: "waiting" in bench.texts(job))
    bench.jobs()
    left_alone(bench, first)
    second = bench.backend()
    changed = attrs.evolve(job, step=attrs.evolve(job.step, code="other code"), name="r1/waits/2", attempt=2)
    second.submit(changed)
    bench.until(second, lambda: "waiting" in bench.texts(changed))
    assert [one["state"] for one in bench.jobs()] == ["CANCELLED", "RUNNING"]
    flag.write_text("")
    bench.end(second, changed)


def test_a_job_that_nobody_takes_over_is_ended(bench: Bench, tmp_path: Path) -> None:
    first = bench.backend()
    job = bench.job("waits", inputs={"path": str(tmp_path / "never")})
    first.submit(job)
    bench.until(first, lambda: "waiting" in bench.texts(job))
    bench.jobs()
    left_alone(bench, first)
    second = bench.backend()
    assert bench.output(bench.over(second, bench.job("add", inputs={"a": 1, "b": 2}))) == 3
    second.close()
    bench.made.clear()
    until(lambda: bench.jobs()[0]["state"] == "CANCELLED")
    assert not list(Path(bench.site.scratch, "slurm").glob("*/*"))


def test_part_of_an_array_is_taken_over(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    jobs = [
        bench.job("counts", key=f"counts:{number}", inputs={"path": str(tmp_path / f"s{number}"), "until": str(flag)})
        for number in range(3)
    ]
    first = bench.backend()
    for job in jobs:
        first.submit(job)
    bench.until(first, lambda: all("counting" in bench.texts(job) for job in jobs))
    bench.jobs()
    left_alone(bench, first)
    second = bench.backend()
    again = [attrs.evolve(job, name=f"{job.run}/{job.key}/2", attempt=2) for job in jobs[:2]]
    for job in again:
        second.submit(job)
    bench.until(second, lambda: all("counting" in bench.texts(job) for job in again))
    flag.write_text("")
    bench.end(second, *again)
    assert [bench.output(bench.ended(job)) for job in again] == [1, 1]
    assert len({one["comment"] for one in bench.jobs()}) == 1
