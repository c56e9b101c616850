"""Drivers that are killed at random moments while their run goes on elsewhere: what the storms of platforms share.

Each run is a chain and a fan-out. Its driver is killed after a random time, `stoker resume` takes its place, and is
killed, until the run is over. Each step leaves a line when it begins and one when it ends: each must be there once.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

PIPELINE = """
import os, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

def line(text):
    file = os.open("{lines}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (text + "\\n").encode())
    os.close(file)

@step(cache=False, resources=ResourceSettings(**{resources}))
def link(name: str, n: int, padding: str) -> int:
    line(f"begin {{name}}")
    time.sleep(0.2)
    line(f"end {{name}}")
    return n + 1

@step(cache=False)
def numbers(n: int) -> list[int]:
    line("begin numbers")
    line("end numbers")
    return list(range(n, n + {parts}))

@step(cache=False, resources=ResourceSettings(**{resources}))
def part(n: int) -> str:
    line(f"begin part {{n}}")
    time.sleep(0.4)
    line(f"end part {{n}}")
    return str(n) * 5000

@pipeline
def chain():
    n = 0
    for number in range({links}):
        n = link(f"link {{number}}", n, "t" * 5000)
    return part.map(numbers(n))

if __name__ == "__main__":
    chain()
"""


@attrs.frozen(kw_only=True)
class StormRun:
    """A run in a folder, with its stack and its environment."""

    folder: Path
    stack: str
    lines: Path
    """Where its steps leave their lines."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    links: int = 6
    parts: int = 6
    resources: Mapping[str, Any] = attrs.field(factory=dict)
    """What each step asks for."""
    seconds: tuple[float, float] = (0.3, 6.0)
    """Between these, a driver is killed."""

    program: str = PIPELINE
    count: int = 0
    """Lines that its steps leave; 0 for those of `PIPELINE`."""

    def write(self) -> None:
        """The project."""
        self.lines.touch()
        (self.folder / "stoker.toml").write_text(self.stack)
        words = {"links": self.links, "parts": self.parts, "resources": dict(self.resources)}
        (self.folder / "train.py").write_text(self.program.format(lines=self.lines, **words))

    def drive(self, kills: int, chance: random.Random, before: Callable[[], object] = lambda: None) -> tuple[int, int]:
        """Drive the run to its end: how many drivers were killed, at most `kills`, and how the last one ended."""
        killed, command = 0, ["train.py"]
        while True:
            before()
            with (self.folder / "output").open("a") as output:
                driver = subprocess.Popen(
                    [sys.executable, *command], cwd=self.folder, env=self._variables, stdout=output, stderr=output
                )
            if killed == kills:
                return killed, driver.wait(600)
            try:
                return killed, driver.wait(chance.uniform(*self.seconds))
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
                killed += 1
                if self.runs():
                    command = ["-m", "stoker", "resume", "last"]

    def faults(self) -> list[str]:
        """What is wrong with the lines of a run that is over."""
        counts = collections.Counter(self.lines.read_text().splitlines())
        wrong = [f"{count} times: {text}" for text, count in counts.items() if count != 1]
        expected = self.count or 2 * (self.links + self.parts + 1)
        return wrong if len(counts) == expected else [*wrong, f"{len(counts)} lines instead of {expected}"]

    def play(self, kills: int, chance: random.Random, before: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """The run with so many killed drivers at most, and what of it was wrong; `before` is called for each driver."""
        self.write()
        killed, code = self.drive(kills, chance, before)
        wrong = [f"the last driver ended with {code}"] if code else []
        return {"kills": killed, "wrong": wrong + self.faults()}

    def runs(self) -> list[dict[str, Any]]:
        """The runs that the project's store knows."""
        done = self.stoker("runs", "--json")
        return list(json.loads(done.stdout)) if done.returncode == 0 and done.stdout.strip() else []

    def stoker(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        command = [sys.executable, "-m", "stoker", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self._variables, capture_output=True, text=True, check=False
        )

    @property
    def _variables(self) -> dict[str, str]:
        home = str(self.folder / "home")
        return {**os.environ, **self.environment, "STOKER_HOME": home, "STOKER_OFFLINE": "1"}


def storm(
    kills: int, seed: int, folder: Path, one: Callable[[Path, int, random.Random, int], dict[str, Any]]
) -> tuple[int, int, int]:
    """Play runs, each in a folder and with a number, until so many drivers were killed; how many were, in how many
    runs, and in how many something was wrong."""
    chance = random.Random(seed)
    killed = number = bad = 0
    while killed < kills:
        place = folder / str(number)
        place.mkdir(parents=True)
        outcome = one(place, min(4, kills - killed), chance, number)
        print(json.dumps(outcome), flush=True)
        if outcome["wrong"]:
            print((place / "output").read_text()[-4000:], flush=True)
        killed, number, bad = killed + outcome["kills"], number + 1, bad + bool(outcome["wrong"])
    return killed, number, bad


def options(default: int, *, name: str = "--kills") -> argparse.Namespace:
    """What a storm's command line takes: `kills` and `seed`."""
    parser = argparse.ArgumentParser()
    parser.add_argument(name, dest="kills", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def summary(outcome: tuple[int, int, int], **more: Any) -> bool:
    """Print how a storm ended; whether anything was wrong."""
    killed, runs, bad = outcome
    print(json.dumps({"killed": killed, "runs": runs, "runs with faults": bad, **more}), flush=True)
    return bool(bad)
