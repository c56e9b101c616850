"""Runs go on while their PostgreSQL server is away: a sample of `make storm-database`, and a driver that dies then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.reliability import database_storm
from tests.servers import postgres
from tests.waiting import until

from stoker.client import Client
from stoker.core.errors import DatabaseUnreachable
from stoker.store import database
from stoker.store.database import Database
from stoker.store.store import open_store

pytestmark = pytest.mark.xdist_group("postgresql-restarts")
PATIENCE = 120.0


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of PostgreSQL's programs."""
    folder = postgres.binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    return folder


@pytest.mark.slow
def test_no_driver_is_lost(tmp_path: Path, programs: Path, long_form: bool) -> None:
    """A server that hangs is subject of `tests/store/test_writer.py`, too."""
    outages, seconds = (["immediate", "frozen-7s"], 8.0) if long_form else (["immediate"], 3.0)
    result = database_storm.storm(
        tmp_path, programs, seed=1, drivers=2, outages=outages, at_once=2, seconds=seconds, links=6
    )
    assert not result.problems, "\n".join(result.problems)
    assert list(result.outages) == outages
    assert result.seen, "no driver saw the database away"


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("promoted", marks=pytest.mark.long), "demoted"])
def test_a_replica_takes_the_place_of_the_server(how: str, tmp_path: Path, programs: Path) -> None:
    """The address names both; a driver that is killed besides is resumed at whichever takes writes."""
    result = database_storm.storm(
        tmp_path, programs, seed=1, drivers=2, outages=[how], at_once=2, seconds=4.0, links=6, kills=1
    )
    assert not result.problems, "\n".join(result.problems)
    assert (list(result.outages), result.seen, result.killed) == ([how], 2, 1)


def test_a_server_that_is_full_is_asked_again(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = postgres.Server(programs, connections=4)
    server.start()
    try:
        opened = [Database(server.uri) for _ in range(4)]
        with monkeypatch.context() as patch:
            patch.setattr(database, "BUSY_SECONDS", 0.0)
            with pytest.raises(DatabaseUnreachable, match="no connection left") as caught:
                Database(server.uri)
        assert "max_connections" in caught.value.fix
        with ThreadPoolExecutor(1) as thread:
            fifth = thread.submit(Database, server.uri)
            assert not fifth.done()  # before a connection is free
            opened.pop().close()
            opened.append(fifth.result(PATIENCE))
        for each in opened:
            each.close()
    finally:
        server.kill()


FLOW = """
import os, time
from stoker import pipeline, step

def note(name):
    with open(name + ".lines", "a") as file:
        file.write("executed\\n")

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)

@step
def begins() -> int:
    note("begins")
    wait_for("server-is-away")
    return 1

@step(cache=False)
def follows(number: int) -> int:
    note("follows")
    return number + 1

@step(cache=False)
def hangs(number: int) -> int:
    note("hangs")
    wait_for("server-is-back")
    return number + 1

@pipeline
def chain():
    hangs(follows(begins()))

if __name__ == "__main__":
    chain()
"""


@pytest.fixture
def server(programs: Path) -> Iterator[postgres.Server]:
    """A server of the test's own."""
    started = postgres.Server(programs)
    started.start()
    yield started
    started.kill()


def lines(folder: Path, name: str) -> int:
    """How often a step was executed."""
    file = folder / f"{name}.lines"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_driver_killed_while_the_database_is_away(
    tmp_path: Path, server: postgres.Server, mark: Callable[[str], Any]
) -> None:
    home = tmp_path / "home"
    environment = {**mark("driver").environment, "STOKER_HOME": str(home)}
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "stoker.toml").write_text(f'stack = "s"\n[stacks.s]\ndatabase = "{server.uri}"\n')

    def start(*words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    driver = start("flow.py")
    until(lambda: lines(tmp_path, "begins") == 1)
    server.stop("immediate")
    # A command that finds no server says so at once.
    refused = start("-m", "stoker", "runs")
    printed, _ = refused.communicate(timeout=PATIENCE)
    assert refused.returncode == 4 and "the database server does not answer" in printed
    (tmp_path / "server-is-away").touch()
    # The step behind it starts on what is in the journal alone.
    until(lambda: lines(tmp_path, "hangs") == 1)
    driver.kill()
    printed, _ = driver.communicate(timeout=PATIENCE)
    journals = list((home / "journals").iterdir())
    assert len(journals) == 1 and str(journals[0]) in printed and "is away" in printed

    server.start()
    (tmp_path / "server-is-back").touch()
    store = open_store(server.uri, "", str(home))
    (run,) = Client(store=store).runs()
    statuses = {key: step.status for key, step in run.steps.items()}
    assert statuses["begins"] == "interrupted"  # only the journal knows that it returned
    resumed = start("-m", "stoker", "resume", run.id)
    printed, _ = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, printed
    run = Client(store=store).run(run.id)
    assert {step.status for step in run.steps.values()} == {"succeeded"} and run.steps["hangs"].load() == 3
    assert [lines(tmp_path, name) for name in ("begins", "follows", "hangs")] == [1, 1, 2]
    assert not list((home / "journals").iterdir())
    assert os.path.isdir(home / "journals")
    store.close()


def test_patience_is_a_setting(tmp_path: Path, server: postgres.Server, mark: Callable[[str], Any]) -> None:
    """A run ends with exit code 4 when its patience is over, and goes on when the server is back."""
    environment = {**mark("driver").environment, "STOKER_HOME": str(tmp_path / "home"), "STOKER_RECONNECT": "1s"}
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "stoker.toml").write_text(f'stack = "s"\n[stacks.s]\ndatabase = "{server.uri}"\nreconnect = "1h"\n')
    driver = subprocess.Popen(
        [sys.executable, "flow.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    until(lambda: lines(tmp_path, "begins") == 1)
    server.stop("fast")
    printed, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 4, printed
    assert b"it has been away for 1s" in printed and b"stoker resume" in printed
    server.start()
    for name in ("server-is-away", "server-is-back"):
        (tmp_path / name).touch()
    store = open_store(server.uri, "", str(tmp_path / "home"))
    (run,) = Client(store=store).runs()
    subprocess.run([sys.executable, "-m", "stoker", "resume", run.id], cwd=tmp_path, env=environment, check=True)
    assert run.refresh().status == "succeeded"
    store.close()
