"""How a person makes a stack of a cluster: the contexts of the kubeconfig, and what must be made on the cluster first.

As little as possible is made: the namespace and the service account that the settings name, where they are not there,
and a Role with its binding where the account that runs Stoker lacks rights. All of it is shown as YAML before; what the
account may not make is for an administrator.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Preparation, ProbeRequest
from stoker.backends.base.byhand import yaml_text
from stoker.backends.base.messages import is_below
from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.api.access import context_of
from stoker.backends.kubernetes.api.client import ApiError, Cluster, events_about, existing, items, reached, seen_items
from stoker.backends.kubernetes.api.rbac import (
    CLAIM_RIGHTS,
    Api,
    Denied,
    Right,
    account,
    allowed,
    driver_rights,
    grant_line,
    lacking_rights,
    rights_lacked_by,
    rights_with,
)
from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.explain.causes import end_of
from stoker.backends.kubernetes.explain.nodes import amount_text
from stoker.backends.kubernetes.explain.pending import Patience, why_pending
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import Object, amount, condition, is_default_class, joined, seconds
from stoker.backends.kubernetes.objects import name as name_of
from stoker.backends.kubernetes.request.check import OWN_IMAGE
from stoker.backends.kubernetes.request.claims import MOUNT, ClaimStore, claim_mount, claim_store
from stoker.backends.kubernetes.request.pods import PodMount, PodRequest, groups_of, pod_template, quantity
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core import units
from stoker.core.errors import Away, BackendError, SettingsError
from stoker.core.findings import Check
from stoker.core.resources import ResourceSettings
from stoker.core.words import count_text

_SIMPLE: Final = ("nvidia", "amd", "intel", "gaudi")
"""Vendors of whose accelerators a pod may ask for one by itself; TPUs and Neuron's come in slices and by type."""
_DEVICE_WAIT: Final = 300
"""Seconds for which the first step with an accelerator waits: all of them may be in use."""
_CORE: Final = "/api/v1/namespaces"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_FILES: Final = re.compile(
    r"nfs|efs\.csi|filestore|file\.csi\.azure|azure-file|cephfs|fsx\.csi|lustre|glusterfs|juicefs"
)
"""In the names of provisioners whose volumes pods on several nodes may write.
https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes"""
PATHS: Final[Mapping[str, tuple[str, str, str]]] = {
    # Kind → where its objects are made, its API group and its plural.
    "Namespace": (_CORE, "", "namespaces"),
    "ServiceAccount": (_CORE + "/{namespace}/serviceaccounts", "", "serviceaccounts"),
    "PersistentVolumeClaim": (_CORE + "/{namespace}/persistentvolumeclaims", "", "persistentvolumeclaims"),
    "Role": (_RBAC + "/namespaces/{namespace}/roles", "rbac.authorization.k8s.io", "roles"),
    "RoleBinding": (_RBAC + "/namespaces/{namespace}/rolebindings", "rbac.authorization.k8s.io", "rolebindings"),
    "ClusterRole": (_RBAC + "/clusterroles", "rbac.authorization.k8s.io", "clusterroles"),
    "ClusterRoleBinding": (_RBAC + "/clusterrolebindings", "rbac.authorization.k8s.io", "clusterrolebindings"),
}


def usual_context() -> str:
    """The current context of the kubeconfig; "in-cluster" in a pod without one."""
    return context_of(KubernetesSettings(), os.environ).context


def stack_name(context: str) -> str:
    """A stack's name by its context: the cluster's in what clouds write, "gke_project_zone_cluster" or an ARN."""
    return re.split(r"[/_:@]", context)[-1] or "kubernetes"


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """What the other settings usually are under a context."""
    place = context_of(KubernetesSettings(context=answers["context"]), os.environ)
    empty = ("image", "service_account", "image_pull_secrets", "queue", "driver")
    return {"namespace": place.namespace, **dict.fromkeys(empty, "")}


