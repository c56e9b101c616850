"""What a cluster's nodes have, what of it is free, and whether a pod can ever be on one of them.

`cluster_nodes` reads the list of nodes once; the caller hands over all pods of the cluster besides, where it may list
them, so that free amounts are known, and the pools that an autoscaler can add nodes of. The reading is that of the
scheduler for what a step's pod asks: node selector, required node affinity, taints, resources
(https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/). What else a scheduler may weigh is left out:
a pod that fits here may still wait, one that does not never starts.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.backends.kubernetes.api.client import ApiError, items, reached, seen_items
from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import Object, amount, condition, joined, name, stated_condition
from stoker.core.errors import BackendError
from stoker.core.words import count_text

Amounts = Mapping[str, "Decimal | None"]
"""Resource → amount: cores, bytes, pieces; None for one that is not understood, which neither refuses nor is free."""

_PASSING_TAINTS: Final = (
    # Of nodes that are not ready, drained or about to go: they come and go by themselves.
    # https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "node.cilium.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/",
    # Of what a node waits for when it is new, or what it suffers from: cluster-autoscaler's utils/taints/taints.go.
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "cloud.google.com/impending-node-termination",
    "NodeWithImpairedVolumes",
    "ebs.csi.aws.com/agent-not-ready",  # and those of the other drivers: their READMEs
    "efs.csi.aws.com/agent-not-ready",
    "fsx.csi.aws.com/agent-not-ready",
    "aws-node-termination-handler/",
    "remediator.kubernetes.azure.com/",
)
_ORDER: Final = ("free", "capacity", "taint", "model", "labels", "cordoned", "down")
_AUTOSCALER_LABELS: Final = (
    # Nodes with one of these belong to a group that an autoscaler may enlarge.
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
    "eks.amazonaws.com/compute-type",
)
_AUTOPILOT: Final = "gk3-"
"""What the names of nodes of GKE's Autopilot begin with: it makes them as pods ask for them."""
PROVISIONER: Final = "/apis/karpenter.sh"
"""Of the API of Karpenter, which EKS Auto Mode and the node auto-provisioning of AKS are made of."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_MANY_LABELS: Final = 3
"""Requirements of labels that a sentence names."""


@attrs.frozen(kw_only=True)
class ClusterNode:
    """A node, or what every node of a pool is like that an autoscaler may add."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    """As in `spec.taints`."""
    allocatable: Amounts
    free: Amounts | None = None
    """What no pod has asked for; None where the pods are not known."""
    ready: bool | None = True
    """None where the node does not say."""
    cordoned: bool = False
    """Whether an administrator keeps new pods away from it."""
    partial: bool = False
    """Whether `allocatable` is not all that it has: a pool of which only some amounts are known."""
    most: int | None = None
    """Of a pool, how many nodes there may be; None where that is not known."""
    unread: Mapping[str, str] = attrs.field(factory=dict)
    """What the node says that is not understood: resource → its text."""

    def has(self, resource: str) -> Decimal | None:
        """How much of a resource it has in all; None where that is not known."""
        return self.allocatable.get(resource, None if self.partial else Decimal(0))


@attrs.frozen(kw_only=True)
class Obstacle:
    """Why a node does not take a pod."""

    kind: str
    """A word of `_ORDER`; "free", "cordoned" and "down" pass by themselves."""
    resource: str = ""
    amount: Decimal = Decimal(0)
    """What the node has of it, or has free."""
    words: str = ""
    """The taint or the labels."""

    @property
    def lasts(self) -> bool:
        """Whether the pod can never be there as it is."""
        return self.kind in ("capacity", "taint", "model", "labels")


@attrs.frozen(kw_only=True)
class ClusterNodes:
    """All nodes of a cluster."""

    nodes: tuple[ClusterNode, ...]
    pools: tuple[ClusterNode, ...] = ()
    """What an autoscaler can add, also where no node of it is there now."""
    grows: bool = False
    """Whether an autoscaler may add nodes that neither `nodes` nor `pools` show."""

    def obstacles(self, spec: Object) -> list[tuple[ClusterNode, Obstacle | None]]:
        """Each node with what keeps a pod with this specification from it; None where it fits."""
        request = pod_request(spec)
        return [(node, obstacle(node, spec, request)) for node in self.nodes]

    def may_fit(self, spec: Object) -> bool:
        """Whether a pod may ever be on a node that is there or that an autoscaler can add."""
        return self.grows or self.places(spec, 1) >= 1

    def places(self, spec: Object, wanted: int) -> int:
        """How many of `wanted` pods the whole cluster can ever hold at once, if nothing else runs there."""
        request = pod_request(spec)
        alone = _is_alone(spec)
        there = 0
        for node in self.nodes:
            there += _held(node, spec, request, wanted, alone=alone)
        for pool in self.pools:
            most = wanted if pool.most is None else pool.most
            there += most * _held(pool, spec, request, wanted, alone=alone)
        return min(wanted, there)

    def largest(self, resource: str) -> Decimal:
        """The most of a resource that any node is known to have, or can have."""
        return max((node.has(resource) or Decimal(0) for node in (*self.nodes, *self.pools)), default=Decimal(0))


def cluster_nodes(
    items: Iterable[Object],
    pods: Iterable[Object] | None = None,
    *,
    pools: Iterable[Mapping[str, Any]] = (),
    status: str = "",
    provisioned: bool = False,
) -> ClusterNodes:
    """The nodes of a cluster, from the items of `GET /api/v1/nodes`.

    `pods` are those of all namespaces, where they may be listed; `pools` are of the settings; `status` is the text of
    cluster-autoscaler's ConfigMap kube-system/cluster-autoscaler-status, where it is there; `provisioned` says that the
    cluster has `PROVISIONER`, which makes nodes as pods ask for them.
    """
    used: dict[str, dict[str, Decimal | None]] | None = None
    if pods is not None:
        used = {}
        for pod in pods:
            spec = pod.get("spec") or {}
            if spec.get("nodeName") and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                add(used.setdefault(spec["nodeName"], {}), pod_request(spec))
    nodes = tuple(_node(item, None if used is None else used.get(name(item), {})) for item in items)
    added = tuple(map(_pool, pools))
    tells = any(
        node.name.startswith(_AUTOPILOT) or any(label in node.labels for label in _AUTOSCALER_LABELS) for node in nodes
    )
    return ClusterNodes(nodes=nodes, pools=added, grows=not added and (tells or provisioned or _scales_up(status)))


def pod_request(spec: Object) -> Amounts:
    """What a pod asks of its node: the sum of its containers', or what its largest init container asks; one pod.

    What is asked for the pod as a whole counts instead of its containers' sum.
    https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    """
    total: dict[str, Decimal | None] = {}
    for container in spec.get("containers") or ():
        add(total, _asked(container))
    sidecars: dict[str, Decimal | None] = {}
    most: dict[str, Decimal | None] = {}
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            add(sidecars, asked)
            add(total, asked)
        else:
            add(asked, {resource: beside for resource, beside in sidecars.items() if resource in asked})
            _raise(most, asked)
    _raise(total, most)
    total |= _asked(spec)
    add(total, {resource: amount(text) for resource, text in (spec.get("overhead") or {}).items()})
    return {**{resource: wanted for resource, wanted in total.items() if wanted != 0}, "pods": Decimal(1)}


def add(total: dict[str, Decimal | None], amounts: Amounts) -> None:
    """Add amounts to a sum: with one that is not known it is not known either."""
    for resource, wanted in amounts.items():
        there = total.get(resource, Decimal(0))
        total[resource] = None if there is None or wanted is None else there + wanted


def obstacle(node: ClusterNode, spec: Object, request: Amounts) -> Obstacle | None:
    """What keeps a pod from a node; what lasts comes first. None where it fits."""
    mismatch = _mismatch(node, spec)
    model = _other_model(node, spec) if mismatch else ""
    if model:
        return Obstacle(kind="model", words=model)
    if mismatch:
        return Obstacle(kind="labels", words=mismatch)
    for taint in node.taints:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _is_tolerated(taint, spec):
            key = str(taint.get("key", ""))
            # A cluster may tolerate for the pods that ask for a resource the taint of its name (the admission plug-in
            # ExtendedResourceToleration, which GKE runs).
            if not key.startswith(_PASSING_TAINTS) and not ("/" in key and key in request):
                return Obstacle(kind="taint", words=taint_text(taint))
    for resource, wanted in _telling_first(request):
        there = node.has(resource)
        if there is not None and wanted > there:
            return Obstacle(kind="capacity", resource=resource, amount=there)
    if not node.ready:
        return Obstacle(kind="down")
    if node.cordoned:
        return Obstacle(kind="cordoned")
    for resource, wanted in _telling_first(request):
        left = Decimal(0) if node.free is None else node.free.get(resource, node.has(resource))
        if node.free is not None and left is not None and wanted > left:
            return Obstacle(kind="free", resource=resource, amount=max(Decimal(0), left))
    return None


def obstacles_text(spec: Object, nodes: ClusterNodes) -> str:
    """Why no node takes a pod now: "needs 4 × nvidia.com/gpu: 3 nodes have 2 free, 5 nodes have the taint …"."""
    found = [each for _, each in nodes.obstacles(spec) if each is not None]
    request = pod_request(spec)
    resources = list(dict.fromkeys(each.resource for each in found if each.resource))
    main = [resource for resource in request if nodelabels.is_device(resource)] or resources or ["cpu"]
    named = list(dict.fromkeys([*main[:1], *resources]))
    needs = joined([amount_text(resource, request[resource]) for resource in named if resource in request])
    groups: dict[tuple[str, str, str], list[Obstacle]] = {}
    for each in found:
        groups.setdefault((each.kind, each.resource, each.words), []).append(each)
    parts = [
        _group_text(alike, alone=len(named) == 1)
        for _, alike in sorted(groups.items(), key=lambda group: (_ORDER.index(group[0][0]), -len(group[1])))
    ]
    if not nodes.nodes:
        parts = ["the cluster has no nodes"]
    text = f"needs {needs}: {', '.join(parts)}" if parts else f"needs {needs}"
    largest = [
        f"the largest node ever has {plain_text(resource, nodes.largest(resource))}"
        for resource in named[:1]
        if resource in request and nodes.nodes
    ]
    return "; ".join([text, *largest])


def amount_text(resource: str, value: Decimal | None) -> str:
    """An amount of a resource as a person reads it: "4 × nvidia.com/gpu", "8 CPUs", "64Gi of memory"."""
    if value is None:
        return f"an unknown amount of {resource}"
    if resource == "cpu":
        return f"{_plain(value)} CPU{'' if value == 1 else 's'}"
    if resource == "memory":
        return f"{plain_text(resource, value)} of memory"
    if resource == "ephemeral-storage":
        return f"{plain_text(resource, value)} of disk"
    if resource == "pods":
        return "a place for a pod"
    return f"{_plain(value)} × {resource}"


def plain_text(resource: str, value: Decimal) -> str:
    """The number alone: "8", "64Gi"."""
    if resource not in ("memory", "ephemeral-storage") and not resource.startswith("hugepages-"):
        return _plain(value)
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value >= size:
            return f"{float(value / size):.4g}{unit}"
    return _plain(value)


def taint_text(taint: Object) -> str:
    """A taint as kubectl writes it: "gpu=reserved:NoSchedule"."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


