"""Sends the requests of recorded scenarios to the tests' own cluster, and lays what both did side by side."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from tests.kubernetes.recordings import Recording, WatchEvent
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.server.objects import Object, condition_of
from tests.kubernetes.server.schemas import flaws

ARTEFACTS = re.compile(r"not registered$")
"""Messages of a kubelet that was just started again, which nobody does here."""
PATIENCE = 25.0
"""Seconds after which a state that was recorded is no longer waited for."""
KINDS = {
    "pods": "/api/v1/namespaces/{}/pods",
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "events": "/api/v1/namespaces/{}/events",
    "nodes": "/api/v1/nodes",
}
"""Where the objects of a scenario are."""

State = tuple[Any, ...]


@frozen
class Course:
    """What happened to the objects of one scenario."""

    states: dict[str, list[State]]
    """The states of each object, without repetitions; pods are named by their order of creation ("train-0")."""
    events: dict[str, list[State]]
    """Type, reason and message of the events of each object by who wrote them, without repetitions."""


@define(eq=False)
class Watcher:
    """Gathers what a watch of one kind delivers."""

    cluster: LocalCluster
    resource: str
    namespace: str
    events: list[WatchEvent] = field(factory=list)
    _thread: threading.Thread = field(init=False)
    _began: threading.Event = field(factory=threading.Event)

    def start(self) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._began.wait(30)

    def _read(self) -> None:
        path = KINDS[self.resource].format(self.namespace)
        version = self.cluster.get(path)["metadata"]["resourceVersion"]
        with self.cluster.stream(f"{path}?watch=true&timeoutSeconds=300&resourceVersion={version}") as lines:
            self._began.set()
            for line in lines:
                event = json.loads(line)
                self.events.append(WatchEvent(time.monotonic(), self.resource, event["type"], event["object"]))


def course(events: list[WatchEvent]) -> Course:
    """What the events of all watches of a scenario tell."""
    ordered = sorted(events, key=lambda event: int(event.object["metadata"]["resourceVersion"]))
    names: dict[str, str] = {}
    counts: dict[str, int] = defaultdict(int)
    for event in ordered:
        metadata = event.object["metadata"]
        if event.resource == "pods" and metadata["name"] not in names:
            stem = metadata.get("generateName", metadata["name"]).rstrip("-")
            names[metadata["name"]] = f"{stem}#{counts[stem]}"
            counts[stem] += 1
    states: dict[str, list[State]] = defaultdict(list)
    told: dict[str, list[State]] = defaultdict(list)
    for event in ordered:
        name = event.object["metadata"]["name"]
        if event.resource == "events":
            involved, word = event.object["involvedObject"], event.object["reason"]
            who = f"{involved['kind']} {names.get(involved['name'], involved['name'])}"
            entry: State = (event.object["type"], word, _plain(event.object["message"], names))
            key = f"{who} by {event.object['reportingComponent']}"
            if entry not in told[key] and not ARTEFACTS.search(entry[2]):
                told[key].append(entry)
            continue
        read = {"pods": pod_state, "jobs": job_state, "nodes": node_state}[event.resource]
        state = read(event, names)
        key = names[name] if event.resource == "pods" else f"{event.resource} {name}"
        if not states[key] or states[key][-1] != state:
            states[key].append(state)
    return Course(dict(states), {who: _in_no_order(entries) for who, entries in told.items()})


def _in_no_order(entries: list[State]) -> list[State]:
    """The events with neighbours that tell of several pods in one order: they were created or deleted at once."""
    result: list[State] = []
    for _, group in itertools.groupby(entries, key=lambda entry: entry[:2]):
        result += sorted(group)
    return result


def pod_state(event: WatchEvent, names: dict[str, str]) -> State:
    """What matters of a pod's state."""
    pod = event.object
    status, metadata = pod["status"], pod["metadata"]
    disrupted, scheduled = condition_of(pod, "DisruptionTarget"), condition_of(pod, "PodScheduled")
    words = [
        event.type if event.type == "DELETED" else "",
        status["phase"],
        status.get("reason", ""),
        _plain(status.get("message", ""), names),
        disrupted["reason"] if disrupted is not None else "",
        f"deleted with {metadata['deletionGracePeriodSeconds']} s" if "deletionTimestamp" in metadata else "",
        "ready" if (condition_of(pod, "Ready") or {}).get("status") == "True" else "",
        scheduled.get("message", "scheduled") if scheduled is not None else "",
    ]
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return tuple(filter(None, words)), tuple(_container_state(each, names) for each in containers)


