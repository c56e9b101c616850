"""Draws a run as it goes on in a few lines, for a terminal on which a person looks on. Pure: it returns the lines.

A step is a line: what runs, for how long, on which devices, and how its loss goes; what waits, for what and why; a
fan-out is one line however many elements it has. Where a terminal is too low for all steps, those that move come first
and the others are counted.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Mapping, Sequence

from stoker.core.printable import printable
from stoker.core.status import STEP_DONE, STEP_GOOD
from stoker.core.words import count_text, number_text, time_text
from stoker.plan import plandoc
from stoker.report.progress import Curve, Progress, ProgressRow, planned_row

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.client.runs import Placements


MARKS: Final = {
    "succeeded": ("✓", "32"),
    "cached": ("≡", "36"),
    "failed": ("✗", "31"),
    "interrupted": ("✗", "31"),
    "skipped": ("–", "2"),
    "cancelled": ("■", "33"),
    "stopped": ("■", "2"),
    "running": ("▸", "34"),
    "waiting": ("◦", "33"),
    "pending": ("·", "2"),
}
"""State → its sign and its ANSI colour; the sign alone tells it."""
BARS: Final = "▁▂▃▄▅▆▇█"
CURVE: Final = 16
"""Columns of a curve."""
_BAR: Final = 20
"""Columns of a fan-out's bar."""
_MOST: Final = 24
"""Lines for steps, however high the terminal is: what steps write has its place above."""
_OTHERS: Final = 5
"""Lines of a terminal that are left for other things."""

Paint = Callable[[str, str], str]
"""A text in an ANSI colour."""


