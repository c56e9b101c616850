"""The cluster of the tests does what the recorded one did: the same requests lead to the same states and events."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.kubernetes.recordings import names, recording
from tests.kubernetes.replay import Replay, differences, reply_differences
from tests.kubernetes.server.cluster import GPU_LABELS, LocalCluster
from tests.kubernetes.server.objects import Object

NODE: Object = {
    "name": "gpu-node-1",
    "capacity": {"cpu": "64", "memory": "64Gi", "ephemeral-storage": "200Gi", "pods": "400", "nvidia.com/gpu": "8"},
    "labels": GPU_LABELS,
}
"""As the recorded node, but with room for all scenarios at once."""
SPEED = 8.0
"""A back-off must be longer than what the scenarios' commands do meanwhile."""
GPUS = ["06-queued-for-gpus", "12-preempted", "14-indexed-gang-succeeds", "15e-gang-partly-scheduled"]
"""Scenarios that need the whole node's GPUs."""
NODES = ["16-node-lost-then-back", "16b-node-removed", "16c-only-node-lost-then-back"]
ALONE = [*GPUS, *NODES, "26-rejected-by-kubelet"]
OTHERWISE = ["18-forbidden", "19-invalid-objects", "21-watch-expired-and-ended"]
"""Scenarios that are about replies only; 21 is in test_server.py."""
TOGETHER = [name for name in names() if name not in ALONE + OTHERWISE]
BODIES_LEFT_OUT = ("not JSON", "a Job with an env value of")
"""Notes of requests whose body was not recorded."""


@pytest.fixture
def bare(cluster: LocalCluster) -> LocalCluster:
    """A cluster with one node and the scenarios' priority classes."""
    prepare(cluster, [NODE])
    return cluster


def prepare(cluster: LocalCluster, nodes: list[Object], speed: float = SPEED) -> None:
    """Begin anew with these nodes."""
    cluster.reset(nodes, speed=speed)
    for name, value in (("low", 100), ("urgent", 1000)):
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        cluster.create(path, {"metadata": {"name": name}, "value": value})


def played(cluster: LocalCluster, name: str, scratch: Path, haste: float = 4.0) -> list[str]:
    """What one scenario does otherwise here than recorded."""
    replay = Replay(cluster, recording(name), scratch, haste)
    seen = replay.run()
    return [*differences(recording(name), seen), *reply_differences(replay), *replay.flaws()]


def test_scenarios_side_by_side(bare: LocalCluster, tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(TOGETHER)) as threads:
        found = dict(zip(TOGETHER, threads.map(lambda name: played(bare, name, tmp_path / "together"), TOGETHER)))
    assert len(found) >= 48
    different = {name: lines for name, lines in found.items() if lines}
    # On a busy machine one of the fifty may take a state for another's delay; alone it does not.
    for name in different:
        prepare(bare, [NODE])
        different[name] = played(bare, name, tmp_path / "alone")
    assert not {name: lines for name, lines in different.items() if lines}


@pytest.mark.parametrize("name", [*GPUS, "26-rejected-by-kubelet"])
def test_scenarios_that_need_all_gpus(bare: LocalCluster, tmp_path: Path, name: str) -> None:
    assert not played(bare, name, tmp_path)


@pytest.mark.parametrize("name", NODES)
def test_nodes_that_fall_silent_or_go(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    # In the first scenario there are two more nodes, which have room for nothing.
    others = [{"name": f"other-{number}", "capacity": {}} for number in (1, 2)] if name == NODES[0] else []
    prepare(cluster, [NODE, *others], speed=20.0)
    assert not played(cluster, name, tmp_path, haste=20.0)


def test_what_an_account_may_not_do(bare: LocalCluster, tmp_path: Path) -> None:
    scenario = copy.copy(recording("18-forbidden"))
    replay = Replay(bare, scenario, tmp_path)
    bare.create("/api/v1/namespaces", {"metadata": {"name": replay.namespace}})
    path = f"/api/v1/namespaces/{replay.namespace}"
    bare.create(f"{path}/serviceaccounts", {"metadata": {"name": "viewer"}})
    bare.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{replay.namespace}/rolebindings",
        {
            "metadata": {"name": "viewer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": replay.namespace}],
        },
    )
    replay.send_all()
    assert len(replay.replies) == 11
    assert not reply_differences(replay)
    reviews = [(request, body) for request, _, body in replay.replies if "accessreviews" in request["path"]]
    assert len(reviews) == 3
    assert all(body["status"] == request["reply"]["status"] for request, body in reviews)


def test_what_is_invalid(bare: LocalCluster, tmp_path: Path) -> None:
    replay = Replay(bare, recording("19-invalid-objects"), tmp_path)
    bare.create("/api/v1/namespaces", {"metadata": {"name": replay.namespace}})
    replay.send_all(leave_out=BODIES_LEFT_OUT)
    assert len(replay.replies) >= 35
    assert not reply_differences(replay)
    path = f"/apis/batch/v1/namespaces/{replay.namespace}/jobs"
    status, body = bare.request("POST", path, "{not json")
    assert (status, body["reason"]) == (400, "BadRequest")
    status, body = bare.request("POST", path, {"kind": "Job", "metadata": {"annotations": {"a": "x" * 4_000_000}}})
    assert (status, body["reason"]) == (413, "RequestEntityTooLarge")
