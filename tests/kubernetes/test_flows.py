"""`@kubernetes` and `--with kubernetes:…` of flows: each word of Metaflow's decorator, on real processes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster

STACK = """
stack = "both"
[stacks.both.step_operators.cluster]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
shares_files = true
"""
FLOW = """
import os
from stoker.flow import FlowSpec, current, environment, kubernetes, step

WORDS = {words}

class Placed(FlowSpec):
    @step
    def start(self):
        self.here = os.environ.get("NODE", "this machine")
        self.next(self.train)

    @kubernetes(**WORDS)
    @environment(vars={{"LR": "0.1"}})
    @step
    def train(self):
        self.there = os.environ["NODE"]
        self.hub = os.environ["HUB_TOKEN"]
        self.lr = os.environ["LR"]
        open(os.environ["DATA"], "a").write("trained")
        self.temporary = os.path.isdir(os.environ["TMPDIR"]) and os.environ["TMPDIR"] != "/fast"
        self.next(self.ranks, num_parallel=2)

    @kubernetes(cpu=0.1, trainium=2, hostname_resolution_timeout=60)
    @step
    def ranks(self):
        self.rank = current.parallel.node_index
        self.next(self.join)

    @step
    def join(self, inputs):
        self.places = sorted(one.rank for one in inputs)
        self.merge_artifacts(inputs, include=["here", "there", "hub", "lr", "temporary"])
        self.next(self.end)

    @step
    def end(self):
        print("placed", self.here, self.there, self.hub, self.lr, self.temporary, self.places)

if __name__ == "__main__":
    Placed()
"""
PLAIN = """
from stoker.flow import FlowSpec, step

class Plain(FlowSpec):
    @step
    def start(self):
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Plain()
"""
WORDS = {
    "cpu": 0.5,
    "memory": 512,
    "gpu": 1,
    "gpu_vendor": "amd",
    "disk": 100,
    "shared_memory": 64,
    "image": "team/train:1",
    "image_pull_policy": "IfNotPresent",
    "secrets": "hub",
    "node_selector": "zone=a",
    "tolerations": [{"key": "reserved", "operator": "Exists"}],
    "labels": {"team": "ml"},
    "annotations": {"owner": "me"},
    "use_tmpfs": True,
    "tmpfs_size": 16,
    "tmpfs_path": "/fast",
    "persistent_volume_claims": {"data": "/data"},
    "port": 8080,
    "compute_pool": "amd",
    "qos": "Guaranteed",
    "extended_resources": {"example.com/fpga": "1"},
    "env": {"NODE": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, "DATA": "/data/set"},
    "security_context": {"allowPrivilegeEscalation": False},
}


@pytest.fixture
def nodes(cluster: LocalCluster) -> LocalCluster:
    """The cluster with nodes that suit the flow's words, and what its pods refer to."""
    room = {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "20Gi", "pods": "110"}
    cluster.ask(
        "add_node",
        name="amd-1",
        capacity={**room, "amd.com/gpu": "2", "example.com/fpga": "1"},
        labels={"zone": "a", "outerbounds.co/compute-pool": "amd"},
        taints=[{"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}],
    )
    for number in (1, 2):
        cluster.ask(
            "add_node",
            name=f"trn-{number}",
            capacity={**room, "aws.amazon.com/neuron": "2"},
            labels={"node.kubernetes.io/instance-type": "trn1.32xlarge"},
            taints=[{"key": "aws.amazon.com/neuron", "value": "", "effect": "NoSchedule"}],
        )
    place = "/api/v1/namespaces/default"
    hub = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "hub"}, "stringData": {"HUB_TOKEN": "t0ken"}}
    cluster.create(f"{place}/secrets", hub)
    claim = {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.create(f"{place}/persistentvolumeclaims", claim)
    return cluster


def test_every_word_of_the_decorator_takes_effect(project: Any, nodes: LocalCluster) -> None:
    stack = STACK.format(kubeconfig=nodes.kubeconfig, python=sys.executable)
    project.write({"flow.py": FLOW.format(words=repr(WORDS)), "stoker.toml": stack})
    planned = json.loads(project.stoker("plan", "flow.py", "--json").stdout)
    train = next(step for step in planned["steps"] if step["name"] == "train")
    assert train["settings"]["step_operator"] == "cluster"
    own = next(iter(train["settings"]["backend"].values()))
    assert own["compute_pool"] == "amd" and own["persistent_volume_claims"] == {"data": "/data"}
    simulated = {"STOKER_SIMULATE": "1xMI300X,2xtrainium"}
    said = project.run("flow.py", "run", env=simulated, timeout=240.0).stderr
    assert "placed this machine amd-1 t0ken 0.1 True [0, 1]" in said, said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--with", "kubernetes:namespce=a"], "did you mean 'namespace'"),
        (["--with", "kubernetes:contex=a"], "takes no 'contex'"),
    ],
)
def test_words_that_mean_nothing(project: Any, cluster: LocalCluster, arguments: list[str], words: str) -> None:
    stack = STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable)
    project.write({"flow.py": PLAIN, "stoker.toml": stack})
    finished = project.run("flow.py", "run", *arguments, code=None)
    assert words in finished.stderr, finished.stderr
