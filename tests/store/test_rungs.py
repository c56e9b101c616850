"""What worked is remembered by what was asked; an older store learns the table and the column."""

from __future__ import annotations

from stoker.store.batch import RowBatch
from stoker.store.records import Records
from stoker.store.rows import AttemptRow, RungRow, RunRow


def test_the_newest_is_remembered_until_it_is_forgotten(records: Records) -> None:
    assert records.learned_changes("k") is None
    records.learn_changes(RungRow(key="k", run_id="r1", created=1.0, changes={"used": [0]}))
    newer = RungRow(key="k", run_id="r2", created=2.0, changes={"used": [0, 1], "changes": [{"what": "ü"}]})
    records.learn_changes(newer)
    records.learn_changes(RungRow(key="other", run_id="r2", created=2.0, changes={"used": []}))
    assert records.learned_changes("k") == newer
    records.forget_changes("k")
    records.forget_changes("k")
    assert records.learned_changes("k") is None and records.learned_changes("other") is not None


def test_what_a_run_taught_goes_with_it(records: Records) -> None:
    records.create_run(RunRow(id="r1", pipeline="train"))
    records.learn_changes(RungRow(key="k", run_id="r1", created=1.0))
    records.learn_changes(RungRow(key="l", run_id="r2", created=1.0))
    records.delete_run("r1")
    assert records.learned_changes("k") is None and records.learned_changes("l") is not None


def test_an_attempt_keeps_its_changes(records: Records) -> None:
    changed = AttemptRow(run_id="r", key="a", number=1, status="failed", changes=({"what": "n", "old": 4, "new": 2},))
    plain = AttemptRow(run_id="r", key="a", number=2, status="failed")
    batch = RowBatch()
    for row in (changed, plain):
        batch.attempt(row)
    assert records.write(batch)
    assert records.attempts("r", "a") == [changed, plain]
