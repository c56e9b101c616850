"""What all parts of the cluster are given: the objects, the time, and the events that they write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from attrs import define, field
from tests.kubernetes.server.objects import EVENTS, Clock, Object, Pace, new_uid
from tests.kubernetes.server.store import Store


@define(eq=False)
class Recorder:
    """Writes events, and counts those that say the same as one before."""

    store: Store
    clock: Clock
    _names: dict[tuple[str, ...], str] = field(factory=dict)

    def write(
        self, object: Object, type: str, reason: str, message: str, component: str, *, host: str = "", path: str = ""
    ) -> None:
        """An event of a controller or a kubelet: `count` and `lastTimestamp` say how often it happened.

        Args:
            object: What it is about.
            type: "Normal" or "Warning".
            reason: One word.
            message: A sentence.
            component: Who says it.
            host: The node, from a kubelet.
            path: The part of the object, as in "spec.containers{main}".
        """
        now = self.clock.stamp()
        name, earlier = self._earlier(object, reason, message, component, path)
        if earlier is not None:
            self.store.put(EVENTS, {**earlier, "count": earlier["count"] + 1, "lastTimestamp": now})
            return
        involved = _involved(object) | ({"fieldPath": path} if path else {})
        source = {"component": component} | ({"host": host} if host else {})
        self.store.put(
            EVENTS,
            self._event(object, name, involved, type, reason, message)
            | {
                "source": source,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
                "eventTime": None,
                "reportingComponent": component,
                "reportingInstance": host,
            },
        )

    def schedule(self, object: Object, type: str, reason: str, message: str, action: str) -> None:
        """An event of the scheduler: `eventTime`, and a `series` when it is repeated."""
        name, earlier = self._earlier(object, reason, message, "default-scheduler", "")
        if earlier is not None:
            count = earlier.get("series", {}).get("count", 1) + 1
            self.store.put(EVENTS, {**earlier, "series": {"count": count, "lastObservedTime": self.clock.micro()}})
            return
        self.store.put(
            EVENTS,
            self._event(object, name, _involved(object), type, reason, message)
            | {
                "source": {},
                "firstTimestamp": None,
                "lastTimestamp": None,
                "eventTime": self.clock.micro(),
                "action": action,
                "reportingComponent": "default-scheduler",
                "reportingInstance": "default-scheduler-control-plane",
            },
        )

    def _earlier(
        self, object: Object, reason: str, message: str, component: str, path: str
    ) -> tuple[str, Object | None]:
        metadata = object["metadata"]
        alike = (metadata["uid"], reason, message, component, path)
        if alike in self._names:
            name = self._names[alike]
            return name, self.store.get(EVENTS, metadata.get("namespace", "default"), name)
        name = self._names[alike] = f"{metadata['name']}.{random.getrandbits(64):016x}"
        return name, None

    def _event(self, object: Object, name: str, involved: Object, type: str, reason: str, message: str) -> Object:
        return {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": object["metadata"].get("namespace", "default"),
                "uid": new_uid(),
                "creationTimestamp": self.clock.stamp(),
            },
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": type,
        }


def _involved(object: Object) -> Object:
    metadata = object["metadata"]
    return {
        "kind": object["kind"],
        **({"namespace": metadata["namespace"]} if "namespace" in metadata else {}),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "apiVersion": object["apiVersion"],
        "resourceVersion": metadata["resourceVersion"],
    }


@define(eq=False)
class World:
    """The cluster's state and its time."""

    store: Store = field(factory=Store)
    clock: Clock = field(factory=Clock)
    pace: Pace = field(factory=Pace)
    recorder: Recorder = field()

    @recorder.default
    def _(self) -> Recorder:
        return Recorder(self.store, self.clock)


@define(eq=False)
class Rounds:
    """Calls `work` with each key that is due, once however often it was asked for: the queue of a controller."""

    work: Callable[[str], None]
    _timers: dict[str, tuple[float, asyncio.TimerHandle]] = field(factory=dict)

    def ask(self, key: str, seconds: float = 0.0) -> None:
        """Have `work` called with `key` in `seconds`, or earlier where that was asked for."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if key in self._timers:
            earlier, timer = self._timers[key]
            if earlier <= due:
                return
            timer.cancel()
        self._timers[key] = due, loop.call_later(seconds, self._call, key)

    def forget(self) -> None:
        """Call nothing that is still due."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _call(self, key: str) -> None:
        del self._timers[key]
        self.work(key)
