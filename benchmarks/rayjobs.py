"""What steps on Ray cost beside bare Ray tasks: `python -m benchmarks.rayjobs` starts a cluster of its own.

Prints a line of JSON for each figure: seconds, the median and the smallest of five runs, or of `--repeat`. "cold" is
from nothing to the end: of Stoker a whole process, of Ray a job from its submission. "one more" is a slope between
chains of 10 and of 110.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Mapping

from tests.ray.storm import stack
from tests.servers.raycluster import TOKEN, running
from tests.servers.s3 import running as s3_running

from stoker.backends.ray.jobs import OVER, Jobs
from stoker.backends.ray.settings import RaySettings

SHORT, LONG = 10, 110
FAN_OUT = 200
STEPS = """
import sys
from stoker import pipeline, step

@step(cache=False)
def plus(x: int) -> int:
    return x + 1

@pipeline
def chain(n: int):
    x = 0
    for _ in range(n):
        x = plus(x)

@pipeline
def fan(n: int):
    plus.map(list(range(n)))

if __name__ == "__main__":
    {"chain": chain, "fan": fan}[sys.argv[1]](int(sys.argv[2]))
"""
TASKS = """
import sys, ray
ray.init(log_to_driver=False)

@ray.remote
def plus(x):
    return x + 1

n = int(sys.argv[2])
if sys.argv[1] == "chain":
    x = 0
    for _ in range(n):
        x = ray.get(plus.remote(x))
else:
    ray.get([plus.remote(x) for x in range(n)])
"""


def bare(jobs: Jobs, command: str) -> float:
    """Seconds from the submission of a Ray job until it is over."""
    id, began = f"bare-{time.time_ns()}", time.monotonic()
    jobs.submit({"entrypoint": command, "submission_id": id})
    while True:
        job = jobs.job(id)
        if job is not None and job["status"] in OVER:
            assert job["status"] == "SUCCEEDED", job
            return time.monotonic() - began
        time.sleep(0.02)


def stoker(folder: Path, address: str, *words: str, far: Mapping[str, str], bucket: str = "") -> float:
    """Seconds of a process that runs a pipeline, with a store of its own: a folder, or a bucket that `far` reaches."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "stoker.toml").write_text(stack(address, f"{bucket}/{folder.name}" if far else f"{folder}/store", far))
    (folder / "train.py").write_text(STEPS)
    began = time.monotonic()
    environment = {**os.environ, **far, "STOKER_HOME": str(folder / "home"), "TOKEN_OF_RAY": TOKEN}
    done = subprocess.run(
        [sys.executable, "train.py", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return time.monotonic() - began


def measure(ways: dict[str, Callable[[], float]], repeat: int) -> dict[str, list[float]]:
    """Each way so many times, one after another, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            seconds[name].append(way())
    return seconds


def show(name: str, seconds: list[float]) -> None:
    """Print a figure."""
    figure = {"median": round(statistics.median(seconds), 4), "smallest": round(min(seconds), 4)}
    print(json.dumps({name: figure}), flush=True)


def slope(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Seconds for one more step of a chain."""
    pairs = zip(seconds[f"{name}, chain of {SHORT}"], seconds[f"{name}, chain of {LONG}"])
    return [(long - short) / (LONG - SHORT) for short, long in pairs]


def main() -> None:
    """Measure all ways side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    os.environ["TOKEN_OF_RAY"] = TOKEN
    with tempfile.TemporaryDirectory() as name, running() as cluster, s3_running(Path(name)) as s3:
        folder, address, bucket = Path(name), cluster.dashboard, s3.bucket("bench")
        (folder / "tasks.py").write_text(TASKS)
        jobs = Jobs(RaySettings(address=address, token="env:TOKEN_OF_RAY"), {"TOKEN_OF_RAY": TOKEN})
        script = f"python {folder}/tasks.py"
        ways: dict[str, Callable[[], float]] = {"bare: a Ray job that runs `true`": lambda: bare(jobs, "true")}
        for count in (SHORT, LONG):
            words = f"chain of {count}"
            ways[f"bare tasks, {words}"] = lambda count=count: bare(jobs, f"{script} chain {count}")  # type: ignore[misc]
            for place, far in (("shared folder", {}), ("no shared folder", s3.environment)):
                ways[f"stoker, {place}, {words}"] = lambda count=count, far=far: stoker(  # type: ignore[misc]
                    folder, address, "chain", str(count), far=far, bucket=bucket
                )
        ways[f"bare tasks, fan-out of {FAN_OUT}"] = lambda: bare(jobs, f"{script} fan {FAN_OUT}")
        ways[f"stoker, shared folder, fan-out of {FAN_OUT}"] = lambda: stoker(
            folder, address, "fan", str(FAN_OUT), far={}
        )
        seconds = measure(ways, options.repeat)
        jobs.close()
    for way, values in seconds.items():
        show(f"{way}, cold", values)
    for way in ("bare tasks", "stoker, shared folder", "stoker, no shared folder"):
        show(f"{way}, one more in a chain", slope(seconds, way))


if __name__ == "__main__":
    main()
