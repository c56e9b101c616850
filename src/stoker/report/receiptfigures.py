"""A receipt as HTML: the verdict with its evidence, advice, every number of every device, and charts. Pure.

Charts have a line for each device, from the beginning of the lease to its end. Stretches in which every device was idle
for long are marked, and so is the time of the lease in which the step's own code did not run.
"""

from __future__ import annotations

import itertools
import math
from typing import Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core import receipt as words
from stoker.core.receipt import Receipt, Track, Use
from stoker.core.words import memory_text
from stoker.report.design import badge, notice
from stoker.report.markup import Html, element, facts, joined, table
from stoker.report.receipts import DEVICE_ROWS, receipt_facts, round_maximum, scale_end
from stoker.report.svg import COLUMNS, LOOKS, Band, Drawing, Line, chart

LINES: Final = LOOKS
"""Devices in one chart: each has a look of its own."""
_IDLE: Final = 0.5
"""Percent of utilisation up to which a device is idle: drivers tell whole percents."""
_SHORTEST_IDLE: Final = 0.03
"""Share of the whole time from which on an idle stretch is marked: shorter ones are too narrow to be seen."""


@attrs.frozen
class Quantity:
    """A track that is drawn."""

    name: str
    """The name of the track."""
    title: str
    words: Callable[[float], str]
    """A value in words, with its unit."""


OF_DEVICES: Final = (
    Quantity("utilization", "utilisation", "{:.0f} %".format),
    Quantity("memory", "memory", memory_text),
    Quantity("power", "power", "{:.0f} W".format),
    Quantity("temperature", "temperature", "{:.0f} °C".format),
    Quantity("clock", "clock", "{:.0f} MHz".format),
    Quantity("pcie_received", "PCIe in", words.rate_text),
    Quantity("pcie_sent", "PCIe out", words.rate_text),
)
OF_PROCESSES: Final = (
    Quantity("cpus", "cores in use", words.cores_text),
    Quantity("memory", "host memory", memory_text),
)


def receipt_part(
    receipt: Receipt,
    tracks: Sequence[Track],
    *,
    running: bool = False,
    rank_peaks: Mapping[int, int] | None = None,
    span: tuple[float | None, float | None] = (None, None),
    columns: int = COLUMNS,
) -> Html:
    """Everything that a receipt says, with charts of its tracks; with `running`, a missing end is expected.

    `rank_peaks` are the most bytes of host memory of each rank, of a step with a launcher. `span` is when the step's
    own code began and ended, in seconds since the epoch; the lease may begin earlier and end later.
    """
    known: dict[str, list[str]] = {}
    name = ""
    for label, text in receipt_facts(receipt, running=running):
        name = label or name
        known.setdefault(name, []).append(text)
    shown = {
        label: joined(texts, "; ") for label, texts in known.items() if label not in ("verdict", "advice", "evidence")
    }
    so_far = " so far" if running else ""
    reasons = [element("p", None, sentence) for sentence in receipt.evidence]
    advice = [notice("warn", element("p", None, sentence)) for sentence in receipt.advice]
    return joined(
        [
            element("p", None, badge(receipt.verdict, f"{receipt.verdict}{so_far}")),
            *reasons,
            *advice,
            facts(shown),
            device_table(receipt.devices),
            element("div", {"class": "grid"}, *receipt_charts(receipt, tracks, span=span, columns=columns)),
            rank_table(rank_peaks or {}),
        ]
    )


def device_table(uses: Sequence[Use]) -> Html:
    """A row for each device with every number that is known of it."""
    headers = [name.strip() for name, _ in DEVICE_ROWS]
    # Indented names belong to the one above: "memory", "  peak".
    group = ""
    for place, (name, _) in enumerate(DEVICE_ROWS):
        if name.startswith(" "):
            headers[place] = f"{group} {name.strip()}".strip()
        else:
            group = name
    rows = [[cell(use) for _, cell in DEVICE_ROWS] for use in uses]
    numbers = [place for place, name in enumerate(headers) if name not in ("", "model", "held back", "uuid")]
    return table(headers, rows, right=numbers, caption="devices")


def rank_table(peaks: Mapping[int, int]) -> Html:
    """The most host memory that each rank held."""
    rows = [[str(rank), memory_text(peak)] for rank, peak in sorted(peaks.items())]
    return table(["rank", "host memory peak"], rows, right={0, 1}, caption="memory of ranks")