def _container_state(status: Object, names: dict[str, str]) -> State:
    [(word, details)] = status["state"].items()
    reason, message = details.get("reason", ""), _plain(details.get("message", ""), names)
    parts = (status["name"], word, reason, details.get("exitCode"), message, status["restartCount"])
    return tuple(part for part in parts if part not in ("", None))


def job_state(event: WatchEvent, names: dict[str, str]) -> State:
    """What matters of a Job's state."""
    status, metadata = event.object["status"], event.object["metadata"]
    conditions = tuple(
        (each["type"], each["status"], each["reason"], _plain(each["message"], names))
        for each in status.get("conditions", [])
    )
    # A Job that is being deleted may or may not be seen once more before it goes.
    going = "deletionTimestamp" in metadata
    counts = () if going else ("active", "succeeded", "failed", "terminating", "failedIndexes")
    return (
        event.type if event.type == "DELETED" else "",
        tuple(metadata.get("finalizers", [])),
        conditions,
        tuple((name, status[name]) for name in counts if name in status),
        "started" if "startTime" in status else "",
    )


def node_state(event: WatchEvent, names: dict[str, str]) -> State:
    """What matters of a node's state."""
    node = event.object
    conditions = tuple((each["type"], each["status"], each["reason"]) for each in node["status"]["conditions"])
    taints = tuple((each["key"], each["effect"]) for each in node["spec"].get("taints", []))
    return event.type if event.type == "DELETED" else "", conditions, taints


def _plain(text: str, names: dict[str, str]) -> str:
    """A message without what differs from run to run."""
    for name, plain in names.items():
        text = text.replace(name, plain)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    text = re.sub(r'pods "([\w-]+)-[a-z0-9]{5}"', r'pods "\1-"', text)
    return re.sub(r"in \d+ms \(\d+ms including waiting\)\. Image size: \d+ bytes", "in TIME", text)


