"""A store's database that is copied into another one: every row or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from stoker.core.errors import StoreError, UsageError
from stoker.store.database import Database
from stoker.store.moving import copy_database, tables

PROGRAM = """
from typing import Annotated

from stoker import Artifact, log_metrics, pipeline, step

@step
def numbers(n: int) -> Annotated[list[int], Artifact("numbers", tags=["ä ☂"])]:
    log_metrics({"loss": 0.1 * n})
    return [n] * 100

@step
def fails() -> None:
    raise ValueError("naïve")

@pipeline(failure_mode="continue")
def named():
    numbers.map(range(20))
    fails()
"""
SLOW = """
import time
from stoker import pipeline, step

@step
def wait():
    time.sleep(600)

@pipeline
def slow():
    wait()
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> str:
    """An empty PostgreSQL database."""
    uri = request.getfixturevalue("postgres_uri")
    import psycopg

    name = f"moving_{os.getpid()}_{time.monotonic_ns()}"
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{uri.rpartition('/')[0]}/{name}"


def rows_of(uri: str) -> dict[str, list[Any]]:
    """Everything in a database, in an order of its own."""
    database = Database(uri)
    try:
        return {
            name: sorted(database.rows(f"SELECT * FROM {name}"), key=repr)  # the columns stand in one order in both
            for name in tables()
        }
    finally:
        database.close()


@pytest.mark.xdist_group("postgresql")
def test_there_and_back_again(project: Any, server: str) -> None:
    """A home's runs on a server, read there, and in a new file: the same rows, and the cache of the first is used."""
    project.write({"named.py": PROGRAM})
    project.stoker("run", "named.py", code=1)
    first = f"sqlite://{project.home}/stoker.db"
    said = project.stoker("store", "migrate", server)
    assert "and compared them" in said.stdout
    back = f"sqlite://{project.folder}/back.db"
    project.write({"stoker.toml": f'stack = "team"\n[stacks.team]\ndatabase = "{server}"\n'})
    assert json.loads(project.stoker("runs", "--json").stdout)[0]["status"] == "failed"
    assert json.loads(project.stoker("store", "migrate", back, "--json").stdout)["rows"]["runs"] == 1
    before, there, after = rows_of(first), rows_of(server), rows_of(back)
    assert before == after
    assert {name: len(rows) for name, rows in there.items()} == {name: len(rows) for name, rows in before.items()}
    assert sum(map(len, before.values())) > 60
    project.stoker("run", "named.py", code=1)
    steps = json.loads(project.stoker("show", "latest", "--json").stdout)["steps"]
    assert [step["status"] for step in steps if step["key"] == "numbers"] == ["cached"]


def test_it_is_refused_where_it_would_lose_something(project: Any, tmp_path: Path) -> None:
    project.write({"named.py": PROGRAM})
    project.stoker("run", "named.py", code=1)
    other = f"sqlite://{tmp_path}/other.db"
    project.stoker("store", "migrate", other)
    said = project.stoker("store", "migrate", other, code=2)
    assert "is not empty: it has runs" in said.stderr
    project.write({"slow.py": SLOW})
    program = [sys.executable, "-m", "stoker", "run", "slow.py"]
    environment = {**os.environ, "STOKER_HOME": str(project.home)}
    driver = subprocess.Popen(program, cwd=project.folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: [run.status for run in project.client().runs("slow")] == ["running"])
        said = project.stoker("store", "migrate", f"sqlite://{tmp_path}/third.db", code=2)
        assert "would go on in the old database" in said.stderr
    finally:
        driver.terminate()
        driver.wait()


@pytest.mark.xdist_group("postgresql")
def test_a_row_that_a_server_does_not_keep_is_said(tmp_path: Path, server: str) -> None:
    """PostgreSQL has no text with NUL: nothing is copied, rather than something else."""
    source, target = Database(f"sqlite://{tmp_path}/a.db"), Database(server)
    source.change("INSERT INTO plans (run_id, plan) VALUES ('a', ?)", ("nul: \0",))
    with pytest.raises(StoreError, match="a row of plans cannot be kept"):
        copy_database(source, target, lambda name, rows: None)
    assert not any(target.rows(f"SELECT 1 FROM {name}") for name in tables())
    source.change("UPDATE plans SET plan = 'whole'")
    assert copy_database(source, target, lambda name, rows: None)["plans"] == 1
    with pytest.raises(UsageError, match="is not empty: it has plans"):
        copy_database(source, target, lambda name, rows: None)
    source.close()
    target.close()


def test_a_copy_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    source = Database(f"sqlite://{tmp_path}/a.db")
    with source.transaction() as cursor:
        cursor.executemany("INSERT INTO plans VALUES (?, ?)", [(str(number), "x" * 100) for number in range(20_000)])
    source.close()
    code = (
        "import os, signal; from stoker.store.database import Database; from stoker.store.moving import copy_database\n"
        f"source, target = Database('sqlite://{tmp_path}/a.db'), Database('sqlite://{tmp_path}/b.db')\n"
        "copy_database(source, target, lambda name, rows: name == 'plans' and os.kill(os.getpid(), signal.SIGKILL))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    source, target = Database(f"sqlite://{tmp_path}/a.db"), Database(f"sqlite://{tmp_path}/b.db")
    assert not any(target.rows(f"SELECT 1 FROM {name}") for name in tables())
    assert copy_database(source, target, lambda name, rows: None)["plans"] == 20_000
    source.close()
    target.close()
