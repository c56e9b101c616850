"""The Jobs of detached drivers on a cluster: as which account they run, what it lacks, which there are; and their end.

`backends.kubernetes.detach` makes them.
"""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.backends.kubernetes.claims import claim_store
from stoker.backends.kubernetes.client import ApiError, Cluster
from stoker.backends.kubernetes.objects import joined
from stoker.backends.kubernetes.pods import groups_of
from stoker.backends.kubernetes.prove import rights_lacked_by
from stoker.backends.kubernetes.rbac import driver_rights
from stoker.backends.kubernetes.settings import KubernetesSettings

DRIVER: Final = "stoker/driver"
"""The label of a driver's Job and of what belongs to it: the run's id. It is not that of the run's steps, whose driver
ends what has it."""
DRIVER_FIX: Final = (
    'stoker stacks setup kubernetes --driver "service_account=NAME" makes an account with a role and its binding, or '
    "prints them for an administrator"
)


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


def drivers(cluster: Cluster, namespace: str) -> list[str]:
    """The runs, as labels name them, of the drivers' Jobs in a namespace, and of what was left without one."""
    paths = (f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/secrets")
    found = [thing for path in paths for thing in cluster.get(path, labelSelector=DRIVER).get("items") or ()]
    return sorted({str(thing["metadata"]["labels"][DRIVER]) for thing in found})


def end_driver(cluster: Cluster, namespace: str, run: str) -> None:
    """Delete the Job of a run's driver with all that is its own; `run` as a label names it."""
    kinds = ("/apis/batch/v1", "jobs"), ("/api/v1", "secrets"), ("/api/v1", "configmaps")
    for version, kind in kinds:
        path = f"{version}/namespaces/{namespace}/{kind}"
        for thing in cluster.get(path, labelSelector=f"{DRIVER}={run}").get("items") or ():
            delete(cluster, f"{path}/{thing['metadata']['name']}")


def delete(cluster: Cluster, path: str) -> None:
    """Delete an object; one that is gone is fine."""
    try:
        cluster.delete(path)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
