"""Why jobs wait, asked of the cluster as seldom as that is useful: `pending` says it in words."""

from __future__ import annotations

import time
from typing import Any, Final, Mapping, Sequence

from stoker.backends.kubernetes.client import ApiError, Cluster
from stoker.backends.kubernetes.nodes import ClusterNodes, cluster_nodes
from stoker.backends.kubernetes.objects import denied_condition, uid
from stoker.backends.kubernetes.pending import Patience, Pending, why_pending
from stoker.backends.kubernetes.settings import KubernetesSettings

PAUSES: Final = (2.0, 5.0, 15.0, 60.0)
"""Seconds between two questions for the events of one job, longer while it waits."""
SPACING: Final = 0.25
"""Seconds between two questions for events at least, however many jobs wait."""
NODES: Final = 60.0
"""Seconds for which an answer about the nodes is good: many nodes and pods are megabytes."""
_LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
_AUTOSCALER: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"


class Explanations:
    """Asks for events and nodes, and says why a job waits. What may not be read is not asked for again."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster = cluster
        self._pools = settings.get("pools", ())
        self._events: dict[str, dict[str, dict[str, Any]]] = {}
        """By the uid of what they are about, and their own."""
        self._asked: dict[str, int] = {}
        """How often the events of something were asked for."""
        self._due: dict[str, float] = {}
        self._next = 0.0
        self._denied: set[str] = set()
        self._nodes: ClusterNodes | None = None
        self._nodes_due = 0.0

    def why(
        self,
        namespace: str,
        job: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        *,
        gang: bool,
        now: float,
        longest: float | None = None,
    ) -> Pending | None:
        """Why a job waits: a Job, or one of its elements with that one's pods; None where it does not.

        `longest`: the seconds after which the wait is given up; None for no limit.
        """
        for thing in (job, *pods[:1]):
            self._ask_events(namespace, thing, now)
        events = [event for thing in (job, *pods) for event in self._events.get(uid(thing), {}).values()]
        nodes = None
        if any(denied_condition(pod, "PodScheduled") for pod in pods):
            nodes = self._cluster_nodes(now)
        return why_pending(job, pods, events, nodes, gang=gang, now=time.time(), patience=Patience(seconds=longest))

    def forget(self, *things: Mapping[str, Any]) -> None:
        """Let go of what is known of objects."""
        for key in map(uid, things):
            self._events.pop(key, None)
            self._asked.pop(key, None)
            self._due.pop(key, None)

    def _ask_events(self, namespace: str, thing: Mapping[str, Any], now: float) -> None:
        key = uid(thing)
        if "events" in self._denied or now < self._next:
            return
        if key not in self._due:
            self._due[key] = now + PAUSES[0]  # most jobs start before there is anything to say
            return
        if now < self._due[key]:
            return
        times = self._asked[key] = self._asked.get(key, 0) + 1
        self._due[key] = now + PAUSES[min(times, len(PAUSES) - 1)]
        self._next = now + SPACING
        answer = self._read(
            f"/api/v1/namespaces/{namespace}/events", "events", fieldSelector=f"involvedObject.uid={key}"
        )
        known = self._events.setdefault(key, {})
        known.update({uid(event): event for event in (answer or {}).get("items") or ()})

    def _cluster_nodes(self, now: float) -> ClusterNodes | None:
        if now >= self._nodes_due:
            self._nodes_due = now + NODES
            nodes = self._read("/api/v1/nodes", "nodes")
            pods = self._read("/api/v1/pods", "pods", fieldSelector=_LIVE) if nodes is not None else None
            status = self._read(_AUTOSCALER, "autoscaler") if nodes is not None else None
            self._nodes = None
            if nodes is not None:
                self._nodes = cluster_nodes(
                    nodes.get("items") or (),
                    None if pods is None else pods.get("items") or (),
                    pools=self._pools,
                    status=str(((status or {}).get("data") or {}).get("status") or ""),
                )
        return self._nodes

    def _read(self, path: str, kind: str, **params: str) -> Mapping[str, Any] | None:
        """An answer; None where it is refused, now and for the rest of the run."""
        if kind in self._denied:
            return None
        try:
            return self._cluster.get(path, **params)
        except ApiError:
            self._denied.add(kind)
            return None
