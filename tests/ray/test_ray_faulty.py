"""A step on a node with a faulty device is tried again on another node of the cluster, alone and as part of a gang."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from tests.ray.bench import Bench
from tests.servers.raycluster import TOKEN, RayCluster

from stoker.backends.ray.jobs import Jobs
from stoker.backends.ray.settings import RaySettings
from stoker.backends.ray.words import NODE_LABEL, labels_without
from stoker.core.resources import ResourceSettings
from stoker.launchers.options import resolve_launch

TRAIN = """
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

ONE = ResourceSettings(gpu_count=2, cpu_count=0.5)

@step(resources=ONE, cache=False)
def train(number: int) -> str:
    return context.devices[0].uuid

@pipeline
def alone():
    train.map([0, 1])

if __name__ == "__main__":
    alone()
"""


@pytest.fixture
def nodes(raying: Any, ray_cluster: RayCluster) -> list[str]:
    """Ray's ids of the nodes with GPUs."""
    raying.write({"train.py": TRAIN})
    jobs = Jobs(RaySettings(address=ray_cluster.dashboard, token="env:TOKEN_OF_RAY"), {"TOKEN_OF_RAY": TOKEN})
    try:
        return [one["node_id"] for one in jobs.nodes() if one["resources_total"].get("GPU")]
    finally:
        jobs.close()


def test_a_faulty_node_is_left_out(raying: Any, nodes: list[str]) -> None:
    bad = nodes[0]
    done = raying.run("train.py", env={"STOKER_SIMULATE": f"2xH100;bad=0@{bad}"}, timeout=240.0)
    run = raying.client().run("last")
    attempts = [[attempt.status for attempt in element.attempts] for element in run.steps["train"]]
    assert sorted(map(len, attempts)) in ([1, 2], [2, 2]) and all(one[-1] == "succeeded" for one in attempts)
    [place] = run.left_out
    assert (place.place, place.kind, place.cause) == (bad, "node", "gpu-hardware") and place.host
    assert f"node {bad} ({place.host}) is left out for the rest of this run: gpu-hardware" in done.stderr


def test_a_gang_is_kept_from_nodes_and_says_which_one_refused(
    bench: Bench, nodes: list[str], ray_cluster: RayCluster
) -> None:
    two = ResourceSettings(nodes=2, gpu_count=2, cpu_count=0.5)
    launch = resolve_launch({"launcher": "single", "outputs": "all"})
    bench.site = attrs.evolve(bench.site, simulate=f"2xH100;bad=0@{nodes[1]}")
    backend = bench.backend()
    gang = bench.job("machine", resources=two, launch=launch)
    refused = bench.over(backend, gang)
    assert refused.result is not None and refused.result.error is not None
    assert (refused.cause, refused.result.error.machine) == ("gpu-hardware", nodes[1])
    assert refused.lease is not None and {refused.lease.node, refused.lease.others[0].node} == set(nodes)
    assert not backend.has_other_place(gang.step, [nodes[1]]), "two nodes are needed, and one is left"
    third = ray_cluster.add(num_cpus=2, num_gpus=2)
    try:
        assert backend.has_other_place(gang.step, [nodes[1]])
        again = attrs.evolve(bench.job("machine", resources=two, launch=launch, attempt=2), avoid=(nodes[1],))
        assert set(bench.output(bench.over(backend, again))) == {nodes[0], third}
    finally:
        ray_cluster.kill(third)


def test_nodes_are_left_out_beside_what_a_person_selects() -> None:
    assert labels_without({"zone": "a"}, ()) == {"zone": "a"}
    assert labels_without({"zone": "a"}, ("x", "y")) == {"zone": "a", NODE_LABEL: "!in(x,y)"}
    assert labels_without({NODE_LABEL: "!in(x, z)"}, ("x", "y")) == {NODE_LABEL: "!in(x,z,y)"}
    assert labels_without({NODE_LABEL: "!x"}, ("y",)) == {NODE_LABEL: "!in(x,y)"}
    assert labels_without({NODE_LABEL: "in(x,y)"}, ("y",)) == {NODE_LABEL: "in(x)"}
