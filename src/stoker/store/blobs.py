"""Stores bytes under the name of their SHA-256, in a folder, optionally in front of an object store.

A blob is whole or absent: it is written to a scratch file and renamed. Nothing is synced to the disk: a killed process
loses nothing that it had finished, and a blob that a power cut truncates is noticed by its size and computed again; a
sync would take longer than most steps. Knows neither the meaning of the bytes nor the database.
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
"""Seconds after which `sweep` removes scratch files, which killed processes leave."""
_SMALL: Final = 64 * 1024
"""Bytes of a write below which it is buffered: a pickle comes in pieces of a few bytes."""
_COUNTER: Final = itertools.count()


class Blobs:
    """The blobs at a URI: a path, `file://…`, or an object store that fsspec knows.

    For an object store, the local folder is a cache: it may be deleted at any time while nothing runs.
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
        self._scratch = os.path.join(self.folder, "tmp") + os.sep

    # Writing.

    def put(self, data: bytes | bytearray | memoryview) -> str:
        """Store bytes and return their digest."""
        view = memoryview(data)
        if view.nbytes <= CHUNK and self._remote is None:
            digest = hashlib.sha256(view).hexdigest()
            if self._renew(digest, view.nbytes):
                return digest
        with self.writer() as writer:
            writer.write(view)
        return writer.digest

    def writer(self) -> Writer:
        """A file to write a blob to in pieces; `with` commits it, or aborts if the body raises."""
        return Writer(self)

    # Reading. With `size`, a blob that a power cut truncated is noticed.

    def path(self, digest: str, size: int | None = None) -> str:
        """A local file with the blob's bytes, to be read or mapped, never written."""
        path = self._local(digest)
        try:
            present = os.stat(path).st_size
        except FileNotFoundError:
            present = -1
        if present >= 0 and size in (None, present):
            return path
        if self._remote is not None:
            return self._download(self._remote, digest, size)
        if present < 0:
            self._raise_missing(digest)
        raise StoreError(
            f"the artifact {digest} in {self.uri} is damaged: it has {present} bytes, not {size}",
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
        """The number of bytes of the blob."""
        if self._remote is not None:
            size = self._remote.size(digest)
            if size is None:
                self._raise_missing(digest)
            return size
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
        """Remove a blob and the files that were unpacked from it; one that is gone is fine."""
        if self._remote is not None:
            self._remote.delete(digest)
        _unlink(self._local(digest))
        remove_tree(self.unpacked(digest))

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob that was last put before `than`; returns its size, or None if it stays."""
        if self._remote is not None:
            removed = self._remote.delete_if_older(digest, than)
            if removed is not None:
                _unlink(self._local(digest))
                remove_tree(self.unpacked(digest))
            return removed
        path, aside = self._local(digest), self._scratch + digest
        try:
            if os.stat(path).st_mtime >= than:
                return None
            # Moved before the last check: a `put` before the move renews the blob's time, one after it writes it anew.
            os.makedirs(self._scratch, exist_ok=True)
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        status = os.stat(aside)
        if status.st_mtime >= than:
            os.rename(aside, path)
            return None
        _unlink(aside)
        remove_tree(self.unpacked(digest))
        return status.st_size

    def clean(self, now: float | None = None) -> None:
        """Remove scratch files that killed processes left."""
        limit = (time.time() if now is None else now) - STALE
        try:
            names = os.listdir(self._scratch)
        except FileNotFoundError:
            return
        for name in names:
            path = self._scratch + name
            try:
                if os.lstat(path).st_mtime < limit:
                    if os.path.isdir(path):
                        remove_tree(path)
                    else:
                        os.unlink(path)
            except FileNotFoundError:
                continue

    # Files that are unpacked from a blob lie beside the blobs, and are removed with them.

    def unpacked(self, digest: str) -> str:
        """The folder for files that are unpacked from a blob; it need not exist."""
        return os.path.join(self.folder, "unpacked", digest[:2], digest[2:])

    def scratch(self) -> str:
        """A new name for a scratch file or folder, on the file system of the blobs."""
        return f"{self._scratch}{os.getpid()}-{next(_COUNTER)}-{os.urandom(4).hex()}"

    def _local(self, digest: str) -> str:
        return self._objects + digest[:2] + os.sep + digest[2:]

    def _renew(self, digest: str, size: int) -> bool:
        """Renew the time of a whole blob, so that `sweep` leaves it alone; False if it is not there."""
        path = self._local(digest)
        try:
            if os.stat(path).st_size != size:
                return False
            os.utime(path)
        except OSError:  # not there, or another user's: it is put again, with this user as its owner
            return False
        return True

    def _create_scratch_file(self) -> tuple[str, int]:
        """An empty scratch file, open for writing; it is read-only once it is closed."""
        path = self.scratch()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                return path, os.open(path, flags, 0o444)
            except FileNotFoundError:
                os.makedirs(self._scratch, exist_ok=True)
                return path, os.open(path, flags, 0o444)
        except OSError as error:
            raise write_error(error, self.folder) from error

    def _commit(self, path: str, digest: str, size: int) -> None:
        """Give a complete file its name; in an object store first, then in the folder."""
        if self._remote is not None:
            self._remote.put(path, digest)
        elif self._renew(digest, size):
            os.unlink(path)
            return
        self._move_into_place(path, digest)

    def _move_into_place(self, path: str, digest: str) -> str:
        target = self._local(digest)
        try:
            try:
                os.replace(path, target)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.replace(path, target)
        except OSError as error:
            raise write_error(error, self.folder) from error
        return target

    def _download(self, remote: Remote, digest: str, size: int | None) -> str:
        """Download a blob into the folder, whole or not at all."""
        path, descriptor = self._create_scratch_file()
        try:
            try:
                received = remote.get(digest, descriptor)
            finally:
                os.close(descriptor)
            if received is None:
                self._raise_missing(digest)
            if received != digest or (size is not None and os.stat(path).st_size != size):
                raise StoreError(
                    f"the artifact {digest} in {self.uri} is damaged: its bytes have the digest {received}",
                    fix="run the step that made it again, with its cache off",
                )
            return self._move_into_place(path, digest)
        except OSError as error:
            raise write_error(error, self.folder) from error
        finally:
            _unlink(path)

    def _raise_missing(self, digest: str) -> NoReturn:
        raise StoreError(
            f"the artifact {digest} is not in {self.uri}",
            fix="run the step that made it again, with its cache off; or check that this is the store it was saved in",
        )


class Writer(io.RawIOBase):
    """Writes a blob in pieces. `commit` stores it and returns its digest; `abort` leaves nothing."""

    def __init__(self, blobs: Blobs) -> None:
        self.digest = ""
        self.size = 0
        self._blobs = blobs
        self._hash = Hash()
        self._small = bytearray()
        self._path, self._descriptor = blobs._create_scratch_file()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        """Append a bytes-like object, which may change after the call."""
        view = memoryview(data)
        count = view.nbytes
        self.size += count
        if count + len(self._small) < _SMALL:
            self._small += view if view.contiguous else view.tobytes()
            return count
        self._flush()
        self._put(view.cast("B"))
        return count

    def commit(self) -> str:
        """Store the blob and return its digest."""
        try:
            self._flush()
            digest = self._hash.hexdigest()
            self._close()
            self._blobs._commit(self._path, digest, self.size)
        except BaseException:  # also an interrupt leaves nothing half-written
            self.abort()
            raise
        self.digest = digest
        return digest

    def abort(self) -> None:
        """Remove the scratch file; a committed blob stays."""
        self._close()
        _unlink(self._path)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _flush(self) -> None:
        if self._small:
            small, self._small = self._small, bytearray()
            self._put(memoryview(small))

    def _put(self, view: memoryview) -> None:
        for start in range(0, view.nbytes, CHUNK):
            part = view[start : start + CHUNK]
            # Both release the interpreter's lock: one core hashes a chunk while the other copies it into the kernel.
            self._hash.update(part)
            try:
                while part.nbytes:
                    part = part[os.write(self._descriptor, part) :]
            except OSError as error:
                raise write_error(error, self._blobs.folder) from error
        self._hash.wait()

    def _close(self) -> None:
        self._hash.stop()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def write_error(error: OSError, folder: str) -> StoreError:
    """The store's error for an operating system's error."""
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
    for parent, folders, files in os.walk(folder, topdown=False):
        os.chmod(parent, 0o700)
        for name in files:
            _unlink(os.path.join(parent, name))
        for name in folders:
            path = os.path.join(parent, name)
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