def with_store(settings: Mapping[str, str], store: str) -> Mapping[str, str]:
    """The settings for an artifact store: a folder is one that all nodes have at this path."""
    is_folder = "://" not in store or store.startswith("file://")
    return {**settings, "shares_files": "true"} if is_folder else settings


def prepare(
    options: Mapping[str, Any], store: str = "", details: Mapping[str, str] | None = None
) -> Preparation | None:
    """What must be made before a stack with these settings works; None where nothing is missing."""
    settings, claim = KubernetesSettings(**options), claim_store(store)
    with reached(options) as cluster:
        namespace = cluster.namespace
        objects = missing_objects(cluster, settings, namespace, claims=claim is not None)
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        if claim is not None and not _is_there(cluster, f"{claims}/{claim.claim}"):
            objects.append(_claim(cluster, namespace, claim.claim, details or {}))
        if not objects:
            return None
        may = all(_may_make(cluster, each, namespace) for each in objects)
    kinds = ", ".join(f"{each['kind']} {name_of(each)}" for each in objects)

    def apply() -> None:
        with reached(options) as maker:
            for each in objects:
                _make(maker, each, namespace)

    return Preparation(
        text="---\n".join(f"{yaml_text(each)}\n" for each in objects), what=kinds, apply=apply if may else None
    )


