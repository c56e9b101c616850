"""`python -m benchmarks [--repeat N] [--rows NAME …]`: the measures, interleaved, each a median beside its floor.

A figure "per step" is a slope between two sizes, so that start-up is out of it. Every run is a process of its own,
with a store of its own. The table is printed and stored as JSON with the machine's description beside this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).parent
ROOT = HERE.parent
OWN = "benchmarks.workloads"


class Home:
    """A fresh store for one or more runs."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="bench-")

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *problem: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, *command: str, **variables: str) -> tuple[float, dict[str, Any]]:
        """Seconds for the whole process, and what it printed as JSON."""
        environment = {**os.environ, "STOKER_HOME": self.path, "TMPDIR": self.path, **variables}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every start would compile everything again
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        lines = done.stdout.strip().splitlines()
        return seconds, json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


def whole(*command: str) -> float:
    with Home() as home:
        return home.run(*command)[0]


def inside(name: str, n: int, program: str = OWN) -> float:
    """Seconds inside the process."""
    with Home() as home:
        return float(home.run("-m", program, name, str(n))[1]["seconds"])


def fresh_imports(name: str, n: int) -> float:
    with Home() as home:
        return float(home.run("-m", "benchmarks.freshimports", name, str(n))[1]["seconds"])


def warm(name: str, n: int, program: str = OWN) -> float:
    """Seconds of the second of two runs: a virtual machine's memory is several times slower when first touched."""
    inside(name, n, program)
    return inside(name, n, program)


def cached(name: str, n: int, program: str = OWN) -> float:
    """Seconds inside the process of the second run on the same store."""
    with Home() as home:
        home.run("-m", program, name, str(n))
        return float(home.run("-m", program, name, str(n))[1]["seconds"])


def memory(name: str, n: int, field: str) -> float:
    with Home() as home:
        return float(home.run("-m", "benchmarks.workloads", name, str(n))[1][field])


def sampling(hertz: int) -> float:
    """Percent of one core that the sampler takes."""
    with Home() as home:
        return float(home.run("-m", "benchmarks.sampler", str(hertz))[1]["percent"])


def ranks(work: str) -> float:
    """Seconds, or percent, of one of the works of `benchmarks.ranks`."""
    with Home() as home:
        return float(home.run("-m", "benchmarks.ranks", work)[1]["seconds"])


def names(postgres: bool = False) -> float:
    """Milliseconds of the slowest list of 100,000 named artifacts."""
    with Home() as home:
        address = {} if postgres else {"BENCH_POSTGRES": ""}
        return float(home.run("-m", "benchmarks.names", "100000", **address)[1]["slowest"])


def flow(n: int, *command: str, metaflow: bool = False) -> float:
    """Seconds of the whole process of a flow's command, the last one of several; each is words with spaces."""
    with Home() as home:
        program = "benchmarks/flow.py"
        words = {"BENCH_TASKS": str(n), "BENCH_PEER": "metaflow" if metaflow else ""}
        if metaflow:
            words |= {"METAFLOW_DATASTORE_SYSROOT_LOCAL": home.path, "METAFLOW_HOME": home.path, "USERNAME": "bench"}
        return [home.run(program, *one.split(), **words)[0] for one in command][-1]


def slope(measure: Callable[[int], float], small: int, large: int) -> float:
    """Milliseconds for one more."""
    return (measure(large) - measure(small)) / (large - small) * 1000


def installed_size() -> float:
    """Megabytes of Stoker and its dependencies in an environment of their own."""
    with Home() as home:
        target = Path(home.path) / "site"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), str(ROOT)],
            check=True,
            capture_output=True,
        )
        return sum(file.stat().st_size for file in target.rglob("*") if file.is_file() and file.suffix != ".pyc") / 1e6


