"""Blobs in a folder of another machine, laid out as `Blobs` lays them out in a folder of its own.

Steps over there open the same folder as plain files. Knows nothing of how the machine is reached (`store.transport`).
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import BinaryIO, Iterator, Mapping

from stoker.core.errors import Away, BackendError, DiskFull, StoreError
from stoker.store.hashing import Hash
from stoker.store.transport import Reach, Transport


class FolderBlobs:
    """Blobs below a URI; `remote.Remote` has the same methods for object stores."""

    def __init__(self, uri: str, reach: Reach) -> None:
        self.uri = uri
        self._reach = reach
        self._opened: Transport | None = None

    def put(self, path: str, digest: str) -> None:
        """Upload a local file, or renew the time of the blob that is there."""
        with self._translated_errors(), open(path, "rb") as source:
            if not self._files.renew(_name(digest), os.fstat(source.fileno()).st_size):
                self._files.write(source, _name(digest), part=f"tmp/{digest[:16]}-{os.urandom(8).hex()}")

    def get(self, digest: str, descriptor: int) -> str | None:
        """Download into an open file; returns the digest of the bytes, or None if there is no such blob."""
        received = Hash()

        def write(data: bytes) -> None:
            part = memoryview(data)
            received.update(part)
            while part.nbytes:
                part = part[os.write(descriptor, part) :]

        try:
            with self._translated_errors():
                return received.hexdigest() if self._files.read(_name(digest), write) else None
        finally:
            received.stop()

    def open(self, digest: str) -> BinaryIO:
        """A local copy of the blob as a file, which is gone when it is closed; raises `FileNotFoundError`."""
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="stoker-blob-")
        try:
            if self.get(digest, descriptor) is None:
                raise FileNotFoundError(digest)
            return open(path, "rb")
        finally:
            os.close(descriptor)
            os.unlink(path)

    def size(self, digest: str) -> int | None:
        """The number of bytes of the blob; None if there is none."""
        with self._translated_errors():
            facts = self._files.look([_name(digest)]).get(_name(digest))
        return None if facts is None else facts.size

    def digests(self) -> Iterator[str]:
        """Every blob."""
        with self._translated_errors():
            paths = list(self._files.files("objects"))
        for path in paths:
            _, folder, file = path.rsplit("/", 2)
            yield folder + file

    def delete(self, digest: str) -> None:
        """Remove a blob with its checksums; one that is gone is fine."""
        with self._translated_errors():
            self._files.remove([_name(digest), _sums(digest)])

    def quarantine(self, digest: str) -> None:
        """Move a damaged blob aside; one that is gone is fine."""
        with self._translated_errors():
            self._files.rename(_name(digest), f"quarantine/{digest}-{time.time_ns()}")
            self._files.remove([_sums(digest)])

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob last put before `than`; its size, or None if it stays.

        Ages are compared by the clock of the other machine, which need not show the same time."""
        with self._translated_errors():
            removed = self._files.remove_older(_name(digest), time.time() - than)
            if removed is not None:
                self._files.remove([_sums(digest)])
        return removed

    def clean(self, ages: Mapping[str, float]) -> None:
        """Remove what in a folder is older than so many seconds, by the clock of the other machine."""
        with self._translated_errors():
            for folder, seconds in ages.items():
                for path in list(self._files.files(folder)):
                    self._files.remove_older(path, seconds)

    def close(self) -> None:
        """Let go of the connection; the next use makes another."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def _files(self) -> Transport:
        if self._opened is None:
            self._opened = self._reach.open(self.uri)
        return self._opened

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except DiskFull as error:
            raise StoreError(
                f"the disk of the artifact store {self.uri} is full: {error.message}", fix=error.fix
            ) from error
        except Away as error:
            raise StoreError(f"the artifact store {self.uri} is not reached: {error.message}", fix=error.fix) from error
        except BackendError as error:
            raise StoreError(f"the artifact store {self.uri}: {error.message}", fix=error.fix) from error


def _name(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest[2:]}"


def _sums(digest: str) -> str:
    return f"sums/{digest[:2]}/{digest[2:]}"