@define(eq=False)
class Replay:
    """One scenario on the tests' own cluster."""

    cluster: LocalCluster
    recording: Recording
    scratch: Path
    """A folder for what the scenario has on the node's disk."""
    haste: float = 4.0
    """How much shorter the pauses in the containers' commands are here."""
    replies: list[tuple[Object, int, Any]] = field(factory=list)
    """Each request with the status and the body of its reply here."""
    _watchers: list[Watcher] = field(factory=list)

    @property
    def namespace(self) -> str:
        """The scenario's namespace."""
        paths = [each["path"] for each in self.recording.requests if "path" in each]
        return next(match[1] for path in paths if (match := re.search(r"/namespaces/(rec-[\w-]+)/", path)))

    def run(self) -> Course:
        """Send the requests, and wait until all has happened that was recorded."""
        labels = {"pod-security.kubernetes.io/enforce": "baseline"} if "17c" in self.recording.name else {}
        self.cluster.create("/api/v1/namespaces", {"metadata": {"name": self.namespace, "labels": labels}})
        kinds = [kind for kind in KINDS if kind != "nodes" or "16" in self.recording.name]
        self._watchers = [Watcher(self.cluster, kind, self.namespace) for kind in kinds]
        for watcher in self._watchers:
            watcher.start()
        for request in self.recording.requests:
            # A lever was noted a moment after it was pulled.
            before = request["t"] - (0.2 if "method" not in request else 0.0)
            self._wait_for([event for event in self.recording.events if event.t < before])
            if "method" in request:
                self.replies.append((request, *self._answered(request)))
            elif request["note"].startswith("the node "):
                lever = self.cluster.answer_node if request["note"] == "the node is back" else self.cluster.lose_node
                lever("gpu-node-1")
        self._wait_for(self.recording.events)
        return self.course()

    def send_all(self, leave_out: tuple[str, ...] = ()) -> None:
        """Send the requests one after the other, but not those whose note begins with one of these texts."""
        for request in self.recording.requests:
            if "method" in request and not request.get("note", "").startswith(leave_out or ("\0",)):
                self.replies.append((request, *self._send(request)))

    def _wait_for(self, events: list[WatchEvent]) -> None:
        """Wait until each object has had as many states as in these recorded events, and all that was told is told."""
        wanted = course(events)
        end = time.monotonic() + PATIENCE
        known = -1
        while time.monotonic() < end:
            there = sum(len(watcher.events) for watcher in self._watchers)
            if there != known and self._reached(wanted):
                break
            known = there
            time.sleep(0.02)
        for name, pod in self._pods().items():
            # What a request does to a process must not come before its handler for signals.
            if pod["status"]["phase"] == "Running" and "print('running')" in json.dumps(pod["spec"]["containers"]):
                path = f"{KINDS['pods'].format(self.namespace)}/{name}/log"
                while time.monotonic() < end and self.cluster.request("GET", path) == (200, ""):
                    time.sleep(0.02)

    def _pods(self) -> dict[str, Object]:
        """The newest state of each pod by its name."""
        states = {event.object["metadata"]["name"]: event for event in list(self._watchers[0].events)}
        return {name: event.object for name, event in states.items() if event.type != "DELETED"}

    def flaws(self) -> list[str]:
        """What does not fit the API's published schema in the objects that were seen here."""
        objects = [event.object for event in self.seen()]
        return sorted({f"{each['kind']}: {flaw}" for each in objects for flaw in flaws(each["kind"], each)})

    def seen(self) -> list[WatchEvent]:
        """The events of all watches here so far."""
        return [event for watcher in self._watchers for event in list(watcher.events)]

    def course(self) -> Course:
        """What has happened so far."""
        return course(self.seen())

    def _reached(self, wanted: Course) -> bool:
        seen = self.course()
        if self.recording.name in BY_CHANCE:
            states = all(each[-1] in seen.states.get(name, []) for name, each in wanted.states.items())
        else:
            states = all(len(seen.states.get(name, [])) >= len(each) for name, each in wanted.states.items())
        return states and all(set(told) <= set(seen.events.get(name, [])) for name, told in wanted.events.items())

    def _answered(self, request: Object) -> tuple[int, Any]:
        """The reply; what does not change anything is sent until the reply is the recorded one, or time is up."""
        end = time.monotonic() + PATIENCE
        while True:
            status, body = self._send(request)
            harmless = request["method"] == "GET" or (status, request["status"]) == (409, 201)
            if status == request["status"] or not harmless or time.monotonic() > end:
                return status, body
            time.sleep(0.05)

    def _send(self, request: Object) -> tuple[int, Any]:
        path, body = request["path"], request.get("body")
        recorded = {pod["metadata"]["name"]: pod for pod in self._recorded_pods()}
        for name, pod in recorded.items():
            if f"/{name}" in path:
                path = path.replace(name, self._pod_like(pod))
                body = json.loads(json.dumps(body).replace(name, self._pod_like(pod)))
        body = self._hurried(body)
        if request["method"] == "PUT" and request["status"] != 409:
            # The recorded client had read the object before.
            newest = self.cluster.get(path)["metadata"]
            body = json.loads(json.dumps(body).replace(body["metadata"]["uid"], newest["uid"]))
            body["metadata"]["resourceVersion"] = newest["resourceVersion"]
        return self.cluster.request(
            request["method"],
            path,
            body,
            content_type=request.get("content_type", "application/json"),
            token=self._token(request.get("note", "")),
        )

    def _token(self, note: str) -> str | None:
        """Who sends a request: nobody, a service account that may only read, or the administrator (None)."""
        if note.startswith("as a service account"):
            return self.cluster.account_token(self.namespace, "viewer")
        return {"a wrong or expired token": "wrong", "no credentials at all": ""}.get(note)

    def _recorded_pods(self) -> list[Object]:
        return self.recording.last("pods")

    def _pod_like(self, pod: Object) -> str:
        """The name of the pod here that plays the part of a recorded one."""
        stem = pod["metadata"]["generateName"]
        alike = [each["metadata"]["name"] for each in self._recorded_pods() if each["metadata"]["generateName"] == stem]
        number = alike.index(pod["metadata"]["name"])

        def name() -> str | None:
            created = [
                event.object["metadata"]["name"]
                for event in list(self._watchers[0].events)
                if event.type == "ADDED" and event.object["metadata"].get("generateName") == stem
            ]
            return created[number] if len(created) > number else None

        return self.cluster.wait(name)

    def _hurried(self, body: Any) -> Any:
        """A request's body with shorter pauses in commands, and with paths of this machine."""
        if body is None:
            return None
        text = json.dumps(body)
        text = re.sub(r"(sleep\(?\s?)(\d*\.?\d+)", lambda match: f"{match[1]}{float(match[2]) / self.haste:g}", text)
        text = text.replace("/mnt/scratch", str(self.scratch)).replace("> /tmp/x", "> x")
        return json.loads(text)


