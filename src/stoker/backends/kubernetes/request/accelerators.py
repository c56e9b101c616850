"""From the accelerators that a step asks for to what its pod asks of Kubernetes: resource, node labels, tolerations.

Pure. What cannot be asked of Kubernetes in any words is `AcceleratorRequest.refusal`, which `check` reports.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.accelerators import MODELS, VENDORS, Accelerator
from stoker.core.resources import ResourceSettings, describe

KARPENTER_SPOT: Final = "karpenter.sh/capacity-type"
SPOT: Final[Mapping[str, str]] = {
    "cloud.google.com/gke-spot": "true",  # https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms
    KARPENTER_SPOT: "spot",  # https://karpenter.sh/docs/concepts/scheduling/#well-known-labels
    "eks.amazonaws.com/capacityType": "SPOT",  # https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html
    "kubernetes.azure.com/scalesetpriority": "spot",  # https://learn.microsoft.com/en-us/azure/aks/spot-node-pool
}
"""Labels of nodes that the cloud can take away; on GKE and AKS they have a taint of the same words."""
GPU_TAINTS: Final = ("sku",)
"""Keys of taints with the value "gpu", as AKS' documentation has them:
https://learn.microsoft.com/en-us/azure/aks/use-nvidia-gpu"""
_KEPT: Final = 0.06
"""The part of its memory that a driver may keep for itself: 15109 MiB are left of a T4's 16 GB. No two sizes in the
catalog are that near to each other."""
_FLAT: Final[Mapping[int, str]] = {
    1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16",
}  # fmt: skip
_SMALL: Final[Mapping[int, str]] = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
_SHAPES: Final[Mapping[str, Mapping[int, str]]] = {
    # https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
    "tpu-v3": {chips: shape for chips, shape in _FLAT.items() if chips not in (1, 8)},
    "tpu-v4": _SMALL,
    "tpu-v5e": _FLAT,
    "tpu-v5p": _SMALL,
    "tpu-v6e": _FLAT,
    "tpu-v7x": {1: "1x1x1", **_SMALL},
}
"""Generation → chips of a slice → its topology; larger ones are made of cubes (`_topology`)."""
_CUBE: Final = 4**3
"""Chips of a cube of 4 × 4 × 4, of which larger slices with three dimensions are made."""
_CUBES: Final[Mapping[str, int]] = {"tpu-v4": 64, "tpu-v5p": 140, "tpu-v7x": 144}
"""Generation → the cubes of its largest slice: https://cloud.google.com/tpu/docs/v4, v5p, tpu7x"""
_SIDE: Final = 64
"""The most cubes along a side: https://github.com/AI-Hypercomputer/xpk, `core/system_characteristics.py`."""
_TPU_HOSTS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("tpu-v3", "tpu-v4", "tpu-v5p"), (4,)),
    **dict.fromkeys(("tpu-v5e", "tpu-v6e"), (1, 4, 8)),
    "tpu-v7x": (1, 4),
}
"""How many chips a node has; the nodes of a slice that spans several have 4 each."""


@attrs.frozen
class RefusedRequest:
    """What of a request Kubernetes cannot give in any words."""

    what: str
    why: str
    fix: str


@attrs.frozen(kw_only=True)
class AcceleratorRequest:
    """What each pod of a step asks for, by device plugin or by claim."""

    vendor: str
    """The name of the vendor in the catalog."""
    resource: str
    """The extended resource, such as "nvidia.com/gpu"."""
    count: int
    """How many of it."""
    kinds: tuple[Accelerator, ...] = ()
    """The alternatives that the pod may run on, the one it would rather have first; empty for any."""
    left_out: tuple[Accelerator, ...] = ()
    """Alternatives that no pod can ask for beside these."""
    memory: int = 0
    """Bytes that each device must have."""
    terms: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    """Requirements on a node's labels: it must meet all of one of these; empty where any node will do."""
    preferences: tuple[tuple[tuple[Mapping[str, Any], ...], ...], ...] = ()
    """The terms of each alternative but the last, the best first."""
    selector: Mapping[str, str] = attrs.field(factory=dict)
    """Labels that the node must have besides."""
    tolerations: tuple[Mapping[str, str], ...] = ()
    """For the taints that nodes with such devices usually have."""
    refusal: RefusedRequest | None = None
    """Why this cannot be asked for; the rest is then not to be used."""

    @property
    def text(self) -> str:
        """The request in words: "8 × nvidia.com/gpu of H100 or H200"."""
        kinds = " or ".join(str(attrs.evolve(kind, count=None)) for kind in self.kinds)
        return f"{self.count} × {self.resource}{' of ' if kinds else ''}{kinds}"


