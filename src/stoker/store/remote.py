"""Blobs elsewhere: in an object store, through fsspec, or in a folder of another machine. `open_remote` chooses.

An object appears whole or not at all: by one upload where the platform guarantees that, else by upload and rename. A
folder of another machine is laid out as `Blobs` lays out a folder of its own, so that steps over there open it as plain
files; how the machine is reached is known to `store.transport`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, Final, Iterator, Mapping, Protocol

from stoker.core.errors import Away, BackendError, DiskFull, MissingPackage, StoreError
from stoker.store.filesystems import fix_of, package_fix, url_to_fs
from stoker.store.hashing import CHUNK, Hash
from stoker.store.parts import ABANDONED, PART, S3, abort_old, ranges, upload
from stoker.store.transport import TRANSPORTS, Reach, Transport

_ATOMIC_UPLOAD: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "memory"})
"""Protocols whose uploads appear only when they are complete."""
_RENEW_AFTER: Final = 1800.0
"""Seconds after which an object, or one of unknown age, is uploaded again when it is put again: only an upload renews
its time, and `sweep` removes old objects."""


class RemoteBlobs(Protocol):
    """Blobs elsewhere, of which a local folder is the cache. What fails is a `StoreError`."""

    def put(self, path: str, digest: str) -> None:
        """Upload a local file, whole or not at all, unless a recent blob is there."""

    def get(self, digest: str, descriptor: int) -> str | None:
        """Download into an open file; returns the digest of the bytes, or None if there is no such blob."""

    def open(self, digest: str) -> Any:
        """The blob as a file; raises `FileNotFoundError`."""

    def size(self, digest: str) -> int | None:
        """The number of bytes of the blob; None if there is none."""

    def digests(self) -> Iterator[str]:
        """Every blob."""

    def delete(self, digest: str) -> None:
        """Remove a blob; one that is gone is fine."""

    def quarantine(self, digest: str) -> None:
        """Move a damaged blob aside; one that is gone is fine."""

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob last uploaded before `than`; its size, or None if it stays."""

    def clean(self, ages: Mapping[str, float]) -> None:
        """Remove what in a folder is older than so many seconds: what killed processes left, and what was set aside."""

    def close(self) -> None:
        """Let go of connections; the next use makes others."""


def open_remote(uri: str) -> RemoteBlobs:
    """The blobs at a URI with a scheme; nothing is asked yet."""
    return FolderBlobs(uri, TRANSPORTS.load(uri.partition("://")[0])) if has_transport(uri) else Remote(uri)


def has_transport(uri: str) -> bool:
    """Whether a transport reaches the folder of a URI; fsspec's own protocols come before those of plugins."""
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme == "file":
        return False
    if scheme in TRANSPORTS.builtin:
        return True
    with _named_package(uri):
        import fsspec
    return scheme not in fsspec.available_protocols() and scheme in TRANSPORTS


def preload(uri: str) -> None:
    """Import what `open_remote` needs for a URI, in a process that is forked for those that use it."""
    scheme, separator, _ = uri.partition("://")
    if separator and scheme != "file" and scheme not in TRANSPORTS.builtin:
        try:
            import fsspec

            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError):
            return  # whoever uses it meets the same error


