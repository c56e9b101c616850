"""Where steps go by models, queues and faulty nodes, and what is said and kept while they wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.drivers import nothing_left, says, stack, start
from tests.kubernetes.server.cluster import LocalCluster

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
PROGRAM = """
import os, sys, time
from stoker import context, pipeline, step
from stoker.config import KubernetesSettings, ResourceSettings

where = KubernetesSettings(env={"NODE": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}})

@step(cache=False, settings={"orchestrator": where})
def train() -> str:
    return os.environ["NODE"]

@pipeline
def trained(accelerators: str):
    asked = ResourceSettings(accelerators=accelerators.split("+"), memory="1GB", cpu_count=0.2)
    return train.with_options(resources=asked)()

@step(cache=False)
def wait(flag: str) -> str:
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return "seen"

@pipeline
def long(flag: str):
    return wait(flag)

@step(cache=False, resources=ResourceSettings(cpu_count=8))
def large(number: int, flag: str) -> int:
    while not os.path.exists(flag):
        time.sleep(0.05)
    return number

@pipeline
def fan_out(flag: str):
    large.map(list(range(6)), flag=flag)

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def device(number: int) -> str:
    return context.devices[0].uuid

@pipeline
def once():
    device.map([0])

if __name__ == "__main__":
    word, *rest = sys.argv[1:]
    run = globals()[word](*rest)
    if word == "trained":
        print("trained on", run.steps["train"].output.load())
"""
A100 = {"node.kubernetes.io/instance-type": "p4de.24xlarge"}
BAD = {"STOKER_SIMULATE": "2xH100;bad=0@gpu-node-1"}


@pytest.fixture
def kube(kube: Any) -> Any:
    """A project whose stack is the cluster."""
    return kube.write({"train.py": PROGRAM})


def test_a_model_is_a_nodes_label(kube: Any, cluster: LocalCluster) -> None:
    """GPU feature discovery's label on one node, nothing but an instance type on the other, and none has an L4."""
    cluster.add_node("a100-1", labels=A100, taints=[{"key": "sku", "value": "gpu", "effect": "NoSchedule"}], gpus=8)
    done = kube.run("train.py", "trained", "A100-80GB:2", env={"STOKER_SIMULATE": "2xA100-80GB"}, timeout=120.0)
    assert "trained on a100-1" in done.stdout
    refused = kube.run("train.py", "trained", "L4:2", code=3).stderr
    for words in ("no label that names L4", "H100, not L4", "A100-80GB, not L4"):
        assert words in refused, refused


@pytest.mark.long
def test_a_job_waits_for_its_queue(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """It is held until somebody lets it start, which Kueue does by the same patch."""
    (tmp_path / "flag").touch()
    kube.write({"stoker.toml": stack(cluster, 'queue = "ml"', 'queue_priority = "high"')})
    driver = start(kube, "long", str(tmp_path / "flag"))
    try:
        (job,) = cluster.wait(lambda: cluster.get(JOBS)["items"])
        assert job["spec"]["suspend"] is True
        labels = job["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "ml" and labels["kueue.x-k8s.io/priority-class"] == "high"
        assert driver.poll() is None and not cluster.get(PODS)["items"]
        path, body = f"{JOBS}/{job['metadata']['name']}", {"spec": {"suspend": False}}
        assert cluster.request("PATCH", path, body, content_type="application/merge-patch+json")[0] == 200
        said, _ = driver.communicate(timeout=120)
        assert driver.returncode == 0 and "wait succeeded" in said, said
    finally:
        driver.kill()


def test_a_faulty_node_is_left_out(kube: Any, cluster: LocalCluster) -> None:
    """The other node takes no pods until the first attempt has begun on the faulty one; without it that is said."""
    cluster.add_node("gpu-node-2", gpus=8)
    cluster.cordon("gpu-node-2")
    driver = start(kube, "once", **BAD)
    cluster.wait(lambda: any(pod["spec"].get("nodeName") for pod in cluster.get(PODS)["items"]))
    cluster.cordon("gpu-node-2", unschedulable=False)
    said, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, said
    assert "device[0]: node gpu-node-1 (" in said and "is left out for the rest of this run: gpu-hardware" in said
    first, second = kube.client().run("last").steps["device"][0].attempts
    assert (first.status, first.failure.cause, second.status) == ("failed", "gpu-hardware", "succeeded")
    assert (first.placement.node, second.placement.node) == ("gpu-node-1", "gpu-node-2")
    (document,) = json.loads(kube.stoker("show", "last", "--json").stdout)["left_out"]
    assert (document["place"], document["cause"]) == ("gpu-node-1", "gpu-hardware")
    cluster.remove_node("gpu-node-2")
    done = kube.run("train.py", "once", env=BAD, code=1, timeout=120.0)
    assert "no other node is left beside gpu-node-1" in done.stderr
    causes = [attempt.failure.cause for attempt in kube.client().run("last").steps["device"][0].attempts]
    assert causes[0] == "gpu-hardware"


def test_elements_that_wait_are_told_in_one_line(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    lines = []
    with start(kube, "fan_out", str(tmp_path / "flag")) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            lines.append(line)
            if " waiting: " in line:
                (tmp_path / "flag").touch()
    assert driver.returncode == 0, lines
    waits = [line for line in lines if " waiting: " in line]
    assert waits[0].strip().partition(" ")[2] == (  # behind the time
        "large: 4 waiting: needs 8 CPUs: 2 nodes have 0 free; the largest node ever has 8; 2 running"
    )
    assert len(waits) <= 2, lines


def test_a_node_that_is_silent_is_recorded_and_its_step_goes_on(
    kube: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Where all nodes are silent, nothing is evicted: the step goes on, and its end is told when its node is back."""
    flag = tmp_path / "flag"
    driver = start(kube, "long", str(flag))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
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
