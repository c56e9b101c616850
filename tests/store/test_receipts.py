"""Receipts as rows: they come back as they were written, belong to who holds the run, and go with it."""

from __future__ import annotations

import math
import zlib
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.receipt import Receipt, Track, Use
from stoker.store import receipts
from stoker.store.batch import RowBatch
from stoker.store.receipts import ReceiptRow
from stoker.store.records import Records
from stoker.store.rows import RunRow, StepRow

USE = Use(
    uuid="GPU-1",
    kind="nvidia",
    index=0,
    model="H100-80GB",
    memory=85_899_345_920,
    samples=60,
    utilization_mean=87.5,
    utilization_peak=100.0,
    first_use=3.0,
    memory_peak=70_000_000_000,
    energy=41_234.5,
    throttled={"power cap": 0.25},
)
RECEIPT = Receipt(
    verdict="used",
    evidence=("GPU 0 computed in 58 of 60 samples",),
    asked="2 × H100-80GB",
    started=1_700_000_000.25,
    seconds=60.0,
    devices=(USE, attrs.evolve(USE, uuid="GPU-2", index=1, utilization_mean=None)),
    cpus_mean=3.5,
    memory_peak=2**40,
    advice=("load with more workers",),
    proved={"driver": "535.104.05"},
)
TRACKS = (
    Track(name="utilization", uuid="GPU-1", times=(0.5, 1.5, 2.5), values=(0.0, None, 100.0), peak=100.0),
    Track(name="cpus", times=(), values=()),
)


def receipt_row(run: str = "r1", key: str = "train", number: int = 1, **fields: Any) -> ReceiptRow:
    return ReceiptRow(**{"run_id": run, "key": key, "number": number, "receipt": RECEIPT, "tracks": TRACKS, **fields})


def write(records: Records, *written: ReceiptRow, token: str = "") -> bool:
    batch = RowBatch()
    for row in written:
        batch.receipt(row)
    assert len(batch) == len(written)
    return records.write(batch, run_id="r1", token=token)


@pytest.fixture
def held(records: Records) -> Records:
    """Records with a run that the driver "t1" holds."""
    records.create_run(RunRow(id="r1", pipeline="train", created=1.0, token="t1"))
    return records


def test_a_receipt_comes_back_as_it_was_written(held: Records) -> None:
    assert held.receipt("r1", "train", 1) is None and held.receipts("r1") == []
    assert write(held, receipt_row())
    assert held.receipt("r1", "train", 1) == receipt_row()
    assert held.receipt("r1", "train", 2) is None
    # A list leaves the tracks where they are.
    assert held.receipts("r1") == [receipt_row(tracks=())]
    assert held.database.rows("SELECT verdict FROM receipts") == [("used",)]


def test_receipts_are_listed_by_step_and_attempt(held: Records) -> None:
    keys = [("train", 2), ("train", 1), ("train[1]", 1), ("load", 1)]
    assert write(held, *(receipt_row(key=key, number=number) for key, number in keys), receipt_row("r2"))
    assert [(row.key, row.number) for row in held.receipts("r1")] == sorted(keys)
    assert [(row.key, row.number) for row in held.receipts("r1", key="train")] == [("train", 1), ("train", 2)]
    assert held.receipts("r1", key="none") == []


def test_a_receipt_is_written_with_its_step_or_not_at_all(held: Records) -> None:
    batch = RowBatch()
    batch.step(StepRow(run_id="r1", key="train", name="train"))
    batch.receipt(receipt_row())
    assert not held.write(batch, run_id="r1", token="t0")
    assert held.steps("r1") == [] and held.receipts("r1") == []
    assert held.write(batch, run_id="r1", token="t1")
    assert held.steps("r1") and held.receipts("r1")


def test_receipts_go_with_their_run(held: Records) -> None:
    assert write(held, receipt_row(), receipt_row("r2"))
    held.delete_run("r1")
    assert held.receipts("r1") == [] and len(held.receipts("r2")) == 1


def test_a_new_run_brings_receipts_with_its_first_rows(records: Records) -> None:
    batch = RowBatch()
    batch.receipt(receipt_row())
    records.create_run(RunRow(id="r1", pipeline="train", created=1.0), batch=batch)
    assert records.receipt("r1", "train", 1) == receipt_row()


def test_texts_that_no_database_takes_do_not_stop_a_run(held: Records) -> None:
    told = attrs.evolve(RECEIPT, evidence=("half \ud800 a pair", "nothing \0 there"), stopped="ü")
    assert write(held, receipt_row(receipt=told, tracks=(Track(name="x\ud800"),)))
    (found,) = held.receipts("r1")
    assert found.receipt.evidence[1:] == told.evidence[1:] and found.receipt.stopped == "ü"
    read = held.receipt("r1", "train", 1)
    assert read is not None and read.tracks == (Track(name="x?"),)


def test_tracks_take_little_room(held: Records) -> None:
    times = tuple(number * 0.5 for number in range(2000))
    values = tuple(round(50 + 40 * math.sin(time / 30), 1) for time in times)
    track = Track(name="utilization", uuid="GPU-1", times=times, values=values, peak=90.0)
    assert write(held, receipt_row(tracks=(track,) * 8))
    ((blob,),) = held.database.rows("SELECT tracks FROM receipts")
    assert len(bytes(blob)) * 5 < len(zlib.decompress(blob))
    found = held.receipt("r1", "train", 1)
    assert found is not None and found.tracks == (track,) * 8


def test_what_a_newer_version_wrote_is_read_as_far_as_it_is_known(held: Records) -> None:
    assert write(held, receipt_row())
    held.database.change(
        "UPDATE receipts SET verdict = 'shared', receipt = replace(receipt, '{\"verdict\"', '{\"more\"')"
    )
    found = held.receipt("r1", "train", 1)
    assert found is not None and found.receipt == attrs.evolve(RECEIPT, verdict="unknown")


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
tracks = st.builds(
    Track,
    name=st.sampled_from(["utilization", "memory", "cpus"]),
    uuid=st.text(st.characters(codec="utf-8"), max_size=5),
    times=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5).map(tuple),
    values=st.lists(numbers, max_size=5).map(tuple),
    peak=numbers,
)


@given(lines=st.lists(tracks, max_size=3).map(tuple))
def test_any_tracks_come_back(lines: tuple[Track, ...]) -> None:
    row = receipt_row(tracks=lines)
    assert receipts.receipt_row(row.columns()) == row
