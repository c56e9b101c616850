"""The scheduler: which node a pod runs on, why none takes it, and who has to go for a pod of higher priority."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

from attrs import define, field
from tests.kubernetes.server.deletion import Deletion, disrupted
from tests.kubernetes.server.objects import (
    CLAIMS,
    EVENTS,
    FINISHED,
    NODES,
    PODS,
    Object,
    amount,
    condition_of,
    requests_of,
)
from tests.kubernetes.server.selectors import expression_holds
from tests.kubernetes.server.store import Change
from tests.kubernetes.server.world import Rounds, World

NOT_HELPFUL = "Preemption is not helpful for scheduling."
NO_VICTIMS = "No preemption victims found for incoming pod."
NOT_ELIGIBLE = "not eligible due to a terminating pod on the nominated node."
AGAIN = 1.0
"""Seconds between two events that say the same of one pod, at least."""


@define
class Room:
    """A node and what runs on it."""

    node: Object
    pods: list[Object] = field(factory=list)
    used: dict[str, Fraction] = field(factory=dict)

    @property
    def allocatable(self) -> dict[str, str]:
        """What the node has for pods."""
        return dict(self.node["status"].get("allocatable", {}))

    def take(self, pod: Object) -> None:
        """Count a pod."""
        self.pods.append(pod)
        for name, value in requests_of(pod).items():
            self.used[name] = self.used.get(name, Fraction(0)) + value

    def short_of(self, pod: Object, without: frozenset[str] = frozenset()) -> list[str]:
        """What is not there for a pod; `without` are uids of pods that are thought away."""
        allocatable, used, count = self.allocatable, dict(self.used), len(self.pods)
        for each in self.pods if without else []:
            if each["metadata"]["uid"] in without:
                count -= 1
                for name, value in requests_of(each).items():
                    used[name] -= value
        reasons = ["Too many pods"] if count >= amount(allocatable.get("pods", "110")) else []
        for name, value in requests_of(pod).items():
            if value and value > amount(allocatable.get(name, "0")) - used.get(name, Fraction(0)):
                reasons.append(f"Insufficient {name}")
        return reasons

    def never(self, pod: Object) -> bool:
        """Whether the pod asks for more than the whole node has."""
        allocatable = self.allocatable
        return any(value > amount(allocatable.get(name, "0")) for name, value in requests_of(pod).items() if value)


@define(eq=False)
class Scheduler:
    """Binds pods to nodes."""

    world: World
    deletion: Deletion
    _rounds: Rounds = field(init=False)
    _waiting: dict[str, Object] = field(factory=dict)
    """Pods without a node by uid."""
    _told: dict[str, float] = field(factory=dict)
    """When the last event was written about a pod."""

    def __attrs_post_init__(self) -> None:
        self._rounds = Rounds(lambda key: self._schedule())
        self.world.store.listen(self._heard)

    def forget(self) -> None:
        """Forget all pods."""
        self._rounds.forget()
        self._waiting.clear()
        self._told.clear()

    def _heard(self, change: Change) -> None:
        if change.resource is PODS:
            pod, uid = change.object, change.object["metadata"]["uid"]
            waits = not pod["spec"].get("nodeName") and pod["spec"]["schedulerName"] == "default-scheduler"
            if change.type == "DELETED" or not waits or pod["status"]["phase"] in FINISHED:
                self._told.pop(uid, None)
                self._waiting.pop(uid, None)
            else:
                self._waiting[uid] = pod
            freed = change.type == "DELETED" or pod["status"]["phase"] in FINISHED
            if change.before is None or freed:
                self._rounds.ask("")
        elif change.resource is not EVENTS:
            self._rounds.ask("")

    def _schedule(self) -> None:
        """Try all pods that wait, the most important first, then the oldest."""
        if not self._waiting:
            return
        rooms = self._rooms()
        hopeless: dict[str, list[str]] = {}
        queue = sorted(
            self._waiting.values(),
            key=lambda pod: (-pod["spec"].get("priority", 0), int(pod["metadata"]["resourceVersion"])),
        )
        for pod in queue:
            if pod["spec"].get("schedulingGates"):
                self._unschedulable(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
                continue
            shape = _shape(pod)
            if shape in hopeless:
                self._refuse(pod, hopeless[shape], rooms)
                continue
            if claim := self._missing_claim(pod):
                self._unschedulable(pod, "Unschedulable", _without_claim(claim, len(rooms)))
                continue
            reasons = {room.node["metadata"]["name"]: refusals(pod, room) for room in rooms}
            fitting = [room for room in rooms if not reasons[room.node["metadata"]["name"]]]
            if fitting:
                # As the real one spreads pods: the node with the least in use.
                self._bind(pod, min(fitting, key=lambda room: (_load(room), len(room.pods))))
            else:
                hopeless[shape] = [reason for each in reasons.values() for reason in each]
                if not self._preempt(pod, rooms, hopeless[shape]):
                    self._refuse(pod, hopeless[shape], rooms)

    def _missing_claim(self, pod: Object) -> str | None:
        """The first claim among the pod's volumes that does not exist."""
        volumes = [each.get("persistentVolumeClaim") for each in pod["spec"].get("volumes", [])]
        namespace = pod["metadata"]["namespace"]
        names = [str(each["claimName"]) for each in volumes if each is not None]
        return next((name for name in names if self.world.store.get(CLAIMS, namespace, name) is None), None)

    def _rooms(self) -> list[Room]:
        rooms = {node["metadata"]["name"]: Room(node) for node in self.world.store.all(NODES)}
        for pod in self.world.store.each(PODS):
            room = rooms.get(pod["spec"].get("nodeName", ""))
            if room is not None and pod["status"]["phase"] not in FINISHED:
                room.take(pod)
        return list(rooms.values())

    def _bind(self, pod: Object, room: Room) -> None:
        name = room.node["metadata"]["name"]
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self.world.clock.stamp(),
        }
        others = [each for each in pod["status"].get("conditions", []) if each["type"] != "PodScheduled"]
        status = {**pod["status"], "conditions": [*others, condition]}
        status.pop("nominatedNodeName", None)
        bound = self.world.store.put(PODS, {**pod, "spec": {**pod["spec"], "nodeName": name}, "status": status})
        room.take(bound)
        metadata = pod["metadata"]
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {name}"
        self.world.recorder.schedule(bound, "Normal", "Scheduled", message, "Binding")

    def _refuse(self, pod: Object, reasons: list[str], rooms: list[Room]) -> None:
        if not rooms:
            self._unschedulable(pod, "Unschedulable", "no nodes available to schedule pods")
            return
        nominated = pod["status"].get("nominatedNodeName")
        room = next((each for each in rooms if each.node["metadata"]["name"] == nominated), None)
        if room is not None and any(each["metadata"].get("deletionTimestamp") for each in room.pods):
            after = NOT_ELIGIBLE
        else:
            words = [NOT_HELPFUL if _unresolvable(pod, room) else NO_VICTIMS for room in rooms]
            after = _counted(words, len(rooms), ends="")
        message = f"{_counted(reasons, len(rooms))} no new claims to deallocate, preemption: {after}"
        self._unschedulable(pod, "Unschedulable", message)

    def _unschedulable(self, pod: Object, reason: str, message: str) -> None:
        uid, now = pod["metadata"]["uid"], self.world.clock.now()
        known = condition_of(pod, "PodScheduled")
        if (
            known is not None
            and known["message"] == message
            and now - self._told.get(uid, 0.0) < self.world.pace(AGAIN)
        ):
            return
        self._told[uid] = now
        if known is None or known["message"] != message:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": self.world.clock.stamp(),
                "reason": reason,
                "message": message,
            }
            others = [each for each in pod["status"].get("conditions", []) if each["type"] != "PodScheduled"]
            pod = self.world.store.put(PODS, {**pod, "status": {**pod["status"], "conditions": [*others, condition]}})
        if reason == "Unschedulable":
            self.world.recorder.schedule(pod, "Warning", "FailedScheduling", message, "Scheduling")

    def _preempt(self, pod: Object, rooms: list[Room], reasons: list[str]) -> bool:
        """Make room for a pod by deleting pods of lower priority; whether some were found."""
        priority = pod["spec"].get("priority", 0)
        if pod["spec"].get("preemptionPolicy") == "Never" or pod["status"].get("nominatedNodeName"):
            return False
        best: tuple[Room, list[Object]] | None = None
        for room in rooms:
            if _unresolvable(pod, room):
                continue
            lower = [each for each in room.pods if each["spec"].get("priority", 0) < priority]
            lower = [each for each in lower if not each["metadata"].get("deletionTimestamp")]
            victims = _fewest(pod, room, sorted(lower, key=lambda each: each["spec"].get("priority", 0)))
            if victims and (best is None or len(victims) < len(best[1])):
                best = room, victims
        if best is None:
            return False
        room, victims = best
        name = room.node["metadata"]["name"]
        self._unschedulable(pod, "Unschedulable", _counted(reasons, len(rooms)))
        newest = self.world.store.current(PODS, pod)
        if newest is not None:
            self.world.store.put(PODS, {**newest, "status": {**newest["status"], "nominatedNodeName": name}})
        for victim in victims:
            message = "default-scheduler: preempting to accommodate a higher priority pod"
            marked = disrupted(self.world, victim, "PreemptionByScheduler", message)
            self.deletion.delete(PODS, marked, {})
            text = f"Preempted by pod {pod['metadata']['uid']} on node {name}"
            self.world.recorder.schedule(marked, "Normal", "Preempted", text, "Preempting")
        self._rounds.ask("", self.world.pace(AGAIN))
        return True


