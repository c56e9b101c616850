"""A card as a page: what it is given stands there, drawn and in words, and nothing of it is taken for HTML."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import attrs
import pytest

from stoker.core.cards import LARGEST, MOST_ROWS, Artifact, Image, Markdown, Table, document_of
from stoker.core.errors import ParameterError
from stoker.core.plan import LogLine
from stoker.core.receipt import Receipt, Track, Use
from stoker.report.cards import Card, charts, component, page

BAD = "</pre></title><script>alert(1)</script>\"'&"
RUN = {
    "id": "1qg",
    "pipeline": f"train{BAD}",
    "status": "failed",
    "created": "2026-01-02T03:04:05+00:00",
    "started": None,
    "ended": None,
    "seconds": 1.0,
    "parameters": {f"rate{BAD}": BAD},
    "tags": [BAD],
    "stack": BAD,
    "source": BAD,
    "error": BAD,
    "failure_mode": "fail_fast",
    "sessions": 1,
}
STEP: dict[str, Any] = {
    "key": f"step{BAD}",
    "name": "step",
    "status": BAD,
    "started": None,
    "ended": None,
    "seconds": 1.0,
    "cause": BAD,
    "message": BAD,
    "cached_from": BAD,
    "inputs": {},
    "attempt_count": 1,
    "count": None,
    "usage": {},
    "attempts": [],
    "outputs": {},
}
USES = tuple(
    Use(uuid=f"GPU-{index}", kind="nvidia", index=index, model="H100-80GB", memory=85_899_345_920) for index in (0, 1)
)
RECEIPT = Receipt(verdict="used", evidence=(BAD,), asked=BAD, seconds=2.0, devices=USES, advice=(BAD,))
TRACKS = (
    Track(name="utilization", uuid="GPU-0", times=(0.0, 1.0, 2.0), values=(0.0, 90.0, 80.0), peak=97.0),
    Track(name="power", uuid="GPU-0", times=(0.0, 1.0), values=(100.0, 300.0), peak=300.0),
    Track(name="power", uuid="GPU-1", times=(0.0, 1.0), values=(100.0, 690.0), peak=690.0),
    Track(name="memory", uuid="GPU-1", times=(0.0, 1.0), values=(None, None)),
    Track(name="memory", times=(0.0, 1.0), values=(1e9, 2e9), peak=2e9),
    Track(name="utilization", uuid="GPU-7", times=(0.0,), values=(1.0,), peak=1.0),
)


def titles(receipt: Receipt) -> list[str]:
    found = [ElementTree.fromstring(one) for one in charts(receipt, TRACKS)]
    return [one.attrib["aria-label"] for one in found]


def test_a_chart_for_what_was_measured_on_the_steps_own_devices() -> None:
    assert titles(RECEIPT) == [
        "utilisation of GPU 0, peak 97 %",
        "power of GPU 0, peak 300 W",
        "power of GPU 1, peak 690 W",
        "host memory, peak 2 GB",
    ]
    assert titles(attrs.evolve(RECEIPT, devices=())) == ["host memory, peak 2 GB"]
    powers = [one for one in charts(RECEIPT, TRACKS) if "power" in one]
    assert all(">800 W<" in one for one in powers), "devices share their scale"


def test_a_page_escapes_all_that_it_is_given() -> None:
    lines = [LogLine(time=1.0, stream="stdout", text=BAD), LogLine(time=1.0, stream="stderr", text="odd\ud800", rank=3)]
    shown = [document_of(made) for made in (Markdown(BAD), Artifact(BAD, name=BAD), Table([[BAD]], [BAD]))]
    made = page(
        Card(
            run=RUN, step=STEP, components=shown, lines=lines, receipt=RECEIPT, tracks=TRACKS, running=True, remark=BAD
        )
    )
    assert "<script" not in made and made.count("<title>") == 1 + 4
    assert "used" in made and "so far" in made and "[3] odd?" in made
    assert "The last 2 lines" in made and made.encode("utf-8")
    for word in ("http://", "https://"):
        assert made.count(word) == (4 if word == "http://" else 0), "only the name of SVG's format"


def test_a_page_of_nothing_but_a_step() -> None:
    made = page(Card(run={**RUN, "parameters": {}}, step=STEP))
    assert "Accelerators" not in made and "Parameters" not in made and "The last" not in made


def test_pictures_are_known_by_their_bytes() -> None:
    made = component(document_of(Image(b"\x89PNG\r\n\x1a\nrest", BAD)))
    assert 'src="data:image/png;base64,iVBORw0KGgpyZXN0"' in made and "<script" not in made
    assert document_of(Image(b"\xff\xd8\xff"))["type"] == "image/jpeg"
    for wrong in (b"<svg onload='x'>", b"", "text"):
        with pytest.raises(ParameterError, match="Image"):
            document_of(Image(wrong))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="more than a card takes"):
        document_of(Image(b"GIF89a" + bytes(LARGEST)))


def test_long_things_are_cut() -> None:
    table = document_of(Table([[number] for number in range(MOST_ROWS + 5)]))
    assert len(table["rows"]) == MOST_ROWS and "and 5 more rows" in component(table)
    assert len(document_of(Artifact("x" * 5000))["text"]) == 1000
    assert len(document_of(Artifact("x" * 5000, compressed=False))["text"]) == 5002
    assert document_of(Markdown("x" * 10**6))["text"].endswith("…")


def test_what_is_no_component_is_refused() -> None:
    for wrong in ("text", None, Markdown):
        with pytest.raises(ParameterError, match="a card takes no"):
            document_of(wrong)
    with pytest.raises(ParameterError, match="no list of values"):
        document_of(Table(["ab"]))


def test_a_later_version_s_component_has_its_name() -> None:
    assert "'chart<'".replace("<", "&lt;").replace("'", "&#x27;") in component({"kind": "chart<"})


def test_figures_and_frames() -> None:
    class Figure:
        def savefig(self, buffer: Any, **options: Any) -> None:
            buffer.write(b"\x89PNG\r\n\x1a\n" + options["format"].encode())

    class Axes:
        def get_figure(self) -> Figure:
            return Figure()

    assert Image.from_matplotlib(Axes(), "l") == Image(b"\x89PNG\r\n\x1a\npng", "l")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(7), "b": list("abcdefg")})
    made = document_of(Table.from_dataframe(frame))
    assert made["headers"] == ["", "a", "b"]
    assert [[cell["text"] for cell in row] for row in made["rows"]][:2] == [["0", "0", "a"], ["1", "1", "b"]]
    assert (len(made["rows"]), len(document_of(Table.from_dataframe(frame, truncate=False))["rows"])) == (5, 7)
