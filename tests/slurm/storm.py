"""Drivers that are killed at random moments while their run goes on at Slurm.

    python -m tests.slurm.storm --seed 1 --kills 60

Each run is a chain, a fan-out and a gang, in pools of jobs or in jobs of their own. Half of the drivers are processes
of this machine: killed by SIGKILL and followed by `stoker resume`. The others are detached: killed, told to leave as
before a time limit, or requeued, and followed by nobody. Each step leaves a line when it begins and one when it ends:
each must be there once, and no job may be left.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from tests.servers.slurm import Cluster, running
from tests.servers.storms import StormRun, options

import stoker
from stoker.store.store import open_store

STACK = """
stack = "cluster"
[stacks.cluster]
orchestrator = {{flavor = "slurm", poll = 0.5, idle_after = "5s", reuse = {reuse}}}
"""
PIPELINE = """
import os, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

def line(text):
    file = os.open("{lines}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (text + "\\n").encode())
    os.close(file)

@step(cache=False)
def link(name: str, n: int) -> int:
    line(f"begin {{name}}")
    time.sleep(0.3)
    line(f"end {{name}}")
    return n + 1

@step(cache=False)
def part(n: int, base: int) -> int:
    line(f"begin part {{n}}")
    time.sleep(0.5)
    line(f"end part {{n}}")
    return base + n

@step(cache=False, resources=ResourceSettings(nodes=2, memory="200MB"))
def gang(parts: list[int]) -> int:
    node = os.environ["SLURM_NODEID"]
    line(f"begin gang {{node}}")
    time.sleep(0.5)
    line(f"end gang {{node}}")
    return sum(parts)

@pipeline
def storm():
    n = 0
    for number in range(4):
        n = link(f"link {{number}}", n)
    gang(part.map(list(range(6)), base=n))

if __name__ == "__main__":
    storm()
"""
LINES = 2 * (4 + 6 + 2)
ENDS = ("kill", "kill", "leave", "requeue")
"""What happens to a detached driver; each is drawn as often as it stands here."""
OVER = 240.0
"""Seconds in which a detached run must be over once its driver is left alone."""


def output(run: StormRun) -> str:
    """What drivers wrote last."""
    files = [run.folder / "output", *run.folder.glob("home/logs/*/driver.out")]
    return "\n".join(file.read_text()[-2000:] for file in files if file.exists())


def detached(run: StormRun, cluster: Cluster, kills: int, chance: random.Random) -> collections.Counter[str]:
    """A run whose drivers are starts of one job; how they ended."""
    done = run.stoker("run", "train.py", "--detach")
    assert done.returncode == 0, done.stderr
    id, job = done.stdout.strip(), done.stderr.partition("Slurm job ")[2].split(",")[0].split()[0]
    client = stoker.Client(store=open_store(home=str(run.folder / "home")))
    ends: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + OVER
    while client.run(id).status in ("running", "interrupted") and time.monotonic() < until:
        time.sleep(chance.uniform(0.5, 6.0))
        processes = cluster.programs(f"stoker resume {id}")
        if ends.total() < kills and processes:
            how = chance.choice(ENDS)
            if how == "kill":
                with contextlib.suppress(psutil.NoSuchProcess):
                    processes[0].kill()
            elif how == "leave":
                cluster.run("scancel", "--batch", "--signal=USR1", job, check=False)
            else:
                cluster.run("scontrol", "requeue", job, check=False)
            ends[how] += 1
            until = time.monotonic() + OVER
    return ends


def left(cluster: Cluster) -> int:
    """Jobs that are not over, once the last ones have had time to leave."""
    late = time.monotonic() + 60
    while (count := sum(job["state"] in ("RUNNING", "PENDING") for job in cluster.jobs())) and time.monotonic() < late:
        time.sleep(0.2)
    return count


def one(folder: Path, cluster: Cluster, chance: random.Random, *, by_itself: bool) -> Mapping[str, Any]:
    """One run with killed drivers, and what of it was wrong."""
    folder.mkdir(parents=True)
    reuse = '"auto"' if chance.random() < 0.7 else "false"
    run = StormRun(
        folder=folder,
        stack=STACK.format(reuse=reuse),
        lines=folder / "lines",
        environment=cluster.environment,
        program=PIPELINE,
        count=LINES,
    )
    run.write()
    kills = chance.randint(2, 4)
    ends = detached(run, cluster, kills, chance) if by_itself else {"kill": run.drive(kills, chance)[0]}
    wrong = [f"the run is {one['status']}: {one['error']}" for one in run.runs() if one["status"] != "succeeded"]
    wrong += run.faults()
    # The last driver removes them, unless the one before was killed when all was recorded: then `stoker gc` does.
    folders = len(list(folder.glob("home/scratch/slurm/*/*")))
    outcome = {"detached": by_itself, "ends": dict(ends), "folders": folders, "wrong": wrong}
    print(json.dumps(outcome), flush=True)
    if wrong:
        print(output(run), flush=True)
    return outcome


def main() -> int:
    """Storm until so many drivers were ended; 1 if anything was wrong."""
    given = options(60)
    chance = random.Random(given.seed)
    ends: collections.Counter[str] = collections.Counter()
    number, bad = 0, 0
    with tempfile.TemporaryDirectory() as folder, running() as cluster:
        while ends.total() < given.kills:
            by_itself = number % 2 == 1
            outcome = one(Path(folder) / str(number), cluster, chance, by_itself=by_itself)
            kind = "detached " if by_itself else "attached "
            ends.update({kind + how: count for how, count in outcome["ends"].items()})
            number, bad = number + 1, bad + bool(outcome["wrong"])
        jobs = left(cluster)
    total = {"ends": dict(sorted(ends.items())), "total": ends.total(), "runs": number, "with faults": bad}
    print(json.dumps({**total, "jobs left": jobs}), flush=True)
    return 1 if bad or jobs else 0


if __name__ == "__main__":
    sys.exit(main())
