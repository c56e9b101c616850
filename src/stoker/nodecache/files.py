"""Buckets and folders, through fsspec."""

from __future__ import annotations

import base64
import contextlib
import errno
import re
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

from stoker.core.data import StepData
from stoker.core.errors import Away, BackendError, DiskFull, MissingPackage, UsageError
from stoker.nodecache.sources import DataListing, SourceFile, listing_of
from stoker.store.filesystems import fix_of, package_fix, url_to_fs

_MD5: Final = re.compile(r"[0-9a-f]{32}")
_VERSIONS: Final = ("ETag", "etag", "generation", "crc32c", "md5Hash", "version_id")
_TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
_LOCKED_OUT: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError"}
    | {"ProfileNotFound", "RefreshError", "ClientAuthenticationError", "TokenRetrievalError", "SSOTokenLoadError"}
)
"""Errors of botocore, google-auth and azure-core of somebody who has no valid credentials, by the names of their
classes."""


class Files:
    """One bucket's prefix, folder or file."""

    workers = 16

    def __init__(self, data: StepData) -> None:
        self._data = data
        with self._translated():
            self._system, root = url_to_fs(data.uri)
        self._root = root.rstrip("/")
        self._parent = self._root.rpartition("/")[0]
        self._names: dict[str, str] = {}
        """Path → the name at the source."""

    def listing(self) -> DataListing:
        """The files below the address, or the one that it names."""
        with self._translated():
            self._system.invalidate_cache()
            facts = self._system.info(self._root)
            is_file = facts["type"] == "file"
            found = {self._root: facts} if is_file else self._system.find(self._root, detail=True)
        files = []
        for name, one in found.items():
            if name.endswith("/") or one.get("type", "file") != "file":
                continue  # what some tools leave for a folder
            path = name.rpartition("/")[2] if is_file else name[len(self._root) + 1 :]
            self._names[path] = name
            files.append(SourceFile(path, self._size(name, one), self._digest(name, one)))
        return listing_of(self._data.uri, files, self._data, at=files[0].path if is_file else "")

    def bring(self, file: SourceFile, target: Path) -> None:
        """Copy a file. One without a digest of its bytes that changed meanwhile is brought again."""
        name = self._names[file.path]
        with self._translated():
            self._system.get_file(name, str(target))
            if file.digest.startswith(("etag:", "time:")):
                self._system.invalidate_cache()
                now = self._digest(name, self._system.info(name))
                if now != file.digest:
                    raise Away(f"{self._data.uri}: {file.path} changed while it was brought", fix="run again")

    def is_encrypted(self, file: SourceFile) -> bool:
        """Whether S3 encrypts the object with a key of KMS or of a customer's: its ETag is no MD5 of the bytes then.

        https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
        """
        call = getattr(self._system, "call_s3", None)
        if call is None:
            return False
        bucket, _, key = self._names[file.path].partition("/")
        with self._translated():
            facts = call("head_object", Bucket=bucket, Key=key)
        return str(facts.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in facts

    def _size(self, name: str, facts: Mapping[str, Any]) -> int:
        if not isinstance(facts.get("size"), int):
            raise UsageError(f"{self._data.uri}: nothing says how large {name} is", fix="put it into a bucket")
        return int(facts["size"])

    def _digest(self, name: str, facts: Mapping[str, Any]) -> str:
        """The digest of a file, or the version that its platform gives."""
        content = facts.get("md5Hash") or (facts.get("content_settings") or {}).get("content_md5")
        if content:
            raw = base64.b64decode(content) if isinstance(content, str) else bytes(content)
            return f"md5:{raw.hex()}"
        version = next((facts[key] for key in _VERSIONS if facts.get(key)), None)
        if version is not None:
            text = str(version).removeprefix("W/").strip('"')
            is_md5 = "ETag" in facts and "call_s3" in dir(self._system) and _MD5.fullmatch(text)
            return f"md5:{text}" if is_md5 else f"etag:{text}"
        moment = next((facts[key] for key in _TIMES if facts.get(key)), None)
        if moment is None:
            what = f"{self._data.uri}: nothing says when {name} changes"
            raise UsageError(what, fix="put it into a bucket, or load it inside the step")
        return f"time:{moment}"

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        uri = self._data.uri
        try:
            yield
        except (UsageError, BackendError):
            raise
        except ImportError as error:
            raise MissingPackage(f"{uri} needs a package: {error}", fix=package_fix(uri)) from error
        except FileNotFoundError as error:
            fix = "correct the address: it names no file, and no folder or prefix with files"
            raise UsageError(f"{uri} is not there", fix=fix) from error
        except ValueError as error:
            raise UsageError(f"{uri}: {error}", fix="check the address, and the variables of its platform") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{uri}: {error}") from error
            if isinstance(error, PermissionError):
                raise BackendError(f"{uri} may not be read: {error}", fix=fix_of(uri, error)) from error
            raise Away(f"{uri} does not answer: {type(error).__name__}: {error}", fix=fix_of(uri, error)) from error
        except Exception as error:  # every file system behind fsspec has errors of its own
            kind = BackendError if type(error).__name__ in _LOCKED_OUT else Away
            raise kind(f"{uri} cannot be read: {type(error).__name__}: {error}", fix=fix_of(uri, error)) from error
