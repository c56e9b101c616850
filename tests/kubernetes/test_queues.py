"""A Job of a queue: it is held until somebody lets it start, which Kueue does by the same patch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster

JOBS = "/apis/batch/v1/namespaces/default/jobs"
STACK = """
stack = "cluster"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
shares_files = true
queue = "ml"
queue_priority = "high"
"""
TRAIN = """
from stoker import pipeline, step

@step(cache=False)
def train() -> int:
    return 7

@pipeline
def training():
    train()

if __name__ == "__main__":
    training()
"""


@pytest.mark.parametrize(
    ("settings", "group", "level"),
    [
        ("queueing = 'volcano'", "scheduling.volcano.sh", "error"),
        ("queueing = 'coscheduling'", "scheduling.x-k8s.io", "error"),
        ("device_class = 'gpu.nvidia.com'", "resource.k8s.io", "error"),
        ("queue = 'ml'", "kueue.x-k8s.io", "warning"),
    ],
)
def test_a_cluster_without_it_is_told_in_the_plan(
    project: Any, cluster: LocalCluster, settings: str, group: str, level: str
) -> None:
    stack = STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable).partition('queue = "ml"')[0]
    asks = "from stoker.config import ResourceSettings\n@step(resources=ResourceSettings(gpu_count=1), "
    project.write({"stoker.toml": stack + settings, "train.py": TRAIN.replace("@step(", asks)})
    planned = project.stoker("plan", "train.py", code=3 if level == "error" else 0)
    text = planned.stdout + planned.stderr
    assert f"STK289 {level}" in text and f"the cluster has no {group}" in text, text


def test_a_job_waits_for_its_queue(project: Any, cluster: LocalCluster) -> None:
    project.write(
        {"stoker.toml": STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable), "train.py": TRAIN}
    )
    driver = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=project.folder,
        env={**os.environ, "STOKER_HOME": str(project.home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        (job,) = cluster.wait(lambda: cluster.get(JOBS)["items"])
        assert job["spec"]["suspend"] is True
        labels = job["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "ml" and labels["kueue.x-k8s.io/priority-class"] == "high"
        assert driver.poll() is None and not cluster.get("/api/v1/namespaces/default/pods")["items"]
        status, _ = cluster.request(
            "PATCH",
            f"{JOBS}/{job['metadata']['name']}",
            {"spec": {"suspend": False}},
            content_type="application/merge-patch+json",
        )
        assert status == 200
        _, said = driver.communicate(timeout=120)
        assert driver.returncode == 0, said
        assert "train succeeded" in said
    finally:
        driver.kill()
