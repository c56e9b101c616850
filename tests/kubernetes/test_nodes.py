"""Whether pods fit on nodes, and the words for why they do not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Mapping

import pytest
from tests.kubernetes.clusters import CLUSTERS
from tests.kubernetes.recordings import recording

from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.explain.nodes import ClusterNodes, cluster_nodes, obstacles_text, pod_request
from stoker.core.accelerators import MODELS

GPU = "nvidia.com/gpu"


def node(
    name: str,
    gpus: int = 8,
    *,
    cpu: str = "64",
    memory: str = "512Gi",
    labels: Mapping[str, str] | None = None,
    taints: tuple[Mapping[str, str], ...] = (),
    ready: bool = True,
    cordoned: bool = False,
) -> dict[str, Any]:
    """A node as the API has it."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": [dict(taint) for taint in taints], "unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "1Ti", GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def spec(gpus: int = 0, *, cpu: str = "1", memory: str = "1Gi", **more: Any) -> dict[str, Any]:
    """A pod's specification with one container."""
    limits = {"cpu": cpu, "memory": memory, **({GPU: str(gpus)} if gpus else {})}
    return {"containers": [{"name": "main", "resources": {"limits": limits}}], **more}


def pod_on(where: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    """A pod that holds GPUs of a node."""
    return {"metadata": {"name": "x"}, "spec": {**spec(gpus), "nodeName": where}, "status": {"phase": phase}}


def affinity(*expressions: Mapping[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [dict(each)]} for each in expressions]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": rule}}


L4 = affinity({"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]})
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
RESERVED = {"key": "gpu", "value": "reserved", "effect": "NoSchedule"}


def test_the_sentence_names_what_is_free_the_taints_and_the_largest_node() -> None:
    items = [*(node(f"free{n}", 8) for n in range(3)), *(node(f"mine{n}", 8, taints=(RESERVED,)) for n in range(5))]
    pods = [*(pod_on(f"free{n}", 6) for n in range(3)), pod_on("free0", 2, phase="Succeeded")]
    text = obstacles_text(spec(4), cluster_nodes(items, pods))
    assert text == (
        "needs 4 × nvidia.com/gpu: 3 nodes have 2 free, 5 nodes have the taint gpu=reserved:NoSchedule; "
        "the largest node ever has 8"
    )


@pytest.mark.parametrize(
    ("items", "pods", "wanted", "text"),
    [
        ([node("a"), node("b", cordoned=True)], [pod_on("a", 8)], spec(1), "1 node has 0 free, 1 node is cordoned"),
        ([node("a", ready=False)], [], spec(1), "1 node is not ready"),
        ([node("a", 4), node("b", 2)], [], spec(8), "2 nodes have 2 to 4 in all; the largest node ever has 4"),
        ([node("a")], [], spec(1, nodeSelector={"disk": "ssd"}), "1 node has not the label disk=ssd"),
        ([node("a", labels=H100)], [], spec(1, **L4), "1 node has H100, not L4;"),
        # Another model would not help.
        (
            [node("a", labels=H100)],
            [],
            spec(1, nodeSelector={"disk": "ssd"}, **L4),
            "1 node has not the label disk=ssd;",
        ),
        ([node("a", cpu="2")], [], spec(1, cpu="4"), "needs 1 × nvidia.com/gpu and 4 CPUs: 1 node has 2 CPUs in all"),
        ([node("a")], [], spec(memory="900Gi"), "needs 900Gi of memory: 1 node has 512Gi in all"),
        ([], [], spec(1), "needs 1 × nvidia.com/gpu: the cluster has no nodes"),
    ],
)
def test_other_obstacles(items: list[Any], pods: list[Any], wanted: Mapping[str, Any], text: str) -> None:
    assert text in obstacles_text(wanted, cluster_nodes(items, pods))


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, True),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"tolerations": [{"key": "gpu", "value": "reserved", "effect": "NoSchedule"}]}, True),
        ({"tolerations": [{"key": "gpu", "value": "other"}]}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, False),
        ({"tolerations": [{"key": "gpu", "operator": "Gt", "value": "1"}]}, False),  # of a taint that is no number
    ],
)
def test_tolerations(more: Mapping[str, Any], fits: bool) -> None:
    nodes = cluster_nodes(
        [node("a", taints=(RESERVED, {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}))]
    )
    assert nodes.may_fit(spec(1, **more)) is fits


