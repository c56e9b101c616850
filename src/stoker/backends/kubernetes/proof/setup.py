"""How a person makes a stack of a cluster: the contexts of the kubeconfig, and what must be made on the cluster first.

As little as possible is made: the namespace and the service account that the settings name, where they are not there,
and a Role with its binding where the account that runs Stoker lacks rights. All of it is shown as YAML before; what the
account may not make is for an administrator.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, Mapping

from stoker.backends.base.backend import Preparation
from stoker.backends.base.byhand import yaml_text
from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.api.access import context_of
from stoker.backends.kubernetes.api.client import ApiError, Cluster, reached
from stoker.backends.kubernetes.api.rbac import Right, account, allowed, lacking_rights, rights_lacked_by, rights_with
from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import is_default_class
from stoker.backends.kubernetes.objects import name as name_of
from stoker.backends.kubernetes.request.claims import claim_store
from stoker.backends.kubernetes.request.pods import groups_of, quantity
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core import units
from stoker.core.errors import BackendError, SettingsError

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
    try:
        with reached(options) as cluster:
            nodes = cluster.get("/api/v1/nodes").get("items") or ()
    except ApiError:
        return None
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
    try:
        classes = cluster.get("/apis/storage.k8s.io/v1/storageclasses").get("items") or ()
    except ApiError as error:
        if error.status != 403:
            raise
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
        cluster.get(path)
    except ApiError as error:
        if error.status == 404:
            return False
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
