"""What somebody is shown who looks on, from rows that a driver writes at different moments."""

from __future__ import annotations

import io
from typing import Any

from stoker.report.following import RunWatch
from stoker.report.terminal import Terminal
from stoker.store.batch import RowBatch
from stoker.store.rows import StepProgress


def test_a_fan_out_that_is_over_does_not_run_by_what_the_driver_said_before(book: Any) -> None:
    id = book.run(status="running", active={"train[1]": [1, 5.0]})
    book.step(id, "train", status="running", count=2, started=1.0)
    terminal = Terminal(io.StringIO())
    watch = RunWatch(book.store, book.client.run(id), terminal)
    watch.look()
    assert terminal.progress.rows["train"].status == "running"
    for index in range(2):
        book.step(id, f"train[{index}]", parent="train", idx=index, attempts=1)
    batch = RowBatch()
    batch.change(StepProgress(run_id=id, key="train", status="succeeded", started=1.0, ended=6.0, count=2))
    assert book.store.records.write(batch)
    for look in (watch, RunWatch(book.store, book.client.run(id), Terminal(io.StringIO()))):
        look.look()
        assert look._terminal.progress.rows["train"].status == "succeeded"
