"""The last lines of an attempt, which are asked why it failed: of all, or first of the rank that failed first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.plan import LogLine
from stoker.engine.recorder import Recorder
from stoker.store.rows import RunRow
from stoker.store.store import open_store


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    store = open_store("", "", str(tmp_path / "home"))
    now = time.time()
    store.records.create_run(RunRow(id="run", pipeline="p", created=now, started=now, token="mine"))
    yield Recorder(store, run="run", token="mine")
    store.close()


def test_the_tail_of_a_rank_is_not_drowned_by_the_others(recorder: Recorder) -> None:
    complaint = LogLine(time=1.0, stream="stderr", text="CUDA error", rank=1)
    noise = [LogLine(time=2.0, stream="stdout", text=f"line {number}", rank=number % 4) for number in range(1000)]
    recorder.append_log("train", 1, [complaint, *(line for line in noise if line.rank != 1)])
    assert recorder.tail("train", 1, rank=1) == ["CUDA error"]
    assert recorder.tail("train", 1, 0)[-1] == "line 996"
    everybody = recorder.tail("train", 1)
    assert len(everybody) == 160
    assert "CUDA error" not in everybody
    assert everybody[-1] == "line 999"


def test_of_a_rank_that_said_nothing_all_are_asked(recorder: Recorder) -> None:
    recorder.append_log("train", 1, [LogLine(time=1.0, stream="stderr", text="exitcode: -9")])
    assert recorder.tail("train", 1, rank=2) == ["exitcode: -9"]
    assert recorder.tail("quiet", 1, rank=2) == []
