"""Shows a run on stderr: live while it runs, a summary at its end. Stdout belongs to the program.

On a terminal, the running steps are a few lines at the bottom that are redrawn in place, and the steps' output scrolls
above them. Elsewhere (a pipe, a CI log) every change is one plain line.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence, TextIO

import attrs

from stoker.core.plan import LogLine, Plan
from stoker.core.words import count_text, memory_text, time_text
from stoker.worker.failure import explanation_lines

if TYPE_CHECKING:
    from stoker.report.complaints import Block

REDRAW: Final = 0.1
"""Seconds between two drawings: more often flickers on slow terminals and costs the run time."""
QUIET_START: Final = 0.3
"""Seconds before the first drawing: a shorter run only shows its summary."""
_MARKS: Final = {
    "succeeded": ("✓", "32"),
    "cached": ("≡", "36"),
    "failed": ("✗", "31"),
    "skipped": ("–", "2"),
    "cancelled": ("■", "33"),
    "running": ("▸", "34"),
    "pending": ("·", "2"),
}
_MAX_LINES: Final = 8
"""Running steps and warnings that are listed; more are a count."""


@attrs.define
class _Row:
    """A line of the summary: a step, or all elements of a fan-out together."""

    name: str
    status: str = "pending"
    statuses: dict[str, int] = attrs.field(factory=dict)
    """Status → elements of a fan-out that ended with it."""
    count: int | None = None
    """Elements of a fan-out; None for a step."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU time, of all elements."""
    peak: float = 0.0
    """Bytes: the largest memory of one element."""
    attempts: int = 0
    """The most attempts of one element."""
    receipts: dict[str, int] = attrs.field(factory=dict)
    """Line about accelerators → elements that have it."""


