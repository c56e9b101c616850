"""A receipt as HTML: its numbers, a chart with a line for each device, marked stretches of the lease."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import attrs

from stoker.client.metrics import Usage
from stoker.core.receipt import Receipt, Track, Use
from stoker.report.figures import idle_stretches, receipt_charts, receipt_part
from stoker.report.svg import Band

GIGABYTES = 85_899_345_920


def use(index: int, **more: Any) -> Use:
    return Use(uuid=f"GPU-{index}", kind="nvidia", index=index, model="H100-80GB", memory=GIGABYTES, **more)


RECEIPT = Receipt(
    verdict="used",
    evidence=("GPU 0 computed",),
    asked="2 GPUs",
    started=1000.0,
    seconds=80.0,
    devices=(use(0, utilization_mean=55.0, memory_peak=GIGABYTES // 2), use(1)),
    advice=("read the data in more workers",),
)


USAGE = Usage(rank_peaks={1: 2_000_000_000, 0: 1_000_000_000}, rank_waits={1: 0.1, 0: 0.61})


def track(name: str, index: int | None, values: list[float | None], peak: float | None = None) -> Track:
    times = tuple(float(10 * place) for place in range(len(values)))
    uuid = "" if index is None else f"GPU-{index}"
    return Track(name=name, uuid=uuid, times=times, values=tuple(values), peak=peak)


TRACKS = (
    track("utilization", 0, [0, 0, 0, 0, 90, 80, 70, 60, 0.0], peak=97.0),
    track("utilization", 1, [0, 0, 0, 0, 0, 0, 0, 0, 0.0]),
    track("power", 0, [100, 300.0], peak=300.0),
    track("power", 1, [100, 690.0], peak=690.0),
    track("memory", 0, [1e9, 6e10]),
    track("memory", 1, [None, None]),
    track("memory", None, [1e9, 2e9], peak=2e9),
    track("utilization", 7, [1.0]),
)


def drawn(receipt: Receipt, **options: Any) -> dict[str, ElementTree.Element]:
    figures = {}
    for figure in (ElementTree.fromstring(one.markup) for one in receipt_charts(receipt, TRACKS, **options)):
        [label] = [one.attrib["aria-label"] for one in figure.findall("svg")]
        figures[label] = figure
    return figures


def test_a_chart_for_each_quantity_with_a_line_for_each_own_device() -> None:
    figures = drawn(RECEIPT)
    assert list(figures) == [
        "utilisation, peak 97 %",
        "memory of GPU 0, peak 60 GB",
        "power, peak 690 W",
        "host memory, peak 2 GB",
    ]
    legend = [item.itertext() for item in figures["power, peak 690 W"].iter("li")]
    assert ["".join(words) for words in legend] == ["GPU 0", "GPU 1", "idle"]
    assert list(drawn(attrs.evolve(RECEIPT, devices=()))) == ["host memory, peak 2 GB"]


def test_memory_is_drawn_against_the_device_s_own() -> None:
    text = "".join(drawn(RECEIPT)["memory of GPU 0, peak 60 GB"].itertext())
    assert "85.9 GB" in text and "memory of the device" in text


def test_only_what_no_device_used_is_idle() -> None:
    assert idle_stretches(RECEIPT, TRACKS, end=80.0) == [Band(start=0.0, end=30.0, kind="idle")]
    unmeasured = (track("utilization", 0, [0, 0, 0, None]), track("utilization", 1, [0, 0, 0, 0]))
    assert idle_stretches(RECEIPT, unmeasured, end=30.0) == [Band(start=0.0, end=20.0, kind="idle")]
    assert idle_stretches(RECEIPT, unmeasured[:1], end=30.0) == [], "nobody knows what the other did"
    assert idle_stretches(RECEIPT, TRACKS, end=5000.0) == [], "too short to be seen"


def test_the_lease_around_the_step_is_marked() -> None:
    figure = drawn(RECEIPT, span=(1020.0, 1070.0))["host memory, peak 2 GB"]
    bands = [one.attrib for one in figure.iter("rect") if one.attrib.get("height") == "120"]
    assert [(band["x"], band["width"]) for band in bands] == [("0", "250"), ("875", "125")]
    assert "leased, the step did not run" in "".join(figure.itertext())


def test_more_devices_than_looks_have_several_charts() -> None:
    many = attrs.evolve(RECEIPT, devices=tuple(map(use, range(11))))
    tracks = [track("utilization", index, [1.0, 2.0]) for index in range(11)]
    charts = [one.markup for one in receipt_charts(many, tracks)]
    assert [one.count('class="curve') // 2 for one in charts] == [8, 3]


def test_everything_that_the_receipt_says_is_there() -> None:
    markup = receipt_part(RECEIPT, TRACKS, running=True, usage=USAGE).markup
    text = "".join(ElementTree.fromstring(f"<div>{markup}</div>").itertext())
    for words in (
        "used so far",
        "GPU 0 computed",
        "read the data in more workers",
        "2 GPUs",
        "55 %",
        "1 GB",
        "2 GB",
        "61%",
        "rank 1 slowest, others waited up to 51% for it",
    ):
        assert words in text, words
