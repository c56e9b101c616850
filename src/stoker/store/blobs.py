"""Stores bytes under the name of their digest (`store.hashing`), in a folder, optionally in front of an object store.

A blob is whole or absent: it is written to a scratch file and renamed. Nothing is synced to the disk: a killed process
loses nothing that it had finished; a sync would take longer than most steps. What a power cut truncates and a disk
changes is noticed when it is read (`store.integrity`): a damaged file is moved into quarantine, so that the blob counts
as missing and is computed again. Knows neither the meaning of the bytes nor the database.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import stat
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Final, Iterator

from stoker.core.errors import DamagedArtifact, StoreError
from stoker.store import integrity
from stoker.store.access import create_file, is_shared, make_folders
from stoker.store.hashing import CHUNK, Hash
from stoker.store.integrity import SUMMED, Checks, Sums, sums_of

if TYPE_CHECKING:
    from stoker.store.remote import RemoteBlobs

STALE: Final = 3600.0
"""Seconds after which `sweep` removes scratch files, which killed processes leave."""
QUARANTINED: Final = 30 * 86400.0
"""Seconds after which `clean` removes damaged files from quarantine."""
SUMS: Final = ".sums"
"""What the name of a file of checksums ends with among the blobs that may only be read."""
INPUTS: Final = "inputs"
"""The folder of blobs that may only be read, each a file named by its digest, beside it its checksums."""
_SMALL: Final = 64 * 1024
"""Bytes of a write below which it is buffered: a pickle comes in pieces of a few bytes."""
_COUNTER: Final = itertools.count()


class Blobs:
    """The blobs at a URI: a path, `file://…`, a folder that ssh reaches, or an object store that fsspec knows.

    For what is elsewhere, the local folder is a cache: it may be deleted at any time while nothing runs. The folder
    that a container gets (`backends.docker.jobfiles`) has a folder `inputs` with further blobs, which are only read.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.trusted = True
        """Whether artifacts may be loaded that run code; not in another user's store (`access.is_foreign`)."""
        self._remote: RemoteBlobs | None = None
        if "://" in uri and not uri.startswith("file://"):
            from stoker.store.remote import cache_folder, open_remote  # only for what is elsewhere

            self._remote = open_remote(uri)
            self.folder = cache_folder(uri)
        else:
            # Workers have working directories of their own.
            self.uri = self.folder = os.path.abspath(uri.removeprefix("file://"))
        self._objects = os.path.join(self.folder, "objects") + os.sep
        self._scratch = os.path.join(self.folder, "tmp") + os.sep
        self._inputs = os.path.join(self.folder, INPUTS) + os.sep
        self._checks: Checks | None = None

    # Writing.

    def put(self, data: bytes | bytearray | memoryview) -> str:
        """Store bytes and return their digest."""
        view = memoryview(data)
        if view.nbytes <= CHUNK and self._remote is None:
            digest = hashlib.sha256(view).hexdigest()
            if os.path.exists(self._local(digest)) and self._renew(digest, sums_of(view)):
                return digest
        with self.writer() as writer:
            writer.write(view)
        return writer.digest

    def writer(self, *, expected: str = "") -> Writer:
        """A file to write a blob to in pieces; `with` commits it, or aborts if the body raises.

        `expected` is the digest that the bytes had in another store: they have it here, too, if it is one of an earlier
        version (`store.hashing`).
        """
        return Writer(self, expected=expected)

    def take(self, path: str, digest: str) -> None:
        """Move a file that another process wrote into the store, or copy it where its owner cannot be changed.

        The blob is the user's own afterwards. Raises `DamagedArtifact` for a file whose bytes have another digest,
        which stays where it is. An object store has the blob already: only its copy on this machine is moved.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._damaged(digest, f"{path} is no file")
            shared = is_shared(self.folder)
            own = _belongs_to_us(descriptor, status, os.stat(self.folder).st_gid if shared else os.getegid())
            writer = None if own else self.writer()
            received, sums = Hash(), Sums()
            try:
                while data := file.read(CHUNK):
                    part = memoryview(data)
                    received.update(part)
                    sums.update(part)
                    if writer is not None:
                        writer.write(part)
                if received.hexdigest() != digest:
                    raise self._damaged(digest, f"the bytes of {path} have the digest {received.hexdigest()}")
                if writer is not None:
                    writer.commit()
                    os.unlink(path)
                    return
            finally:
                received.stop()
                if writer is not None:
                    writer.abort()
            os.fchmod(descriptor, 0o440 if shared else 0o444)
        if self._remote is not None:
            self._move_into_place(path, digest)
        else:
            self._commit(path, digest, sums)

    # Reading. What is returned has been checked; a blob that is lost or damaged raises `DamagedArtifact`.

    def path(self, digest: str, size: int | None = None, *, beside: bool = False) -> str:
        """A local file with the blob's bytes, to be read or mapped, never written.

        With `beside`, and within `checking`, its content is still being checked when this returns.
        """
        path = self._present(digest, size)
        checks = self._checks
        if checks is not None and checks.usable:
            checks.add(digest, size, start=beside)
            if beside:
                return path
        return self._checked(digest, size)

    def open(self, digest: str, size: int | None = None) -> BinaryIO:
        """The blob as a file open for reading."""
        path = self._present(digest, size)
        if os.stat(path).st_size <= SUMMED:
            return io.BytesIO(self.read(digest, size))
        return open(self.path(digest, size), "rb")

    def read(self, digest: str, size: int | None = None) -> bytes:
        """The blob's bytes."""
        # What cannot be read, or is removed meanwhile, is told by the check below.
        with suppress(OSError), open(self._present(digest, size), "rb") as file:
            data = file.read(SUMMED + 1)
            if len(data) <= SUMMED and hashlib.sha256(data).hexdigest() == digest:
                return data
        try:
            with open(self._checked(digest, size), "rb") as file:
                return file.read()
        except OSError as error:
            raise self._damaged(digest, f"it cannot be read: {error.strerror}") from error

    @contextmanager
    def checking(self) -> Iterator[Checks]:
        """Check what `path` returns beside the body, which calls `join` before it relies on what it computed."""
        earlier, self._checks = self._checks, Checks(self._checked)
        try:
            yield self._checks
        finally:
            self._checks = earlier

    def watch(self, check: Callable[[], None]) -> None:
        """Call a check of what was unpacked at the end of `checking`; outside of that there is no end to call it at."""
        if self._checks is not None and self._checks.usable:
            self._checks.watch(check)

    def holds(self, digest: str, size: int) -> bool:
        """Whether the store has a blob of this size, a small one with the right content.

        A large one is not read here; whoever reads it checks it.
        """
        try:
            status = os.stat(self._local(digest))
        except OSError:
            if self._input(digest, size):
                return True
            return self._remote is not None and self._remote.size(digest) == size
        if status.st_size == size and size > SUMMED:
            return True
        try:
            self.path(digest, size)
        except DamagedArtifact:
            return False
        return True

    def has_size(self, digest: str, size: int) -> bool:
        """Whether there is a local file of this size for a blob."""
        try:
            return os.stat(self._local(digest)).st_size == size
        except OSError:
            return False

    def copies(self, digest: str, count: int) -> Iterator[Iterator[bytes]]:
        """The bytes of each copy of a blob as they are, `count` at a time: the object's, and the local file's."""
        remote, path = self._remote, self._local(digest)
        if remote is not None:
            yield _pieces(lambda: remote.open(digest), count)
        if remote is None or os.path.exists(path):
            yield _pieces(partial(io.FileIO, path), count)

    def copy_is_whole(self, copy: str, digest: str) -> bool:
        """Whether a file that was copied from a blob still has its bytes."""
        return integrity.is_whole(copy, digest, self.sums_path(digest))

    def local_file(self, digest: str) -> str:
        """The path of a blob's file on this machine; it need not exist."""
        return self._local(digest)

    def sums_path(self, digest: str) -> str:
        """The file of a blob's checksums; it need not exist."""
        path = os.path.join(self.folder, "sums", digest[:2], digest[2:])
        beside = self._inputs + digest + SUMS
        return beside if not os.path.exists(path) and os.path.exists(beside) else path

    def exists(self, digest: str) -> bool:
        """Whether the store has the blob."""
        if self._remote is not None:
            return self._remote.size(digest) is not None
        return os.path.exists(self._local(digest)) or bool(self._input(digest, None))

    def is_whole(self, digest: str) -> bool:
        """Whether the store has the blob with the right content; an object store's is checked by whoever reads it."""
        if self._remote is not None:
            return self.exists(digest)
        try:
            self._checked(digest, None)
        except DamagedArtifact:
            return False
        return True

    def size(self, digest: str) -> int:
        """The number of bytes of the blob."""
        if self._remote is not None:
            size = self._remote.size(digest)
            if size is None:
                raise self._missing(digest)
            return size
        return os.stat(self._present(digest, None)).st_size

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

    # Damage.

    def quarantine(self, digest: str) -> str:
        """Move the local file of a blob into quarantine, and return its path there; empty if it cannot be moved."""
        target = os.path.join(self.folder, "quarantine", f"{digest}-{time.time_ns()}")
        try:
            make_folders(os.path.dirname(target))
            os.rename(self._local(digest), target)
            os.utime(target)  # it stays for a while from now on
        except OSError:
            return ""
        _unlink(self.sums_path(digest))
        return target

    @property
    def is_remote(self) -> bool:
        """Whether the local folder is a cache of an object store."""
        return self._remote is not None

    def place(self) -> tuple[int, int] | None:
        """The device and inode of the folder of blobs, which is made if need be; None for an object store."""
        if self._remote is not None:
            return None
        try:
            make_folders(self._objects)
            status = os.stat(self._objects)
        except OSError as error:
            raise write_error(error, self.folder) from error
        return status.st_dev, status.st_ino

    def check_place(self, place: tuple[int, int] | None) -> None:
        """Raise `StoreError` if the folder of blobs is not the one that `place` returned."""
        if place is None:
            return
        try:
            status = os.stat(self._objects)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != place:
            raise StoreError(
                f"the artifact store {self.folder} was removed, replaced or unmounted while the run went on",
                fix="mount it again, or start the run again: what it computed is gone with the folder",
            )

    # Removing.

    def delete(self, digest: str) -> None:
        """Remove a blob and the files that were unpacked from it; one that is gone is fine."""
        if self._remote is not None:
            self._remote.delete(digest)
        self._remove_files(self._local(digest), digest)

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob that was last put before `than`; returns its size, or None if it stays."""
        if self._remote is not None:
            removed = self._remote.delete_if_older(digest, than)
            if removed is not None:
                self._remove_files(self._local(digest), digest)
            return removed
        path, aside = self._local(digest), self._scratch + digest
        try:
            if os.stat(path).st_mtime >= than:
                return None
            # Moved before the last check: a `put` before the move renews the blob's time, one after it writes it anew.
            make_folders(self._scratch)
            os.rename(path, aside)
        except FileNotFoundError:
            return None
        status = os.stat(aside)
        if status.st_mtime >= than:
            os.rename(aside, path)
            return None
        self._remove_files(aside, digest)
        return status.st_size

    def _remove_files(self, path: str, digest: str) -> None:
        """Remove a blob's local file, and what belongs to it."""
        _unlink(path)
        _unlink(self.sums_path(digest))
        remove_tree(self.unpacked(digest))

    def clean(self, now: float | None = None) -> None:
        """Remove scratch files that killed processes left, and damaged files that were set aside long ago."""
        if self._remote is not None:
            self._remote.clean({"tmp": STALE, "quarantine": QUARANTINED})
        moment = time.time() if now is None else now
        _remove_older(self._scratch, moment - STALE)
        _remove_older(os.path.join(self.folder, "quarantine") + os.sep, moment - QUARANTINED)

    def close(self) -> None:
        """Let go of connections to where the blobs are; the next use makes others."""
        if self._remote is not None:
            self._remote.close()

    # Files that are unpacked from a blob lie beside the blobs, and are removed with them.

    def unpacked(self, digest: str) -> str:
        """The folder for files that are unpacked from a blob; it need not exist."""
        return os.path.join(self.folder, "unpacked", digest[:2], digest[2:])

    def scratch(self) -> str:
        """A new name for a scratch file or folder, on the file system of the blobs."""
        return f"{self._scratch}{os.getpid()}-{next(_COUNTER)}-{os.urandom(4).hex()}"

    def _local(self, digest: str) -> str:
        return self._objects + digest[:2] + os.sep + digest[2:]

    def _input(self, digest: str, size: int | None) -> str:
        """The file of a blob among those that may only be read; empty where it is not there."""
        path = self._inputs + digest
        try:
            status = os.stat(path)
        except OSError:
            return ""
        return path if size in (None, status.st_size) else ""

    def _present(self, digest: str, size: int | None) -> str:
        """The local file of a blob, downloaded if need be; only its size is checked."""
        path = self._local(digest)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            input_file = self._input(digest, size)
            if input_file:
                return input_file
            if self._remote is None:
                raise self._missing(digest) from None
            return self._download(self._remote, digest, size)
        except OSError as error:
            raise write_error(error, self.folder) from error
        if stat.S_ISREG(status.st_mode) and size in (None, status.st_size):
            return path
        return self._replaced(digest, size, f"it has {status.st_size} bytes, not {size}")

    def _checked(self, digest: str, size: int | None) -> str:
        """The local file of a blob, whose content was checked."""
        path = self._present(digest, size)
        try:
            if integrity.is_whole(path, digest, self.sums_path(digest)):
                return path
        except FileNotFoundError:
            if self._remote is None:
                raise self._missing(digest) from None
        except OSError as error:
            raise self._damaged(digest, f"it cannot be read: {error.strerror}") from error
        return self._replaced(digest, size, "its bytes have another digest")

    def _replaced(self, digest: str, size: int | None, reason: str) -> str:
        """Another local file in place of a damaged one, from the object store; raises without one."""
        aside = self.quarantine(digest)
        try:
            if aside and integrity.is_whole(aside, digest, ""):
                # Another process has put the blob again since this one read it.
                os.replace(aside, self._local(digest))
                return self._local(digest)
        except OSError as error:  # a folder, or a disk that cannot read the file
            reason = f"it cannot be read: {error.strerror}"
        if self._remote is None:
            raise self._damaged(digest, reason)
        return self._download(self._remote, digest, size)

    def _renew(self, digest: str, sums: Sums) -> bool:
        """Renew the time of a blob that has the summed bytes, so that `sweep` leaves it alone; False if none has."""
        path = self._local(digest)
        try:
            if not integrity.has_sums(path, sums):
                return False
            os.utime(path)
        except OSError:  # not there, or another user's: it is put again, with this user as its owner
            return False
        return True

    def _create_scratch_file(self) -> tuple[str, int]:
        """An empty scratch file, open for writing; it is read-only once it is closed."""
        path = self.scratch()
        flags = os.O_WRONLY | os.O_EXCL
        try:
            try:
                return path, create_file(path, flags, 0o444)
            except FileNotFoundError:
                make_folders(self._scratch)
                return path, create_file(path, flags, 0o444)
        except OSError as error:
            raise write_error(error, self.folder) from error

    def _commit(self, path: str, digest: str, sums: Sums) -> None:
        """Give a complete file its name; in an object store first, then in the folder."""
        if self._remote is not None:
            self._remote.put(path, digest)
        elif self._renew(digest, sums):
            os.unlink(path)
            return
        self._move_into_place(path, digest)
        if sums.size > SUMMED:
            integrity.write_sums(self.sums_path(digest), self.scratch(), sums.document())

    def _move_into_place(self, path: str, digest: str) -> str:
        target = self._local(digest)
        try:
            try:
                os.replace(path, target)
            except FileNotFoundError:
                make_folders(os.path.dirname(target))
                os.replace(path, target)
        except OSError as error:
            raise write_error(error, self.folder) from error
        return target

    def _download(self, remote: RemoteBlobs, digest: str, size: int | None) -> str:
        """Download a blob into the folder, whole or not at all."""
        path, descriptor = self._create_scratch_file()
        try:
            try:
                received = remote.get(digest, descriptor)
            finally:
                os.close(descriptor)
            if received is None:
                raise self._missing(digest)
            whole = received == digest or integrity.is_whole(path, digest, "")
            if not whole or size not in (None, os.stat(path).st_size):
                remote.quarantine(digest)
                raise self._damaged(digest, f"its bytes have the digest {received}")
            target = self._move_into_place(path, digest)
            integrity.remember_whole(target, digest, integrity.state_of(os.stat(target)))
            return target
        except OSError as error:
            raise write_error(error, self.folder) from error
        finally:
            _unlink(path)

    def _missing(self, digest: str) -> DamagedArtifact:
        return DamagedArtifact(
            f"the artifact {digest} is not in {self.uri}",
            digest=digest,
            fix="run the step that made it again (`stoker rerun RUN`); or check that this is the store it was saved in",
        )

    def _damaged(self, digest: str, reason: str) -> DamagedArtifact:
        return DamagedArtifact(
            f"the artifact {digest} in {self.uri} is damaged: {reason}",
            digest=digest,
            fix="run the step that made it again (`stoker rerun RUN`); `stoker store check` finds what else is damaged",
        )


