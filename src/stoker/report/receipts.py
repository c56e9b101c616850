"""Receipts of a run's steps: from the store, for running steps from the samples so far; and each in full, as text.

When a step gets its devices, an event `leased` records them and the file of their samples. The receipt itself is stored
when the attempt ends. Its text has the verdict, the request and the lease, every number, advice and charts, in the
width and the characters that the output can show.
"""

from __future__ import annotations

import logging
import math
import os
import textwrap
import time
from typing import Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.client import Run, Step
from stoker.client.keys import element_of, sort_keys
from stoker.core import receipt as words
from stoker.core.codec import from_json
from stoker.core.devices import Device, Lease, claim_of
from stoker.core.errors import NotFound, StokerError
from stoker.core.receipt import Receipt, Track, Use
from stoker.core.resources import ResourceSettings, describe
from stoker.core.status import STEP_DONE
from stoker.core.words import count_text, memory_text, time_text
from stoker.plan import plandoc
from stoker.report.charts import BLOCKS, Glyphs, Style, ceiling, chart
from stoker.store.rows import EventRow
from stoker.store.store import Store

log = logging.getLogger(__name__)

LEASED: Final = "leased"
"""The kind of the event; its data is a `Lease` with the number of the attempt as `attempt`."""
_ACCELERATOR_FIELDS: Final = ("gpu_count", "accelerators", "gpu_memory", "gpu_vendor", "share")


@attrs.frozen(kw_only=True)
class StepReceipt:
    """The receipt of one attempt at a step."""

    key: str
    """The step's key."""
    number: int
    """The attempt's number."""
    receipt: Receipt
    tracks: tuple[Track, ...] = ()
    """The samples over time."""
    running: bool = False
    """Whether the attempt still runs; the receipt covers the time until now."""


def run_receipts(store: Store, run: Run) -> list[StepReceipt]:
    """The receipt of each step's newest attempt, without tracks, in the pipeline's order."""
    rows = store.records.receipts(run.id)
    leases = {event.key: event for event in store.records.events(run.id) if event.kind == LEASED}
    # Nobody reads a hundred thousand rows of a run without accelerators.
    last = store.records.attempt_numbers(run.id) if rows or leases else {}
    receipts = {
        row.key: StepReceipt(key=row.key, number=row.number, receipt=row.receipt)
        for row in rows
        if last.get(row.key) == row.number
    }
    finished = {row.key for row in store.records.all_steps(run.id) if row.status in STEP_DONE} if leases else set()
    for key, event in leases.items():
        if key not in finished and _attempt_number(event) > last.get(key, 0):
            receipts[key] = running_receipt(event)
    return [receipts[key] for key in sort_keys(receipts, run.steps)]


def newest_receipt(store: Store, step: Step) -> StepReceipt | None:
    """The receipt of a step's newest attempt, which may still run; None if it has none."""
    current = _current_receipt(store, step)
    if current is not None:
        return current
    return attempt_receipt(store, step, step.attempts[-1].number) if step.attempts else None


def attempt_receipt(store: Store, step: Step, number: int) -> StepReceipt | None:
    """The receipt of one attempt at a step; None if it has none. An unknown attempt is an error."""
    for attempt in step.attempts:
        if attempt.number == number:
            receipt = attempt.receipt
            if receipt is None:
                return None
            return StepReceipt(key=step.key, number=number, receipt=receipt, tracks=attempt.tracks)
    current = _current_receipt(store, step)
    if current is not None and current.number == number:
        return current
    newest_number = step.attempts[-1].number if step.attempts else 0
    raise NotFound(f"step '{step.key}' has no attempt {number}: its last one is {newest_number}")


def accelerator_request(store: Store, step: Step) -> str | None:
    """The accelerators that a step asked for, in words; empty for none, None if the plan cannot be read."""
    text = store.records.plan(step.run_id)
    if not text:
        return None
    try:
        steps = plandoc.load(text).steps
    except StokerError as error:
        log.debug("the plan of run %s cannot be read: %s", step.run_id, error)
        return None
    parent = element_of(step.key)[0]
    for step_plan in steps:
        if step_plan.key in (step.key, parent):
            resources: ResourceSettings = step_plan.settings.resources
            if claim_of(resources) is None:
                return ""
            return describe(
                ResourceSettings(**{name: resources.get(name) for name in _ACCELERATOR_FIELDS if resources.get(name)})
            )
    return None


