"""Shows a run in a notebook: a table that is drawn anew while the run goes on, and its report in a frame.

What steps write appears as text below the table, as in a terminal. `run.driver` chooses between the two.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from html import escape
from typing import Any, Final, Mapping, Sequence

from stoker.client import Client, Run
from stoker.core.findings import warnings
from stoker.core.plan import Plan
from stoker.core.values import frozen
from stoker.report.live import MARKS, chosen, row_text, state_of, summary, title
from stoker.report.progress import Progress, ProgressRow
from stoker.report.terminal import Terminal

EVERY: Final = 0.5
"""Seconds between two drawings: each travels to the browser and is kept until the next."""
ROWS: Final = 60
"""Rows of the table; others are counted."""
HEIGHT: Final = 640
"""Pixels of a report's frame."""
_COLOURS: Final = {
    "32": "#2e8b57",
    "36": "#3f87a6",
    "31": "#cd3b3b",
    "2": "#767676",
    "33": "#9a6700",
    "34": "#3f6fd0",
}
"""ANSI colour of a state → the same on a light and on a dark page."""
_CELL: Final = "padding:1px 12px 1px 0;text-align:left;vertical-align:top;white-space:pre-wrap"


class NotebookView(Terminal):
    """Shows a run as a table in the cell that started it; a `core.observer.Observer`."""

    def __init__(self) -> None:
        super().__init__(verbose=True)
        self.progress = Progress(live=True)
        self._display = f"stoker-{os.urandom(8).hex()}"
        self._shown = False
        self._status = ""
        self._closing: list[str] = []

    def began(self, run: str, plan: Plan, *, started: float | None = None) -> None:
        """Show the plan's steps, and its warnings as text."""
        for finding in warnings(plan.findings):
            self.message(finding.text())
        self.progress.begin(run, plan, started=started)
        self._update()

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """Note a step's new status, and draw the table if it is time."""
        self.progress.change(key, status, facts)
        self._update_if_due()

    def tick(self) -> None:
        """Draw the table, so that times advance."""
        self._update_if_due()

    def ended(self, status: str) -> None:
        """Draw the table a last time, with the warnings and the next commands below it; failures are written as text.

        Of a run that went well nothing is written: a notebook draws stderr as if it were an error.
        """
        self._status = status
        if status == "succeeded" and not self.progress.failures:
            self._closing = [line.strip() for line in (*self._warning_lines(), self._next_commands(status))]
            self._update()
            return
        self._update()
        super().ended(status)

    def _table(self) -> list[str]:
        return []  # it stands above

    def _draw(self, above: str = "", *, now: bool = False) -> bool:
        self._update_if_due()
        return False

    def _update_if_due(self) -> None:
        if self._shown and time.monotonic() - self._last >= EVERY:
            self._update()

    def _update(self) -> None:
        from IPython.display import display, update_display

        now = self._last = time.monotonic()
        words = summary(self.progress, now)
        html = progress_html(self.progress, now, self._status, closing=self._closing)
        shown = {"text/html": html, "text/plain": "\n".join([words, *self._closing])}
        (update_display if self._shown else display)(shown, raw=True, display_id=self._display)
        self._shown = True


def progress_html(progress: Progress, now: float, status: str = "", *, closing: Sequence[str] = ()) -> str:
    """A run as a table: a row for each step with its state, what it does or waits for, and its last complaint; the
    closing lines are below it."""
    rows, hidden = chosen(progress.rows.values(), ROWS)
    body = "".join(_row_html(row, progress, now) for row in rows)
    if hidden:
        parts = [f"{number:,} {state}" for state, number in Counter(map(state_of, hidden)).items()]
        body += f'<tr><td></td><td colspan="2" style="{_CELL}">… and {escape(", ".join(parts))}</td></tr>'
    head = escape(summary(progress, now)) + (f" · {_coloured(status, status)}" if status else "")
    return (
        f'<div><table style="border-collapse:collapse;font-variant-numeric:tabular-nums">{body}</table>'
        + "".join(f'<div style="opacity:.8">{line}</div>' for line in (head, *map(escape, closing)))
        + "</div>"
    )


def _row_html(row: ProgressRow, progress: Progress, now: float) -> str:
    state = state_of(row)
    facts = escape(row_text(row, progress.rows, now))
    if row.complaint and state in ("running", "waiting", "failed"):
        facts += f'<div style="color:{_COLOURS["31" if state == "failed" else "33"]}">{escape(row.complaint)}</div>'
    sign = f'<span title="{state}">{_coloured(state, MARKS[state][0])}</span>'
    cells = (sign, escape(title(row)), facts)
    return "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _coloured(state: str, text: str) -> str:
    colour = _COLOURS[MARKS[state][1]] if state in MARKS else "inherit"
    return f'<span style="color:{colour};font-weight:600">{escape(text)}</span>'


@frozen(kw_only=True)
class RunReport:
    """A run's report as a page, which a notebook shows in a frame that cannot reach the notebook."""

    run: str
    page: str
    """The page, as `stoker report` writes it."""
    height: int = HEIGHT
    """Pixels of the frame."""

    def _repr_html_(self) -> str:
        # Without "allow-scripts" and "allow-same-origin" nothing in the page runs, whatever steps have written.
        return (
            f'<iframe sandbox="" title="report of run {escape(self.run)}" srcdoc="{escape(self.page)}" '
            f'style="width:100%;height:{self.height}px;border:1px solid #8884" loading="lazy"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<RunReport of run {self.run}: {len(self.page):,} characters; `stoker report {self.run}` writes a file>"


def run_report(run: Run | str = "latest", *, height: int = HEIGHT) -> RunReport:
    """The report of a run, or of the one with an id in the current stack's store, to look at in a notebook."""
    from stoker.report import runreport

    found = Client().run(run) if isinstance(run, str) else run
    return RunReport(run=found.id, page=runreport.run_report(found.store, found), height=height)
