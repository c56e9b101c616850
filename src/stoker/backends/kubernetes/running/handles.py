"""What this driver knows of each of its jobs on a cluster, and of the Jobs that have them: what their pods say, and how
they ended.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
import zlib
from typing import Any, Collection, Final, Mapping

import attrs

from stoker.backends.base.statuses import failed, killed_for_memory, of_boot, read_result
from stoker.backends.kubernetes.api.follow import LATE, Follower, Log, is_complete, main_state
from stoker.backends.kubernetes.explain.causes import JobEnd, element_end, end_of
from stoker.backends.kubernetes.explain.pending import no_news
from stoker.backends.kubernetes.objects import condition, index_of, is_deleted, is_taken, uid
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.core.codec import parse_json
from stoker.core.errors import SettingsError
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import MARK, StepResult, WorkerEvent
from stoker.core.status import CANCELLED, WORKER_LOST

log = logging.getLogger(__name__)

LAST_WORDS: Final = 30.0
"""Seconds after a pod's end in which the rest of its log may still come."""
GANG_GRACE: Final = 15.0
"""Seconds for the other pods of a gang after its head's end: the head has told them to end."""
UNSEEN: Final = 5.0
"""Seconds after a Job's failure in which its pod, which says why, may still be seen."""
CERTAIN: Final = 60.0
"""Seconds after a pod's end in which the Job controller must have said what became of the Job."""
SETTLED: Final = 10.0
"""Seconds after a Job's end, or its deletion, in which the last word of its pods may still come."""
MARKED: Final = (MARK + '{"kubernetes"').encode()
MARKED_EVENT: Final = MARK.encode()


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


def job_object(thing: Mapping[str, Any], namespace: str, run: str) -> JobObject | None:
    """A Job or JobSet of the cluster as what a driver sent; None for one that Stoker has not made."""
    metadata = thing["metadata"]
    try:
        jobs = parse_json((metadata.get("annotations") or {}).get(k8sjobs.ELEMENTS_OF, ""))
    except SettingsError:
        return None
    nodes = int(k8sjobs.job_spec(thing).get("completions") or 1) if len(jobs) == 1 else 1
    return JobObject(
        name=k8sjobs.name_of_job(thing),
        jobset=(metadata.get("labels") or {}).get(k8sjobs.SET, ""),
        namespace=namespace,
        run=run,
        uid=metadata["uid"],
        count=len(jobs),
        nodes=nodes,
        jobs=jobs,
        owns=True,
    )


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


# What the pods say


def take_lines(handle: KubernetesHandle, pod_log: PodLog, scratch: str) -> None:
    """Take what has come of a log: what is Stoker's own out, with samples into `scratch`, and the rest as output."""
    lines, pod_log.log.lines = pod_log.log.lines, []
    plain = []
    for line in lines:
        if line.startswith(MARKED):
            _take_record(pod_log, line, scratch)
        elif pod_log.names is not None and line.startswith(MARKED_EVENT):
            plain.append(line.replace(*pod_log.names))
        else:
            plain.append(line)
    if plain:
        handle.output.append((pod_log.node, "stdout", b"\n".join(plain) + b"\n"))


def _take_record(pod_log: PodLog, line: bytes, scratch: str) -> None:
    try:
        record = parse_json(line[len(MARKED_EVENT) :])
        kind = record["kubernetes"]
        if kind == "end":
            return  # the log knows it
        if kind == "names":
            here, there = (json.dumps(record[name])[1:-1] for name in ("here", "there"))
            stem = here.removesuffix(".jsonl"), there.removesuffix(".jsonl")
            pod_log.names = stem[0].encode(), stem[1].encode()
        else:
            parts = pod_log.parts.setdefault(kind, {})
            parts[record["part"]] = record["text"]
            if len(parts) == record["parts"]:
                text = unpacked("".join(parts[number] for number in range(record["parts"])))
                if kind == "result":
                    pod_log.result = text
                elif kind == "samples":
                    keep_samples(str(record["name"]), text, scratch)
    except (SettingsError, KeyError, TypeError, ValueError, zlib.error):
        log.debug("a line of %s only looks like Stoker's own", pod_log.log.pod)


