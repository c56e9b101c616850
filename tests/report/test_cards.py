"""A card as a page: what it is given stands there, drawn and in words, and nothing of it is taken for HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.browser import Browser, browser, keep_picture, needs_chromium

from stoker.core.cards import LARGEST, MOST_ROWS, Artifact, Frame, Image, Markdown, ProgressBar, Table, document_of
from stoker.core.errors import ParameterError
from stoker.core.plan import LogLine
from stoker.core.receipt import Receipt, Track, Use
from stoker.report.cards import StepCard, component, page

__all__ = ["browser"]

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


def test_a_page_escapes_all_that_it_is_given() -> None:
    lines = [LogLine(time=1.0, stream="stdout", text=BAD), LogLine(time=1.0, stream="stderr", text="odd\ud800", rank=3)]
    shown = [document_of(made) for made in (Markdown(BAD), Artifact(BAD, name=BAD), Table([[BAD]], [BAD]))]
    made = page(
        StepCard(
            run=RUN, step=STEP, components=shown, lines=lines, receipt=RECEIPT, tracks=TRACKS, running=True, remark=BAD
        )
    )
    assert "<script" not in made and made.count("<figcaption>") == 3
    assert "used" in made and "so far" in made and "! odd?" in made and "[3] " in made
    assert "The last 2 lines" in made and made.encode("utf-8")
    for word in ("http://", "https://"):
        assert word not in made


def test_lines_have_the_colours_that_a_terminal_shows() -> None:
    made = page(
        StepCard(run=RUN, step=STEP, lines=[LogLine(time=1.0, stream="stdout", text="\x1b[1;31mred\x1b[0m\x1b[K no")])
    )
    assert '<span class="ansi-red bold">red</span> no' in made


def test_a_page_of_nothing_but_a_step() -> None:
    made = page(StepCard(run={**RUN, "parameters": {}}, step=STEP))
    assert "Accelerators" not in made and "Parameters" not in made and "The last" not in made


def test_pictures_are_known_by_their_bytes() -> None:
    made = component(document_of(Image(b"\x89PNG\r\n\x1a\nrest", BAD))).markup
    assert 'src="data:image/png;base64,iVBORw0KGgpyZXN0"' in made and "<script" not in made
    assert document_of(Image(b"\xff\xd8\xff"))["type"] == "image/jpeg"
    for wrong in (b"<svg onload='x'>", b"", "text"):
        with pytest.raises(ParameterError, match="Image"):
            document_of(Image(wrong))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="more than a card takes"):
        document_of(Image(b"GIF89a" + bytes(LARGEST)))


def test_long_things_are_cut() -> None:
    table = document_of(Table([[number] for number in range(MOST_ROWS + 5)]))
    assert len(table["rows"]) == MOST_ROWS and "and 5 more rows" in component(table).markup
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
    assert "'chart<'".replace("<", "&lt;").replace("'", "&#x27;") in component({"kind": "chart<"}).markup


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


def test_a_bar_says_how_far_it_is_in_words_too() -> None:
    bar = ProgressBar(max=8, label=f"epochs{BAD}", unit="epochs")
    bar.update(3, metadata=BAD)
    made = component(document_of(bar)).markup
    assert 'max="8" value="3"' in made and "3 of 8 epochs" in made and "<script" not in made
    assert 'value="8"' in component(document_of(ProgressBar(max=8, value=99))).markup
    assert "<progress>5</progress> 5" in component(document_of(ProgressBar(max=0, value=5))).markup
    for wrong in (ProgressBar(max="x"), ProgressBar(value=float("nan")), ProgressBar(value=None)):  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="ProgressBar: "):
            document_of(wrong)


def test_a_frame_is_closed_and_only_its_page_lets_scripts_run() -> None:
    shown = document_of(Frame('<script>top.location = "x"</script>"', label=BAD, height=10**9))
    made = page(StepCard(run=RUN, step=STEP, components=[shown]))
    assert 'sandbox="allow-scripts" srcdoc="&lt;script&gt;top' in made and 'height="4000"' in made
    assert "<script" not in made and "script-src &#x27;unsafe-inline&#x27;" in made
    assert "script-src" not in page(StepCard(run=RUN, step=STEP, components=[document_of(Markdown("x"))]))
    with pytest.raises(ParameterError, match="more than a card takes"):
        document_of(Frame("x" * (LARGEST + 1)))


@needs_chromium
def test_charts_of_plotly_altair_and_matplotlib_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    altair = pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    graph_objects = pytest.importorskip("plotly.graph_objects")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 2))
    figure.subplots().plot([3, 2, 1])
    chart = altair.Chart(altair.Data(values=[{"a": 1, "b": 2}, {"a": 2, "b": 4}])).mark_line().encode(x="a:Q", y="b:Q")
    taking = "try { parent.document.title = 'taken' } catch (error) { made.textContent = 'kept out' }"
    outside = f"<p id=made>no</p><script>{taking}"
    made = [
        Markdown("# Rates and *losses*"),
        ProgressBar(max=10, value=7, label="epochs", metadata="loss 0.14"),
        Table([[0.1, 0.4], [0.2, 0.3]], ["rate", "loss"]),
        Image.from_matplotlib(figure, "matplotlib"),
        Image.from_altair(chart, "altair"),
        Frame.from_plotly(graph_objects.Figure(graph_objects.Scatter(y=[3, 1, 2])), "plotly", height=320),
        Frame(f"{outside}</script><script src='https://example.org/x.js'></script>", height=60),
    ]
    path = tmp_path / "card.html"
    run = {**RUN, "pipeline": "digits", "parameters": {"rate": 0.1}, "stack": "local", "source": "digits.py:3"}
    step = {**STEP, "key": "train", "status": "running", "cause": "", "message": "", "cached_from": ""}
    run.update(error="", tags=["first"], status="running")
    path.write_text(page(StepCard(run=run, step=step, components=[document_of(one) for one in made])), encoding="utf-8")
    shown = browser.open(path.as_uri(), height=1700)
    for one in shown.locator("iframe").all():
        one.scroll_into_view_if_needed()
    shown.frame_locator("iframe >> nth=0").locator(".scatterlayer .point").first.wait_for(state="attached")
    assert shown.frame_locator("iframe >> nth=1").locator("#made").inner_text() == "kept out"
    assert shown.title() == "digits / train"
    assert all(size > 0 for size in shown.locator("img").evaluate_all("all => all.map(one => one.naturalWidth)"))
    # What the last frame tried is all that the browser complains of: another page's document, and a network.
    assert all("example.org" in line for line in shown.said), shown.said
    keep_picture(shown, "card.png", tmp_path, whole=True)
    shown.context.close()