MEASURES: dict[str, tuple[str, str, Callable[[], float]]] = {
    "import": (
        "import stoker, over a bare interpreter",
        "ms",
        lambda: (whole("-c", "import stoker") - whole("-c", "pass")) * 1e3,
    ),
    "hello": ("three trivial steps, whole process, empty store", "s", lambda: whole("benchmarks/hello.py")),
    "chain": ("one more step in a chain (100 → 1,100)", "ms", lambda: slope(lambda n: inside("chain", n), 100, 1100)),
    "chain_of_100": ("a chain of 100, inside the process", "s", lambda: inside("chain", 100)),
    "floor_plain": (
        "  floor: plain call, a pickle file each",
        "ms",
        lambda: slope(lambda n: inside("floor_plain", n), 100, 1100),
    ),
    "floor_worker": (
        "  floor: one other process, a file each",
        "ms",
        lambda: slope(lambda n: inside("floor_worker", n), 100, 1100),
    ),
    "fresh": (
        "one more step in a process of its own (20 → 220)",
        "ms",
        lambda: slope(lambda n: inside("fresh", n), 20, 220),
    ),
    "floor_fork": ("  floor: one fork a step", "ms", lambda: slope(lambda n: inside("floor_fork", n), 20, 220)),
    "fresh_numpy": (
        "one more step in a process of its own that imports numpy (20 → 220)",
        "ms",
        lambda: slope(lambda n: fresh_imports("chain", n), 20, 220),
    ),
    "floor_fork_numpy": (
        "  floor: one fork of a process with numpy",
        "ms",
        lambda: slope(lambda n: fresh_imports("floor", n), 20, 220),
    ),
    "fan_out": (
        "one more item of a fan-out (200 → 10,000)",
        "ms",
        lambda: slope(lambda n: inside("fan_out", n), 200, 10_000),
    ),
    "fan_out_200": ("a fan-out of 200, inside the process", "s", lambda: inside("fan_out", 200)),
    "fan_out_10000": ("a fan-out of 10,000, inside the process", "s", lambda: inside("fan_out", 10_000)),
    "cached": (
        "one more cached step in a chain (100 → 1,100)",
        "ms",
        lambda: slope(lambda n: cached("chain", n), 100, 1100),
    ),
    "array": ("1 GiB array from step to step", "s", lambda: warm("array", 1024)),
    "floor_array": ("  floor: save, hash, map, sum", "s", lambda: warm("floor_array", 1024)),
    "array_memory": ("  largest process with that array", "MB", lambda: memory("array", 1024, "step_mb")),
    "driver_memory": (
        "driver's memory at 10,000 steps (fan-out)",
        "MB",
        lambda: memory("fan_out", 10_000, "driver_mb"),
    ),
    "chain_memory": ("driver's memory at 10,000 steps (chain)", "MB", lambda: memory("chain", 10_000, "driver_mb")),
    "chain_10000": ("a chain of 10,000, inside the process", "s", lambda: inside("chain", 10_000)),
    "wide": ("a step with 10,000 upstream steps, inside", "s", lambda: inside("wide", 10_000)),
    "sampling": ("sampling 8 GPUs and 10 processes, once a second", "%", lambda: sampling(1)),
    "sampling_20": ("  twenty times a second", "%", lambda: sampling(20)),
    "names": ("the slowest list of 100,000 named artifacts, SQLite", "ms", names),
    "flow_foreach": ("a flow, foreach of 50 trivial tasks, whole process", "s", lambda: flow(50, "run")),
    "flow_resume": (
        "  resume of a finished run of 100 tasks",
        "s",
        lambda: flow(97, "run", "resume --origin-run-id latest"),
    ),
    "flow_again": ("  its last step once more: resume end", "s", lambda: flow(97, "run", "resume end")),
    "size": ("installed size without extras", "MB", installed_size),
}
RANKS: dict[str, tuple[str, str, Callable[[], float]]] = {
    "torchrun": ("a step of 2 ranks under torchrun", "s", lambda: ranks("torchrun")),
    "floor_torchrun": ("  floor: torchrun of an empty script", "s", lambda: ranks("floor_torchrun")),
    "torchrun_ratio": ("  one against the other", "×", lambda: ranks("torchrun") / ranks("floor_torchrun")),
    "accelerate": ("a step of 2 ranks under accelerate launch", "s", lambda: ranks("accelerate")),
    "floor_accelerate": ("  floor: accelerate launch of an empty script", "s", lambda: ranks("floor_accelerate")),
    "accelerate_ratio": ("  one against the other", "×", lambda: ranks("accelerate") / ranks("floor_accelerate")),
    "rank_raises": ("from a rank's exception to the step's failure", "s", lambda: ranks("raises")),
    "rank_killed": ("  from SIGKILL", "s", lambda: ranks("killed")),
    "rank_exits": ("  from its exit", "s", lambda: ranks("exits")),
    "rank_crashes": ("  from a segmentation fault", "s", lambda: ranks("crashes")),
    "ranks_hang": ("  from the end of `hang_after`", "s", lambda: ranks("hangs")),
    "rank_evidence": ("evidence in a training step of a millisecond", "%", lambda: ranks("evidence")),
}
METAFLOW: dict[str, tuple[str, str, Callable[[], float]]] = {
    "metaflow_foreach": (
        "Metaflow: foreach of 50 trivial tasks",
        "s",
        lambda: flow(50, "--quiet run", metaflow=True),
    ),
    "metaflow_resume": (
        "  resume of a finished run of 100 tasks",
        "s",
        lambda: flow(97, "--quiet run", "--quiet resume", metaflow=True),
    ),
    "metaflow_again": (
        "  its last step once more: resume end",
        "s",
        lambda: flow(97, "--quiet run", "--quiet resume end", metaflow=True),
    ),
}
"""The same flow with another's import."""
JOBLIB: dict[str, tuple[str, str, Callable[[], float]]] = {
    "joblib_three": (
        "  joblib: three cached calls, whole process",
        "s",
        lambda: whole("-m", "benchmarks.joblibwork", "three", "3"),
    ),
    "joblib_cached": (
        "  joblib: one more cached call (100 → 1,100)",
        "ms",
        lambda: slope(lambda n: cached("chain", n, "benchmarks.joblibwork"), 100, 1100),
    ),
    "joblib_array": (
        "  joblib: 1 GiB array from call to call",
        "s",
        lambda: warm("array", 1024, "benchmarks.joblibwork"),
    ),
    "joblib_fresh": (
        "  joblib: one more call that imports numpy, in a worker that is kept (20 → 220)",
        "ms",
        lambda: slope(lambda n: inside("fresh", n, "benchmarks.joblibwork"), 20, 220),
    ),
}
"""The same work with joblib."""
PEERS = {
    "metaflow": (("flow_foreach", "flow_resume", "flow_again"), METAFLOW),
    "joblib": (("hello", "cached", "array", "fresh_numpy"), JOBLIB),
}
"""Package → our own rows, and beside them what it takes."""
if os.environ.get("BENCH_POSTGRES"):  # the address of an empty database
    MEASURES["names_postgres"] = ("  PostgreSQL", "ms", lambda: names(postgres=True))
