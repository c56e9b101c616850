"""What all parts of the server share: the kinds it knows, plain objects, names, times and quantities."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

from attrs import define, frozen

Object = dict[str, Any]
"""An object as the API has it."""

EVERYTHING = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@frozen
class Resource:
    """One kind of objects."""

    group: str
    """API group; "" is the core."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    verbs: tuple[str, ...] = EVERYTHING

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`: "v1", "batch/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """As in the API's messages: "pods", "jobs.batch"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def schema(self) -> str:
        """What `schemas` calls its fields: the kind, with the group where others have one of the same name."""
        return self.kind_name if "." in self.group and self.kind in ("JobSet", "PodGroup") else self.kind

    @property
    def kind_name(self) -> str:
        """As in the API's messages about invalid objects: "Pod", "Job.batch"."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Resource("batch", "v1", "jobs", "Job")
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
RESOURCES = (
    PODS, NODES, EVENTS, SECRETS, CONFIG_MAPS, NAMESPACES, SERVICES, SERVICE_ACCOUNTS, QUOTAS, CLAIMS, JOBS,
    CRON_JOBS,
    PRIORITY_CLASSES, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, STORAGE_CLASSES, LIMIT_RANGES,
    NETWORK_POLICIES,
)  # fmt: skip

FINISHED = ("Succeeded", "Failed")
"""Phases of a pod that has ended."""


@define
class Clock:
    """The time that the server believes."""

    skew: float = 0.0
    """Seconds by which it is ahead of the machine's."""

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.skew

    def stamp(self, after: float = 0.0) -> str:
        """Now, or `after` seconds from now, as most objects have it: "2026-11-21T04:47:55Z"."""
        return datetime.fromtimestamp(self.now() + after, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def micro(self) -> str:
        """Now with microseconds, as the scheduler's events have it."""
        return datetime.fromtimestamp(self.now(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@define
class Pace:
    """How fast the cluster's own waits pass: back-offs, the time between two syncs, how long a silent node is trusted.

    What a request names itself (deadlines, grace, time to live) keeps its length.
    """

    speed: float = 20.0
    """How many times faster than a real cluster."""

    def __call__(self, seconds: float) -> float:
        """How long a wait lasts here that takes `seconds` in a real cluster."""
        return seconds / self.speed


def seconds_of(stamp: str) -> float:
    """Seconds since 1970 of a time in an object, with or without a fraction of any length."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    moment = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return moment.timestamp() + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def nano_stamp(nanoseconds: int) -> str:
    """A time in a log, with nine digits behind the point."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=nanoseconds // 10**9)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{nanoseconds % 10**9:09d}Z"


def new_uid() -> str:
    """A uid for an object."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def name_ending() -> str:
    """Five letters and digits, as the API appends to `generateName`."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


def copied(value: Any) -> Any:
    """A deep copy of plain JSON."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}


def amount(quantity: str | float) -> Fraction:
    """The value of a quantity: "500m", "64Mi", "1e3", 2.

    Raises:
        ValueError: It is not a quantity.
    """
    match = re.fullmatch(r"([+-]?\d*\.?\d+(?:[eE][+-]?\d+)?)([a-zA-Z]*)", str(quantity))
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"quantities must match the regular expression of the API, not {quantity!r}")
    return Fraction(match[1]) * _SUFFIXES[match[2]]


def requests_of(pod: Object) -> Mapping[str, Fraction]:
    """What a pod asks for: the sum of its containers and sidecars, or of its largest init container if that is more.

    Whoever places a pod asks this of all pods, and their containers stay as they are.
    """
    containers, uid = pod["spec"]["containers"], pod["metadata"].get("uid", "")
    earlier = _REQUESTS.get(uid)
    if earlier is not None and earlier[0] is containers:
        return earlier[1]
    requests = _requests_of(pod)
    if uid:
        if len(_REQUESTS) >= _MOST_REQUESTS:
            _REQUESTS.clear()
        _REQUESTS[uid] = containers, requests
    return requests


_REQUESTS: dict[str, tuple[list[Object], Mapping[str, Fraction]]] = {}
"""By the pod's uid, with the containers that ask for it."""
_MOST_REQUESTS = 10_000


def _requests_of(pod: Object) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for container in pod["spec"]["containers"]:
        _add(total, _container_requests(container))
    peak: dict[str, Fraction] = {}
    sidecars: dict[str, Fraction] = {}
    for container in pod["spec"].get("initContainers", []):
        wanted = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            _add(total, wanted)
            wanted = sidecars
        else:
            wanted = {
                name: wanted.get(name, Fraction(0)) + sidecars.get(name, Fraction(0)) for name in wanted | sidecars
            }
        peak = {name: max(peak.get(name, Fraction(0)), wanted.get(name, Fraction(0))) for name in peak | wanted}
    return {name: max(total.get(name, Fraction(0)), peak.get(name, Fraction(0))) for name in total | peak}


def _container_requests(container: Object) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(quantity) for name, quantity in wanted.items()}


def _add(total: dict[str, Fraction], more: dict[str, Fraction]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Fraction(0)) + value


def condition_of(object: Object, type: str) -> Object | None:
    """The condition of that type, if the object has it."""
    conditions: list[Object] = object.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == type), None)


def controller_of(object: Object) -> str | None:
    """The uid of the object that controls this one."""
    references: list[Object] = object["metadata"].get("ownerReferences", [])
    return next((str(each["uid"]) for each in references if each.get("controller")), None)