def device_step(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The options of a step that gets one accelerator of a kind that nodes offer; None where this account sees none."""
    with reached(options) as cluster:
        nodes = seen_items(cluster, "/api/v1/nodes") or ()
    offered = {
        name
        for node in nodes
        for name, count in ((node.get("status") or {}).get("allocatable") or {}).items()
        if count != "0"
    }
    for vendor in _SIMPLE:
        if not offered.isdisjoint(nodelabels.RESOURCES[vendor]):
            settings = {"orchestrator.kubernetes": {"pod_startup_timeout": _DEVICE_WAIT}}
            return {"resources": {"gpu_count": 1, "gpu_vendor": vendor}, "settings": settings}
    return None


def _claim_size(text: str) -> str:
    try:
        return quantity(units.useful_size(text))
    except SettingsError as error:
        raise SettingsError(f"claim_size: {error.message}", fix="--claim-size 50Gi") from None


def _claim(cluster: Cluster, namespace: str, claim: str, details: Mapping[str, str]) -> dict[str, Any]:
    """The claim of an artifact store. Pods on several nodes write it where its storage class is one of file systems."""
    wanted = details.get("storage_class", "")
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany" if _FILES.search(_provisioner(cluster, wanted)) else "ReadWriteOnce"],
        "resources": {"requests": {"storage": _claim_size(details.get("claim_size") or "50Gi")}},
    }
    if wanted:
        spec["storageClassName"] = wanted
    metadata = {"name": claim, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "stoker"}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _provisioner(cluster: Cluster, wanted: str) -> str:
    """Who makes volumes of a storage class, or of the default one; empty where this account may not look."""
    classes = seen_items(cluster, "/apis/storage.k8s.io/v1/storageclasses")
    if classes is None:
        return ""
    if wanted and wanted not in map(name_of, classes):
        known = ", ".join(map(name_of, classes)) or "none"
        raise SettingsError(f"the cluster has no storage class '{wanted}'; it has {known}", fix="--storage-class NAME")
    for each in classes:
        if name_of(each) == wanted or (not wanted and is_default_class(each)):
            return str(each.get("provisioner", ""))
    raise SettingsError(
        "the cluster has no default storage class", fix="--storage-class NAME, or another store: --artifact-store URI"
    )


def missing_objects(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, *, claims: bool = False
) -> list[dict[str, Any]]:
    """The objects that a stack needs and the cluster has not; `claims`: artifacts are on a claim."""
    objects: list[dict[str, Any]] = []
    accounts = [settings.get("service_account"), settings.get("driver", {}).get("service_account")]
    exists = _is_there(cluster, f"/api/v1/namespaces/{namespace}")
    if not exists:
        objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for named in dict.fromkeys(filter(None, accounts)):
        if not (exists and _is_there(cluster, f"/api/v1/namespaces/{namespace}/serviceaccounts/{named}")):
            metadata = {"name": str(named), "namespace": namespace}
            objects.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    rights = (*rights_with(groups_of(settings)), *(rbac.CLAIM_RIGHTS if claims else ()))
    lacking = {right for right, _ in lacking_rights(cluster, namespace, rights)}
    if any(right.needed for right in lacking):
        user = account(cluster) or "USER"
        wide = any(right.cluster for right in lacking)
        objects += rbac.manifests(namespace, user, rights, cluster=wide)
    if accounts[1]:
        user = f"system:serviceaccount:{namespace}:{accounts[1]}"
        rights = rbac.driver_rights(groups_of(settings), claims=claims)
        lacking_there = rights_lacked_by(cluster, user, namespace, [right for right in rights if right.needed])
        # Where nobody says what it has: its binding is there, once this has made it.
        binding = rbac.manifests(namespace, user, cluster=False)[1]
        if lacking_there or (
            lacking_there is None
            and not _is_there(cluster, f"{_RBAC}/namespaces/{namespace}/rolebindings/{name_of(binding)}")
        ):
            there = {(each["kind"], name_of(each)) for each in objects}
            roles = rbac.manifests(namespace, user, rights, cluster=False)
            objects += [each for each in roles if (each["kind"], name_of(each)) not in there]
    return objects


def _is_there(cluster: Cluster, path: str) -> bool:
    """Whether an object is there, or may not be looked at."""
    try:
        return existing(cluster, path) is not None
    except ApiError as error:
        if error.status != 403:
            raise
    return True


def _may_make(cluster: Cluster, item: Mapping[str, Any], namespace: str) -> bool:
    path, group, plural = PATHS[item["kind"]]
    right = Right(group=group, resource=plural, verbs=("create",), use="", cluster="{namespace}" not in path)
    return allowed(cluster, right, "create", namespace)


def _make(cluster: Cluster, item: Mapping[str, Any], namespace: str) -> None:
    """Create an object; one that is there already is changed to it."""
    path = PATHS[item["kind"]][0].format(namespace=namespace)
    try:
        try:
            cluster.create(path, item)
        except ApiError as error:
            if error.status != 409:
                raise
            cluster.patch(f"{path}/{name_of(item)}", {key: item[key] for key in ("rules", "subjects") if key in item})
    except ApiError as error:
        refusal = refusal_of(error.status, error.words, namespace=namespace)
        what = f"{item['kind']} {name_of(item)} cannot be made: {refusal.message}"
        raise BackendError(
            what, fix=refusal.fix or "give the YAML to an administrator: kubectl apply -f FILE"
        ) from error


# What a stack finds on its cluster: API server, rights verb by verb, nodes and accelerators, a Job of a minute. Its
# program needs nothing of Stoker's: it also tells of an image in which no worker could start. What may not be asked is
# said, and is a problem only where nothing would run without it.

OLDEST_PYTHON: Final = (3, 10)
"""The oldest Python that a worker runs on."""
SKEW: Final = 60.0
"""Seconds by which clocks may differ before it is worth a remark."""
PAUSE: Final = 0.25
"""Seconds between two looks at the Job."""
RUNS: Final = 60
"""Seconds that the Job gets."""
CALL: Final = 15.0
"""Seconds for an answer of the API server."""
DRIVER_FIX: Final = (
    'stoker stacks setup kubernetes --driver "service_account=NAME" makes an account with a role and its binding, or '
    "prints them for an administrator"
)
_MARK: Final = "stoker-probe "
_KINDS: Final[Mapping[str, str]] = {
    # An API group → what its presence means.
    "kueue.x-k8s.io": "Kueue",
    "scheduling.volcano.sh": "Volcano",
    "scheduling.x-k8s.io": "coscheduling (PodGroup)",
    "jobset.x-k8s.io": "JobSet",
    "resource.k8s.io": "Dynamic Resource Allocation",
}
_QUEUEING: Final[Mapping[str, str]] = {
    "kueue": "kueue.x-k8s.io",
    "volcano": "scheduling.volcano.sh",
    "coscheduling": "scheduling.x-k8s.io",
}
_PROGRAM: Final = """
import json, os, socket, sys, time
told = {"python": list(sys.version_info[:3]), "host": socket.gethostname(), "time": time.time(), "uid": os.getuid()}
folder, marker = sys.argv[1:]
if folder:
    told["folder"] = os.path.exists(os.path.join(folder, marker))
    mine = os.path.join(folder, marker + "-pod")
    try:
        with open(mine, "w") as file:
            file.write(marker)
        with open(mine) as file:
            told["writable"] = file.read() == marker
        os.unlink(mine)
    except OSError as error:
        told["writable"] = False
        told["why"] = str(error)
print("stoker-probe " + json.dumps(told), flush=True)
"""
"""What runs in the pod: any Python reads it."""


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """What a stack with these settings finds; ends at the first thing without which nothing else can be asked."""
    settings = KubernetesSettings(**options)
    try:
        cluster = Cluster(settings, os.environ, patience=CALL)
    except (SettingsError, BackendError) as error:
        yield Check(name="cluster", found="", problem=error.message, fix=error.fix)
        return
    try:
        namespace = cluster.namespace
        version = cluster.get("/version")
        where = f"{cluster.access.place.context} at {cluster.access.place.server}"
        yield Check(name="cluster", found=f"{where}, Kubernetes {version.get('gitVersion', 'of unknown version')}")
        yield from _probe(settings, request, cluster, namespace)
    except ApiError as error:
        refusal = refusal_of(error.status, error.words)
        yield Check(name="cluster", found="", problem=refusal.message, fix=refusal.fix)
    except Away as error:
        yield Check(name="cluster", found="", problem=error.message, fix=error.fix)
    finally:
        cluster.close()


def _probe(settings: KubernetesSettings, request: ProbeRequest, cluster: Cluster, namespace: str) -> Iterator[Check]:
    place = _namespace_check(cluster, namespace)
    yield place
    if place.problem:
        return
    blocked = False
    for check in rights_checks(cluster, namespace, _rights(settings, request)):
        blocked = blocked or bool(check.problem)
        yield check
    yield from _driver_checks(settings, request, cluster, namespace)
    yield from node_checks(cluster)
    yield from _secret_checks(settings, cluster, namespace)
    yield from _class_checks(settings, cluster)
    if not blocked:
        yield from job_checks(settings, request, cluster, namespace)


def _driver_checks(
    settings: KubernetesSettings, request: ProbeRequest, cluster: Cluster, namespace: str
) -> Iterator[Check]:
    """As which account drivers of detached runs run, and what it lacks: a problem where the stack names it for them."""
    account, lacking = account_of_driver(settings), driver_lacks(cluster, settings, request.store, namespace)
    if lacking is None:
        return
    found = f"run as the service account '{account}'"
    if not lacking:
        yield Check(name="detached drivers", found=found)
        return
    what = f"the service account '{account}' may not {lacking}: runs cannot be detached"
    named = bool(settings.get("driver", {}).get("service_account"))
    yield Check(name="detached drivers", found="" if named else what, problem=what if named else "", fix=DRIVER_FIX)


def account_of_driver(settings: KubernetesSettings) -> str:
    """The service account as which a driver runs."""
    driver: Mapping[str, Any] = settings.get("driver", {})
    return str(driver.get("service_account") or settings.get("service_account") or "default")


def driver_lacks(cluster: Cluster, settings: KubernetesSettings, artifacts: str, namespace: str) -> str | None:
    """The rights that this account lacks, in words; empty for none, None where nobody here may ask."""
    account = f"system:serviceaccount:{namespace}:{account_of_driver(settings)}"
    rights = driver_rights(groups_of(settings), claims=claim_store(artifacts) is not None)
    lacking = rights_lacked_by(cluster, account, namespace, [right for right in rights if right.needed])
    if lacking is None:
        return None
    return joined([f"{', '.join(verbs)} {right.resource}" for right, verbs in lacking.items()])


def _rights(settings: KubernetesSettings, request: ProbeRequest) -> tuple[Right, ...]:
    return (*rights_with(groups_of(settings)), *(CLAIM_RIGHTS if claim_store(request.store) is not None else ()))


def _namespace_check(cluster: Api, namespace: str) -> Check:
    user = account(cluster)
    found = f"{namespace}, as {user}" if user else namespace
    try:
        cluster.get(f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.status == 404:
            fix = f"create it (kubectl create namespace {namespace}), or name another with `namespace`"
            return Check(name="namespace", found="", problem=f"there is no namespace '{namespace}'", fix=fix)
        if error.status == 401:
            raise
    return Check(name="namespace", found=found)


def rights_checks(cluster: Api, namespace: str, rights: Sequence[Right]) -> Iterator[Check]:
    """A line for each resource: the verbs that this account has, and what those that it lacks are for."""
    lacking = lacking_rights(cluster, namespace, rights)
    user = ""
    for right in rights:
        missing = [verb for each, verb in lacking if each is right]
        there = [verb for verb in right.verbs if verb not in missing]
        if not missing:
            yield Check(name=f"right: {right.resource}", found=", ".join(there))
            continue
        user = user or account(cluster) or "USER"
        denied = Denied(
            user=user,
            verb=",".join(missing),
            resource=right.resource,
            group=right.group,
            namespace="" if right.cluster else namespace,
        )
        what = f"not {' or '.join(missing)}: needed to {right.use}"
        fix = f"an administrator gives it by: {grant_line(denied)}"
        if right.needed:
            yield Check(name=f"right: {right.resource}", found=", ".join(there), problem=what, fix=fix)
        else:
            have = f"{', '.join(there)}; " if there else ""
            yield Check(name=f"right: {right.resource}", found=f"{have}{what}", fix=fix)


def node_checks(cluster: Api) -> Iterator[Check]:
    """Nodes, their accelerators by model, the device plugin, and the drivers' versions."""
    nodes = seen_items(cluster, "/api/v1/nodes")
    if nodes is None:
        yield Check(name="nodes", found="not known: this account may not list them")
        return
    ready = [node for node in nodes if condition(node, "Ready") is not None]
    cordoned = sum(bool((node.get("spec") or {}).get("unschedulable")) for node in nodes)
    largest = {
        resource: max((known for node in ready if (known := _allocatable(node, resource)) is not None), default=None)
        for resource in ("cpu", "memory")
    }
    words = (
        f"{len(ready)} of {count_text(len(nodes), 'node')} ready" if len(ready) < len(nodes) else f"{len(nodes)} ready"
    )
    amounts = [amount_text(resource, most) for resource, most in largest.items()]
    size = f"the largest has {', '.join(amounts)}"
    yield Check(
        name="nodes",
        found="; ".join(filter(None, [words, f"{cordoned} cordoned" if cordoned else "", size if ready else ""])),
        problem="" if ready else "no node is ready",
        fix="" if ready else "see `kubectl get nodes`; with an autoscaler that starts at none, name its `pools`",
    )
    yield from _accelerator_checks(nodes)


def _accelerator_checks(nodes: Sequence[Object]) -> Iterator[Check]:
    groups: dict[str, list[Object]] = {}
    silent: list[str] = []
    for node in nodes:
        labels = (node.get("metadata") or {}).get("labels") or {}
        device = nodelabels.device_of(labels)
        resources = [
            (resource, _allocatable(node, resource))
            for resource in (node.get("status") or {}).get("allocatable") or {}
            if nodelabels.is_device(resource) and _allocatable(node, resource) != 0
        ]
        told = device is not None and (labels.get("nvidia.com/gpu.present") == "true" or device.known)
        if told and not resources and device is not None:
            silent.append(f"{name_of(node)} ({device.name})")
        for resource, count in resources:
            model = f" {device.name}" if device is not None else " of a model that no label tells"
            driver = nodelabels.driver_of(labels)
            text = f"{amount_text(resource, count)},{model}{f', driver {driver}' if driver else ''}"
            groups.setdefault(text, []).append(node)
    lines = [f"{count_text(len(alike), 'node')} with {text}" for text, alike in sorted(groups.items())]
    yield Check(name="accelerators", found="; ".join(lines) or "none")
    if groups or silent:
        yield Check(
            name="device plugin",
            found=f"offers devices on {count_text(sum(map(len, groups.values())), 'node')}",
            problem=f"labelled as having accelerators, and offering none: {', '.join(silent[:3])}" if silent else "",
            fix="see whether the vendor's device plugin and driver run there: kubectl get pods -A -o wide"
            if silent
            else "",
        )


def _allocatable(node: Object, resource: str) -> Decimal | None:
    return amount(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))


