"""What steps cost on Slurm beside bare jobs: `python -m benchmarks.slurmjobs` starts a cluster of its own. It prints a
line of JSON for each measurement, and stores them beside this file.

Each program of the bare jobs does what the step does, run by Python. Floors and runs alternate, so that both meet the
same load; figures are medians. Seconds are those from the submission until the last result is there; a run's begin when
its pipeline is called. Calls of Slurm's commands are counted by wrappers on PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers.slurm import Cluster

from benchmarks.__main__ import machine

ROUNDS = 5
CHAIN = 10
FAN_OUT = 200
MANY = 1000
PATIENCE = 600.0
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo")

PIPELINE = f"""
import sys
import time

from stoker import pipeline, step


@step(cache=False)
def add(a: int) -> int:
    return a + 1


@pipeline
def chain():
    value = 0
    for _ in range({CHAIN}):
        value = add(value)


@pipeline
def fan_out(count: int):
    add.map(list(range(count)))


if __name__ == "__main__":
    began = time.monotonic()
    if sys.argv[1] == "chain":
        chain()
    else:
        fan_out(int(sys.argv[1]))
    print("seconds", time.monotonic() - began)
"""
STACK = 'stack = "c"\n[stacks.c]\norchestrator = {flavor = "slurm"}\n'
WRAPPER = '#!/bin/sh\necho "$(date +%s.%N) {name}" >>"{log}"\nexec {command} "$@"\n'


class Bench:
    """A cluster with arrays as large as Slurm has them by default, and a project on it."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.calls = folder / "calls"
        self.project = folder / "project"
        self.project.mkdir()
        (folder / "bin").mkdir()
        for name in COMMANDS:
            wrapper = folder / "bin" / name
            wrapper.write_text(WRAPPER.format(name=name, log=self.calls, command=shutil.which(name)))
            wrapper.chmod(0o755)
        (self.project / "steps.py").write_text(PIPELINE)
        (self.project / "stoker.toml").write_text(STACK)
        self.environment = {
            **os.environ,
            **cluster.environment,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "STOKER_HOME": str(folder / "home"),
        }

    def run(self, what: str) -> dict[str, float]:
        """A run of the pipeline: its seconds, and the calls of Slurm's commands."""
        self.calls.write_text("")
        done = subprocess.run(
            [sys.executable, "steps.py", what],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        match = re.search(r"^seconds ([\d.]+)", done.stdout, re.MULTILINE)
        assert match is not None, done.stdout + done.stderr
        calls = [line.split()[1] for line in self.calls.read_text().splitlines()]
        submitting = sum(name in ("sbatch", "sinfo") for name in calls)
        return {
            "seconds": float(match[1]),
            "submitting": submitting,
            "asking": sum(name in ("squeue", "sacct") for name in calls),
            "others": len(calls) - submitting - sum(name in ("squeue", "sacct") for name in calls),
        }

    def bare(self, count: int) -> float:
        """Seconds of a job, or of an array, until the last result is there."""
        results = Path(tempfile.mkdtemp(dir=self.folder))
        code = f"import os; open('{results}/' + os.environ.get('SLURM_ARRAY_TASK_ID', '0'), 'w').write(str(1 + 2))"
        words = [] if count == 1 else [f"--array=0-{count - 1}"]
        began = time.monotonic()
        command = f"{sys.executable} -c {json.dumps(code)}"
        self.cluster.run("sbatch", *words, "--output=/dev/null", "--wrap", command)
        while len(os.listdir(results)) < count:
            assert time.monotonic() < began + PATIENCE
            time.sleep(0.01)
        return time.monotonic() - began

    def bare_chain(self) -> float:
        """Seconds of one job that runs a program for each step, one after another: a chain without a driver."""
        done = Path(tempfile.mkdtemp(dir=self.folder)) / "done"
        program = f"{sys.executable} -c 'print(1 + 2)'"
        began = time.monotonic()
        words = "; ".join([program] * CHAIN)
        self.cluster.run("sbatch", "--output=/dev/null", "--wrap", f"{words}; touch {done}")
        while not done.exists():
            assert time.monotonic() < began + PATIENCE
            time.sleep(0.01)
        return time.monotonic() - began

    def bare_waited(self) -> float:
        """Seconds of `sbatch --wait` for one job, as people wait for one."""
        began = time.monotonic()
        self.cluster.run("sbatch", "--wait", "--output=/dev/null", "--wrap", f"{sys.executable} -c 'print(1 + 2)'")
        return time.monotonic() - began


@contextlib.contextmanager
def running() -> Iterator[Bench]:
    """A bench that lives as long as the block."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-bench-"))
    (folder / "cluster").mkdir()
    cluster = Cluster(folder / "cluster", accounting=False)
    configuration = folder / "cluster" / "slurm.conf"
    configuration.write_text(configuration.read_text().replace("MaxArraySize=101", "MaxArraySize=1001"))
    try:
        cluster.start()
        yield Bench(folder, cluster)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def say(name: str, figures: Mapping[str, float]) -> None:
    """Print a measurement."""
    print(json.dumps({"name": name, **{key: round(value, 3) for key, value in figures.items()}}), flush=True)


def compare(bench: Bench, rounds: int) -> None:
    """A chain beside one bare job, a fan-out beside a bare array, and the calls of a large fan-out."""
    bench.run("chain")  # the home and the code's package are made once
    ones, waited, alike, rows, chains, arrays, fans = [], [], [], [], [], [], []
    for _ in range(rounds):
        ones.append(bench.bare(1))
        waited.append(bench.bare_waited())
        alike.append(bench.bare_chain())
        rows.append(sum(bench.bare(1) for _ in range(CHAIN)))
        chains.append(bench.run("chain")["seconds"])
        arrays.append(bench.bare(FAN_OUT))
        fans.append(bench.run(str(FAN_OUT))["seconds"])
    one, wait, program, row, chain = map(statistics.median, (ones, waited, alike, rows, chains))
    array, fan = map(statistics.median, (arrays, fans))
    many = bench.run(str(MANY))
    figures = {
        "one bare job": {"seconds": one, "with --wait": wait},
        f"{CHAIN} programs in one bare job": {"seconds": program},
        f"{CHAIN} bare jobs, one after another": {"seconds": row},
        f"a chain of {CHAIN}": {
            "seconds": chain,
            "of a bare job": chain / one,
            "of one with --wait": chain / wait,
            "of programs in one job": chain / program,
            "of bare jobs in a row": chain / row,
        },
        f"a bare array of {FAN_OUT}": {"seconds": array},
        f"a fan-out of {FAN_OUT}": {"seconds": fan, "of a bare array": fan / array},
        f"a fan-out of {MANY}": {**many, "seconds between questions": many["seconds"] / max(1.0, many["asking"])},
    }
    for name, values in figures.items():
        say(name, values)
    document = {"machine": machine(), "load": os.getloadavg()[0], "repeat": rounds, "rows": figures}
    Path(__file__).with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    with running() as bench:
        compare(bench, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
