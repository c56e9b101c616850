"""Drivers that are killed at random moments while their run goes on at AWS Batch: `make storm-batch SEED=1 N=20`.

Each run is a chain and a fan-out, whose containers moto runs, with our double before it. Its driver is killed after a
random time, `stoker resume` takes its place, and is killed, until the run is over; every second run has calls that AWS
throttles. Each step leaves a line when it begins and one when it ends: each must be there once, and no job with
Stoker's tag may go on.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from tests.aws_batch.cluster import BatchAccount, running
from tests.servers.containers import import_base, running_engine

LINKS = 2
PARTS = 3
PIPELINE = """
import time
from stoker import pipeline, step

def line(text):
    with open("{lines}", "a") as file:
        file.write(text + "\\n")

@step(cache=False)
def link(name: str, n: int) -> int:
    line(f"begin {{name}}")
    time.sleep(0.2)
    line(f"end {{name}}")
    return n + 1

@step(cache=False)
def part(n: int) -> int:
    line(f"begin part {{n}}")
    time.sleep(0.4)
    line(f"end part {{n}}")
    return n

@step(cache=False)
def numbers(n: int) -> list[int]:
    line("begin numbers")
    line("end numbers")
    return list(range(n, n + {parts}))

@pipeline
def chain():
    n = 0
    for number in range({links}):
        n = link(f"link {{number}}", n)
    return part.map(numbers(n))

if __name__ == "__main__":
    chain()
"""


def one(folder: Path, account: BatchAccount, kills: int, chance: random.Random, *, unlucky: bool) -> dict[str, Any]:
    """One run with so many killed drivers at most; what of it was wrong."""
    shared = folder / "shared"
    shared.mkdir(parents=True)
    lines = shared / "lines"
    lines.touch()
    stack = account.stack(f"b-{uuid.uuid4().hex[:12]}")
    (folder / "stoker.toml").write_text(
        stack.replace("host_volumes = {", f'host_volumes = {{"{shared}" = "{shared}", ')
    )
    (folder / "train.py").write_text(PIPELINE.format(lines=lines, links=LINKS, parts=PARTS))
    environment = {**os.environ, **account.environment, "STOKER_HOME": str(folder / "home"), "STOKER_OFFLINE": "1"}
    killed, command = 0, ["train.py"]
    while True:
        if unlucky:
            account.control(faults=chance.randrange(6))
        with (folder / "output").open("a") as output:
            driver = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=output
            )
        if killed < kills:
            try:
                driver.wait(chance.uniform(1.0, 15.0))
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
                killed += 1
                if _runs(folder, environment):
                    command = ["-m", "stoker", "resume", "last"]
                continue
        driver.wait(600)
        break
    wrong = [f"the last driver ended with {driver.returncode}"] if driver.returncode else []
    counts = collections.Counter(lines.read_text().splitlines())
    wrong += [f"{count} times: {text}" for text, count in counts.items() if count != 1]
    expected = 2 * (LINKS + PARTS + 1)
    if len(counts) != expected:
        wrong.append(f"{len(counts)} lines instead of {expected}")
    account.control(faults=0)
    end = time.monotonic() + 60.0
    while account.live() and time.monotonic() < end:
        time.sleep(0.2)
    wrong += [f"goes on: {row['jobName']}" for row in account.live()]
    return {"kills": killed, "wrong": wrong}


def _runs(folder: Path, environment: dict[str, str]) -> bool:
    """Whether the store knows a run."""
    command = [sys.executable, "-m", "stoker", "runs", "--json"]
    listed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return listed.returncode == 0 and listed.stdout.strip() not in ("", "[]")


def main() -> None:
    """Storm until so many drivers are killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    words = parser.parse_args()
    chance = random.Random(words.seed)
    killed, runs, bad = 0, 0, []
    with tempfile.TemporaryDirectory() as scratch, running_engine() as engine:
        import_base(engine)
        with running(Path(scratch), engine) as account:
            while killed < words.kills:
                folder = Path(scratch) / f"run-{runs}"
                outcome = one(folder, account, min(3, words.kills - killed), chance, unlucky=runs % 2 == 1)
                killed, runs = killed + outcome["kills"], runs + 1
                print(f"run {runs}: {outcome}", flush=True)
                if outcome["wrong"]:
                    bad.append(outcome)
                    print((folder / "output").read_text()[-4000:], flush=True)
    print(f"{killed} drivers killed in {runs} runs with seed {words.seed}: {len(bad)} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