def largest_text(spec: Object, nodes: ClusterNodes) -> tuple[str, str]:
    """Of a pod that never fits: what it asks for that no node has, and the most that there is; in the order of
    resources, labels, taints."""
    found = [each for _, each in nodes.obstacles(spec) if each is not None and each.lasts]
    request = pod_request(spec)
    short = [each.resource for each in found if each.kind == "capacity"]
    if short:
        resource = max(sorted(set(short)), key=short.count)
        fitting = [each.amount for each in found if each.kind == "capacity" and each.resource == resource]
        most = plain_text(resource, max(fitting))
        rest = f" ({len(found) - len(fitting)} more have other labels or taints)" if len(fitting) < len(found) else ""
        return amount_text(resource, request[resource]), f"the largest node has {most}{rest}"
    return "", joined(list(dict.fromkeys(_lasting_text(each) for each in found))[:_MANY_LABELS])


# Reading


def _node(item: Object, used: Amounts | None) -> ClusterNode:
    spec, texts = item.get("spec") or {}, (item.get("status") or {}).get("allocatable") or {}
    allocatable = {resource: amount(text) for resource, text in texts.items()}
    free: dict[str, Decimal | None] | None = None
    if used is not None:
        free = {}
        for resource, there in allocatable.items():
            taken = used.get(resource, Decimal(0))
            free[resource] = None if there is None or taken is None else there - taken
    is_ready = condition(item, "Ready") is not None
    return ClusterNode(
        name=name(item),
        labels=(item.get("metadata") or {}).get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        allocatable=allocatable,
        free=free,
        ready=is_ready or (False if stated_condition(item, "Ready") is not None else None),
        cordoned=bool(spec.get("unschedulable")),
        partial=not texts,
        unread={resource: str(texts[resource]) for resource, there in allocatable.items() if there is None},
    )


