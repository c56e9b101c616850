"""A run in the terminal: live while it goes, a summary when it is over. All of it on stderr; stdout is the program's.

On a terminal the steps that run stand in a few lines at the bottom, redrawn in place, and what steps write scrolls by
above them. Elsewhere (a pipe, a CI log) every change is one plain line.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence, TextIO

from stoker.core.plan import LogLine, Plan
from stoker.core.words import count_text, memory_text, time_text
from stoker.worker.failure import shown

if TYPE_CHECKING:
    from stoker.report.complaints import Block

REDRAW: Final = 0.1
"""Seconds between two drawings: faster flickers on slow terminals and costs the run."""
QUIET_START: Final = 0.3
"""Seconds before the first drawing: a run that is over by then only shows its summary."""
_MARKS: Final = {
    "succeeded": ("✓", "32"),
    "cached": ("≡", "36"),
    "failed": ("✗", "31"),
    "skipped": ("–", "2"),
    "cancelled": ("■", "33"),
    "running": ("▸", "34"),
    "pending": ("·", "2"),
}
_SHOWN: Final = 8
"""Lines of running steps; the rest is a count."""


class _Row:
    """What the summary knows of a step, or of all elements of a fan-out together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "pending"
        self.statuses: dict[str, int] = {}
        self.count: int | None = None
        self.seconds = 0.0
        self.cpu = 0.0
        self.peak = 0.0
        self.attempts = 0
        self.receipts: dict[str, int] = {}


class Terminal:
    """Shows a run on a text stream; `core.observer.Observer`."""

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
        """Remember the steps in their order."""
        self._run, self._pipeline, self._started = run, plan.pipeline, time.monotonic()
        for step in plan.steps:
            self._rows[step.key] = _Row(step.key)

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """Take a change in, and show it if it is time."""
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
            self._running[key] = time.monotonic()  # what it waited is not its time
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
            self._settled(row, key, status, facts, element=bool(parent))
        self._draw()

    def _settled(self, row: _Row, key: str, status: str, facts: Mapping[str, Any], *, element: bool) -> None:
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
        """Let a step's lines scroll by, its name before each; of ranks other than 0 only complaints."""
        if not self._verbose:
            return
        if any(line.rank for line in lines):
            from stoker.report.complaints import worth_showing

            lines, self._blocks[key, attempt] = worth_showing(lines, self._blocks.get((key, attempt), {}))
            if not lines:
                return
        head = self._paint(f"{key or self._pipeline} │ ", "2")  # the run's own hooks have no step
        heads = {rank: head + self._paint(f"[{rank}] ", "2") for rank in {line.rank for line in lines} if rank}
        self._line("\n".join(heads.get(line.rank or 0, head) + line.text.rpartition("\r")[2] for line in lines))

    def said(self, text: str) -> None:
        """Let a sentence scroll by."""
        self._line(text)

    def ended(self, status: str) -> None:
        """The failures with their tracebacks, the table of steps, and where to look next."""
        self._erase()
        for key, facts in self._failures:
            self._out.write(self._failure(key, facts))
        self._out.write("\n".join([*self._table(), *self._farewell(status)]) + "\n")
        self._out.flush()

    def _failure(self, key: str, facts: Mapping[str, Any]) -> str:
        where = f" on rank {facts['rank']} of {facts['world_size']}" if "rank" in facts else ""
        head = self._paint(f"{key} failed{where}: {facts.get('cause', '')}", "1;31")
        body = facts.get("traceback") or facts.get("message") or ""
        explained = {name: facts.get(name, "") for name in ("why", "advice", "evidence")}
        return f"\n{head}\n{body.rstrip()}\n{shown(**explained, body=body)}"

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

    def _farewell(self, status: str) -> list[str]:
        took = time_text(time.monotonic() - self._started)
        rows = list(self._rows.values())
        cached = sum(row.status == "cached" for row in rows)
        head = f"{self._mark(status)} {self._pipeline} {status} in {took}: {count_text(len(rows), 'step')}"
        if cached:
            head += f", {cached} cached"
        lines = ["", *(self._paint(f"  ! {warning}", "33") for warning in self._warnings[:_SHOWN]), head]
        if len(self._warnings) > _SHOWN:
            lines.insert(-1, f"  ! … and {len(self._warnings) - _SHOWN} more: stoker gpu {self._run}")
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
        """Redraw, so that times move while nothing happens."""
        self._draw()

    def _draw(self, *, now: bool = False) -> None:
        clock = time.monotonic()
        if not self._tty or clock - self._started < QUIET_START or (not now and clock - self._last < REDRAW):
            return
        self._last = clock
        self._erase()
        width = shutil.get_terminal_size().columns - 1
        lines = []
        for key, since in list(self._running.items())[:_SHOWN]:
            doing = self._waits.get(key) or "  ".join(
                filter(None, (time_text(clock - since), self._devices.get(key, "")))
            )
            lines.append(f"{self._mark('running')} {key}  {doing}"[: width + 9])
        if len(self._running) > _SHOWN:
            lines.append(f"  … and {len(self._running) - _SHOWN} more running")
        for row in self._rows.values():
            if row.count and row.status == "running":
                done = sum(row.statuses.values())
                bar = "━" * int(20 * done / row.count)
                lines.append(f"  {row.name} {self._paint(bar.ljust(20, '─'), '34')} {done}/{row.count}"[: width + 9])
        done = sum(row.status not in ("pending", "running") for row in self._rows.values())
        lines.append(
            self._paint(f"  {self._pipeline}: {done}/{len(self._rows)} steps, {time_text(clock - self._started)}", "2")
        )
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()
        self._drawn = len(lines)


def _devices_text(devices: Sequence[Mapping[str, Any]]) -> str:
    """Devices on a line: "on H100-80GB 0, 1"."""
    by_model: dict[str, list[str]] = {}
    for device in devices:
        by_model.setdefault(device["model"], []).append(str(device["index"]))
    return "on " + "; ".join(f"{model} {', '.join(found)}" for model, found in by_model.items()) if by_model else ""
