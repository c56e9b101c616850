"""Drivers that are killed at random moments while their run goes on at Ray: `python -m tests.ray.storm --drivers 20`.

Each run is a chain and a fan-out. Its driver is killed after a random time, `stoker resume` takes its place, and is
killed, until the run is over. Each step leaves a line when it begins and one when it ends: each must be there once, and
nothing may be left at Ray or on the disk.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.raycluster import TOKEN, running
from tests.servers.s3 import running as s3_running

from stoker.backends.ray.jobs import OVER, Jobs
from stoker.backends.ray.settings import RaySettings

STACK = """
stack = "ray"
[stacks.ray]
orchestrator = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY", shares_files = {shares}{more}}}
artifact_store = "{store}"
"""
PIPELINE = """
import os, sys, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

def line(text):
    with open("{lines}", "a") as file:
        file.write(text + "\\n")

@step(cache=False, resources=ResourceSettings(cpu_count=0.5))
def link(name: str, n: int) -> int:
    line(f"begin {{name}}")
    time.sleep(0.3)
    line(f"end {{name}}")
    return n + 1

@step(cache=False)
def numbers(n: int) -> list[int]:
    line("begin numbers")
    line("end numbers")
    return list(range(n, n + 6))

@step(cache=False, resources=ResourceSettings(cpu_count=0.5))
def part(n: int) -> int:
    line(f"begin part {{n}}")
    time.sleep(0.5)
    line(f"end part {{n}}")
    return n

@pipeline
def chain():
    n = 0
    for number in range(6):
        n = link(f"link {{number}}", n)
    parts = part.map(numbers(n))
    return parts

if __name__ == "__main__":
    chain()
"""


def one(
    folder: Path, address: str, drivers: int, chance: random.Random, *, far: Mapping[str, str], bucket: str
) -> dict[str, Any]:
    """One run with killed drivers; what of it was wrong. `far`: the variables by which nodes reach the bucket."""
    folder.mkdir(parents=True)
    home, lines = folder / "home", folder / "lines"
    store = f"{bucket}/{folder.name}" if far else f"{folder}/store"
    (folder / "stoker.toml").write_text(stack(address, store, far))
    (folder / "train.py").write_text(PIPELINE.format(lines=lines))
    lines.touch()
    environment = {**os.environ, **far, "STOKER_HOME": str(home), "TOKEN_OF_RAY": TOKEN}
    kills, command = 0, ["train.py"]
    while True:
        with (folder / "output").open("a") as output:
            driver = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=output
            )
        if kills < drivers:
            try:
                driver.wait(chance.uniform(0.3, 6.0))
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
                kills += 1
                if (home / "stoker.db").exists() and runs(folder, environment):
                    command = ["-m", "stoker", "resume", "last"]
                continue
        driver.wait(300)
        break
    wrong = [f"the last driver ended with {driver.returncode}"] if driver.returncode else []
    counts = collections.Counter(lines.read_text().splitlines())
    wrong += [f"{count} times: {text}" for text, count in counts.items() if count != 1]
    if len(counts) != 26:
        wrong.append(f"{len(counts)} lines instead of 26")
    # The last driver removes them, unless the one before was killed when all was recorded: then `stoker gc` does.
    folders = len(list((home / "scratch" / "ray").rglob("journal")))
    return {"kills": kills, "far": bool(far), "folders": folders, "wrong": wrong}


def stack(address: str, store: str, far: Mapping[str, str]) -> str:
    """The text of stoker.toml."""
    variables = ", ".join(f'{name} = "{text}"' for name, text in far.items())
    more = f", runtime_env = {{env_vars = {{{variables}}}}}" if far else ""
    return STACK.format(address=address, shares=str(not far).lower(), more=more, store=store)


def runs(folder: Path, environment: dict[str, str]) -> list[Any]:
    """The runs that the project's store knows."""
    command = [sys.executable, "-m", "stoker", "runs", "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return list(json.loads(done.stdout)) if done.returncode == 0 and done.stdout.strip() else []


def busy(address: str) -> int:
    """Ray jobs that are not over, once the last programs have had time to leave."""
    jobs = Jobs(RaySettings(address=address, token="env:TOKEN_OF_RAY"), {"TOKEN_OF_RAY": TOKEN})
    late = time.monotonic() + 30
    try:
        while (count := sum(job["status"] not in OVER for job in jobs.jobs())) and time.monotonic() < late:
            time.sleep(0.2)
    finally:
        jobs.close()
    return count


def main() -> int:
    """Storm until so many drivers were killed; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["TOKEN_OF_RAY"] = TOKEN
    chance = random.Random(options.seed)
    killed, number, bad = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder, running() as cluster, s3_running(Path(folder)) as s3:
        bucket = s3.bucket("storm")
        while killed < options.drivers:
            far = s3.environment if number % 2 else {}
            outcome = one(Path(folder) / str(number), cluster.dashboard, 4, chance, far=far, bucket=bucket)
            print(json.dumps(outcome), flush=True)
            if outcome["wrong"]:
                print((Path(folder) / str(number) / "output").read_text()[-3000:], flush=True)
            killed, number, bad = killed + outcome["kills"], number + 1, bad + bool(outcome["wrong"])
        left = busy(cluster.dashboard)
    print(json.dumps({"killed": killed, "runs": number, "runs with faults": bad, "Ray jobs left": left}), flush=True)
    return 1 if bad or left else 0


if __name__ == "__main__":
    sys.exit(main())
