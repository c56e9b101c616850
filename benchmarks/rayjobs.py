"""What a step on Ray costs: `python -m benchmarks.rayjobs` starts a cluster of its own, and prints lines of JSON.

One step: seconds from the submission until Ray's program has begun, the step has, and its end is known. A fan-out of
short steps: seconds in all, requests to the dashboard, and seconds of the driver's CPU.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from pathlib import Path

from tests.ray.bench import Bench
from tests.servers.raycluster import TOKEN, running

from stoker.images.wheel import worker_bundle

MANY = 500


def cpu() -> float:
    """Seconds of CPU of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def one(bench: Bench) -> dict[str, float]:
    """The way of one step."""
    backend = bench.backend()
    job = bench.job("add", run="one", inputs={"a": 1, "b": 2})
    began = time.monotonic()
    backend.submit(job)
    bench.until(backend, lambda: any(news.state == "running" for news in bench.news.get(job.name, ())))
    running_after = time.monotonic() - began
    status = bench.end(backend, job)
    over = time.monotonic() - began
    backend.close()
    lasted = (status.ended or 0.0) - (status.started or 0.0)
    return {"running": running_after, "known": over, "itself": lasted, "requests": backend._jobs.asked}


def many(bench: Bench, count: int) -> dict[str, float]:
    """A fan-out of short steps."""
    backend = bench.backend()
    jobs = [bench.job("add", key=f"many-{n}", run="many", inputs={"a": n, "b": n}) for n in range(count)]
    began, used = time.monotonic(), cpu()
    for job in jobs:
        backend.submit(job)
    left = {job.name for job in jobs}

    def done() -> bool:
        left.difference_update(
            {name for name in left if any(one.state == "succeeded" for one in bench.news.get(name, ()))}
        )
        return not left

    bench.until(backend, done, seconds=1200.0)
    found = {"steps": count, "seconds": time.monotonic() - began, "cpu": cpu() - used, "requests": backend._jobs.asked}
    backend.close()
    return found


def main() -> None:
    """Measure both."""
    os.environ["TOKEN_OF_RAY"] = TOKEN
    with tempfile.TemporaryDirectory() as folder, running() as cluster:
        bundle = worker_bundle(Path(folder) / "worker")
        bench = Bench(Path(folder), cluster.dashboard, bundle)
        for _ in range(3):
            bench.news.clear()
            print(json.dumps({"one": one(bench)}), flush=True)
        print(json.dumps({"many": many(bench, MANY)}), flush=True)


if __name__ == "__main__":
    main()