def running_receipt(event: EventRow, *, now: float | None = None) -> StepReceipt:
    """The receipt of a running attempt, from its samples if they are on this machine."""
    lease = from_json(Lease, event.data, strict=False)
    path, request, fallback = lease.samples, lease.asked, lease.fallback
    number = _attempt_number(event)
    has_samples = bool(path) and os.path.exists(path)
    if has_samples:
        from stoker.devices import receipt as sampling

        samples = sampling.read(path)
        if samples.header:
            # No advice yet: the rest of the step may change it.
            receipt = sampling.receipt_of(samples, asked=request, status="running", fallback=fallback)
            receipt = attrs.evolve(receipt, whole=False)
            return StepReceipt(
                key=event.key, number=number, receipt=receipt, tracks=sampling.tracks(samples), running=True
            )
    moment = time.time() if now is None else now
    receipt = Receipt(
        verdict="cpu-fallback" if fallback else "unknown",
        evidence=()
        if fallback
        else ("there are no samples yet" if has_samples else "its samples are not on this machine",),
        asked=request,
        started=event.time,
        seconds=max(0.0, moment - event.time),
        devices=tuple(_unmeasured_use(device) for device in lease.held),
        fallback=fallback,
        whole=False,
    )
    return StepReceipt(key=event.key, number=number, receipt=receipt, running=True)


def _current_receipt(store: Store, step: Step) -> StepReceipt | None:
    if step.status in STEP_DONE:
        return None
    events = [row for row in store.records.events(step.run_id) if row.kind == LEASED and row.key == step.key]
    newest_number = step.attempts[-1].number if step.attempts else 0
    return running_receipt(events[-1]) if events and _attempt_number(events[-1]) > newest_number else None


def _attempt_number(event: EventRow) -> int:
    """The number of the attempt that got the devices; it runs until the store has its row."""
    return int(event.data.get("attempt") or 0)


def _unmeasured_use(device: Device) -> Use:
    """The use of a device without measurements."""
    return Use(
        uuid=device.uuid,
        kind=device.kind,
        index=device.index,
        model=device.model,
        memory=device.memory,
        slice=device.slice,
        simulated=device.simulated,
    )


MAX_WIDTH: Final = 100
"""Columns; longer lines are harder to read, and a wider chart shows no more."""
MIN_WIDTH: Final = 30
COLOURS: Final[Mapping[str, str]] = {"used": "32", "idle": "33", "wrong-device": "31", "cpu-fallback": "33"}
"""verdict → its colour on a terminal"""

Paint = Callable[[str, str], str]


def uncoloured(text: str, _: str) -> str:
    """The text without colour."""
    return text


def receipt_lines(
    receipt: Receipt,
    tracks: Sequence[Track],
    *,
    width: int,
    running: bool = False,
    glyphs: Glyphs = BLOCKS,
    paint: Paint = uncoloured,
) -> Iterator[str]:
    """The whole receipt, no line wider than `width` and `MAX_WIDTH`; with `running`, a missing end is expected."""
    width = max(MIN_WIDTH, min(width, MAX_WIDTH))
    facts = [*receipt_facts(receipt, running=running)]
    margin = max(len(name) for name, _ in facts) + 4
    for name, text in facts:
        first, *following = textwrap.wrap(text, width - margin, break_on_hyphens=False) or [""]
        coloured = paint(first, COLOURS.get(receipt.verdict, "")) if name == "verdict" else first
        yield f"  {name:<{margin - 2}}{coloured}"
        yield from (" " * margin + line for line in following)
    for table in _device_tables(receipt.devices, width):
        yield ""
        yield from _aligned(table, paint)
    for lines in _charts(receipt, tracks, width, glyphs):
        yield ""
        yield paint(lines[0], "1")
        yield from lines[1:]


