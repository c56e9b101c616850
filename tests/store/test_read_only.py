"""A store that may only be read is read: nothing is written beside it, and what a writer writes meanwhile is seen."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import StoreError
from stoker.store import artifacts
from stoker.store.batch import RowBatch
from stoker.store.database import Database
from stoker.store.rows import OutputRow, RunRow, StepRow
from stoker.store.store import open_store

READER = """
import json, os, sys
from stoker.client import Client
client = Client()
for line in sys.stdin:
    run = client.run("run1")
    step = run.steps["make"]
    path, data = step.outputs["path"].load(), step.outputs["data"].load()
    assert client.store.records.database.read_only
    print(json.dumps([run.tags, path.read_text(), len(data), [one.id for one in client.runs()]]), flush=True)
"""


def unprivileged() -> list[str]:
    """The beginning of a command whose process minds permissions, which root does not."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root, and no setpriv to mind permissions with")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]


class Reader:
    """A process that reads the store, and may not write it."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [*unprivileged(), sys.executable, "-c", READER],
            env={**os.environ, "STOKER_HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("read\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A store with a run, which no process uses."""
    folder = tmp_path / "home"
    store = open_store(home=str(folder))
    text = tmp_path / "report.txt"
    text.write_text("all is well")
    batch = RowBatch()
    batch.step(StepRow(run_id="run1", key="make", name="make", status="succeeded"))
    for name, value in (("path", text), ("data", b"x" * 9000)):
        batch.output(OutputRow(run_id="run1", key="make", name=name, artifact=artifacts.save(value, store.blobs)))
    store.records.create_run(RunRow(id="run1", pipeline="p", status="succeeded", token="t"), batch=batch)
    store.close()
    yield folder
    change(folder, 0o700)


def change(home: Path, mode: int) -> None:
    """Set the modes of all folders and files; files get no right to be executed."""
    for path in (home, *home.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # SQLite's own files go with the last process that reads
            path.chmod(mode if path.is_dir() else mode & 0o666)


def names(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def test_a_store_that_nobody_uses(home: Path) -> None:
    change(home, 0o555)
    before = names(home)
    reader = Reader(home)
    assert reader.read() == '[[], "all is well", 9000, ["run1"]]\n'
    change(home, 0o755)
    # Its owner writes and leaves again, while the reader has it open.
    store = open_store(home=str(home))
    store.records.set_run("run1", "t", tags=("later",))
    store.close()
    change(home, 0o555)
    assert reader.read() == '[["later"], "all is well", 9000, ["run1"]]\n'
    reader.close()
    assert names(home) == before


def test_a_store_whose_owner_writes(home: Path) -> None:
    store = open_store(home=str(home))
    store.records.set_run("run1", "t", tags=("one",))
    change(home, 0o555)
    reader = Reader(home)
    for tag in ("two", "three", "four"):
        store.records.set_run("run1", "t", tags=(tag,))
        assert reader.read().startswith(f'[["{tag}"],')
    reader.close()
    change(home, 0o755)
    store.close()


@pytest.mark.parametrize("index", ["there", "gone", "unreadable"])
def test_a_store_whose_writer_was_killed(home: Path, index: str) -> None:
    """Its last transactions are in the log alone."""
    writer = os.fork()
    if writer == 0:
        connection = sqlite3.connect(home / "stoker.db")
        connection.execute("UPDATE runs SET tags = '[\"logged\"]'")
        connection.commit()
        os._exit(0)
    os.waitpid(writer, 0)
    assert (home / "stoker.db-wal").stat().st_size
    if index == "gone":
        (home / "stoker.db-shm").unlink()
    change(home, 0o555)
    if index == "unreadable":
        (home / "stoker.db-shm").chmod(0o000)
    before = names(home)
    reader = Reader(home)
    assert reader.read().startswith('[["logged"],')
    assert reader.read().startswith('[["logged"],')
    reader.close()
    assert names(home) == before


@pytest.mark.parametrize("command", ["gc", "runs", "show run1", "logs run1", "artifacts run1"])
def test_commands_read_or_say_that_they_cannot_write(home: Path, command: str) -> None:
    change(home, 0o555)
    done = subprocess.run(
        [*unprivileged(), sys.executable, "-m", "stoker", *command.split()],
        env={**os.environ, "STOKER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if command == "gc":
        assert done.returncode == 4 and "cannot be written" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_an_older_store_is_not_migrated(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(home / "stoker.db") as connection:
        connection.execute("DELETE FROM stoker_schema WHERE version > 1")
    monkeypatch.setattr("stoker.store.database.is_read_only", lambda path: True)
    with pytest.raises(StoreError, match=r"has schema version 1, .* may only be read") as caught:
        Database(f"sqlite://{home}/stoker.db")
    assert "its owner" in caught.value.fix
