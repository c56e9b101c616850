"""Lines of logs as a page shows them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.plan import LogLine
from stoker.report import markup
from stoker.store.batch import RowBatch
from stoker.store.rows import RunRow, StepRow
from stoker.store.store import Store, open_store
from stoker.ui import streams
from stoker.ui.streams import MOST_LINES, Streams, row_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("\x1b[31mred\x1b[0m no", '<span class="ansi-red">red</span> no'),
        ("\x1b[1;32mgood", '<span class="ansi-green bold">good</span>'),
        ("\x1b[38;5;196mmany\x1b[39m", "many"),
        ("\x1b[38;2;1;2;3m<b>\x1b[m", "&lt;b&gt;"),
        ("\x1b[2K\x1b[1Aup", "up"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07 \u202egnp.exe", "bell\ufffd \ufffdgnp.exe"),
        ("\x1b[31", "[31"),
    ],
)
def test_escape_sequences_become_looks_or_nothing(text: str, expected: str) -> None:
    assert markup.line(text).markup == expected


def test_a_search_sees_no_escape_sequences() -> None:
    assert markup.plain("\x1b[1mlo\x1b[0mss") == "loss"


def test_a_long_line_is_cut() -> None:
    shown = markup.line("x" * 10_000).markup
    assert len(shown) < 5000
    assert "6,000 more characters" in shown


def test_a_row_has_number_time_and_rank() -> None:
    markup = row_of(LogLine(time=1.0, stream="stderr", text="<script>", rank=3), number=7).markup
    assert 'id="L7"' in markup and "r3" in markup and "stderr" in markup
    assert "<script>" not in markup


# Streams


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store(home=str(tmp_path / "home"))
    opened.records.create_run(RunRow(id="r", pipeline="p", status="succeeded", created=1.0, driver={}))
    set_step(opened, "running")
    yield opened
    opened.close()


def set_step(store: Store, status: Any) -> None:
    batch = RowBatch()
    batch.step(StepRow(run_id="r", key="k", name="k", status=status, started=1.0, attempts=1))
    store.records.write(batch)


def write(store: Store, first: int, number: int) -> None:
    lines = [LogLine(time=1.0, stream="stdout", text=f"line {n}") for n in range(first, first + number)]
    store.logs.append("r", "k", 1, lines)


async def collect(store: Store, viewers: int, offset: int = 0) -> list[list[bytes]]:
    """What each of some viewers gets until the step's end."""
    shared = Streams()

    async def view() -> list[bytes]:
        return [data async for data in shared.follow(store, ("r", "k", 1, None), offset)]

    return await asyncio.gather(*(view() for _ in range(viewers)))


def counts(events: list[bytes]) -> int:
    """Lines that a browser counts."""
    documents = [json.loads(event.split(b"data: ", 1)[1]) for event in events if b"event: lines" in event]
    return sum(document["lines"] + document["left_out"] for document in documents)


def test_every_viewer_gets_every_line_once_and_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "INTERVAL", 0.0)
    write(store, 0, 10)
    set_step(store, "succeeded")
    for events in asyncio.run(collect(store, viewers=5)):
        assert counts(events) == 10
        assert events[-1].startswith(b"event: end")
    text = b"".join(asyncio.run(collect(store, viewers=1))[0]).decode()
    assert [f"line {n}<" in text for n in range(10)] == [True] * 10


def test_viewers_that_begin_at_different_places_miss_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "INTERVAL", 0.0)
    write(store, 0, 4)
    offset = store.logs.last("r", "k", 1, 10)[1]
    write(store, 4, 6)
    set_step(store, "succeeded")

    async def both() -> list[list[bytes]]:
        shared, place = Streams(), ("r", "k", 1, None)

        async def view(start: int) -> list[bytes]:
            return [data async for data in shared.follow(store, place, start)]

        return await asyncio.gather(view(0), view(offset), view(0))

    first, second, third = asyncio.run(both())
    assert (counts(first), counts(second), counts(third)) == (10, 6, 10)


def test_browsers_that_come_together_have_the_log_read_once_and_too_many_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "INTERVAL", 0.0)
    write(store, 0, 10)
    offset = store.logs.last("r", "k", 1, 5)[1]
    write(store, 10, 10)
    looks = []
    read = store.logs.read
    monkeypatch.setattr(store.logs, "read", lambda *a, **given: looks.append(a[3]) or read(*a, **given))

    async def many() -> list[bytes]:
        shared, place = Streams(most=21), ("r", "k", 1, None)
        first = shared.follow(store, place, offset)  # reads on from there; the others lack what was before
        assert counts([await anext(first)]) == 10
        others = [shared.follow(store, place, 0) for _ in range(20)]
        news = await asyncio.gather(*(anext(one) for one in others))
        with pytest.raises(streams.TooManyFollow, match="21 browsers"):
            shared.check()
        await others[0].aclose()
        shared.check()  # a place is free again
        for one in (first, *others):
            await one.aclose()
        return news

    assert {counts([event]) for event in asyncio.run(many())} == {20}
    assert looks.count(0) == 1


def test_a_log_that_cannot_be_read_now_is_read_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "INTERVAL", 0.0)
    monkeypatch.setattr(streams, "_AGAIN", 0.0)
    write(store, 0, 10)
    set_step(store, "succeeded")
    failures = [OSError(24, "Too many open files"), OSError(24, "Too many open files")]
    read = store.logs.read

    def failing(*values: Any, **given: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*values, **given)

    monkeypatch.setattr(store.logs, "read", failing)
    assert [counts(events) for events in asyncio.run(collect(store, viewers=2))] == [10, 10]


def test_of_very_many_lines_the_last_are_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "INTERVAL", 0.0)
    write(store, 0, 50_000)
    set_step(store, "succeeded")
    (events,) = asyncio.run(collect(store, viewers=1))
    assert counts(events) == 50_000
    assert max(map(len, events)) < 400 * MOST_LINES
    assert b"line 49999<" in b"".join(events)


def test_the_end_of_a_long_log_is_read_from_its_end(store: Store) -> None:
    write(store, 0, 30_000)
    lines, offset = store.logs.last("r", "k", 1, 1000)
    assert [lines[0].text, lines[-1].text] == ["line 29000", "line 29999"]
    assert store.logs.count("r", "k", 1, offset) == 30_000
    assert store.logs.read("r", "k", 1, offset) == ([], offset)
    assert store.logs.last("r", "k", 2, 10) == ([], 0)
    store.logs.append("r", "k", 1, [LogLine(time=1.0, stream="stdout", text="of one rank", rank=5)])
    write(store, 30_000, 20_000)
    (line,), offset = store.logs.last("r", "k", 1, 1000, rank=5)
    assert line.text == "of one rank"
    assert store.logs.count("r", "k", 1, offset, rank=5) == 1
