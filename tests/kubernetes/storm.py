"""Drivers that are killed at random moments while their run goes on in a cluster: `make storm-kubernetes SEED=1 N=20`.

Each run is a chain and a fan-out. Its driver is killed after a random time, `stoker resume` takes its place, and is
killed, until the run is over; every second run has bad luck with its requests, too. Each step leaves a line when it
begins and one when it ends: each must be there once, and no Job, pod or Secret may be left.
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
from pathlib import Path
from typing import Any

from tests.kubernetes.server.cluster import LocalCluster

LINKS = 4
PARTS = 5
STACK = """
stack = "cluster"
[stacks.cluster]
artifact_store = "{store}"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
shares_files = true
"""
PIPELINE = """
import sys, time
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


def one(folder: Path, cluster: LocalCluster, kills: int, chance: random.Random, *, unlucky: bool) -> dict[str, Any]:
    """One run with so many killed drivers at most; what of it was wrong."""
    folder.mkdir(parents=True)
    home, lines = folder / "home", folder / "lines"
    cluster.reset()
    if unlucky:
        cluster.fault("server-error", share=0.03)
        cluster.fault("reset", share=0.05)
        cluster.fault("drop-watch", method="WATCH", seconds=0.7)
    (folder / "stoker.toml").write_text(
        STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable, store=folder / "store")
    )
    (folder / "train.py").write_text(PIPELINE.format(lines=lines, links=LINKS, parts=PARTS))
    lines.touch()
    environment = {**os.environ, "STOKER_HOME": str(home), "STOKER_OFFLINE": "1"}
    killed, command = 0, ["train.py"]
    while True:
        with (folder / "output").open("a") as output:
            driver = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=output
            )
        if killed < kills:
            try:
                driver.wait(chance.uniform(0.5, 4.0))
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
                killed += 1
                if _runs(folder, environment):
                    command = ["-m", "stoker", "resume", "last"]
                continue
        driver.wait(300)
        break
    wrong = [f"the last driver ended with {driver.returncode}"] if driver.returncode else []
    counts = collections.Counter(lines.read_text().splitlines())
    wrong += [f"{count} times: {text}" for text, count in counts.items() if count != 1]
    expected = 2 * (LINKS + PARTS + 1)
    if len(counts) != expected:
        wrong.append(f"{len(counts)} lines instead of {expected}")
    hits = {hit["kind"]: hit["hits"] for hit in cluster.clear_faults()}
    # A driver that was killed when all was recorded leaves its last Job to `stoker gc`.
    subprocess.run([sys.executable, "-m", "stoker", "gc"], cwd=folder, env=environment, capture_output=True, check=True)
    try:
        cluster.wait(lambda: not remaining(cluster), 30.0)
    except AssertionError:
        wrong.append(f"left: {remaining(cluster)}")
    return {"kills": killed, "hits": hits, "wrong": wrong}


def remaining(cluster: LocalCluster) -> list[str]:
    """Jobs, pods, Secrets and the worker's config maps that are there."""
    paths = (
        "/apis/batch/v1/namespaces/default/jobs",
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/configmaps?labelSelector=stoker/worker",
    )
    return [
        f"{path.rpartition('/')[2]}/{one['metadata']['name']}" for path in paths for one in cluster.get(path)["items"]
    ]


def _runs(folder: Path, environment: dict[str, str]) -> list[Any]:
    """The runs that the project's store knows."""
    command = [sys.executable, "-m", "stoker", "runs", "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return list(json.loads(done.stdout)) if done.returncode == 0 and done.stdout.strip() else []


def storm(kills: int, seed: int) -> tuple[int, int, int]:
    """Storm until so many drivers were killed; how many were, in how many runs, and in how many something was wrong."""
    chance = random.Random(seed)
    killed = number = bad = 0
    with tempfile.TemporaryDirectory(prefix="k8s-") as folder:
        cluster = LocalCluster.start(Path(folder) / "cluster")
        try:
            while killed < kills and not bad:
                outcome = one(
                    Path(folder) / str(number), cluster, min(4, kills - killed), chance, unlucky=number % 2 == 1
                )
                print(json.dumps(outcome), flush=True)
                if outcome["wrong"]:
                    print((Path(folder) / str(number) / "output").read_text()[-3000:], flush=True)
                killed, number, bad = killed + outcome["kills"], number + 1, bad + bool(outcome["wrong"])
        finally:
            cluster.close()
    return killed, number, bad


def main() -> int:
    """Storm; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    killed, number, bad = storm(options.kills, options.seed)
    print(json.dumps({"killed": killed, "runs": number, "runs with faults": bad}), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
