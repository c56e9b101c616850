"""Fetches what steps made from where it lies into this machine's cache, so that loading it asks nobody."""

from __future__ import annotations

from typing import Final, Iterable, Iterator

import attrs

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import DamagedArtifact
from stoker.store import artifacts
from stoker.store.rows import OutputRow
from stoker.store.store import Store

THREADS: Final = 4
"""Artifacts that are fetched at a time: each costs a round trip, and a login node takes ten sessions of a connection.
https://man.openbsd.org/sshd_config#MaxSessions"""


@attrs.frozen(kw_only=True)
class Pulled:
    """One artifact that was to be fetched."""

    step: str
    output: str
    """The first of the outputs that it belongs to."""
    digest: str
    size: int
    here: bool = False
    """Whether it was here already."""
    problem: str = ""
    """Why it could not be fetched; empty if it is here now."""


def pull(store: Store, run: str, step: str | None = None) -> Iterator[Pulled]:
    """Fetch every artifact that steps of a run made, or one step and its elements; each once, as they arrive.

    Lost and damaged artifacts are reported, and do not keep others back. Raises `StoreError` where the store is not
    reached.
    """
    from concurrent.futures import ThreadPoolExecutor

    lists: list[tuple[OutputRow, StoredArtifact]] = []
    values: dict[str, tuple[OutputRow, StoredArtifact]] = {}
    for row in _rows(store, run, step):
        if row.artifact.serializer == "list":
            lists.append((row, row.artifact))
        else:
            values.setdefault(row.artifact.digest, (row, row.artifact))
    while lists:
        row, artifact = lists.pop()
        if artifact.inline is None:
            yield _pulled(store, row, artifact)
        try:
            parts = artifacts.items(artifact, store.blobs)
        except DamagedArtifact:
            continue  # reported above
        for part in parts:
            if part.serializer == "list":
                lists.append((row, part))
            else:
                values.setdefault(part.digest, (row, part))
    wanted = [(row, artifact) for row, artifact in values.values() if artifact.inline is None]
    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(lambda pair: _pulled(store, *pair), wanted)


def _rows(store: Store, run: str, step: str | None) -> Iterable[OutputRow]:
    for row in store.records.all_steps(run):
        if step is None or step in (row.key, row.parent):
            yield from store.records.outputs(run, row.key)


def _pulled(store: Store, row: OutputRow, artifact: StoredArtifact) -> Pulled:
    here = store.blobs.has_size(artifact.digest, artifact.size)
    problem = ""
    try:
        store.blobs.path(artifact.digest, artifact.size)
    except DamagedArtifact as error:
        problem = error.message
    return Pulled(step=row.key, output=row.name, digest=artifact.digest, size=artifact.size, here=here, problem=problem)
