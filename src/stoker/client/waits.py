"""Says of a run that is followed which of its steps wait and why, where they begin, and nothing twice."""

from __future__ import annotations

from collections import Counter
from typing import Final, Iterator

from stoker.client.keys import element_of
from stoker.core.protocol import JOB
from stoker.core.words import EXPECTED_START
from stoker.store.rows import EventRow
from stoker.store.store import Store

WAITING: Final = "waiting"
SENT: Final = "it was sent; its platform has not looked at it yet"
NOT_SENT: Final = "it has not been sent yet: the steps before it come first"


class WaitingSteps:
    """Which steps of a run wait, or one step or the elements of one fan-out, `step`."""

    def __init__(self, store: Store, run: str, step: str = "") -> None:
        self._store = store
        self._run = run
        self._step = step
        self._last = -1
        self._reasons: dict[str, str] = {}
        self._starts: dict[str, str] = {}
        self._running: set[str] = set()
        self._reported: dict[str, frozenset[str]] = {}

    def news(self) -> Iterator[str]:
        """A line for each step whose reason is new since the last call, and for each that waited and now runs."""
        begun = []
        for event in self._store.records.events(self._run, after=self._last):
            self._last = event.seq
            if self._step in ("", event.key, element_of(event.key)[0]) and self._note(event):
                begun.append(event)
        if self._last < 0 and self._step and not self._reported:
            row = self._store.records.step(self._run, self._step)
            if row is None or row.status == "pending":
                self._reported[self._step] = frozenset()
                yield f"{self._step} is pending: {NOT_SENT}"
        by_step: dict[str, list[str]] = {}
        for key in self._reasons:
            by_step.setdefault(element_of(key)[0], []).append(key)
        for step, keys in by_step.items():
            reasons = Counter(self._reasons[key] for key in keys)
            if set(reasons) <= self._reported.get(step, frozenset()):
                continue
            self._reported[step] = self._reported.get(step, frozenset()) | set(reasons)
            yield from self._lines(step, keys, reasons)
        for event in begun:
            if event.key not in self._reasons and element_of(event.key)[1] is None and event.key in self._reported:
                yield f"{event.key} runs{_place(event)}"

    def _note(self, event: EventRow) -> bool:
        """Note an event; whether the step began."""
        state = event.data.get("state") if event.kind == JOB else ""
        if event.kind == WAITING or state == "sent":
            message = str(event.data.get("message", "")) or SENT
            self._running.discard(event.key)
            self._reasons[event.key], mark, start = message.partition(EXPECTED_START)
            self._starts[event.key] = mark + start
        elif state in ("running", "ended") or event.kind in ("leased", "retry", "cancel"):
            self._reasons.pop(event.key, None)
            if state == "running":
                self._running.add(event.key)
            return state == "running"
        return False

    def _lines(self, step: str, keys: list[str], reasons: Counter[str]) -> Iterator[str]:
        if keys == [step]:
            yield f"{step} is pending: {self._reasons[step]}{self._starts[step]}"
            return
        running = sum(element_of(key)[0] == step for key in self._running)
        parts = [f"{number:,} pending: {reason}" for reason, number in reasons.items()]
        yield f"{step}: {'; '.join([*parts, *([f'{running:,} running'] if running else [])])}"


def _place(event: EventRow) -> str:
    job, node = str(event.data.get("job", "")), str(event.data.get("node", ""))
    return (f" as {job}" if job else "") + (f" on {node}" if node else "")
