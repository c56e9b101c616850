"""From a step's request to the template of its pod: pure, plain dicts as the API has them.

`pod_template` is complete but for what the Job controller adds. What an operator's queue or scheduler needs besides is
`admission`, and objects that must be there before the Job are `companions`.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.overlays import merged
from stoker.backends.kubernetes.request import pod as podprogram
from stoker.backends.kubernetes.request.accelerators import (
    SPOT,
    AcceleratorRequest,
    accelerator_request,
    claim_template,
)
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.resources import ResourceSettings

CONTAINER: Final = "step"
"""The name of the container in which a step runs."""
CPU: Final = 0.1
"""CPUs that a pod asks for whose step asks for none: less than any node has left, so that nothing waits for it."""
MEMORY: Final = 256 << 20
"""Bytes that such a pod asks for: Python and Stoker's worker. There is no limit unless the step asks for memory."""
TMPFS: Final = "/stoker_temp"
EFA: Final = "vpc.amazonaws.com/efa"
"""https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html"""
_REMOTE_MEMORY: Final = ("rdma/", EFA, "nvidia.com/hostdev", "openshift.io/")
"""What names of resources for RDMA begin with. Registering memory with an adapter locks it, which needs IPC_LOCK:
https://docs.nvidia.com/networking/display/public/sol/rdma+over+converged+ethernet+in+kubernetes"""
COMPUTE_POOL: Final = "outerbounds.co/compute-pool"
"""The label by which Metaflow's `compute_pool` selects nodes."""
HOSTNAME: Final = "kubernetes.io/hostname"
KUEUE: Final = "kueue.x-k8s.io"
"""The group of Kueue's API, with which its labels begin."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""The label of everything that Stoker makes; its value is "stoker"."""
GANG_LABEL: Final = "stoker/request"
"""The label that the pods of one job have in common."""


_OF_POD: Final = rf"from {re.escape(podprogram.__name__)} import .*\n"


@functools.cache
def program(module: ModuleType) -> str:
    """The text of a module that is the program of a pod. What it imports of `pod` stands in its text: nothing of
    Stoker's is there yet."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    shared, _, _ = Path(podprogram.__file__).read_text(encoding="utf-8").partition("if __name__ ==")
    return re.sub(_OF_POD, lambda _: shared.partition("annotations\n")[2], text, count=1)


def run_variable(settings: KubernetesSettings, name: str) -> tuple[str, ...]:
    """Runs a pod's program, which is a variable: a command that is executed later stands in a URL, of which proxies
    take 8 kB."""
    return str(settings.get("executable", "python3")), "-c", f"import os; exec(os.environ['{name}'])"


@attrs.frozen(kw_only=True)
class PodMount:
    """A volume of Stoker's own."""

    name: str
    source: Mapping[str, Any]
    """The volume without its name: `{"configMap": {"name": …}}`."""
    path: str
    """Where it is mounted."""
    read_only: bool = True


@attrs.frozen(kw_only=True)
class PodRequest:
    """All that a pod follows from."""

    resources: ResourceSettings
    settings: KubernetesSettings
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """Stoker's own; "stoker/request" is the same for all pods of a job and for no other's."""
    mounts: Sequence[PodMount] = ()
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL, where the settings give none."""
    nodes: int = 1
    """Pods that start together."""
    avoid: Sequence[str] = ()
    """Names of nodes that the run leaves out."""
    name: str = ""
    """The Job's name, after which `companions` are named."""