def receipt_charts(
    receipt: Receipt,
    tracks: Sequence[Track],
    *,
    span: tuple[float | None, float | None] = (None, None),
    columns: int = COLUMNS,
) -> Iterator[Html]:
    """A chart for each quantity of the devices, then for those of the processes; none without measurements."""
    by_name = {(track.uuid, track.name): track for track in tracks if any(map(_is_known, track.values))}
    times = [time for track in by_name.values() for time in track.times if math.isfinite(time)]
    end = max([receipt.seconds, *times])
    around = _around(receipt, span, end)
    bands = [*around, *_between(idle_stretches(receipt, tracks, end=end), around, end)]
    for quantity in OF_DEVICES:
        drawn = [
            (use, by_name[use.uuid, quantity.name]) for use in receipt.devices if (use.uuid, quantity.name) in by_name
        ]
        # Devices of one receipt share their scales, so that they can be compared.
        same_quantity = [track for _, track in drawn]
        for first in range(0, len(drawn), LINES):
            some = drawn[first : first + LINES]
            high = max(scale_end(quantity.name, use, same_quantity) for use, _ in some)
            yield _chart(
                some, quantity, Drawing(words=quantity.words, high=high, end=end, bands=bands, columns=columns)
            )
    for quantity in OF_PROCESSES:
        track = by_name.get(("", quantity.name))
        if track is not None:
            drawing = Drawing(
                words=quantity.words,
                high=round_maximum([track]),
                end=end,
                bands=around,
                columns=columns,
            )
            yield _chart([(None, track)], quantity, drawing)


def _chart(drawn: Sequence[tuple[Use | None, Track]], quantity: Quantity, drawing: Drawing) -> Html:
    values = [value for _, track in drawn for value in (track.peak, *track.values) if _is_known(value)]
    names = [words.device_name(use) for use, _ in drawn if use is not None]
    title = f"{quantity.title} of {names[0]}" if len(names) == 1 else quantity.title
    memories = {use.memory for use, _ in drawn if use is not None and use.memory}
    if quantity.name == "memory" and len(memories) == 1:
        drawing = attrs.evolve(drawing, limit=float(next(iter(memories))), limit_name="memory of the device")
    lines = [
        Line(places=track.times, values=track.values, name=words.device_name(use) if use is not None else "")
        for use, track in drawn
    ]
    peak = max(value for value in values if value is not None)
    return chart(lines, label=title, drawing=drawing, remark=f"peak {quantity.words(peak)}")


def _around(receipt: Receipt, span: tuple[float | None, float | None], end: float) -> list[Band]:
    """The stretches of the lease before the step's own code began and after it ended."""
    if not receipt.started:
        return []
    began, ended = (None if moment is None else moment - receipt.started for moment in span)
    bands = []
    if began is not None and began > 0:
        bands.append(Band(start=0.0, end=min(began, end), kind="outside"))
    if ended is not None and 0 < ended < end:
        bands.append(Band(start=ended, end=end, kind="outside"))
    return bands


def _between(idle: Sequence[Band], around: Sequence[Band], end: float) -> Iterator[Band]:
    """The parts of idle stretches in which the step's own code ran, as far as they can be seen."""
    first = max((band.end for band in around if band.start == 0.0), default=0.0)
    last = min((band.start for band in around if band.start > 0.0), default=end)
    for band in idle:
        start, over = max(band.start, first), min(band.end, last)
        if over - start >= _SHORTEST_IDLE * end:
            yield attrs.evolve(band, start=start, end=over)


def idle_stretches(receipt: Receipt, tracks: Sequence[Track], *, end: float) -> list[Band]:
    """The stretches in which no device of the receipt computed, as far as they are long enough to be seen.

    A moment in which one of them was not measured is none of them.
    """
    uuids = {use.uuid for use in receipt.devices}
    measured = [track for track in tracks if track.uuid in uuids and track.name == "utilization" and track.times]
    if not measured or len(measured) < len(uuids):
        return []
    busy: dict[float, bool] = {}
    for track in measured:
        for time, value in zip(track.times, track.values):
            busy[time] = busy.get(time, False) or not _is_known(value) or float(value or 0.0) > _IDLE
    moments = sorted(busy)
    bands: list[Band] = []
    for is_busy, group in itertools.groupby(moments, key=busy.__getitem__):
        stretch = list(group)
        if not is_busy and stretch[-1] - stretch[0] >= _SHORTEST_IDLE * end > 0:
            bands.append(Band(start=stretch[0], end=stretch[-1], kind="idle"))
    return bands


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
