"""Large objects in parts, several at a time: ranges of a download, and S3's multi-part uploads.

An upload goes on where a killed process stopped: the name of a blob says what its bytes are, so that parts that are
there under the name have the right ones. Parts of which nothing becomes cost money, and no list of objects has them:
`abort_old` removes them.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Iterator, Mapping

from stoker.store.hashing import CHUNK

AT_ONCE: Final = 8
"""Parts that are on their way at a time. A connection to a cloud's object store brings some 50 to 90 MB a second:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html"""
PART: Final = 2 * CHUNK
"""Bytes of the parts of an upload, at least; eight of them are in memory."""
_MOST_PARTS: Final = 10_000
"""https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""
TRIES: Final = 5
"""How often a range is asked for, each time after a longer pause; the file system has tried each several times then."""
ABANDONED: Final = 86400.0
"""Seconds after which `abort_old` takes an upload for one of a killed process."""
S3: Final = frozenset({"s3", "s3a"})


def ranges(files: Any, key: str, size: int) -> Iterator[bytes]:
    """The bytes of an object in order, in pieces of `CHUNK`; a range that fails is asked for again, and no other one.

    Raises `FileNotFoundError`, and what the file system raises for a range that failed each time.
    """
    for first in range(0, size, AT_ONCE * CHUNK):
        found: dict[int, bytes] = {}
        wanted = range(first, min(size, first + AT_ONCE * CHUNK), CHUNK)
        for attempt in range(TRIES):
            left = [start for start in wanted if start not in found]
            ends = [min(size, start + CHUNK) for start in left]
            answers = files.cat_ranges([key] * len(left), left, ends, on_error="return")
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            found.update(
                (start, answer)
                for start, end, answer in zip(left, ends, answers)
                if isinstance(answer, bytes) and len(answer) == end - start
            )
            if len(found) == len(wanted):
                break
            lasting = next(
                (error for error in failures if isinstance(error, (FileNotFoundError, PermissionError))), None
            )
            if lasting is not None or attempt == TRIES - 1:
                raise lasting or (failures or [OSError(f"{key} is shorter than the {size} bytes that it has")])[0]
            time.sleep(0.25 * 2**attempt)
        yield from (found[start] for start in wanted)


def upload(files: Any, path: str, key: str) -> None:
    """Upload a file to S3 by its parts, those that are there already left out; whole or not at all."""
    bucket, name, _ = files.split_path(key)
    place = {"Bucket": bucket, "Key": name}
    size = os.stat(path).st_size
    step = max(PART, -(-size // _MOST_PARTS // CHUNK) * CHUNK)
    starts = dict(enumerate(range(0, size, step), 1))
    place["UploadId"], done = _unfinished(files, place, {number: min(step, size - at) for number, at in starts.items()})

    with open(path, "rb", buffering=0) as file:

        def send(number: int) -> tuple[int, dict[str, Any]]:
            body = os.pread(file.fileno(), step, starts[number])
            return number, files.call_s3("upload_part", **place, PartNumber=number, Body=body)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            sent = dict(threads.map(send, [number for number in starts if number not in done]))
    parts = [{"PartNumber": number, **_proof(part)} for number, part in sorted({**done, **sent}.items())]
    files.call_s3("complete_multipart_upload", **place, MultipartUpload={"Parts": parts})
    files.invalidate_cache()


def abort_old(files: Any, root: str, before: float) -> int:
    """Remove the parts of uploads below a folder that began before a time; how many uploads those were."""
    bucket, prefix, _ = files.split_path(f"{root}/")
    old = [one for one in _uploads(files, bucket, prefix) if one["Initiated"].timestamp() < before]
    for one in old:
        with contextlib.suppress(FileNotFoundError):  # it was completed meanwhile
            files.call_s3("abort_multipart_upload", Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])
    return len(old)


def _unfinished(files: Any, place: Mapping[str, str], sizes: Mapping[int, int]) -> tuple[str, dict[int, Any]]:
    """The upload of an object that an earlier process left, with its parts by number; or a new one."""
    # Who may not list uploads begins anew.
    with contextlib.suppress(PermissionError, FileNotFoundError):
        for one in _uploads(files, place["Bucket"], place["Key"]):
            if one["Key"] == place["Key"]:
                parts = _parts(files, {**place, "UploadId": one["UploadId"]})
                return one["UploadId"], {number: part for number, part in parts if part["Size"] == sizes.get(number)}
    return files.call_s3("create_multipart_upload", **place)["UploadId"], {}


def _uploads(files: Any, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
    page: Mapping[str, Any] = {}
    while True:
        after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]} if page else {}
        page = files.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return


def _parts(files: Any, place: Mapping[str, str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    page: Mapping[str, Any] = {}
    while True:
        after = {"PartNumberMarker": page["NextPartNumberMarker"]} if page else {}
        page = files.call_s3("list_parts", **place, **after)
        yield from ((int(part["PartNumber"]), part) for part in page.get("Parts", ()))
        if not page.get("IsTruncated"):
            return


def _proof(part: Mapping[str, Any]) -> dict[str, Any]:
    """By what S3 knows a part again: its tag, and the checksum that was sent with it."""
    return {name: text for name, text in part.items() if name == "ETag" or name.startswith("ChecksumC")}
