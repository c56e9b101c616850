"""Reads a whole store and compares every artifact with its digest; sets damaged ones aside where it is asked to.

An artifact is needed if an output of a run, an entry of the cache or a plan names it, also inside a list: a plan names
the values that its run was called with, the package of the user's code, and pickled functions. Copies of files that
were unpacked from an artifact are compared with it. Logs and checkpoints have no digests.

Also removes blobs that nothing references (`stoker gc`). Rows, plans, entries of the cache and lists of artifacts
reference blobs; those of a running step are not referenced yet, so that what was put within the grace period stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Literal, Mapping

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import DamagedArtifact, StokerError, StoreError
from stoker.store import artifacts
from stoker.store.blobs import Blobs, remove_tree
from stoker.store.hashing import CHUNK, file_has_digest, has_digest
from stoker.store.store import Store

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_REPORT: Final = "checked.json"
"""The file beside the blobs that says how the last check ended."""
COPY: Final = "a copy"
"""The user of an unpacked copy that is damaged itself; its artifact is whole."""
_VALUE_KEYS: Final = frozenset({"d", "s", "t", "n"})
"""What each stored value's description in a plan has."""


@attrs.frozen(kw_only=True)
class Damage:
    """One artifact that is not as it was saved."""

    digest: str
    state: Literal["damaged", "lost"]
    """`damaged`: its bytes have another digest. `lost`: there are none."""
    users: tuple[str, ...] = ()
    """Who needs it: outputs as "run/step.output", named artifacts as "artifact name@version", plans as "run (plan)",
    and "cache" for an entry of the cache."""
    repaired: bool = False
    """Whether its bytes were fetched again from the object store, or a damaged copy of it is removed."""