def keep_samples(path: str, text: str, scratch: str) -> None:
    """Write what a pod recorded of its devices to this machine's scratch."""
    if os.path.dirname(path) == scratch:
        os.makedirs(scratch, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def unpacked(text: str) -> str:
    """A text that the pod's program has compressed; empty for any other."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True)).decode()
    except (ValueError, zlib.error):
        return ""


# How a job ended


def status_of(
    handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], follower: Follower, now: float
) -> JobStatus | JobEnd | None:
    """How a job ended, once all that is to come of it is there, from its result or as the cluster tells; None
    before."""
    place = handle.place
    head = pods.get(0 if place.nodes > 1 else handle.index if place.count > 1 else min(pods, default=0))
    over = {index for index, pod in pods.items() if is_complete(pod) or pod["metadata"]["uid"] in follower.gone}
    head_over = head is not None and (index_of(head) or 0) in over
    if not head_over and place.count > 1 and not _may_end(follower.seen.get(place.name), follower.gone):
        return None
    end = cluster_end(handle, pods, follower, now)
    if not head_over and end is None:
        return None
    handle.over_since = handle.over_since or now
    waited = now - handle.over_since
    all_over = len(over) >= place.nodes
    if end is None and not all_over and waited < GANG_GRACE:
        handle.next_look = now + 0.5
        return None
    if any(not one.log.complete for one in handle.logs.values()) and waited < LAST_WORDS:
        handle.next_look = now + 0.2
        return None
    if not head_over and not handle.ending and waited < (CERTAIN if end and end.state == "succeeded" else UNSEEN):
        handle.next_look = now + 0.2  # the watch of the pods is behind that of the Jobs
        if waited > LATE:
            follower.late.setdefault(place.name, set()).add(handle.index if place.count > 1 else None)
        return None
    result = _result(handle, head)
    taken = any(map(is_taken, pods.values()))
    taken = taken or (place.nodes == 1 and head is not None and is_deleted(head))
    if result is not None and (result.ok or not taken or handle.ending):
        if head is not None and result.exited is not None and _terminated(head).get("reason") == "OOMKilled":
            evidence = f"the node says that the memory of pod {head['metadata']['name']} was full (OOMKilled)"
            return killed_for_memory(evidence, None, memory=handle.memory)
        status = of_boot(result, None, memory=handle.memory)
        ends = handle.ending and result.exited is not None
        return attrs.evolve(status, cause=CANCELLED) if ends else status
    if handle.ending:
        return failed(CANCELLED)
    if end is None and waited < CERTAIN:
        handle.next_look = now + 0.5
        return None
    return end or status_without_result(None, place)


def cluster_end(
    handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], follower: Follower, now: float
) -> JobEnd | None:
    """What the cluster says of the end of a job."""
    place = handle.place
    thing = follower.seen.get(place.name)
    if thing is None:
        return None
    settled = False
    if condition(thing, "Failed") or uid(thing) in follower.gone:
        handle.job_over_since = handle.job_over_since or now
        settled = now - handle.job_over_since >= SETTLED
        if not settled:
            handle.next_look = min(handle.next_look, now + 0.5)
    if place.count > 1:
        mine = list(pods.values())
        return element_end(thing, handle.index, mine, gone=follower.gone, settled=settled)
    mine = list(follower.pods.get(place.name, {}).values())
    return end_of(thing, mine, gone=follower.gone, settled=settled)


def _result(handle: KubernetesHandle, head: Mapping[str, Any] | None) -> StepResult | None:
    """The result that the worker handed over: as the termination message, or by the log."""
    if head is None:
        return None
    text = unpacked(str(_terminated(head).get("message") or ""))
    if not text:
        pod_log = handle.logs.get(head["metadata"]["name"])
        text = pod_log.result if pod_log is not None else ""
    return read_result(text) if text else None


def _may_end(thing: Mapping[str, Any] | None, gone: Collection[str]) -> bool:
    """Whether a Job of which a pod has not ended may tell more than that one runs."""
    if thing is None:
        return False
    status = thing.get("status") or {}
    return bool(
        thing["metadata"]["uid"] in gone or is_deleted(thing) or status.get("conditions") or status.get("failedIndexes")
    )


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container of a step ended; empty where it has not."""
    return main_state(pod).get("terminated") or {}


def status_without_result(end: JobEnd | None, place: JobObject) -> JobStatus:
    """The status of a job whose worker left no result."""
    if end is None:
        return failed(WORKER_LOST, f"a pod of the Job {place.namespace}/{place.name} is gone, and nothing says why")
    if end.state == "succeeded":
        words = f"its pod {end.pod} left with exit code 0 and without a result: {end.message}"
        return failed(end.cause or WORKER_LOST, words)
    return attrs.evolve(failed(end.cause or WORKER_LOST, end.message), exit_code=end.exit_code)


def remarks(
    handle: KubernetesHandle, pods: Mapping[int, Mapping[str, Any]], status: JobStatus | None, follower: Follower
) -> list[WorkerEvent]:
    """What the run's record keeps beside the end: a node that is silent, a child process that was killed."""
    if status is None:
        note, text = "node-silent", no_news(pods.values())
        if text == handle.silence:
            return []
        handle.silence = text
    else:
        end = cluster_end(handle, pods, follower, time.monotonic()) if status.state == "succeeded" else None
        note, text = "child-killed", "" if end is None else end.hint
    return [WorkerEvent(kind="noted", note=note, data={"message": text})] if text else []
