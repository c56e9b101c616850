"""The work that is measured, as a program: `python -m benchmarks.workloads NAME N`, one process a run.

Prints a line of JSON: seconds inside the process for what is measured, and the peak memory of this process, the
driver's. Names that begin with `floor_` do the same work with nothing around it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Callable

import numpy as np

from stoker import pipeline, step

N = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 3


@step
def one() -> int:
    return 1


@step
def plus(x: int) -> int:
    return x + 1


@step(isolation="fresh")
def plus_fresh(x: int) -> int:
    return x + 1


@step
def numbers(n: int) -> list[int]:
    return list(range(n))


@step
def square(x: int) -> int:
    return x * x


@step
def total(xs: list[int]) -> int:
    return sum(xs)


@step
def gibibyte(n: int) -> Annotated[np.ndarray, "array"]:
    return np.random.default_rng(0).random(n * (1 << 18), dtype=np.float32)


@step
def summed(array: np.ndarray) -> float:
    return float(array.sum(dtype=np.float64))


@pipeline
def chain(n: int) -> None:
    value = one()
    for _ in range(n - 1):
        value = plus(value)


@pipeline
def fresh_chain(n: int) -> None:
    value = one()
    for _ in range(n - 1):
        value = plus_fresh(value)


@pipeline
def fan_out(n: int) -> None:
    total(square.map(numbers(n)))


@pipeline
def wide(n: int) -> None:
    total([square(number) for number in range(n)])


@pipeline
def array(n: int) -> None:
    summed(gibibyte(n))


def run_chain(n: int) -> None:
    chain(n)


def run_fresh(n: int) -> None:
    fresh_chain(n)


def run_fan_out(n: int) -> None:
    run = fan_out(n)
    assert run.steps["total"].output.load() == sum(number * number for number in range(n))


def run_wide(n: int) -> None:
    run = wide(n)
    assert run.steps["total"].output.load() == sum(number * number for number in range(n))


def run_array(n: int) -> dict[str, float]:
    peaks = [step.usage.peak_memory for step in array(n).steps.values()]
    assert None not in peaks, "a step's memory is unknown"
    return {"step_mb": max(peaks) / (1 << 20)}


def floor_plain(n: int) -> None:
    """Function calls, each result pickled to a file of its own and read back by the next."""
    folder = Path(tempfile.mkdtemp())
    value = 1
    for number in range(n):
        path = folder / str(number)
        path.write_bytes(pickle.dumps(value))
        value = pickle.loads(path.read_bytes()) + 1


def floor_fork(n: int) -> None:
    """One fork for each step, its result through a pipe and into a file."""
    folder = Path(tempfile.mkdtemp())
    value = 1
    for number in range(n):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, pickle.dumps(value + 1))
            os._exit(0)
        os.close(writer)
        data = os.read(reader, 1000)
        os.close(reader)
        os.waitpid(pid, 0)
        (folder / str(number)).write_bytes(data)
        value = pickle.loads(data)


def floor_worker(n: int) -> None:
    """One other process that calls a function for each step, and leaves each result in a file."""
    folder = tempfile.mkdtemp()
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert worker.stdin is not None and worker.stdout is not None  # they are pipes
    for number in range(n):
        worker.stdin.write(pickle.dumps(number).ljust(64))
        worker.stdout.read(1)
    worker.stdin.close()
    worker.wait()


_WORKER = """
import os, pickle, sys
value = 0
while data := os.read(0, 64):
    value = value + 1
    with open(os.path.join(sys.argv[1], str(pickle.loads(data))), "wb") as file:
        file.write(pickle.dumps(value))
    os.write(1, b"x")
"""


def floor_array(n: int) -> None:
    """Make the array, save it, hash its bytes, map it again and sum it."""
    path = Path(tempfile.mkdtemp()) / "array.npy"
    made = np.random.default_rng(0).random(n * (1 << 18), dtype=np.float32)
    np.save(path, made)
    hashlib.sha256(memoryview(made)).hexdigest()
    del made
    np.load(path, mmap_mode="r").sum(dtype=np.float64)


WORK: dict[str, Callable[[int], Any]] = {
    "chain": run_chain,
    "fresh": run_fresh,
    "fan_out": run_fan_out,
    "wide": run_wide,
    "array": run_array,
    "floor_plain": floor_plain,
    "floor_fork": floor_fork,
    "floor_worker": floor_worker,
    "floor_array": floor_array,
}


def main() -> None:
    work = WORK[sys.argv[1]]
    started = time.perf_counter()
    figures = work(N)
    seconds = time.perf_counter() - started
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "driver_mb": own, **(figures or {})}))


if __name__ == "__main__":
    main()
