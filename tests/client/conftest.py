"""Stores written row by row, as a driver would: no engine runs here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.client import Client
from stoker.core.plan import LogLine
from stoker.store import artifacts
from stoker.store.batch import RowBatch
from stoker.store.rows import AttemptRow, EventRow, OutputRow, RunRow, StepRow
from stoker.store.store import Store, open_store


class Book:
    """Writes rows into a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.client = Client(store=store)
        self.queries: list[str] = []
        self._made = 0

    def run(self, id: str = "", **fields: Any) -> str:
        """A finished run, if the fields do not say otherwise; a running one is driven by this process."""
        self._made += 1
        id = id or f"run{self._made:05d}"
        created = fields.pop("created", 1_700_000_000.0 + self._made)
        known: dict[str, Any] = {"pipeline": "training", "status": "succeeded", "started": created}
        if fields.get("status") == "running":
            known.update(driver=this_process(), heartbeat=time.time())
        else:
            known["ended"] = created + 2.5
        self.store.records.create_run(RunRow(id=id, created=created, **{**known, **fields}))
        return id

    def write(self, *rows: Any) -> None:
        """Rows of any kind."""
        batch = RowBatch()
        adding = {StepRow: batch.step, AttemptRow: batch.attempt, OutputRow: batch.output, EventRow: batch.event}
        for row in rows:
            adding[type(row)](row)
        assert self.store.records.write(batch)

    def step(self, run: str, key: str, **fields: Any) -> None:
        """A step that succeeded, if the fields do not say otherwise; `outputs` are values by name."""
        values: Mapping[str, Any] = fields.pop("outputs", {})
        known: dict[str, Any] = {"name": key.partition("[")[0], "status": "succeeded"}
        rows: list[Any] = [StepRow(run_id=run, key=key, **{**known, **fields})]
        for name, value in values.items():
            artifact = artifacts.save(value, self.store.blobs)
            rows.append(OutputRow(run_id=run, key=key, name=name, artifact=artifact))
        self.write(*rows)

    def fan_out(self, run: str, key: str, values: list[Any], **fields: Any) -> None:
        """A fan-out whose elements put out these values."""
        self.step(run, key, count=len(values), ended=20.0, **fields)
        for index, value in enumerate(values):
            self.step(
                run,
                f"{key}[{index}]",
                parent=key,
                idx=index,
                started=10.0 + index,
                ended=12.0 + index,
                usage={"cpu": 0.5, "peak": 1000 + index},
                outputs={"output": value},
            )

    def lines(
        self,
        run: str,
        key: str,
        attempt: int,
        *texts: str,
        at: float = 100.0,
        stream: str = "stdout",
        rank: int | None = None,
    ) -> None:
        """Lines of a log, a second apart."""
        lines = [LogLine(time=at + number, stream=stream, text=text, rank=rank) for number, text in enumerate(texts)]
        self.store.logs.append(run, key, attempt, lines)


def this_process() -> dict[str, Any]:
    """What a run's row says of a driver, for the process of the tests."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    """An empty store to write into; `book.queries` has every statement that is read with."""
    store = open_store(home=str(tmp_path / "store"))
    made = Book(store)
    for name in ("rows", "row"):
        read = getattr(store.records.database, name)

        def counted(statement: str, values: Any = (), read: Any = read) -> Any:
            made.queries.append(statement)
            return read(statement, values)

        monkeypatch.setattr(store.records.database, name, counted)
    yield made
    store.close()
