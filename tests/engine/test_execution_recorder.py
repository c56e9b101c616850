"""What the recorder writes when much happens between two commits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import StoreError
from stoker.core.plan import StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.engine.execution import StepExecution
from stoker.engine.recorder import Recorder
from stoker.store.batch import RowBatch
from stoker.store.rows import RunRow
from stoker.store.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store("", "", str(tmp_path / "home"))
    now = time.time()
    opened.records.create_run(RunRow(id="run", pipeline="p", created=now, started=now, token="mine"))
    yield opened
    opened.close()


STEP = StepPlan(
    key="train",
    name="train",
    source=FunctionSource(kind="module", module="m", qualname="train"),
    outputs=(),
    unpack=False,
    inputs={},
    settings=StepSettings(),
    backend="orchestrator",
    code="",
)


def recorder(store: Store) -> Recorder:
    return Recorder(store, run="run", token="mine")


def test_a_step_that_begins_and_ends_between_two_commits_has_ended(store: Store) -> None:
    recording = recorder(store)
    recording.record_pending([STEP])
    recording.flush()
    recording.record_running("train", 1, started=10.0, parent="")
    facts = {"started": 10.5, "ended": 11.0, "attempt": 1, "outputs": {}}
    execution = StepExecution(STEP, {})
    execution.cache_key = "key"
    recording.record_settled("train", STEP, "succeeded", facts, execution, parent="", index=None)
    recording.flush()
    row = store.records.step("run", "train")
    assert row is not None
    assert (row.status, row.started, row.ended, row.attempts) == ("succeeded", 10.5, 11.0, 1)


def test_a_fan_out_over_nothing_has_ended_and_is_written_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, written, write = recorder(store), [], store.records.write

    def noted(batch: RowBatch, **holder: str) -> bool:
        written.append(len(batch.steps))
        return write(batch, **holder)

    monkeypatch.setattr(store.records, "write", noted)
    recording.record_pending([STEP])
    recording.record_expansion("train", 0)
    recording.record_settled("train", STEP, "succeeded", {}, StepExecution(STEP, {}), parent="", index=None, count=0)
    recording.flush()
    row = store.records.step("run", "train")
    assert row is not None and (row.status, row.count) == ("succeeded", 0)
    assert written == [1]


@pytest.mark.parametrize("resumed", [False, True])
def test_what_elements_used_is_added_up_where_one_driver_saw_all_of_them(store: Store, resumed: bool) -> None:
    recording = recorder(store)
    if resumed:
        recording.load_earlier()
    recording.record_expansion("train", 3)
    for index, used in enumerate(({"cpu": 1.5, "peak": 7}, {"cpu": 0.5, "peak": 9}, {"cpu": None, "peak": None})):
        facts = {"attempt": 1, "usage": used}
        key, execution = f"train[{index}]", StepExecution(STEP, {})
        recording.record_settled(key, STEP, "succeeded", facts, execution, parent="train", index=index)
    recording.record_settled("train", STEP, "succeeded", {}, StepExecution(STEP, {}), parent="", index=None, count=3)
    recording.flush()
    row = store.records.step("run", "train")
    assert row is not None and row.usage == ({} if resumed else {"cpu": 2.0, "peak": 9})


def test_an_attempt_counts_as_soon_as_it_begins(store: Store) -> None:
    recording = recorder(store)
    recording.record_pending([STEP])
    recording.record_running("train", 2, started=10.0, parent="")
    recording.flush()
    row = store.records.step("run", "train")
    assert row is not None and (row.status, row.attempts) == ("running", 2)
    later = recorder(store)
    later.load_earlier()
    assert (later.earlier_attempts("train"), later.is_finished("train")) == (2, False)


def test_whoever_lost_the_run_writes_nothing(store: Store) -> None:
    recording = recorder(store)
    assert store.records.take_over("run", expected="mine", token="theirs", driver={"pid": 1})
    recording.record_pending([STEP])
    with pytest.raises(StoreError, match="taken over by another driver"):
        recording.flush()
    assert store.records.step("run", "train") is None
    # Also where there is nothing to write but lines, which no token guards.
    with pytest.raises(StoreError, match="taken over by another driver"):
        recorder(store).beat()