class Remote:
    """Blobs below a URI that fsspec knows."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.protocol = uri.partition("://")[0]
        with self._translated_errors():
            self._files, root = url_to_fs(uri)
        self._root = root.rstrip("/")

    def put(self, path: str, digest: str) -> None:
        """Upload a local file, unless a recent object is there."""
        with self._translated_errors():
            key = self._key(digest)
            facts = self._info(key)
            if facts is not None and facts.get("size") == os.stat(path).st_size:
                age = self._age(key)
                if age is not None and age < _RENEW_AFTER:
                    return
            self._files.makedirs(key.rpartition("/")[0], exist_ok=True)
            if self.protocol in S3 and os.stat(path).st_size > PART:
                self._put_parts(path, key)
                return
            if self.protocol in _ATOMIC_UPLOAD:
                self._files.put_file(path, key)
                return
            scratch = f"{self._root}/tmp/{os.urandom(8).hex()}"
            self._files.makedirs(f"{self._root}/tmp", exist_ok=True)
            self._files.put_file(path, scratch)
            self._files.mv(scratch, key)

    def get(self, digest: str, descriptor: int) -> str | None:
        """Download into an open file; returns the digest of the bytes, or None if there is no such blob."""
        received = Hash()
        with self._translated_errors():
            try:
                for data in self._pieces(self._key(digest)):
                    part = memoryview(data)
                    received.update(part)
                    while part.nbytes:
                        part = part[os.write(descriptor, part) :]
                return received.hexdigest()
            except FileNotFoundError:
                return None
            finally:
                received.stop()

    def open(self, digest: str) -> Any:
        """The object as a file; raises `FileNotFoundError`."""
        return self._files.open(self._key(digest), "rb")

    def _pieces(self, key: str) -> Iterator[bytes]:
        """The bytes of an object, of a large one several ranges at a time; raises `FileNotFoundError`."""
        facts = self._info(key)
        if facts is None:
            raise FileNotFoundError(key)
        size = facts.get("size")
        if isinstance(size, int) and size:
            yield from ranges(self._files, key, size)
            return
        with self._files.open(key, "rb") as source:
            while data := self._read(source):
                yield data

    def _put_parts(self, path: str, key: str) -> None:
        try:
            upload(self._files, path, key)
        except OSError:
            # Another process put the same blob meanwhile, and completed the upload under this one.
            facts = self._info(key)
            if facts is None or facts.get("size") != os.stat(path).st_size:
                raise

    def _read(self, source: Any) -> bytes:
        data: bytes = source.read(CHUNK)
        return data

    def size(self, digest: str) -> int | None:
        """The number of bytes of the blob; None if there is none."""
        with self._translated_errors():
            facts = self._info(self._key(digest))
            return None if facts is None else self._size(self._key(digest), facts)

    def digests(self) -> Iterator[str]:
        """Every blob."""
        with self._translated_errors():
            self._files.invalidate_cache()
            try:
                names = self._files.find(f"{self._root}/objects")
            except FileNotFoundError:
                names = []
        for name in names:
            _, folder, file = name.rsplit("/", 2)
            yield folder + file

    def delete(self, digest: str) -> None:
        """Remove a blob; one that is gone is fine."""
        with self._translated_errors():
            try:
                self._files.rm_file(self._key(digest))
            except FileNotFoundError:
                pass

    def quarantine(self, digest: str) -> None:
        """Move a damaged object aside; one that is gone is fine."""
        with self._translated_errors():
            target = f"{self._root}/quarantine/{digest}-{time.time_ns()}"
            self._files.makedirs(f"{self._root}/quarantine", exist_ok=True)
            try:
                self._files.mv(self._key(digest), target)
            except FileNotFoundError:
                pass

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob last uploaded before `than`; its size, or None if it stays, as one of unknown age does."""
        with self._translated_errors():
            key = self._key(digest)
            facts = self._info(key)
            age = None if facts is None else self._age(key)
            if facts is None or age is None or time.time() - age >= than:
                return None
            size = self._size(key, facts)
            self._files.rm_file(key)
            return size

    def clean(self, ages: Mapping[str, float]) -> None:
        """Remove the parts of S3's uploads that killed processes left long ago; rules of the bucket expire the rest."""
        if self.protocol in S3:
            # Who may not list them has a rule of the bucket for them.
            with self._translated_errors(), contextlib.suppress(PermissionError):
                abort_old(self._files, f"{self._root}/objects", time.time() - ABANDONED)

    def close(self) -> None:
        """Nothing is held."""

    def _key(self, digest: str) -> str:
        return f"{self._root}/objects/{digest[:2]}/{digest[2:]}"

    def _info(self, key: str) -> dict[str, Any] | None:
        self._files.invalidate_cache()
        try:
            facts: dict[str, Any] = self._files.info(key)
        except FileNotFoundError:
            return None
        return facts

    def _size(self, key: str, facts: Mapping[str, Any]) -> int:
        """The bytes of an object; they are counted where the platform does not tell their number."""
        size = facts.get("size")
        if isinstance(size, int):
            return size
        with self._files.open(key, "rb") as source:
            return sum(len(data) for data in iter(lambda: self._read(source), b""))

    def _age(self, key: str) -> float | None:
        """Seconds since the last upload; None where no moment is told, or one of no known time zone."""
        try:
            modified = self._files.modified(key)
        except (NotImplementedError, IsADirectoryError):  # s3fs raises the second where there is no date
            return None
        if not isinstance(modified, datetime) or modified.tzinfo is None:
            return None
        return time.time() - modified.timestamp()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise _missing_package(self.uri, error) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the local disk is full
            raise self._remote_error(error) from error
        except Exception as error:  # every file system behind fsspec has errors of its own
            raise self._remote_error(error) from error

    def _remote_error(self, error: Exception) -> StoreError:
        return StoreError(
            f"the artifact store {self.uri} does not answer as it should: {type(error).__name__}: {error}",
            fix=fix_of(self.uri, error),
        )


@contextmanager
def _named_package(uri: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise _missing_package(uri, error) from error


def _missing_package(uri: str, error: ImportError) -> MissingPackage:
    text = f"the artifact store {uri} needs a package: {error}"
    return MissingPackage(text, fix=package_fix(uri))


def cache_folder(uri: str) -> str:
    """The folder for downloads from a remote store, below `cache_root`."""
    return os.path.join(cache_root(), hashlib.sha256(uri.encode()).hexdigest()[:16])


def cache_root() -> str:
    """The folder for what is downloaded: STOKER_CACHE, ~/.cache/stoker, or a private folder in /tmp."""
    root = os.environ.get("STOKER_CACHE")
    if not root:
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stoker")
        try:
            os.makedirs(root, exist_ok=True)
        except OSError:
            import tempfile

            root = os.path.join(tempfile.gettempdir(), f"stoker-{os.getuid()}")
            os.makedirs(root, mode=0o700, exist_ok=True)
            if os.stat(root).st_uid != os.getuid():
                raise StoreError(
                    f"{root} belongs to somebody else", fix="set STOKER_CACHE to a folder of yours"
                ) from None
    return root


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
