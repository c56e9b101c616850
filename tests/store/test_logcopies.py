"""Logs of a driver whose home nobody else sees: sent in pieces, and read elsewhere as if they were written there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.plan import LogLine
from stoker.store.logcopies import AT_ONCE, PIECE, LogCopies, LogSender
from stoker.store.records import LogPiece
from stoker.store.rows import RunRow
from stoker.store.store import Store, open_store


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """The driver's and the reader's, with one database."""
    database = f"sqlite://{tmp_path}/stoker.db"
    both = tuple(open_store(database, str(tmp_path / "artifacts"), str(tmp_path / name)) for name in ("pod", "laptop"))
    both[0].records.create_run(
        RunRow(id="r1", pipeline="p", created=1.0, token="mine", driver={}, heartbeat=time.time()), plan="{}"
    )
    yield both[0], both[1]
    for store in both:
        store.close()


def sender(store: Store, token: str = "mine") -> LogSender:
    return LogSender(store.records, store.logs.folder, run="r1", token=token)


def write(store: Store, *texts: str, key: str = "train") -> None:
    store.logs.append("r1", key, 1, [LogLine(time=1.0, stream="stdout", text=text) for text in texts])


def read(store: Store, key: str = "train") -> list[str]:
    """What a reader sees that has not looked for a while."""
    fresh = open_store(store.database_uri, store.artifact_uri, store.home)
    try:
        return [line.text for line in fresh.logs.lines("r1", key, 1)]
    finally:
        fresh.close()


def test_what_a_driver_writes_is_read_elsewhere(stores: tuple[Store, Store]) -> None:
    pod, laptop = stores
    sends = sender(pod)
    write(pod, "one", "two")
    sends.send()
    assert read(laptop) == ["one", "two"]
    write(pod, "three")
    write(pod, "x" * 10, key="other")
    sends.close()
    assert read(laptop) == ["one", "two", "three"] and read(laptop, "other") == ["x" * 10]
    assert laptop.logs.attempts("r1", "train") == [1]
    assert not (Path(pod.logs.folder) / "r1" / ".elsewhere").exists(), "the driver's own are no copies"


def test_a_log_that_is_written_again_replaces_its_copy(stores: tuple[Store, Store]) -> None:
    """An attempt that a later driver adopts is read again from its beginning, also where it is longer by then."""
    pod, laptop = stores
    sends = sender(pod)
    write(pod, "a", "b", "c")
    sends.send()
    assert read(laptop) == ["a", "b", "c"]
    pod.logs.delete_attempt("r1", "train", 1)
    write(pod, "once", "more", "and", "longer")
    sends.send()
    assert read(laptop) == ["once", "more", "and", "longer"]
    assert len(laptop.records.log_pieces("r1", after=-1, limit=9)) == 1, "what it replaces is gone"
    sends.close()


def test_a_driver_in_an_empty_home_goes_on_where_the_last_one_was(stores: tuple[Store, Store], tmp_path: Path) -> None:
    pod, laptop = stores
    sends = sender(pod)
    write(pod, "first")
    sends.close()
    other = open_store(pod.database_uri, pod.artifact_uri, str(tmp_path / "another-pod"))
    LogCopies(other.records, other.logs.folder).restore("r1")
    sends = sender(other)
    write(other, "second")
    sends.close()
    assert read(laptop) == ["first", "second"]
    assert [piece.number for piece in laptop.records.log_pieces("r1", after=-1, limit=9)] == [0, 1]
    other.close()


def test_a_driver_that_lost_its_run_sends_nothing(stores: tuple[Store, Store]) -> None:
    pod, laptop = stores
    write(pod, "mine")
    sender(pod, token="another's").close()
    assert read(laptop) == []
    piece = LogPiece(number=0, name="../../outside", place=0, size=1, data=b"")
    pod.records.add_log_pieces("r1", "mine", [piece])
    assert read(laptop) == [] and not (Path(laptop.home) / "outside").exists()
    pod.records.delete_run("r1")
    assert laptop.records.last_log_piece("r1") == -1


def test_much_is_sent_in_several_transactions(stores: tuple[Store, Store]) -> None:
    pod, laptop = stores
    path = Path(pod.logs.path("r1", "train", 1))
    path.parent.mkdir(parents=True)
    path.write_bytes((b"1.000000 o " + b"y" * 1000 + b"\n") * ((AT_ONCE + 2) * PIECE // 1000))
    sends = sender(pod)
    sends.close()
    read(laptop)
    assert Path(laptop.logs.path("r1", "train", 1)).read_bytes() == path.read_bytes()
    assert laptop.records.last_log_piece("r1") > AT_ONCE


def test_following_waits_for_what_is_on_its_way(stores: tuple[Store, Store]) -> None:
    """A step has ended, and its last line comes with the next piece."""
    pod, laptop = stores
    copies = LogCopies(laptop.records, laptop.logs.folder)
    copies.expect("r1")
    sends = sender(pod)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        write(pod, "the last line")
        sends.send()

    lines = laptop.logs.follow("r1", "train", 1, done=lambda: True, sleep=sleep)
    assert [line.text for line in lines] == ["the last line"]
    assert len(waits) == 1 and copies.lag("r1") == waits[0]
    pod.records.set_run("r1", "mine", status="succeeded")
    assert copies.lag("r1") == 0.0
    sends.close()
