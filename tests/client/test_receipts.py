"""What a step did with its accelerators, as the client tells it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import attrs
import pytest

from stoker.core.receipt import Receipt, Track, Use
from stoker.store.batch import RowBatch
from stoker.store.receipts import ReceiptRow
from stoker.store.rows import AttemptRow

USE = Use(
    uuid="GPU-1",
    kind="nvidia",
    index=0,
    model="H100-80GB",
    memory=80_000_000_000,
    utilization_mean=87.0,
    utilization_peak=99.0,
    memory_peak=70_000_000_000,
    energy=7200.0,
    first_use=3.0,
)
USED = Receipt(verdict="used", evidence=("GPU 0 computed",), asked="1 × H100-80GB", seconds=60.0, devices=(USE,))
IDLE = attrs.evolve(USED, verdict="idle", advice=("ask for no GPU",))
TRACKS = (Track(name="utilization", uuid="GPU-1", times=(0.5, 1.5), values=(0.0, 99.0), peak=99.0),)


def attempted(book: Any, run: str, key: str, *receipts: Receipt | None) -> None:
    """Attempts at a step, each with its receipt or without one."""
    batch = RowBatch()
    for number, receipt in enumerate(receipts, start=1):
        status = "succeeded" if number == len(receipts) else "failed"
        batch.attempt(AttemptRow(run_id=run, key=key, number=number, status=status, started=1.0, ended=61.0))
        if receipt is not None:
            batch.receipt(ReceiptRow(run_id=run, key=key, number=number, receipt=receipt, tracks=TRACKS))
    assert book.store.records.write(batch)


def test_a_step_has_the_receipt_of_its_last_attempt(book: Any) -> None:
    id = book.run()
    book.step(id, "train", attempts=2)
    attempted(book, id, "train", IDLE, USED)
    step = book.client.run(id).steps["train"]
    assert step.receipt == USED and step.receipt.verdict == "used"
    assert [attempt.receipt for attempt in step.attempts] == [IDLE, USED]
    assert step.attempts[0].tracks == TRACKS
    document = step.as_dict()
    assert document["attempts"][1]["receipt"]["devices"][0]["utilization_mean"] == 87.0
    assert document["attempts"][0]["receipt"]["verdict"] == "idle"


def test_a_step_without_accelerators_has_none(book: Any) -> None:
    id = book.run()
    book.step(id, "load")
    attempted(book, id, "load", None)
    book.step(id, "cached", status="cached")
    steps = book.client.run(id).steps
    assert steps["load"].receipt is None and steps["cached"].receipt is None
    assert steps["load"].attempts[0].tracks == ()
    assert steps["load"].as_dict()["attempts"][0]["receipt"] is None


def test_an_attempt_without_one_does_not_show_an_earlier_ones(book: Any) -> None:
    id = book.run()
    book.step(id, "train", attempts=2)
    attempted(book, id, "train", USED, None)
    run = book.client.run(id)
    assert run.steps["train"].receipt is None and run.receipts == {}
    assert run.steps["train"].attempts[0].receipt == USED


def test_elements_have_their_own(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", [1, 2])
    attempted(book, id, "train[1]", USED)
    step = book.client.run(id).steps["train"]
    assert step.receipt is None and step[0].receipt is None
    assert step[1].receipt == USED and step[-1].attempts[0].tracks == TRACKS


def test_all_of_a_run_are_in_the_order_of_the_pipeline(book: Any) -> None:
    id, other = book.run(), book.run()
    for place, key in enumerate(("prepare", "train", "check")):
        book.step(id, key, position=place, count=12 if key == "train" else None)
    for index in range(12):
        book.step(id, f"train[{index}]", parent="train", idx=index)
    for key in ("check", "train[10]", "train[2]", "train", "prepare"):
        attempted(book, id, key, IDLE, USED)
    book.step(other, "train")
    attempted(book, other, "train", IDLE)
    run = book.client.run(id)
    book.queries.clear()
    receipts = run.receipts
    assert list(receipts) == ["prepare", "train", "train[2]", "train[10]", "check"]
    assert {receipt.verdict for receipt in receipts.values()} == {"used"}
    assert len(book.queries) <= 3, "one for all of them, not one a step"


def test_a_receipt_is_read_once(book: Any) -> None:
    id = book.run()
    book.step(id, "train")
    attempted(book, id, "train", USED)
    (attempt,) = book.client.run(id).steps["train"].attempts
    book.queries.clear()
    assert attempt.receipt == USED and attempt.tracks == TRACKS and attempt.as_dict()["receipt"]
    assert len(book.queries) == 1


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag != "script"
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("of", ["step", "attempt"])
def test_a_notebook_shows_it(of: str, book: Any) -> None:
    id = book.run()
    book.step(id, "train")
    attempted(book, id, "train", attrs.evolve(IDLE, evidence=("<script>x</script>",)))
    step = book.client.run(id).steps["train"]
    text = " ".join(Reader((step if of == "step" else step.attempts[0])._repr_html_()).texts)
    for words in ("idle", "GPU 0", "H100-80GB", "87 %", "70 GB of 80 GB", "2 Wh", "ask for no GPU", "1 × H100-80GB"):
        assert words in text
    assert "<script>x</script>" in text


def test_a_notebook_shows_why_there_was_no_device(book: Any) -> None:
    id = book.run()
    book.step(id, "train")
    attempted(book, id, "train", Receipt(verdict="cpu-fallback", asked="2 GPUs", fallback="this machine has no GPU"))
    text = " ".join(Reader(book.client.run(id).steps["train"]._repr_html_()).texts)
    assert "cpu-fallback" in text and "this machine has no GPU" in text and "2 GPUs" in text
