"""Blobs in a bucket whose server fails in every way at every so manieth call, and uploads that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import badluck, s3
from tests.servers.s3 import s3_server  # noqa: F401  # fixture
from tests.waiting import until

from stoker.core.errors import StoreError
from stoker.store import parts
from stoker.store.blobs import Blobs
from stoker.store.hashing import CHUNK

pytestmark = pytest.mark.xdist_group("bucket")
LARGE = 3 * parts.PART + 17
UPLOAD = """
import sys
from stoker.store.blobs import Blobs
Blobs(sys.argv[1]).put(open(sys.argv[2], "rb").read())
"""


@pytest.fixture
def uri(s3_server: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return s3_server.bucket(f"bucket-{os.getpid()}-{os.urandom(4).hex()}") + "/team"


@pytest.fixture
def luck(request: pytest.FixtureRequest, uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[badluck.BadLuck]:
    """What comes between; the tests ask for their own kinds."""
    kinds, every = getattr(request, "param", (("503",), sys.maxsize))
    with badluck.before(os.environ["AWS_ENDPOINT_URL"], kinds, every=every) as (address, found):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield found


def fetched(blobs: Blobs, digest: str) -> bytes:
    """A blob's bytes from the bucket."""
    os.unlink(blobs.local_file(digest))
    return blobs.read(digest)


def unfinished(blobs: Blobs) -> list[Any]:
    files: Any = blobs._remote._files  # type: ignore[union-attr]
    bucket, _, _ = files.split_path(blobs.uri)
    return list(files.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", ()))


@pytest.mark.parametrize("luck", [(badluck.ALL, 4)], indirect=True)
def test_bad_luck(uri: str, luck: badluck.BadLuck) -> None:
    blobs = Blobs(uri)
    small = [os.urandom(1000 + number) for number in range(12)]
    large = os.urandom(parts.PART + 1)
    for data in (*small, large):
        assert fetched(blobs, blobs.put(data)) == data
    assert len(set(blobs.digests())) == 13 and blobs.exists(blobs.put(large))
    assert {*luck.done} == {*badluck.ALL}
    assert (luck.seen["PUT part"], unfinished(blobs)) == (2, [])


@pytest.mark.parametrize("luck", [(("503",), 1)], indirect=True)
def test_a_bucket_that_is_gone_is_said(uri: str, luck: badluck.BadLuck) -> None:
    with pytest.raises(StoreError, match="does not answer as it should"):
        Blobs(uri).put(b"x")


def test_an_upload_that_was_killed_goes_on(uri: str, luck: badluck.BadLuck, tmp_path: Path) -> None:
    data = os.urandom(LARGE)
    (tmp_path / "data").write_bytes(data)

    def kill_after(count: int) -> None:
        """Upload in another process, and kill it when so many parts are there."""
        before, luck.first_parts = luck.seen["PUT part"], threading.Semaphore(count)
        child = subprocess.Popen([sys.executable, "-c", UPLOAD, uri, str(tmp_path / "data")])
        until(lambda: luck.seen["PUT part"] == before + count)
        child.kill()
        child.wait()
        luck.first_parts = None

    blobs = Blobs(uri)
    kill_after(2)
    assert len(unfinished(blobs)) == 1 and list(blobs.digests()) == []
    digest = blobs.put(data)
    assert luck.seen["PUT part"] == 4  # two more, where four are all
    assert (unfinished(blobs), fetched(blobs, digest)) == ([], data)
    blobs.delete(digest)
    kill_after(1)
    files: Any = blobs._remote._files  # type: ignore[union-attr]
    year = 365 * 86400.0
    assert parts.abort_old(files, blobs.uri.removeprefix("s3://"), before=39 * year) == 0
    assert len(unfinished(blobs)) == 1
    blobs.clean()  # moto has all uploads begin in 2010
    assert unfinished(blobs) == []


def test_a_range_that_fails_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that one; what is never there is said at once, and what never comes after some tries."""
    data = os.urandom(10 * CHUNK + 5)
    asked: list[int] = []
    failing = {3 * CHUNK: 2, 9 * CHUNK: 1}
    error: Exception = OSError("reset")

    class Files:
        def cat_ranges(self, keys: list[str], starts: list[int], ends: list[int], on_error: str) -> list[Any]:
            asked.extend(starts)
            answers: list[Any] = [data[start:end] for start, end in zip(starts, ends)]
            for place, start in enumerate(starts):
                if failing.get(start, 0):
                    failing[start] -= 1
                    answers[place] = error if failing[start] else data[start : start + 1]
            return answers

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert b"".join(parts.ranges(Files(), "key", len(data))) == data
    assert sorted(asked) == sorted([*range(0, len(data), CHUNK), 3 * CHUNK, 3 * CHUNK, 9 * CHUNK])
    for error, count in ((OSError("reset"), parts.TRIES), (FileNotFoundError("gone"), 1)):
        asked.clear()
        failing[0] = 10**6
        with pytest.raises(type(error), match=str(error)):
            list(parts.ranges(Files(), "key", 1))
        assert len(asked) == count