@attrs.frozen(kw_only=True)
class StoreCheck:
    """What a check of a whole store found."""

    at: float
    """When it ended, in seconds since the epoch."""
    blobs: int = 0
    """How many files or objects were read."""
    bytes: int = 0
    values: int = 0
    """How many values inside rows were read."""
    damages: tuple[Damage, ...] = ()
    unneeded: int = 0
    """Blobs that nothing names."""
    forgotten: int = 0
    """Entries of the cache that were removed, because they need what is damaged or lost."""
    aside: tuple[str, ...] = ()
    """Where damaged files were moved."""
    copies: int = 0
    """How many copies that were unpacked from artifacts were compared with them."""
    receipts: tuple[str, ...] = ()
    """The steps, as "run/step", whose receipts cannot be read."""
    database: str = ""
    """What SQLite says is wrong with its file; empty where nothing is, and for other databases."""

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong any more."""
        return not self.database and not self.receipts and all(damage.repaired for damage in self.damages)


def check_store(store: Store, *, repair: bool = False) -> StoreCheck:
    """Read everything. With `repair`, move damaged files into quarantine, fetch them again where there is an object
    store, and remove the entries of the cache that need what is damaged or lost."""
    blobs = store.blobs
    users, sizes, bad_rows, values = _needed(store)
    count = total = 0
    bad: dict[str, bool] = {}
    digests = set()
    for digest in blobs.digests():
        digests.add(digest)
        size, whole = _read(blobs, digest, sizes.get(digest))
        count, total = count + 1, total + size
        if not whole:
            bad[digest] = False
    aside = []
    for digest in bad if repair else ():
        path = blobs.quarantine(digest)
        if path:
            aside.append(path)
        if blobs.is_remote:
            bad[digest] = _fetched(blobs, digest, sizes.get(digest))
    damages = [
        Damage(digest=digest, state="damaged", users=_names(users, digest), repaired=bad[digest]) for digest in bad
    ]
    damages += [
        Damage(digest=digest, state="lost", users=_names(users, digest)) for digest in sizes if digest not in digests
    ]
    copies, bad_copies = _check_copies(blobs, set(bad))
    for digest in bad_copies if repair else ():
        remove_tree(blobs.unpacked(digest))
    damages += [Damage(digest=digest, state="damaged", users=(COPY,), repaired=repair) for digest in bad_copies]
    damages += [Damage(digest=digest, state="damaged", users=(user,)) for digest, user in bad_rows]
    forgotten = _forget(store, {damage.digest for damage in damages if not damage.repaired}) if repair else 0
    result = StoreCheck(
        at=time.time(),
        blobs=count,
        bytes=total,
        values=values,
        damages=tuple(damages),
        unneeded=sum(digest not in users for digest in digests),
        forgotten=forgotten,
        aside=tuple(aside),
        copies=copies,
        receipts=tuple(place for place, error in store.records.all_receipts() if error is not None),
        database=store.records.database.integrity(),
    )
    _write_report(blobs, result)
    return result


def last_check(blobs: Blobs) -> tuple[float, int] | None:
    """When a store was last checked, and how much was wrong then; None if it never was."""
    try:
        document = json.loads(Path(blobs.folder, _REPORT).read_text(encoding="utf-8"))
        return float(document["at"]), int(document["wrong"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lost(store: Store, limit: int) -> list[str]:
    """The first artifacts that outputs of runs need and that are gone or cut short; nothing is read but sizes."""
    missing = []
    for row in store.records.blob_outputs(limit):
        artifact = row.artifact
        if not store.blobs.is_remote and not store.blobs.has_size(artifact.digest, artifact.size):
            missing.append(artifact.digest)
    return list(dict.fromkeys(missing))


def _needed(store: Store) -> tuple[dict[str, list[str]], dict[str, int | None], list[tuple[str, str]], int]:
    """Who needs each digest; the size of each blob, None where it is not known; damaged values in rows, each with its
    row; how many values."""
    users: dict[str, list[str]] = {}
    sizes: dict[str, int | None] = {}
    damaged: list[tuple[str, str]] = []
    values = 0
    pending = [(artifact, user) for user, artifact in _artifacts(store)]
    for run, text in store.records.all_plans():
        user = f"{run} (plan)"
        try:
            document = json.loads(text)
            pending += [(artifact, user) for artifact in _values_in(document)]
            code = _code_in(document)
        except (ValueError, StoreError):
            damaged.append((hashlib.sha256(text.encode()).hexdigest(), user))
            continue
        for digest in code:
            users.setdefault(digest, []).append(user)
            sizes.setdefault(digest, None)
    while pending:
        artifact, user = pending.pop()
        users.setdefault(artifact.digest, []).append(user)
        if artifact.inline is None:
            sizes[artifact.digest] = artifact.size
        else:
            values += 1
            if hashlib.sha256(artifact.inline).hexdigest() != artifact.digest:
                damaged.append((artifact.digest, user))
                continue
        if artifact.serializer == "list":
            try:
                pending += [(part, user) for part in artifacts.items(artifact, store.blobs)]
            except (DamagedArtifact, ValueError, KeyError):
                continue  # the list is reported itself
    return users, sizes, damaged, values


def _artifacts(store: Store) -> Iterator[tuple[str, StoredArtifact]]:
    for row in store.records.all_outputs():
        yield f"{row.run_id}/{row.key}.{row.name}", row.artifact
    for entry in store.records.all_cached():
        for wire in entry.outputs.values():
            yield "cache", from_wire(wire)
    for named in store.registry.all_artifacts():
        yield f"artifact {named.name}@{named.version}", named.artifact


def blobs_of_plan(text: str) -> set[str]:
    """The digests of what a plan needs of the store: values that are no part of it, pickled functions, the user's code.

    Lists of artifacts are named, their elements are not.
    """
    document = json.loads(text)
    values = {artifact.digest for artifact in _values_in(document) if artifact.inline is None}
    return values | _code_in(document)


def _values_in(document: Any) -> Iterator[StoredArtifact]:
    """The stored values that a plan names."""
    if isinstance(document, dict):
        if _VALUE_KEYS.issubset(document) and _NAME.fullmatch(str(document["d"])):
            yield from_wire(document)
            return
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from _values_in(part)


def _code_in(document: Mapping[str, Any]) -> set[str]:
    """The digests of the package and the pickled functions that a plan names."""
    sources = [*document.get("shared", {}).get("source", ()), document.get("source") or {}]
    digests = {document.get("package"), *(source.get("digest") for source in sources)}
    return {digest for digest in digests if isinstance(digest, str) and _NAME.fullmatch(digest)}


def _check_copies(blobs: Blobs, bad: set[str]) -> tuple[int, list[str]]:
    """How many copies of files were compared, and the digests of those that differ. A copy of a folder is compared when
    it is used: its artifact is a tar file."""
    count, damaged = 0, []
    for path in Path(blobs.folder, "unpacked").glob("*/*/file*/*"):
        digest = path.parts[-4] + path.parts[-3]
        if _NAME.fullmatch(digest) is None or not path.is_file():
            continue
        count += 1
        if digest not in bad and not _has_digest(path, digest):
            damaged.append(digest)
    return count, damaged


def _has_digest(path: Path, digest: str) -> bool:
    """Whether a file can be read and its content has a digest."""
    try:
        return file_has_digest(str(path), digest)
    except OSError:
        return False


def _read(blobs: Blobs, digest: str, size: int | None) -> tuple[int, bool]:
    """The size of a blob and whether its content has the digest; every byte is read, whatever was read before."""
    if _NAME.fullmatch(digest) is None:
        return 0, True  # no blob: a file that somebody put there
    total, whole = 0, True
    for pieces in blobs.copies(digest, CHUNK):
        sizes: list[int] = []
        try:
            whole = has_digest(_measured(pieces, sizes), digest) and whole
        except OSError:
            whole = False
        total += sum(sizes)
        whole = whole and size in (None, sum(sizes))
    return total, whole


def _measured(pieces: Iterable[bytes], sizes: list[int]) -> Iterator[bytes]:
    """The pieces, whose sizes are added to a list."""
    for part in pieces:
        sizes.append(len(part))
        yield part


def _fetched(blobs: Blobs, digest: str, size: int | None) -> bool:
    try:
        blobs.path(digest, size)
    except StoreError:
        return False
    return True


def _forget(store: Store, bad: set[str]) -> int:
    """Remove the entries of the cache that need one of these artifacts."""
    keys = []
    for entry in store.records.all_cached() if bad else ():
        parts = [from_wire(wire) for wire in entry.outputs.values()]
        if any(_needs(part, bad, store.blobs) for part in parts):
            keys.append(entry.key)
    store.records.forget(keys)
    return len(keys)


def _needs(artifact: StoredArtifact, bad: set[str], blobs: Blobs) -> bool:
    if artifact.digest in bad:
        return True
    if artifact.serializer != "list":
        return False
    try:
        parts = artifacts.items(artifact, blobs)
    except StokerError:  # a list that cannot be read is computed again
        return True
    return any(_needs(part, bad, blobs) for part in parts)


def _names(users: Mapping[str, list[str]], digest: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(users.get(digest, ())))


def _write_report(blobs: Blobs, result: StoreCheck) -> None:
    """Write how the check ended; not where the store may only be read."""
    wrong = sum(not damage.repaired for damage in result.damages) + len(result.receipts) + bool(result.database)
    document: dict[str, Any] = {"at": result.at, "wrong": wrong, "blobs": result.blobs, "bytes": result.bytes}
    scratch = os.path.join(blobs.folder, f"{_REPORT}.{os.getpid()}")
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(scratch, os.path.join(blobs.folder, _REPORT))
    except OSError:
        return


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
    store.records.forget_sources(_named_by_plans(store) | store.records.diffs(), before=moment - older_than)
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
    lists += [row.artifact for row in store.registry.lists()]
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
