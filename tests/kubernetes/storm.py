"""Drivers that are killed at random moments while their run goes on in a cluster: `make storm-kubernetes SEED=1 N=20`.

Every second run has bad luck with its requests, too. No Job, pod or Secret may be left.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.kubernetes.drivers import PLACES, stack
from tests.kubernetes.server.cluster import LocalCluster
from tests.servers.storms import StormRun, options, summary
from tests.servers.storms import storm as storm_of

LEFT = (*PLACES, "/api/v1/namespaces/default/configmaps?labelSelector=stoker/worker")


def one(folder: Path, cluster: LocalCluster, kills: int, chance: random.Random, *, unlucky: bool) -> dict[str, Any]:
    """One run with so many killed drivers at most; what of it was wrong."""
    cluster.reset()
    if unlucky:
        cluster.fault("server-error", share=0.03)
        cluster.fault("reset", share=0.05)
        cluster.fault("drop-watch", method="WATCH", seconds=0.7)
    run = StormRun(
        folder=folder,
        stack=stack(cluster, places=f'artifact_store = "{folder}/store"'),
        lines=folder / "lines",
        links=4,
        parts=5,
        seconds=(0.5, 4.0),
    )
    outcome = run.play(kills, chance)
    hits = {hit["kind"]: hit["hits"] for hit in cluster.clear_faults()}
    # A driver that was killed when all was recorded leaves its last Job to `stoker gc`.
    swept = run.stoker("gc")
    if swept.returncode:
        outcome["wrong"].append(f"stoker gc ended with {swept.returncode}: {swept.stderr}")
    try:
        cluster.wait(lambda: not remaining(cluster), 30.0)
    except AssertionError:
        outcome["wrong"].append(f"left: {remaining(cluster)}")
    return {**outcome, "hits": hits}


def remaining(cluster: LocalCluster) -> list[str]:
    """What of runs and of the worker is there."""
    return [
        f"{path.rpartition('/')[2]}/{one['metadata']['name']}" for path in LEFT for one in cluster.get(path)["items"]
    ]


def storm(kills: int, seed: int) -> tuple[int, int, int]:
    """Storm until so many drivers were killed; how many were, in how many runs, and in how many something was wrong."""
    with tempfile.TemporaryDirectory(prefix="k8s-") as folder:
        cluster = LocalCluster.start(Path(folder) / "cluster")
        try:
            return storm_of(
                kills,
                seed,
                Path(folder),
                lambda place, most, chance, number: one(place, cluster, most, chance, unlucky=number % 2 == 1),
            )
        finally:
            cluster.close()


if __name__ == "__main__":
    given = options(20)
    sys.exit(summary(storm(given.kills, given.seed)))
