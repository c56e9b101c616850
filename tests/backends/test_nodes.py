"""The nodes of platforms as `stoker top` lists them, from what Slurm's commands, a Kubernetes API and Ray answer."""

from __future__ import annotations

from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.backends.kubernetes.explain.nodes import cluster_nodes
from stoker.backends.kubernetes.explain.nodes import nodes_of as kubernetes_nodes
from stoker.backends.ray.jobs import nodes_of as ray_nodes
from stoker.backends.slurm.cluster import nodes_of as slurm_nodes
from stoker.backends.slurm.cluster import parse_facts

SINFO = """gpu|2|96|2000000|0|(null)|gpu:h100:8(S:0-1)|idle|gpu[01-02]
gpu|1|96|2000000|0|(null)|gpu:h100:8|mixed|gpu03
all|2|96|2000000|0|(null)|gpu:h100:8(S:0-1)|idle|gpu[01-02]
all|4|16|64000|0|(null)|(null)|down*|cpu[1-4]
"""
PARTITIONS = "PartitionName=gpu State=UP TotalNodes=3 Default=YES\nPartitionName=all State=UP TotalNodes=6\n"


def test_nodes_of_slurm_are_listed_once_however_many_partitions_they_are_in() -> None:
    facts = parse_facts(SINFO, PARTITIONS, "")
    first, second, third = slurm_nodes(group for one in facts.partitions.values() for group in one.groups)
    assert first == PlatformNode(
        name="gpu[01-02]",
        count=2,
        state="idle",
        group="gpu, all",
        cpus=96,
        memory=2000000 * 2**20,
        devices=(NodeDevices(model="h100", count=8, free=8),),
    )
    assert (second.name, second.state, second.devices[0].free) == ("gpu03", "mixed", None)
    for state in ("idle*", "idle~", "idle$"):
        facts = parse_facts(SINFO.replace("|idle|", f"|{state}|"), PARTITIONS, "")
        marked = next(iter(slurm_nodes(facts.partitions["gpu"].groups)))
        assert (marked.state, marked.devices[0].free) == (state, None), "it takes no job now"
    assert (third.name, third.count, third.state, third.devices) == ("cpu[1-4]", 4, "down*", ())


def test_nodes_of_kubernetes_have_what_no_pod_asked_for() -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    limits = {"limits": {"nvidia.com/gpu": "3"}, "requests": {"nvidia.com/gpu": "3"}}
    pod = {"spec": {"nodeName": "n1", "containers": [{"resources": limits}]}, "status": {"phase": "Running"}}
    known, unknown = (kubernetes_nodes(cluster_nodes([node], pods).nodes)[0] for pods in ([pod], None))
    assert (known.name, known.state, known.cpus, known.memory) == ("n1", "ready", 8.0, 64 * 2**30)
    (device,) = known.devices
    assert device.model.startswith("H100") and (device.count, device.free) == (8, 5)
    assert unknown.devices[0].free is None, "the account may not list the pods"


def test_nodes_of_ray() -> None:
    total = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9, "accelerator_type:H100": 1.0, "node:10.0.0.1": 1.0}
    row = {"node_id": "a", "node_name": "10.0.0.1", "state": "ALIVE", "resources_total": total}
    assert ray_nodes([row]) == [
        PlatformNode(
            name="10.0.0.1",
            state="alive",
            cpus=8.0,
            memory=10**9,
            devices=(NodeDevices(model="H100", count=2),),
        )
    ]
