"""What steps in containers cost: `python -m benchmarks.containers` starts an engine of its own, and prints a table.

Beside `docker run` of an empty Python program in the same image: one step and twenty in a row, with containers that
take several steps and with one for each. The rows take turns; each is the median of five. "run" is the seconds that the
run says of itself, without the driver's start and what it does before the first step; "program" is all of it.
The table is stored as JSON beside this file.
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
from collections.abc import Mapping
from pathlib import Path

from tests.servers.containers import Engine, import_base, running_engine

from benchmarks.__main__ import machine

MANY = 20
PROGRAM = """
import sys
from stoker import pipeline, step
from stoker.config import DockerSettings

@step(cache=False)
def add(x: int) -> int:
    return x + 1

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def chain(n: int):
    x = 0
    for _ in range(n):
        x = add(x)
    return x

if __name__ == "__main__":
    chain(int(sys.argv[1]))
"""
STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {flavor = "docker", network = "host", reuse = REUSE}
"""


class Bench:
    """Two projects that differ in one setting, and an engine."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.image = import_base(engine)
        self.environment = {**os.environ, **engine.environment, "STOKER_HOME": str(folder / "home")}
        for name, reuse in (("shared", '"auto"'), ("own", "false")):
            (folder / name).mkdir()
            (folder / name / "stoker.toml").write_text(STACK.replace("REUSE", reuse))
            (folder / name / "chain.py").write_text(PROGRAM.replace("BASE", self.image))

    def bare(self, count: int) -> dict[str, float]:
        """Seconds of `docker run`, so many times."""
        began = time.perf_counter()
        for _ in range(count):
            self.engine.run("run", "--rm", "--network", "host", self.image, "python3", "-c", "pass")
        return {"program": time.perf_counter() - began}

    def steps(self, project: str, count: int) -> dict[str, float]:
        """Seconds of a chain of so many steps."""
        folder = self.folder / project
        command = [sys.executable, "chain.py", str(count)]
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, env=self.environment, check=True, capture_output=True)
        seconds = time.perf_counter() - began
        stoker = [str(Path(sys.executable).with_name("stoker")), "runs", "--json"]
        told = subprocess.run(stoker, cwd=folder, env=self.environment, check=True, capture_output=True).stdout
        last = json.loads(told)[0]
        return {"program": seconds, "run": last["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    with running_engine() as engine, tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        bench = Bench(Path(folder), engine)
        rows = {
            "docker run": lambda: bench.bare(1),
            f"docker run, {MANY} times": lambda: bench.bare(MANY),
            "one step": lambda: bench.steps("shared", 1),
            f"{MANY} steps in a row": lambda: bench.steps("shared", MANY),
            f"{MANY} steps in a row, a container each": lambda: bench.steps("own", MANY),
        }
        for _ in range(2):
            bench.steps("shared", 1)  # the worker is packed and compiled
        values: dict[str, list[Mapping[str, float]]] = {name: [] for name in rows}
        for _ in range(repeat):
            for name, measure in rows.items():
                values[name].append(measure())
    floor = statistics.median(one["program"] for one in values["docker run"])
    table = []
    for name, measured in values.items():
        medians = {kind: statistics.median(one[kind] for one in measured) for kind in measured[0]}
        table.append({"what": name, **medians, "times the floor": {kind: s / floor for kind, s in medians.items()}})
        words = ", ".join(f"{kind} {seconds:.2f} s ({seconds / floor:.1f} ×)" for kind, seconds in medians.items())
        print(f"{name:45} {words}")
    load = os.getloadavg()[0]
    document = {"machine": machine(), "load": load, "repeat": repeat, "rows": table}
    Path(__file__).with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
