"""Labels and resources by which clusters name their accelerators, and what the catalog calls these. Pure.

`device_of` reads a node's labels; `label_values` gives the labels that nodes with a model of the catalog may have, one
entry for each scheme: a request matches a node if any of them does (`nodeSelectorTerms` are alternatives).
"""

from __future__ import annotations

import functools
import re
from typing import Final, Mapping

import attrs

from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.accelerators import model as catalog_model
from stoker.core.errors import SettingsError

NVIDIA_PRODUCT: Final = "nvidia.com/gpu.product"
"""GPU feature discovery's: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md"""
NVIDIA_MEMORY: Final = "nvidia.com/gpu.memory"
"""Memory of one GPU in MiB, of the same source."""
AMD_PRODUCT: Final = "amd.com/gpu.product-name"
"""https://github.com/ROCm/k8s-device-plugin/blob/master/cmd/k8s-node-labeller/README.md"""
GKE_GPU: Final = "cloud.google.com/gke-accelerator"
"""https://cloud.google.com/kubernetes-engine/docs/how-to/gpus"""
GKE_TPU: Final = "cloud.google.com/gke-tpu-accelerator"
"""https://cloud.google.com/kubernetes-engine/docs/concepts/tpus"""
GKE_TPU_TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
"""Such as "2x4", of the same source."""
KARPENTER_GPU: Final = "karpenter.k8s.aws/instance-gpu-name"
"""https://karpenter.sh/docs/reference/instance-types/, which EKS Auto Mode has under `eks.amazonaws.com/`."""
KARPENTER_MEMORY: Final = "karpenter.k8s.aws/instance-gpu-memory"
"""Memory of one GPU in MiB, of the same source."""
KARPENTER_MEMORIES: Final[Mapping[str, str]] = {
    KARPENTER_GPU: KARPENTER_MEMORY,
    "eks.amazonaws.com/instance-gpu-name": "eks.amazonaws.com/instance-gpu-memory",
}
"""Labels of a model on Karpenter's nodes, and on those of EKS Auto Mode → the label of its memory."""
KARPENTER_ACCELERATORS: Final = (
    "karpenter.k8s.aws/instance-accelerator-name",
    "eks.amazonaws.com/instance-accelerator-name",
)
COREWEAVE: Final = "gpu.nvidia.com/class"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""https://kubernetes.io/docs/reference/labels-annotations-taints/#nodekubernetesioinstance-type"""

MODEL_LABELS: Final = (
    NVIDIA_PRODUCT,
    AMD_PRODUCT,
    GKE_GPU,
    GKE_TPU,
    *KARPENTER_MEMORIES,
    *KARPENTER_ACCELERATORS,
    "k8s.amazonaws.com/accelerator",  # of EKS's cluster-autoscaler
    "gpu.nvidia.com/model",  # CoreWeave's, also gpu.nvidia.com/class
    COREWEAVE,
    "skypilot.co/accelerator",
    "accelerator",  # what administrators write by hand; AKS writes "nvidia", which no model is called
)
"""Labels whose value names a model, the most exact first."""
_MEMORY_LABELS: Final = (NVIDIA_MEMORY, *KARPENTER_MEMORIES.values())
_DRIVER_LABELS: Final = (
    "nvidia.com/cuda.driver-version.full",
    "amd.com/gpu.driver-version",
    "gpu.intel.com/driver-version",
)

