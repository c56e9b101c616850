"""The config maps with Stoker's worker in a namespace: brought by the first run that needs them, removed by the last.

A run that uses a config map has an annotation at it. Whoever removes the last one deletes the config map as it was
then: a run that comes in between changes it, and the deletion is refused.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping

from stoker.backends.kubernetes.api.client import ApiError, Cluster
from stoker.backends.kubernetes.request.jobs import WORKER_LABEL, label_text, worker_maps, worker_names

USER: Final = "run.stoker/"
"""What the annotation of a run that uses a config map begins with; the run's id stands behind it."""


def bring_worker(cluster: Cluster, namespace: str, run: str, bundle: str) -> None:
    """See that a namespace has the worker of `bundle` for a run."""
    for body in worker_maps(bundle):
        mark: dict[str, Any] = {"annotations": {USER + label_text(run): ""}}
        path = f"{_maps(namespace)}/{body['metadata']['name']}"
        if _patched(cluster, path, mark) is not None:
            continue
        try:
            cluster.create(_maps(namespace), {**body, "metadata": {**body["metadata"], **mark}})
        except ApiError as error:
            if error.status != 409:
                raise
            _patched(cluster, path, mark)  # another run was first


def leave_worker(cluster: Cluster, namespace: str, run: str, bundle: str) -> None:
    """A run needs the worker no more: what no other run uses is deleted."""
    for name in worker_names(bundle):
        _release(cluster, f"{_maps(namespace)}/{name}", [run])


def sweep_workers(
    cluster: Cluster, namespace: str, is_over: Callable[[str], bool], *, lonely: bool, dry_run: bool
) -> int:
    """Delete the config maps that only runs use for which `is_over` holds; how many there are.

    `is_over` gets a run's id as it stands in labels. `lonely`: no Job of Stoker's is there, so that those without any
    run's annotation go, too.
    """
    count = 0
    answer = cluster.get(_maps(namespace), labelSelector=f"{WORKER_LABEL}=true")
    for one in answer.get("items") or ():
        users = _users(one)
        over = [run for run in users if is_over(run)]
        if len(over) < len(users) or not (over or lonely):
            continue
        count += 1
        if not dry_run:
            _release(cluster, f"{_maps(namespace)}/{one['metadata']['name']}", over)
    return count


def _maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _users(thing: Mapping[str, Any]) -> list[str]:
    annotations = thing["metadata"].get("annotations") or {}
    return [key.removeprefix(USER) for key in annotations if key.startswith(USER)]


def _release(cluster: Cluster, path: str, runs: list[str]) -> None:
    """Remove runs from the users of a config map, and it with the last one."""
    left = _patched(cluster, path, {"annotations": {USER + label_text(run): None for run in runs}})
    if left is None or _users(left):
        return
    try:
        cluster.delete(path, version=left["metadata"]["resourceVersion"])
    except ApiError as error:
        if error.status not in (404, 409):  # a run has come, or another one was the last, too
            raise


def _patched(cluster: Cluster, path: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """An object after a change of its metadata; None where it is not there."""
    try:
        return cluster.patch(path, {"metadata": metadata})
    except ApiError as error:
        if error.status != 404:
            raise
        return None
