"""Drivers that are killed at random moments while steps run in containers that take several.

    python -m tests.containers.storm --seed 1 --kills 30

Runs of a chain and a fan-out are started, killed with SIGKILL and resumed until they succeed. Each step writes a line
when it begins: at the end every step must have begun exactly once, its output must be right, and no container and no
folder of one may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.servers.containers import Engine, import_base, running_engine

STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {flavor = "docker", network = "host", mounts = ["FLAGS"]}
"""
PIPELINE = """
import os, time
from stoker import pipeline, step
from stoker.config import DockerSettings

def note(name):
    descriptor = os.open("FLAGS/begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (name + "\\n").encode())
    os.close(descriptor)
    time.sleep(0.1)

@step(cache=False)
def grow(x: int, text: str) -> int:
    note(f"grow {x}")
    return x + 1

@step(cache=False)
def part(n: int, x: int) -> str:
    note(f"part {n}")
    return str(n) * 5000

@step(cache=False)
def total(parts: list[str], x: int) -> int:
    note("total")
    return sum(len(one) for one in parts) + x

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def both():
    x = 0
    for _ in range(6):
        x = grow(x, "t" * 5000)
    return total([part(n, x) for n in range(6)], x)

if __name__ == "__main__":
    both()
"""
STEPS = [*(f"grow {x}" for x in range(6)), *(f"part {n}" for n in range(6)), "total"]
TOTAL = 6 * 5000 + 6


class Storm:
    """Runs in a folder, on one engine."""

    def __init__(self, folder: Path, engine: Engine, image: str, seed: int) -> None:
        self.folder = folder
        self.engine = engine
        self.random = random.Random(seed)
        self.flags = folder / "flags"
        self.flags.mkdir()
        self.kills = 0
        (folder / "stoker.toml").write_text(STACK.replace("FLAGS", str(self.flags)))
        (folder / "both.py").write_text(PIPELINE.replace("FLAGS", str(self.flags)).replace("BASE", image))
        self.environment = {**os.environ, **engine.environment, "STOKER_HOME": str(folder / "home")}

    def start(self, run: str) -> subprocess.Popen[bytes]:
        stoker = str(Path(sys.executable).with_name("stoker"))
        command = [stoker, "resume", run] if run else [sys.executable, "both.py"]
        output = (self.folder / "output").open("ab")
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=output, stderr=output)

    def stoker(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("stoker")), *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self) -> list[dict[str, Any]]:
        """All runs, the latest first."""
        rows: list[dict[str, Any]] = json.loads(self.stoker("runs", "--json") or "[]")
        return rows

    def one_run(self, most: int) -> None:
        """One run, killed and resumed until it succeeds; no more is killed after `most` times in all."""
        (self.flags / "begun").write_text("")
        run, longest, earlier = "", 2.5, len(self.rows())
        while True:
            driver = self.start(run)
            try:
                code = driver.wait(self.random.uniform(0.3, longest) if self.kills < most else 300)
            except subprocess.TimeoutExpired:
                driver.send_signal(signal.SIGKILL)
                driver.wait()
                self.kills += 1
                rows = self.rows()
                open_runs = [row["id"] for row in rows if row["status"] != "succeeded"]
                if len(rows) > earlier and not open_runs:
                    # It was killed after it had recorded the run's success: what is left is for `stoker gc`.
                    self.stoker("gc")
                    break
                run = open_runs[0] if open_runs else ""
                longest += 0.1
                continue
            text = (self.folder / "output").read_text()
            assert code == 0, text[-4000:]
            break
        begun = Counter((self.flags / "begun").read_text().splitlines())
        assert begun == Counter(STEPS), f"seed: {begun}"
        last = self.rows()[0]
        assert last["status"] == "succeeded", last
        script = "import stoker, sys; print(stoker.Client().run(sys.argv[1]).steps['total'].output.load())"
        printed = subprocess.run(
            [sys.executable, "-c", script, last["id"]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert int(printed) == TOTAL, printed
        containers = self.engine.run("ps", "--all", "--format", "{{.Names}}").stdout.split()
        folders = [
            *(self.folder / "home/scratch/containers").iterdir(),
            *(self.folder / "home/artifacts/jobs").iterdir(),
        ]
        assert not containers and not folders, (containers, folders)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30)
    given = parser.parse_args()
    with running_engine() as engine, tempfile.TemporaryDirectory(prefix="stoker-storm-") as folder:
        storm = Storm(Path(folder), engine, import_base(engine), given.seed)
        runs, began = 0, time.monotonic()
        while storm.kills < given.kills:
            storm.one_run(given.kills)
            runs += 1
            print(f"{runs} runs, {storm.kills} drivers killed, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
