"""`S3`: files of a step's own in an object store or a folder, by Metaflow's names, through fsspec.

`S3(run=self)` keeps them beside the artifacts: in the folder `data` of the artifact store, below the flow and the run.
Keys are paths below the root; without a root each is a URL. What was downloaded is in a temporary folder until `close`.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import attrs

from stoker.core.values import frozen
from stoker.flows.current import current
from stoker.flows.exceptions import (
    MetaflowS3AccessDenied,
    MetaflowS3Exception,
    MetaflowS3InsufficientDiskSpace,
    MetaflowS3InvalidObject,
    MetaflowS3InvalidRange,
    MetaflowS3NotFound,
    MetaflowS3URLException,
)
from stoker.flows.instance import FlowInstance
from stoker.store.blobs import INPUTS
from stoker.store.filesystems import fix_of, package_fix, url_to_fs

T = TypeVar("T")
PutValue = str | bytes | BinaryIO
_DATA: Final = "data"
"""The folder of the artifact store in which `run=` keeps files."""
_ROOTS: Final = ("STOKER_DATATOOLS_S3ROOT", "METAFLOW_DATATOOLS_S3ROOT")
_INFO: Final = ".stoker-info"
"""A folder beside files, for their content types and metadata; object stores keep these themselves."""
_ATTRIBUTES: Final = "metaflow-user-attributes"
"""The header in which an object has its metadata, as Metaflow writes it."""
_WORKERS: Final = 16
_ATTEMPTS: Final = 7
"""As many as Metaflow's, which waits up to a minute."""
_FAIL_FIRST: Final = "TEST_S3_RETRY"
"""A variable by which every first attempt fails, as in Metaflow: to see that a flow gets over it."""


class S3GetObject(NamedTuple):
    """A part of an object to download: `length` bytes from `offset` on, or the last ones where it is negative."""

    key: str
    offset: int | None = None
    length: int | None = None


class S3PutObject(NamedTuple):
    """What `put_many` (`value`) and `put_files` (`path`) upload, with what is kept beside it."""

    key: str
    value: PutValue | None = None
    path: str | None = None
    content_type: str | None = None
    encryption: str | None = None
    metadata: dict[str, str] | None = None


class RangeInfo(NamedTuple):
    """Which part of an object was downloaded."""

    total_size: int
    request_offset: int = 0
    request_length: int = -1


@frozen(kw_only=True)
class S3Object:
    """An object, or with `exists` False a prefix of objects or a missing one, and its copy here if it has one."""

    url: str
    """Where it is."""
    prefix: str | None = None
    """The root, or what was listed, that the key is below."""
    path: str | None = None
    """Its copy on this machine; None where it was not downloaded. The file is removed when the `S3` is closed."""
    size: int | None = None
    """Its bytes; None for a prefix and a missing object."""
    content_type: str | None = None
    metadata: dict[str, str] | None = None
    encryption: str | None = None
    range_info: RangeInfo | None = None
    """Which part of it the copy is; None for all of it."""
    last_modified: int | None = None
    """Seconds since the epoch."""

    @property
    def key(self) -> str:
        """Its path below `prefix`; its URL where there is none."""
        if self.prefix is None or self.prefix.rstrip("/") == self.url.rstrip("/"):
            return self.url
        return self.url[len(self.prefix.rstrip("/")) + 1 :].rstrip("/")

    @property
    def exists(self) -> bool:
        """Whether it is an object."""
        return self.size is not None

    @property
    def downloaded(self) -> bool:
        """Whether it has a copy here."""
        return self.path is not None

    @property
    def has_info(self) -> bool:
        """Whether anything is known of it but its size and time."""
        return any(one is not None for one in (self.content_type, self.metadata, self.range_info, self.encryption))

    @property
    def blob(self) -> bytes | None:
        """Its bytes; None where it was not downloaded."""
        return None if self.path is None else Path(self.path).read_bytes()

    @property
    def text(self) -> str | None:
        """Its bytes as UTF-8."""
        blob = self.blob
        return None if blob is None else blob.decode("utf-8", "replace")


