"""Follows a run in the store, and tells a terminal what changes: a run of another terminal, or without any.

The store is read every second at most as far as it is new: rows of steps, counts of fan-outs, events after the last
one, pieces of metrics, and logs from where they were read last.
"""

from __future__ import annotations

import time
from typing import Any, Final, Mapping

from stoker.client.keys import element_of
from stoker.client.runs import Run
from stoker.core.metrics import book_of
from stoker.core.protocol import JOB
from stoker.core.status import STEP_DONE
from stoker.plan import plandoc
from stoker.report.terminal import Terminal
from stoker.store.rows import EventRow, StepRow
from stoker.store.store import Store

EVERY: Final = 1.0
"""Seconds between two looks at the store."""
DRAW: Final = 0.2
"""Seconds between two drawings."""
_ASKED: Final = 100
"""Elements that run, of which is asked in one look whether they have ended."""
_TOLD: Final = 10
"""Elements of a fan-out whose failures are told at the end."""
_BLOCKS: Final = 64
"""Blocks of a log that are read in one look; what a step writes faster is shown later."""


class RunWatch:
    """Shows a run on a terminal until it is over. What happened before counts, but is not told line by line."""

    def __init__(self, store: Store, run: Run, terminal: Terminal) -> None:
        self._store = store
        self._run = run
        self._terminal = terminal
        self._rows: dict[str, StepRow] = {}
        self._attempts: dict[str, int] = {}
        self._active: dict[str, int] = {}
        self._last_event = -1
        self._pieces: dict[tuple[str, int], int] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._caught_up = False

    def begin(self) -> None:
        """Show the plan's steps and what has happened so far."""
        text = self._store.records.plan(self._run.id)
        started = self._run.started or self._run.created
        self._terminal.began(self._run.id, plandoc.load(text), started=started.timestamp())
        self.look()
        self._caught_up = True
        self._terminal.joined()

    def follow(self) -> str:
        """Show the run until its end, or until nobody drives it and nobody will; returns its status."""
        next_look, waiting = 0.0, ""
        while True:
            if time.monotonic() >= next_look:
                over = self._run.refresh().status != "running" and not self._run.restarted_by
                place = self._run.awaits
                if place and place != waiting:
                    self._terminal.message(f"its driver has not begun: it waits for {place}")
                waiting = place
                over = over or (bool(place) and self._run.find_lost_driver())
                self.look()
                if over:
                    self._note_failed_elements()
                    self._terminal.progress.end(self._run.active_seconds, self._run.queue_seconds)
                    return self._run.status
                next_look = time.monotonic() + EVERY
            self._terminal.tick()
            time.sleep(DRAW)

    def look(self) -> None:
        """Read what is new, and show it."""
        records = self._store.records
        rows = records.steps(self._run.id)
        for row in rows:
            self._note_row(row)
        for event in records.events(self._run.id, after=self._last_event):
            self._last_event = event.seq
            self._note_event(event)
        self._note_active()
        for row in rows:
            if row.count is not None:
                self._count(row)
            if row.key in self._attempts:
                self._read_logs(row.key, row.attempts)
                self._read_metrics(row.key, row.attempts)
            if row.status in STEP_DONE:
                self._attempts.pop(row.key, None)
        for key in [key for key in self._attempts if element_of(key)[1] is not None][:_ASKED]:
            self._read_logs(key, self._attempts[key])
            element = records.step(self._run.id, key)
            if element is not None and element.status in STEP_DONE:
                del self._attempts[key]
                self._terminal.progress.leave(key, element_of(key)[0])

    def _note_row(self, row: StepRow) -> None:
        before = self._rows.get(row.key)
        self._rows[row.key] = row
        if row.count is not None and (before is None or before.count != row.count):
            self._tell(row.key, "expanded", {"count": row.count})
        if before is not None and (before.status, before.attempts) == (row.status, row.attempts):
            return
        if row.status in STEP_DONE:
            # Of a step that is over since the last look the rest of its lines comes first.
            if self._caught_up and row.count is None:
                self._read_logs(row.key, row.attempts)
            self._tell(row.key, row.status, self._facts(row))
        elif row.status == "running" and row.count is None:
            self._attempts[row.key] = row.attempts
            self._tell(row.key, "running", {"started": row.started})

    def _facts(self, row: StepRow) -> dict[str, Any]:
        """What there is to say of a step that is over, as an observer is told."""
        step = self._run.steps[row.key] if row.status == "failed" else None
        failure = None if step is None else step.failure
        seconds = row.ended - row.started if row.ended is not None and row.started is not None else None
        names = ("traceback", "why", "advice", "evidence", "whole", "earlier")
        why = {} if failure is None else {name: getattr(failure, name) for name in names}
        rank = {} if failure is None or failure.rank is None else {"rank": failure.rank}
        if failure is not None and rank:
            rank["world_size"] = failure.world_size or 0
        facts = {"seconds": seconds, "cause": row.cause, "message": row.message, "attempt": row.attempts}
        return {**facts, **why, **rank, **{name: row.usage.get(name) for name in ("cpu", "peak")}}

    def _note_event(self, event: EventRow) -> None:
        parent = self._parent(event.key)
        data = event.data
        over = self._rows.get(event.key)
        if not event.key or (over is not None and over.status in STEP_DONE):
            return
        state = data.get("state") if event.kind == JOB else event.kind
        attempt = data.get("attempt")
        if state == "ended":
            self._attempts.pop(event.key, None)
            self._terminal.progress.leave(event.key, parent)
            return
        facts: dict[str, Any] = {"parent": parent, "started": data.get("time", event.time)}
        if state == "waiting":
            facts["message"] = str(data.get("message", ""))
        elif state == "leased":
            facts["devices"] = [one for node in (data, *data.get("others", ())) for one in node.get("devices") or ()]
        elif state == "retry":
            wait = max(0.0, float(data.get("wait", 0.0)) - (time.time() - event.time))
            facts.update(attempt=attempt, cause=str(data.get("cause", "")), wait=wait)
            facts["message"] = str(data.get("message", ""))
            facts["changes"] = data.get("changes", ())
            state = "retrying"
        elif state not in ("sent", "running"):
            return
        if parent and isinstance(attempt, int):
            self._attempts[event.key] = attempt
        self._tell(event.key, str(state), facts)

    def _note_active(self) -> None:
        """Note which elements run on the driver's machine: they have rows and events only when they have ended.

        The driver wrote it up to a second ago: the fan-out may be over.
        """
        active = self._run.active
        for key in [key for key in self._active if key not in active]:
            self._read_logs(key, self._active.pop(key))
            self._attempts.pop(key, None)
            self._terminal.progress.leave(key, self._parent(key))
        for key, (attempt, started) in active.items():
            parent = self._parent(key)
            if not parent or self._rows[parent].status in STEP_DONE or self._active.get(key) == attempt:
                continue
            self._active[key] = self._attempts[key] = attempt
            self._tell(key, "running", {"parent": parent, "started": started.timestamp()})

    def _note_failed_elements(self) -> None:
        """Note why elements failed, of which only their number was told."""
        for row in self._rows.values():
            if row.count is None or not self._store.records.counts(self._run.id, parent=row.key).get("failed"):
                continue
            failed = [one for one in self._store.records.steps(self._run.id, parent=row.key) if one.status == "failed"]
            for element in failed[:_TOLD]:
                self._terminal.progress.failures.append((element.key, self._facts(element)))

    def _tell(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """Tell the terminal; what happened before somebody looked on is no news."""
        facts = {"parent": "", **facts}
        if self._caught_up:
            self._terminal.changed(key, status, facts)
        else:
            self._terminal.progress.change(key, status, facts)

    def _parent(self, key: str) -> str:
        parent, index = element_of(key)
        return parent if index is not None and parent in self._rows else ""

    def _count(self, row: StepRow) -> None:
        counts = self._store.records.counts(self._run.id, parent=row.key)
        ended = {status: number for status, number in counts.items() if status in STEP_DONE}
        self._terminal.progress.count(row.key, ended)

    def _read_logs(self, key: str, attempt: int) -> None:
        offset = self._offsets.get((key, attempt))
        if offset is None and not self._caught_up:
            _, offset = self._store.logs.last(self._run.id, key, attempt, 0)
        offset = offset or 0
        for _ in range(_BLOCKS):
            lines, after = self._store.logs.read(self._run.id, key, attempt, offset)
            if lines:
                self._terminal.wrote(key, attempt, lines)
            if after == offset:
                break
            offset = after
        self._offsets[key, attempt] = offset

    def _read_metrics(self, key: str, attempt: int) -> None:
        last = self._pieces.get((key, attempt), 0)
        for piece, data in self._store.records.metric_pieces(self._run.id, key, attempt):
            if piece > last:
                self._pieces[key, attempt] = piece
                self._terminal.logged(key, attempt, _logged_rows(data))


def _logged_rows(data: bytes) -> list[list[Any]]:
    """The values of a piece of metrics as rows, series by series."""
    return [
        [point.time, series.rank, point.step, {series.name: point.value}]
        for series in book_of(data).series.values()
        for point in series.points
    ]