class Writer(io.RawIOBase):
    """Writes a blob in pieces. `commit` stores it and returns its digest; `abort` leaves nothing."""

    def __init__(self, blobs: Blobs, *, expected: str = "") -> None:
        self.digest = ""
        self._blobs = blobs
        self._hash = Hash()
        self._expected = expected
        self._whole = hashlib.sha256() if expected else None
        self._sums = Sums()
        self._size = 0
        self._small = bytearray()
        self._path, self._descriptor = blobs._create_scratch_file()

    @property
    def size(self) -> int:
        """The number of bytes so far."""
        return self._size

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        """Append a bytes-like object, which may change after the call."""
        view = memoryview(data)
        count = view.nbytes
        self._size += count
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
            if self._whole is not None and self._whole.hexdigest() == self._expected:
                digest = self._expected
            self._close()
            self._blobs._commit(self._path, digest, self._sums)
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
            # All release the interpreter's lock: one core hashes a chunk while another sums and copies it.
            self._hash.update(part)
            self._sums.update(part)
            if self._whole is not None:
                self._whole.update(part)
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


def _belongs_to_us(descriptor: int, status: os.stat_result, group: int) -> bool:
    """Whether an open file is this user's, or could be made so."""
    if (status.st_uid, status.st_gid) == (os.geteuid(), group):
        return True
    try:
        os.fchown(descriptor, os.geteuid(), group)
    except PermissionError:  # only root may do that
        return False
    return True


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


def _pieces(opened: Callable[[], BinaryIO], count: int) -> Iterator[bytes]:
    with opened() as file:
        while data := file.read(count):
            yield data


def _remove_older(folder: str, limit: float) -> None:
    """Remove the files and folders in a folder that last changed before `limit`."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        path = folder + name
        try:
            if os.lstat(path).st_mtime < limit:
                if os.path.isdir(path):
                    remove_tree(path)
                else:
                    os.unlink(path)
        except FileNotFoundError:
            continue


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
