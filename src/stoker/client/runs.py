"""A run: its status, steps, events and lines; waiting for it and cancelling it."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping

import attrs

from stoker.client.keys import sort_keys
from stoker.client.liveness import ShownStatus, awaited_place, shown_status
from stoker.client.logs import StepLog, merge_by_time
from stoker.client.steps import Step, Steps
from stoker.client.times import iso_text, local_time, optional_time, seconds_between
from stoker.core.plan import LogLine
from stoker.core.units import duration
from stoker.core.words import time_text
from stoker.store.rows import RunRow
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt

_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between two reads of a run that is waited for: longer and longer."""


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened in a run besides the results of steps: a retry, a cancel, a hook that failed."""

    time: datetime
    kind: str
    key: str = ""
    data: Mapping[str, Any] = attrs.field(factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON."""
        return {"time": iso_text(self.time), "kind": self.kind, "key": self.key, "data": dict(self.data)}


class Run:
    """A run at the time when it was read; `refresh()` reads it again."""

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
        """Its status; "interrupted" if it was running and its driver is dead."""
        status = shown_status(self._row)
        if status == "interrupted":
            # The driver may have recorded the end and exited since the row was read.
            self._row = self._store.records.run(self.id)
            status = shown_status(self._row)
        return status

    @property
    def created(self) -> datetime:
        """When it was created."""
        return local_time(self._row.created)

    @property
    def started(self) -> datetime | None:
        """When its first session began."""
        return optional_time(self._row.started)

    @property
    def ended(self) -> datetime | None:
        """When its last session ended."""
        return optional_time(self._row.ended)

    @property
    def seconds(self) -> float | None:
        """Seconds from its start to its end, with the pauses between sessions; None before its end."""
        return seconds_between(self._row.started, self._row.ended)

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments of the pipeline; values that are not JSON as text."""
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
        """What ended the run as a whole, if it was no failure of a step."""
        return self._row.error

    @property
    def failure_mode(self) -> str:
        """What a failing step means for the others: "fail_fast" or "continue"."""
        return self._row.failure_mode

    @property
    def sessions(self) -> int:
        """How many drivers worked on it: 1, and one more for each `stoker resume`."""
        return self._row.sessions

    @property
    def awaits(self) -> str:
        """What will start the driver of a detached run, such as "Slurm job 123"; empty once it has begun."""
        return awaited_place(self._row)

    @property
    def steps(self) -> Steps:
        """Its steps by key, in the order of the pipeline; read at the first use."""
        if self._steps is None:
            self._steps = Steps(self._store, self.id, run_is_alive=self._is_alive)
        return self._steps

    @property
    def receipts(self) -> dict[str, Receipt]:
        """The receipts of the last attempts of steps and elements of fan-outs, by key, in the order of the pipeline.

        Steps that requested no accelerator have none.
        """
        records = self._store.records
        last = records.attempt_numbers(self.id)
        receipts = {row.key: row.receipt for row in records.receipts(self.id) if last.get(row.key) == row.number}
        return {key: receipts[key] for key in sort_keys(receipts, self.steps)}

    @property
    def events(self) -> list[Event]:
        """Its events, in order."""
        rows = self._store.records.events(self.id)
        return [Event(time=local_time(row.time), kind=row.kind, key=row.key, data=row.data) for row in rows]

    def logs(self, step: str | None = None) -> Iterator[tuple[str, LogLine]]:
        """The lines of all its steps or of one (of a fan-out those of all elements), as (key, line) by time.

        The key of lines of the pipeline's own hooks is the pipeline's name.
        """
        steps: list[Step] = [self.steps[step]] if step is not None else list(self.steps.values())
        sources = [source for one in steps for source in one.step_logs()]
        if step is None and self._store.logs.attempts(self.id, ""):
            sources.append(StepLog(start=self._row.started or 0.0, key=""))
        return ((key or self.pipeline, line) for key, line in merge_by_time(self._store, self.id, sources))

    def refresh(self) -> Run:
        """Read it again, and its steps at their next use; returns itself."""
        self._row = self._store.records.run(self.id)
        self._steps = None
        return self

    def wait(self, timeout: float | str | timedelta | None = None) -> Run:
        """Wait for its end or the timeout, and return it refreshed; after a timeout its status is still "running"."""
        deadline = None if timeout is None else time.monotonic() + duration(timeout)
        reads = 0
        while self.refresh().status == "running":
            pause = _PAUSES[min(reads, len(_PAUSES) - 1)]
            remaining = pause if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(pause, remaining))
            reads += 1
        return self

    def cancel(self, now: bool = False) -> bool:
        """Ask its driver to end it, with `now` without a grace period for steps; False if it does not run any more.

        The run ends later: `wait()` for it. A run whose driver has not begun ends at once.
        """
        if self.refresh().status != "running":
            return False
        if self.awaits and self._store.records.cancel_waiting(self.id, token=self._row.token):
            return True
        return self._store.records.request_end(self.id, "now" if now else "cancel")

    def as_dict(self, *, steps: bool = True) -> dict[str, Any]:
        """The run as JSON, with its steps without their details."""
        document: dict[str, Any] = {
            "id": self.id,
            "pipeline": self.pipeline,
            "status": self.status,
            "created": iso_text(self.created),
            "started": iso_text(self.started),
            "ended": iso_text(self.ended),
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
        duration = "" if self.seconds is None else f" after {time_text(self.seconds)}"
        return f"<Run {self.id} of '{self.pipeline}': {self.status}{duration}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.run(self.as_dict())

    def _is_alive(self) -> bool:
        return self.status == "running"
