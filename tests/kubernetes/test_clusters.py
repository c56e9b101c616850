"""`stoker plan` of ordinary requests against nodes as they come: what a cluster can run is not refused, and what it
never can is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conftest import Project
from tests.kubernetes.clusters import CLUSTERS
from tests.kubernetes.server.cluster import LocalCluster

STACK = """
stack = "cluster"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
shares_files = true
"""
GPU8 = {"gpu_count": 8}
ORDER = ("recorded", "gke", "eks", "aks", "kubeadm", "k3s")
REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # Resources, settings of the pod, and what each cluster of `ORDER` makes of them: "+" it runs, "-" no node can ever
    # take it (STK285).
    "nothing": ({}, {}, "++++++"),
    "one CPU": ({"cpu_count": 1}, {}, "++++++"),
    "half a CPU": ({"cpu_count": 0.5, "memory": "512MB"}, {}, "++++++"),
    "a laptop": ({"cpu_count": 2, "memory": "16GB"}, {}, "++++++"),
    "four CPUs": ({"cpu_count": 4}, {}, "-+++++"),
    "eight CPUs": ({"cpu_count": 8, "memory": "32GB"}, {}, "--+-++"),
    "96 CPUs": ({"cpu_count": 96}, {}, "----+-"),
    "24 GB": ({"memory": "24GB"}, {}, "++++++"),
    "24 GiB": ({"memory": "24GiB"}, {}, "-+++++"),
    "200 GB": ({"memory": "200GB"}, {}, "----+-"),
    "1 TB": ({"memory": "1TB"}, {}, "----+-"),
    "4 TB": ({"memory": "4TB"}, {}, "------"),
    "10 GB of disk": ({"disk": "10GB"}, {}, "++++++"),
    "100 GB of disk": ({"disk": "100GB"}, {}, "+--++-"),
    "shared memory": ({"memory": "16GB", "shared_memory": "8GB"}, {}, "++++++"),
    "any GPU": ({"gpu_count": 1}, {}, "++++++"),
    "two GPUs": ({"gpu_count": 2}, {}, "+++-+-"),
    "four GPUs": ({"gpu_count": 4}, {}, "+++-+-"),
    "eight GPUs": (GPU8, {}, "+-+---"),
    "sixteen GPUs": ({"gpu_count": 16}, {}, "------"),
    "GPU of 16 GB": ({"gpu_memory": "16GB"}, {}, "+++++-"),
    "GPU of 40 GB": ({"gpu_memory": "40GB"}, {}, "+-+++-"),
    "GPU of 80 GB": ({"gpu_memory": "80GB"}, {}, "+--++-"),
    "H100": ({"accelerators": "H100:8"}, {}, "+-----"),
    "A100": ({"accelerators": "A100:1"}, {}, "--+---"),
    "A100-80GB": ({"accelerators": "A100-80GB:1"}, {}, "---++-"),
    "L4 or A10G": ({"accelerators": ["L4:1", "A10G:1"]}, {}, "-++---"),
    "T4": ({"accelerators": "T4:1"}, {}, "------"),
    "slice of an A100": ({"accelerators": "A100-80GB/1g.10gb:1"}, {}, "----+-"),
    "MI300X": ({"accelerators": "MI300X:8"}, {}, "----+-"),
    "any of AMD": ({"gpu_count": 1, "gpu_vendor": "amd"}, {}, "----+-"),
    "Trainium": ({"accelerators": "trainium:16"}, {}, "--+---"),
    "TPU": ({"accelerators": "tpu-v5e:4"}, {}, "-+----"),
    "two nodes": ({"nodes": 2, "cpu_count": 1}, {}, "++++++"),
    "two nodes of four GPUs": ({"nodes": 2, "gpu_count": 4}, {}, "+-+---"),
    "spot": ({"spot": True, "cpu_count": 1}, {}, "++++++"),
    "no spot": ({"spot": False, "cpu_count": 1}, {}, "++++++"),
    "T4 on spot": ({"spot": True, "accelerators": "T4:1"}, {}, "---+--"),
    "A100 on spot": ({"spot": True, "accelerators": "A100:1"}, {}, "-++---"),
    "huge pages": ({"extended": {"hugepages-1Gi": 1 << 30}}, {}, "----+-"),
    "RDMA": ({"extended": {"rdma/hca_shared_devices_a": 1}}, {}, "----+-"),
    "EFA": (GPU8, {"efa": 4}, "--+---"),
    "Linux": ({}, {"node_selector": {"kubernetes.io/os": "linux"}}, "++++++"),
    "SSD": ({}, {"node_selector": {"disktype": "ssd"}}, "------"),
    "a pool": ({}, {"node_selector": {"agentpool": "user"}}, "---+--"),
    "virtual node": (
        {"cpu_count": 200},
        {"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]},
        "---+--",
    ),
}


def program() -> str:
    """A pipeline with a step for each request."""
    lines = ["from stoker import pipeline, step", "from stoker.config import KubernetesSettings, ResourceSettings"]
    for number, (resources, settings, _) in enumerate(REQUESTS.values()):
        pod = f', settings={{"orchestrator": KubernetesSettings(**{settings!r})}}' if settings else ""
        lines += [
            f"@step(resources=ResourceSettings(**{resources!r}){pod})",
            f"def r{number}() -> int:",
            "    return 1",
        ]
    calls = [f"    r{number}()" for number in range(len(REQUESTS))]
    return "\n".join([*lines, "@pipeline", "def table():", *calls, ""])


@pytest.mark.parametrize("name", ORDER)
def test_what_a_cluster_can_run_is_not_refused(cluster: LocalCluster, project: Project, name: str) -> None:
    cluster.reset(nodes=[])
    cluster.ask("put_nodes", items=CLUSTERS[name])
    project.write({"stoker.toml": STACK.format(kubeconfig=cluster.kubeconfig), "table.py": program()})
    planned = json.loads(project.stoker("plan", "table.py", "--json", code=3).stdout)
    refused: dict[str, set[str]] = {}
    for finding in planned["findings"]:
        if finding["level"] == "error":
            refused.setdefault(finding["where"].partition("'")[2].partition("'")[0], set()).add(finding["code"])
    found = {request: "".join(sorted(refused.get(f"r{number}", {"+"}))) for number, request in enumerate(REQUESTS)}
    at = ORDER.index(name)
    expected = {request: {"-": "STK285"}.get(marks[at], marks[at]) for request, (_, _, marks) in REQUESTS.items()}
    assert found == expected
