"""Nodes: what they have, that they answer, and what becomes of their pods when they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from attrs import define, field
from tests.kubernetes.server.deletion import Deletion, disrupted
from tests.kubernetes.server.objects import FINISHED, NODES, PODS, Object, amount, condition_of, new_uid
from tests.kubernetes.server.world import World

GRACE = 40.0
"""Seconds for which a node that does not answer is believed to be well."""
COLLECTED = 45.0
"""Seconds after which the pods of a node that was removed are deleted."""
KEPT = 102400
"""Ki of memory below which a kubelet evicts pods: they are not to be had."""
UNREACHABLE = "node.kubernetes.io/unreachable"
CONDITIONS = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("KubeletReady", "kubelet is posting ready status"),
}
"""Reason and message of each condition of a node that is well."""


@define(eq=False)
class Nodes:
    """Adds nodes, removes them, and has them fall silent."""

    world: World
    deletion: Deletion
    silent: set[str] = field(factory=set)
    """Names of the nodes that do not answer."""
    _timers: list[asyncio.TimerHandle] = field(factory=list)
    _count: int = 0

    def add(self, name: str, capacity: Mapping[str, str], labels: Mapping[str, str], taints: list[Object]) -> None:
        """Add a node.

        Args:
            name: Its name.
            capacity: How much it has of each resource.
            labels: Its labels, beside those that every node has.
            taints: Its taints.
        """
        self._count += 1
        standard = {
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
        }
        total, allocatable = reported(capacity)
        spec: Object = {"podCIDR": f"10.244.{self._count}.0/24", "podCIDRs": [f"10.244.{self._count}.0/24"]}
        if taints:
            spec["taints"] = taints
        address = f"127.9.{self._count // 250}.{self._count % 250 + 1}"
        self.world.store.put(
            NODES,
            {
                "kind": "Node",
                "apiVersion": "v1",
                "metadata": {
                    "name": name,
                    "uid": new_uid(),
                    "creationTimestamp": self.world.clock.stamp(),
                    "labels": {**standard, **labels},
                    "annotations": {
                        "node.alpha.kubernetes.io/ttl": "0",
                        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                    },
                },
                "spec": spec,
                "status": {
                    "capacity": total,
                    "allocatable": allocatable,
                    "conditions": self._conditions(well=True),
                    "addresses": [
                        {"type": "InternalIP", "address": address},
                        {"type": "Hostname", "address": name},
                    ],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                    "declaredFeatures": ["InPlacePodVerticalScalingInitContainers"],
                    "nodeInfo": {
                        "architecture": "amd64",
                        "bootID": new_uid(),
                        "kubeProxyVersion": "",
                        "machineID": new_uid(),
                        "systemUUID": new_uid(),
                        "containerRuntimeVersion": "containerd://1.6.20",
                        "kernelVersion": "6.1.0",
                        "kubeletVersion": "v1.36.2",
                        "operatingSystem": "linux",
                        "osImage": "Debian GNU/Linux 12 (bookworm)",
                    },
                },
            },
        )

    def put(self, items: list[Object]) -> None:
        """Add nodes as they were recorded or documented, as they are."""
        for item in items:
            metadata = {**item["metadata"], "uid": item["metadata"].get("uid") or new_uid()}
            self.world.store.put(NODES, {"kind": "Node", "apiVersion": "v1", **item, "metadata": metadata})

    def change(self, name: str, **spec: Any) -> None:
        """Change fields of a node's specification: `unschedulable`, `taints`."""
        node = self._node(name)
        merged = {**node["spec"], **spec}
        self.world.store.put(NODES, {**node, "spec": {key: value for key, value in merged.items() if value}})

    def drain(self, name: str) -> None:
        """Cordon a node and evict its pods."""
        self.change(name, unschedulable=True)
        for pod in self._pods(name):
            marked = disrupted(self.world, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
            self.deletion.delete(PODS, marked, {})

    def remove(self, name: str) -> None:
        """Remove a node with all that runs on it, as an autoscaler does."""
        self.world.store.remove(NODES, self._node(name))

    def gone(self, name: str) -> None:
        """A node was removed: its pods are collected a while later."""
        self.silent.add(name)
        self._later(COLLECTED, self._collect, self._pods(name))

    def lose(self, name: str) -> None:
        """Have a node fall silent: its processes go on, but nobody hears of them."""
        self.silent.add(name)
        self._later(GRACE, self._suspect, name)

    def answer(self, name: str) -> None:
        """Have a silent node answer again."""
        self.silent.discard(name)
        if self.world.store.get(NODES, "", name) is not None:
            self._show(name, well=True)
            for effect in ("NoSchedule", "NoExecute"):
                taints = self._node(name)["spec"].get("taints") or []
                left = [each for each in taints if (each["key"], each["effect"]) != (UNREACHABLE, effect)]
                if left != taints:
                    self.change(name, taints=left)

    def forget(self) -> None:
        """Forget all nodes that were silent."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.silent.clear()

    def _later(self, seconds: float, work: Any, *arguments: Any) -> None:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self.world.pace(seconds), work, *arguments))

    def _node(self, name: str) -> Object:
        node = self.world.store.get(NODES, "", name)
        if node is None:
            raise LookupError(f"there is no node {name!r}")
        return node

    def _pods(self, name: str) -> list[Object]:
        pods = [pod for pod in self.world.store.all(PODS) if pod["spec"].get("nodeName") == name]
        return [pod for pod in pods if pod["status"]["phase"] not in FINISHED]

    def _suspect(self, name: str) -> None:
        """Nobody has heard of the node for long: its conditions become unknown, and its pods are to go."""
        if name not in self.silent or self.world.store.get(NODES, "", name) is None:
            return
        self._show(name, well=False)
        for pod in self._pods(name):
            self._mark_unready(pod)
            self.world.recorder.write(pod, "Warning", "NodeNotReady", "Node is not ready", "node-controller")
        now = self.world.clock.stamp()
        taints = self._node(name)["spec"].get("taints") or []
        # Where no node at all answers, the fault is thought to be elsewhere, and no pod is evicted.
        alone = all(node["metadata"]["name"] in self.silent for node in self.world.store.each(NODES))
        for effect in ("NoSchedule",) if alone else ("NoSchedule", "NoExecute"):
            taints = [*taints, {"key": UNREACHABLE, "effect": effect, "timeAdded": now}]
            self.change(name, taints=taints)
        for pod in self._pods(name) if not alone else []:
            seconds = [
                each.get("tolerationSeconds")
                for each in pod["spec"].get("tolerations", [])
                if each.get("key") in (None, UNREACHABLE) and each.get("effect") in (None, "NoExecute")
            ]
            if not seconds or None not in seconds:
                self._later(min((float(each) for each in seconds if each is not None), default=0.0), self._taint, pod)

    def _taint(self, pod: Object) -> None:
        newest = self.world.store.current(PODS, pod)
        if newest is None or newest["spec"]["nodeName"] not in self.silent:
            return
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        text = f"Marking for deletion Pod {name}"
        self.world.recorder.write(newest, "Normal", "TaintManagerEviction", text, "taint-eviction-controller")
        message = "Taint manager: deleting due to NoExecute taint"
        self.deletion.delete(PODS, disrupted(self.world, newest, "DeletionByTaintManager", message), {})

    def _collect(self, pods: list[Object]) -> None:
        """Delete what was on a node that was removed, also if there is another one of that name by now."""
        for each in pods:
            pod = self.world.store.current(PODS, each)
            if pod is None:
                continue
            failed = {**pod, "status": {**pod["status"], "phase": "Failed"}}
            marked = disrupted(self.world, failed, "DeletionByPodGC", "PodGC: node no longer exists")
            self.deletion.delete(PODS, marked, {"gracePeriodSeconds": 0})

    def _mark_unready(self, pod: Object) -> None:
        condition = condition_of(pod, "Ready")
        if condition is not None and condition["status"] == "True":
            unready = {**condition, "status": "False", "lastTransitionTime": self.world.clock.stamp()}
            conditions = [unready if each is condition else each for each in pod["status"]["conditions"]]
            self.world.store.put(PODS, {**pod, "status": {**pod["status"], "conditions": conditions}})

    def _show(self, name: str, *, well: bool) -> None:
        node = self._node(name)
        self.world.store.put(NODES, {**node, "status": {**node["status"], "conditions": self._conditions(well)}})

    def _conditions(self, well: bool) -> list[Object]:
        now = self.world.clock.stamp()
        unknown = "NodeStatusUnknown", "Kubelet stopped posting node status."
        conditions = []
        for type, words in CONDITIONS.items():
            reason, message = words if well else unknown
            status = ("True" if type == "Ready" else "False") if well else "Unknown"
            times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
            conditions.append({"type": type, "status": status, **times, "reason": reason, "message": message})
        return conditions


def reported(has: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What a kubelet says that a node has and that pods may have, by the latter: memory in Ki, disk in Ki and in bytes;
    some of both is kept for the system."""
    mine = {**dict.fromkeys(("hugepages-1Gi", "hugepages-2Mi"), "0"), **has} if has else {}
    memory, disk = (int(amount(mine.get(resource, "0"))) for resource in ("memory", "ephemeral-storage"))
    whole, left = dict(mine), dict(mine)
    if "memory" in mine:
        whole["memory"], left["memory"] = f"{-(-memory // 1024) + KEPT}Ki", f"{-(-memory // 1024)}Ki"
    if "ephemeral-storage" in mine:
        whole["ephemeral-storage"], left["ephemeral-storage"] = f"{-(-disk * 10 // 9 // 1024)}Ki", str(disk)
    return dict(sorted(whole.items())), dict(sorted(left.items()))
