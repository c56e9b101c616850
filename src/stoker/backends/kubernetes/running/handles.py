"""What this driver knows of each of its jobs on a cluster, and of the Jobs that have them."""

from __future__ import annotations

import base64
import zlib
from typing import Any, Mapping

import attrs

from stoker.backends.kubernetes.api.follow import Log
from stoker.backends.kubernetes.objects import index_of
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.core.plan import Job, JobStatus


@attrs.define(kw_only=True, eq=False)
class JobObject:
    """A Job in the cluster, with one job of Stoker's, or several elements."""

    name: str
    namespace: str
    run: str
    uid: str = ""
    count: int = 1
    """How many jobs it has."""
    nodes: int = 1
    """Pods of each."""
    owns: bool = False
    """Whether its Secret is known to go with it."""
    deleted: bool = False
    """Whether it was asked to be deleted."""
    jobset: str = ""
    """The JobSet that it is the only Job of."""
    jobs: list[Mapping[str, Any]] = attrs.field(factory=list)
    """As its annotation names them."""

    @property
    def path(self) -> str:
        """Where it is in the API."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}"

    @property
    def root(self) -> str:
        """Where that is with which all of it goes."""
        return f"{k8sjobs.collection(self.namespace, 'JobSet')}/{self.jobset}" if self.jobset else self.path

    def has(self, pod: Mapping[str, Any], index: int) -> bool:
        """Whether one of its pods is a job's: all of them are where it has one job."""
        return self.count == 1 or index_of(pod) == index


@attrs.define(kw_only=True, eq=False)
class PodLog:
    """The log of one pod of a job, and what its program says in it."""

    log: Log
    node: int
    names: tuple[bytes, bytes] | None = None
    """What the program calls the samples, and what this machine does: as they stand in a line of JSON."""
    parts: dict[str, dict[int, str]] = attrs.field(factory=dict)
    """Pieces of texts that are not complete, by kind."""
    result: str = ""
    """The result, if it came by the log."""


@attrs.define(kw_only=True, eq=False)
class PodOrder:
    """A job in a pod that takes several, or that waits for one."""

    number: int = -1
    """Of the order in its pod; -1 while it waits."""
    taken: int = 0
    """Bytes of its output that were taken."""
    claimed: bool = False
    """Whether the pod has begun it."""
    lost: bool = False
    """Whether its pod has ended, and has said nothing of the order's end."""
    message: str = ""
    """Why it waits."""
    reason: str = ""
    """The part of that which is reported when it changes."""
    end: JobStatus | None = None
    """Its end by what its program left, where the cluster may know better."""
    status: JobStatus | None = None
    """Its end."""
    names: tuple[bytes, bytes] | None = None
    """What its program calls the samples, and what this machine does: as they stand in a line of JSON."""
    rest: bytes = b""
    """The beginning of a line of output."""


@attrs.define(kw_only=True, eq=False)
class KubernetesHandle:
    """A job as the pod, or the pods of a gang, of a Job."""

    job: Job
    place: JobObject
    """For an order that no pod has: a Job of its pool, or a Job without a name."""
    index: int
    """Of its pod in the Job; 0 for the head of a gang."""
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    logs: dict[str, PodLog] = attrs.field(factory=dict)
    """By pod."""
    output: list[tuple[int, str, bytes]] = attrs.field(factory=list)
    """What was not reported yet: node, stream, bytes."""
    running: bool = False
    again: int = 0
    """How often it was sent again because the cluster had taken its pod away."""
    ending: bool = False
    """Whether it was asked to end."""
    over_since: float = 0.0
    """When its end was first seen, on the monotonic clock; 0: not yet."""
    job_over_since: float = 0.0
    """When its Job was first seen as failed or gone, on the monotonic clock; 0: not yet."""
    next_look: float = 0.0
    """When it is looked at even if nothing is new, on the monotonic clock."""
    facts: dict[str, str] = attrs.field(factory=dict)
    reported: tuple[str, str, Mapping[str, str]] | None = None
    """Why it waits, and the facts, as last reported."""
    silence: str = ""
    """That its node does not answer, as last reported."""
    order: PodOrder | None = None
    """What it is in a pod that takes several; None for a job with pods of its own."""

    @property
    def memory(self) -> int:
        """The step's memory limit in bytes; 0: none."""
        return int(self.job.step.settings.resources.get("memory", 0))


def unpacked(text: str) -> str:
    """A text that the pod's program has compressed; empty for any other."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True)).decode()
    except (ValueError, zlib.error):
        return ""