_AZURE: Final = (
    # https://learn.microsoft.com/azure/virtual-machines/sizes/overview#gpu-accelerated
    (r"Standard_N\w+_H100_v5", "H100"),
    (r"Standard_NC\w+_H100_v5", "H100-NVL"),
    (r"Standard_N\w+_H200_v5", "H200"),
    (r"Standard_N\w+_GB200_v6", "GB200"),
    (r"Standard_N\w+_MI300X_v5", "MI300X"),
    (r"Standard_N[CD]\w+_A100_v4", "A100-80GB"),
    (r"Standard_ND96asr_v4", "A100"),
    (r"Standard_NC\w+_T4_v3", "T4"),
    (r"Standard_NC\w+s_v3|Standard_ND40rs_v2", "V100"),
    (r"Standard_NV\w+_A10_v5", "A10"),
)
"""Patterns of instance types → the model, for nodes that no labeller has looked at; the last that matches."""
_SIZES: Final[Mapping[str, str]] = {
    # https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, and as `_AZURE`; an affinity compares values, and
    # each type stands here. Nodes of EKS's and AKS's own groups have no label of their accelerator besides.
    "V100": "p3.2xlarge p3.8xlarge p3.16xlarge Standard_NC6s_v3 Standard_NC12s_v3 Standard_NC24s_v3 Standard_NC24rs_v3",
    "V100-32GB": "p3dn.24xlarge Standard_ND40rs_v2",
    "T4": "g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.12xlarge g4dn.16xlarge g4dn.metal "
    "Standard_NC4as_T4_v3 Standard_NC8as_T4_v3 Standard_NC16as_T4_v3 Standard_NC64as_T4_v3",
    "T4G": "g5g.xlarge g5g.2xlarge g5g.4xlarge g5g.8xlarge g5g.16xlarge g5g.metal",
    "A10": "Standard_NV36ads_A10_v5 Standard_NV36adms_A10_v5 Standard_NV72ads_A10_v5",
    "A10G": "g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.12xlarge g5.16xlarge g5.24xlarge g5.48xlarge",
    "A100": "p4d.24xlarge Standard_ND96asr_v4",
    "A100-80GB": "p4de.24xlarge Standard_ND96amsr_A100_v4 Standard_NC24ads_A100_v4 Standard_NC48ads_A100_v4 "
    "Standard_NC96ads_A100_v4",
    "L4": "g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.12xlarge g6.16xlarge g6.24xlarge g6.48xlarge gr6.4xlarge "
    "gr6.8xlarge",
    "L40S": "g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.12xlarge g6e.16xlarge g6e.24xlarge g6e.48xlarge",
    "RTXPRO4500": "g7.2xlarge g7.4xlarge g7.8xlarge g7.12xlarge g7.24xlarge g7.48xlarge",
    "RTXPRO6000": "g7e.2xlarge g7e.4xlarge g7e.8xlarge g7e.12xlarge g7e.24xlarge g7e.48xlarge",
    "H100": "p5.4xlarge p5.48xlarge Standard_ND96isr_H100_v5",
    "H100-NVL": "Standard_NC40ads_H100_v5 Standard_NC80adis_H100_v5",
    "H200": "p5e.48xlarge p5en.48xlarge Standard_ND96isr_H200_v5",
    "B200": "p6-b200.48xlarge",
    "B300": "p6-b300.48xlarge",
    "GB200": "Standard_ND128isr_NDR_GB200_v6",
    "RadeonProV520": "g4ad.xlarge g4ad.2xlarge g4ad.4xlarge g4ad.8xlarge g4ad.16xlarge",
    "MI300X": "Standard_ND96isr_MI300X_v5",
    "Gaudi": "dl1.24xlarge",
    "inferentia": "inf1.xlarge inf1.2xlarge inf1.6xlarge inf1.24xlarge",
    "inferentia2": "inf2.xlarge inf2.8xlarge inf2.24xlarge inf2.48xlarge",
    "trainium": "trn1.2xlarge trn1.32xlarge trn1n.32xlarge",
    "trainium2": "trn2.3xlarge trn2.48xlarge trn2u.48xlarge",
}
"""Models → the instance types with whole ones."""
_EC2: Final[Mapping[str, str]] = {
    **{size.partition(".")[0]: name for name, sizes in _SIZES.items() for size in sizes.split() if "." in size},
    **dict.fromkeys(("g6f", "gr6f"), "L4"),
}
"""Families of instances of EC2 → the model: "p5" of "p5.48xlarge"."""

RESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    # The name that device plugins advertise whole chips under, the usual one first.
    "nvidia": ("nvidia.com/gpu",),
    "amd": ("amd.com/gpu",),
    "intel": ("gpu.intel.com/xe", "gpu.intel.com/i915"),
    "gaudi": ("habana.ai/gaudi",),
    "neuron": ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice"),
    "tpu": ("google.com/tpu",),
}
"""Vendor → the resources of its device plugins:
https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/ and the vendors' own pages."""
MIG: Final = "nvidia.com/mig-"
"""What resources of slices begin with; then the profile: "nvidia.com/mig-1g.10gb"."""
_GKE: Final[Mapping[str, tuple[str, ...]]] = {
    # https://cloud.google.com/compute/docs/gpus
    **{name: (f"nvidia-tesla-{name.lower()}",) for name in ("K80", "P4", "P100", "V100", "T4", "A100")},
    **{name: (f"nvidia-{name.lower()}",) for name in ("L4", "A100-80GB", "B200", "GB200", "B300", "GB300")},
    "H100": ("nvidia-h100-80gb", "nvidia-h100-mega-80gb"),
    "H100-MEGA": ("nvidia-h100-mega-80gb",),
    "H200": ("nvidia-h200-141gb",),
    "RTXPRO6000": ("nvidia-rtx-pro-6000",),
}
GKE_TPUS: Final[Mapping[str, tuple[str, ...]]] = {
    "tpu-v3": ("tpu-v3-slice", "tpu-v3-device"),
    "tpu-v4": ("tpu-v4-podslice",),
    "tpu-v5e": ("tpu-v5-lite-podslice", "tpu-v5-lite-device"),
    "tpu-v5p": ("tpu-v5p-slice",),
    "tpu-v6e": ("tpu-v6e-slice", "tpu-v6e-device"),
    "tpu-v7x": ("tpu7x",),
}
"""Generation → its names, that of today's node pools first."""
_KARPENTER: Final[Mapping[str, str]] = {
    "V100-32GB": "v100", "A100-80GB": "a100", "RTXPRO4500": "rtx-pro-4500", "RTXPRO6000": "rtx-pro-server-6000",
    "RadeonProV520": "radeon-pro-v520", "Gaudi": "gaudi-hl-205",
    "K80": "k80", "M60": "m60", "V100": "v100", "T4": "t4", "T4G": "t4g", "A10G": "a10g", "A100": "a100", "L4": "l4",
    "L40S": "l40s", "H100": "h100", "H200": "h200", "B200": "b200", "B300": "b300",
}  # fmt: skip
_COREWEAVE: Final[Mapping[str, tuple[str, ...]]] = {
    # https://docs.coreweave.com/docs/platform/instances/gpu-instances
    **{name: (name,) for name in ("A40", "H200", "GH200", "L40", "L40S")},
    **{name: (f"RTX_{name}",) for name in ("A4000", "A5000", "A6000")},
    "A100": ("A100_PCIE_40GB", "A100_NVLINK"),
    "A100-80GB": ("A100_PCIE_80GB", "A100_NVLINK_80GB"),
    "H100-PCIe": ("H100_PCIE",),
    "H100": ("H100_NVLINK_80GB",),
}
_LARGER: Final[Mapping[str, str]] = {"A100": "A100-80GB", "V100": "V100-32GB"}
"""Models whose larger size has the same value of Karpenter's label."""
_KARPENTER_NEURON: Final = ("inferentia", "inferentia2", "trainium", "trainium2")


@attrs.frozen(kw_only=True)
class NodeDevice:
    """The accelerators of a node, by its labels."""

    name: str
    """The catalog's name; what the label says where the catalog does not know it."""
    known: bool
    """Whether the catalog knows it."""
    label: str
    """The label that tells it."""
    slice: str = ""
    """The profile where all of the node's GPUs are cut into the same slices."""


def device_of(labels: Mapping[str, str]) -> NodeDevice | None:
    """What accelerators a node has, by its labels; None where no label tells it."""
    unknown: NodeDevice | None = None
    for label in MODEL_LABELS:
        value = labels.get(label, "")
        if not value or value in ("nvidia", "amd"):
            continue
        if value in _nvidia_names():
            return NodeDevice(name=_nvidia_names()[value], known=True, label=label)
        try:
            parsed = Accelerator.parse(value.removesuffix("-SHARED").replace(":", "-"))
        except SettingsError:
            unknown = unknown or NodeDevice(name=value, known=False, label=label)
            continue
        name = _by_memory(parsed.name, labels)
        return NodeDevice(name=name, known=True, label=label, slice=parsed.slice)
    kind = labels.get(INSTANCE_TYPE, "")
    family, dot, _ = kind.lower().partition(".")
    names = [name for pattern, name in _AZURE if re.match(pattern, kind, re.IGNORECASE)]
    names += [_EC2[family]] if dot and family in _EC2 else []
    if names:
        return NodeDevice(name=names[-1], known=True, label=INSTANCE_TYPE)
    return unknown


def memory_of(labels: Mapping[str, str]) -> int | None:
    """Bytes of memory of one of a node's GPUs, by its labels; None where none tells it."""
    for label in _MEMORY_LABELS:
        if labels.get(label, "").isdecimal():
            return int(labels[label]) * 2**20
    return None


