"""Why jobs wait, asked of the cluster as seldom as that is useful: `pending` says it in words.

Nothing here waits for an answer: a list of events or of pods may be megabytes, and the same thread hears of every end.
"""

from __future__ import annotations

import time
from typing import Any, Final, Mapping, Sequence

from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.api.client import PAGE, ApiError, Cluster, Inquiry, next_page
from stoker.backends.kubernetes.explain.nodes import PROVISIONER, ClusterNodes, cluster_nodes
from stoker.backends.kubernetes.explain.pending import USUAL, Patience, Pending, why_pending, words_of
from stoker.backends.kubernetes.objects import denied_condition, is_deleted, uid
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError

PAUSES: Final = (2.0, 5.0, 15.0, 60.0)
"""Seconds between two questions for the events of one job, longer while it waits."""
SPACING: Final = 0.25
"""Seconds between two questions for events at least, however many jobs wait."""
ALIKE: Final = 1.0
"""Seconds for which pods of a Job that say the same wait for the same."""
RECENT: Final = 1000
"""Explanations that are remembered at most."""
NODES: Final = 60.0
"""Seconds for which an answer about the nodes is good: many nodes and pods are megabytes."""
NODES_AWAITED: Final = 5.0
"""Seconds for which nothing is said of pods without a node, as long as the first answer about the nodes may come."""
_BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_NODES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "nodes": ("/api/v1/nodes", {"limit": PAGE}),
    "pods": ("/api/v1/pods", {"fieldSelector": _BOUND, "limit": PAGE}),
    "autoscaler": ("/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status", {}),
    "provisioner": (PROVISIONER, {}),
}
"""What is asked about nodes, by its kind: path and parameters."""


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
        """Kinds of objects that this account may not read."""
        self._inquiries: dict[str, Inquiry] = {}
        """Questions that are not answered: by the uid of what events are about, or the kind of object."""
        self._answers: dict[str, Mapping[str, Any]] = {}
        """Answers about the nodes, by the kind of object."""
        self._recent: dict[tuple[str, ...] | None, tuple[float, Pending]] = {}
        """Explanations by the Job's uid and what a pod of it says, and until when they are good."""
        self._nodes: ClusterNodes | None = None
        self._nodes_due = 0.0
        self._nodes_since = 0.0
        """When the nodes were first asked for, on the monotonic clock."""

    def why(
        self,
        namespace: str,
        job: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        *,
        gang: bool,
        now: float,
        patience: Patience = USUAL,
    ) -> Pending | None:
        """Why a job waits: a Job, or one of its elements with that one's pods; None where it does not.

        `patience`: after how much the wait is given up. Of the elements of a fan-out whose pods say the same, one is
        explained, and the others for a moment like it.
        """
        alike = None if gang or len(pods) != 1 or uid(pods[0]) in self._events else (uid(job), *words_of(pods[0]))
        if alike in self._recent and now < self._recent[alike][0]:
            return self._recent[alike][1]
        # A Job of a thousand elements has an event for each: they say why no pod is there, and nothing of one that is.
        things = (*pods,) if any(not is_deleted(pod) for pod in pods) else (job, *pods)
        for thing in (things[0], *pods[:1]):
            self._ask_events(namespace, thing, now)
        events = [event for thing in things for event in self._events.get(uid(thing), {}).values()]
        nodes = None
        if any(denied_condition(pod, "PodScheduled") for pod in pods):
            nodes = self._cluster_nodes(now)
            awaited = any(kind in self._inquiries for kind in _NODES)
            if nodes is None and awaited and now < self._nodes_since + NODES_AWAITED:
                return None
        pending = why_pending(job, pods, events, nodes, gang=gang, now=time.time(), patience=patience)
        if alike is not None and uid(pods[0]) not in self._events and pending is not None and not pending.hopeless:
            if len(self._recent) >= RECENT:
                self._recent.clear()
            self._recent[alike] = now + ALIKE, pending
        return pending

    def forget(self, *things: Mapping[str, Any]) -> None:
        """Let go of what is known of objects."""
        for key in map(uid, things):
            self._events.pop(key, None)
            self._asked.pop(key, None)
            self._due.pop(key, None)
            if key in self._inquiries:
                self._inquiries.pop(key).close()

    def _ask_events(self, namespace: str, thing: Mapping[str, Any], now: float) -> None:
        key = uid(thing)
        if key in self._inquiries:
            answer = self._take(key, "events")
            if answer is not None:
                known = self._events.setdefault(key, {})
                known.update({uid(event): event for event in answer.get("items") or ()})
            return
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
        path = f"/api/v1/namespaces/{namespace}/events"
        self._inquiries[key] = self._cluster.inquire(path, fieldSelector=f"involvedObject.uid={key}")

    def _cluster_nodes(self, now: float) -> ClusterNodes | None:
        if now >= self._nodes_due:
            self._nodes_due = now + NODES
            self._nodes_since = self._nodes_since or now
            self._answers.clear()
            for kind, (path, params) in _NODES.items():
                if kind not in self._denied and kind not in self._inquiries:
                    self._inquiries[kind] = self._cluster.inquire(path, **params)
        asked = [kind for kind in _NODES if kind in self._inquiries]
        for kind in asked:
            answer = self._take(kind, kind)
            if answer is not None:
                self._add(kind, answer)
            elif kind not in self._inquiries:
                self._answers.pop(kind, None)  # some pages are not all
        if asked and not any(kind in self._inquiries for kind in _NODES):
            nodes, pods, status, provisioner = (self._answers.get(kind) for kind in _NODES)
            self._nodes = None
            if nodes is not None:
                self._nodes = cluster_nodes(
                    nodes.get("items") or (),
                    None if pods is None else pods.get("items") or (),
                    pools=self._pools,
                    status=str(((status or {}).get("data") or {}).get("status") or ""),
                    provisioned=provisioner is not None,
                )
            self._answers.clear()
        return self._nodes

    def _add(self, kind: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer about the nodes, and ask for its next page. Of a thousand pods, each of which carries its
        program, only what they take of their nodes is kept."""
        items = [_taken(one) if kind == "pods" else one for one in answer.get("items") or ()]
        known = self._answers.get(kind, {}).get("items") or []
        self._answers[kind] = {**answer, "items": [*known, *items]}
        token = next_page(answer)
        if token:
            path, params = _NODES[kind]
            self._inquiries[kind] = self._cluster.inquire(path, **params, **{"continue": token})

    def _take(self, key: str, kind: str) -> Mapping[str, Any] | None:
        """An answer; None while it is not there, or where none came. What is refused is not asked for again."""
        try:
            text = self._inquiries[key].take()
            if text is None:
                return None
            del self._inquiries[key]
            return parse_object(text)
        except Away:
            del self._inquiries[key]
        except ApiError as error:
            del self._inquiries[key]
            if error.status == 401:
                self._cluster.access.renew()
            elif error.status != 410:  # a page came too late
                self._denied.add(kind)
        except SettingsError:
            pass  # no JSON: something between here and the server answers
        return None


def _taken(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What `cluster_nodes` reads of a pod."""
    spec = pod.get("spec") or {}
    kept: dict[str, Any] = {name: spec[name] for name in ("nodeName", "overhead", "resources") if name in spec}
    for name in ("containers", "initContainers"):
        kept[name] = [
            {field: one[field] for field in ("resources", "restartPolicy") if field in one}
            for one in spec.get(name) or ()
        ]
    return {"spec": kept}
