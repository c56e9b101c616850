"""All objects, each state they had, and one sequence of resourceVersions over all kinds.

Objects are never changed in place: a writer puts a new one. Everything runs in one thread, so that what reads and then
writes without waiting in between cannot be overtaken.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable

from attrs import define, field
from tests.kubernetes.server.objects import Object, Resource, controller_of

HISTORY = 5_000
"""How many changes of a kind are remembered at least."""
Key = tuple[str, str]
"""Namespace ("" for what has none) and name."""


@define(eq=False)
class Change:
    """One thing that happened to an object."""

    version: int
    type: str
    """"ADDED", "MODIFIED" or "DELETED"."""
    resource: Resource
    object: Object
    """The object afterwards; of a deleted one its last state, with the resourceVersion of the deletion."""
    before: Object | None
    """The object beforehand."""
    _encoded: bytes = b""

    def encoded(self) -> bytes:
        """The object as JSON, made once for all who watch."""
        if not self._encoded:
            self._encoded = json.dumps(self.object, separators=(",", ":")).encode()
        return self._encoded


@define(eq=False)
class History:
    """The changes of one kind, the oldest of which are forgotten in time."""

    expired: int = 0
    """Changes up to this version are forgotten."""
    _changes: list[Change] = field(factory=list)
    _dropped: int = 0

    def add(self, change: Change) -> None:
        """Remember one more change."""
        self._changes.append(change)
        if len(self._changes) > 2 * HISTORY:
            self.expired = self._changes[HISTORY - 1].version
            del self._changes[:HISTORY]
            self._dropped += HISTORY

    def since(self, position: int) -> list[Change]:
        """The changes from a position on, which `after` or the length of earlier ones gave."""
        return self._changes[max(position - self._dropped, 0) :]

    def after(self, version: int) -> int:
        """The position of the first change that is newer than `version`."""
        index = len(self._changes)
        while index and self._changes[index - 1].version > version:
            index -= 1
        return self._dropped + index


@define(eq=False)
class Store:
    """The objects of the cluster."""

    version: int = 100
    """The newest resourceVersion."""
    """Changes up to this version are forgotten."""
    _objects: dict[Resource, dict[Key, Object]] = field(factory=lambda: defaultdict(dict))
    _history: dict[Resource, History] = field(factory=lambda: defaultdict(History))
    _owned: dict[str, dict[tuple[Resource, Key], None]] = field(factory=lambda: defaultdict(dict))
    _listeners: list[Callable[[Change], None]] = field(factory=list)

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Have `listener` called with each change, at once; it must not wait."""
        self._listeners.append(listener)

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object of that name."""
        return self._objects[resource].get((namespace, name))

    def current(self, resource: Resource, object: Object) -> Object | None:
        """The newest state of an object, unless it is gone or another one has taken its name."""
        newest = self._objects[resource].get(key_of(object))
        return newest if newest is not None and newest["metadata"]["uid"] == object["metadata"]["uid"] else None

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """The objects of a kind by namespace and name; of one namespace, or of all."""
        objects = self._objects[resource]
        return [objects[key] for key in sorted(objects) if namespace is None or key[0] == namespace]

    def each(self, resource: Resource) -> Iterable[Object]:
        """The objects of a kind in no order; the store must not be written to meanwhile."""
        return self._objects[resource].values()

    def kinds(self) -> Iterable[Resource]:
        """The kinds of which there are, or were, objects."""
        return list(self._objects)

    def owned_by(self, uid: str) -> list[tuple[Resource, Object]]:
        """The objects that name `uid` as an owner, in the order of their creation."""
        return [(resource, self._objects[resource][key]) for resource, key in self._owned.get(uid, {})]

    def controlled_by(self, resource: Resource, uid: str) -> list[Object]:
        """The objects of a kind whose controller is `uid`, in the order of their creation."""
        return [each for kind, each in self.owned_by(uid) if kind is resource and controller_of(each) == uid]

    def put(self, resource: Resource, object: Object) -> Object:
        """Add an object or replace its state; the object as it is then stored.

        An object that is being deleted goes when nothing holds it any longer.
        """
        key = key_of(object)
        before = self._objects[resource].get(key)
        if before is not None and before | {"metadata": None} == object | {"metadata": None}:
            old, new = ({**each["metadata"], "resourceVersion": ""} for each in (before, object))
            if old == new:
                return before
        stored = self._record("MODIFIED" if before else "ADDED", resource, object, before)
        metadata = stored["metadata"]
        held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not held:
            return self.remove(resource, stored)
        return stored

    def remove(self, resource: Resource, object: Object) -> Object:
        """Forget an object; its last state."""
        return self._record("DELETED", resource, object, self._objects[resource].get(key_of(object)))

    def history(self, resource: Resource) -> History:
        """What happened to the objects of a kind."""
        return self._history[resource]

    def forgotten(self, resource: Resource, version: int) -> bool:
        """Whether changes of a kind that are newer than `version` are forgotten."""
        return version < self._history[resource].expired

    def as_of(self, resource: Resource, objects: Iterable[Object], version: int) -> list[Object]:
        """The objects as they were at an older version, as a replica of the server that lags behind shows them."""
        states = {key_of(each): each for each in objects}
        history = self._history[resource]
        for change in reversed(history.since(history.after(version))):
            states.pop(key_of(change.object), None)
            if change.before is not None:
                states[key_of(change.object)] = change.before
        return [states[key] for key in sorted(states)]

    def clear(self) -> None:
        """Remove all objects, without a word to anybody but those who watch."""
        for resource, objects in list(self._objects.items()):
            for object in list(objects.values()):
                self.remove(resource, object)

    def _record(self, type: str, resource: Resource, object: Object, before: Object | None) -> Object:
        self.version += 1
        object = {**object, "metadata": {**object["metadata"], "resourceVersion": str(self.version)}}
        key = key_of(object)
        owners = [] if type == "DELETED" else [each["uid"] for each in object["metadata"].get("ownerReferences", [])]
        for reference in (before or {}).get("metadata", {}).get("ownerReferences", []):
            if reference["uid"] not in owners:
                self._owned[reference["uid"]].pop((resource, key), None)
        for uid in owners:
            self._owned[uid].setdefault((resource, key))
        if type == "DELETED":
            self._objects[resource].pop(key, None)
        else:
            self._objects[resource][key] = object
        change = Change(self.version, type, resource, object, before)
        self._history[resource].add(change)
        for listener in self._listeners:
            listener(change)
        return object


def key_of(object: Object) -> Key:
    """Where an object is stored."""
    return object["metadata"].get("namespace", ""), object["metadata"]["name"]
