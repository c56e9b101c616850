"""Blobs in an object store or on another machine, through fsspec: the only file that knows it.

An object appears whole or not at all: by one upload where the platform promises that, else by upload and rename.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from contextlib import contextmanager
from typing import Any, Final, Iterator

from stoker.core.errors import MissingPackage, StoreError
from stoker.store.hashing import CHUNK, Hash

_WHOLE: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "memory"})
"""Protocols whose uploads appear when they are complete."""
_RENEW: Final = 1800.0
"""An object that is older, or of unknown age, is uploaded again when it is put again: nothing else makes it young, and
`sweep` removes only what is old."""


class Remote:
    """Blobs below a URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.protocol = uri.partition("://")[0]
        with self._explained():
            import fsspec

            self._files, root = fsspec.core.url_to_fs(uri)
        self._root = root.rstrip("/")

    def put(self, path: str, digest: str) -> None:
        """Upload a local file, unless it is there and young."""
        with self._explained():
            key = self._key(digest)
            facts = self._info(key)
            if facts is not None and facts["size"] == os.stat(path).st_size and self._age(key) < _RENEW:
                return
            self._files.makedirs(key.rpartition("/")[0], exist_ok=True)
            if self.protocol in _WHOLE:
                self._files.put_file(path, key)
                return
            beside = f"{self._root}/tmp/{os.urandom(8).hex()}"
            self._files.makedirs(f"{self._root}/tmp", exist_ok=True)
            self._files.put_file(path, beside)
            self._files.mv(beside, key)

    def get(self, digest: str, descriptor: int) -> str | None:
        """Download into an open file; the digest of what came, or None if there is no such blob."""
        found = Hash()
        with self._explained():
            try:
                source = self._files.open(self._key(digest), "rb")
            except FileNotFoundError:
                return None
            try:
                with source:
                    while data := self._read(source):
                        part = memoryview(data)
                        found.update(part)
                        while part.nbytes:
                            part = part[os.write(descriptor, part) :]
                return found.hexdigest()
            finally:
                found.stop()

    def _read(self, source: Any) -> bytes:
        data: bytes = source.read(CHUNK)
        return data

    def size(self, digest: str) -> int | None:
        """How many bytes the blob has; None if there is none."""
        with self._explained():
            facts = self._info(self._key(digest))
        return None if facts is None else int(facts["size"])

    def digests(self) -> Iterator[str]:
        """Every blob."""
        with self._explained():
            self._files.invalidate_cache()
            try:
                names = self._files.find(f"{self._root}/objects")
            except FileNotFoundError:
                names = []
        for name in names:
            _, folder, rest = name.rsplit("/", 2)
            yield folder + rest

    def delete(self, digest: str) -> None:
        """Remove a blob; one that is gone is fine."""
        with self._explained():
            try:
                self._files.rm_file(self._key(digest))
            except FileNotFoundError:
                pass

    def delete_if_older(self, digest: str, than: float) -> int | None:
        """Remove a blob last uploaded before `than`; its size, or None if it stays. One of unknown age stays."""
        with self._explained():
            key = self._key(digest)
            facts = self._info(key)
            if facts is None or time.time() - self._age(key, unknown=0.0) >= than:
                return None
            self._files.rm_file(key)
            return int(facts["size"])

    def _key(self, digest: str) -> str:
        return f"{self._root}/objects/{digest[:2]}/{digest[2:]}"

    def _info(self, key: str) -> dict[str, Any] | None:
        self._files.invalidate_cache()
        try:
            facts: dict[str, Any] = self._files.info(key)
        except FileNotFoundError:
            return None
        return facts

    def _age(self, key: str, *, unknown: float = _RENEW) -> float:
        """Seconds since the last upload."""
        try:
            modified = self._files.modified(key)
        except NotImplementedError:
            return unknown
        age: float = time.time() - modified.timestamp()
        return age

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise MissingPackage(
                f"the artifact store {self.uri} needs a package: {error}", fix="install the package that it names"
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the disk here
            raise self._unanswered(error) from error
        except Exception as error:  # every file system behind fsspec brings errors of its own
            raise self._unanswered(error) from error

    def _unanswered(self, error: Exception) -> StoreError:
        return StoreError(
            f"the artifact store {self.uri} does not answer as it should: {type(error).__name__}: {error}",
            fix="check the address, your credentials for it, and the network",
        )


def cache_folder(uri: str) -> str:
    """Where this machine keeps what it fetched from a remote store: STOKER_CACHE, ~/.cache, or a private /tmp."""
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
    return os.path.join(root, hashlib.sha256(uri.encode()).hexdigest()[:16])