def driver_of(labels: Mapping[str, str]) -> str:
    """The version of the accelerators' driver, by a node's labels; empty where none tells it."""
    for label in _DRIVER_LABELS:
        if labels.get(label):
            return labels[label]
    # GPU feature discovery wrote the parts of the version apart before it wrote the whole.
    parts = [labels.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    return ".".join(part for part in parts if part)


def label_values(name: str) -> Mapping[str, tuple[str, ...]]:
    """Label → the values that nodes with a model of the catalog may have; a scheme without the model is left out.

    Where a label does not tell memory, as Karpenter's, the memory's label is to be compared besides (`memory_of`).
    """
    vendor, neuron = catalog_model(name).vendor, (name,) if name in _KARPENTER_NEURON else ()
    values: dict[str, tuple[str, ...]] = {
        NVIDIA_PRODUCT: _nvidia_products(name) if vendor == "nvidia" else (),
        AMD_PRODUCT: _amd_products(name) if vendor == "amd" else (),
        GKE_GPU: _GKE.get(name, ()),
        GKE_TPU: GKE_TPUS.get(name, ()),
        **dict.fromkeys(KARPENTER_MEMORIES, (_KARPENTER[name],) if name in _KARPENTER else ()),
        **dict.fromkeys(KARPENTER_ACCELERATORS, neuron),
        COREWEAVE: _COREWEAVE.get(name, ()),
    }
    types = _SIZES.get(name, "").split()
    # AKS writes a size as it was written when the nodes were asked for: mostly so, or all in small letters.
    values[INSTANCE_TYPE] = (*types, *(each.lower() for each in types if each.lower() != each))
    return {label: texts for label, texts in values.items() if texts}


def product_names(name: str) -> tuple[str, ...]:
    """What the vendor's own library calls a model, as drivers of Dynamic Resource Allocation publish it."""
    if catalog_model(name).vendor == "nvidia":
        return _nvidia_drivers_names(name)
    return tuple(text.replace("_", " ") for text in _amd_products(name)) if catalog_model(name).vendor == "amd" else ()


def bounds_of(name: str, label: str) -> tuple[int, int] | None:
    """MiB above and below which a label's memory (`KARPENTER_MEMORIES`) is for a model whose value of the label another
    size shares; 0 for no bound."""
    for small, large in _LARGER.items():
        if label in KARPENTER_MEMORIES and name in (small, large):
            between = (MODELS[small].memory[-1] + MODELS[large].memory[-1]) // 2 >> 20
            return (0, between) if name == small else (between, 0)
    return None


def is_device(resource: str) -> bool:
    """Whether a resource of nodes is an accelerator, or a part of one."""
    return resource.startswith(MIG) or any(resource in names for names in RESOURCES.values())


def _nvidia_drivers_names(name: str) -> tuple[str, ...]:
    from stoker.vendors.nvidia.chips import NVIDIA

    return NVIDIA[name].names if name in NVIDIA else ()


def _nvidia_products(name: str) -> tuple[str, ...]:
    """The driver's names of a model as GPU feature discovery writes them: dashes for blanks, and only what may be in a
    label."""
    texts = (re.sub(r"[^\w.-]", "", text.replace(" ", "-")) for text in _nvidia_drivers_names(name))
    return tuple(dict.fromkeys(texts))


def _amd_products(name: str) -> tuple[str, ...]:
    """The driver's names of an Instinct as the node labeller writes them: underscores for blanks."""
    forms = [spelling for spelling in MODELS[name].spellings if spelling.startswith(f"{name}-")]
    texts = [f"AMD_Instinct_{form.replace('-', '_')}" for form in (name, *forms) if not form.endswith("GB")]
    return tuple(texts) if name.startswith("MI") else ()


@functools.cache
def _nvidia_names() -> Mapping[str, str]:
    """What GPU feature discovery writes → the model; the driver calls some as nobody else does."""
    return {text: name for name in MODELS if MODELS[name].vendor == "nvidia" for text in _nvidia_products(name)}


def _by_memory(name: str, labels: Mapping[str, str]) -> str:
    """The model of the same family that has the memory which a label tells: Karpenter calls both A100s "a100"."""
    memory = memory_of(labels)
    larger = _LARGER.get(name)
    if memory is None or larger is None:
        return name
    # Labels tell usable memory, a little less than what is sold.
    return larger if memory > MODELS[name].memory[-1] * 1.2 else name
