"""Shows a run on stderr: live while it runs, a summary at its end. Stdout belongs to the program.

On a terminal, the steps are a few lines at the bottom that are redrawn in place (`report.live`), and their output
scrolls above them. Elsewhere (a pipe, or where the variable CI is set) every change is one plain line with its time.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence, TextIO, cast

from stoker.core.findings import warnings
from stoker.core.plan import LogLine, Plan
from stoker.core.status import STEP_DONE
from stoker.core.words import (
    EXPECTED_START,
    attempts_text,
    bounded,
    count_text,
    memory_text,
    short,
    time_text,
    took_text,
)
from stoker.report.progress import Progress, ProgressRow
from stoker.report.streams import GuardedStream, control, painted, step_text, unpainted, write
from stoker.worker.failure import explanation_lines, short_traceback

if TYPE_CHECKING:
    from stoker.report.progress import Block

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
    "stopped": ("■", "2"),
    "running": ("▸", "34"),
    "pending": ("·", "2"),
}
_RETRY_WORDS: Final = 160
"""Characters of the message of an attempt that is followed by another one; the whole one is in its record."""
_RANKS_FAILURE: Final = 10
"""Lines of a distributed step's failure: frameworks put many of their own frames below the user's line."""
_MAX_LINES: Final = 8
"""Warnings that are listed; more are a count."""


class Terminal:
    """Shows a run on a text stream; a `core.observer.Observer`."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = True) -> None:
        self._guard = GuardedStream(stream or sys.stderr)
        self._out = cast(TextIO, self._guard)
        self._tty = self._out.isatty() and os.environ.get("TERM") != "dumb" and not _in_ci()
        self._colour = self._tty and "NO_COLOR" not in os.environ
        self._verbose = verbose
        self.progress = Progress(live=self._tty and verbose)
        self._shown_reasons: dict[str, set[str]] = {}
        self._drawn: list[int] = []
        self._last = 0.0
        self._blocks: dict[tuple[str, int], dict[int, Block]] = {}

    def on_reader_gone(self, stop: Callable[[], None]) -> None:
        """Have something called once when nobody reads the stream any more: a closed pipe, a lost terminal."""
        self._guard.on_reader_gone = stop

    def leave_terminal(self) -> None:
        """Go on in plain lines: the stream has become a file."""
        self._tty = self._colour = self.progress.live = False
        self._drawn = []

    def began(self, run: str, plan: Plan, *, started: float | None = None) -> None:
        """Note the steps in their order, and show the plan's warnings; `started` (seconds since the epoch) is when the
        run began, if that is not now."""
        for finding in warnings(plan.findings):
            self._line(finding.text())
        self.progress.begin(run, plan, started=started)

    def joined(self) -> None:
        """Say how far a run is that somebody begins to look at; where the steps are drawn, they say it."""
        if not self._tty:
            from stoker.report import live

            self._line(live.summary(self.progress, time.monotonic()))

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """Note a step's new status, and redraw."""
        row = self.progress.change(key, status, facts)
        parent = facts.get("parent", "")
        if status == "waiting":
            if not self._tty and not parent:
                self._line(f"{key}: {facts['message']}")
        elif status == "caught":
            self._line(f"{key}: {facts['message']}")
        elif status == "retrying":
            changed = "".join(f", {change}" for change in facts.get("changes", ()))
            again = f"again in {time_text(facts['wait'])}{changed}"
            message = short(facts.get("message", "").strip(), _RETRY_WORDS)
            why = f"{facts['cause']}: {message}" if message else facts["cause"]
            self._line(f"{key}: attempt {facts['attempt']} ended: {why}; {again}")
        elif status in STEP_DONE and not parent and not self._tty and self._verbose:
            self._line(self._mark(status) + f" {key} {self._facts(row)}".rstrip())
        if self.progress.live:
            self._draw()

    def logged(self, key: str, attempt: int, rows: Sequence[Sequence[Any]]) -> None:
        """Note numbers that a step logged."""
        self.progress.log(key, rows)

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """Show lines that a step wrote, with its name; of ranks other than 0 only errors."""
        lines = [line for line in lines if not line.aside]
        if not self._verbose or not lines:
            return
        self.progress.note_lines(key, lines)
        if any(line.rank for line in lines):
            from stoker.report.progress import lines_to_show

            lines, self._blocks[key, attempt] = lines_to_show(lines, self._blocks.get((key, attempt), {}))
            if not lines:
                return
        head = self._paint(f"{key or self.progress.pipeline} │ ", "2")  # the run's own hooks have no step
        heads = {rank: head + self._paint(f"[{rank}] ", "2") for rank in {line.rank for line in lines} if rank}
        self._print(
            "\n".join(
                self._time(line.time)
                + heads.get(line.rank or 0, head)
                + step_text(bounded(line.text.rpartition("\r")[2], whole="the step's log"))
                for line in lines
            )
        )

    def message(self, text: str) -> None:
        """Show a message."""
        self._line(text)

    def ended(self, status: str) -> None:
        """Show the failures with their tracebacks, the table of steps, and the next commands."""
        if self._drawn:
            write(self._erasure() + control("J"), self._out)
        for key, facts in self.progress.failures:
            write(self._failure(key, facts), self._out)
        write("\n".join([*self._table(), *self._closing_lines(status)]) + "\n", self._out)
        self._out.flush()

    def _failure(self, key: str, facts: Mapping[str, Any]) -> str:
        where = f" on rank {facts['rank']} of {facts['world_size']}" if "rank" in facts else ""
        head = self._paint(f"{key} failed{where}: {facts.get('cause', '')}", "1;31")
        body = facts.get("traceback") or facts.get("message") or ""
        parts = {name: facts.get(name, "") for name in ("why", "advice", "evidence", "whole", "earlier")}
        words = explanation_lines(**parts, body=body)
        if "rank" in facts:
            body = short_traceback(body.rstrip(), _RANKS_FAILURE - words.count("\n") - 1)
        return f"\n{head}\n{body.rstrip()}\n{words}"

    def _table(self) -> list[str]:
        width = max((len(self._title(row)) for row in self.progress.rows.values()), default=4)
        rows = list(self.progress.rows.values())
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

    def _title(self, row: ProgressRow) -> str:
        return row.name if row.count is None else f"{row.name} ×{row.count}"

    def _facts(self, row: ProgressRow) -> str:
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
            facts.append(f"{attempts_text(row.attempts, of_elements=row.is_group)} attempts")
        # Elements on one device each are alike; where they are not, `stoker gpu` has the list.
        facts += [text if count == 1 else f"{count} times {text}" for text, count in list(row.receipts.items())[:3]]
        return "  ".join(facts)

    def _closing_lines(self, status: str) -> list[str]:
        progress = self.progress
        duration = took_text(max(0.0, time.monotonic() - progress.started - progress.waited), progress.waited)
        rows = list(progress.rows.values())
        cached = [row.status for row in rows].count("cached")
        head = f"{self._mark(status)} {progress.pipeline} {status} in {duration}: {count_text(len(rows), 'step')}"
        if cached:
            head += f", {cached} cached"
        return ["", *self._warning_lines(), head, self._next_commands(status)]

    def _warning_lines(self) -> list[str]:
        warnings, run = self.progress.warnings, self.progress.run
        lines = [self._paint(f"  ! {warning}", "33") for warning in warnings[:_MAX_LINES]]
        if len(warnings) > _MAX_LINES:
            lines.append(f"  ! … and {len(warnings) - _MAX_LINES} more: stoker gpu {run}")
        return lines

    def _next_commands(self, status: str) -> str:
        run = self.progress.run
        if status == "succeeded":
            return f"  look: stoker show {run} · in Python: Client().run('{run}')"
        return f"  look: stoker show {run} · stoker logs {run} STEP · go on: stoker resume {run}"

    # Drawing

    def _mark(self, status: str) -> str:
        mark, colour = _MARKS.get(status, ("·", "2"))
        return self._paint(mark, colour)

    def _paint(self, text: str, colour: str) -> str:
        return painted(text, colour) if self._colour and text else text

    def _time(self, moment: float) -> str:
        """The time of day before a plain line, from seconds since the epoch; what is drawn has no times."""
        return "" if self._tty or not self.progress.run else _time_of_day(int(moment))

    def _line(self, text: str) -> None:
        self._print(self._time(time.time()) + text)

    def _print(self, text: str) -> None:
        """Write lines above what is drawn, all in one piece: a terminal that shows half of it flickers."""
        above = f"{text}\n"
        if self._drawn:
            above = self._erasure() + above.replace("\n", f"{control('K')}\n")
        if not self._draw(above, now=True):
            write(above, self._out)
            self._out.flush()

    def _erasure(self) -> str:
        """What moves the cursor to the first of the lines that are drawn, and forgets them. Where the terminal was
        made narrower since, they have wrapped."""
        if not self._drawn:
            return ""
        import shutil  # only where a person looks on

        width = max(1, shutil.get_terminal_size().columns)
        rows = sum(max(1, -(-columns // width)) for columns in self._drawn)
        self._drawn = []
        return control(f"{rows}F")

    def tick(self) -> None:
        """Redraw, so that times advance while nothing happens; show which elements of fan-outs wait, and why."""
        if not self._tty:
            for row in self.progress.rows.values():
                if row.reasons and (row.is_group or row.name not in row.waits):
                    self._show_waits(row)
        self._draw()

    def _show_waits(self, row: ProgressRow) -> None:
        """One line for all elements of a fan-out that wait, when there is a reason that was not there before."""
        waits = {reason: number for reason, number in row.reasons.items() if reason != "sent"}
        if not waits.keys() - self._shown_reasons.get(row.name, set()):
            return
        self._shown_reasons.setdefault(row.name, set()).update(waits)
        starts = [start for wait in row.waits.values() if (start := wait.partition(EXPECTED_START)[2])]
        parts = [f"{number:,} waiting: {reason}" for reason, number in waits.items()]
        if starts:
            parts[-1] += f", the first about {min(starts)}"
        running = len(row.running.keys() - row.waits.keys())
        self._line(f"{row.name}: {'; '.join([*parts, *([f'{running:,} running'] if running else [])])}")

    def _draw(self, above: str = "", *, now: bool = False) -> bool:
        """Draw the steps, after what stands `above` them; whether it was time, or `now`, and somebody looks on."""
        progress = self.progress
        if not progress.run or not progress.live:
            return False  # what is said while a plan is made stands before the first step
        clock = time.monotonic()
        if clock - progress.started < QUIET_START or (not now and clock - self._last < REDRAW):
            return False
        self._last = clock
        import shutil

        from stoker.report import live

        size = shutil.get_terminal_size()
        lines = live.draw(progress, now=clock, width=size.columns - 1, height=size.lines, paint=self._paint)
        begin = above or self._erasure()
        write(begin + "".join(f"{line}{control('K')}\n" for line in lines) + control("J"), self._out)
        self._out.flush()
        self._drawn = [live.columns_of(unpainted(line)) for line in lines]
        return True


def _in_ci() -> bool:
    """Whether this is a job of a service for continuous integration, which all set CI; some give it a terminal."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@functools.lru_cache(maxsize=1)
def _time_of_day(second: int) -> str:
    """What stands before a plain line; a cached step is over in less time than it takes to work this out."""
    return time.strftime("%H:%M:%S ", time.localtime(second))