def _pool(pool: Mapping[str, Any]) -> ClusterNode:
    """A pool of the settings: amounts that it does not name are not known, and refuse nothing."""
    from stoker.core.accelerators import Accelerator

    allocatable: dict[str, Decimal | None] = {}
    for field, resource in (("cpu_count", "cpu"), ("memory", "memory"), ("disk", "ephemeral-storage")):
        if pool.get(field) is not None:
            allocatable[resource] = Decimal(str(pool[field]))
    labels = dict(pool.get("labels") or {})
    text = pool.get("accelerators")
    vendors = nodelabels.RESOURCES
    if text:
        kind = Accelerator.parse(str(text))
        for resource in vendors.get(kind.model.vendor, ()):
            allocatable[resource] = Decimal(kind.count or 1)
        if kind.slice:
            allocatable[nodelabels.MIG + kind.slice] = Decimal(kind.count or 1)
        for label, values in nodelabels.label_values(kind.name).items():
            labels.setdefault(label, values[0])
    for names in vendors.values():
        for resource in names:
            allocatable.setdefault(resource, Decimal(0))
    for resource, wanted in (pool.get("extended") or {}).items():
        allocatable[resource] = Decimal(str(wanted))
    most = pool.get("nodes")
    return ClusterNode(
        name=str(pool.get("name", "")),
        labels=labels,
        taints=tuple(pool.get("taints") or ()),
        allocatable=allocatable,
        partial=True,
        most=None if most is None else int(most),
    )