BY_CHANCE = {
    "11e-delete-pod-grace-0": "the garbage collector may or may not be faster than the second request",
    "14-indexed-gang-succeeds": "the members may or may not end within one sync of the Job",
    "15c-gang-member-fails-per-index": "the members that succeed may or may not end within one sync of the Job",
    "22-log-endpoint": "the containers of a pod may or may not start within one sync of the kubelet",
}
"""Scenarios in which it is chance whether one state or another is seen, and why; the last one is not."""


def differences(recording: Recording, seen: Course) -> list[str]:
    """What happened otherwise than recorded, a line for each state or event."""
    wanted, lines = course(recording.events), []
    for name in sorted(wanted.states.keys() | seen.states.keys()):
        there, here = wanted.states.get(name, []), seen.states.get(name, [])
        if recording.name in BY_CHANCE and there[-1:] == here[-1:]:
            here, there = ([each for each in some if each in here and each in there] for some in (here, there))
        lines += _compared(name, there, here)
    for name in sorted(wanted.events.keys() | seen.events.keys()):
        there, here = wanted.events.get(name, []), seen.events.get(name, [])
        lines += _compared(name, there, here)
    return lines


def _compared(name: str, there: list[State], here: list[State]) -> list[str]:
    if there == here:
        return []
    text = difflib.unified_diff(
        [*map(str, there)], [*map(str, here)], f"{name} recorded", f"{name} here", lineterm="", n=0
    )
    return list(text)


def reply_differences(replay: Replay) -> list[str]:
    """Which replies were not as recorded: the status, and of refusals the reason and the message."""
    lines = []
    for request, status, body in replay.replies:
        what = f"{request['method']} {request['path']} ({request.get('note', '')})"
        if status != request["status"]:
            lines.append(f"{what}: {status} instead of {request['status']}: {body}")
            continue
        reply = request.get("reply")
        if isinstance(reply, dict) and reply.get("status") == "Failure" and isinstance(body, dict):
            there, here = ((each.get("reason"), _without_names(each["message"])) for each in (reply, body))
            if there != here:
                lines.append(f"{what}: {here} instead of {there}")
    return lines


def _without_names(message: str) -> str:
    """A message without generated names, addresses, and values of whole objects."""
    message = re.sub(r"(?<=-)[a-z0-9]{5}\b", "XXXXX", _plain(message, {}))
    message = re.sub(r"\d+\.\d+\.\d+\.\d+", "ADDRESS", message)
    return re.sub(r"Invalid value: (\{.*\}|\.\.\.): field", "Invalid value: OBJECT: field", message)