class S3:
    """Objects below a root, which `run=self`, another run or `s3root=` names; a context manager.

    `s3root` may also be a folder, or a URL of another file system that fsspec knows. `bucket` and `prefix` replace
    those of the root of `run`.
    """

    def __init__(
        self,
        tmproot: str = ".",
        bucket: str | None = None,
        prefix: str | None = None,
        run: Any = None,
        s3root: str | None = None,
        encryption: str | None = None,
    ) -> None:
        self._root: str | None = None
        if run is not None:
            self._root = _root_of(run, bucket, prefix)
        elif s3root is not None:
            self._root = str(s3root).rstrip("/")
        self._encryption = encryption
        self._folder: str | None = tempfile.mkdtemp(prefix="stoker-s3-", dir=tmproot)

    def __enter__(self) -> S3:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was downloaded."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # Looking

    def list_paths(self, keys: Iterable[str] | None = None) -> list[S3Object]:
        """What is directly below each key, or the root: objects, and prefixes of others, which do not `exist`."""
        return [one for found in self._each(self._list, keys) for one in found]

    def list_recursive(self, keys: Iterable[str] | None = None) -> list[S3Object]:
        """All objects whose URLs begin with a key, or the root."""
        return [one for found in self._each(self._find, keys) for one in found]

    def info(self, key: str | None = None, return_missing: bool = False) -> S3Object:
        """What is known of an object, without its bytes."""
        return self._look(self._url(key), return_missing)

    def info_many(self, keys: Iterable[str], return_missing: bool = False) -> list[S3Object]:
        """The same of many."""
        return self._each(lambda key: self._look(self._url(key), return_missing), keys)

    # Downloading

    def get(
        self, key: str | S3GetObject | None = None, return_missing: bool = False, return_info: bool = True
    ) -> S3Object:
        """Download an object, or a part of it."""
        del return_info  # it costs nothing
        return self._download(key, return_missing)

    def get_many(
        self, keys: Iterable[str | S3GetObject], return_missing: bool = False, return_info: bool = True
    ) -> list[S3Object]:
        """Download many, several at a time."""
        del return_info
        return self._each(lambda key: self._download(key, return_missing), keys)

    def get_recursive(self, keys: Iterable[str], return_info: bool = False) -> list[S3Object]:
        """Download all objects below each key, whose own keys are then the paths below that."""
        del return_info
        return self._fetch_all([one for found in self._each(self._find, keys) for one in found])

    def get_all(self, return_info: bool = False) -> list[S3Object]:
        """Download all objects below the root."""
        del return_info
        if self._root is None:
            raise MetaflowS3URLException("get_all() needs a root", fix="write S3(run=self) or S3(s3root='s3://…')")
        return self._fetch_all(self._find(None))

    # Uploading

    def put(
        self,
        key: str | S3PutObject,
        obj: PutValue,
        overwrite: bool = True,
        content_type: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> str:
        """Upload a text, bytes or an open file; the object's URL. Without `overwrite` an object that is there stays."""
        name = key.key if isinstance(key, S3PutObject) else key
        what = S3PutObject(name, obj, content_type=content_type, metadata=metadata)
        url, _ = self._upload(what, overwrite)
        return url

    def put_many(
        self, key_objs: Iterable[tuple[str, PutValue] | S3PutObject], overwrite: bool = True
    ) -> list[tuple[str, str]]:
        """Upload many; (key, URL) of those that were uploaded."""
        return self._put_all(
            [one if isinstance(one, S3PutObject) else S3PutObject(*one) for one in key_objs], overwrite
        )

    def put_files(
        self, key_paths: Iterable[tuple[str, str] | S3PutObject], overwrite: bool = True
    ) -> list[tuple[str, str]]:
        """Upload files of this machine; (key, URL) of those that were uploaded."""
        files = [one if isinstance(one, S3PutObject) else S3PutObject(one[0], path=one[1]) for one in key_paths]
        for one in files:
            if one.path is None or not os.path.isfile(one.path):
                raise MetaflowS3NotFound(f"there is no file {one.path} to upload as {one.key}")
        return self._put_all(files, overwrite)

    def _put_all(self, objects: Sequence[S3PutObject], overwrite: bool) -> list[tuple[str, str]]:
        uploaded = self._each(lambda one: self._upload(one, overwrite), objects)
        return [(one.key, url) for one, (url, done) in zip(objects, uploaded) if done]

    # How

    def _each(self, call: Callable[[Any], T], items: Iterable[Any] | None) -> list[T]:
        """A call for each item, in their order; for None where there are no items to name."""
        wanted = [None] if items is None else list(items)
        if len(wanted) < 2:
            return [call(item) for item in wanted]
        with ThreadPoolExecutor(min(_WORKERS, len(wanted))) as pool:
            return list(pool.map(call, wanted))

    def _url(self, key: Any) -> str:
        name = getattr(key, "key", key)
        text = name.decode() if isinstance(name, bytes) else "" if name is None else str(name)
        if self._root is None:
            if not text.partition("://")[2] and not os.path.isabs(text):
                raise MetaflowS3URLException(
                    f"{text!r} is no URL, and there is no root", fix="write S3(run=self), or S3(s3root='s3://…')"
                )
            return text
        if "://" in text:
            raise MetaflowS3URLException(f"{text} is a URL, and keys are below {self._root}", fix="write S3()")
        return f"{self._root}/{text.lstrip('/')}" if text else self._root

    def _list(self, key: Any) -> list[S3Object]:
        url = self._url(key).rstrip("/") + "/"
        system, path = _open(url)

        def call() -> list[S3Object]:
            try:
                entries = system.ls(path.rstrip("/"), detail=True, refresh=True)
            except FileNotFoundError:
                return []
            objects = []
            for entry in sorted(entries, key=lambda entry: str(entry["name"])):
                name = entry["name"][len(path.rstrip("/")) + 1 :]
                if entry["type"] == "directory" and name and name != _INFO:
                    objects.append(S3Object(url=f"{url}{name}/", prefix=url))
                elif entry["type"] != "directory" and name:
                    objects.append(S3Object(url=url + name, prefix=url, size=entry["size"]))
            return objects

        return self._attempt("list", url, call)

    def _find(self, key: Any) -> list[S3Object]:
        url = self._url(key)
        system, path = _open(url)

        def call() -> list[S3Object]:
            system.invalidate_cache()
            entries = system.find(path, detail=True)
            if not entries and path.rpartition("/")[0]:  # the beginning of names, as "part-" is
                above = system.find(path.rpartition("/")[0], detail=True)
                entries = {name: entry for name, entry in above.items() if name.startswith(path)}
            return [
                S3Object(url=url + name[len(path) :], prefix=url, size=entry["size"])
                for name, entry in sorted(entries.items())
                if f"/{_INFO}/" not in name
            ]

        return self._attempt("list", url, call)

    def _look(self, url: str, return_missing: bool) -> S3Object:
        system, path = _open(url)
        try:
            details = self._attempt("look at", url, lambda: _details(system, path))
        except MetaflowS3NotFound:
            if not return_missing:
                raise
            return S3Object(url=url, prefix=self._root)
        return S3Object(url=url, prefix=self._root, **details)

    def _download(self, key: Any, return_missing: bool, seen: S3Object | None = None) -> S3Object:
        """Download what a key names, or an object that a listing had."""
        found = self._look(self._url(key) if seen is None else seen.url, return_missing)
        if seen is not None:
            found = attrs.evolve(found, prefix=seen.prefix)
        if found.size is None:
            return found
        part = _part(key, found.size, found.url)
        system, path = _open(found.url)
        local = os.path.join(self._temporary_folder(), uuid.uuid4().hex)

        def call() -> None:
            if part is None:
                system.get_file(path, local)
            else:
                end = part.request_offset + part.request_length
                Path(local).write_bytes(system.cat_file(path, start=part.request_offset, end=end))

        self._attempt("get", found.url, call)
        size = os.path.getsize(local)
        return attrs.evolve(found, path=local, size=size, range_info=part)

    def _fetch_all(self, listed: Sequence[S3Object]) -> list[S3Object]:
        return self._each(lambda one: self._download(None, False, one), listed)

    def _temporary_folder(self) -> str:
        if self._folder is None:
            raise MetaflowS3Exception("this S3 is closed", fix="get objects inside of its `with`")
        return self._folder

    def _upload(self, what: S3PutObject, overwrite: bool) -> tuple[str, bool]:
        """The URL of an object, and whether it was uploaded now."""
        url = self._url(what)
        system, path = _open(url)
        if not overwrite and self._attempt("look at", url, lambda: system.exists(path)):
            return url, False
        local, temporary = what.path, False
        if local is None:
            local, temporary = os.path.join(self._temporary_folder(), uuid.uuid4().hex), True
            _write(local, what)
        kept = {"content_type": what.content_type, "encryption": what.encryption or self._encryption}
        if what.metadata:
            kept["metadata"] = json.dumps(what.metadata)
        try:
            self._attempt("put", url, lambda: _put(system, local, path, kept))
        finally:
            if temporary:
                os.unlink(local)
        return url, True

    def _attempt(self, verb: str, url: str, call: Callable[[], T]) -> T:
        """Call until it succeeds or is sure to fail; each further attempt is told in the task's standard error."""
        for number in range(1, _ATTEMPTS + 1):
            try:
                if number == 1 and os.environ.get(_FAIL_FIRST):
                    raise OSError(f"{_FAIL_FIRST} is set: each first attempt fails")
                return call()
            except FileNotFoundError as error:
                raise MetaflowS3NotFound(f"there is no {url}") from error
            except PermissionError as error:
                raise MetaflowS3AccessDenied(f"{url}: access is denied: {error}", fix=fix_of(url, error)) from error
            except Exception as error:  # a library of fsspec's, which raises errors of its own
                if isinstance(error, OSError) and error.errno == 28:  # ENOSPC
                    raise MetaflowS3InsufficientDiskSpace(f"{url}: {error}", fix="free space") from error
                if isinstance(error, MetaflowS3Exception) or number == _ATTEMPTS:
                    raise MetaflowS3Exception(f"could not {verb} {url}: {error}", fix=fix_of(url, error)) from error
                wait = 0.0 if os.environ.get(_FAIL_FIRST) else min(60, 2 ** (number - 1)) * random.uniform(0.9, 1.1)
                sys.stderr.write(f"S3: could not {verb} {url}: {error}; attempt {number + 1} in {wait:.1f} s\n")
                time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")


def _root_of(run: Any, bucket: str | None, prefix: str | None) -> str:
    """The root of a run's objects."""
    if isinstance(run, FlowInstance):
        if not current.is_running_flow:
            raise MetaflowS3URLException("S3(run=self) is used where no task runs", fix="use it in a step")
        flow, id = current.flow_name, current.run_id
    else:
        flow, id = run.pathspec.split("/")
    root = next((os.environ[name] for name in _ROOTS if os.environ.get(name)), None) or _beside_artifacts(run)
    if bucket is not None or prefix is not None:
        host, _, path = root.removeprefix("s3://").partition("/")
        root = f"s3://{bucket or host}/{(path if prefix is None else prefix).strip('/')}"
    return f"{root.rstrip('/')}/{flow}/{id}"


def _beside_artifacts(run: Any) -> str:
    """The folder of the artifact store for the files of runs."""
    from stoker.flows.instance import TASK

    task = run.__dict__.get(TASK)
    store = task.blobs.uri if task is not None else run._run._store.artifact_uri
    if "://" not in store and os.path.isdir(os.path.join(store, INPUTS)):
        raise MetaflowS3URLException(
            "S3(run=self) keeps files beside the artifacts, and this container cannot write there",
            fix="let artifact_store of the stack be an object store, or set STOKER_DATATOOLS_S3ROOT=s3://…",
        )
    return f"{store.rstrip('/')}/{_DATA}"


def _open(url: str) -> tuple[Any, str]:
    try:
        return url_to_fs(url)
    except ImportError as error:
        raise MetaflowS3URLException(f"{url} cannot be opened: {error}", fix=package_fix(url)) from None
    except ValueError as error:
        raise MetaflowS3URLException(f"{url} cannot be opened: {error}", fix="write s3://… or a folder") from None


def _is_s3(system: Any) -> bool:
    protocols = system.protocol if isinstance(system.protocol, (tuple, list)) else (system.protocol,)
    return "s3" in protocols


def _details(system: Any, path: str) -> dict[str, Any]:
    """What a file system knows of an object, as fields of `S3Object`."""
    if _is_s3(system):
        bucket, _, key = path.partition("/")
        head = system.call_s3("head_object", Bucket=bucket, Key=key)
        attributes = head.get("Metadata", {}).get(_ATTRIBUTES)
        return {
            "size": head["ContentLength"],
            "content_type": head.get("ContentType"),
            "metadata": None if attributes is None else json.loads(attributes),
            "encryption": head.get("ServerSideEncryption"),
            "last_modified": int(head["LastModified"].timestamp()),
        }
    system.invalidate_cache()
    entry = system.info(path)
    if entry["type"] == "directory":
        raise FileNotFoundError(path)
    kept = _info_path(path)
    details = json.loads(system.cat_file(kept)) if system.exists(kept) else {}
    time_of = entry.get("mtime", entry.get("created"))
    return {
        "size": entry["size"],
        "last_modified": int(time_of) if isinstance(time_of, (int, float)) else None,
        **{name: json.loads(value) if name == "metadata" else value for name, value in details.items()},
    }


def _info_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{_INFO}/{name}"


def _put(system: Any, local: str, path: str, kept: dict[str, str | None]) -> None:
    """Put a file where it is whole or absent, with what is kept beside it."""
    kept = {name: value for name, value in kept.items() if value is not None}
    if _is_s3(system):
        words: dict[str, Any] = {}
        if "content_type" in kept:
            words["ContentType"] = kept["content_type"]
        if "metadata" in kept:
            words["Metadata"] = {_ATTRIBUTES: kept["metadata"]}
        if "encryption" in kept:
            words["ServerSideEncryption"] = kept["encryption"]
        system.put_file(local, path, **words)
        return
    info = _info_path(path)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    if kept:
        system.makedirs(info.rpartition("/")[0], exist_ok=True)
        system.pipe_file(info, json.dumps(kept).encode())
    elif system.exists(info):
        system.rm_file(info)
    beside = f"{path}.{uuid.uuid4().hex[:8]}.part"
    system.put_file(local, beside)
    system.mv(beside, path)


def _write(local: str, what: S3PutObject) -> None:
    """Write the value of an object to a file."""
    value: Any = what.value
    if isinstance(value, str):
        Path(local).write_bytes(value.encode("utf-8"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        Path(local).write_bytes(value)
    elif isinstance(value, (io.RawIOBase, io.BufferedIOBase)) and value.readable():
        with open(local, "wb") as file:
            shutil.copyfileobj(value, file, 1 << 20)
    else:
        raise MetaflowS3InvalidObject(
            f"{what.key}: a {type(value).__name__} is no text, no bytes and no file that is open for reading bytes",
            fix="put pickle.dumps(value) or json.dumps(value)",
        )


def _part(key: Any, size: int, url: str) -> RangeInfo | None:
    """The part of an object of this size that a key asks for; None for all of it."""
    offset, length = getattr(key, "offset", None), getattr(key, "length", None)
    if offset is None and length is None:
        return None
    if length is not None and length < 0:
        start, count = max(0, size + length), min(size, -length)
    else:
        start = offset or 0
        count = size - start if length is None else min(length, size - start)
    if start >= size or count <= 0:
        raise MetaflowS3InvalidRange(f"{url} has {size} bytes, and offset={offset}, length={length} is none of them")
    return RangeInfo(size, start, count)
