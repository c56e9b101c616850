"""Watches: a stream of what happens to the objects of one kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from attrs import define, field, frozen
from tests.kubernetes.server.failures import Refused
from tests.kubernetes.server.objects import Object, Resource
from tests.kubernetes.server.selectors import Test
from tests.kubernetes.server.store import Change
from tests.kubernetes.server.world import World

BOOKMARKS = 60.0
"""Seconds between two bookmarks of a real API server."""


@frozen
class WatchRequest:
    """What one watch asks for."""

    resource: Resource
    namespace: str
    """"" for all namespaces."""
    wanted: Test
    version: str
    """The request's resourceVersion; "" and "0" begin with what is there."""
    bookmarks: bool
    seconds: float
    """After how long the server ends the watch."""


@define(eq=False)
class Watches:
    """The watches that are open."""

    world: World
    _open: set[asyncio.Event] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.world.store.listen(lambda change: self._wake())

    def _wake(self) -> None:
        for event in self._open:
            event.set()

    async def lines(self, request: WatchRequest) -> AsyncIterator[bytes]:
        """The lines of one watch until it is over."""
        store, resource = self.world.store, request.resource
        history = store.history(resource)
        loop = asyncio.get_running_loop()
        end = loop.time() + request.seconds
        bookmark = loop.time() + self.world.pace(BOOKMARKS)
        news = asyncio.Event()
        self._open.add(news)
        try:
            if request.version in ("", "0"):
                position = history.after(store.version)
                for object in store.all(resource, request.namespace or None):
                    if request.wanted(object):
                        yield _line("ADDED", json.dumps(object, separators=(",", ":")).encode())
            else:
                version = int(request.version)
                if store.forgotten(resource, version):
                    yield _line("ERROR", json.dumps(too_old(version, store.version)).encode())
                    return
                position = history.after(version)
            while True:
                news.clear()
                changes = history.since(position)
                position += len(changes)
                if changes:
                    # In one piece: a connection takes one at a time, and hundreds of pods change together.
                    if lines := b"".join(_seen(change, request) for change in changes):
                        yield lines
                    continue
                now = loop.time()
                if now >= end:
                    return
                if request.bookmarks and now >= bookmark:
                    bookmark = now + self.world.pace(BOOKMARKS)
                    yield self._bookmark(resource)
                wait = min(end, bookmark if request.bookmarks else end) - now
                with_timeout = asyncio.wait_for(news.wait(), timeout=max(wait, 0.001))
                try:
                    await with_timeout
                except asyncio.TimeoutError:
                    continue
        finally:
            self._open.discard(news)

    def _bookmark(self, resource: Resource) -> bytes:
        metadata: Object = {"resourceVersion": str(self.world.store.version)}
        object = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return _line("BOOKMARK", json.dumps(object).encode())


def too_old(version: int, newest: int) -> Object:
    """The 410 for a watch from a version that is forgotten."""
    message = f"too old resource version: {version} ({newest})"
    return Refused(410, message, "Expired").status()


def _line(type: str, object: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type.encode(), object)


def _seen(change: Change, request: WatchRequest) -> bytes:
    """The event as this watch sees it: an object that begins to be wanted is added, one that no longer is, deleted."""
    if request.namespace and change.object["metadata"].get("namespace") != request.namespace:
        return b""
    now = change.type != "DELETED" and request.wanted(change.object)
    before = change.before is not None and request.wanted(change.before)
    if not now and not before:
        return b""
    type = "DELETED" if not now else "MODIFIED" if before else "ADDED"
    return _line(type, change.encoded())
