"""A step whose node has a faulty device is tried again on another node, and the faulty one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.slurm import Cluster

SIMULATED = {"STOKER_SIMULATE": "2xV100;bad=0@n1"}
TRAIN = """
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def train(number: int) -> str:
    return context.devices[0].uuid

@pipeline
def once():
    train.map([0])

if __name__ == "__main__":
    once()
"""


def stack(*nodes: str) -> str:
    """A stack whose jobs go to these nodes, the first one first: the others have features of higher weight."""
    others = ",".join(name for name in ("n1", "n2", "n3", "n4") if name not in nodes)
    return (
        f'stack = "cluster"\n[stacks.cluster]\norchestrator = {{flavor = "slurm", poll = 0.2, exclude = "{others}"}}\n'
    )


@pytest.fixture
def weighted(cluster: Cluster) -> Cluster:
    """The cluster, which fills n1 before n2."""
    cluster.run("scontrol", "update", "nodename=n2", "weight=10")
    return cluster


def last_job(project: Any) -> str:
    """The job of the first element in the table of `stoker show`."""
    shown = project.stoker("show", "last", "--elements").stdout.rpartition("  sent\n")[2]
    row = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["train[0]"])
    return " ".join(row[1:3])


def test_a_faulty_node_is_left_out_and_named(project: Any, weighted: Cluster) -> None:
    project.write({"stoker.toml": stack("n1", "n2"), "train.py": TRAIN})
    done = project.run("train.py", env=SIMULATED)
    assert "train[0]: node n1 is left out for the rest of this run: gpu-hardware" in done.stderr
    element = project.client().run("last").steps["train"][0]
    first, second = element.attempts
    assert (first.status, first.failure.cause, second.status) == ("failed", "gpu-hardware", "succeeded")
    assert "uncorrectable ECC error" in first.failure.message
    assert "the node n1 is left out" in first.failure.advice
    assert second.receipt is not None
    assert (first.placement.node, second.placement.node) == ("n1", "n2")
    assert second.receipt.placement["node"] == "n2"
    assert second.receipt.placement["job"] == second.placement.job
    document = json.loads(project.stoker("show", "last", "--json").stdout)
    assert [(one["place"], one["cause"], one["attempt"]) for one in document["left_out"]] == [("n1", "gpu-hardware", 1)]
    shown = project.stoker("show", "last").stdout
    assert "left out" in shown and "n1" in shown.split("left out")[1]
    assert "node n1" in project.stoker("devices").stdout
    doctor = project.stoker("doctor", code=None).stdout
    assert "node n1" in doctor and "gpu-hardware in attempt 1 of train[0]" in doctor


def test_the_node_of_a_gang_that_refuses_is_named_at_once(project: Any, weighted: Cluster) -> None:
    gang = TRAIN.replace("gpu_count=1)", 'nodes=2, gpu_count=1), launch="single"')
    project.write({"stoker.toml": stack("n1", "n2"), "train.py": gang})
    project.run("train.py", env={"STOKER_SIMULATE": "2xV100;bad=0@n2"}, code=1, timeout=240.0)
    run = project.client().run("last")
    first, second = run.steps["train"][0].attempts
    assert first.failure.cause == "gpu-hardware" and "node 1 of 2 cannot take part" in first.failure.message
    assert [one.place for one in run.left_out] == ["n2"]
    assert second.failure.cause == "refused" and "no other node is left beside n2" in second.failure.message
    assert last_job(project) == first.placement.job, "the refused attempt had none"