def _secret_checks(settings: KubernetesSettings, cluster: Api, namespace: str) -> Iterator[Check]:
    """The pull secrets that the settings name, and the service account with its own."""
    for secret in settings.get("image_pull_secrets", ()):
        fix = f"kubectl create secret docker-registry {secret} -n {namespace} --docker-server=… --docker-username=…"
        try:
            kind = str(cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}").get("type", ""))
        except ApiError as error:
            problem = f'there is no secret "{secret}"' if error.status == 404 else ""
            found = "" if error.status == 404 else f"{secret}: not known ({error.status})"
            yield Check(name="pull secret", found=found, problem=problem, fix=fix if problem else "")
            continue
        fits = kind in ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
        problem = "" if fits else f'the secret "{secret}" is of type {kind}, and holds no credentials of a registry'
        yield Check(name="pull secret", found=secret, problem=problem, fix="" if fits else fix)
    named = settings.get("service_account")
    if named:
        try:
            cluster.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{named}")
        except ApiError as error:
            if error.status == 404:
                problem = f"there is no service account \"{named}\" in the namespace '{namespace}'"
                fix = f"kubectl create serviceaccount {named} -n {namespace}"
                yield Check(name="service account", found="", problem=problem, fix=fix)
                return
        yield Check(name="service account", found=str(named))


