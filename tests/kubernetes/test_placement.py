"""Accelerators by their model: what the plan says of nodes, and where the pods go."""

from __future__ import annotations

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
import os
import sys
from stoker import pipeline, step
from stoker.config import KubernetesSettings, ResourceSettings

where = KubernetesSettings(env={"NODE": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}})

@step(cache=False, settings={"orchestrator": where})
def train() -> str:
    return os.environ["NODE"]

@pipeline
def training(accelerators: str):
    asked = ResourceSettings(accelerators=accelerators.split("+"), memory="1GB", cpu_count=0.2)
    return train.with_options(resources=asked)()

if __name__ == "__main__":
    run = training(sys.argv[1])
    print("trained on", run.steps["train"].output.load())
"""
A100 = {"node.kubernetes.io/instance-type": "p4de.24xlarge"}


def test_a_model_is_a_nodes_label(project: Any, cluster: LocalCluster) -> None:
    """GPU feature discovery's label on one node, nothing but an instance type on the other, and none has an L4."""
    cluster.add_node("a100-1", labels=A100, taints=[{"key": "sku", "value": "gpu", "effect": "NoSchedule"}], gpus=8)
    stack = STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable)
    project.write({"stoker.toml": stack, "train.py": TRAIN})

    def trained(accelerators: str) -> str:
        simulated = {"STOKER_SIMULATE": "2x" + accelerators.partition(":")[0].partition("+")[0]}
        return str(project.run("train.py", accelerators, env=simulated, timeout=120.0).stdout)

    assert "trained on gpu-node-1" in trained("H100:2")
    assert "trained on a100-1" in trained("A100-80GB:2")
    refused = project.run("train.py", "L4:2", code=3).stderr
    for words in ("no label that names L4", "H100, not L4", "A100-80GB, not L4"):
        assert words in refused, refused
