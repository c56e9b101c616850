"""Drivers that are killed at random moments while their run goes on at Ray: `python -m tests.ray.storm --drivers 20`.

Half of the runs are on a cluster that shares no folders with the driver. Nothing may be left at Ray or on the disk.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.raycluster import TOKEN, running
from tests.servers.s3 import running as s3_running
from tests.servers.storms import StormRun, options, storm, summary

from stoker.backends.ray.jobs import OVER, Jobs
from stoker.backends.ray.settings import RaySettings

STACK = """
stack = "ray"
[stacks.ray]
orchestrator = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY", shares_files = {shares}{more}}}
artifact_store = "{store}"
"""


def one(
    folder: Path, address: str, kills: int, chance: random.Random, *, far: Mapping[str, str], bucket: str
) -> dict[str, Any]:
    """One run with killed drivers; what of it was wrong. `far`: the variables by which nodes reach the bucket."""
    store = f"{bucket}/{folder.name}" if far else f"{folder}/store"
    run = StormRun(
        folder=folder,
        stack=stack(address, store, far),
        lines=folder / "lines",
        environment={**far, "TOKEN_OF_RAY": TOKEN},
        resources={"cpu_count": 0.5},
    )
    outcome = run.play(kills, chance)
    # The last driver removes them, unless the one before was killed when all was recorded: then `stoker gc` does.
    folders = len(list((folder / "home" / "scratch" / "ray").rglob("journal")))
    return {**outcome, "far": bool(far), "folders": folders}


def stack(address: str, store: str, far: Mapping[str, str]) -> str:
    """The text of stoker.toml."""
    variables = ", ".join(f'{name} = "{text}"' for name, text in far.items())
    more = f", runtime_env = {{env_vars = {{{variables}}}}}" if far else ""
    return STACK.format(address=address, shares=str(not far).lower(), more=more, store=store)


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
    given = options(20, name="--drivers")
    os.environ["TOKEN_OF_RAY"] = TOKEN
    with tempfile.TemporaryDirectory() as scratch, running() as cluster, s3_running(Path(scratch)) as s3:
        bucket = s3.bucket("storm")

        def play(folder: Path, kills: int, chance: random.Random, number: int) -> dict[str, Any]:
            far = s3.environment if number % 2 else {}
            return one(folder, cluster.dashboard, kills, chance, far=far, bucket=bucket)

        outcome = storm(given.kills, given.seed, Path(scratch) / "runs", play)
        left = busy(cluster.dashboard)
    return int(summary(outcome, **{"Ray jobs left": left}) or bool(left))


if __name__ == "__main__":
    sys.exit(main())