def _class_checks(settings: KubernetesSettings, cluster: Api) -> Iterator[Check]:
    """Storage classes, priority classes, and what admits and schedules jobs beside Kubernetes itself."""
    storage = seen_items(cluster, "/apis/storage.k8s.io/v1/storageclasses", 404)
    if storage is not None:
        texts = [f"{name_of(each)}{' (default)' if is_default_class(each) else ''}" for each in storage]
        yield Check(name="storage classes", found=", ".join(texts) or "none")
    wanted = settings.get("priority_class")
    priorities = seen_items(cluster, "/apis/scheduling.k8s.io/v1/priorityclasses", 404)
    if priorities is not None:
        names = [name_of(each) for each in priorities if not name_of(each).startswith("system-")]
        missing = wanted is not None and wanted not in map(name_of, priorities)
        yield Check(
            name="priority classes",
            found=", ".join(names) or "none",
            problem=f'there is no priority class "{wanted}"' if missing else "",
            fix="name one of these: priority_class" if missing else "",
        )
    groups = {str(each.get("name")) for each in cluster.get("/apis").get("groups") or ()}
    there = [words for group, words in _KINDS.items() if group in groups]
    queueing = settings.get("queueing") or ("kueue" if settings.get("queue") else "")
    group = _QUEUEING.get(str(queueing), "")
    lacking = bool(group) and group not in groups
    yield Check(
        name="queues",
        found=", ".join(there) or "none beside Kubernetes' own scheduler",
        problem=f"the stack asks for {_KINDS[group]}, which this cluster has not" if lacking else "",
        fix="leave out `queue` and `queueing`, or have it installed" if lacking else "",
    )


