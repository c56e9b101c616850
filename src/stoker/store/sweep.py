"""Removes blobs that nothing references.

Rows, plans, entries of the cache and lists of artifacts reference blobs. The blobs of a running step are not referenced
yet: blobs that were put within the grace period stay.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final, Iterable, Iterator

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import StoreError
from stoker.store import artifacts
from stoker.store.store import Store

GRACE: Final = 3600.0
"""Seconds. A result is put when its step ends, and its row follows at once; an hour allows for a stopped driver."""
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@attrs.frozen(kw_only=True)
class SweepResult:
    """The number of blobs that were removed, and their size."""

    blobs: int
    bytes: int


def unreferenced(store: Store, *, more: Iterable[str] = ()) -> list[str]:
    """The digests of blobs that nothing references; `more` are results that no row has yet, as JSON."""
    # The blobs are listed first: one that is put later, with a row that the queries miss, is not among them.
    digests = list(store.blobs.digests())
    referenced = _referenced(store, more) if digests else set()
    return [digest for digest in digests if digest not in referenced]


def sweep(
    store: Store, *, older_than: float = GRACE, now: float | None = None, more: Iterable[str] = ()
) -> SweepResult:
    """Remove unreferenced blobs that were last put `older_than` seconds ago, and scratch files of killed processes."""
    moment = time.time() if now is None else now
    store.records.forget_expired(moment)
    store.records.forget_recipes(before=moment - older_than)
    store.records.forget_sources(_named_by_plans(store), before=moment - older_than)
    blobs = size = 0
    for digest in unreferenced(store, more=more):
        removed = store.blobs.delete_if_older(digest, moment - older_than)
        if removed is not None:
            blobs += 1
            size += removed
    store.blobs.clean(moment)
    return SweepResult(blobs=blobs, bytes=size)


def _named_by_plans(store: Store) -> set[str]:
    return {digest for text in store.records.references() for digest in _DIGEST.findall(text)}


def _referenced(store: Store, more: Iterable[str]) -> set[str]:
    """Every digest that is referenced. Texts that only look like one are included: too many do no harm."""
    referenced: set[str] = set()
    lists: list[StoredArtifact] = [row.artifact for row in store.records.manifests()]
    for text in (*store.records.references(), *more):
        referenced.update(_DIGEST.findall(text))
        if '"list"' in text:
            lists.extend(_lists(json.loads(text)))
    visited: set[str] = set()
    while lists:
        artifact = lists.pop()
        if artifact.digest in visited:
            continue
        visited.add(artifact.digest)
        referenced.add(artifact.digest)
        try:
            parts = artifacts.items(artifact, store.blobs)
        except StoreError:
            continue  # the list itself is gone
        referenced.update(part.digest for part in parts)
        lists.extend(part for part in parts if part.serializer == "list")
    return referenced


def _lists(document: Any) -> Iterator[StoredArtifact]:
    """The lists of artifacts in a JSON document."""
    if isinstance(document, dict):
        if document.get("s") == "list" and isinstance(document.get("d"), str):
            yield from_wire(document)
            return
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _lists(part)
