"""A temporary store that reads the blobs of another store, and is removed at the end.

A borrowed blob is a link to the lender's file: nothing is copied, and the lender's files are never written.
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

_LOCK_FILE: Final = "held"
"""The file that a process locks while it uses its store; without a lock, a killed process has left the store."""
_FOLDER_LOCK: Final = "door"
"""The file that is locked while stores are created and removed, so that none looks abandoned in between."""


class BorrowedBlobs(Blobs):
    """The blobs of a folder; missing ones are borrowed from another store."""

    def __init__(self, folder: str, lender: Blobs) -> None:
        super().__init__(folder)
        self._lender = lender

    def _present(self, digest: str, size: int | None) -> str:
        self.borrow(digest, size)
        return super()._present(digest, size)

    def borrow(self, digest: str, size: int | None = None) -> None:
        """Link a blob of the lender into this folder; one that is there already is fine."""
        target = self._local(digest)
        if os.path.exists(target):
            return
        source = self._lender.path(digest, size)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(source, target)
            except FileExistsError:
                raise
            except OSError:  # another file system, or another user's file
                os.symlink(source, target)

    def borrow_all(self, document: Any) -> None:
        """Borrow every artifact that a JSON document describes, with the elements of lists."""
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
def temporary_store(lender: Store, folder: Path) -> Iterator[Store]:
    """A store in a new folder below `folder`, which borrows from `lender` and is removed at the end.

    Stores that killed processes left below the folder are removed too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / f"{os.getpid()}-{os.urandom(4).hex()}"
    with contextlib.ExitStack() as locks:
        with _locked(folder / _FOLDER_LOCK):
            for lock_file in folder.glob(f"*/{_LOCK_FILE}"):
                _remove_abandoned(lock_file)
            home.mkdir()
            locks.enter_context(_locked(home / _LOCK_FILE))
        store = open_store(home=str(home))
        try:
            yield attrs.evolve(store, blobs=BorrowedBlobs(store.artifact_uri, lender.blobs))
        finally:
            store.close()
            with _locked(folder / _FOLDER_LOCK):
                remove_tree(str(home))


@contextlib.contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
        yield


def _remove_abandoned(lock_file: Path) -> None:
    try:
        with _locked(lock_file, fcntl.LOCK_NB):
            remove_tree(str(lock_file.parent))
    except BlockingIOError:
        return  # in use