# The Job of a minute


def hello_job(
    settings: KubernetesSettings, token: str, folder: str, *, claim: ClaimStore | None = None
) -> dict[str, Any]:
    """The Job of the probe, placed as a step of the stack would be, with the folder that pods are to see. Pure."""
    brought = [*settings.get("persistent_volume_claims", {}).values(), *settings.get("host_paths", {}).values()]
    brought += [str(mount.get("mountPath", "")) for mount in settings.get("volume_mounts", ())]
    mounts = [] if claim is None else [claim_mount(claim)]
    if folder and claim is None and not any(is_below(folder, path) for path in brought if path):
        source = {"hostPath": {"path": folder, "type": "DirectoryOrCreate"}}  # as a step's pod gets it
        mounts.append(PodMount(name="stoker-folder", source=source, path=folder, read_only=False))
    template = pod_template(
        PodRequest(
            resources=ResourceSettings(),
            settings=settings,
            image=str(settings.get("image", "")) or OWN_IMAGE,
            command=(str(settings.get("executable", "python3")), "-c", _PROGRAM, folder, f".stoker-probe-{token}"),
            mounts=mounts,
            labels={"stoker/request": token},
            grace=1.0,
        )
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"stoker-probe-{token}", "labels": {"stoker/run": "probe"}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": 24 * 3600,
            "ttlSecondsAfterFinished": 600,
            "template": template,
        },
    }


