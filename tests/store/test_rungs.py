"""What worked is remembered by what was asked; an older store learns the table and the column."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stoker.store import schema
from stoker.store.database import Database
from stoker.store.records import Batch, Records
from stoker.store.rows import AttemptRow, RungRow, RunRow
from stoker.store.rungs import Rungs


def test_the_newest_is_remembered_until_it_is_forgotten(database: Database) -> None:
    rungs = Rungs(database)
    assert rungs.found("k") is None
    rungs.learn(RungRow(key="k", run_id="r1", created=1.0, changes={"used": [0]}))
    newer = RungRow(key="k", run_id="r2", created=2.0, changes={"used": [0, 1], "changes": [{"what": "ü"}]})
    rungs.learn(newer)
    rungs.learn(RungRow(key="other", run_id="r2", created=2.0, changes={"used": []}))
    assert rungs.found("k") == newer
    rungs.forget("k")
    rungs.forget("k")
    assert rungs.found("k") is None and rungs.found("other") is not None


def test_what_a_run_taught_goes_with_it(records: Records) -> None:
    rungs = Rungs(records.database)
    records.create_run(RunRow(id="r1", pipeline="train"))
    rungs.learn(RungRow(key="k", run_id="r1", created=1.0))
    rungs.learn(RungRow(key="l", run_id="r2", created=1.0))
    records.delete_run("r1")
    assert rungs.found("k") is None and rungs.found("l") is not None


def test_an_attempt_keeps_its_changes(records: Records) -> None:
    changed = AttemptRow(run_id="r", key="a", number=1, status="failed", changes=({"what": "n", "old": 4, "new": 2},))
    plain = AttemptRow(run_id="r", key="a", number=2, status="failed")
    batch = Batch()
    for row in (changed, plain):
        batch.attempt(row)
    assert records.write(batch)
    assert records.attempts("r", "a") == [changed, plain]


def test_attempts_of_an_older_store_changed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite://{tmp_path}/stoker.db"
    with monkeypatch.context() as patch:
        patch.setattr("stoker.store.database.MIGRATIONS", schema.MIGRATIONS[:1])
        Database(uri).close()
    old = sqlite3.connect(tmp_path / "stoker.db")
    values = ("r", "a", 1, "failed", "local", "", 1.0, 2.0, "gpu-oom", "full", "", None, "")
    old.execute(f"INSERT INTO attempts VALUES ({', '.join('?' * len(values))})", values)
    old.commit()
    old.close()
    database = Database(uri)
    (row,) = Records(database).attempts("r", "a")
    assert (row.cause, row.changes) == ("gpu-oom", ())
    assert Rungs(database).found("k") is None
    database.close()
