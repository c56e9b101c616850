"""What a notebook shows."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from stoker.client import html
from stoker.core.words import count_text, memory_text, time_text
from stoker.store.batch import RowBatch
from stoker.store.rows import AttemptRow, StepRow

EVIL = '<script>alert("x")</script>'
VOID = frozenset({"br", "img", "hr", "meta", "link"})


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects them and their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in VOID
        self.tags.add(tag)
        self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name in ("style", "title"), (name, value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_run(book: Any) -> None:
    id = book.run(parameters={"lr": 0.1}, tags=("nightly",), sessions=2, stack="local")
    book.step(id, "load", position=0, started=1.0, ended=2.0, usage={"cpu": 0.5, "peak": 10**9})
    book.fan_out(id, "train", [1, 2, 3], position=1)
    text = " ".join(Reader(book.client.run(id)._repr_html_()).texts)
    for words in (id, "training", "lr=0.1", "nightly", "load", "train × 3", "succeeded", "1.0 s", "peak 1 GB"):
        assert words in text


def test_everything_is_escaped(book: Any) -> None:
    id = book.run(
        pipeline=EVIL,
        status="failed",
        parameters={EVIL: EVIL},
        tags=(EVIL,),
        source=EVIL,
        stack=EVIL,
        error=EVIL,
    )
    book.step(id, EVIL, status="failed", cause=EVIL, message=EVIL, cached_from=EVIL, outputs={EVIL: 1})
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL}
    book.write(
        AttemptRow(run_id=id, key=EVIL, number=1, status="failed", backend=EVIL, cause=EVIL, message=EVIL, error=error)
    )
    run = book.client.run(id)
    step = run.steps[EVIL]
    for shown in (run, step, step.output):
        made = shown._repr_html_()
        assert "<script" not in made
        read = Reader(made)
        assert "script" not in read.tags
        assert any(EVIL in text for text in read.texts)


def test_a_step_that_failed_shows_its_traceback(book: Any) -> None:
    id = book.run(status="failed")
    book.step(id, "train", status="failed", cause="user-error", message="no", attempts=1)
    trace = "Traceback (most recent call last):\nValueError: no"
    error = {"type": "ValueError", "message": "no", "traceback": trace}
    book.write(AttemptRow(run_id=id, key="train", number=1, status="failed", cause="user-error", error=error))
    read = Reader(book.client.run(id).steps["train"]._repr_html_())
    assert "details" in read.tags
    assert trace in read.texts
    assert "user-error: no" in read.texts


def test_outputs_and_elements_of_a_step(book: Any) -> None:
    numpy = pytest.importorskip("numpy")
    id = book.run()
    book.step(id, "load", outputs={"images": numpy.zeros((3, 4))})
    book.fan_out(id, "train", [1, 2])
    steps = book.client.run(id).steps
    text = " ".join(Reader(steps["load"]._repr_html_()).texts)
    assert "images" in text and "numpy.ndarray 3×4 float64" in text
    assert "train[1]" in " ".join(Reader(steps["train"]._repr_html_()).texts)


def test_a_long_table_shows_what_failed(book: Any) -> None:
    id = book.run(status="failed")
    batch = RowBatch()
    for number in range(1000):
        status = "failed" if number == 900 else "succeeded"
        batch.step(StepRow(run_id=id, key=f"s{number}", name="s", position=number, status=status))  # type: ignore[arg-type]
    book.store.records.write(batch)
    texts = Reader(book.client.run(id)._repr_html_()).texts
    assert "s900" in texts and "s198" in texts and "s199" not in texts
    assert "… and 800 more steps" in texts
    assert sum(text.startswith("s") and text[1:].isdigit() for text in texts) == html.ROWS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0031, "3 ms"), (1.23, "1.2 s"), (59.96, "1 m 00 s"), (125, "2 m 05 s"), (11220, "3 h 07 m")],
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(7, "7 B"), (5_000, "5 kB"), (412e6, "412 MB"), (1.44e9, "1.44 GB"), (2.5e12, "2.5 TB")]
)
def test_sizes(size: float, text: str) -> None:
    assert memory_text(size) == text


def test_counts() -> None:
    assert (count_text(1, "step"), count_text(1200, "step")) == ("1 step", "1,200 steps")