def accelerator_request(resources: ResourceSettings, settings: KubernetesSettings) -> AcceleratorRequest | None:
    """What a pod asks for; None for a step without accelerators."""
    count = resources.gpus_per_node
    if not count:
        return None
    wanted: tuple[Accelerator, ...] = resources.get("accelerators", ())
    vendor = wanted[0].model.vendor if wanted else resources.get("gpu_vendor", "nvidia")
    first = _resource(vendor, wanted[0].slice if wanted else "", settings)
    alike = [kind for kind in wanted if _same(kind, wanted[0], count, settings)]
    request = AcceleratorRequest(
        vendor=vendor,
        resource=first,
        count=(wanted[0].count or count) if wanted else count,
        kinds=tuple(alike),
        left_out=tuple(kind for kind in wanted if kind not in alike),
        memory=resources.get("gpu_memory", 0),
        tolerations=_tolerations(vendor, first),
    )
    refusal = _refusal(resources, request, settings)
    if refusal is not None:
        return attrs.evolve(request, refusal=refusal)
    if vendor == "tpu":
        return attrs.evolve(request, selector=_slice_selector(resources, request, settings))
    if settings.get("device_class"):
        return request  # its claim selects devices
    return attrs.evolve(
        request,
        terms=_terms(request, settings),
        preferences=tuple(_kind_terms((kind,), request, settings) for kind in alike[:-1]),
    )


def resource_name(vendor: str, settings: KubernetesSettings) -> str:
    """The extended resource of a vendor's whole devices; empty where no device plugin counts them."""
    named = settings.get("resource_names", {}).get(vendor)
    return named or next(iter(nodelabels.RESOURCES.get(vendor, ())), "")


def claim_template(request: AcceleratorRequest, name: str, settings: KubernetesSettings) -> dict[str, Any]:
    """The ResourceClaimTemplate of a request (https://kubernetes.io/docs/concepts/scheduling-eviction/
    dynamic-resource-allocation/): the first alternative that the cluster has."""
    choices: list[Accelerator | None] = [*request.kinds, *request.left_out]
    choices = choices or [None]
    asked = [_device_request(kind, request, settings) for kind in choices]
    if len(asked) == 1:
        device: dict[str, Any] = {"name": "accelerators", "exactly": asked[0]}
    else:
        subrequests = [{"name": f"choice-{number}", **part} for number, part in enumerate(asked)]
        device = {"name": "accelerators", "firstAvailable": subrequests}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [device]}}},
    }


