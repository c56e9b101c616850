"""A step whose node has a faulty device is tried again on another node of the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.kubernetes.server.cluster import LocalCluster

STACK = """
stack = "cluster"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
shares_files = true
"""
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
BAD = {"STOKER_SIMULATE": "2xH100;bad=0@gpu-node-1"}


def test_a_faulty_node_is_left_out(project: Any, cluster: LocalCluster) -> None:
    """The other node takes no pods until the first attempt has begun on the faulty one."""
    cluster.add_node("gpu-node-2", gpus=8)
    cluster.cordon("gpu-node-2")
    project.write(
        {"stoker.toml": STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable), "train.py": TRAIN}
    )
    environment = {**os.environ, **BAD, "STOKER_HOME": str(project.home)}
    with subprocess.Popen(
        [sys.executable, "train.py"], cwd=project.folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as driver:
        pods = "/api/v1/namespaces/default/pods"
        cluster.wait(lambda: any(pod["spec"].get("nodeName") for pod in cluster.get(pods)["items"]))
        cluster.cordon("gpu-node-2", unschedulable=False)
        _, said = driver.communicate(timeout=120)
    assert driver.returncode == 0, said
    assert "train[0]: node gpu-node-1 (" in said and "is left out for the rest of this run: gpu-hardware" in said
    first, second = project.client().run("last").steps["train"][0].attempts
    assert (first.status, first.failure.cause, second.status) == ("failed", "gpu-hardware", "succeeded")
    assert (first.placement.node, second.placement.node) == ("gpu-node-1", "gpu-node-2")
    (document,) = json.loads(project.stoker("show", "last", "--json").stdout)["left_out"]
    assert (document["place"], document["cause"]) == ("gpu-node-1", "gpu-hardware")


def test_where_no_other_node_is_left_that_is_said(project: Any, cluster: LocalCluster) -> None:
    project.write(
        {"stoker.toml": STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable), "train.py": TRAIN}
    )
    done = project.run("train.py", env=BAD, code=1, timeout=120.0)
    assert "no other node is left beside gpu-node-1" in done.stderr
    causes = [attempt.failure.cause for attempt in project.client().run("last").steps["train"][0].attempts]
    assert causes[0] == "gpu-hardware"
