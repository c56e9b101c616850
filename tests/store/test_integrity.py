"""Flipped bits and cut files of every kind of artifact: each is found when it is read, and healed when the
value is saved again."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pytest
import torch

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import DamagedArtifact, SerializationError, StoreError
from stoker.store import artifacts, integrity
from stoker.store.blobs import Blobs
from stoker.store.integrity import SUMMED
from stoker.store.store import Store

TRIES = 4
LARGE = SUMMED + 300_000
"""Bytes of the values that have checksums beside them."""


def file_of(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(random.Random(1).randbytes(LARGE))
    return path


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("a" * 5000)
    (folder / "inner" / "b.bin").write_bytes(random.Random(2).randbytes(50_000))
    return folder


KINDS: dict[str, Callable[[Path], Any]] = {
    "json": lambda path: list(range(5000)),
    "str": lambda path: "words " * 2000,
    "bytes": lambda path: random.Random(3).randbytes(LARGE),
    "pickle": lambda path: {(number, "key"): float(number) for number in range(3000)},
    "numpy": lambda path: np.arange(20_000, dtype=np.int64),
    "mapped": lambda path: np.random.default_rng(0).random(LARGE // 8 + 1),
    "torch": lambda path: {"weights": torch.arange(200_000, dtype=torch.float32)},
    "pandas": lambda path: pd.DataFrame({"a": range(2000), "b": np.linspace(0, 1, 2000)}),
    "file": file_of,
    "folder": folder_of,
}


def content(value: Any) -> Any:
    """The value in a form that can be compared."""
    if isinstance(value, Path):
        files = [file for file in sorted(value.rglob("*")) if file.is_file()] or [value]
        return {file.name: file.read_bytes() for file in files}
    if isinstance(value, dict) and "weights" in value:
        return value["weights"].tolist()
    if isinstance(value, (np.ndarray, pd.DataFrame)):
        return value.to_numpy().tolist() if isinstance(value, pd.DataFrame) else value.tolist()
    return value


def flip(path: str, chance: random.Random) -> None:
    """Change one bit, and leave the times as they were, as a disk would."""
    status = os.stat(path)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        offset = chance.randrange(status.st_size)
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: str, chance: random.Random) -> None:
    os.chmod(path, 0o644)
    os.truncate(path, chance.randrange(os.stat(path).st_size))


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_blob_is_found_and_healed(
    blobs: Blobs, tmp_path: Path, kind: str, damage: Callable[[str, random.Random], None]
) -> None:
    chance = random.Random(f"{kind} {damage.__name__}")
    value = KINDS[kind](tmp_path)
    expected = content(value)
    for number in range(TRIES):
        saved = artifacts.save(value, blobs)
        assert content(artifacts.load(saved, blobs)) == expected, f"try {number}: not healed"
        damage(blobs.path(saved.digest), chance)
        if kind in ("file", "folder"):
            blobs_copy = Path(blobs.unpacked(saved.digest))
            os.rename(blobs_copy, tmp_path / f"copy-{number}")  # what has been unpacked is another file
        with pytest.raises(DamagedArtifact, match=saved.digest) as caught:
            artifacts.load(saved, blobs)
        assert caught.value.digest == saved.digest and "stoker rerun" in caught.value.fix
        assert artifacts.unusable(saved, blobs) == saved.digest
    assert len(os.listdir(Path(blobs.folder) / "quarantine")) == TRIES


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_damaged_copy_of_a_file_is_made_again(
    blobs: Blobs, tmp_path: Path, kind: str, damage: Callable[[str, random.Random], None]
) -> None:
    chance = random.Random(7)
    value = KINDS[kind](tmp_path)
    expected = content(value)
    saved = artifacts.save(value, blobs)
    for _ in range(TRIES):
        copy = artifacts.load(saved, blobs)
        assert content(copy) == expected
        damage(str(copy if kind == "file" else copy / "inner" / "b.bin"), chance)
    assert content(artifacts.load(saved, blobs)) == expected


@pytest.mark.parametrize("inside", [flip, cut])
def test_a_list_with_a_damaged_element_is_damaged(blobs: Blobs, inside: Callable[[str, random.Random], None]) -> None:
    chance = random.Random(8)
    for number in range(TRIES):
        values = [chance.randbytes(6000) for _ in range(40)]
        saved = artifacts.save_split(values, blobs)
        assert saved.inline is None and artifacts.unusable(saved, blobs) == ""
        victim = saved if number % 2 else chance.choice(artifacts.items(saved, blobs))
        inside(blobs.path(victim.digest), chance)
        assert artifacts.unusable(saved, blobs) == victim.digest
        with pytest.raises(DamagedArtifact, match=victim.digest):
            artifacts.load(saved, blobs)


def test_a_damaged_value_in_a_row_is_found(blobs: Blobs) -> None:
    chance = random.Random(9)
    for value in (12345, "text", b"bytes", {"a": [1, 2]}, (1, 2), np.arange(9), [1.5] * 20):
        saved = artifacts.save(value, blobs)
        assert saved.inline is not None
        for number in range(2 * TRIES):
            data = bytearray(saved.inline)
            if number % 2:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            else:
                del data[chance.randrange(len(data)) :]
            damaged = from_wire(attrs.evolve(saved, serializer="bytes", inline=bytes(data)).wire())
            damaged = attrs.evolve(damaged, serializer=saved.serializer)
            with pytest.raises(DamagedArtifact, match="in the database"):
                artifacts.load(damaged, blobs)
            assert artifacts.unusable(damaged, blobs) == saved.digest
    gathered = artifacts.gather([artifacts.save(1, blobs)], blobs)
    assert gathered.inline is not None
    with pytest.raises(DamagedArtifact):
        artifacts.items(attrs.evolve(gathered, inline=gathered.inline.replace(b'"1"', b'"2"')), blobs)


@pytest.mark.parametrize("size", [6000, LARGE])
def test_a_put_replaces_a_file_of_the_same_size_with_other_bytes(blobs: Blobs, size: int) -> None:
    data = random.Random(4).randbytes(size)
    chance = random.Random(5)
    digest = blobs.put(data)
    for write in (blobs.put, lambda value: _in_pieces(blobs, value)):
        for _ in range(TRIES):
            flip(os.path.join(blobs.folder, "objects", digest[:2], digest[2:]), chance)
            assert write(data) == digest
            assert blobs.read(digest) == data


def _in_pieces(blobs: Blobs, data: bytes) -> str:
    with blobs.writer() as writer:
        writer.write(data[:1000])
        writer.write(data[1000:])
    return writer.digest


# Checksums


@pytest.fixture
def large(blobs: Blobs) -> tuple[str, str]:
    digest = blobs.put(random.Random(6).randbytes(3 * LARGE))
    return digest, blobs.path(digest)


def test_without_checksums_the_digest_decides_and_they_are_written(blobs: Blobs, large: tuple[str, str]) -> None:
    digest, path = large
    sums = blobs.sums_path(digest)
    before = Path(sums).read_bytes()
    for document in (None, b"", b"nonsense", before[:-1] + b"x"):
        os.utime(path)  # changed: it is checked again
        os.unlink(sums)
        if document is not None:
            Path(sums).write_bytes(document)
        blobs.path(digest)
        assert Path(sums).read_bytes() == before


def test_wrong_checksums_never_condemn_a_file(blobs: Blobs, large: tuple[str, str]) -> None:
    digest, path = large
    others = integrity.sums_of(memoryview(b"\0" * os.stat(path).st_size))
    Path(blobs.sums_path(digest)).write_bytes(others.document())
    assert blobs.path(digest) == path


def test_checksums_go_with_their_blob(blobs: Blobs, large: tuple[str, str]) -> None:
    digest, _ = large
    assert os.path.exists(blobs.sums_path(digest))
    blobs.delete(digest)
    assert not os.path.exists(blobs.sums_path(digest))


# Beside a step


def test_what_is_read_beside_its_check_is_refused_at_the_end(blobs: Blobs) -> None:
    saved = artifacts.save(KINDS["mapped"](Path()), blobs)
    path = blobs.path(saved.digest)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\0" * 8)
    with blobs.checking() as checks:
        # A check that is faster has moved the file away before it is opened.
        with contextlib.suppress(SerializationError):
            assert artifacts.load(saved, blobs)[-1] == 0.0
        with pytest.raises(DamagedArtifact, match=saved.digest):
            checks.join()


def test_what_changes_after_its_check_is_refused_at_the_end(blobs: Blobs) -> None:
    saved = artifacts.save({"weights": torch.arange(200_000, dtype=torch.float32)}, blobs)
    with blobs.checking() as checks:
        artifacts.load(saved, blobs)
        checks.join()
        artifacts.load(saved, blobs)
        flip(blobs.path(saved.digest), random.Random(11))
        with pytest.raises(DamagedArtifact, match=saved.digest):
            checks.join()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_copy_that_changes_while_a_step_reads_it_is_refused_at_the_end(
    blobs: Blobs, tmp_path: Path, kind: str
) -> None:
    saved = artifacts.save(KINDS[kind](tmp_path), blobs)
    with blobs.checking() as checks:
        copy = artifacts.load(saved, blobs)
        expected = content(copy)
        if kind == "folder":
            (copy / "inner").chmod(0o755)
            (copy / "inner" / "new.txt").write_text("what a step may add if it can")
        checks.join()
        assert artifacts.load(saved, blobs) == copy and (kind == "file" or (copy / "inner" / "new.txt").exists())
        flip(str(copy if kind == "file" else copy / "a.txt"), random.Random(14))
        with pytest.raises(DamagedArtifact, match="was changed while a step read it"):
            checks.join()
    assert content(artifacts.load(saved, blobs)) == expected


def test_a_whole_file_is_read_once(blobs: Blobs, large: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    digest, path = large
    blobs.path(digest)
    assert integrity.is_known_whole(path, digest, integrity.state_of(os.stat(path)))
    monkeypatch.setattr(integrity, "_has_digest", lambda *arguments: pytest.fail("it was read again"))
    blobs.path(digest)
    Blobs(blobs.folder).path(digest)


def test_quarantine_is_emptied_after_a_while(blobs: Blobs) -> None:
    digest = blobs.put(b"x" * 5000)
    aside = blobs.quarantine(digest)
    blobs.clean()
    assert os.path.exists(aside)
    blobs.clean(os.stat(aside).st_mtime + 31 * 86400)
    assert not os.path.exists(aside)


# An object store


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Blobs]:
    import fsspec

    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    blobs = Blobs("memory://integrity")
    yield blobs
    fsspec.filesystem("memory").rm("/integrity", recursive=True)


def test_a_damaged_download_is_fetched_again(remote: Blobs) -> None:
    data = random.Random(12).randbytes(LARGE)
    digest = remote.put(data)
    for damage in (flip, cut):
        damage(remote.path(digest), random.Random(13))
        assert remote.read(digest, len(data)) == data


def test_a_damaged_object_is_set_aside_and_put_again(remote: Blobs) -> None:
    import fsspec

    data = b"remote " * 3000
    digest = remote.put(data)
    os.unlink(remote.path(digest))
    files = fsspec.filesystem("memory")
    key = f"/integrity/objects/{digest[:2]}/{digest[2:]}"
    files.pipe_file(key, b"REMOTE " * 3000)
    with pytest.raises(DamagedArtifact, match="is damaged"):
        remote.read(digest, len(data))
    assert not remote.holds(digest, len(data))
    assert remote.put(data) == digest
    os.unlink(remote.path(digest))
    assert remote.holds(digest, len(data)) and remote.read(digest, len(data)) == data


def test_an_unreadable_file_is_no_other_error(store: Store, tmp_path: Path) -> None:
    digest = store.blobs.put(b"y" * 6000)
    path = store.blobs.path(digest)
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(StoreError):
        store.blobs.read(digest)
    saved = StoredArtifact(digest=digest, serializer="bytes", type="bytes", size=6000)
    with pytest.raises((StoreError, SerializationError)):
        artifacts.load(saved, store.blobs)