def _device_request(
    kind: Accelerator | None, request: AcceleratorRequest, settings: KubernetesSettings
) -> dict[str, Any]:
    driver = settings.get("device_class")
    count = (kind.count if kind is not None else None) or request.count
    expressions = []
    if kind is not None:
        # The drivers of NVIDIA and AMD publish what the vendor's own library calls a device.
        domain = driver.replace("mig.", "gpu.")
        names = nodelabels.product_names(kind.name)
        listed = ", ".join(f'"{name}"' for name in names)
        expressions.append(f'device.attributes["{domain}"].productName in [{listed}]')
        if kind.slice:
            expressions.append(f'device.attributes["{domain}"].profile == "{kind.slice}"')
    if request.memory:
        least = _mebibytes(request.memory)
        expressions.append(f'device.capacity["{driver}"].memory.compareTo(quantity("{least}Mi")) >= 0')
    body: dict[str, Any] = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": count}
    if expressions:
        body["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return body


def _same(kind: Accelerator, first: Accelerator, count: int, settings: KubernetesSettings) -> bool:
    """Whether a pod that asks for the first alternative asks for this one in the same words."""
    return (
        kind.model.vendor == first.model.vendor
        and kind.slice == first.slice
        and (kind.count or count) == (first.count or count)
        and kind.model.vendor != "tpu"
    ) or kind == first


def _resource(vendor: str, profile: str, settings: KubernetesSettings) -> str:
    if profile and settings.get("mig_strategy", "mixed") == "mixed":
        # The device plugin writes "1g.10gb.me" for "1g.10gb+me": no resource has a plus in its name.
        return nodelabels.MIG + profile.replace("+", ".")
    return resource_name(vendor, settings)


def _tolerations(vendor: str, resource: str) -> tuple[Mapping[str, str], ...]:
    """For taints by the name of the resource, which clouds and device plugins use, and what AKS documents."""
    usual = next(iter(nodelabels.RESOURCES.get(vendor, ())), resource)
    keys = dict.fromkeys(key for key in (usual, resource) if key)
    tolerations = [{"key": key, "operator": "Exists"} for key in keys]
    if vendor in ("nvidia", "amd"):
        tolerations += [{"key": key, "operator": "Equal", "value": "gpu"} for key in GPU_TAINTS]
    return tuple(tolerations)


def _kind(settings: KubernetesSettings) -> str:
    """The name by which a user writes these settings: other backends' are made of them."""
    return type(settings).__name__


def _refusal(
    resources: ResourceSettings, request: AcceleratorRequest, settings: KubernetesSettings
) -> RefusedRequest | None:
    asks, kind_of = f"asks for {describe(resources)}", _kind(settings)
    maker = VENDORS.get(request.vendor, request.vendor)
    if resources.get("share"):
        fix = (
            'ask for a MIG slice such as accelerators="A100-80GB/1g.10gb"; or where the operator lets containers share '
            f"GPUs, for one without share and with {kind_of}(resource_names={{'nvidia': 'nvidia.com/gpu.shared'}})"
        )
        why = "a pod asks for whole devices: no device plugin counts the memory of a part"
        return RefusedRequest(asks, why, fix)
    if not request.resource:
        fix = (
            f"name the resource that your cluster counts them by: {kind_of}(resource_names={{'{request.vendor}': '…'}})"
        )
        return RefusedRequest(asks, f"no device plugin for Kubernetes counts accelerators of {maker}", fix)
    if request.vendor == "tpu":
        return _tpu_refusal(resources, request, settings)
    for kind in request.kinds:
        if settings.get("device_class"):
            if not nodelabels.product_names(kind.name):
                what = f"asks for {kind} by the device class {settings.get('device_class')}"
                fix = "remove device_class, or select it by an overlay: KubernetesSettings(overlay={…})"
                return RefusedRequest(what, "what its driver calls that model is not known", fix)
        elif not _kind_terms((kind,), request, settings) and kind.name not in settings.get("accelerators", {}):
            fix = f"say by which labels yours does: {kind_of}(accelerators={{'{kind.name}': {{'pool': '…'}}}})"
            return RefusedRequest(
                f"asks for {kind}", "no label is known by which clusters mark nodes that have it", fix
            )
    if request.memory and not request.kinds and not _terms(request, settings):
        why = f"no label tells the memory of accelerators of {maker}"
        return RefusedRequest(asks, why, "name the model: resources.accelerators='…'")
    return None


def _terms(request: AcceleratorRequest, settings: KubernetesSettings) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    if request.kinds:
        return _kind_terms(request.kinds, request, settings)
    if not request.memory:
        return ()
    least = str(_mebibytes(request.memory) - 1)
    enough = [
        Accelerator(name=name)
        for name in MODELS
        if MODELS[name].vendor == request.vendor and MODELS[name].memory[0] >= request.memory
    ]
    terms: list[tuple[Mapping[str, Any], ...]] = []
    if request.vendor == "nvidia":
        labels = (nodelabels.NVIDIA_MEMORY, *nodelabels.KARPENTER_MEMORIES.values())
        terms += [({"key": label, "operator": "Gt", "values": [least]},) for label in labels]
    # Where a label tells memory, it decides; elsewhere the model does.
    told = (nodelabels.NVIDIA_PRODUCT, *nodelabels.KARPENTER_MEMORIES) if request.vendor == "nvidia" else ()
    plain = attrs.evolve(request, memory=0)
    return (*terms, *(term for term in _kind_terms(enough, plain, settings) if term[0]["key"] not in told))


def _kind_terms(
    kinds: Iterable[Accelerator], request: AcceleratorRequest, settings: KubernetesSettings
) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    """For each label that marks nodes with one of these models, what a node's labels must be."""
    values: dict[str, dict[str, list[str]]] = {}
    own: list[tuple[Mapping[str, Any], ...]] = []
    for kind in kinds:
        labels = settings.get("accelerators", {}).get(kind.name)
        if labels is not None:
            own.append(tuple({"key": key, "operator": "In", "values": [text]} for key, text in labels.items()))
            continue
        for label, spellings in nodelabels.label_values(kind.name).items():
            # One value of a label may stand for two sizes of memory, which another label tells apart.
            bounds = nodelabels.bounds_of(kind.name, label)
            ends = "" if bounds is None else f"{bounds[0]}-{bounds[1]}"
            known = values.setdefault(label, {}).setdefault(ends, [])
            known += [text for text in _with_slice(spellings, kind, label, settings) if text not in known]
    if any(not term for term in own):
        return ()  # a kind whose nodes need no label: any node will do
    terms = [term for term in own if term]
    for label, sets in values.items():
        for ends, texts in sets.items():
            requirements: list[Mapping[str, Any]] = [{"key": label, "operator": "In", "values": texts}]
            if ends:
                low, _, high = ends.partition("-")
                memory = nodelabels.KARPENTER_MEMORIES[label]
                requirements += [{"key": memory, "operator": "Gt", "values": [low]}] if int(low) else []
                requirements += [{"key": memory, "operator": "Lt", "values": [high]}] if int(high) else []
            if request.memory and label == nodelabels.NVIDIA_PRODUCT and not any(kind.slice for kind in request.kinds):
                least = str(_mebibytes(request.memory) - 1)
                requirements.append({"key": nodelabels.NVIDIA_MEMORY, "operator": "Gt", "values": [least]})
            terms.append(tuple(requirements))
    return tuple(terms)


def _with_slice(texts: Iterable[str], kind: Accelerator, label: str, settings: KubernetesSettings) -> Iterable[str]:
    """A label's values as nodes have them whose GPUs are all cut into the same slices."""
    if label == nodelabels.NVIDIA_PRODUCT and kind.slice and settings.get("mig_strategy", "mixed") == "single":
        return [f"{text}-MIG-{kind.slice}" for text in texts]
    return texts


def _mebibytes(size: int) -> int:
    return int(size * (1 - _KEPT)) >> 20


# TPUs


def _tpu_refusal(
    resources: ResourceSettings, request: AcceleratorRequest, settings: KubernetesSettings
) -> RefusedRequest | None:
    if not request.kinds:
        fix = 'name the generation: resources.accelerators="tpu-v5e:4"'
        return RefusedRequest(f"asks for {describe(resources)}", "GKE gives TPUs by generation and topology", fix)
    kind, nodes = request.kinds[0], resources.get("nodes", 1)
    if kind.name in settings.get("accelerators", {}):
        return None
    hosts = _TPU_HOSTS.get(kind.name, ())
    if not hosts:
        fix = f"ask for one of {', '.join(_SHAPES)}"
        return RefusedRequest(f"asks for {kind}", "GKE has no nodes of that generation", fix)
    if settings.get("tpu_topology"):
        return None
    hosts = hosts if nodes == 1 else (4,)
    if request.count not in hosts:
        where = "1 node" if nodes == 1 else f"each of {nodes} nodes"
        which = "a node" if nodes == 1 else "a node of a slice that spans several"
        why = f"{which} has {' or '.join(map(str, hosts))}, and a pod takes them all"
        larger = next((chips for chips in hosts if chips >= request.count), hosts[-1])
        what = f"asks for {request.count} chips of {kind.name} on {where}"
        return RefusedRequest(what, why, f'resources.accelerators="{kind.name}:{larger}"')
    if _topology(kind.name, request.count * nodes) is None:
        near = " or ".join(map(str, _near(kind.name, request.count, nodes)))
        what = f"asks for {nodes} nodes with {request.count} chips of {kind.name} each"
        fix = f"resources.nodes={near}; or name it: {_kind(settings)}(tpu_topology='…')"
        return RefusedRequest(what, "there is no slice of that size", fix)
    return None


def _slice_selector(
    resources: ResourceSettings, request: AcceleratorRequest, settings: KubernetesSettings
) -> dict[str, str]:
    """GKE selects a slice by both labels; its autoscaler reads them from `nodeSelector`."""
    kind = request.kinds[0]
    labels = settings.get("accelerators", {}).get(kind.name)
    if labels is not None:
        return dict(labels)
    chips = request.count * resources.get("nodes", 1)
    topology = settings.get("tpu_topology") or _topology(kind.name, chips)
    assert topology is not None, "`_tpu_refusal` has refused it"
    return {nodelabels.GKE_TPU: nodelabels.GKE_TPUS[kind.name][0], nodelabels.GKE_TPU_TOPOLOGY: topology}


def _topology(generation: str, chips: int) -> str | None:
    """The topology of a slice of so many chips: of cubes the most compact one. None where there is no such slice."""
    if chips in _SHAPES[generation]:
        return _SHAPES[generation][chips]
    cubes, rest = divmod(chips, _CUBE)
    if rest or not 1 <= cubes <= _CUBES.get(generation, 0):
        return None
    sides = [
        (low, middle, cubes // (low * middle))
        for low in range(1, cubes + 1)
        for middle in range(low, cubes // low + 1)
        if cubes % (low * middle) == 0 and middle <= cubes // (low * middle) <= _SIDE
    ]
    return "x".join(str(4 * side) for side in min(sides, key=sum)) if sides else None


def _near(generation: str, chips: int, nodes: int) -> list[int]:
    """The next smaller and the next larger number of nodes that make a slice, with so many chips each."""
    most = max(*_SHAPES[generation], _CUBES.get(generation, 0) * _CUBE) // chips
    smaller = next((number for number in range(min(nodes, most), 0, -1) if _topology(generation, number * chips)), None)
    larger = next((number for number in range(nodes, most + 1) if _topology(generation, number * chips)), None)
    return [number for number in (smaller, larger) if number is not None]