def _scales_up(status: str) -> bool:
    """Whether cluster-autoscaler's status shows a group that has fewer nodes than it may have, or no group at all, as
    long as it starts or in a form that is not understood.

    https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md, in the text of before 1.30 and the
    YAML of later versions.
    """
    groups = re.findall(r"cloudProviderTarget[=:]\s*([0-9]+).*?maxSize[=:]\s*([0-9]+)", status, re.DOTALL)
    return any(int(target) < int(most) for target, most in groups) if groups else bool(status.strip())


def _asked(container: Object) -> dict[str, Decimal | None]:
    """What one container asks for: its requests, and where it gives none its limits."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {resource: amount(text) for resource, text in asked.items()}


def _raise(total: dict[str, Decimal | None], amounts: Amounts) -> None:
    """Have `total` be no less than `amounts`."""
    for resource, wanted in amounts.items():
        there = total.get(resource, Decimal(0))
        total[resource] = None if there is None or wanted is None else max(there, wanted)


# Matching


def _held(node: ClusterNode, spec: Object, request: Amounts, wanted: int, *, alone: bool) -> int:
    """How many of `wanted` such pods a node can ever hold at once."""
    found = obstacle(attrs.evolve(node, free=None, ready=True, cordoned=False), spec, request)
    if found is not None:
        return 0
    if alone:
        return 1
    amounts = ((node.has(resource), each) for resource, each in request.items())
    known = [(there, each) for there, each in amounts if there is not None and each is not None]
    return min((int(there // each) for there, each in known if there < each * wanted), default=wanted)


def _is_alone(spec: Object) -> bool:
    """Whether pods of a Job may not be on one node: required anti-affinity by host, or host ports."""
    rules = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or ()
    spread = spec.get("topologySpreadConstraints") or ()
    return any(rule.get("topologyKey") == "kubernetes.io/hostname" for rule in rules) or any(
        rule.get("topologyKey") == "kubernetes.io/hostname"
        and rule.get("whenUnsatisfiable") == "DoNotSchedule"
        and rule.get("minDomains")
        for rule in spread
    )


def _mismatch(node: ClusterNode, spec: Object) -> str:
    """The labels that a pod requires and a node has not; empty where it has all."""
    missing = [
        f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items() if node.labels.get(key) != value
    ]
    if missing:
        return joined(sorted(missing)[:_MANY_LABELS])
    terms = (
        (((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution"))
        or {}
    ).get("nodeSelectorTerms") or ()
    if not terms or any(_term_fits(node, term) for term in terms):
        return ""
    words = [
        _expression_text(each)
        for term in terms
        for each in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
    ]
    shown = list(dict.fromkeys(words))
    more = " …" if len(shown) > _MANY_LABELS else ""
    return joined(shown[:_MANY_LABELS], last="or") + more


def _other_model(node: ClusterNode, spec: Object) -> str:
    """The accelerator that a node has by its labels in place of those that a pod requires: "H100, not L4"; empty where
    the pod requires other labels."""
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    selector = spec.get("nodeSelector") or {}
    wanted: list[str] = []
    for term in terms:
        expressions = term.get("matchExpressions") or ()
        models = [model for each in expressions for model in _models_of(each)]
        # Where one name stands for two sizes, the memory's label is a part of the model.
        memory = (nodelabels.NVIDIA_MEMORY, *nodelabels.KARPENTER_MEMORIES.values())
        rest = [each for each in expressions if not _models_of(each) and each.get("key") not in memory]
        others = {**term, "matchExpressions": rest}
        if not models or not (_term_fits(node, others) or others == {"matchExpressions": []}):
            return ""
        wanted += models
    if not wanted or any(node.labels.get(key) != value for key, value in selector.items()):
        return ""
    device = nodelabels.device_of(node.labels)
    if device is not None and device.name in wanted:
        return ""
    names = joined(list(dict.fromkeys(wanted)), last="or")
    return f"{device.name}, not {names}" if device is not None else f"no label that names {names}"


def _models_of(expression: Object) -> list[str]:
    """The models of the catalog that a requirement allows; empty for one that is not about models."""
    key = str(expression.get("key", ""))
    if key not in (*nodelabels.MODEL_LABELS, nodelabels.INSTANCE_TYPE) or expression.get("operator") != "In":
        return []
    devices = [nodelabels.device_of({key: str(value)}) for value in expression.get("values") or ()]
    return [device.name for device in devices if device is not None and device.known]


def _term_fits(node: ClusterNode, term: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(expression_fits(node.labels, each) for each in expressions) and all(
        expression_fits({"metadata.name": node.name}, each) for each in fields
    )


def expression_fits(labels: Mapping[str, str], expression: Object) -> bool:
    """Whether labels meet a requirement, of a node selector or a label selector.
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#operators"""
    key, values = str(expression.get("key", "")), [str(value) for value in expression.get("values") or ()]
    value = labels.get(key)

    operators: Mapping[str, Callable[[], bool]] = {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: _is_above(value, next(iter(values), None)),
        "Lt": lambda: _is_above(next(iter(values), None), value),
    }
    test = operators.get(str(expression.get("operator")))
    return test is not None and test()


