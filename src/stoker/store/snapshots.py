"""Copies of a step's checkpoint folder in the artifact store, for steps whose next attempt may get another node.

Below STORE/checkpoints/RUN/STEP (`checkpoints.step_place`), each node of the step has a place of its own:

    node-0/saved/000002-00000007-5b1c….json   a snapshot: every file of the folder with its digest
    node-0/objects/…                          the files by their digest, each stored once
    node-0/attempts/000002                    attempt 2 has begun: earlier ones write nothing more

A snapshot is written after its files, under a name with a part of its own digest, and an older one is removed after
that, so that at every moment the newest snapshot that can be read is whole. STORE is a folder or a URI that fsspec
knows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import partial
from typing import ClassVar, Final, Mapping

import attrs

from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.errors import DamagedArtifact, SettingsError
from stoker.store import notes
from stoker.store.blobs import Blobs
from stoker.store.hashing import CHUNK, digest_of, file_has_digest
from stoker.store.remote import RemoteBlobs, open_remote

_NODE: Final = "node-"


@attrs.frozen(kw_only=True)
class SavedFile:
    """One file of a snapshot."""

    COMPACT: ClassVar = True
    path: str
    """Below the checkpoint folder."""
    digest: str
    size: int
    """Bytes."""
    mode: int
    """Its permissions."""
    modified: int
    """Nanoseconds since the epoch."""


@attrs.frozen(kw_only=True)
class Snapshot:
    """A checkpoint folder as it was at one moment."""

    attempt: int
    """The attempt of the step that wrote it."""
    time: float
    """Seconds since the epoch, when it was found to be complete."""
    files: tuple[SavedFile, ...]
    links: Mapping[str, str] = attrs.field(factory=dict)
    """Symbolic links: path → target."""
    folders: tuple[str, ...] = ()
    """Every folder, an upper one before those below it."""
    version: int = 1

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def nodes_of(place: str) -> list[int]:
    """The numbers of the nodes that have copies at a step's place."""
    names = [name.removeprefix(_NODE) for name in notes.names(place) if name.startswith(_NODE)]
    return sorted(int(name) for name in names if name.isdecimal())


class Snapshots:
    """The snapshots of one node of a step. Store errors other than damage are raised as they come."""

    def __init__(self, place: str, node: int) -> None:
        self.uri = f"{place}/{_NODE}{node}"
        self._blobs: Blobs | None = None
        self._remote: RemoteBlobs | None = None
        if "://" in place:
            self._remote = open_remote(self.uri)
        else:
            self._blobs = Blobs(self.uri)
        self._stored: set[str] = set()

    # Reading

    def names(self) -> list[str]:
        """The names of all snapshots, the oldest first."""
        return sorted(name for name in notes.names(f"{self.uri}/saved") if name.endswith(".json"))

    def read(self, name: str) -> Snapshot:
        """A snapshot; raises `DamagedArtifact` for one that is not whole."""
        data = notes.get(f"{self.uri}/saved/{name}")
        digest = name.removesuffix(".json").rpartition("-")[2]
        if data is None or not hashlib.sha256(data).hexdigest().startswith(digest):
            raise DamagedArtifact(f"the snapshot {name} in {self.uri} is damaged", digest=digest)
        try:
            return from_json(Snapshot, parse_json(data), strict=False)
        except SettingsError as error:
            raise DamagedArtifact(f"the snapshot {name} in {self.uri} is damaged: {error}", digest=digest) from error

    def fetch(self, file: SavedFile, path: str) -> None:
        """Write a file of a snapshot to a path; raises `DamagedArtifact` where its bytes are lost or changed."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as target:
            if self._remote is not None:
                received = self._remote.get(file.digest, target.fileno())
                if received != file.digest and not file_has_digest(path, file.digest):
                    raise DamagedArtifact(f"{file.path} in {self.uri} is damaged", digest=file.digest)
            elif self._blobs is not None:
                with open(self._blobs.path(file.digest, file.size), "rb") as source:
                    shutil.copyfileobj(source, target, CHUNK)
        os.chmod(path, file.mode)
        os.utime(path, ns=(file.modified, file.modified))

    # Writing

    def begin(self, attempt: int) -> int:
        """Take the place over from earlier attempts, and remove what they did not finish; returns the number of this
        attempt's next snapshot."""
        notes.put(f"{self.uri}/attempts/{attempt:06d}", b"")
        names = self.names()
        self._sweep(names)
        own = [int(name.split("-")[1]) for name in names if name.startswith(f"{attempt:06d}-")]
        return max(own, default=0) + 1

    def later_attempt(self, attempt: int) -> int:
        """The number of an attempt that began after this one; 0 if none did."""
        numbers = [int(name) for name in notes.names(f"{self.uri}/attempts") if name.isdecimal()]
        return max([number for number in numbers if number > attempt], default=0)

    def put(self, path: str) -> str:
        """Store a file and return its digest."""
        if self._blobs is not None:
            with open(path, "rb") as source, self._blobs.writer() as writer:
                shutil.copyfileobj(source, writer, CHUNK)
            return writer.digest
        assert self._remote is not None
        with open(path, "rb", buffering=0) as source:
            digest = digest_of(iter(partial(source.read, CHUNK), b""))
        if digest not in self._stored:
            self._remote.put(path, digest)
            self._stored.add(digest)
        return digest

    def write(self, snapshot: Snapshot, number: int) -> str:
        """Write a snapshot whose files are stored, the `number`-th of its attempt; returns its name."""
        data = json.dumps(to_json(snapshot)).encode("utf-8", "surrogatepass")
        name = f"{snapshot.attempt:06d}-{number:08d}-{hashlib.sha256(data).hexdigest()[:16]}.json"
        notes.put(f"{self.uri}/saved/{name}", data)
        return name

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` snapshots, with the files that only they had."""
        names = self.names()
        older = names[:-keep]
        if older:
            for name in older:
                notes.remove(f"{self.uri}/saved/{name}")
            self._sweep(names[-keep:])

    def _sweep(self, names: list[str]) -> None:
        """Remove the files that no snapshot has; a damaged snapshot has none that anybody could read."""
        needed: set[str] = set()
        for name in names:
            try:
                needed.update(file.digest for file in self.read(name).files)
            except DamagedArtifact:
                continue
        objects = self._remote or self._blobs
        assert objects is not None
        present = set(objects.digests())
        for digest in present - needed:
            objects.delete(digest)
        self._stored = present & needed
