"""A run: its status, steps, events and lines; waiting for it and cancelling it."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Collection, Final, Iterator, Mapping, Sequence

import attrs

from stoker.client.keys import sort_keys
from stoker.client.leftjobs import ShownStatus, awaited_place, restarting_place, shown_status
from stoker.client.logs import StepLog, merge_by_time
from stoker.client.metrics import Metrics, last_metrics
from stoker.client.placements import LeftOut, Placement, device_waits, idle_seconds, left_out_of, placements_of
from stoker.client.steps import Step, Steps
from stoker.core.errors import UsageError
from stoker.core.plan import LogLine
from stoker.core.units import duration
from stoker.core.values import frozen
from stoker.core.words import EXPECTED_START, time_text
from stoker.store.rows import RunRow, iso_text, local_time, optional_time, seconds_between
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt

LEAVE: Final = 10.0
"""Seconds that jobs of a killed driver get between being asked to end and being ended."""
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between two reads of a run that is waited for: longer and longer."""


_ASK: Final = 10.0
"""Seconds between two questions whether a platform is still to start a driver."""
Placements = Mapping[str, Sequence[Placement]]


@frozen(kw_only=True)
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
        self._queue_seconds: float | None = None

    @property
    def id(self) -> str:
        """Its id; ids sort by the time of creation."""
        return self._row.id

    @property
    def store(self) -> Store:
        """The store that it is kept in."""
        return self._store

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
    def place(self) -> tuple[float, str]:
        """Its place in lists of runs: the time of its creation as it is recorded, and its id."""
        return self._row.created, self.id

    @property
    def started(self) -> datetime | None:
        """When its first session began."""
        return optional_time(self._row.started)

    @property
    def ended(self) -> datetime | None:
        """When its last session ended."""
        return optional_time(self._row.ended)

    @property
    def heartbeat(self) -> datetime | None:
        """When its driver was last known to be alive, to the second; None before it began."""
        return optional_time(self._row.heartbeat)

    @property
    def seconds(self) -> float | None:
        """Seconds from its start to its end, with the pauses between sessions and what it waited for a place;
        None before its end."""
        return seconds_between(self._row.started, self._row.ended)

    @property
    def active_seconds(self) -> float | None:
        """`seconds` without `queue_seconds`: what `stoker show` and `stoker runs` say that it took."""
        return None if self.seconds is None else max(0.0, self.seconds - self.queue_seconds)

    @property
    def queue_seconds(self) -> float:
        """Seconds in which it only waited for a place, in a platform's queue or for devices, and nothing ran; after its
        end they are final."""
        if self._queue_seconds is None or self._row.ended is None:
            self._queue_seconds = self.queue_seconds_since(0.0)
        return self._queue_seconds

    def queue_seconds_since(self, moment: float) -> float:
        """`queue_seconds` as far as they lie after a moment, in seconds since the epoch: those of its last session."""
        events = self._store.records.job_events(self.id)
        placements, waits = placements_of(events), device_waits(events)
        if not placements and not waits:
            return 0.0
        steps = self._store.records.steps(self.id)
        return idle_seconds(placements, steps, waits=waits, since=moment, until=self._row.ended)

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
    def damage(self) -> str:
        """Which parts of its record cannot be read, and are shown as if they were not there; empty for a whole one."""
        return self._row.damage

    @property
    def failure_mode(self) -> str:
        """What a failing step means for the others: "fail_fast" or "continue"."""
        return self._row.failure_mode

    @property
    def origin(self) -> str | None:
        """The id of the run that it repeats (`stoker rerun`, a flow's `resume`); None for a run of its own."""
        return self._row.origin or None

    @property
    def cause(self) -> str:
        """What started it: a schedule with its due time, or a watcher with what it saw; empty for a person."""
        from stoker.store.schedules import Schedules  # only where somebody looks

        firing = Schedules(self._store.records.database).of_run(self.id)
        return "" if firing is None else firing.words

    @property
    def revision(self) -> str:
        """The commit that was checked out where it was started; empty outside of a repository."""
        return self._row.revision

    @property
    def branch(self) -> str:
        """The branch that was checked out where it was started, or that CI names."""
        return self._row.branch

    @property
    def author(self) -> str:
        """Who started it, as "user@host"; empty for a run of an earlier version."""
        return self._row.author

    @property
    def worktree(self) -> str:
        """Whether the files were those of the commit, "clean" or "changed"; empty where that is unknown."""
        return "changed" if self.has_diff else self._row.worktree

    @property
    def diff(self) -> str:
        """How the files differed from the commit, as a patch; empty where none is kept.

        Files that Git does not know are not in it, nor those whose names say that they are secret; of more than a
        megabyte the beginning is kept.
        """
        kept = self._store.records.sources([self._row.worktree]) if self.has_diff else {}
        return kept.get(self._row.worktree, b"").decode()

    @property
    def has_diff(self) -> bool:
        """Whether it is kept how the files differed from the commit."""
        return self._row.worktree not in ("", "clean", "changed")

    @property
    def commit_words(self) -> str:
        """Commit and branch, and whether the files were others; empty outside of a repository."""
        changed = " with changes" if self.worktree == "changed" else ""
        return f"{self.revision[:12]} {self.branch}".strip() + changed if self.revision else ""

    @property
    def sessions(self) -> int:
        """How many drivers worked on it: 1, and one more for each `stoker resume`."""
        return self._row.sessions

    @property
    def awaits(self) -> str:
        """What will start the driver of a detached run, such as "Slurm job 123"; empty while one drives it."""
        return awaited_place(self._row)

    @property
    def restarted_by(self) -> str:
        """What starts its driver again if that is killed, such as "Slurm job 123"; empty where nothing does."""
        return restarting_place(self._row)

    @property
    def steps(self) -> Steps:
        """Its steps by key, in the order of the pipeline; read at the first use."""
        if self._steps is None:
            self._steps = Steps(self._store, self.id, run_is_alive=self._is_alive)
        return self._steps

    @property
    def active(self) -> dict[str, tuple[int, datetime]]:
        """Elements of fan-outs that run on the driver's machine → their attempt, and since when; of many the first 512.

        The driver writes them every second; of elements on a platform with a queue the `placements` tell.
        """
        found = {}
        for key, value in self._row.active.items() if self.status == "running" else ():
            if isinstance(value, list) and len(value) == 2 and all(isinstance(one, (int, float)) for one in value):
                found[key] = (int(value[0]), local_time(float(value[1])))
        return found

    @property
    def receipts(self) -> dict[str, Receipt]:
        """The receipts of the last attempts of steps and elements of fan-outs, by key, in the order of the pipeline.

        Steps that requested no accelerator have none.
        """
        records = self._store.records
        found = records.receipts(self.id)
        last = records.attempt_numbers(self.id) if found else {}
        receipts = {row.key: row.receipt for row in found if last.get(row.key) == row.number}
        return {key: receipts[key] for key in sort_keys(receipts, self.steps)}

    @property
    def metrics(self) -> dict[str, Metrics]:
        """What the last attempts of steps and elements logged of themselves, by key, in the order of the pipeline.

        Cached ones have what the step logged that made their result. Steps that logged nothing are left out.
        """
        metrics = last_metrics(self._store.records, self.id)
        return {key: metrics[key] for key in sort_keys(metrics, self.steps)}

    @property
    def metadata(self) -> dict[str, Any]:
        """What was logged of it from outside, by name (`log_metadata(…, run=ID)`)."""
        return self._store.registry.facts("run", self.id)

    @property
    def placements(self) -> dict[str, list[Placement]]:
        """Where the attempts of steps and elements were on a platform with a queue, by key, first attempt to last.

        Steps that ran elsewhere, as on this machine, have none.
        """
        return placements_of(self._store.records.job_events(self.id))

    @property
    def left_out(self) -> list[LeftOut]:
        """The faulty nodes and devices that it leaves out, in the order in which attempts failed there."""
        return left_out_of(self._store.records.left_out_events(self.id))

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
        """Wait for its end or the timeout, and return it refreshed; after a timeout its status is still "running".

        While the platform is to start the driver of a detached run again, whose node was lost, it goes on.
        """
        deadline = None if timeout is None else time.monotonic() + duration(timeout)
        reads, next_question = 0, 0.0
        while True:
            status = self.refresh().status
            waits = (status == "interrupted" and self.restarted_by) or (status == "running" and self.awaits)
            if status != "running" and not waits:
                break
            if waits and time.monotonic() >= next_question:
                next_question = time.monotonic() + _ASK
                if not self._may_get_driver():
                    break
            pause = _PAUSES[min(reads, len(_PAUSES) - 1)]
            remaining = pause if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(pause, remaining))
            reads += 1
        return self

    def _may_get_driver(self) -> bool:
        """Whether its driver may still be started, or started again, by a job of its platform's."""
        from stoker.client.leftjobs import driver_job, note_lost_driver

        if self.awaits:
            lost = note_lost_driver(self._store, self._row)
            self._row = self._store.records.run(self.id)
            return not lost
        return driver_job(self._row) in ("there", "silent")

    def find_lost_driver(self) -> bool:
        """Whether the job that was to start its driver is gone from its platform's queue, by the platform's own word.

        It is "interrupted" then, with the reason as its `error`.
        """
        return bool(self.awaits) and not self._may_get_driver()

    def cancel(self, now: bool = False) -> bool:
        """Ask its driver to end it, with `now` without a grace period for steps; False if it does not run any more.

        The run ends later: `wait()` for it. A run that waits for its driver ends at once; what an earlier driver of it
        left running is for `end_left_jobs`.
        """
        if self.refresh().status != "running":
            return False
        if self.awaits and self._store.records.cancel_waiting(self.id, token=self._row.token):
            return True
        return self._store.records.request_end(self.id, "now" if now else "cancel")

    def end_left_jobs(self, now: bool = False) -> int:
        """End the jobs that its killed driver left, with `now` without a grace period; returns how many ran.

        What they had finished is kept: `stoker resume` finds it. A driver that its platform would start again does not
        go on then: the run is cancelled. Raises `UsageError` while the run has a driver.
        """
        from stoker.client.leftjobs import end_left_jobs

        if self.refresh().status == "running":
            raise UsageError(f"run {self.id} has a driver", fix=f"stoker cancel {self.id}")
        if self.restarted_by and self.status == "interrupted":
            self._store.records.cancel_waiting(self.id, token=self._row.token)
        return len(end_left_jobs(str(self._store.home), self.id, grace=0.0 if now else LEAVE))

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
            "origin": self.origin,
            "awaits": self.awaits,
            "revision": self.revision,
            "branch": self.branch,
            "author": self.author,
            "worktree": self.worktree,
        }
        if self.damage:
            document["damage"] = self.damage
        if steps:
            document["cause"] = self.cause
            document["steps"] = [step.as_dict(details=False) for step in self.steps.values()]
        return document

    def __repr__(self) -> str:
        duration = "" if self.active_seconds is None else f" after {time_text(self.active_seconds)}"
        return f"<Run {self.id} of '{self.pipeline}': {self.status}{duration}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.run({**self.as_dict(), "seconds": self.active_seconds})

    def _is_alive(self) -> bool:
        return self.status == "running"