class Terminal:
    """Shows a run on a text stream; a `core.observer.Observer`."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = True) -> None:
        self._out = stream or sys.stderr
        self._tty = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._tty and "NO_COLOR" not in os.environ
        self._verbose = verbose
        self._rows: dict[str, _Row] = {}
        self._running: dict[str, float] = {}
        self._waits: dict[str, str] = {}
        self._devices: dict[str, str] = {}
        self._drawn = 0
        self._last = 0.0
        self._run = ""
        self._pipeline = ""
        self._started = 0.0
        self._failures: list[tuple[str, Mapping[str, Any]]] = []
        self._blocks: dict[tuple[str, int], dict[int, Block]] = {}
        self._warnings: list[str] = []

    def began(self, run: str, plan: Plan) -> None:
        """Note the steps in their order."""
        self._run, self._pipeline, self._started = run, plan.pipeline, time.monotonic()
        for step in plan.steps:
            self._rows[step.key] = _Row(step.key)

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """Note a step's new status, and redraw."""
        parent = facts.get("parent", "")
        row = self._rows.setdefault(parent or key, _Row(parent or key))
        if status == "expanded":
            row.count = facts["count"]
            row.status = "running"
        elif status == "waiting":
            self._waits[key] = facts["message"]
            if not self._tty:
                self._line(f"{key}: {facts['message']}")
        elif status == "leased":
            self._waits.pop(key, None)
            self._devices[key] = _devices_text(facts["devices"])
            self._running[key] = time.monotonic()  # time that it waited for devices does not count
        elif status == "running":
            self._waits.pop(key, None)
            self._running[key] = time.monotonic()
            row.status = "running"
        elif status == "retrying":
            self._running.pop(key, None)
            self._devices.pop(key, None)
            changed = "".join(f", {change}" for change in facts.get("changes", ()))
            again = f"again in {time_text(facts['wait'])}{changed}"
            self._line(f"{key}: attempt {facts['attempt']} ended: {facts['cause']}; {again}")
        else:
            self._record_end(row, key, status, facts, element=bool(parent))
        self._draw()

    def _record_end(self, row: _Row, key: str, status: str, facts: Mapping[str, Any], *, element: bool) -> None:
        self._running.pop(key, None)
        self._waits.pop(key, None)
        self._devices.pop(key, None)
        if facts.get("receipt"):
            row.receipts[facts["receipt"]] = row.receipts.get(facts["receipt"], 0) + 1
        if facts.get("warning"):
            self._warnings.append(f"{key}: {facts['warning']}")
        if element:
            row.statuses[status] = row.statuses.get(status, 0) + 1
        else:
            row.status = status
        if not element:
            row.seconds = facts.get("seconds") or 0.0
        row.cpu += facts.get("cpu") or 0.0
        row.peak = max(row.peak, facts.get("peak") or 0.0)
        row.attempts = max(row.attempts, facts.get("attempt") or 0)
        if status == "failed" and (element or row.count is None):
            self._failures.append((key, facts))
        if not self._tty and self._verbose and not element:
            self._line(self._mark(status) + f" {key} {self._facts(row)}".rstrip())

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """Show lines that a step wrote, with its name; of ranks other than 0 only errors."""
        if not self._verbose:
            return
        if any(line.rank for line in lines):
            from stoker.report.complaints import lines_to_show

            lines, self._blocks[key, attempt] = lines_to_show(lines, self._blocks.get((key, attempt), {}))
            if not lines:
                return
        head = self._paint(f"{key or self._pipeline} │ ", "2")  # the run's own hooks have no step
        heads = {rank: head + self._paint(f"[{rank}] ", "2") for rank in {line.rank for line in lines} if rank}
        self._line("\n".join(heads.get(line.rank or 0, head) + line.text.rpartition("\r")[2] for line in lines))

    def message(self, text: str) -> None:
        """Show a message."""
        self._line(text)

    def ended(self, status: str) -> None:
        """Show the failures with their tracebacks, the table of steps, and the next commands."""
        self._erase()
        for key, facts in self._failures:
            self._out.write(self._failure(key, facts))
        self._out.write("\n".join([*self._table(), *self._closing_lines(status)]) + "\n")
        self._out.flush()

    def _failure(self, key: str, facts: Mapping[str, Any]) -> str:
        where = f" on rank {facts['rank']} of {facts['world_size']}" if "rank" in facts else ""
        head = self._paint(f"{key} failed{where}: {facts.get('cause', '')}", "1;31")
        body = facts.get("traceback") or facts.get("message") or ""
        parts = {name: facts.get(name, "") for name in ("why", "advice", "evidence")}
        return f"\n{head}\n{body.rstrip()}\n{explanation_lines(**parts, body=body)}"

    def _table(self) -> list[str]:
        width = max((len(self._title(row)) for row in self._rows.values()), default=4)
        rows = list(self._rows.values())
        hidden = rows[40:] if len(rows) > 50 else []
        lines = [""]
        for row in rows[: len(rows) - len(hidden)]:
            lines.append(f"  {self._mark(row.status)} {self._title(row):<{width}}  {self._facts(row)}".rstrip())
        if hidden:
            tally: dict[str, int] = {}
            for row in hidden:
                tally[row.status] = tally.get(row.status, 0) + 1
            lines.append(f"    … and {len(hidden)} more: " + ", ".join(f"{n} {status}" for status, n in tally.items()))
        return lines

    def _title(self, row: _Row) -> str:
        return row.name if row.count is None else f"{row.name} ×{row.count}"

    def _facts(self, row: _Row) -> str:
        facts = [row.status]
        if row.count is not None and len(row.statuses) > 1:
            facts = [", ".join(f"{number} {status}" for status, number in row.statuses.items())]
        if row.seconds:
            facts.append(time_text(row.seconds))
        if row.cpu >= 0.005:
            facts.append(f"cpu {time_text(row.cpu)}")
        if row.peak:
            facts.append(f"peak {memory_text(row.peak)}")
        if row.attempts > 1:
            facts.append(f"{row.attempts} attempts")
        # Elements on one device each are alike; where they are not, `stoker gpu` has the list.
        facts += [text if count == 1 else f"{count} times {text}" for text, count in list(row.receipts.items())[:3]]
        return "  ".join(facts)

    def _closing_lines(self, status: str) -> list[str]:
        duration = time_text(time.monotonic() - self._started)
        rows = list(self._rows.values())
        cached = sum(row.status == "cached" for row in rows)
        head = f"{self._mark(status)} {self._pipeline} {status} in {duration}: {count_text(len(rows), 'step')}"
        if cached:
            head += f", {cached} cached"
        lines = ["", *(self._paint(f"  ! {warning}", "33") for warning in self._warnings[:_MAX_LINES]), head]
        if len(self._warnings) > _MAX_LINES:
            lines.insert(-1, f"  ! … and {len(self._warnings) - _MAX_LINES} more: stoker gpu {self._run}")
        if status == "succeeded":
            lines.append(f"  look: stoker show {self._run} · in Python: Client().run('{self._run}')")
        else:
            lines.append(
                f"  look: stoker show {self._run} · stoker logs {self._run} STEP · go on: stoker resume {self._run}"
            )
        return lines

    # Drawing

    def _mark(self, status: str) -> str:
        mark, colour = _MARKS.get(status, ("·", "2"))
        return self._paint(mark, colour)

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text

    def _line(self, text: str) -> None:
        self._erase()
        self._out.write(text + "\n")
        if not self._tty:
            self._out.flush()
        self._draw(now=True)

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def tick(self) -> None:
        """Redraw, so that times advance while nothing happens."""
        self._draw()

    def _draw(self, *, now: bool = False) -> None:
        clock = time.monotonic()
        if not self._tty or clock - self._started < QUIET_START or (not now and clock - self._last < REDRAW):
            return
        self._last = clock
        self._erase()
        width = shutil.get_terminal_size().columns - 1
        lines = []
        for key, since in list(self._running.items())[:_MAX_LINES]:
            state = self._waits.get(key) or "  ".join(
                filter(None, (time_text(clock - since), self._devices.get(key, "")))
            )
            lines.append(f"{self._mark('running')} {key}  {state}"[: width + 9])
        if len(self._running) > _MAX_LINES:
            lines.append(f"  … and {len(self._running) - _MAX_LINES} more running")
        for row in self._rows.values():
            if row.count and row.status == "running":
                ended = sum(row.statuses.values())
                bar = "━" * int(20 * ended / row.count)
                lines.append(f"  {row.name} {self._paint(bar.ljust(20, '─'), '34')} {ended}/{row.count}"[: width + 9])
        ended = sum(row.status not in ("pending", "running") for row in self._rows.values())
        lines.append(
            self._paint(f"  {self._pipeline}: {ended}/{len(self._rows)} steps, {time_text(clock - self._started)}", "2")
        )
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()
        self._drawn = len(lines)


def _devices_text(devices: Sequence[Mapping[str, Any]]) -> str:
    """Devices on a line: "on H100-80GB 0, 1"."""
    by_model: dict[str, list[str]] = {}
    for device in devices:
        by_model.setdefault(device["model"], []).append(str(device["index"]))
    return "on " + "; ".join(f"{model} {', '.join(indexes)}" for model, indexes in by_model.items()) if by_model else ""