def receipt_facts(receipt: Receipt, *, running: bool) -> Iterator[tuple[str, str]]:
    """Name and text of everything that is not a number of one device, without empty texts."""
    devices = words.devices_text(receipt.devices)
    yield "verdict", receipt.verdict
    yield from _numbered_once("evidence", receipt.evidence)
    if receipt.fallback and not any(receipt.fallback in sentence for sentence in receipt.evidence):
        yield "no devices", receipt.fallback
    if receipt.left_idle and not receipt.stopped:
        yield "left idle", receipt.left_idle
    if receipt.stopped:
        yield "stopped", receipt.stopped
    if receipt.asked:
        yield "asked for", receipt.asked
    yield "held", devices or "nothing"
    samples = max((use.samples for use in receipt.devices), default=0)
    watched = f", {count_text(samples, 'sample')} every {time_text(receipt.interval)}" if samples else ""
    unfinished = "" if receipt.whole or running else ", its end was not seen: the sampler was killed, too"
    yield "took", time_text(receipt.seconds) + watched + unfinished
    if receipt.placement:
        place = [
            receipt.placement[name] for name in ("job", "node", "partition", "task", "url") if name in receipt.placement
        ]
        yield "ran as", ", ".join(place)
    if receipt.queue_seconds is not None:
        yield "in the queue", time_text(receipt.queue_seconds)
    if receipt.data_seconds is not None:
        yield "for its data", time_text(receipt.data_seconds)
    if receipt.lost_seconds:
        yield "lost", f"{time_text(receipt.lost_seconds)} of work after the last checkpoint"
    if receipt.restart_seconds:
        yield "restarting", time_text(receipt.restart_seconds)
    energy = words.energy_text(words.totals([receipt]).energy)
    if energy:
        yield "energy", energy
    if receipt.cpus_mean is not None or receipt.cpus_peak is not None:
        yield "cores", _mean_and_peak(receipt.cpus_mean, receipt.cpus_peak, words.cores_text)
    if receipt.memory_mean is not None or receipt.memory_peak is not None:
        yield "host memory", _mean_and_peak(receipt.memory_mean, receipt.memory_peak, memory_text)
    if receipt.predicted is not None:
        yield "predicted", receipt.prediction
        yield "found", f"{receipt.found}{_surprise(receipt)}" if receipt.found else "the gate was not reached"
    yield from _numbered_once("proved", [f"{name} {value}" for name, value in receipt.proved.items()])
    yield from _numbered_once("advice", receipt.advice)


def _surprise(receipt: Receipt) -> str:
    """What is to be said where the job found something else than the plan had proved; empty where they agree."""
    if receipt.predicted == "proved" and receipt.found == "unfit":
        return ", although it was proved: a fact of the plan is wrong, and `stoker plan --explain` has its source"
    return ""


def _numbered_once(name: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """One row for each text; only the first has the name."""
    for index, text in enumerate(texts):
        yield "" if index else name, text


def _mean_and_peak(mean: float | None, peak: float | None, words_of: Callable[[float], str]) -> str:
    parts = [("mean", words.text_or_empty(mean, words_of)), ("peak", words.text_or_empty(peak, words_of))]
    return ", ".join(f"{name} {text}" for name, text in parts if text)


_UUID: Final = 20
"""Characters up to which a UUID is shown whole; NVIDIA's have 40, and their beginning is unique on a machine."""


def _uuid(use: Use) -> str:
    """The UUID, shortened; empty for a simulated device, whose UUID names nothing."""
    if use.simulated:
        return ""
    return use.uuid if len(use.uuid) <= _UUID else use.uuid[:12]


DEVICE_ROWS: Final[Sequence[tuple[str, Callable[[Use], str]]]] = (
    ("", words.device_name),
    ("model", words.model_text),
    ("utilisation", lambda use: words.percent_text(use.utilization_mean)),
    ("  peak", lambda use: words.percent_text(use.utilization_peak)),
    ("idle", lambda use: words.percent_text(None if use.idle is None else use.idle * 100)),
    ("first use", lambda use: words.text_or_empty(use.first_use, time_text)),
    ("longest idle", lambda use: words.text_or_empty(use.longest_idle, time_text)),
    ("memory", lambda use: memory_text(use.memory) if use.memory else ""),
    ("  mean", lambda use: words.text_or_empty(use.memory_mean, memory_text)),
    ("  peak", lambda use: words.text_or_empty(use.memory_peak, memory_text)),
    ("  own peak", lambda use: words.text_or_empty(use.own_memory_peak, memory_text)),
    ("power", lambda use: words.power_text(use.power_mean)),
    ("  peak", lambda use: words.power_text(use.power_peak)),
    ("energy", lambda use: words.energy_text(use.energy)),
    ("temperature", lambda use: words.text_or_empty(use.temperature_peak, "{:.0f} °C".format)),
    ("clock", lambda use: words.text_or_empty(use.clock_mean, "{:.0f} MHz".format)),
    ("PCIe in", lambda use: words.rate_text(use.pcie_received)),
    ("PCIe out", lambda use: words.rate_text(use.pcie_sent)),
    ("held back", lambda use: words.throttled_text(use).partition(", ")[0]),
    ("uuid", _uuid),
)
"""name of a row → its cell for a device; "held back" has only the worst reason"""


def _device_tables(uses: Sequence[Use], width: int) -> Iterator[list[tuple[str, ...]]]:
    """Tables with as many devices side by side as fit, without empty rows."""
    columns = [tuple(cell(use) for _, cell in DEVICE_ROWS) for use in uses]
    rows = [row for row in range(len(DEVICE_ROWS)) if any(column[row] for column in columns)]
    names = tuple(DEVICE_ROWS[row][0] for row in rows)
    margin = max(map(len, names), default=0) + 2
    columns = [tuple(column[row] for row in rows) for column in columns]
    while columns:
        count, room = 1, width - margin - _width(columns[0])
        while count < len(columns) and room >= _width(columns[count]):
            room -= _width(columns[count])
            count += 1
        yield list(zip(names, *columns[:count]))
        columns = columns[count:]


def _width(column: Sequence[str]) -> int:
    return max(map(len, column)) + 2


def _aligned(table: Sequence[Sequence[str]], paint: Paint) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table)]
    for number, row in enumerate(table):
        name, *cells = row
        line = "  " + "  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:]))]).rstrip()
        yield line if number else paint(line, "1")


