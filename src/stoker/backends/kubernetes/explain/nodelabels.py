"""Labels and resources by which clusters name their accelerators, and what the catalog calls these. Pure.

`device_of` reads a node's labels; `label_values` gives the labels that nodes with a model of the catalog may have, one
entry for each scheme: a request matches a node if any of them does (`nodeSelectorTerms` are alternatives).
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

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

_TABLES: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""What clouds and labellers call the models of the catalog: each table has its sources, and its values."""
_AZURE: Final[Mapping[str, str]] = _TABLES["azure"]["values"]
"""Patterns of instance types → the model, for nodes that no labeller has looked at; the last that matches."""
_TYPES: Final[Mapping[str, Sequence[str]]] = _TABLES["instance types"]["values"]
"""Models → the instance types with whole ones: an affinity compares values, so that each type is named. Nodes of EKS's
and AKS's own groups have no label of their accelerator besides."""
_EC2: Final[Mapping[str, str]] = {
    **{kind.partition(".")[0]: name for name, kinds in _TYPES.items() for kind in kinds if "." in kind},
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
_GKE: Final[Mapping[str, Sequence[str]]] = _TABLES["gke"]["values"]
GKE_TPUS: Final[Mapping[str, Sequence[str]]] = _TABLES["gke tpus"]["values"]
"""Generation → its names, that of today's node pools first."""
_KARPENTER: Final[Mapping[str, str]] = _TABLES["karpenter"]["values"]
_COREWEAVE: Final[Mapping[str, Sequence[str]]] = _TABLES["coreweave"]["values"]
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
    names = [name for pattern, name in _AZURE.items() if re.match(pattern, kind, re.IGNORECASE)]
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
        GKE_GPU: tuple(_GKE.get(name, ())),
        GKE_TPU: tuple(GKE_TPUS.get(name, ())),
        **dict.fromkeys(KARPENTER_MEMORIES, (_KARPENTER[name],) if name in _KARPENTER else ()),
        **dict.fromkeys(KARPENTER_ACCELERATORS, neuron),
        COREWEAVE: tuple(_COREWEAVE.get(name, ())),
    }
    types = _TYPES.get(name, ())
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