@pytest.mark.parametrize(
    ("key", "value", "toleration", "fits"),
    [
        ("startup-taint.cluster-autoscaler.kubernetes.io/driver", "", None, True),
        ("ebs.csi.aws.com/agent-not-ready", "", None, True),
        (GPU, "present", None, True),  # admission tolerates it for pods that ask for the resource
        ("example.com/fpga", "true", None, False),
        ("sla", "950", {"key": "sla", "operator": "Gt", "value": "900"}, True),
        ("sla", "950", {"key": "sla", "operator": "Lt", "value": "900"}, False),
        ("sla", "950", {"key": "sla", "operator": "Gt", "value": "1_0"}, False),
    ],
)
def test_taints_that_pass_or_are_compared(key: str, value: str, toleration: Any, fits: bool) -> None:
    nodes = cluster_nodes([node("a", taints=({"key": key, "value": value, "effect": "NoSchedule"},))])
    assert nodes.may_fit(spec(1, **({"tolerations": [toleration]} if toleration else {}))) is fits


@pytest.mark.parametrize(
    ("expressions", "fits"),
    [
        ([{"key": "gpu.product", "operator": "In", "values": ["H100", "A100"]}], True),
        ([{"key": "gpu.product", "operator": "NotIn", "values": ["A100"]}], False),
        ([{"key": "gpu.memory", "operator": "Gt", "values": ["40000"]}], True),
        ([{"key": "gpu.memory", "operator": "Lt", "values": ["40000"]}], False),
        ([{"key": "gpu.memory", "operator": "Exists"}], True),
        ([{"key": "gpu.memory", "operator": "DoesNotExist"}], False),
        ([{"key": "gpu.product", "operator": "In", "values": ["H100"]}, {"key": "zone", "operator": "Exists"}], False),
        ([{"key": "zone", "operator": "Exists"}, {"key": "gpu.product", "operator": "Exists"}], True),
    ],
)
def test_affinity_terms_are_alternatives(expressions: list[Mapping[str, Any]], fits: bool) -> None:
    nodes = cluster_nodes([node("a", labels={"gpu.product": "A100", "gpu.memory": "81559"})])
    assert nodes.may_fit(spec(1, **affinity(*expressions))) is fits


def test_gangs_are_counted_over_all_nodes() -> None:
    nodes = cluster_nodes([node("a"), node("b"), node("c", 4)])
    assert nodes.places(spec(8), 4) == 2
    assert nodes.places(spec(4), 8) == 5
    apart = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    assert nodes.places(spec(1, affinity=rule), 8) == 3


POOL = {"name": "h100", "accelerators": "H100:8", "nodes": 4, "taints": [RESERVED]}
STATUS_OLD = "Health: Healthy (ready=1 registered=1 cloudProviderTarget=1 (minSize=0, maxSize={}))"
STATUS_NEW = "nodeGroups:\n- health:\n    cloudProviderTarget: 1\n    minSize: 0\n    maxSize: {}\n"