def draw(progress: Progress, *, now: float, width: int, height: int, paint: Paint) -> list[str]:
    """The lines, each of at most `width` columns and fewer than `height`; `now` is of the monotonic clock."""
    room = max(1, min(_MOST, height - _OTHERS))
    lines: list[str] = []
    rows, hidden = chosen(progress.rows.values(), room)
    names = min(max((columns_of(title(row)) for row in rows), default=0), max(8, width // 3))
    for row in rows:
        state = state_of(row)
        sign, colour = MARKS[state]
        name = pad(cut(title(row), names), names)
        facts = cut(row_text(row, progress.rows, now), width - names - 5)
        lines.append(f"{paint(sign, colour)} {name}  {paint(facts, '2') if state == 'pending' else facts}".rstrip())
        if row.complaint and state in ("running", "waiting", "failed"):
            lines.append(paint(cut(f"  ! {row.complaint}", width - 1), "31" if state == "failed" else "33"))
    if hidden:
        parts = [f"{number:,} {state}" for state, number in Counter(state_of(row) for row in hidden).items()]
        lines.append(cut(f"  … and {', '.join(parts)}", width - 1))
    return [*lines, paint(cut(f"  {summary(progress, now)}", width - 1), "2")]


def summary(progress: Progress, now: float) -> str:
    """The run in a line: how far it is, since when, and which devices it has."""
    rows = progress.rows.values()
    ended = sum(row.status in STEP_DONE for row in rows)
    parts = [f"{progress.pipeline} {progress.run}: {ended:,}/{count_text(len(rows), 'step')}"]
    parts.append(time_text(max(0.0, now - progress.started)))
    held = devices_text(device for row in rows for devices in row.devices.values() for device in devices)
    return ", ".join([*parts, *([f"holds {held}"] if held else [])])


def chosen(rows: Iterable[ProgressRow], room: int) -> tuple[list[ProgressRow], list[ProgressRow]]:
    """The rows to show, in their order, and those for which there is no room.

    What runs or waits comes first, then what failed, what ended last, and what comes next.
    """
    rows = list(rows)
    lines = len(rows) + sum(bool(row.complaint) for row in rows)
    if lines <= room:
        return rows, []
    order = {"running": 0, "waiting": 1, "failed": 2, "interrupted": 2, "pending": 3}
    ranked = sorted(range(len(rows)), key=lambda index: (order.get(state_of(rows[index]), 4), index))
    room -= 1  # for the count of the others
    shown: set[int] = set()
    for index in ranked:
        room -= 2 if rows[index].complaint else 1
        if room < 0:
            break
        shown.add(index)
    return [rows[i] for i in sorted(shown)], [row for i, row in enumerate(rows) if i not in shown]


def state_of(row: ProgressRow) -> str:
    """The status of a row, or "waiting" where nothing of it runs and something waits."""
    if row.status not in ("pending", "running"):
        return row.status
    if row.again is not None and not row.running:
        return "waiting"
    if row.running:
        return "waiting" if len(row.waits) >= len(row.running) else "running"
    return "waiting" if row.waits else row.status


def title(row: ProgressRow) -> str:
    """What a row is called: "score ×10,000"."""
    return row.name if row.count is None else f"{row.name} ×{row.count:,}"


def row_text(row: ProgressRow, rows: Mapping[str, ProgressRow], now: float) -> str:
    """What there is to say of a step on the rest of its line."""
    if row.status in STEP_DONE:
        return ended_text(row)
    if row.is_group:
        return _group_text(row, now)
    wait = row.waits.get(row.name)
    if wait is not None:
        return "sent; its platform has not looked at it yet" if wait == "sent" else wait
    if row.again is not None:
        moment, cause = row.again
        return f"again in {time_text(max(0.0, moment - now))}: {cause}"
    if row.running:
        since = next(iter(row.running.values()))
        held = devices_text(device for devices in row.devices.values() for device in devices)
        parts = [time_text(max(0.0, now - since)), f"on {held}" if held else "", curve_text(row.curve)]
        return "  ".join(filter(None, parts))
    missing = [key for key in row.needs if key in rows and rows[key].status not in STEP_GOOD]
    return f"waits for {_listed(missing)}" if missing else _place_text(row, rows)


def _place_text(row: ProgressRow, rows: Mapping[str, ProgressRow]) -> str:
    """Why a step is not sent although nothing before it is missing: the steps that have the machine, or its devices."""
    busy = [other for other in rows.values() if other.devices] if row.wants else []
    names = [other.name for other in busy or rows.values() if other.running]
    if not names:
        return ""
    what = count_text(row.wants, "accelerator") if busy else "a place"
    return f"waits for {what}: {_listed(names)} {'runs' if len(names) == 1 else 'run'}"


def ended_text(row: ProgressRow) -> str:
    """How a step ended."""
    ended = [f"{number:,} {status}" for status, number in row.statuses.items()] if len(row.statuses) > 1 else []
    parts = [", ".join(ended) or row.status, time_text(row.seconds) if row.seconds else "", curve_text(row.curve)]
    return "  ".join(filter(None, parts))


def _group_text(row: ProgressRow, now: float) -> str:
    ended, running = row.finished, max(0, len(row.running) - len(row.waits))
    parts = []
    if row.count is not None:
        filled = "━" * (_BAR * ended // row.count if row.count else _BAR)
        parts.append(f"{filled.ljust(_BAR, '─')} {ended:,}/{row.count:,}")
    else:
        parts.append(f"{ended:,} ended")
    bad = [f"{number:,} {status}" for status, number in row.statuses.items() if status not in STEP_GOOD]
    counts = [f"{running:,} running", *bad] if running else bad
    held = devices_text(device for devices in row.devices.values() for device in devices)
    if counts or held:
        parts.append(", ".join(counts) + (f" on {held}" if held else ""))
    if row.reasons:
        reason = max(row.reasons, key=lambda reason: row.reasons[reason])
        more = f" and {count_text(len(row.reasons) - 1, 'other reason')}" if len(row.reasons) > 1 else ""
        why = "" if reason == "sent" else f": {reason}{more}"
        parts.append(f"{sum(row.reasons.values()):,} {'sent' if reason == 'sent' else 'waiting'}{why}")
    if row.again is not None and not row.running:
        parts.append(f"again in {time_text(max(0.0, row.again[0] - now))}: {row.again[1]}")
    return "  ".join(parts)


def curve_text(curve: Curve | None) -> str:
    """A number's course and its last value: "loss █▆▄▃▂▁ 0.312"."""
    if curve is None:
        return ""
    return f"{curve.name} {sparkline(curve.values, CURVE)} {number_text(curve.last)}"


def sparkline(values: Sequence[float], columns: int) -> str:
    """Values as bars from the lowest to the highest; of several in one column their mean. "×" is no finite number."""
    if not values:
        return ""
    size = max(1.0, len(values) / columns)
    edges = [int(index * size) for index in range(columns + 1)]
    parts = [values[edge : max(edge + 1, end)] for edge, end in itertools.pairwise(edges)]
    means = [sum(part) / len(part) for part in parts if part]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0

    def bar(mean: float) -> str:
        return BARS[round((mean - low) / span * (len(BARS) - 1))] if math.isfinite(mean) else "×"

    return "".join(map(bar, means))


def devices_text(devices: Iterable[Mapping[str, Any]]) -> str:
    """Devices by model: "H100-80GB 0, 1; A10 3"; of more than eight of a model their number."""
    by_model: dict[str, dict[int, None]] = {}
    for device in devices:
        by_model.setdefault(str(device["model"]), {})[int(device["index"])] = None
    texts = []
    for model, indexes in by_model.items():
        named = ", ".join(map(str, sorted(indexes)))
        texts.append(f"{model} {named}" if len(indexes) <= 8 else f"{len(indexes)} {model}")
    return "; ".join(texts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


# Columns


def cut(text: str, width: int) -> str:
    """The text as one line of at most `width` columns: what is drawn in place must not wrap."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    if len(line) <= width and line.isascii():
        return line
    if columns_of(line) <= width:
        return line
    shown, used = "", 0
    for letter in line:
        used += columns_of(letter)
        if used > width - 1:
            return f"{shown}…" if width > 0 else ""
        shown += letter
    return shown


def pad(text: str, width: int) -> str:
    """The text with spaces up to `width` columns."""
    return text + " " * max(0, width - columns_of(text))


def columns_of(text: str) -> int:
    """Columns of a text on a terminal: letters of East Asia are wide, marks have none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def pending_texts(run: Run, placements: Placements) -> Mapping[str, str]:
    """Step → what it waits for: other steps, or a place or accelerators that they have. Steps of which their platform
    says why they wait have their own message; those of a run that is over wait for nothing."""
    steps = run.steps
    pending = [key for key, step in steps.items() if step.status == "pending" and not step.message]
    text = run.store.records.plan(run.id) if pending and run.status == "running" else ""
    if not text:
        return {}
    rows = {planned.key: planned_row(planned) for planned in plandoc.load(text).steps if planned.key in steps}
    for key, row in rows.items():
        row.status = steps[key].status
        if row.status == "running":
            row.running[key] = 0.0
            if row.wants:
                row.devices[key] = ()
        elif key in placements and placements[key][-1].ended is None:
            row.waits[key] = "sent"
    return {key: words for key in pending if key in rows and (words := row_text(rows[key], rows, 0.0))}