if all(
    importlib.util.find_spec(name) for name in ("torch", "accelerate")
):  # gigabytes that `make bench` does not fetch
    MEASURES |= RANKS
BUDGETS = {
    "import": 60,
    "hello": 0.20,
    "chain": 0.4,
    "fresh": 2.5,
    "fan_out": 0.2,
    "cached": 0.05,
    "array": 1.6,
    "array_memory": 1024 * 1.1 + 60,
    "driver_memory": 150,
    "chain_memory": 150,
    "sampling": 0.5,
    "torchrun_ratio": 1.2,
    "accelerate_ratio": 1.2,
    "rank_raises": 3.0,
    "rank_killed": 3.0,
    "rank_exits": 3.0,
    "rank_crashes": 3.0,
    "rank_evidence": 1.0,
    "names": 50,
    "names_postgres": 50,
    "flow_foreach": 1.0,
    "flow_resume": 0.3,
    "size": 40,
}
ONCE = {"size"}
"""Figures that do not vary."""


def machine() -> dict[str, Any]:
    cpu = ""
    if Path("/proc/cpuinfo").exists():
        names = [
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ]
        cpu = names[0] if names else ""
    return {
        "cpu": cpu or platform.processor(),
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", nargs="*", default=list(MEASURES))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--peers", action="store_true", help="what others take beside us, as far as they are installed")
    options = parser.parse_args()
    if options.peers:
        options.rows, options.output = [], options.output or HERE / "peers.json"
        for package, (own, peers) in PEERS.items():
            if importlib.util.find_spec(package) is None:
                print(f"{package} is not installed here: `.venv/bin/python -m pip install {package}`")
                continue
            MEASURES.update(peers)
            options.rows += [*own, *peers]
    values: dict[str, list[float]] = {name: [] for name in options.rows}
    for turn in range(options.repeat):
        for name in options.rows:
            if name in ONCE and turn > 0:
                continue
            values[name].append(MEASURES[name][2]())
            print(f"\r{turn + 1}/{options.repeat} {name:<20}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = []
    for name, found in values.items():
        title, unit, _ = MEASURES[name]
        rows.append(
            {
                "name": name,
                "what": title,
                "unit": unit,
                "median": statistics.median(found),
                "min": min(found),
                "runs": found,
            }
            | ({"budget": BUDGETS[name]} if name in BUDGETS else {})
        )
    print(f"{'':52} {'median':>9} {'min':>9} {'budget':>9}")
    for row in rows:
        budget = f"{row['budget']:>9.4g}" if "budget" in row else " " * 9
        print(f"{row['what']:52} {row['median']:>9.4g} {row['min']:>9.4g} {budget} {row['unit']}")
    output = options.output or HERE / "results.json"
    output.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
