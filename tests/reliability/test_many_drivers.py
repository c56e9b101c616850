"""Many drivers, readers and a sweeper at once on one SQLite store: nobody waits in vain, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stoker.client import Client
from stoker.store import check
from stoker.store.database import MIGRATIONS
from stoker.store.store import Store

DRIVERS = 4
WIDTH = 20
SHARED = 6

FLOW = f"""
import sys
from stoker import pipeline, step

WIDTH, SHARED = {WIDTH}, {SHARED}

@step
def shared(number: int) -> bytes:
    return bytes([number]) * 20_000

@step
def parts(blocks: list[bytes], who: int) -> list[int]:
    assert all(block == bytes([number]) * 20_000 for number, block in enumerate(blocks))
    return [who * 1000 + index for index in range(WIDTH)]

@step
def element(number: int) -> list[int]:
    print("element", number)
    return [number] * (4000 if number % 10 == 0 else 1)

@step
def total(elements: list[list[int]]) -> int:
    return sum(part[0] for part in elements)

@pipeline
def busy(who: int):
    total(element.map(parts([shared(number) for number in range(SHARED)], who)))

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    busy(int(sys.argv[1]))
"""


def block(number: int) -> bytes:
    """What a shared step returns."""
    return bytes([number]) * 20_000


def expected(who: int) -> int:
    """What the last step of a driver's run returns."""
    return sum(who * 1000 + index for index in range(WIDTH))


class Drivers:
    """Processes that begin at the same moment."""

    def __init__(self, folder: Path, environment: dict[str, str], numbers: range) -> None:
        (folder / "flow.py").write_text(FLOW)
        self.outputs = {number: folder / f"output-{number}" for number in numbers}
        self.processes = {}
        for number, path in self.outputs.items():
            with open(path, "w") as output:
                self.processes[number] = subprocess.Popen(
                    [sys.executable, "flow.py", str(number)],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                )
        for process in self.processes.values():
            assert process.stdout is not None and process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        """Let them go."""
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def ended(self) -> dict[int, tuple[int, str]]:
        """Exit codes and what was printed, once all are over."""
        found = {}
        for number, process in self.processes.items():
            process.communicate()
            found[number] = (process.returncode, self.outputs[number].read_text())
        return found


def aged(store: Store, data: bytes) -> str:
    """Put a blob that nobody has looked at for a day."""
    digest = store.blobs.put(data)
    yesterday = time.time() - 86400
    os.utime(store.blobs.path(digest), (yesterday, yesterday))
    return digest


def again(work: Callable[[], None], over: threading.Event) -> Callable[[], int]:
    """Something that is done over and over until all is over; how often."""

    def loop() -> int:
        count = 0
        while not over.is_set():
            work()
            count += 1
        return count

    return loop


def listing(store: Store) -> Callable[[], None]:
    """A reader as a notebook is one: lists runs, looks into their steps, and loads what is there."""

    def look() -> None:
        for run in Client(store=store).runs(limit=20):
            if run.status != "running":  # or it was when it was read, and its driver has ended since
                assert run.refresh().status == "succeeded"
            for step in run.steps.values():
                if step.status == "succeeded" and step.key == "total":
                    assert step.output.load() == expected(run.parameters["who"])

    return look