def test_pools_that_an_autoscaler_may_add_are_respected() -> None:
    tolerated = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    few = [node("cpu", 0)]
    pool = cluster_nodes(few, pools=[POOL])
    assert not cluster_nodes(few).may_fit(spec(8, **tolerated))
    assert pool.may_fit(spec(8, **tolerated)) and not pool.may_fit(spec(8))
    assert not pool.may_fit(spec(16, **tolerated))
    assert pool.places(spec(8, **tolerated), 6) == 4
    h100 = affinity({"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]})
    a100 = affinity({"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]})
    assert pool.may_fit(spec(8, **tolerated, **h100)) and not pool.may_fit(spec(8, **tolerated, **a100))
    for text in (STATUS_OLD, STATUS_NEW):
        assert cluster_nodes(few, status=text.format(3)).may_fit(spec(8))
        assert not cluster_nodes(few, status=text.format(1)).may_fit(spec(8))
    assert cluster_nodes([node("k", 0, labels={"karpenter.sh/nodepool": "gpu"})]).may_fit(spec(8))
    assert cluster_nodes(few, provisioned=True).may_fit(spec(8)), "Karpenter is there, and has made no node yet"
    assert cluster_nodes(few, status="autoscalerStatus: Initializing").may_fit(spec(8))
    # What is said of the pools counts more than the guess.
    assert not cluster_nodes([node("k", 0, labels={"karpenter.sh/nodepool": "gpu"})], pools=[POOL]).may_fit(spec(16))


def test_requests_of_pods() -> None:
    pod = {
        "containers": [
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}}},
            {"resources": {"limits": {"cpu": "1", GPU: "0"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
            {"resources": {"requests": {"cpu": "4"}}},
        ],
    }
    assert pod_request(pod) == {"cpu": Decimal("4.25"), "memory": Decimal(2**30), "pods": 1}
    whole = {**pod, "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "250m"}}
    assert pod_request(whole) == {"cpu": Decimal("3.25"), "memory": Decimal(2**30), "pods": 1}
    pod["containers"][1]["resources"] = {"limits": {"cpu": "some"}}
    assert pod_request(pod) == {"cpu": None, "memory": Decimal(2**30), "pods": 1}


def test_what_is_taken_in_unknown_amounts_is_neither_free_nor_refused() -> None:
    """Of a pod of somebody else."""
    taken = pod_on("a", 2)
    taken["spec"]["containers"][0]["resources"]["limits"][GPU] = "two"
    nodes = cluster_nodes([node("a", 4)], [taken])
    assert nodes.nodes[0].free is not None and nodes.nodes[0].free[GPU] is None
    assert nodes.obstacles(spec(4))[0][1] is None and not nodes.may_fit(spec(5))


def test_the_recorded_node_refuses_what_its_scheduler_refused() -> None:
    fits: dict[str, bool] = {}
    recorded = ClusterNodes(nodes=())
    for name in ("05-unschedulable-too-many-gpus", "05b-unschedulable-node-selector", "05c-unschedulable-memory"):
        # The one node of the recordings: 8 GPUs, 2 CPUs, 24 GiB.
        recorded = cluster_nodes(CLUSTERS["recorded"])
        assert recorded.largest("memory") == 24581696 * 1024 and recorded.largest("ephemeral-storage") == 267847642337
        fits[name] = recorded.may_fit(recording(name).last("pods")[0]["spec"])
    queued = recording("06-queued-for-gpus").last("pods")
    fits["06"] = all(recorded.may_fit(pod["spec"]) for pod in queued)
    assert list(fits.values()) == [False, False, False, True]


@pytest.mark.parametrize(
    ("labels", "name", "slice"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}, "H100", ""),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "T4", ""),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, "A100-80GB", "1g.10gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "H100-MEGA", ""),
        ({"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}, "tpu-v5e", ""),
        ({"karpenter.k8s.aws/instance-gpu-name": "a100"}, "A100", ""),
        (
            {"karpenter.k8s.aws/instance-gpu-name": "a100", "karpenter.k8s.aws/instance-gpu-memory": "81920"},
            "A100-80GB",
            "",
        ),
        ({"karpenter.k8s.aws/instance-accelerator-name": "trainium"}, "trainium", ""),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "MI300X", ""),
        ({"accelerator": "nvidia", "node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, "H100", ""),
        ({"node.kubernetes.io/instance-type": "Standard_NC40ads_H100_v5"}, "H100-NVL", ""),
        ({"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"}, "A100-80GB", ""),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "H100", ""),
        ({"node.kubernetes.io/instance-type": "p5en.48xlarge"}, "H200", ""),
        ({"node.kubernetes.io/instance-type": "p4de.24xlarge"}, "A100-80GB", ""),
        ({"node.kubernetes.io/instance-type": "g6.12xlarge"}, "L4", ""),
    ],
)
def test_labels_name_a_model(labels: Mapping[str, str], name: str, slice: str) -> None:
    device = nodelabels.device_of(labels)
    assert device is not None
    assert (device.name, device.known, device.slice) == (name, True, slice)


def test_a_label_that_the_catalog_does_not_know_is_shown_as_it_is() -> None:
    device = nodelabels.device_of({"nvidia.com/gpu.product": "NVIDIA-X999"})
    assert device == nodelabels.NodeDevice(name="NVIDIA-X999", known=False, label="nvidia.com/gpu.product")
    assert nodelabels.device_of({"kubernetes.io/arch": "amd64", "accelerator": "nvidia"}) is None


def test_every_value_that_is_asked_for_reads_back_as_the_same_model() -> None:
    alike = {"H100": {"H100", "H100-MEGA"}, "V100-32GB": {"V100", "V100-32GB"}, "A100-80GB": {"A100", "A100-80GB"}}
    seen = 0
    for name in MODELS:
        for label, values in nodelabels.label_values(name).items():
            for value in values:
                device = nodelabels.device_of({label: value})
                assert device is not None and device.known, (name, label, value)
                assert device.name in alike.get(name, {name}), (name, label, value)
                seen += 1
    assert seen > 100


def test_drivers_and_memory() -> None:
    assert (
        nodelabels.driver_of({"nvidia.com/cuda.driver.major": "550", "nvidia.com/cuda.driver.minor": "54"}) == "550.54"
    )
    assert nodelabels.driver_of({"nvidia.com/cuda.driver-version.full": "550.54.15"}) == "550.54.15"
    assert nodelabels.memory_of({"nvidia.com/gpu.memory": "81559"}) == 81559 * 2**20
    assert nodelabels.is_device("nvidia.com/mig-1g.10gb") and not nodelabels.is_device("cpu")