def _is_above(text: str | None, bound: str | None) -> bool:
    """Whether two values of labels or taints are whole numbers, by the scheduler's reading, and the first is larger."""
    numbers = [int(each) for each in (text, bound) if each is not None and _WHOLE.fullmatch(each)]
    return len(numbers) == 2 and numbers[0] > numbers[1]


def _expression_text(expression: Object) -> str:
    key, values = expression.get("key", ""), [str(value) for value in expression.get("values") or ()]
    operator = expression.get("operator")
    if operator == "In":
        return f"{key}={values[0]}" if len(values) == 1 else f"{key} one of {', '.join(values[:_MANY_LABELS])}"
    words = {"NotIn": "not", "Exists": "there", "DoesNotExist": "not there", "Gt": "above", "Lt": "below"}
    return " ".join(filter(None, [str(key), words.get(str(operator), str(operator)), ", ".join(values)]))


def _is_tolerated(taint: Object, spec: Object) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#concepts"""
    for each in spec.get("tolerations") or ():
        if each.get("effect") not in (None, "", taint.get("effect")):
            continue
        exists = each.get("operator") == "Exists"
        if not each.get("key"):
            if exists:
                return True
            continue
        mine, theirs = str(each.get("value") or ""), str(taint.get("value") or "")
        compared = {"Gt": _is_above(theirs, mine), "Lt": _is_above(mine, theirs)}
        if each["key"] == taint.get("key") and (exists or compared.get(str(each.get("operator")), mine == theirs)):
            return True
    return False


