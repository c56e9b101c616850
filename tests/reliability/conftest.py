"""What the reliability tests share: finding every process that a test started, and checking a whole store."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stoker.store.blobs import Blobs
from stoker.store.store import Store, open_store

PATIENCE = 60.0
"""Seconds until something that must happen soon counts as never happening, on the slowest of machines."""


class Mark:
    """A variable in the environment of a process and of all that it starts, by which they are found again."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.environment = {**os.environ, "RELIABILITY_MARK": value}

    def processes(self) -> list[psutil.Process]:
        """Those that live; zombies do not."""
        wanted = f"RELIABILITY_MARK={self.value}".encode()
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(psutil.Process(int(name)))
            except (OSError, psutil.NoSuchProcess):
                continue
        return found

    def gone(self) -> list[str]:
        """Wait until none lives; the command lines of those that do not go."""
        deadline = time.monotonic() + PATIENCE
        while found := self.processes():
            if time.monotonic() > deadline:
                return [f"{process.pid}: {' '.join(process.cmdline())}" for process in found]
            time.sleep(0.01)
        return []


@pytest.fixture
def mark() -> Iterator[Callable[[str], Mark]]:
    """Makes marks; whatever still bears one when the test is over is ended."""
    if not os.path.isdir("/proc/self"):
        pytest.skip("other processes' environments are only readable on Linux")
    made: list[Mark] = []

    def new(name: str) -> Mark:
        made.append(Mark(f"{os.getpid()}-{time.monotonic_ns()}-{name}"))
        return made[-1]

    yield new
    for one in made:
        for process in one.processes():
            process.kill()


def check_store(home: Path) -> list[str]:
    """What is wrong with a store: its database's pages, its rows' values, its blobs' bytes."""
    wrong: list[str] = []
    connection = sqlite3.connect(home / "stoker.db")
    try:
        answer = connection.execute("PRAGMA integrity_check").fetchall()
        if answer != [("ok",)]:
            wrong.append(f"integrity_check: {answer}")
        outputs = connection.execute("SELECT run_id, key, name, digest, size, inline FROM outputs").fetchall()
    finally:
        connection.close()
    blobs = Blobs(str(home / "artifacts"))
    for digest in blobs.digests():
        if hashlib.sha256(Path(blobs.path(digest)).read_bytes()).hexdigest() != digest:
            wrong.append(f"the blob {digest} has other bytes")
    for run, key, name, digest, size, inline in outputs:
        if inline is None:
            if not blobs.exists(digest) or blobs.size(digest) != size:
                wrong.append(f"{run}/{key}/{name}: its blob {digest} is missing, or not of {size} bytes")
        elif hashlib.sha256(inline).hexdigest() != digest or len(inline) != size:
            wrong.append(f"{run}/{key}/{name}: its row's bytes are not those of {digest}")
    return wrong


@pytest.fixture
def wrong_in() -> Callable[[Path], list[str]]:
    """`check_store`, as a fixture."""
    return check_store


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Store]]:
    """Opens stores by their home, and closes them."""
    stores: list[Store] = []

    def store(home: Path) -> Store:
        stores.append(open_store(home=str(home)))
        return stores[-1]

    yield store
    for one in stores:
        one.close()