def refusals(pod: Object, room: Room) -> list[str]:
    """Why a node does not take a pod, in the scheduler's words; empty if it does."""
    node, spec = room.node, pod["spec"]
    if node["spec"].get("unschedulable") and not _tolerates(
        spec, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ):
        return ["node(s) were unschedulable"]
    taints = [each for each in node["spec"].get("taints") or [] if each["effect"] in ("NoSchedule", "NoExecute")]
    if not all(_tolerates(spec, taint) for taint in taints):
        # Up to 1.33 the taint itself was named, in braces.
        return ["node(s) had untolerated taint(s)"]
    if not _wanted(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return room.short_of(pod)


def _tolerates(spec: Object, taint: Object) -> bool:
    for each in spec.get("tolerations") or []:
        if each.get("effect") not in (None, "", taint["effect"]):
            continue
        if each.get("operator", "Equal") == "Exists":
            if each.get("key") in (None, "", taint["key"]):
                return True
        elif each.get("key") == taint["key"] and each.get("value", "") == taint.get("value", ""):
            return True
    return False


def _wanted(spec: Object, node: Object) -> bool:
    """Whether the node is one that the pod's selector and required affinity name."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(expression_holds(each, labels) for each in term.get("matchExpressions", []))
        and all(expression_holds(each, fields) for each in term.get("matchFields", []))
        for term in affinity["nodeSelectorTerms"]
    )


def _unresolvable(pod: Object, room: Room) -> bool:
    """Whether the pod would not fit even on the empty node."""
    reasons = refusals(pod, Room(room.node))
    return bool(reasons)


def _fewest(pod: Object, room: Room, candidates: list[Object]) -> list[Object]:
    """The fewest of the candidates whose end makes room, the least important first; empty if all do not."""
    everybody = frozenset(each["metadata"]["uid"] for each in candidates)
    if not candidates or room.short_of(pod, everybody):
        return []
    victims = list(candidates)
    for each in reversed(candidates):
        rest = frozenset(one["metadata"]["uid"] for one in victims if one is not each)
        if not room.short_of(pod, rest):
            victims.remove(each)
    return victims


def _counted(reasons: list[str], nodes: int, ends: str = ".") -> str:
    """How many nodes give which reason: "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory."."""
    words = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available: {', '.join(words)}{ends}"


def _without_claim(claim: str, nodes: int) -> str:
    """What is said of a pod whose claim does not exist."""
    after = _counted([NOT_HELPFUL] * nodes, nodes, ends="")
    refused = f'0/{nodes} nodes are available: persistentvolumeclaim "{claim}" not found.'
    return f"{refused} no new claims to deallocate, preemption: {after}"


def _shape(pod: Object) -> str:
    """What decides where a pod can run: pods of one shape are refused alike."""
    spec = pod["spec"]
    wanted = {name: str(value) for name, value in requests_of(pod).items()}
    parts = [spec.get(name) for name in ("nodeSelector", "affinity", "tolerations", "priority", "preemptionPolicy")]
    return json.dumps([wanted, parts, pod["status"].get("nominatedNodeName")], sort_keys=True)


def _load(room: Room) -> Fraction:
    """The largest share of a resource that is in use."""
    shares = []
    for name, value in room.used.items():
        total = amount(room.allocatable.get(name, "0"))
        if total:
            shares.append(value / total)
    return max(shares, default=Fraction(0))
