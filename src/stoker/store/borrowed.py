"""A store for a moment: written to as any other, gone when it is left, and reading what another store lends.

What it borrows is a second name for the lender's file, so that nothing is copied and the lender's own is never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any, Final, Iterator

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.store import artifacts
from stoker.store.blobs import Blobs, remove_tree
from stoker.store.store import Store, open_store

_HELD: Final = "held"
"""The file that a process locks while its store is in use: where nobody holds it, a killed process left the store."""
_DOOR: Final = "door"
"""The file that is locked while stores are made and removed, so that none is taken for a left one in between."""


class Borrowed(Blobs):
    """Blobs of a folder; one that is not there is borrowed from another store, where that has it."""

    def __init__(self, folder: str, lender: Blobs) -> None:
        super().__init__(folder)
        self._lender = lender

    def path(self, digest: str, size: int | None = None) -> str:
        """A local file with the blob's bytes."""
        self.borrow(digest, size)
        return super().path(digest, size)

    def borrow(self, digest: str, size: int | None = None) -> None:
        """Have a blob of the lender's here, too; one that is here already is fine."""
        place = self._local(digest)
        if os.path.exists(place):
            return
        lent = self._lender.path(digest, size)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(lent, place)
            except FileExistsError:
                raise
            except OSError:  # another file system, or a file of somebody else's
                os.symlink(lent, place)

    def borrow_all(self, document: Any) -> None:
        """Have here every artifact that a JSON document describes, with the elements of lists."""
        if isinstance(document, dict) and isinstance(document.get("d"), str) and "s" in document:
            self._borrow_artifact(from_wire(document))
            return
        for part in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
            self.borrow_all(part)

    def _borrow_artifact(self, artifact: StoredArtifact) -> None:
        if artifact.inline is None:
            self.borrow(artifact.digest, artifact.size)
        if artifact.serializer == "list":
            for part in artifacts.items(artifact, self):
                self._borrow_artifact(part)


@contextlib.contextmanager
def borrowing(lender: Store, folder: Path) -> Iterator[Store]:
    """A store of its own below `folder`, which borrows from another one and is removed at the end.

    Stores that killed processes left below the folder are removed, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{os.getpid()}-{os.urandom(4).hex()}"
    with contextlib.ExitStack() as held:
        with _locked(folder / _DOOR):
            for found in folder.glob(f"*/{_HELD}"):
                _remove_left(found)
            own.mkdir()
            held.enter_context(_locked(own / _HELD))
        store = open_store(home=str(own))
        try:
            yield attrs.evolve(store, blobs=Borrowed(store.artifact_uri, lender.blobs))
        finally:
            store.close()
            with _locked(folder / _DOOR):
                remove_tree(str(own))


@contextlib.contextmanager
def _locked(path: Path, more: int = 0) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | more)
        yield


def _remove_left(held: Path) -> None:
    try:
        with _locked(held, fcntl.LOCK_NB):
            remove_tree(str(held.parent))
    except BlockingIOError:
        return  # in use
