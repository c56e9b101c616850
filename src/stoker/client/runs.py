"""A run: how it stands, its steps, events and lines; waiting for it and asking it to end."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping

import attrs

from stoker.client.liveness import ShownStatus, awaited, shown_status
from stoker.client.logs import Source, merged
from stoker.client.order import in_order
from stoker.client.steps import Step, Steps
from stoker.client.times import between, iso, local, moment
from stoker.core.plan import LogLine
from stoker.core.units import duration
from stoker.core.words import time_text
from stoker.store import unbegun
from stoker.store.rows import RunRow
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt

_LOOK: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between looks at a run that is waited for, longer while nothing changes."""


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened in a run and is no row of a step: a retry, a cancel, a hook that failed."""

    time: datetime
    kind: str
    key: str = ""
    data: Mapping[str, Any] = attrs.field(factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON."""
        return {"time": iso(self.time), "kind": self.kind, "key": self.key, "data": dict(self.data)}


class Run:
    """A run as the store had it when it was read; `refresh()` reads it again."""

    def __init__(self, store: Store, row: RunRow) -> None:
        self._store = store
        self._row = row
        self._steps: Steps | None = None

    @property
    def id(self) -> str:
        """Its id; ids sort by the time of creation."""
        return self._row.id

    @property
    def pipeline(self) -> str:
        """The pipeline's name, or the one that the run was given."""
        return self._row.pipeline

    @property
    def status(self) -> ShownStatus:
        """Where it stands; "interrupted" if it was running and its driver is dead."""
        shown = shown_status(self._row)
        if shown == "interrupted":
            # Its driver may have recorded the end, and gone, since the row was read.
            self._row = self._store.records.run(self.id)
            shown = shown_status(self._row)
        return shown

    @property
    def created(self) -> datetime:
        """When it was created."""
        return local(self._row.created)

    @property
    def started(self) -> datetime | None:
        """When its first session began."""
        return moment(self._row.started)

    @property
    def ended(self) -> datetime | None:
        """When its last session ended."""
        return moment(self._row.ended)

    @property
    def seconds(self) -> float | None:
        """From its start to its end, pauses between sessions included; None before its end."""
        return between(self._row.started, self._row.ended)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the pipeline was called with; what is not JSON is shown as text."""
        return dict(self._row.parameters)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return tuple(self._row.tags)

    @property
    def stack(self) -> str:
        """The name of the stack that it ran on."""
        return self._row.stack

    @property
    def source(self) -> str:
        """Where its pipeline is defined, as file:line."""
        return self._row.source

    @property
    def error(self) -> str:
        """What ended the run as a whole, where it was no step's failure."""
        return self._row.error

    @property
    def failure_mode(self) -> str:
        """What a failing step means for the others: "fail_fast" or "continue"."""
        return self._row.failure_mode

    @property
    def sessions(self) -> int:
        """How many drivers worked on it: 1, and one more for each time that it was resumed."""
        return self._row.sessions

    @property
    def awaits(self) -> str:
        """What the driver of a detached run is that has not begun, such as "Slurm job 123"; empty once one has."""
        return awaited(self._row)

    @property
    def steps(self) -> Steps:
        """Its steps by key, in the order of the pipeline; read once, when first asked for."""
        if self._steps is None:
            self._steps = Steps(self._store, self.id, run_lives=self._lives)
        return self._steps

    @property
    def receipts(self) -> dict[str, Receipt]:
        """What steps, and elements of fan-outs, did with their accelerators in their last attempts, by key.

        In the order of the pipeline; a step that asked for none is not among them.
        """
        records = self._store.records
        last = records.attempt_numbers(self.id)
        found = {row.key: row.receipt for row in records.receipts(self.id) if last.get(row.key) == row.number}
        return {key: found[key] for key in in_order(found, self.steps)}

    @property
    def events(self) -> list[Event]:
        """What happened, in order."""
        rows = self._store.records.events(self.id)
        return [Event(time=local(row.time), kind=row.kind, key=row.key, data=row.data) for row in rows]

    def logs(self, step: str | None = None) -> Iterator[tuple[str, LogLine]]:
        """What its steps printed, or one of them (of a fan-out all elements), as (key, line) by time.

        Lines of the pipeline's own hooks stand under the pipeline's name.
        """
        steps: list[Step] = [self.steps[step]] if step is not None else list(self.steps.values())
        sources = [source for one in steps for source in one.log_sources()]
        if step is None and self._store.logs.attempts(self.id, ""):
            sources.append(Source(start=self._row.started or 0.0, key=""))
        return ((key or self.pipeline, line) for key, line in merged(self._store, self.id, sources))

    def refresh(self) -> Run:
        """Read it again, and its steps when they are next asked for; returns itself."""
        self._row = self._store.records.run(self.id)
        self._steps = None
        return self

    def wait(self, timeout: float | str | timedelta | None = None) -> Run:
        """Return, refreshed, when it does not run any more, or when the time is over: then it still says "running"."""
        deadline = None if timeout is None else time.monotonic() + duration(timeout)
        looks = 0
        while self.refresh().status == "running":
            pause = _LOOK[min(looks, len(_LOOK) - 1)]
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause, left))
            looks += 1
        return self

    def cancel(self, now: bool = False) -> bool:
        """Ask its driver to end it, `now` without giving steps time to leave; False if nobody runs it any more.

        It is over when `wait()` says so; at once, if its driver has not begun.
        """
        if self.refresh().status != "running":
            return False
        if self.awaits and unbegun.cancel(self._store.records.database, self.id, token=self._row.token):
            return True
        return self._store.records.ask(self.id, "now" if now else "cancel")

    def as_dict(self, *, steps: bool = True) -> dict[str, Any]:
        """The run as JSON, with its steps without their details."""
        document: dict[str, Any] = {
            "id": self.id,
            "pipeline": self.pipeline,
            "status": self.status,
            "created": iso(self.created),
            "started": iso(self.started),
            "ended": iso(self.ended),
            "seconds": self.seconds,
            "parameters": self.parameters,
            "tags": list(self.tags),
            "stack": self.stack,
            "source": self.source,
            "error": self.error,
            "failure_mode": self.failure_mode,
            "sessions": self.sessions,
            "awaits": self.awaits,
        }
        if steps:
            document["steps"] = [step.as_dict(details=False) for step in self.steps.values()]
        return document

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f" after {time_text(self.seconds)}"
        return f"<Run {self.id} of '{self.pipeline}': {self.status}{took}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.run(self.as_dict())

    def _lives(self) -> bool:
        return self.status == "running"
