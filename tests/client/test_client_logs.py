"""Lines of steps and runs, as they are and as they come."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stoker.client import Step
from stoker.core.errors import NotFound, UsageError
from stoker.store.rows import AttemptRow


def texts(lines: Any) -> list[str]:
    return [line.text for line in lines]


def test_lines_of_the_last_attempt(book: Any) -> None:
    id = book.run()
    book.step(id, "train", attempts=2)
    book.lines(id, "train", 1, "first try")
    book.lines(id, "train", 2, "second try", "done")
    book.lines(id, "train", 2, "warning", at=103.0, stream="stderr")
    book.lines(id, "train", 0, "a hook")
    step = book.client.run(id).steps["train"]
    assert texts(step.logs()) == ["second try", "done", "warning"]
    assert texts(step.logs(1)) == ["first try"]
    assert texts(step.logs(0)) == ["a hook"]
    assert texts(step.logs(stream="stderr")) == ["warning"]
    assert texts(step.logs(tail=1)) == ["warning"]
    assert texts(step.logs(tail=1, stream="stdout")) == ["done"]
    line = next(step.logs())
    assert (line.time, line.stream) == (100.0, "stdout")


def test_a_step_that_printed_nothing(book: Any) -> None:
    id = book.run()
    book.step(id, "train", attempts=1)
    assert texts(book.client.run(id).steps["train"].logs()) == []
    assert texts(book.client.run(id).steps["train"].logs(follow=True)) == []


@pytest.mark.parametrize(
    ("arguments", "words"), [({"attempt": 3}, "no attempt 3: its last one is 2"), ({"attempt": -1}, "no attempt -1")]
)
def test_an_unknown_attempt(book: Any, arguments: dict[str, Any], words: str) -> None:
    id = book.run()
    book.step(id, "train", attempts=2)
    with pytest.raises(NotFound, match=words):
        book.client.run(id).steps["train"].logs(**arguments)


def test_wrong_questions_are_refused_at_once(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", [1])
    step = book.client.run(id).steps["train"]
    with pytest.raises(UsageError, match="no stream 'stdeer', did you mean 'stderr'"):
        step.logs(stream="stdeer")
    with pytest.raises(UsageError, match="tail=-1"):
        step.logs(tail=-1)
    with pytest.raises(UsageError, match="fan-out"):
        step.logs(follow=True)
    with pytest.raises(UsageError, match="fan-out"):
        step.logs(1)


# Ranks


@pytest.fixture
def train(book: Any) -> Any:
    """A distributed step with two attempts."""
    id = book.run()
    book.step(id, "train", attempts=2)
    book.lines(id, "train", 1, "first try", rank=9)
    book.lines(id, "train", 2, "starting")
    for rank in (0, 1, 3):
        book.lines(id, "train", 2, f"hello {rank}", at=101.0, rank=rank)
        book.lines(id, "train", 2, f"oh {rank}", at=102.0, stream="stderr", rank=rank)
    return book.client.run(id).steps["train"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"rank": 3}, ["hello 3", "oh 3"]),
        ({"rank": 3, "stream": "stderr"}, ["oh 3"]),
        ({"rank": [0, 3], "stream": "stdout"}, ["hello 0", "hello 3"]),
        ({"rank": "launcher"}, ["starting"]),
        ({"rank": {"launcher", 1}, "tail": 2}, ["hello 1", "oh 1"]),
        ({"rank": 9, "attempt": 1}, ["first try"]),
        ({"rank": 1, "follow": True, "tail": 1}, ["oh 1"]),
    ],
)
def test_lines_of_ranks(train: Step, asked: dict[str, Any], found: list[str]) -> None:
    assert texts(train.logs(**asked)) == found


def test_ranks_that_wrote(train: Step, book: Any) -> None:
    assert train.ranks == [0, 1, 3]
    assert {line.rank for line in train.logs()} == {None, 0, 1, 3}
    id = book.run()
    book.step(id, "load", attempts=1)
    book.lines(id, "load", 1, "one process")
    load = book.client.run(id).steps["load"]
    assert load.ranks == []
    assert texts(load.logs(rank="launcher")) == ["one process"]
    with pytest.raises(NotFound, match=r"attempt 1 of step 'load' has no line of rank 0, nor of any other"):
        load.logs(rank=0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rank": 2}, "attempt 2 of step 'train' has no line of rank 2: ranks 0-1, 3 wrote"),
        ({"rank": [0, 2, 5]}, "no line of ranks 2, 5: ranks 0-1, 3 wrote"),
        ({"rank": 0, "attempt": 1}, "attempt 1 of step 'train' has no line of rank 0: rank 9 wrote"),
        ({"rank": 2, "follow": True}, "no line of rank 2"),
    ],
)
def test_an_unknown_rank(train: Step, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(NotFound, match=re.escape(words)):
        train.logs(**asked)


@pytest.mark.parametrize("rank", [-1, True, "3", "laucher", 1.0, [0, None]])
def test_what_is_no_rank(train: Step, rank: Any) -> None:
    with pytest.raises(UsageError, match="is no rank"):
        train.logs(rank=rank)


def test_follow_a_rank_that_has_not_written_yet(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", started=1.0)
    book.lines(id, "train", 1, "hello 0", rank=0)

    def ends() -> None:
        book.lines(id, "train", 1, "hello 0 again", rank=0)
        book.lines(id, "train", 1, "hello 1", rank=1)
        book.step(id, "train", attempts=1)

    assert following(book.client.run(id).steps["train"], monkeypatch, ends, rank=1) == ["hello 1"]


def test_ranks_of_a_fan_out(book: Any) -> None:
    id = book.run()
    book.step(id, "train", count=2, ended=20.0)
    for index in (0, 1):
        book.step(id, f"train[{index}]", parent="train", idx=index, started=10.0 + index, attempts=1)
        for rank in (0, 1 + index):
            book.lines(id, f"train[{index}]", 1, f"{index}: {rank}", at=10.0 + index, rank=rank)
    step = book.client.run(id).steps["train"]
    assert step.ranks == [0, 1, 2]
    assert step[1].ranks == [0, 2]
    assert texts(step.logs(rank=0)) == ["0: 0", "1: 0"]
    assert texts(step.logs(rank=2)) == ["1: 2"]
    with pytest.raises(NotFound, match="step 'train' has no line of rank 3: ranks 0-2 wrote"):
        step.logs(rank=3)


# Following


def test_follow_from_another_thread(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", started=1.0)
    book.lines(id, "train", 1, "one", "two", "three")
    got: list[str] = []
    step = book.client.run(id).steps["train"]
    reader = threading.Thread(target=lambda: got.extend(texts(step.logs(follow=True, tail=2))))
    reader.start()
    book.lines(id, "train", 1, "four", at=110.0)
    book.step(id, "train", attempts=1)
    reader.join(30)
    assert got[-3:] in (["two", "three", "four"], ["three", "four"]), got
    assert got[-1] == "four"


def test_follow_what_another_process_writes(book: Any) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", started=1.0)
    program = (
        "import sys\n"
        "from stoker.core.plan import LogLine\n"
        "from stoker.store.batch import RowBatch\n"
        "from stoker.store.rows import StepRow\n"
        "from stoker.store.store import open_store\n"
        "store = open_store(home=sys.argv[1])\n"
        "for number in range(3):\n"
        "    store.logs.append(sys.argv[2], 'train', 1, [LogLine(time=number, stream='stdout', text=str(number))])\n"
        "batch = RowBatch()\n"
        "batch.step(StepRow(run_id=sys.argv[2], key='train', name='train', status='succeeded', attempts=1))\n"
        "store.records.write(batch)\n"
        "store.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, book.store.home, id]) as writer:
        assert texts(book.client.run(id).steps["train"].logs(follow=True)) == ["0", "1", "2"]
    assert writer.returncode == 0


def following(step: Step, monkeypatch: pytest.MonkeyPatch, *news: Callable[[], None], **asked: Any) -> list[str]:
    """The lines that following gives while, at each pause, the next of the news happens."""
    coming = list(news)
    store: Any = step._store
    follow = store.logs.follow

    def pause(seconds: float) -> None:
        coming.pop(0)()

    monkeypatch.setattr(store.logs, "follow", lambda *args, **options: follow(*args, **options, sleep=pause))
    try:
        got = texts(step.logs(follow=True, **asked))
    finally:
        monkeypatch.undo()
    assert not coming
    return got


def test_follow_into_the_next_attempt(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", started=1.0)
    book.lines(id, "train", 1, "one")

    def first_fails() -> None:
        book.lines(id, "train", 1, "failing")
        book.write(AttemptRow(run_id=id, key="train", number=1, status="failed", cause="user-error"))

    def second_ends() -> None:
        book.lines(id, "train", 2, "fine")
        book.step(id, "train", attempts=2)

    step = book.client.run(id).steps["train"]
    got = following(step, monkeypatch, first_fails, lambda: book.lines(id, "train", 2, "again"), second_ends)
    assert got == ["one", "failing", "again", "fine"]
    assert texts(step.logs(1, follow=True)) == ["one", "failing"]


def test_follow_ends_with_the_run(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run(status="running", token="t")
    book.step(id, "train", status="running", started=1.0)
    step = book.client.run(id).steps["train"]
    assert following(step, monkeypatch, lambda: book.store.records.set_run(id, "t", status="failed")) == []


def test_follow_ends_when_the_run_is_deleted(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", started=1.0)
    step = book.client.run(id).steps["train"]
    assert following(step, monkeypatch, lambda: book.store.records.delete_run(id)) == []


def test_follow_an_element_that_has_no_row_yet(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", count=2, started=1.0)
    book.lines(id, "train[1]", 1, "one")

    def ends() -> None:
        book.lines(id, "train[1]", 1, "two")
        book.step(id, "train[1]", parent="train", idx=1, attempts=1)

    assert following(book.client.run(id).steps["train"][1], monkeypatch, ends) == ["one", "two"]


# Many steps at once


def test_a_runs_lines_by_time(book: Any) -> None:
    id = book.run()
    book.step(id, "load", position=0, started=100.0, attempts=1)
    book.step(id, "train", position=1, started=101.0, attempts=2)
    book.step(id, "quiet", position=2, started=101.0, attempts=1)
    book.lines(id, "load", 1, "l0", "l1", "l2", at=100.5)
    book.lines(id, "train", 1, "t0", at=101.0)
    book.lines(id, "train", 2, "t1", at=102.0)
    book.lines(id, "train", 0, "hook", at=104.0)
    run = book.client.run(id)
    got = [(key, line.text) for key, line in run.logs()]
    assert got == [
        ("load", "l0"),
        ("train", "t0"),
        ("load", "l1"),
        ("train", "t1"),
        ("load", "l2"),
        ("train", "hook"),
    ]
    assert [line.text for _, line in run.logs("train")] == ["t0", "t1", "hook"]
    with pytest.raises(NotFound, match="did you mean 'train'"):
        run.logs("tain")


def test_a_fan_outs_lines(book: Any) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", count=3, started=9.0)
    for index in (0, 1):
        book.step(id, f"train[{index}]", parent="train", idx=index, started=10.0 + index, attempts=1)
        book.lines(id, f"train[{index}]", 1, f"{index}a", f"{index}b", at=10.0 + index)
    book.lines(id, "train[2]", 1, "still running", at=10.5)
    run = book.client.run(id)
    assert [key for key, _ in run.logs()] == ["train[0]", "train[2]", "train[0]", "train[1]", "train[1]"]
    assert texts(run.steps["train"].logs()) == ["0a", "still running", "0b", "1a", "1b"]
    assert texts(run.steps["train"].logs(tail=2)) == ["1a", "1b"]
    assert [key for key, _ in run.logs("train[1]")] == ["train[1]", "train[1]"]


def test_no_more_files_are_open_than_steps_ran_at_once(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = book.run()
    for number in range(50):
        book.step(id, f"s{number}", position=number, started=100.0 + 10 * number, attempts=1)
        book.lines(id, f"s{number}", 1, "begins", "ends", at=101.0 + 10 * number)
    opened = most = 0
    lines = book.store.logs.lines

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        yield from lines(*args, **options)
        opened -= 1

    monkeypatch.setattr(book.store.logs, "lines", counted)
    assert len(list(book.client.run(id).logs())) == 100
    assert (opened, most) == (0, 1)
