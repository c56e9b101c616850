"""Removes bytes that nothing needs any more.

A blob is needed while a row, a plan, an entry of the cache or a list of artifacts names it. What a running step has
just put is named by nothing yet: nothing is removed that was put within the grace period.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final, Iterator

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import StoreError
from stoker.store import artifacts
from stoker.store.store import Store

GRACE: Final = 3600.0
"""Seconds. A result is put when its step ends and named by a row moments later; an hour forgives a stopped driver."""
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@attrs.frozen(kw_only=True)
class Swept:
    """What was removed."""

    blobs: int
    bytes: int


def unreferenced(store: Store) -> list[str]:
    """Blobs that nothing names."""
    # The blobs first: one that is put afterwards, and named by a row that comes too late to be seen, is not among them.
    there = list(store.blobs.digests())
    needed = _needed(store) if there else set()
    return [digest for digest in there if digest not in needed]


def sweep(store: Store, *, older_than: float = GRACE, now: float | None = None) -> Swept:
    """Remove unreferenced blobs that were last put `older_than` seconds ago, and what killed processes left."""
    moment = time.time() if now is None else now
    store.records.forget_expired(moment)
    blobs = size = 0
    for digest in unreferenced(store):
        removed = store.blobs.delete_if_older(digest, moment - older_than)
        if removed is not None:
            blobs += 1
            size += removed
    store.blobs.clean(moment)
    return Swept(blobs=blobs, bytes=size)


def _needed(store: Store) -> set[str]:
    """Every digest that anything names: too many do no harm, so that whatever looks like one counts."""
    needed: set[str] = set()
    lists: list[StoredArtifact] = [row.artifact for row in store.records.manifests()]
    for text in store.records.references():
        needed.update(_DIGEST.findall(text))
        if '"list"' in text:
            lists.extend(_lists(json.loads(text)))
    seen: set[str] = set()
    while lists:
        found = lists.pop()
        if found.digest in seen:
            continue
        seen.add(found.digest)
        needed.add(found.digest)
        try:
            parts = artifacts.items(found, store.blobs)
        except StoreError:
            continue  # it is gone: it needs nothing
        needed.update(part.digest for part in parts)
        lists.extend(part for part in parts if part.serializer == "list")
    return needed


def _lists(document: Any) -> Iterator[StoredArtifact]:
    """The lists of artifacts that a JSON document names."""
    if isinstance(document, dict):
        if document.get("s") == "list" and isinstance(document.get("d"), str):
            yield from_wire(document)
            return
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _lists(part)
