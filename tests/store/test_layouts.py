"""Stores that earlier versions wrote, one of each layout that a commit ever had, are upgraded and read in full.

`layouts/versionN.sql.gz` is the dump of a database that the version with schema N wrote in a run of `training`: a list,
a fan-out over it, a blob, and a step that fails.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from stoker.cli.show import run_document, run_lines
from stoker.client import Client
from stoker.store.check import check_store
from stoker.store.database import MIGRATIONS, Database
from stoker.store.moving import copy_database, tables
from stoker.store.store import open_store

LAYOUTS = sorted(Path(__file__).with_name("layouts").iterdir())


def columns(database: Database) -> dict[str, set[str]]:
    return {name: {str(row[1]) for row in database.rows(f"PRAGMA table_info({name})")} for name in tables()}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda path: path.name.partition(".")[0])
def test_an_earlier_layout_is_upgraded_and_read(layout: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with sqlite3.connect(home / "stoker.db") as connection:
        connection.executescript(gzip.decompress(layout.read_bytes()).decode())
        (version,) = connection.execute("SELECT max(version) FROM stoker_schema").fetchone()
    connection.close()
    assert layout.name == f"version{version}.sql.gz" and version < len(MIGRATIONS)
    store = open_store(home=str(home))
    fresh = Database(f"sqlite://{tmp_path}/fresh.db")
    try:
        assert columns(store.records.database) == columns(fresh)
        assert not check_store(store).whole  # the blob is not there yet
        store.blobs.put(b"weights" * 30_000)
        assert check_store(store).whole
        run = Client(store=store).run("latest")
        assert (run.status, run.pipeline, run.parameters) == ("failed", "training", {"n": 4})
        assert (run.author, run.worktree) == ("", "")
        assert {key: step.status for key, step in run.steps.items()} == {
            "numbers": "succeeded",
            "square": "succeeded",
            "weights": "succeeded",
            "fails": "failed",
        }
        assert run.steps["numbers"].output.load() == [0, 1, 2, 3]
        assert [step.output.load() for step in run.steps["square"]] == [0, 1, 4, 9]
        assert run.steps["weights"].output.load() == b"weights" * 30_000
        assert run.steps["fails"].failure is not None
        assert "the model is no good" in "\n".join(run_lines(run, elements=True))
        assert json.loads(json.dumps(run_document(run, elements=True)))["id"] == run.id
        counts = copy_database(store.records.database, fresh, lambda name, rows: None)
        assert counts["steps"] == 8 and counts["outputs"] == 6
    finally:
        fresh.close()
        store.close()


def test_there_is_one_of_the_version_before() -> None:
    """Whoever adds a migration keeps a store of the version before it here."""
    assert f"version{len(MIGRATIONS) - 1}.sql.gz" in {path.name for path in LAYOUTS}
