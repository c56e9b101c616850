"""Nodes of clusters as they come: the recorded ones, and those of clouds and distributions as these document them.

`recorded.json` is the answer of the recorded server (Kubernetes 1.36) to GET /api/v1/nodes, as it is. The nodes of the
others are made of the recorded one, with the labels, taints, amounts and conditions that theirs have:

* GKE: https://cloud.google.com/kubernetes-engine/docs/ how-to/gpus, how-to/tpus, concepts/plan-node-sizes,
  concepts/spot-vms
* EKS: https://docs.aws.amazon.com/eks/latest/userguide/ managed-node-groups.html, ml-eks-optimized-ami.html,
  node-efa.html
* AKS: https://learn.microsoft.com/azure/aks/ use-labels, use-nvidia-gpu, spot-node-pool, virtual-nodes,
  node-resource-reservations
* kubeadm, k3s: https://kubernetes.io/docs/reference/labels-annotations-taints/, https://docs.k3s.io/advanced;
  https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md,
  https://github.com/ROCm/k8s-device-plugin, https://github.com/Mellanox/k8s-rdma-shared-dev-plugin
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

Object = dict[str, Any]

RECORDED: Final[Object] = json.loads((Path(__file__).parent / "recorded.json").read_text())
SPOT: Final = "cloud.google.com/gke-spot", "true"
NVIDIA: Final = "nvidia.com/gpu", "present"
HEALTH: Final = (
    # Of the node problem detectors of GKE and AKS, beside the kubelet's own.
    "KernelDeadlock", "ReadonlyFilesystem", "FrequentKubeletRestart", "FilesystemCorruptionProblem",
    "VMEventScheduled", "NetworkUnavailable",
)  # fmt: skip


def node(
    name: str,
    cpu: str,
    memory: str,
    disk: str,
    *,
    labels: dict[str, str] | None = None,
    taints: tuple[tuple[str, ...], ...] = (),
    cordoned: bool = False,
    ready: str = "True",
    health: bool = True,
    type: str = "",
    pods: str = "110",
    extra: dict[str, str] | None = None,
) -> Object:
    """The recorded node with another one's name, labels, taints and amounts; `extra` are further resources."""
    made: Object = copy.deepcopy(RECORDED["items"][0])
    metadata, spec, status = made["metadata"], made["spec"], made["status"]
    standard = {key: text for key, text in metadata["labels"].items() if key.startswith(("kubernetes", "beta"))}
    kind = {"node.kubernetes.io/instance-type": type, "beta.kubernetes.io/instance-type": type} if type else {}
    metadata |= {
        "name": name,
        "uid": "",
        "labels": {**standard, **kind, "kubernetes.io/hostname": name, **(labels or {})},
        "managedFields": [
            {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
        ],
    }
    if taints:
        spec["taints"] = [
            {"key": key, **({"value": value[0]} if value[0] else {}), "effect": (*value, "NoSchedule")[1]}
            for key, *value in taints
        ]
    if cordoned:
        spec["unschedulable"] = True
        spec.setdefault("taints", []).append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, "hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    amounts |= {**({"ephemeral-storage": disk} if disk else {}), **(extra or {})}
    status["allocatable"] = dict(sorted(amounts.items()))
    status["capacity"] = dict(sorted({**amounts, "ephemeral-storage": "98831908Ki"}.items()))
    status["conditions"][-1]["status"] = ready
    if health:
        extra = [{**status["conditions"][0], "type": kind, "reason": f"No{kind}"} for kind in HEALTH]
        status["conditions"] = [*extra, *status["conditions"]]
    status["images"] = [{"names": ["registry.example.com/pause:3.10"], "sizeBytes": 320368}]
    return made


def gke(name: str, pool: str, *amounts: str, type: str, labels: dict[str, str] | None = None, **more: Any) -> Object:
    """A node of a pool of GKE."""
    theirs = {
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/gke-provisioning": "standard",
        "cloud.google.com/machine-family": type.partition("-")[0],
        "topology.gke.io/zone": "us-central1-c",
        "topology.kubernetes.io/zone": "us-central1-c",
        **(labels or {}),
    }
    return node(f"gke-ml-{name}", *amounts, type=type, labels=theirs, **more)


def gke_gpu(kind: str, count: str) -> dict[str, str]:
    """The labels of a node with GPUs."""
    return {
        "cloud.google.com/gke-accelerator": kind,
        "cloud.google.com/gke-accelerator-count": count,
        "cloud.google.com/gke-gpu": "true",
        "cloud.google.com/gke-gpu-driver-version": "default",
    }


def eks(name: str, group: str, *amounts: str, type: str, labels: dict[str, str] | None = None, **more: Any) -> Object:
    """A node of a managed group of EKS."""
    theirs = {
        "eks.amazonaws.com/capacityType": "ON_DEMAND",
        "eks.amazonaws.com/nodegroup": group,
        "eks.amazonaws.com/nodegroup-image": "ami-0123456789abcdef0",
        "k8s.io/cloud-provider-aws": "0123456789abcdef0123456789abcdef",
        "topology.ebs.csi.aws.com/zone": "eu-west-1a",
        "topology.kubernetes.io/zone": "eu-west-1a",
        **(labels or {}),
    }
    return node(f"{name}.eu-west-1.compute.internal", *amounts, type=type, labels=theirs, health=False, **more)


def aks(name: str, pool: str, *amounts: str, type: str, labels: dict[str, str] | None = None, **more: Any) -> Object:
    """A node of a pool of AKS."""
    theirs = {
        "agentpool": pool,
        "kubernetes.azure.com/agentpool": pool,
        "kubernetes.azure.com/cluster": "MC_ml_ml_westeurope",
        "kubernetes.azure.com/mode": "user",
        "kubernetes.azure.com/os-sku": "Ubuntu",
        "kubernetes.azure.com/role": "agent",
        "topology.kubernetes.io/zone": "westeurope-1",
        **(labels or {}),
    }
    return node(f"aks-{name}", *amounts, type=type, labels=theirs, **more)


AKS_GPU: Final = {"accelerator": "nvidia", "kubernetes.azure.com/accelerator": "nvidia"}
GFD: Final = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "nvidia.com/cuda.driver-version.full": "550.54.15",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.strategy": "mixed",
}
"""What GPU feature discovery writes."""
CLUSTERS: Final[dict[str, list[Object]]] = {
    "recorded": RECORDED["items"],
    "gke": [
        gke("default-0", "default-pool", "3920m", "29085928Ki", "47060071478", type="n2-highmem-4"),
        gke(
            "l4-0", "l4", "47810m", "185364788Ki", "47060071478", type="g2-standard-48", extra={"nvidia.com/gpu": "4"},
            labels=gke_gpu("nvidia-l4", "4"), taints=(NVIDIA,),
        ),
        gke(
            "a100-0", "a100", "11900m", "81283972Ki", "47060071478", type="a2-highgpu-1g",
            extra={"nvidia.com/gpu": "1"},
            labels={**gke_gpu("nvidia-tesla-a100", "1"), "cloud.google.com/gke-spot": "true"},
            taints=(NVIDIA, SPOT), cordoned=True,
        ),
        gke(
            "tpu-0", "tpu", "111780m", "187034876Ki", "47060071478", type="ct5lp-hightpu-4t",
            extra={"google.com/tpu": "4"},
            labels={"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                    "cloud.google.com/gke-tpu-topology": "2x2", "cloud.google.com/gke-accelerator-count": "4"},
            taints=(("google.com/tpu", "present"),),
        ),
        gke(
            "spot-0", "spot", "7910m", "29006488Ki", "47060071478", type="e2-standard-8", ready="Unknown",
            labels={"cloud.google.com/gke-spot": "true", "cloud.google.com/gke-provisioning": "spot"},
            taints=(("node.kubernetes.io/unreachable", "", "NoExecute"), ("node.kubernetes.io/unreachable", "")),
        ),
    ],
    "eks": [
        eks("ip-10-0-1-10", "cpu", "3920m", "15076912Ki", "18242267924", type="m5.xlarge"),
        eks("ip-10-0-1-11", "cpu", "3920m", "15076912Ki", "18242267924", type="m5.xlarge",
            labels={"eks.amazonaws.com/capacityType": "SPOT"}),
        eks(
            "ip-10-0-2-10", "big", "95690m", "193482808Ki", "95551679124", type="c5.24xlarge",
            taints=(("ebs.csi.aws.com/agent-not-ready", "", "NoExecute"),),
        ),
        *(eks(f"ip-10-0-3-{number}", "a10g", "47810m", "190620468Ki", "95551679124", type="g5.12xlarge",
              labels={"k8s.amazonaws.com/accelerator": "nvidia-a10g"}, extra={"nvidia.com/gpu": "4"},
              taints=(("nvidia.com/gpu", "true"),)) for number in (10, 11)),
        eks(
            "ip-10-0-4-10", "a100", "95690m", "1158310748Ki", "95551679124", type="p4d.24xlarge",
            extra={"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "10256Mi"},
            labels={"vpc.amazonaws.com/efa.present": "true"}, taints=(("nvidia.com/gpu", "true"),),
        ),
        eks(
            "ip-10-0-5-10", "trn", "127610m", "517407068Ki", "95551679124", type="trn1.32xlarge",
            extra={"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32", "vpc.amazonaws.com/efa": "8"},
            taints=(("aws.amazon.com/neuron", "true"),),
        ),
    ],
    "aks": [
        aks("system-0", "system", "3860m", "13586460Ki", "119703055367", type="Standard_D4s_v3",
            labels={"kubernetes.azure.com/mode": "system"}, taints=(("CriticalAddonsOnly", "true"),)),
        aks("user-0", "user", "7820m", "29073432Ki", "119703055367", type="Standard_D8s_v5"),
        aks("a100-0", "a100", "23680m", "215859896Ki", "119703055367", type="standard_nc24ads_a100_v4",
            labels=AKS_GPU, extra={"nvidia.com/gpu": "1"}, taints=(("sku", "gpu"),)),
        aks("t4spot-0", "t4spot", "7820m", "54226568Ki", "119703055367", type="Standard_NC8as_T4_v3",
            labels={**AKS_GPU, "kubernetes.azure.com/scalesetpriority": "spot"}, extra={"nvidia.com/gpu": "1"},
            taints=(("kubernetes.azure.com/scalesetpriority", "spot"),)),
        node("virtual-node-aci-linux", "10k", "4Ti", "", health=False, pods="5k",
             labels={"type": "virtual-kubelet", "kubernetes.io/role": "agent",
                     "alpha.service-controller.kubernetes.io/exclude-balancer": "true"},
             taints=(("virtual-kubelet.io/provider", "azure"),)),
    ],
    "kubeadm": [
        node("control-plane", "8", "32675292Ki", "93492209510", labels={"node-role.kubernetes.io/control-plane": ""},
             taints=(("node-role.kubernetes.io/control-plane", ""),), health=False),
        node("gpu-1", "128", "1056410708Ki", "14227305052", labels=GFD, health=False,
             extra={"nvidia.com/gpu": "7", "nvidia.com/mig-1g.10gb": "7", "rdma/hca_shared_devices_a": "1k"}),
        node("amd-1", "192", "2113421412Ki", "1778384896512", health=False,
             labels={"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
             extra={"amd.com/gpu": "8", "hugepages-1Gi": "16Gi"}),
    ],
    "k3s": [
        node("desk", "16", "32777408Ki", "8443296967", type="k3s", extra={"nvidia.com/gpu": "1"}, health=False,
             labels={"node-role.kubernetes.io/control-plane": "true", "egress.k3s.io/cluster": "true"}),
        node("shelf", "3900m", "8010724Ki", "58172448768", type="k3s", health=False),
    ],
}  # fmt: skip
"""Clusters → the items of their lists of nodes."""
