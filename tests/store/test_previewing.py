"""Previews that the worker makes of what is pickled: what they show, and that they cost and break nothing."""

from __future__ import annotations

import base64
import io
import json
import signal
import threading
import time
import tracemalloc
from typing import Any, Iterator

import attrs
import pytest
from tests.store.zoo import made

from stoker.core.artifact import MEDIA, Preview, picture_type
from stoker.report.stepparts import preview_part
from stoker.store import artifacts, previewing, previews
from stoker.store.blobs import Blobs
from stoker.store.serializers import registry


@pytest.fixture
def blobs(tmp_path: Any) -> Blobs:
    return Blobs(f"file://{tmp_path}")


@pytest.fixture(autouse=True)
def timer() -> Iterator[None]:
    """The timer as a step finds it: pytest-timeout uses it, too."""
    handler, left = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *left)


def shown(value: Any, blobs: Blobs) -> Preview:
    artifact = previewing.with_preview(artifacts.save(value, blobs), value, blobs)
    return previews.preview(artifacts.from_wire(artifact.wire()), blobs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "words", "text", "rows"),
    [
        ("pandas/object-mixed", "3 rows, 1 column", "", ("0", "1")),
        ("pandas/Series", "2 rows, 1 column", "", ("x", "1")),
        ("pandas/duplicate-columns", "1 row, 2 columns", "", ("0", "1", "2")),
        ("sklearn/pipeline", "", "Pipeline(steps=[('standardscaler', StandardScaler())", ()),
        ("figures/plotly-Figure", "a chart of plotly's", "", ("scatter", "", "2")),
        ("figures/altair-Chart", "a chart of Altair's", '"mark"', ()),
        ("python/attrs", "", "Frozen(a=1, b=(2,))", ()),
        ("python/plain-object", "", "Plain\n  words: ['a']\n  table: dict\n    b: (1, 2)", ()),
        ("python/namedtuple", "", "Pair\n  left: 1\n  right: 'a'", ()),
        ("torch/TensorDataset", "", "TensorDataset\n  tensors: tuple\n    0: Tensor of torch.float32, 3×2", ()),
        ("frames/polars-LazyFrame", "", "FILTER", ()),
    ],
)
def test_what_is_shown(name: str, words: str, text: str, rows: tuple[str, ...], blobs: Blobs, monkeypatch: Any) -> None:
    monkeypatch.setattr(previewing, "BUDGET", 60.0)  # of a busy machine
    found = shown(made(name), blobs)
    assert found.words.startswith(words) and text in found.text
    assert not rows or found.rows[0] == rows


@pytest.mark.filterwarnings("ignore")
def test_lines_of_charts(blobs: Blobs, monkeypatch: Any) -> None:
    altair, go = pytest.importorskip("altair"), pytest.importorskip("plotly.graph_objects")
    monkeypatch.setattr(previewing, "BUDGET", 60.0)
    figure = go.Figure([go.Scatter(y=[3, 1, 2], name="loss"), go.Scatter(x=[*range(5000)], y=[0.5] * 5000)])
    figure.add_traces([go.Bar(x=["a"], y=[1]), go.Scatter(x=["2026-01-01"], y=[1]), go.Scatter(y=[1, None])])
    first, second = shown(figure, blobs).curves
    assert (first.name, first.places, first.values) == ("loss", (0.0, 1.0, 2.0), (3.0, 1.0, 2.0))
    assert second.places[:2] == (0.0, 17.0) and len(second.places) == 295
    rows = [{"step": step, "loss": step / 10, "run": run} for run in "ab" for step in range(3)]
    chart = altair.Chart(altair.InlineData(rows)).encode(x="step:Q", y="loss:Q", color="run:N")
    first, second = shown(chart.mark_line(), blobs).curves
    assert (second.name, second.places, second.values) == ("b", (0.0, 1.0, 2.0), (0.0, 0.1, 0.2))
    assert "<path" in str(preview_part(shown(chart.mark_line(), blobs), label="losses"))
    assert not shown(chart.mark_point(), blobs).curves, "points are no line"
    assert not shown(chart.mark_line().encode(y="mean(loss):Q"), blobs).curves, "what a browser computes"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["figures/matplotlib-Figure", "figures/PIL-RGB", "figures/PIL-palette"])
def test_pictures(name: str, blobs: Blobs, monkeypatch: Any) -> None:
    from PIL import Image

    monkeypatch.setattr(previewing, "BUDGET", 60.0)
    monkeypatch.setattr(previewing, "_RENDERED", 60.0)
    value = made(name)
    found = shown(value, blobs)
    assert found.picture is not None and found.picture.media == "image/png"
    assert max(Image.open(io.BytesIO(found.picture.data)).size) <= 640
    assert "matplotlib" not in name or (value.dpi, len(value.axes)) == (100.0, 1), "the figure stays as it is"


@pytest.mark.filterwarnings("ignore")
def test_a_figure_that_takes_too_long_says_so(blobs: Blobs, monkeypatch: Any) -> None:
    monkeypatch.setattr(previewing, "_RENDERED", 1e-5)
    found = shown(made("figures/matplotlib-Figure"), blobs)
    assert found.picture is None and "it takes more than 1e-05 s" in found.words