@pytest.mark.slow
def test_many_drivers(
    tmp_path: Path,
    mark: Callable[[str], Any],
    opened: Callable[[Path], Store],
    wrong_in: Callable[[Path], list[str]],
) -> None:
    home = tmp_path / "home"
    environment = {**mark("drivers").environment, "STOKER_HOME": str(home)}
    # A run of yesterday, whose blobs are old, and of whose cached results some are used today; rubbish of yesterday;
    # and rubbish with the very bytes that steps return today: a sweep must not take it from under them.
    before = Drivers(tmp_path, environment, range(90, 91))
    before.begin()
    assert before.ended()[90][0] == 0
    store = opened(home)
    store.records.forget([row[0] for row in store.records.database.rows("SELECT key FROM cache LIMIT 12")])
    yesterday = time.time() - 86400
    needed = set(store.blobs.digests())
    for digest in needed:
        os.utime(store.blobs.path(digest), (yesterday, yesterday))
    rubbish = {aged(store, b"rubbish" * 100 + bytes([number])) for number in range(100)}
    made_today = {
        aged(store, json.dumps([number] * 4000, separators=(",", ":")).encode())
        for who in range(DRIVERS)
        for number in range(who * 1000, who * 1000 + WIDTH, 10)
    }

    drivers = Drivers(tmp_path, environment, range(DRIVERS))
    over = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        drivers.begin()
        readers = [threads.submit(again(listing(opened(home)), over)) for _ in range(2)]
        swept = threads.submit(again(lambda: check.sweep(store) and None, over))
        ended = drivers.ended()
        over.set()
        assert all(reader.result() > 0 for reader in readers)
        assert swept.result() > 0

    for number, (code, told) in ended.items():
        assert code == 0, f"driver {number}\n{told}"
        assert "locked" not in told
    there = set(store.blobs.digests())
    assert not rubbish & there
    assert needed | made_today <= there
    check_runs(store)
    assert not wrong_in(home)
    again_all_cached(tmp_path, environment, store)


def check_runs(store: Store) -> None:
    """Every run is whole, and what several made is there once."""
    runs = Client(store=store).runs(limit=None)
    assert len(runs) == DRIVERS + 1
    digests: dict[int, set[str]] = {number: set() for number in range(SHARED)}
    for run in runs:
        who = run.parameters["who"]
        assert run.status == "succeeded" and not run.error
        assert run.steps["total"].output.load() == expected(who)
        elements = list(run.steps["element"])
        assert [step.index for step in elements] == list(range(WIDTH))
        assert {step.status for step in elements} == {"succeeded"} or who == 90
        assert [step.output.load()[0] for step in elements] == [who * 1000 + index for index in range(WIDTH)]
        assert len(run.steps) == SHARED + 3
        for number in range(SHARED):
            step = run.steps[f"shared_{number + 1}" if number else "shared"]
            assert step.status in ("succeeded", "cached")
            digests[number].add(step.output.digest)
    for number, found in digests.items():
        assert found == {hashlib.sha256(block(number)).hexdigest()}


def again_all_cached(folder: Path, environment: dict[str, str], store: Store) -> None:
    """The same runs once more find every result of the first ones."""
    drivers = Drivers(folder, environment, range(2))
    drivers.begin()
    assert [code for code, _ in drivers.ended().values()] == [0, 0]
    for run in Client(store=store).runs(limit=2):
        statuses = {step.status for step in [*run.steps.values(), *run.steps["element"]]}
        assert statuses == {"cached"}


@pytest.mark.long
def test_drivers_that_make_the_store_together(
    tmp_path: Path, mark: Callable[[str], Any], opened: Callable[[Path], Store], wrong_in: Callable[[Path], list[str]]
) -> None:
    """Nothing is there when they begin: the schema is made once, and equal blobs are stored once."""
    home = tmp_path / "home"
    drivers = Drivers(tmp_path, {**mark("drivers").environment, "STOKER_HOME": str(home)}, range(DRIVERS))
    drivers.begin()
    for number, (code, told) in drivers.ended().items():
        assert code == 0, f"driver {number}\n{told}"
    store = opened(home)
    versions = store.records.database.rows("SELECT version FROM stoker_schema")
    assert versions == [(version,) for version in range(1, len(MIGRATIONS) + 1)]
    assert {run.parameters["who"] for run in Client(store=store).runs()} == set(range(DRIVERS))
    assert {hashlib.sha256(block(number)).hexdigest() for number in range(SHARED)} <= set(store.blobs.digests())
    assert not list((home / "artifacts" / "tmp").iterdir()), "what was there already was written beside, and left"
    assert not wrong_in(home)
