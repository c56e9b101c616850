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