# Words


def _telling_first(request: Amounts) -> Sequence[tuple[str, Decimal]]:
    """What is known of a request: devices first, so that a node without the GPUs is not called short of CPUs."""
    known = [(resource, wanted) for resource, wanted in request.items() if wanted is not None]
    return sorted(known, key=lambda pair: (not nodelabels.is_device(pair[0]), pair[0] == "pods"))


def _group_text(alike: Sequence[Obstacle], *, alone: bool) -> str:
    """What several nodes have in common that do not take a pod."""
    first = alike[0]
    number = count_text(len(alike), "node")
    has, is_ = ("has", "is") if len(alike) == 1 else ("have", "are")
    if first.kind in ("free", "capacity"):
        amounts = sorted({each.amount for each in alike})
        texts = [plain_text(first.resource, each) for each in (amounts[0], amounts[-1])]
        value = texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
        what = value if alone else f"{value} {_noun(first.resource)}"
        return f"{number} {has} {what} {'free' if first.kind == 'free' else 'in all'}"
    if first.kind == "taint":
        return f"{number} {has} the taint {first.words}"
    if first.kind == "model":
        return f"{number} {has} {first.words}"
    if first.kind == "labels":
        return f"{number} {has} not the label {first.words}"
    return f"{number} {is_} {'cordoned' if first.kind == 'cordoned' else 'not ready'}"


def _lasting_text(each: Obstacle) -> str:
    if each.kind == "taint":
        return f"a node has the taint {each.words}, which the step does not tolerate"
    if each.kind == "model":
        return f"a node has {each.words}"
    return f"no node has the label {each.words}"


def _noun(resource: str) -> str:
    nouns = {"cpu": "CPUs", "memory": "of memory", "ephemeral-storage": "of disk", "pods": "places for pods"}
    return nouns.get(resource, resource)


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# For `stoker top`: what each node of a cluster has, and what no pod has asked for

PATIENCE: Final = 15.0
"""Seconds for an answer of the API server."""


def nodes(options: Mapping[str, Any]) -> list[PlatformNode]:
    """The nodes of the cluster that these settings name; a `BackendError` where they may not be listed.

    Where the account may not list the pods of all namespaces, what is free is not known.
    """
    try:
        with reached(options, patience=PATIENCE) as cluster:
            there, pods = items(cluster, "/api/v1/nodes"), seen_items(cluster, "/api/v1/pods")
    except ApiError as error:
        refusal = refusal_of(error.status, error.words)
        raise BackendError(f"the cluster's nodes are not known: {refusal.message}", fix=refusal.fix) from error
    return nodes_of(cluster_nodes(there, pods).nodes)


def nodes_of(there: Iterable[ClusterNode]) -> list[PlatformNode]:
    """The nodes by name, with the devices that their resources name."""
    return [_platform_node(one) for one in sorted(there, key=lambda one: one.name)]


def _platform_node(one: ClusterNode) -> PlatformNode:
    told = nodelabels.device_of(one.labels)
    cpus, memory = (one.has(resource) if resource in one.allocatable else None for resource in ("cpu", "memory"))
    devices = [(resource, count) for resource, count in one.allocatable.items() if nodelabels.is_device(resource)]
    free = {resource: None if one.free is None else one.free.get(resource) for resource, _ in devices}
    ready = {None: "unknown", False: "not ready", True: "cordoned" if one.cordoned else "ready"}
    unread = [f"{resource}={text}" for resource, text in one.unread.items()]
    return PlatformNode(
        name=one.name,
        state=", ".join([ready[one.ready], *(f"{text} is not understood" for text in unread)]),
        cpus=None if cpus is None else float(cpus),
        memory=None if memory is None else int(memory),
        devices=tuple(
            NodeDevices(
                model=told.name if told is not None else resource,
                count=float(count),
                free=None if (left := free[resource]) is None else max(0.0, float(left)),
            )
            for resource, count in devices
            if count
        ),
    )
