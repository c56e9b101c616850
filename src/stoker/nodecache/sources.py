"""Where data comes from: what files lie there, what identifies their bytes, and how one of them is brought.

A *digest* says of which kind it is: "sha256:…", "git:…" (a blob of git) and "md5:…" are of the bytes, which are held
against them; "etag:…" and "time:…" are versions that a platform gives, and say only that a file is another one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Mapping, Protocol, Sequence

import attrs

from stoker.core.data import StepData
from stoker.core.errors import UsageError
from stoker.core.values import frozen
from stoker.core.words import shown

_PIECE: Final = 1 << 22
"""Bytes that are read at once."""


@frozen
class SourceFile:
    """A file as its place lists it."""

    path: str
    """Below the folder that is brought, with "/" between its parts."""
    size: int
    digest: str


@frozen(kw_only=True)
class DataListing:
    """What is brought, in the order of paths."""

    files: Sequence[SourceFile]
    at: str = ""
    """Which file or folder of it was asked for; empty for all of it."""
    revision: str = ""

    @property
    def identity(self) -> str:
        """The digest of all paths, sizes and digests."""
        document = "".join(f"{file.path}\0{file.size}\0{file.digest}\n" for file in self.files)
        return hashlib.sha256(f"{self.at}\n{document}".encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    def describe(self, data: StepData) -> StepData:
        """What is now known of data."""
        return attrs.evolve(data, identity=self.identity, revision=self.revision, size=self.size, files=len(self.files))


class Source(Protocol):
    """A place of data. What it raises is a `UsageError` where asking again does not help, and `Away` where it may."""

    workers: int
    """How many files are brought at the same time."""

    def listing(self) -> DataListing:
        """What lies there now."""

    def bring(self, file: SourceFile, target: Path) -> None:
        """Write a file's bytes to a path on this machine."""

    def is_encrypted(self, file: SourceFile) -> bool:
        """Whether what looks like a digest of the file's bytes is none, because the platform encrypts them."""


def listing_of(
    uri: str, files: Iterable[SourceFile], data: StepData, *, at: str = "", revision: str = ""
) -> DataListing:
    """The listing of those files that data asks for; `UsageError` where there is none, or one has no usable name."""
    chosen = sorted((file for file in files if _is_chosen(file.path, data)), key=lambda file: file.path)
    if not chosen:
        why = "its patterns leave none" if data.include or data.exclude else "it is empty"
        raise UsageError(f"{uri} has no file to bring: {why}", fix="correct the address, or include and exclude")
    folders = {parent for file in chosen for parent in _parents(file.path)}
    for file in chosen:
        parts = file.path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or file.path in folders:
            what = f"{uri} has {shown(file.path)}, which cannot be a file beside the others here"
            raise UsageError(what, fix="leave it out: exclude=[…]")
    return DataListing(files=tuple(chosen), at=at, revision=revision)


def _is_chosen(path: str, data: StepData) -> bool:
    included = not data.include or any(fnmatch.fnmatchcase(path, pattern) for pattern in data.include)
    return included and not any(fnmatch.fnmatchcase(path, pattern) for pattern in data.exclude)


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


_HASHES: Final[Mapping[str, Callable[[int], Any]]] = {
    "sha256": lambda size: hashlib.sha256(),
    "md5": lambda size: hashlib.md5(usedforsecurity=False),
    "git": lambda size: hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False),
}
"""Kinds of digests that are of the bytes; the digest of a blob of git begins with its size."""


def is_checked(digest: str) -> bool:
    """Whether a digest is one of the bytes."""
    return digest.partition(":")[0] in _HASHES


def problem_of(path: Path, file: SourceFile) -> str:
    """What is wrong with a file that was brought; empty where size and digest are right."""
    size = os.stat(path).st_size
    if size != file.size:
        return f"it has {size:,} bytes, not {file.size:,}"
    kind, _, wanted = file.digest.partition(":")
    if kind not in _HASHES:
        return ""
    digest = _HASHES[kind](size)
    with open(path, "rb") as opened:
        while piece := opened.read(_PIECE):
            digest.update(piece)
    found = digest.hexdigest()
    return "" if found == wanted else f"its {kind} is {found}, not {wanted}"
