"""The proof of ordinary requests against nodes as they come: what a cluster can run is not refused, and what it
never can is."""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import attrs
import pytest
from tests.kubernetes.clusters import CLUSTERS
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_prove import STEP, need

from stoker.backends.kubernetes.api.client import Cluster
from stoker.backends.kubernetes.explain.nodes import cluster_nodes, largest_text, nodes_of, obstacles_text
from stoker.backends.kubernetes.objects import name
from stoker.backends.kubernetes.proof.prove import prove
from stoker.backends.kubernetes.request.pods import PodRequest, pod_template
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.resources import ResourceSettings

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


@pytest.mark.parametrize("kind", ORDER)
def test_what_a_cluster_can_run_is_not_refused(cluster: LocalCluster, kind: str) -> None:
    cluster.reset(nodes=[])
    cluster.ask("put_nodes", items=CLUSTERS[kind])
    needs = [
        attrs.evolve(
            need(resources.get("nodes", 1), resources=resources, **settings), step=attrs.evolve(STEP, name=request)
        )
        for request, (resources, settings, _) in REQUESTS.items()
    ]
    client = Cluster(KubernetesSettings(kubeconfig=str(cluster.kubeconfig)), os.environ)
    try:
        errors = [one for one in prove(needs, client) if one.level == "error"]
    finally:
        client.close()
    assert {one.code for one in errors} == {"STK285"}
    refused = {one.where.partition("'")[2].partition("'")[0] for one in errors}
    at = ORDER.index(kind)
    assert refused == {request for request, (_, _, marks) in REQUESTS.items() if marks[at] == "-"}


def broken(value: Any, chance: random.Random) -> None:
    """Take something away from an object of the API, or have it say what nobody understands."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = chance.choice(keys)
    if chance.random() < 0.15:
        del value[key]
    elif isinstance(value[key], (dict, list)):
        if chance.random() < 0.2 and isinstance(value, dict):
            value[key] = None
        else:
            broken(value[key], chance)
    elif isinstance(value[key], str):
        value[key] = chance.choice(["", "lots", "-1", "1e400", "NaN", "Ki", "9" * 30])


def test_objects_that_lack_fields_or_say_what_nobody_understands(long_form: bool) -> None:
    """They are read; and where amounts alone are not understood, nothing is refused that was not refused before."""
    chance = random.Random(0)
    specs = [
        pod_template(
            PodRequest(
                resources=ResourceSettings(**resources),
                settings=KubernetesSettings(**settings),
                image="team/step:1",
                command=("true",),
            )
        )["spec"]
        for resources, settings, _ in REQUESTS.values()
    ]
    for _ in range(3000 if long_form else 50):
        items = copy.deepcopy(CLUSTERS[chance.choice(ORDER)])
        for _ in range(chance.randint(1, 4)):
            broken(chance.choice(items), chance)
        pods = [{"spec": {**copy.deepcopy(chance.choice(specs)), "nodeName": name(item)}} for item in items]
        broken(chance.choice(pods)["spec"], chance)
        nodes = cluster_nodes(items, chance.choice([None, pods]))
        for spec in chance.sample(specs, 3):
            assert obstacles_text(spec, nodes) and isinstance(largest_text(spec, nodes), tuple)
            assert 0 <= nodes.places(spec, 2) <= 2
        assert len(nodes_of(nodes.nodes)) == len(items)
        items = copy.deepcopy(CLUSTERS[chance.choice(ORDER)])
        fits = [spec for spec in specs if cluster_nodes(items).may_fit(spec)]
        amounts = chance.choice(items)["status"]["allocatable"]
        amounts[chance.choice(list(amounts))] = chance.choice(["lots", "12GB", "", "1.5.0", "0x10"])
        assert all(cluster_nodes(items).may_fit(spec) for spec in fits)