def pod_template(request: PodRequest) -> dict[str, Any]:
    """The pod template: `metadata` and `spec`."""
    settings = request.settings
    accelerators = accelerator_request(request.resources, settings)
    volumes, mounts = _volumes(request)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": request.image,
        "imagePullPolicy": settings.get("image_pull_policy"),
        "command": list(request.command),
        "env": _variables(request),
        "envFrom": [
            *({"secretRef": {"name": name}} for name in settings.get("secrets", ())),
            *({"configMapRef": {"name": name}} for name in settings.get("config_maps", ())),
            *map(dict, settings.get("env_from", ())),
        ],
        "ports": [{"containerPort": settings.get("port")}] if settings.get("port") else [],
        "resources": merged(_resources(request, accelerators), settings.get("pod_resources", {})),
        "securityContext": _security(request),
        "volumeMounts": mounts,
        # The last lines of the log where a container leaves no message of its own.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    host_network = settings.get("host_network", False)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(settings.get("grace_period", request.grace)),
        # A namespace with many services would put thousands of variables into each container.
        "enableServiceLinks": False,
        "serviceAccountName": settings.get("service_account"),
        "imagePullSecrets": [{"name": name} for name in settings.get("image_pull_secrets", ())],
        "priorityClassName": settings.get("priority_class"),
        "runtimeClassName": settings.get("runtime_class"),
        "schedulerName": settings.get("scheduler") or _SCHEDULERS.get(settings.get("queueing", "")),
        "hostNetwork": True if host_network else None,
        "dnsPolicy": "ClusterFirstWithHostNet" if host_network else None,
        "hostIPC": settings.get("host_ipc"),
        "securityContext": settings.get("pod_security_context"),
        "nodeSelector": _selector(settings, accelerators),
        "affinity": _affinity(request, accelerators),
        "tolerations": _tolerations(request, accelerators),
        "volumes": volumes,
        "containers": [_without_nothing(container)],
    }
    if settings.get("device_class") and accelerators is not None:
        spec["resourceClaims"] = [{"name": "accelerators", "resourceClaimTemplateName": _claim_name(request)}]
    added = admission(request)
    template = {
        "metadata": _without_nothing(
            {
                "labels": {**settings.get("labels", {}), **request.labels, **added.pod_labels},
                "annotations": {**settings.get("annotations", {}), **added.pod_annotations},
            }
        ),
        "spec": merged(_without_nothing(spec), settings.get("pod_spec", {})),
    }
    return merged(template, settings.get("overlay", {}))  # type: ignore[no-any-return]


# Queues and gang schedulers

JOB_SETS: Final = "jobset.x-k8s.io"
"""The group of JobSet's API."""
DEVICES: Final = "resource.k8s.io"
"""The group of the API of claims on devices."""
_GROUPS: Final[Mapping[str, str]] = {
    "volcano": "scheduling.volcano.sh/v1beta1",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}
"""The version of the API of a PodGroup."""
_SCHEDULERS: Final[Mapping[str, str]] = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}
"""The scheduler of a PodGroup, by its usual name."""


@attrs.frozen(kw_only=True)
class Admission:
    """What a queue or a gang scheduler reads."""

    labels: Mapping[str, str] = attrs.field(factory=dict)
    """Of the Job."""
    suspend: bool | None = None
    """`suspend` of the Job: Kueue starts it when it is admitted."""
    pod_labels: Mapping[str, str] = attrs.field(factory=dict)
    pod_annotations: Mapping[str, str] = attrs.field(factory=dict)
    group: Mapping[str, Any] | None = None
    """The PodGroup."""


def admission(request: PodRequest) -> Admission:
    """What the settings' queue needs of a Job and its pods."""
    settings = request.settings
    queueing = settings.get("queueing") or ("kueue" if settings.get("queue") else "")
    topology = settings.get("topology")
    if queueing == "kueue":
        # https://kueue.sigs.k8s.io/docs/tasks/run/jobs/ and docs/concepts/topology_aware_scheduling/
        labels = {
            f"{KUEUE}/queue-name": settings.get("queue", "default"),
            f"{KUEUE}/priority-class": settings.get("queue_priority"),
        }
        preferred = "preferred" if settings.get("placement", "SPREAD") == "SPREAD" else "required"
        annotations = {f"{KUEUE}/podset-{preferred}-topology": topology} if topology else {}
        return Admission(labels=_texts(labels), suspend=True, pod_annotations=annotations)
    if queueing == "volcano":
        # https://volcano.sh/en/docs/podgroup/
        body = {
            "minMember": request.nodes,
            "queue": settings.get("queue"),
            "priorityClassName": settings.get("queue_priority"),
        }
        group = _group(_GROUPS[queueing], request, body)
        return Admission(pod_annotations={"scheduling.k8s.io/group-name": request.name}, group=group)
    if queueing == "coscheduling":
        # https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/
        group = _group(_GROUPS[queueing], request, {"minMember": request.nodes})
        return Admission(pod_labels={"scheduling.x-k8s.io/pod-group": request.name}, group=group)
    return Admission()