def job_checks(
    settings: KubernetesSettings, request: ProbeRequest, cluster: Cluster, namespace: str
) -> Iterator[Check]:
    """What a Job of a minute says of its pod: whether it starts, its Python, the store's folder, the clock."""
    token = os.urandom(4).hex()
    folder = request.store.removeprefix("file://") if settings.get("shares_files") else ""
    claim = claim_store(request.store)
    folder = "" if "://" in folder or claim is not None else folder
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    marker = Path(folder, f".stoker-probe-{token}")
    begun, before = time.monotonic(), time.time()
    try:
        with contextlib.suppress(OSError):  # then the pod does not see it either
            if folder:
                os.makedirs(folder, exist_ok=True)
                marker.touch()
        job = cluster.create(path, hello_job(settings, token, MOUNT if claim is not None else folder, claim=claim))
    except ApiError as error:
        refusal = refusal_of(error.status, error.words, namespace=namespace)
        yield Check(name="job", found="", problem=f"a job of one minute is refused: {refusal.message}", fix=refusal.fix)
        return
    try:
        made = seconds((job.get("metadata") or {}).get("creationTimestamp"))
        yield _clock_check(made, before, time.time())
        yield from _follow(settings, request, cluster, namespace, job, begun, folder)
    finally:
        if folder:
            with contextlib.suppress(OSError):
                marker.unlink()
        with contextlib.suppress(BackendError):
            cluster.delete(f"{path}/{name_of(job)}", grace=0)


