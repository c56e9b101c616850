"""Many jobs at once: alike ones are one array, others are not; devices are handed out between them."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.bench import Bench

from stoker.core.settings import ResourceSettings


def arrays(bench: Bench) -> dict[str, int]:
    """How many tasks each submission had."""
    found: dict[str, int] = {}
    for job in bench.jobs():
        found[job["comment"]] = found.get(job["comment"], 0) + 1
    return found


def test_alike_jobs_are_arrays_of_no_more_tasks_than_they_may_have(bench: Bench) -> None:
    backend = bench.backend(max_array=4)
    jobs = [bench.job("add", key=f"add:{number}", inputs={"a": number, "b": 1}) for number in range(9)]
    big = bench.job("add", key="big", inputs={"a": 5, "b": 5}, resources=ResourceSettings(cpu_count=2))
    bench.over(backend, *jobs, big)
    assert [bench.output(bench.ended(job)) for job in jobs] == list(range(1, 10))
    assert [bench.texts(job) for job in jobs] == [[f"adding {number} 1"] for number in range(9)]
    assert sorted(arrays(bench).values()) == [1, 1, 4, 4]


def test_one_task_of_an_array_is_cancelled(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend()
    flag = tmp_path / "flag"
    jobs = [bench.job("waits", key=f"waits:{number}", inputs={"path": str(flag)}) for number in range(3)]
    for job in jobs:
        backend.submit(job)
    bench.until(backend, lambda: all("waiting" in bench.texts(job) for job in jobs))
    backend.cancel(jobs[1].name, grace=60.0)
    assert bench.end(backend, jobs[1]).cause == "cancelled"
    assert bench.ended(jobs[0]) is None
    flag.write_text("")
    bench.end(backend, *jobs)
    assert [status.state for job in jobs if (status := bench.ended(job))] == ["succeeded", "failed", "succeeded"]
