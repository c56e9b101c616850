"""Who may use what a store creates."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.core.plan import LogLine
from stoker.store.access import make_folders
from stoker.store.rows import RunRow
from stoker.store.store import Store, open_store
from stoker.store.writer import JournalEntry, RunJournal


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """What this user's umask is."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def used() -> Iterator[Callable[..., Store]]:
    """Opens stores, and has each create what it creates for a run."""
    stores: list[Store] = []

    def use(home: Path, *, shared: bool = False) -> Store:
        store = open_store(home=str(home), shared=shared)
        stores.append(store)
        store.records.create_run(RunRow(id=f"run{len(stores)}", pipeline="p", created=1.0))
        store.logs.append("run", "step", 1, [LogLine(time=1.0, stream="out", text="secret")])
        store.blobs.put(b"weights" * 10_000)
        store.checkpoints.create("run", "step")
        RunJournal(store.home, "run").append(JournalEntry(token="t"))
        return store

    yield use
    for store in stores:
        store.close()


def modes(home: Path) -> dict[str, int]:
    """The mode of the home and of everything in it, by the path."""
    return {str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode) for path in (home, *home.rglob("*"))}


def test_a_home_is_its_owners(tmp_path: Path, umask: int, used: Callable[..., Store]) -> None:
    home = tmp_path / "above" / "home"
    used(home)
    found = modes(home)
    assert found["."] == 0o700
    files = {name: mode for name, mode in found.items() if (home / name).is_file() and "artifacts" not in name}
    assert {"stoker.db", "stoker.db-wal", "logs/run/step/1.log", "journals/run.jsonl"} <= files.keys()
    assert set(files.values()) == {0o600}
    # A blob is for whoever can come so far, as the user of a container can.
    assert {mode & 0o700 for name, mode in found.items() if name.startswith("artifacts/sha256")} <= {0o700, 0o400}


def test_a_shared_home_is_its_groups(tmp_path: Path, umask: int, used: Callable[..., Store]) -> None:
    home = tmp_path / "home"
    home.mkdir()  # empty, as where somebody gave it another group
    used(home, shared=True)
    for name, mode in modes(home).items():
        if (home / name).is_dir():
            assert mode == 0o2770, name
        elif "artifacts" in name:
            assert mode & 0o040, name
        else:
            assert mode == 0o660, name


def test_a_home_in_use_keeps_its_mode(tmp_path: Path, used: Callable[..., Store]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    used(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    home.chmod(0o755)
    used(home, shared=True)
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


def test_folders_are_made_like_makedirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_folders("a/b/c")
    make_folders("a/b/c/")
    make_folders(str(tmp_path / "a" / "b"))
    assert os.path.isdir("a/b/c")
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(OSError, match="file"):
            make_folders(path)
