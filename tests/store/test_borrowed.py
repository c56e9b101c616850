"""A store for a moment reads what another one lends, writes nothing there, and is gone afterwards."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from stoker.core.errors import StoreError
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.borrowed import BorrowedBlobs, temporary_store
from stoker.store.store import open_store

LARGE = b"x" * 10_000


@pytest.mark.parametrize("remote", [False, True])
def test_lists_and_values_are_borrowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    uri = f"local://{tmp_path}/far" if remote else ""
    lender = open_store(artifact_uri=uri, home=str(tmp_path / "home"))
    parts = artifacts.save_split([LARGE, b"y" * 10_000, 3], lender.blobs)
    nested = artifacts.gather([parts, artifacts.save(b"z" * 9_000, lender.blobs)], lender.blobs, inline_limit=0)
    document = {"artifacts": {"dict": {"d": {"value": nested.wire()}, "s": {"value": parts.wire()}}}}
    before = sorted(lender.blobs.digests())
    with temporary_store(lender, tmp_path / "moments") as store:
        assert isinstance(store.blobs, BorrowedBlobs)
        store.blobs.borrow_all(document)
        # As a worker opens it, which knows nothing of the lender.
        there = Blobs(store.artifact_uri)
        assert artifacts.load(nested, there) == [[LARGE, b"y" * 10_000, 3], b"z" * 9_000]
        artifacts.save(b"new" * 10_000, there)
        own = Path(store.home)
    assert not own.exists() and sorted(lender.blobs.digests()) == before
    assert artifacts.load(nested, lender.blobs)[0][0] == LARGE
    lender.close()


def test_what_is_asked_for_is_borrowed_then(tmp_path: Path) -> None:
    lender = Blobs(str(tmp_path / "lender"))
    digest = lender.put(LARGE)
    borrowed = BorrowedBlobs(str(tmp_path / "own"), lender)
    assert borrowed.read(digest, len(LARGE)) == LARGE and borrowed.read(digest) == LARGE
    with pytest.raises(StoreError, match="is not in"):
        borrowed.read("0" * 64)


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise PermissionError("another file system, or somebody else's file: neither can be had in every test's folder")

    lender = Blobs(str(tmp_path / "lender"))
    digest = lender.put(LARGE)
    monkeypatch.setattr(os, "link", refused)
    borrowed = BorrowedBlobs(str(tmp_path / "own"), lender)
    assert borrowed.read(digest) == LARGE
    borrowed.put(LARGE)
    borrowed.delete(digest)
    assert lender.read(digest) == LARGE


def test_only_what_nobody_uses_is_cleared_away(tmp_path: Path) -> None:
    lender = open_store(home=str(tmp_path / "home"))
    left = tmp_path / "moments" / "1-left"
    left.mkdir(parents=True)
    (left / "held").touch()
    with temporary_store(lender, tmp_path / "moments") as first:
        assert not left.exists()
        with temporary_store(lender, tmp_path / "moments") as second:
            assert Path(first.home).exists() and first.home != second.home
            with open(Path(second.home) / "held", encoding="utf-8") as held, pytest.raises(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert Path(first.home).exists() and not Path(second.home).exists()
    lender.close()
