"""Blobs: whole or absent, once for equal content, honest about damage."""

from __future__ import annotations

import builtins
import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import DamagedArtifact, StoreError
from stoker.store.blobs import STALE, Blobs
from stoker.store.hashing import CHUNK, Hash


def digest_of(data: bytes) -> str:
    """SHA-256 of the bytes, or of the SHA-256 of each 8 MiB of them."""
    chunks = [hashlib.sha256(data[start : start + 2**23]) for start in range(0, len(data) or 1, 2**23)]
    if len(chunks) == 1:
        return chunks[0].hexdigest()
    return hashlib.sha256(b"stoker sha256 of 8 MiB chunks\n" + b"".join(chunk.digest() for chunk in chunks)).hexdigest()


def leftovers(blobs: Blobs) -> list[str]:
    folder = Path(blobs.folder, "tmp")
    return os.listdir(folder) if folder.exists() else []


@pytest.mark.parametrize("size", [0, 5000, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_bytes_come_back(blobs: Blobs, size: int) -> None:
    data = os.urandom(size)
    digest = blobs.put(data)
    assert digest == digest_of(data)
    assert blobs.read(digest, size) == data
    assert blobs.exists(digest)
    assert blobs.size(digest) == size
    assert list(blobs.digests()) == [digest]
    assert leftovers(blobs) == []


def test_a_blob_is_a_read_only_file_named_by_its_digest(blobs: Blobs) -> None:
    digest = blobs.put(b"x")
    path = blobs.path(digest)
    assert path == f"{blobs.folder}/objects/{digest[:2]}/{digest[2:]}"
    assert os.stat(path).st_mode & 0o777 == 0o444


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_the_address_is_a_path_or_a_file_uri(tmp_path: Path, prefix: str) -> None:
    blobs = Blobs(f"{prefix}{tmp_path}/a")
    assert blobs.folder == blobs.uri == f"{tmp_path}/a"


def test_equal_content_is_stored_once_and_made_young(blobs: Blobs) -> None:
    digest = blobs.put(b"same")
    path = blobs.path(digest)
    os.utime(path, (1.0, 1.0))
    number = os.stat(path).st_ino
    assert blobs.put(bytearray(b"same")) == digest
    with blobs.writer() as writer:
        writer.write(b"sa")
        writer.write(memoryview(b"me"))
    assert writer.digest == digest
    assert os.stat(path).st_ino == number
    assert os.stat(path).st_mtime > time.time() - 60
    assert leftovers(blobs) == []


def test_a_writer_takes_pieces_of_any_size(blobs: Blobs) -> None:
    pieces = [os.urandom(size) for size in (0, 1, 100, 70_000, CHUNK * 2, 3, 64 * 1024, 5)]
    with blobs.writer() as writer:
        for piece in pieces:
            assert writer.write(piece) == len(piece)
        assert writer.tell() == sum(map(len, pieces))
    assert writer.digest == digest_of(b"".join(pieces))
    assert blobs.read(writer.digest) == b"".join(pieces)


def test_a_buffer_may_change_after_it_was_written(blobs: Blobs) -> None:
    buffer = bytearray(2 * CHUNK)
    with blobs.writer() as writer:
        writer.write(buffer)
        buffer[:] = b"\1" * len(buffer)
        writer.write(buffer)
    assert writer.digest == digest_of(b"\0" * len(buffer) + b"\1" * len(buffer))


def test_a_writer_takes_buffers_of_numbers(blobs: Blobs) -> None:
    import array

    numbers = array.array("d", range(100_000))
    with blobs.writer() as writer:
        writer.write(numbers)
        writer.write(array.array("d", [1.0]))
    assert blobs.read(writer.digest) == numbers.tobytes() + array.array("d", [1.0]).tobytes()


def test_a_body_that_raises_keeps_nothing(blobs: Blobs) -> None:
    with pytest.raises(FileNotFoundError, match="mine"), blobs.writer() as writer:
        writer.write(b"x" * CHUNK * 2)
        raise FileNotFoundError("mine")
    assert list(blobs.digests()) == []
    assert leftovers(blobs) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "stoker-hash"]


def test_a_missing_blob_says_what_to_do(blobs: Blobs) -> None:
    for ask in (blobs.read, blobs.path, blobs.open, blobs.size):
        with pytest.raises(StoreError, match="f" * 64) as caught:
            ask("f" * 64)
        assert "run the step" in caught.value.fix
    assert not blobs.exists("f" * 64)
    blobs.delete("f" * 64)


def test_a_truncated_blob_is_named(blobs: Blobs) -> None:
    digest = blobs.put(b"x" * 1000)
    os.chmod(blobs.path(digest), 0o644)
    os.truncate(blobs.path(digest), 500)
    with pytest.raises(StoreError, match=f"{digest}.*500 bytes, not 1000"):
        blobs.read(digest, 1000)
    # Made again, it is whole again.
    assert blobs.put(b"x" * 1000) == digest
    assert blobs.read(digest, 1000) == b"x" * 1000


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "full"), (errno.EIO, "cannot be written")])
def test_a_full_disk_says_so_and_leaves_nothing(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    blobs.put(b"first")
    real = os.write
    count = 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count > 2:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data[: len(data) // 2 or 1])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreError, match=words):
        blobs.put(b"x" * 3 * CHUNK)
    monkeypatch.undo()
    assert list(blobs.digests()) == [digest_of(b"first")]
    assert leftovers(blobs) == []


KILLED = """
import sys, os, signal
from stoker.store.blobs import Blobs
blobs = Blobs(sys.argv[1])
blobs.put(b"whole" * 1000)
with blobs.writer() as writer:
    for number in range(1000):
        writer.write(b"part" * 100_000)
        if number == 20:
            print("now", flush=True)
            signal.pause()
"""


def test_a_killed_writer_leaves_no_blob(blobs: Blobs) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, blobs.folder], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(blobs.digests()) == [digest_of(b"whole" * 1000)]
    assert blobs.read(digest_of(b"whole" * 1000)) == b"whole" * 1000
    assert len(leftovers(blobs)) == 1
    blobs.clean(time.time())
    assert len(leftovers(blobs)) == 1, "another process may be writing it"
    blobs.clean(time.time() + 2 * STALE)
    assert leftovers(blobs) == []


def test_threads_may_put_the_same_bytes(blobs: Blobs) -> None:
    data = os.urandom(100_000)
    digests: list[str] = []
    threads = [threading.Thread(target=lambda: digests.append(blobs.put(data))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == [digest_of(data)] * 16
    assert list(blobs.digests()) == [digest_of(data)]
    assert leftovers(blobs) == []


def test_only_what_is_old_is_deleted(blobs: Blobs) -> None:
    old, young = blobs.put(b"old"), blobs.put(b"young")
    os.utime(blobs.path(old), (100.0, 100.0))
    assert blobs.delete_if_older(old, 200.0) == 3
    assert blobs.delete_if_older(old, 200.0) is None
    assert blobs.delete_if_older(young, 200.0) is None
    assert list(blobs.digests()) == [young]


def test_a_blob_that_is_put_while_it_is_deleted_stays(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = blobs.put(b"wanted")
    os.utime(blobs.path(digest), (100.0, 100.0))
    real = os.rename

    def rename(source: str, target: str) -> None:
        if "objects" in source:
            blobs.put(b"wanted")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert blobs.delete_if_older(digest, 200.0) is None
    assert blobs.read(digest) == b"wanted"


@pytest.mark.parametrize("size", [0, 10, CHUNK - 3, CHUNK, CHUNK + 1, 9 * CHUNK + 12345])
def test_a_digest_is_that_of_the_chunks_however_the_bytes_come(size: int) -> None:
    data, order = os.urandom(size) + b"end", random.Random(size)
    found, start = Hash(), 0
    while start < len(data):
        end = start + order.choice((1, 100, 2**16, 2**20, 3 * 2**20, CHUNK, 2 * CHUNK + 1))
        found.update(memoryview(data)[start:end])
        start = end
    found.wait()
    assert found.hexdigest() == digest_of(data)


def test_large_blobs_of_an_earlier_version_are_read_checked_and_kept(blobs: Blobs) -> None:
    data = os.urandom(2 * CHUNK + 5)
    digest = hashlib.sha256(data).hexdigest()
    path = Path(blobs.folder, "objects", digest[:2], digest[2:])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    assert blobs.read(digest) == data and blobs.is_whole(digest)
    assert Path(blobs.path(digest)).read_bytes() == data
    damaged = bytearray(data)
    damaged[CHUNK] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    with pytest.raises(DamagedArtifact):
        blobs.read(digest)


def test_what_cannot_be_read_is_damaged(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = blobs.put(b"small")
    path = blobs.path(digest)
    opened = builtins.open

    def fail(file: Any, *arguments: Any, **options: Any) -> Any:
        # A mock: no disk here fails on demand.
        if file == path:
            raise OSError(errno.EIO, "Input/output error", path)
        return opened(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", fail)
    with pytest.raises(DamagedArtifact, match="Input/output error"):
        blobs.read(digest)