def run_document(run: Run, *, elements: bool) -> dict[str, Any]:
    """The run as JSON, with the attempts and outputs of its steps."""
    document = {
        **run.as_dict(steps=False),
        "cause": run.cause,
        "queue_seconds": run.queue_seconds,
        "active_seconds": run.active_seconds,
    }
    placements = run.placements
    running = running_keys(run, placements)
    document["left_out"] = [one.as_dict() for one in run.left_out]
    document["steps"] = []
    for step in run.steps.values():
        entry = step.as_dict(elements=elements)
        if step.count is not None:
            entry["counts"] = dict(element_counts(step, running))
            entry["waits"] = dict(wait_reasons(step, placements))
            entry["status"] = fanout_status(step, entry["counts"])
        if elements:
            for element, shown in zip(step if step.count is not None else (), entry.get("elements", ())):
                jobs = placements.get(element.key, ())
                shown["placement"] = jobs[-1].as_dict() if jobs else None
                shown["status"] = step_status(element, running)
        document["steps"].append(entry)
    return document


def running_keys(run: Run, placements: Placements) -> Collection[str]:
    """Steps and elements that run: by their jobs, and of elements on the driver's machine by what the driver says."""
    jobs = {key for key, found in placements.items() if found[-1].started is not None and found[-1].ended is None}
    return jobs | run.active.keys()


