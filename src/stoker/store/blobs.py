"""Bytes under the name of their own SHA-256, in a folder, with an object store behind it where there is one.

A blob is whole or absent: it is written beside and renamed. Nothing is synced to the disk: a killed process loses
nothing that it had finished, and what a power cut truncates is noticed by its size and made again; a sync would cost
more than most steps take. Knows nothing of what the bytes mean, nor of the database.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import time
from typing import Any, BinaryIO, Final, Iterator, NoReturn

from stoker.core.errors import StoreError
from stoker.store.hashing import CHUNK, Hash
from stoker.store.remote import Remote, cache_folder

STALE: Final = 3600.0
"""Seconds after which what a killed process left half-written is removed by `sweep`."""
_SMALL: Final = 64 * 1024
"""Smaller writes are put together: a pickle comes in pieces of a few bytes."""
_NAMES: Final = itertools.count()


class Blobs:
    """The blobs at a URI: a path, `file://…`, or anything that fsspec knows, kept in a local folder then.

    For a remote store the folder is a cache: it may be deleted at any time while nothing runs.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._remote: Remote | None = None
        if "://" in uri and not uri.startswith("file://"):
            self._remote = Remote(uri)
            self.folder = cache_folder(uri)
        else:
            # Workers have working directories of their own.
            self.uri = self.folder = os.path.abspath(uri.removeprefix("file://"))
        self._objects = os.path.join(self.folder, "objects") + os.sep
        self._beside = os.path.join(self.folder, "tmp") + os.sep

    # Writing.

    def put(self, data: bytes | bytearray | memoryview) -> str:
        """Keep bytes and return their digest."""
        view = memoryview(data)
        if view.nbytes <= CHUNK and self._remote is None:
            digest = hashlib.sha256(view).hexdigest()
            if self._is_here(digest, view.nbytes):
                return digest
        with self.writer() as writer:
            writer.write(view)
        return writer.digest

    def writer(self) -> Writer:
        """A file to write a blob into in pieces; `with` keeps it, or nothing if the body raises."""
        return Writer(self)

    # Reading. `size`, where it is known, finds a blob that a power cut truncated.

    def path(self, digest: str, size: int | None = None) -> str:
        """A local file with the blob's bytes, to be read or mapped, never written."""
        path = self._local(digest)
        try:
            found = os.stat(path).st_size
        except FileNotFoundError:
            found = -1
        if found >= 0 and size in (None, found):
            return path
        if self._remote is not None:
            return self._download(self._remote, digest, size)
        if found < 0:
            self._missing(digest)
        raise StoreError(
            f"the artifact {digest} in {self.uri} is damaged: it has {found} bytes, not {size}",
            fix="run the step that made it again, with its cache off",
        )

    def open(self, digest: str, size: int | None = None) -> BinaryIO:
        """The blob as a file open for reading."""
        return open(self.path(digest, size), "rb")

    def read(self, digest: str, size: int | None = None) -> bytes:
        """The blob's bytes."""
        with self.open(digest, size) as file:
            return file.read()

    def exists(self, digest: str) -> bool:
        """Whether the store has the blob."""
        if self._remote is not None:
            return self._remote.size(digest) is not None
        return os.path.exists(self._local(digest))

    def size(self, digest: str) -> int:
        """How many bytes the blob has."""
        if self._remote is not None:
            found = self._remote.size(digest)
            if found is None:
                self._missing(digest)
            return found
        return os.stat(self.path(digest)).st_size

    def digests(self) -> Iterator[str]:
        """Every blob of the store."""
        if self._remote is not None:
            yield from self._remote.digests()
            return
        try:
            folders = sorted(os.listdir(self._objects))
        except FileNotFoundError:
            return
        for folder in folders:
            for name in sorted(os.listdir(self._objects + folder)):
                yield folder + name

    # Removing.

    def delete(self, digest: str) -> None:
        """Remove a blob and what was made from it; one that is gone is fine."""
        if self._remote is not None:
            self._remote.delete(digest)
        _unlink(self._local(digest))
        remove_tree(self.unpacked(digest))

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob that nobody has put since `than`; its size, or None if it stays."""
        if self._remote is not None:
            removed = self._remote.delete_if_older(digest, than)
            if removed is not None:
                _unlink(self._local(digest))
                remove_tree(self.unpacked(digest))
            return removed
        path, aside = self._local(digest), self._beside + digest
        try:
            if os.stat(path).st_mtime >= than:
                return None
            # Moved before it is looked at a last time: a `put` that finds it there renews its time, and one that comes
            # after the move writes it anew.
            os.makedirs(self._beside, exist_ok=True)
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        found = os.stat(aside)
        if found.st_mtime >= than:
            os.rename(aside, path)
            return None
        _unlink(aside)
        remove_tree(self.unpacked(digest))
        return found.st_size

    def clean(self, now: float | None = None) -> None:
        """Remove what processes that were killed left half-written."""
        limit = (time.time() if now is None else now) - STALE
        try:
            names = os.listdir(self._beside)
        except FileNotFoundError:
            return
        for name in names:
            path = self._beside + name
            try:
                if os.lstat(path).st_mtime < limit:
                    if os.path.isdir(path):
                        remove_tree(path)
                    else:
                        os.unlink(path)
            except FileNotFoundError:
                continue

    # Files that are made from a blob (an unpacked folder) live beside the blobs, and go with them.

    def unpacked(self, digest: str) -> str:
        """The folder for files made from a blob; it need not exist."""
        return os.path.join(self.folder, "unpacked", digest[:2], digest[2:])

    def scratch(self) -> str:
        """A name for a file or folder that is being made, on the same file system as everything else here."""
        return f"{self._beside}{os.getpid()}-{next(_NAMES)}-{os.urandom(4).hex()}"

    def _local(self, digest: str) -> str:
        return self._objects + digest[:2] + os.sep + digest[2:]

    def _is_here(self, digest: str, size: int) -> bool:
        """Whether the blob is there and whole; its time is renewed then, so that `sweep` leaves it alone."""
        path = self._local(digest)
        try:
            if os.stat(path).st_size != size:
                return False
            os.utime(path)
        except OSError:  # not there, or another person's: it is put again, as one's own
            return False
        return True

    def _new(self) -> tuple[str, int]:
        """An empty file beside the blobs, open for writing; nobody may write it once it is closed."""
        path = self.scratch()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                return path, os.open(path, flags, 0o444)
            except FileNotFoundError:
                os.makedirs(self._beside, exist_ok=True)
                return path, os.open(path, flags, 0o444)
        except OSError as error:
            raise explained(error, self.folder) from error

    def _keep(self, path: str, digest: str, size: int) -> None:
        """Give a whole file its name; for a remote store it is there before it is here."""
        if self._remote is not None:
            self._remote.put(path, digest)
        elif self._is_here(digest, size):
            os.unlink(path)
            return
        self._arrive(path, digest)

    def _arrive(self, path: str, digest: str) -> str:
        place = self._local(digest)
        try:
            try:
                os.replace(path, place)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.replace(path, place)
        except OSError as error:
            raise explained(error, self.folder) from error
        return place

    def _download(self, remote: Remote, digest: str, size: int | None) -> str:
        """Fetch a blob into the folder, whole or not at all."""
        path, descriptor = self._new()
        try:
            try:
                found = remote.get(digest, descriptor)
            finally:
                os.close(descriptor)
            if found is None:
                self._missing(digest)
            if found != digest or (size is not None and os.stat(path).st_size != size):
                raise StoreError(
                    f"the artifact {digest} in {self.uri} is damaged: its bytes have the digest {found}",
                    fix="run the step that made it again, with its cache off",
                )
            return self._arrive(path, digest)
        except OSError as error:
            raise explained(error, self.folder) from error
        finally:
            _unlink(path)

    def _missing(self, digest: str) -> NoReturn:
        raise StoreError(
            f"the artifact {digest} is not in {self.uri}",
            fix="run the step that made it again, with its cache off; or check that this is the store it was saved in",
        )


class Writer(io.RawIOBase):
    """Takes a blob's bytes in order. `commit` keeps them and says their digest; `abort` leaves nothing."""

    def __init__(self, blobs: Blobs) -> None:
        self.digest = ""
        self.size = 0
        self._blobs = blobs
        self._hash = Hash()
        self._small = bytearray()
        self._path, self._descriptor = blobs._new()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        """Append a bytes-like object, which may change again afterwards."""
        view = memoryview(data)
        count = view.nbytes
        self.size += count
        if count + len(self._small) < _SMALL:
            self._small += view if view.contiguous else view.tobytes()
            return count
        self._pour()
        self._put(view.cast("B"))
        return count

    def commit(self) -> str:
        """Keep the blob."""
        try:
            self._pour()
            digest = self._hash.hexdigest()
            self._close()
            self._blobs._keep(self._path, digest, self.size)
        except BaseException:  # also an interrupt leaves nothing half-written
            self.abort()
            raise
        self.digest = digest
        return digest

    def abort(self) -> None:
        """Leave no trace; a blob that is kept already stays."""
        self._close()
        _unlink(self._path)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _pour(self) -> None:
        if self._small:
            small, self._small = self._small, bytearray()
            self._put(memoryview(small))

    def _put(self, view: memoryview) -> None:
        for start in range(0, view.nbytes, CHUNK):
            part = view[start : start + CHUNK]
            # Both let go of the interpreter's lock: one core hashes a chunk while the other copies it into the kernel.
            self._hash.update(part)
            try:
                while part.nbytes:
                    part = part[os.write(self._descriptor, part) :]
            except OSError as error:
                raise explained(error, self._blobs.folder) from error
        self._hash.wait()

    def _close(self) -> None:
        self._hash.stop()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def explained(error: OSError, folder: str) -> StoreError:
    """What an operating system's error means for the store."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk that holds {folder} is full",
            fix="free space on it, for example with `stoker gc`, and run again: finished steps are kept",
        )
    return StoreError(f"the artifact store {folder} cannot be written: {error}", fix="check the folder's permissions")


def remove_tree(folder: str) -> None:
    """Remove a folder whose files and folders may be read-only; one that is gone is fine."""
    if not os.path.isdir(folder):
        return
    for here, folders, files in os.walk(folder, topdown=False):
        os.chmod(here, 0o700)
        for name in files:
            _unlink(os.path.join(here, name))
        for name in folders:
            path = os.path.join(here, name)
            if os.path.islink(path):
                _unlink(path)
            else:
                os.rmdir(path)
    os.rmdir(folder)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