def test_a_large_one_is_no_part_of_the_artifact_and_goes_with_it(blobs: Blobs) -> None:
    value = {number: f"line {number}" for number in range(150)}
    artifact = previewing.with_preview(artifacts.save(value, blobs), value, blobs)
    digest = artifact.meta[previewing.KEY]
    assert len(digest) == 64 and digest in set(blobs.digests())
    found = previews.preview(artifact, blobs, previews.LONG)
    assert "149: 'line 149'" in found.text
    assert len(previews.preview(artifact, blobs, previews.PreviewSize(rows=1, text=20)).text) == 20


def test_no_preview_is_longer_than_it_may_be(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previewing, "BUDGET", 60.0)  # of a busy machine
    found = shown({number: ("x" * 300, object()) for number in range(5000)}, blobs)
    assert found.text.count("\n") < previewing._LINES + 1 and found.more


def test_bytes_are_cut_before_they_are_shown(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previewing, "BUDGET", 60.0)
    value = bytearray(b"\xff" * 10**6)
    artifact = artifacts.save(value, blobs)
    tracemalloc.start()
    found = previews.preview(previewing.with_preview(artifact, value, blobs), blobs)
    assert tracemalloc.get_traced_memory()[1] < len(value) // 2
    tracemalloc.stop()
    assert found.text.startswith("bytearray(b'") and found.text.endswith("…")


class Slow:
    def __repr__(self) -> str:
        for _ in range(500):
            time.sleep(0.01)
        return "slow"


class Broken:
    @property
    def shape(self) -> Any:
        raise SystemError("no shape")

    def __repr__(self) -> str:
        raise ValueError("no repr")


class Quits:
    def __repr__(self) -> str:
        raise KeyError


@pytest.mark.parametrize("value", [Slow(), Broken(), Quits(), {1: Slow()}, [Broken()]])
def test_what_takes_long_or_fails_has_none(value: Any, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = artifacts.save(value, blobs)
    assert previewing.with_preview(artifact, value, blobs) == artifact
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_steps_own_timer_is_left_alone(blobs: Blobs) -> None:
    value = Slow
    artifact = artifacts.save({1: value}, blobs)
    rang: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    try:
        assert previewing.with_preview(artifact, {1: value}, blobs) == artifact
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(previewing.with_preview(artifact, {1: value}, blobs)))
    thread.start()
    thread.join()
    assert found == [artifact] and not rang


def test_what_is_data_is_read_when_somebody_looks(blobs: Blobs) -> None:
    for name in ("numpy/array", "pandas/DataFrame", "python/dict", "torch/Linear", "python/str"):
        value = made(name)
        artifact = artifacts.save(value, blobs)
        assert previewing.with_preview(artifact, value, blobs) is artifact


class Shape:
    corners = 4


class ShapeSerializer:
    name = "test-shapes"

    def fits(self, value: Any) -> bool:
        return True

    def save(self, value: Any, file: Any) -> dict[str, Any]:
        file.write(b"4")
        return {}

    def load(self, stored: Any) -> Any:
        return Shape()

    def preview(self, value: Any) -> Preview:
        return Preview(words=f"a shape with {value.corners} corners")


def test_a_serializer_makes_its_own(blobs: Blobs) -> None:
    registry.register(Shape, ShapeSerializer())
    assert shown(Shape(), blobs).words == "a shape with 4 corners"


def test_a_kept_picture_is_what_its_bytes_say(blobs: Blobs) -> None:
    """The store may be another's: SVG, which can hold scripts, is not shown under the name of another format."""
    artifact = artifacts.save({1: 2}, blobs)
    for data, media in ((b"<svg onload=alert(1)>", ""), (b"GIF89a", "image/gif"), *MEDIA.items()):
        kept = previewing.KeptPreview(picture=base64.b64encode(data).decode())
        text = json.dumps(previewing.to_json(kept))
        found = previews.preview(attrs.evolve(artifact, meta={previewing.KEY: text}), blobs)
        assert (found.picture.media if found.picture else "") == media == picture_type(data)


RUN = """
    from typing import Any, Iterator
    from stoker import pipeline, step

    @step
    def odd() -> Any:
        return {1: "one", "two": ("a", "b")}

    @step(previews=False)
    def quiet() -> Any:
        return {1: "one"}

    @pipeline
    def looks():
        odd()
        quiet()

    if __name__ == "__main__":
        looks()
"""


def test_a_run_shows_them_everywhere_and_gc_keeps_them(project: Any) -> None:
    project.write({"s.py": RUN})
    project.run("s.py")
    (run,) = project.client().runs()
    assert "1: 'one'" in run.steps["odd"].output.preview().text
    assert "no preview was made" in run.steps["quiet"].output.preview().words
    assert "1: &#x27;one&#x27;" in run.steps["odd"].output._repr_html_()
    assert "two: ('a', 'b')" in project.stoker("artifacts", run.id, "odd").stdout
    project.stoker("report", run.id, "--output", "page.html")
    assert "two: (" in (project.folder / "page.html").read_text(encoding="utf-8")
    project.stoker("gc")
    assert "1: 'one'" in project.client().run(run.id).steps["odd"].output.preview().text