def step_status(step: Step, running: Collection[str]) -> str:
    """A step's status; of an element, which has no row until it ends, by `running_keys`."""
    if step.count and step.status == "running":  # only then do its elements have a say
        return fanout_status(step, element_counts(step, running))
    return "running" if step.key in running and step.status == "pending" else step.status


def element_counts(step: Step, running: Collection[str]) -> Counter[str]:
    """How many elements of a fan-out have which status, counted by the database: there may be a hundred thousand."""
    counts = Counter(step.ended_by_status)
    rest = (step.count or 0) - counts.total()
    number = step.unended_count([key for key in running if key.startswith(f"{step.key}[")]) if rest else 0
    counts.update({"running": number, "pending": rest - number})
    return +counts


def fanout_status(step: Step, counts: Mapping[str, int]) -> str:
    """A fan-out's status: that of its row, but "pending" while elements wait and none has begun or ended."""
    waits = step.status == "running" and set(counts) == {"pending"}
    return "pending" if waits else step.status


def wait_reasons(step: Step, placements: Placements) -> Counter[str]:
    """Why elements of a fan-out wait in a platform's queue, with the number of each reason."""
    last = [found[-1] for key, found in placements.items() if key.startswith(f"{step.key}[")]
    waiting = [one.waits[-1][1] for one in last if one.waits and one.started is None and one.ended is None]
    return Counter(reason.partition(EXPECTED_START)[0] for reason in waiting)
