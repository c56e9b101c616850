"""Recorded scenarios of a Kubernetes 1.36 API server: what a client sent, what the API streamed, and how it ended.

A scenario is one file `scenarios/NAME.json`. Its watch events are in the order of their resourceVersions. The first
event of an object holds the object; each later one holds only what changed since (`changed`), so that a file stays
small. `recording(name)` puts the objects together again.

The files are made from the recordings themselves, a folder for each scenario:

    python -m tests.kubernetes.recordings /path/to/recordings
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

from attrs import frozen

SCENARIOS = Path(__file__).parent / "scenarios"
KINDS = ("pods", "jobs", "events", "nodes")
"""The resources whose watches are kept; the file of a recording is `watch-KIND.jsonl`."""

Object = dict[str, Any]


@frozen
class WatchEvent:
    """One event of a watch, as the API streamed it."""

    t: float
    """Seconds since the recording began at which the event arrived."""
    resource: str
    """"pods", "jobs", "events" or "nodes"."""
    type: str
    """"ADDED", "MODIFIED" or "DELETED"."""
    object: Object
    """The whole object, without `managedFields`."""


@frozen
class Recording:
    """One scenario."""

    name: str
    """The name of the scenario's folder, as in "03-oom-killed"."""
    outcome: str
    """How the recording's description calls the end: "out of memory (container)"."""
    words: str
    """What a user should be told, in the words of the recording's description."""
    requests: list[Object]
    """What the client sent, in order: `t`, `method`, `path`, `body`, `status`, `reply`; things done to the cluster have
    only `t` and `note`."""
    events: list[WatchEvent]
    """The watch events of all kinds, in the order of their resourceVersions."""
    jobs: list[Object]
    """The Jobs that exist at the end."""
    pods: list[Object]
    """The pods that exist at the end."""
    logs: str
    """Bodies of the log endpoint, each after a line `# GET path -> status content-type`; "" where none was read."""

    def last(self, resource: str) -> list[Object]:
        """Each object's last state in the watch of `resource`, also of deleted ones, in the order of appearance."""
        states = {event.object["metadata"]["uid"]: event.object for event in self.events if event.resource == resource}
        return list(states.values())


def names() -> list[str]:
    """The names of all scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.json"))


@functools.cache
def recording(name: str) -> Recording:
    """The scenario called `name`; its objects are shared between callers, who copy what they change."""
    document = json.loads((SCENARIOS / f"{name}.json").read_text())
    states: dict[str, Object] = {}
    events = []
    for t, resource, type, uid, content in document["events"]:
        states[uid] = with_changes(states[uid], content) if uid in states else content
        events.append(WatchEvent(t, resource, type, states[uid]))
    last = {event.object["metadata"]["uid"]: event.object for event in events}
    jobs, pods = ([with_changes(last[uid], delta) for uid, delta in document[kind]] for kind in ("jobs", "pods"))
    return Recording(
        name, document["outcome"], document["words"], document["requests"], events, jobs, pods, document["logs"]
    )


def changed(old: Any, new: Any) -> Any:
    """What turns `old` into `new`.

    A mapping becomes {"=": {key: change}, "-": [keys that went]}, a list of the same length {"#": {index: change}};
    everything else is the new value as {"!": value}. None means that nothing changed.
    """
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        changes = {key: changed(old[key], new[key]) if key in old else {"!": new[key]} for key in new}
        delta: Object = {"=": {key: change for key, change in changes.items() if change is not None}}
        if gone := [key for key in old if key not in new]:
            delta["-"] = gone
        return delta
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = ((str(index), changed(*pair)) for index, pair in enumerate(zip(old, new)))
        return {"#": {index: change for index, change in pairs if change is not None}}
    return {"!": new}


def with_changes(old: Any, delta: Any) -> Any:
    """The value that `changed` made `delta` for."""
    if delta is None:
        return old
    if "!" in delta:
        return delta["!"]
    if "#" in delta:
        return [with_changes(item, delta["#"].get(str(index))) for index, item in enumerate(old)]
    remaining = {key: value for key, value in old.items() if key not in delta.get("-", ())}
    return remaining | {key: with_changes(old.get(key), change) for key, change in delta["="].items()}


def reduced(folder: Path, outcome: str, words: str) -> Object:
    """The document of one scenario, from the recording in `folder`."""
    streamed = []
    for resource in KINDS:
        path = folder / f"watch-{resource}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            entry = json.loads(line)
            streamed.append((entry["t"], resource, entry["event"]["type"], entry["event"]["object"]))
    streamed.sort(key=lambda event: int(event[3]["metadata"]["resourceVersion"]))
    states: dict[str, Object] = {}
    events = []
    for t, resource, type, object in streamed:
        uid = object["metadata"]["uid"]
        events.append([t, resource, type, uid, changed(states[uid], object) if uid in states else object])
        states[uid] = object
    final = json.loads((folder / "final.json").read_text()) if (folder / "final.json").exists() else {}
    logs = folder / "logs.txt"
    return {
        "outcome": outcome,
        "words": words,
        "requests": json.loads((folder / "request.json").read_text()),
        "events": events,
        "logs": logs.read_text() if logs.exists() else "",
        **{
            kind: [
                [each["metadata"]["uid"], changed(states[each["metadata"]["uid"]], each)]
                for each in final.get(kind, [])
            ]
            for kind in ("jobs", "pods")
        },
    }


def table_of(readme: str) -> dict[str, tuple[str, str]]:
    """Outcome and words of each scenario, from the table in the recordings' description."""
    rows = re.findall(r"^\| (\d\S*) \| (.*) \| (.*) \|$", readme, re.MULTILINE)
    return {name: (outcome, words) for name, outcome, words in rows}


def main(folder: Path) -> None:
    """Write the file of each scenario found in `folder`, one JSON document with a line for each watch event."""
    SCENARIOS.mkdir(exist_ok=True)
    for name, (outcome, words) in table_of((folder / "README.md").read_text()).items():
        document = reduced(folder / name, outcome, words)
        events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in document.pop("events"))
        head = json.dumps(document, separators=(",", ":"))
        (SCENARIOS / f"{name}.json").write_text(f'{head[:-1]},\n"events":[\n{events}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