def groups_of(settings: KubernetesSettings) -> dict[str, str]:
    """The groups of the API, besides Kubernetes' own, of the kinds that these settings may have made → the setting."""
    groups = {}
    if settings.get("jobset"):
        groups[JOB_SETS] = "jobset=True"
    if settings.get("queueing") in _GROUPS:
        groups[_GROUPS[settings.get("queueing")].partition("/")[0]] = f"queueing='{settings.get('queueing')}'"
    if settings.get("device_class"):
        groups[DEVICES] = f"device_class='{settings.get('device_class')}'"
    return groups


def companions(request: PodRequest) -> tuple[dict[str, Any], ...]:
    """Objects that must be there before the Job: a claim template, a pod group. They lack a namespace and an owner."""
    objects = []
    accelerators = accelerator_request(request.resources, request.settings)
    if request.settings.get("device_class") and accelerators is not None:
        objects.append(claim_template(accelerators, _claim_name(request), request.settings))
    group = admission(request).group
    if group is not None:
        objects.append(dict(group))
    return tuple(objects)


def _group(version: str, request: PodRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": {"name": request.name},
        "spec": _without_nothing(body),
    }


def _claim_name(request: PodRequest) -> str:
    return f"{request.name}-accelerators"


# Resources


def quantity(size: int) -> str:
    """Bytes as Kubernetes writes them, exactly: "16Gi", "500M", "1234567"."""
    for unit, factor in (("Ti", 2**40), ("T", 10**12), ("Gi", 2**30), ("G", 10**9), ("Mi", 2**20), ("M", 10**6)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def cpu_quantity(cpus: float) -> str:
    """CPUs as Kubernetes writes them: "2", "500m"; never less than was asked for."""
    thousandths = math.ceil(round(cpus * 1000, 6))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def shared_memory(request: ResourceSettings, settings: KubernetesSettings) -> int | None:
    """Bytes of /dev/shm that a pod mounts: what the step asks for, and for steps with accelerators half of its memory
    (0 for as much as the node has, where the step asks for no memory); None where the container's own is left."""
    asked = request.get("shared_memory")
    if asked is not None:
        return int(asked)
    if request.gpus_per_node and not settings.get("host_ipc"):
        return int(request.get("memory", 0)) // 2
    return None


def _resources(request: PodRequest, accelerators: AcceleratorRequest | None) -> dict[str, Any]:
    resources, settings = request.resources, request.settings
    requests: dict[str, str] = {"cpu": cpu_quantity(resources.get("cpu_count", CPU))}
    limits: dict[str, str] = {}
    memory = resources.get("memory")
    requests["memory"] = quantity(memory or MEMORY)
    if memory:
        # A pod that took more than it asked for would have others on its node evicted.
        limits["memory"] = requests["memory"]
    if settings.get("qos") == "Guaranteed":
        limits.update(cpu=requests["cpu"], memory=requests["memory"])
    disk = resources.get("disk")
    if disk:
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = quantity(disk)
    # Kubernetes takes extended resources whose request and limit are the same.
    extended = _extended(resources, settings)
    if accelerators is not None and not settings.get("device_class"):
        extended[accelerators.resource] = str(accelerators.count)
    body: dict[str, Any] = {"requests": {**requests, **extended}, "limits": {**limits, **extended}}
    if accelerators is not None and settings.get("device_class"):
        body["claims"] = [{"name": "accelerators"}]
    return _without_nothing(body)


def _extended(resources: ResourceSettings, settings: KubernetesSettings) -> dict[str, str]:
    amounts = {name: f"{int(amount)}" for name, amount in resources.get("extended", {}).items()}
    amounts.update(settings.get("extended_resources", {}))
    if settings.get("efa"):
        amounts[EFA] = str(settings.get("efa"))
    return amounts


def _security(request: PodRequest) -> dict[str, Any]:
    settings = request.settings
    context: dict[str, Any] = {}
    if any(name.startswith(_REMOTE_MEMORY) for name in _extended(request.resources, settings)):
        context["capabilities"] = {"add": ["IPC_LOCK"]}
    if settings.get("privileged"):
        context["privileged"] = True
    own = dict(settings.get("security_context", {}))
    add = own.get("capabilities", {}).get("add")
    if add and "capabilities" in context:
        lock = [name for name in context["capabilities"]["add"] if name not in add]
        own["capabilities"] = {**own["capabilities"], "add": [*add, *lock]}
    return merged(context, own)  # type: ignore[no-any-return]


def _variables(request: PodRequest) -> list[dict[str, Any]]:
    """Stoker's own count most: a variable is once in the list."""
    settings = request.settings
    variables: dict[str, dict[str, Any]] = {}
    if _tmpfs(settings) and settings.get("tmpfs_tempdir", True):
        variables["TMPDIR"] = {"name": "TMPDIR", "value": settings.get("tmpfs_path", TMPFS)}
    for entry in settings.get("env", ()):
        variables[entry["name"]] = dict(entry)
    for name, text in request.environment.items():
        variables[name] = {"name": name, "value": literal(text)}
    return list(variables.values())


def literal(text: str) -> str:
    """A variable's value as the API has it: the kubelet puts others in the place of $(NAME), and makes one $ of two.
    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/"""
    return text.replace("$", "$$")


# Volumes


def _tmpfs(settings: KubernetesSettings) -> bool:
    return bool(settings.get("use_tmpfs") or settings.get("tmpfs_size"))


def _volumes(request: PodRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes, and where the container mounts them."""
    resources, settings = request.resources, request.settings
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(name: str, source: Mapping[str, Any], path: str, *, read_only: bool = False) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})})

    shared = shared_memory(resources, settings)
    if shared is not None and all(mount.get("mountPath") != "/dev/shm" for mount in settings.get("volume_mounts", ())):
        add("stoker-shm", _in_memory(quantity(shared) if shared else ""), "/dev/shm")
    if _tmpfs(settings):
        half = resources.get("memory", 0) // 2
        size = f"{settings.get('tmpfs_size')}Mi" if settings.get("tmpfs_size") else quantity(half) if half else ""
        add("stoker-tmpfs", _in_memory(size), settings.get("tmpfs_path", TMPFS))
    for number, (claim, path) in enumerate(settings.get("persistent_volume_claims", {}).items()):
        add(f"stoker-claim-{number}", {"persistentVolumeClaim": {"claimName": claim}}, path)
    for number, (folder, path) in enumerate(settings.get("host_paths", {}).items()):
        add(f"stoker-host-{number}", {"hostPath": {"path": folder}}, path)
    volumes += [dict(volume) for volume in settings.get("volumes", ())]
    mounts += [dict(mount) for mount in settings.get("volume_mounts", ())]
    for mount in request.mounts:
        add(mount.name, mount.source, mount.path, read_only=mount.read_only)
    return volumes, mounts


def _in_memory(size: str) -> dict[str, Any]:
    return {"emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}


# Nodes


def _selector(settings: KubernetesSettings, accelerators: AcceleratorRequest | None) -> dict[str, str]:
    selector: dict[str, str] = {}
    pool = settings.get("compute_pool")
    if pool:
        known = [one for one in settings.get("pools", ()) if one["name"] == pool]
        selector.update(known[0].get("labels", {}) if known else {COMPUTE_POOL: pool})
    if accelerators is not None:
        selector.update(accelerators.selector)
    return {**selector, **settings.get("node_selector", {})}


def _affinity(request: PodRequest, accelerators: AcceleratorRequest | None) -> dict[str, Any]:
    """The person's own, with what accelerators, spot machines and the spread of a gang add."""
    settings, spot = request.settings, request.resources.get("spot")
    affinity = dict(settings.get("affinity", {}))
    node = dict(affinity.get("nodeAffinity", {}))
    required = dict(node.get("requiredDuringSchedulingIgnoredDuringExecution", {}))
    # Terms are alternatives, and the requirements in one are not: each of theirs with each of ours.
    terms = [dict(term) for term in required.get("nodeSelectorTerms", ())] or [{}]
    ours: Sequence[Sequence[Mapping[str, Any]]] = (accelerators.terms if accelerators is not None else ()) or [()]
    if spot is False:
        never = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in SPOT.items()]
        ours = [[*term, *never] for term in ours]
    crossed = [
        {**term, "matchExpressions": [*term.get("matchExpressions", ()), *map(dict, more)]} if more else term
        for term in terms
        for more in ours
    ]
    if request.avoid:
        # The API takes one name for a requirement on a field.
        others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in request.avoid]
        crossed = [{**term, "matchFields": [*term.get("matchFields", ()), *others]} for term in crossed]
    if any(crossed):
        node["requiredDuringSchedulingIgnoredDuringExecution"] = {**required, "nodeSelectorTerms": crossed}
    preferred = list(node.get("preferredDuringSchedulingIgnoredDuringExecution", ()))
    better = accelerators.preferences if accelerators is not None else ()
    for place, terms_of_kind in enumerate(better):
        weight = 100 - place * 90 // max(1, len(better))
        preferred += [{"weight": weight, "preference": _expressions(term)} for term in terms_of_kind]
    if spot:
        preferred += [
            {"weight": 1, "preference": _expressions([{"key": key, "operator": "In", "values": [value]}])}
            for key, value in SPOT.items()
        ]
    if preferred:
        node["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    if node:
        affinity["nodeAffinity"] = node
    return merged(affinity, _spread(request))  # type: ignore[no-any-return]


def _expressions(term: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"matchExpressions": [dict(requirement) for requirement in term]}


def _spread(request: PodRequest) -> dict[str, Any]:
    """How the pods of a gang stand to each other."""
    settings = request.settings
    own = request.labels.get(GANG_LABEL)
    if request.nodes < 2 or not own:
        return {}
    selector = {"labelSelector": {"matchLabels": {GANG_LABEL: own}}}
    placement, topology = settings.get("placement", "SPREAD"), settings.get("topology")
    by_kueue = settings.get("queueing", "kueue") == "kueue" and settings.get("queue")
    rules: dict[str, Any] = {}
    if placement == "STRICT_SPREAD":
        apart = {**selector, "topologyKey": HOSTNAME}
        rules["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    elif placement == "SPREAD":
        better = {"weight": 100, "podAffinityTerm": {**selector, "topologyKey": HOSTNAME}}
        rules["podAntiAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [better]}
    else:
        near = {"weight": 100, "podAffinityTerm": {**selector, "topologyKey": HOSTNAME}}
        rules["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [near]}
    if topology and not by_kueue:
        together = {**selector, "topologyKey": topology}
        rules.setdefault("podAffinity", {})["requiredDuringSchedulingIgnoredDuringExecution"] = [together]
    return rules


def _tolerations(request: PodRequest, accelerators: AcceleratorRequest | None) -> list[dict[str, Any]]:
    """Each once: the person's, and those for the taints that nodes of such a step usually have."""
    settings = request.settings
    tolerations = [
        {("tolerationSeconds" if key == "toleration_seconds" else key): part for key, part in entry.items()}
        for entry in settings.get("tolerations", ())
    ]
    if accelerators is not None:
        tolerations += [dict(entry) for entry in accelerators.tolerations]
    if request.resources.get("spot"):
        tolerations += [{"key": key, "operator": "Equal", "value": value} for key, value in SPOT.items()]
    pools = [one for one in settings.get("pools", ()) if one["name"] == settings.get("compute_pool")]
    tolerations += [
        {"key": taint["key"], "operator": "Equal", "value": str(taint.get("value", "")), "effect": taint["effect"]}
        for pool in pools
        for taint in pool.get("taints", ())
    ]
    return [entry for number, entry in enumerate(tolerations) if entry not in tolerations[:number]]


def _without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ([], {}, ())}


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items() if value}
