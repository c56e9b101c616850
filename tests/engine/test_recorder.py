"""What is recorded of steps, what observers are told of them later, and how long an attempt waited in its place."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Mapping, Sequence, cast

import pytest
from tests.steps import planned_step

from stoker.core.observer import DeferredObserver
from stoker.core.plan import LogLine, Plan
from stoker.engine.accounts import Accounts, _placement
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


STEP = planned_step()


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


def test_the_tail_of_a_rank_is_not_drowned_by_the_others(store: Store) -> None:
    recording = recorder(store)
    complaint = LogLine(time=1.0, stream="stderr", text="CUDA error", rank=1)
    noise = [LogLine(time=2.0, stream="stdout", text=f"line {number}", rank=number % 4) for number in range(1000)]
    recording.append_log("train", 1, [complaint, *(line for line in noise if line.rank != 1)])
    assert recording.tail("train", 1, rank=1) == ["CUDA error"]
    assert recording.tail("train", 1, 0)[-1] == "line 996"
    everybody = recording.tail("train", 1)
    assert len(everybody) == 160
    assert "CUDA error" not in everybody
    assert everybody[-1] == "line 999"


def test_of_a_rank_that_said_nothing_all_are_asked(store: Store) -> None:
    recording = recorder(store)
    recording.append_log("train", 1, [LogLine(time=1.0, stream="stderr", text="exitcode: -9")])
    assert recording.tail("train", 1, rank=2) == ["exitcode: -9"]
    assert recording.tail("quiet", 1, rank=2) == []


SENT = {"state": "sent", "time": 100.0, "job": "job 12"}
RUNS = {"state": "running", "time": 101.0, "node": "n1"}
AGAIN = {"state": "running", "time": 117.0, "node": "n2"}


@pytest.mark.parametrize(
    ("told", "waited", "node"),
    [
        ([SENT, 100.5], None, None),
        ([SENT, 100.5, RUNS], 1.0, "n1"),
        ([SENT, RUNS, 111.0, 112.0, AGAIN], 1.0 + 6.0, "n2"),
    ],
    ids=["it waits", "it ran", "it was started again"],
)
def test_what_an_attempt_ran_before_it_was_started_again_is_no_part_of_its_wait(
    told: list[Any], waited: float | None, node: str | None
) -> None:
    """Moments are those in which it was said to wait."""
    accounts = Accounts(cast(Any, None), cast(Any, None))
    execution = StepExecution(cast(Any, None), {})
    for news in told:
        if isinstance(news, float):
            accounts.note_wait(execution, news)
        else:
            accounts.note_place(execution, news)
    fields = _placement(execution.facts)
    assert (fields["queue_seconds"], fields["placement"].get("node")) == (waited, node)


class Seen:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def began(self, run: str, plan: Plan) -> None:
        self.calls.append(("began", run))

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        self.calls.append(("changed", key, status, dict(facts)))

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        self.calls.append(("wrote", key, attempt, *lines))

    def logged(self, key: str, attempt: int, rows: Sequence[Sequence[Any]]) -> None:
        self.calls.append(("logged", key, attempt, *rows))

    def message(self, text: str) -> None:
        self.calls.append(("message", text))

    def tick(self) -> None:
        self.calls.append(("tick",))

    def ended(self, status: str) -> None:
        self.calls.append(("ended", status))


def test_all_is_told_in_its_order() -> None:
    seen = Seen()
    deferred = DeferredObserver(seen)
    deferred.began("r", Plan(pipeline="p", source="", steps=(), parameters={}, failure_mode="fail_fast", stack=""))
    deferred.changed("a", "running", {"attempt": 1})
    deferred.wrote("a", 1, [LogLine(time=1.0, stream="stdout", text="x")])
    deferred.logged("a", 1, [["loss", 0, 0.5]])
    deferred.message("m")
    deferred.tick()
    deferred.ended("succeeded")
    assert seen.calls == []
    deferred.deliver()
    assert [call[0] for call in seen.calls] == ["began", "changed", "wrote", "logged", "message", "tick", "ended"]
    assert seen.calls[1] == ("changed", "a", "running", {"attempt": 1})
    deferred.deliver()
    assert len(seen.calls) == 7


def test_of_many_the_first_are_told_before_the_last_is_known() -> None:
    seen = Seen()
    deferred = DeferredObserver(seen)
    for number in range(250):
        deferred.message(str(number))
    assert [call[1] for call in seen.calls] == [str(number) for number in range(200)]


def test_what_is_told_meanwhile_comes_behind() -> None:
    """An observer may call back into the run, which tells it something."""
    seen = Seen()
    deferred = DeferredObserver(seen)
    tick = seen.tick

    def ticked() -> None:
        tick()
        deferred.message("after")

    seen.tick = ticked  # type: ignore[method-assign]
    deferred.tick()
    deferred.message("between")
    deferred.deliver()
    assert [call[-1] for call in seen.calls] == ["tick", "between", "after"]
