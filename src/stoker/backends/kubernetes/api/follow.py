"""What goes on in one namespace of a cluster: the Jobs and pods of one run by a watch of each, and the logs of pods.

Nothing here waits: `Follower.read` takes what has come and returns. A watch that ends goes on from its last version,
and begins with a list where the server no longer knows that one (410). A log that breaks off goes on from its last
line.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Callable, Collection, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.api.client import WATCH, ApiError, Cluster, Stream, pages
from stoker.backends.kubernetes.objects import INDEX, index_of, main_status, nanoseconds, phase
from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError
from stoker.core.protocol import MARK

LOGS: Final = 128
"""Logs that are followed at once; those of further pods are read when one of these is over, or the pod is."""
AGAIN: Final = (0.1, 0.3, 1.0, 2.0, 5.0)
"""Seconds before a stream that broke off is opened again, longer each time that nothing came of it."""
SILENT: Final = WATCH + 30.0
"""Seconds without a word after which a watch counts as lost: the server ends it before."""
LATE: Final = 2.0
"""Seconds for which the watch of the pods may be behind that of the Jobs, and between two questions for late pods."""
LATE_AT_ONCE: Final = 200
"""Late pods that are asked for at once: their indexes stand in the address."""
OWNER: Final = "batch.kubernetes.io/job-name"
"""The label that the Job controller gives to pods."""


END: Final = (MARK + '{"kubernetes": "end"}').encode()
"""The last line of a step's pod, as its program writes it (`pod`)."""


