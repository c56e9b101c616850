"""A cluster's nodes for `stoker top`: what each has, and what no pod has asked for."""

from __future__ import annotations

import os
from typing import Any, Final, Iterable, Mapping

from stoker.backends.base.nodes import NodeDevices, PlatformNode
from stoker.backends.kubernetes import nodelabels
from stoker.backends.kubernetes.client import ApiError, Cluster
from stoker.backends.kubernetes.nodes import ClusterNode, cluster_nodes
from stoker.backends.kubernetes.prove import items
from stoker.backends.kubernetes.refusals import refusal_of
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import BackendError

PATIENCE: Final = 15.0
"""Seconds for an answer of the API server."""


def nodes(options: Mapping[str, Any]) -> list[PlatformNode]:
    """The nodes of the cluster that these settings name; a `BackendError` where they may not be listed.

    Where the account may not list the pods of all namespaces, what is free is not known.
    """
    cluster = Cluster(KubernetesSettings(**options), os.environ, patience=PATIENCE)
    try:
        there = items(cluster, "/api/v1/nodes")
        try:
            pods = items(cluster, "/api/v1/pods")
        except ApiError as error:
            if error.status != 403:
                raise
            pods = None
    except ApiError as error:
        refusal = refusal_of(error.status, error.words)
        raise BackendError(f"the cluster's nodes are not known: {refusal.message}", fix=refusal.fix) from error
    finally:
        cluster.close()
    return nodes_of(cluster_nodes(there, pods).nodes)


def nodes_of(there: Iterable[ClusterNode]) -> list[PlatformNode]:
    """The nodes by name, with the devices that their resources name."""
    return [_node(one) for one in sorted(there, key=lambda one: one.name)]


def _node(one: ClusterNode) -> PlatformNode:
    told = nodelabels.device_of(one.labels)
    amounts = one.allocatable
    return PlatformNode(
        name=one.name,
        state="not ready" if not one.ready else "cordoned" if one.cordoned else "ready",
        cpus=float(amounts["cpu"]) if "cpu" in amounts else None,
        memory=int(amounts["memory"]) if "memory" in amounts else None,
        devices=tuple(
            NodeDevices(
                model=told.name if told is not None else resource,
                count=float(count),
                free=None if one.free is None else max(0.0, float(one.free.get(resource, 0))),
            )
            for resource, count in amounts.items()
            if nodelabels.is_device(resource) and count
        ),
    )