def _follow(
    settings: KubernetesSettings,
    request: ProbeRequest,
    cluster: Cluster,
    namespace: str,
    job: Object,
    begun: float,
    folder: str,
) -> Iterator[Check]:
    path, selector = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name_of(job)}", f"job-name={name_of(job)}"
    patience = Patience(sure=2, unsure=2, missing=2, mounts=5)
    started = 0.0
    while True:
        job = cluster.get(path)
        pods = items(cluster, f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        end = end_of(job, pods)
        if end is not None:
            break
        events = events_about(cluster, namespace, job, *pods)
        pending = why_pending(job, pods, events, patience=patience)
        now = time.monotonic()
        if pending is None:
            started = started or now
            if now - started > RUNS:
                problem = f"job {name_of(job)} began and did not end within a minute"
                yield Check(name="job", found="", problem=problem, fix="see its log: kubectl logs")
                return
        elif pending.hopeless or now - begun > request.patience:
            late = "" if pending.hopeless else f"did not start within {request.patience:.0f} s: "
            fix = pending.fix or "run this again later, or change what the stack asks of its nodes"
            yield Check(name="job", found="", problem=f"job {name_of(job)} {late}{pending.text}", fix=fix)
            return
        time.sleep(PAUSE)
    told = _told(cluster, namespace, end.pod)
    if end.state != "succeeded" or told is None:
        words = end.message if end.state != "succeeded" else "it left no word in its log"
        last = f" ({end.last_words.strip().splitlines()[-1]})" if end.last_words.strip() else ""
        yield Check(name="job", found="", problem=f"job {name_of(job)}: {words}{last}")
        return
    seconds_taken = time.monotonic() - begun
    yield Check(name="job", found=f"{name_of(job)} on {end.node}, {seconds_taken:.1f} s from its creation to its end")
    yield _python_check(settings, told)
    claim = claim_store(request.store)
    if claim is not None:
        yield _claim_check(claim.claim, told)
    elif folder:
        yield _folder_check(folder, told)


def _told(cluster: Cluster, namespace: str, pod: str) -> dict[str, Any] | None:
    """What the program wrote into its log."""
    try:
        text = b"".join(cluster.log(namespace, pod)).decode(errors="replace")
    except ApiError:
        return None
    for line in text.splitlines():
        _, mark, rest = line.partition(_MARK)
        if mark:
            told = json.loads(rest)
            return told if isinstance(told, dict) else None
    return None


def _python_check(settings: KubernetesSettings, told: Mapping[str, Any]) -> Check:
    version = tuple(told.get("python", ()))
    text = ".".join(map(str, version))
    wanted = str(settings.get("executable", "python3"))
    if version < OLDEST_PYTHON:
        least = ".".join(map(str, OLDEST_PYTHON))
        problem = f"{wanted} is Python {text}; a step needs {least} or later"
        return Check(name="python", found="", problem=problem, fix="name another image, or one with `executable`")
    ours = sys.version_info[:2]
    other = "" if version[:2] == ours else f"; here {ours[0]}.{ours[1]}: what travels pickled may not fit"
    return Check(name="python", found=f"{wanted}, {text}{other}")


def _folder_check(folder: str, told: Mapping[str, Any]) -> Check:
    if not told.get("folder"):
        fix = "mount it at the same path: host_paths, persistent_volume_claims or volumes; or use an object store"
        return Check(name="store", found="", problem=f"pods do not see what is in {folder} here", fix=fix)
    if not told.get("writable"):
        fix = "let the pods' user write it, or give them one who may: pod_security_context"
        problem = f"pods, as user {told.get('uid')}, may not write {folder}"
        return Check(name="store", found="", problem=problem, fix=fix)
    return Check(name="store", found=f"{folder}, seen and written by pods")


def _claim_check(claim: str, told: Mapping[str, Any]) -> Check:
    if told.get("writable"):
        return Check(name="store", found=f"the claim {claim}, written and read by a pod")
    fix = "let the pods' user write it: pod_security_context={'fsGroup': …} of the orchestrator"
    problem = (
        f"pods, as user {told.get('uid')}, cannot write the claim {claim}: {told.get('why', 'it reads otherwise')}"
    )
    return Check(name="store", found="", problem=problem, fix=fix)


def _clock_check(made: float | None, before: float, after: float) -> Check:
    """The cluster's clock by the time at which it made the Job: whole seconds."""
    if made is None:
        return Check(name="clock", found="not told")
    skew = made - after if made > after else made + 1 - before if made + 1 < before else 0.0
    if abs(skew) < 1:
        return Check(name="clock", found="as here")
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    remark = "; times of steps are by their nodes' clocks, and tokens may count as expired" if abs(skew) > SKEW else ""
    return Check(name="clock", found=text + remark)