def version_of(thing: Mapping[str, Any]) -> int:
    """An object's resource version as the number that it is; 0 where a server has another kind."""
    text = str(thing["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def is_complete(pod: Mapping[str, Any]) -> bool:
    """Whether the containers of a pod have ended, or will never start."""
    return phase(pod) in ("Succeeded", "Failed") or "terminated" in main_state(pod)


def main_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the container in which the step runs; empty where the kubelet has not told it."""
    return (main_status(pod) or {}).get("state") or {}


class Watch:
    """The objects of one kind with one label, kept up to date."""

    def __init__(self, cluster: Cluster, path: str, selector: str, keep: Keep) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        """By name, as they were last seen."""
        self._cluster = cluster
        self._path = path
        self._keep = keep
        self._selector = selector
        self._version = ""
        self._stream: Stream | None = None
        self._rest = b""
        self._tries = 0
        self._next_try = 0.0

    @property
    def stream(self) -> Stream | None:
        """The stream to wait for; None while there is none."""
        return self._stream

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """What has changed: "ADDED", "MODIFIED" or "DELETED", and the object. `Away` where the server is silent."""
        if not self._version:
            return self._list()
        if self._stream is None:
            if time.monotonic() < self._next_try:
                return []
            self._open()
        return self._take()

    def _list(self) -> list[tuple[str, dict[str, Any]]]:
        version, listed = "", {}
        try:
            for page in pages(self._cluster, self._path, labelSelector=self._selector):
                version = version or page["metadata"]["resourceVersion"]
                for one in page.get("items") or ():
                    name = one["metadata"]["name"]
                    listed[name] = self._keep(one, self.things.get(name))
        except ApiError as error:
            if error.status != 410:
                raise
            return []  # a page came too late: the next look begins again
        self._version = version
        changes = [("DELETED", thing) for name, thing in self.things.items() if not _is_same(thing, listed.get(name))]
        changes += [
            ("MODIFIED" if name in self.things else "ADDED", one)
            for name, one in listed.items()
            if name not in self.things or version_of(one) != version_of(self.things[name])
        ]
        self.things = listed
        with contextlib.suppress(Away):  # the next look opens it; what was listed is told once
            self._open()
        return changes

    def ask(self, selector: str) -> list[tuple[str, dict[str, Any]]]:
        """What has changed of the objects that have these labels too, asked for by themselves and told as by `read`."""
        answer = self._cluster.get(self._path, labelSelector=f"{self._selector},{selector}")
        changes = []
        for one in answer.get("items") or ():
            known = self.things.get(one["metadata"]["name"])
            if known is None or version_of(one) > version_of(known):
                thing = self.things[one["metadata"]["name"]] = self._keep(one, known)
                changes.append(("ADDED" if known is None else "MODIFIED", thing))
        return changes

    def _open(self) -> None:
        self._rest = b""
        try:
            self._stream = self._cluster.open_watch(
                self._path, resource_version=self._version, labelSelector=self._selector
            )
        except Away:
            self._later()
            raise

    def _later(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._next_try = time.monotonic() + AGAIN[min(self._tries, len(AGAIN) - 1)]
        self._tries += 1

    def _take(self) -> list[tuple[str, dict[str, Any]]]:
        stream = self._stream
        assert stream is not None
        changes: list[tuple[str, dict[str, Any]]] = []
        data = stream.read()
        if stream.status not in (None, 200):
            error = stream.error()
            if error.status == 410:
                self._version = ""
            elif error.status == 401:
                self._cluster.access.renew()
            elif error.status in (403, 404):
                raise error
            self._later()
            return []
        *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
        for line in filter(None, lines):
            try:
                event = parse_object(line)
                kind, thing = event["type"], event["object"]
            except (SettingsError, KeyError):  # something between here and the server cut it
                self._later()
                return changes
            if kind == "ERROR":
                if thing.get("code") in (410, 504) or thing.get("reason") in ("Expired", "Gone"):
                    self._version = ""
                self._later()
                return changes
            self._tries = 0
            self._version = thing["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                continue
            name = thing["metadata"]["name"]
            known = self.things.get(name)
            if known is not None and version_of(known) > version_of(thing):
                continue  # it was asked for meanwhile
            thing = self._keep(thing, known)
            if kind == "DELETED":
                self.things.pop(name, None)
            else:
                self.things[name] = thing
            changes.append((kind, thing))
        if data is None or time.monotonic() > stream.last_heard + SILENT:
            self._later()
        return changes

    def close(self) -> None:
        """End the watch."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and one["metadata"].get("uid") == other["metadata"].get("uid")


@attrs.define(kw_only=True, eq=False)
class Log:
    """The log of one pod, as far as it was read. Lines come once, in their order, whatever breaks off between."""

    job: str
    index: int | None
    pod: str
    container: str
    lines: list[bytes] = attrs.field(factory=list)
    """Those that came since they were last taken, without their time."""
    complete: bool = False
    """Whether nothing more will come."""
    ended: bool = False
    """Whether the container has ended, so that a log that was read to its end then is complete."""
    failures: int = 0
    """How often it could not be read since something of it last came."""
    stream: Stream | None = None
    _rest: bytes = b""
    _since: str = ""
    """The time of the last line, as the server wrote it."""
    _last: int = 0
    """The same in nanoseconds."""
    _number: int = 0
    """How many lines with that time were read."""
    _skip: int = 0
    """How many lines with that time come again."""
    _after_end: bool = False
    """Whether the stream was opened after the container's end."""
    next_try: float = 0.0

    def open(self, cluster: Cluster, namespace: str) -> Stream:
        """Read on from the last line; to the log's end while the container runs."""
        self._rest, self._skip, self._after_end = b"", self._number, self.ended
        since = _whole_second(self._since) if self._since else ""
        self.stream = cluster.open_log(namespace, self.pod, container=self.container, since=since)
        return self.stream

    def read(self) -> bool:
        """Take what has come; whether anything has."""
        stream = self.stream
        assert stream is not None
        data = stream.read()
        if stream.status not in (None, 200):
            self._put_off(stream)
            return False
        if data:
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._add(line)
            self.failures = 0
        if self.lines and self.lines[-1] == END:
            self.finish()
        elif data is None:
            if not stream.broken and self._after_end:
                if self._rest:
                    self._add(self._rest)
                self.finish()
            else:
                self.close(again=AGAIN[0])
        return bool(data)

    def _put_off(self, stream: Stream) -> None:
        """A pod that is gone has no more log; any other refusal is for a time."""
        self.failures += 1
        if stream.status == 404:
            self.finish()
        else:
            self.close(again=AGAIN[min(self.failures, len(AGAIN) - 1)])

    def _add(self, line: bytes) -> None:
        stamp, _, text = line.partition(b" ")
        moment = nanoseconds(stamp.decode("latin-1"))
        if moment is None:
            self.lines.append(line)  # of the kubelet itself, as where it cannot read the log
            return
        if moment < self._last:
            return
        if moment == self._last:
            if self._skip:
                self._skip -= 1
                return
            self._number += 1
        else:
            self._since, self._last, self._number, self._skip = stamp.decode("latin-1"), moment, 1, 0
        self.lines.append(text)

    def finish(self) -> None:
        """Nothing more will come."""
        self.complete = True
        self.close()

    def close(self, *, again: float = 0.0) -> None:
        """Close the stream; it may be opened again after so many seconds."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.next_try = time.monotonic() + again


def _whole_second(stamp: str) -> str:
    """The second of a time: the server cuts off the rest."""
    head, dot, rest = stamp.partition(".")
    if not dot:
        return stamp
    return head + ("Z" if rest.endswith("Z") else rest[-6:])


class Follower:
    """The Jobs and pods of one run in one namespace, and the logs of those pods that are wanted."""

    def __init__(self, cluster: Cluster, namespace: str, run_label: str) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self.jobs = Watch(cluster, f"/apis/batch/v1/namespaces/{namespace}/jobs", run_label, kept_job)
        self.watched_pods = Watch(cluster, f"/api/v1/namespaces/{namespace}/pods", run_label, Specs().pod)
        self.pods: dict[str, dict[str, dict[str, Any]]] = {}
        """By Job and name, also those that are gone, as they were last seen."""
        self.gone: set[str] = set()
        """Uids of Jobs and pods that were deleted."""
        self.seen: dict[str, dict[str, Any]] = {}
        """Jobs by name as they were last seen, also those that are gone."""
        self.news: set[tuple[str, int | None]] = set()
        """Jobs of which something is new, with the index of the pod, or None for all of a Job; its reader clears it."""
        self.late: dict[str, set[int | None]] = {}
        """Jobs that say more than their pods, and the indexes of those; None for all of a Job."""
        self._ask_at = 0.0
        """When late pods may be asked for, on the monotonic clock."""
        self._logs: dict[str, Log] = {}
        """Those that are wanted and not complete, by pod."""
        self._open: dict[int, Log] = {}
        """Those that are followed, by the descriptor of their stream."""
        self._waiting: dict[str, Log] = {}
        """Those that are to be followed, by pod."""
        self._by_index: dict[tuple[str, int | None], dict[str, dict[str, Any]]] = {}
        """The pods of each index of a Job, by name."""
        self._forgotten: set[str] = set()
        """Jobs of which nobody wants to know any more, until they are gone."""

    def read(self, ready: Collection[int] | None = None) -> None:
        """Take what has come of Jobs and pods: of all streams, or of those with these descriptors."""
        for kind, job in self.jobs.read() if _is_ready(self.jobs.stream, ready) else ():
            name = job["metadata"]["name"]
            if name in self._forgotten:
                self._forgotten -= {name} if kind == "DELETED" else set()
                continue
            before = self.seen.get(name)
            self.seen[name] = job
            self._note_gone(kind, job)
            # A Job with indexes changes with each of its pods, which tell that themselves.
            if before is None or kind == "DELETED" or _says_more(before, job):
                self.news.add((name, None))
        for kind, pod in self.watched_pods.read() if _is_ready(self.watched_pods.stream, ready) else ():
            self._take_pod(kind, pod)

    def ask_late(self, now: float) -> None:
        """Ask for pods of which the watch is late (`late`), all of a Job at once and not too often."""
        if not self.late or now < self._ask_at:
            return
        self._ask_at = now + LATE
        job, indexes = self.late.popitem()
        wanted = sorted(index for index in indexes if index is not None)[:LATE_AT_ONCE]
        selector = f"{OWNER}={job}" + ("" if None in indexes else f",{INDEX} in ({','.join(map(str, wanted))})")
        for kind, pod in self.watched_pods.ask(selector):
            self._take_pod(kind, pod)

    def _take_pod(self, kind: str, pod: dict[str, Any]) -> None:
        owner, index, name = owner_of(pod), index_of(pod), pod["metadata"]["name"]
        if owner in self._forgotten:
            return
        self.pods.setdefault(owner, {})[name] = pod
        self._by_index.setdefault((owner, index), {})[name] = pod
        self.news.add((owner, index))
        self._note_gone(kind, pod)
        log = self._logs.get(name)
        if log is not None and (kind == "DELETED" or is_complete(pod)):
            log.ended = True

    def pods_of(self, job: str, index: int, count: int) -> Collection[dict[str, Any]]:
        """The pods of one index of a Job with so many; all of them where it has one."""
        return (self.pods.get(job, {}) if count == 1 else self._by_index.get((job, index), {})).values()

    def _note_gone(self, kind: str, thing: Mapping[str, Any]) -> None:
        if kind == "DELETED":
            self.gone.add(thing["metadata"]["uid"])

    def want_log(self, log: Log) -> None:
        """Follow a log until it is complete."""
        self._logs[log.pod] = self._waiting[log.pod] = log

    def give_up_log(self, log: Log) -> None:
        """Follow a log no more, of which nothing more is wanted."""
        self._logs.pop(log.pod, None)
        self._waiting.pop(log.pod, None)
        if log.stream is not None:
            self._open.pop(log.stream.fileno(), None)
        log.finish()

    def read_logs(self, ready: Collection[int] | None = None) -> None:
        """Take what has come of logs: of all that are open, or of those with these descriptors; open further ones."""
        now = time.monotonic()
        for descriptor in list(self._open) if ready is None else self._open.keys() & ready:
            log = self._open[descriptor]
            if log.read():
                self.news.add((log.job, log.index))
            if log.stream is None:
                del self._open[descriptor]
                if log.complete:
                    del self._logs[log.pod]
                    self.news.add((log.job, log.index))
                else:
                    self._waiting[log.pod] = log
        room = LOGS - len(self._open)
        if self._waiting and room > 0:
            waiting = [log for log in self._waiting.values() if now >= log.next_try]
            # Those of pods that have ended come first: somebody waits for their end.
            for log in sorted(waiting, key=lambda log: not log.ended)[:room]:
                stream = log.open(self._cluster, self.namespace)
                del self._waiting[log.pod]
                self._open[stream.fileno()] = log

    def descriptors(self) -> Iterator[int]:
        """The descriptors of the streams to wait for."""
        for stream in (self.jobs.stream, self.watched_pods.stream):
            if stream is not None and stream.fileno() >= 0:
                yield stream.fileno()
        yield from self._open

    def forget(self, job: str) -> None:
        """Let go of what is known of a Job."""
        self.late.pop(job, None)
        for name, pod in self.pods.pop(job, {}).items():
            log = self._logs.get(name)
            if log is not None:
                self.give_up_log(log)
            self.gone.discard(pod["metadata"]["uid"])
            self._by_index.pop((job, index_of(pod)), None)
        thing = self.seen.pop(job, None)
        if thing is not None:
            if thing["metadata"]["uid"] not in self.gone:
                self._forgotten.add(job)
            self.gone.discard(thing["metadata"]["uid"])

    def close(self) -> None:
        """End the watches and logs."""
        self.jobs.close()
        self.watched_pods.close()
        for log in self._logs.values():
            log.close()


def _is_ready(stream: Stream | None, ready: Collection[int] | None) -> bool:
    """Whether a stream may have something: one that is not open is to be opened."""
    if stream is None or ready is None or stream.fileno() in ready:
        return True
    return time.monotonic() > stream.last_heard + SILENT


def _says_more(before: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether a Job's change is more than the count of its pods."""
    old, new = before.get("status") or {}, job.get("status") or {}
    if before["metadata"].get("deletionTimestamp") != job["metadata"].get("deletionTimestamp"):
        return True
    return any(old.get(field) != new.get(field) for field in ("conditions", "failedIndexes"))


def owner_of(pod: Mapping[str, Any]) -> str:
    """The name of the Job that a pod is of; empty for one that a person made."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    name = labels.get(OWNER) or labels.get("job-name")
    if name:
        return str(name)
    owners = [one["name"] for one in metadata.get("ownerReferences") or () if one.get("kind") == "Job"]
    return str(owners[0]) if owners else ""


# What is kept of pods and Jobs, in little memory: a run has thousands of them. A pod's spec has the step's program and
# all its variables, and is the same for each pod of a Job but for the node. What nobody reads is left out, and equal
# specs are kept once.

Keep = Callable[[dict[str, Any], "Mapping[str, Any] | None"], dict[str, Any]]
"""From an object of the API, and how it was last kept, to what is kept of it."""

# What `causes`, `nodes`, `pending` and the platform read of a pod.
_METADATA: Final = (
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels", "annotations",
    "ownerReferences",
)  # fmt: skip
_CONTAINER: Final = ("name", "image", "resources", "restartPolicy", "volumeMounts")
_STATUS: Final = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")
_CONDITION: Final = ("type", "status", "reason", "message", "lastTransitionTime")
_CONTAINER_STATUS: Final = ("name", "state", "restartCount", "image")
_UNREAD: Final = ("volumes", "ephemeralContainers")
_MOST: Final = 4096
"""Specs of which equal ones are found: those of a Job come together."""


class Specs:
    """The specs of pods, each kept once however many pods have it."""

    def __init__(self) -> None:
        self._by_text: dict[str, dict[str, Any]] = {}

    def pod(self, pod: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
        """What is kept of a pod."""
        spec = {name: value for name, value in (pod.get("spec") or {}).items() if name not in _UNREAD}
        for name in ("containers", "initContainers"):
            if name in spec:
                spec[name] = _parts(spec[name], _CONTAINER)
        if before is None or before["spec"] != spec:
            if len(self._by_text) >= _MOST:
                self._by_text.clear()
            spec = self._by_text.setdefault(json.dumps(spec), spec)
        else:
            spec = before["spec"]
        status = _part(pod.get("status") or {}, _STATUS)
        for name, fields in (
            ("conditions", _CONDITION),
            ("containerStatuses", _CONTAINER_STATUS),
            ("initContainerStatuses", _CONTAINER_STATUS),
        ):
            if name in status:
                status[name] = _parts(status[name], fields)
        metadata = _part(pod["metadata"], _METADATA)
        if before is not None:
            for name in ("labels", "annotations", "ownerReferences"):
                if name in metadata and before["metadata"].get(name) == metadata[name]:
                    metadata[name] = before["metadata"][name]
        return {"metadata": metadata, "spec": spec, "status": status}


def kept_job(job: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is kept of a Job: all but the template of its pods, which tell themselves what they are."""
    metadata = {name: value for name, value in job["metadata"].items() if name != "managedFields"}
    notes = metadata.get("annotations")
    if before is not None and notes and before["metadata"].get("annotations") == notes:
        metadata["annotations"] = before["metadata"]["annotations"]  # they name each element of a fan-out
    spec = {name: value for name, value in (job.get("spec") or {}).items() if name != "template"}
    return {**job, "metadata": metadata, "spec": spec}


def _part(whole: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    return {name: whole[name] for name in fields if name in whole}


def _parts(items: Sequence[Mapping[str, Any]] | None, fields: Sequence[str]) -> list[dict[str, Any]]:
    return [_part(one, fields) for one in items or ()]
