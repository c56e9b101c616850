"""What a run's record keeps of a step on Kubernetes beside its end, and what its plan says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_runs import STACK, nothing_left, start, waits

PIPELINES = """
import os, sys, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(cache=False)
def wait(flag: str) -> str:
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return "seen"

@step(cache=False, resources=ResourceSettings(gpu_count=16))
def huge() -> int:
    return 1

@pipeline
def long(flag: str):
    return wait(flag)

@pipeline
def never():
    return huge()

if __name__ == "__main__":
    never() if sys.argv[1] == "never" else long(sys.argv[1])
"""


@pytest.fixture
def kube(project: Any, cluster: LocalCluster) -> Any:
    """A project whose stack is the cluster."""
    stack = STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable)
    return project.write({"stoker.toml": stack, "train.py": PIPELINES})


def test_a_node_that_is_silent_is_recorded_and_its_step_goes_on(
    kube: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Where all nodes are silent, nothing is evicted: the step goes on, and its end is told when its node is back."""
    flag = tmp_path / "flag"
    driver = start(kube, str(flag))
    cluster.wait(lambda: waits(kube), 120.0)
    names = [node["metadata"]["name"] for node in cluster.get("/api/v1/nodes")["items"]]
    for name in names:
        cluster.lose_node(name)
    words = "SELECT data FROM events WHERE kind = 'node-silent'"
    rows = cluster.wait(lambda: kube.rows(words), 120.0)
    message = json.loads(rows[0]["data"])["message"]
    assert message.startswith(
        ("the node cpu-node-1 does not answer since", "the node gpu-node-1 does not answer since")
    )
    for name in names:
        cluster.answer_node(name)
    flag.touch()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    assert kube.client().run("last").steps["wait"].output.load() == "seen"
    assert len(kube.rows(words)) == 1, "it is recorded once"
    cluster.wait(lambda: nothing_left(cluster))


def test_a_plan_that_no_node_can_run_is_refused_with_the_figures(kube: Any, cluster: LocalCluster) -> None:
    refused = kube.run("train.py", "never", code=3)
    assert "STK285" in refused.stderr
    assert "asks for 16 × nvidia.com/gpu: the largest node has 8" in refused.stderr
    assert not [name for name in cluster.counts() if name.startswith("create jobs")]