_OF_DEVICES: Final = (("utilization", "utilisation"), ("memory", "memory"), ("power", "power"))
_OF_PROCESSES: Final = (("cpus", "cores in use"), ("memory", "host memory"))
_WRITE: Final[Mapping[str, Callable[[float], str]]] = {
    "utilization": "{:.0f} %".format,
    "memory": memory_text,
    "power": "{:.0f} W".format,
    "cpus": words.cores_text,
}
"""track → a value in words, with its unit"""


_MARGIN: Final = len("85.9 GB")
"""Columns of every scale, so that the time axes of the charts align."""


def _charts(receipt: Receipt, tracks: Sequence[Track], width: int, glyphs: Glyphs) -> Iterator[list[str]]:
    """A chart for each quantity of each device, then for those of the processes; none without measurements."""
    by_name = {(track.uuid, track.name): track for track in tracks if any(v is not None for v in track.values)}
    height = 5 if len(receipt.devices) <= 2 else 3
    end = max([receipt.seconds, *(time for track in by_name.values() for time in track.times)])
    # Devices of one receipt share their scales, so that they can be compared.
    for use in receipt.devices:
        for name, title in _OF_DEVICES:
            track = by_name.get((use.uuid, name))
            if track is not None:
                same_quantity = [one for (uuid, quantity), one in by_name.items() if uuid and quantity == name]
                high = scale_end(name, use, same_quantity)
                label = f"{title} of {words.device_name(use)}"
                yield _chart(track, label, size=(width, height), high=high, style=_style(name, end, glyphs))
    for name, title in _OF_PROCESSES:
        track = by_name.get(("", name))
        if track is not None:
            yield _chart(track, title, size=(width, 3), high=round_maximum([track]), style=_style(name, end, glyphs))


def _style(name: str, end: float, glyphs: Glyphs) -> Style:
    return Style(glyphs=glyphs, words=_WRITE[name], end=end, margin=_MARGIN)


def _chart(track: Track, title: str, *, size: tuple[int, int], high: float, style: Style) -> list[str]:
    width, height = size
    label = title + _peak(track, style.glyphs)
    lines = chart(track.times, track.values, width=width - 2, height=height, high=high, label=label, style=style)
    return [("  " + line).rstrip() for line in lines]


def _peak(track: Track, glyphs: Glyphs) -> str:
    """The highest value, and the character of a gap if there are gaps."""
    peak = track.peak if track.peak is not None else max(v for v in track.values if v is not None)
    gaps = f", {glyphs.gap} unknown" if any(value is None for value in track.values) else ""
    return f", peak {_WRITE[track.name](peak)}{gaps}"


def scale_end(name: str, use: Use, tracks: Sequence[Track]) -> float:
    """The upper end of the scale for a quantity of a device; `tracks` are those that share the scale."""
    if name == "utilization":
        return 100.0
    if name == "memory" and use.memory:
        return float(use.memory)
    return round_maximum(tracks)


def round_maximum(tracks: Sequence[Track]) -> float:
    """A round number at or above every measured value, also those that thinning removed."""
    values = [value for track in tracks for value in (*track.values, track.peak)]
    return ceiling(max((value for value in values if value is not None and math.isfinite(value)), default=0.0))
