"""A step of a run with its attempts, results and lines; a fan-out with its elements; all steps of a run by key."""

from __future__ import annotations

import itertools
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Iterator, Mapping, Sequence, overload

import attrs

from stoker.client.attempts import Attempt, Failure
from stoker.client.keys import NoSuchIndex, NoSuchKey, element_of
from stoker.client.logs import (
    LogFilter,
    StepLog,
    attempts_with_logs,
    follow_lines,
    last_attempt,
    merge_by_time,
    ranks_of,
    recorded_lines,
    require_ranks,
)
from stoker.client.metrics import LostTime, Metrics, Usage, metrics_of, total_usage, usage_of
from stoker.client.outputs import Output, Outputs, gather_output
from stoker.client.placements import Placement, placements_of
from stoker.core.errors import UsageError, nearest
from stoker.core.graph import OWN
from stoker.core.plan import LogLine
from stoker.core.status import STEP_DONE, STEP_GOOD
from stoker.core.sweep import PARAMS
from stoker.core.values import lazy_pattern
from stoker.core.words import count_text, time_text
from stoker.store.logs import Ranks
from stoker.store.rows import StepRow, iso_text, optional_time, seconds_between
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.client.why import StepReason
    from stoker.core.receipt import Receipt

UNNAMED: Final = "output"
"""The name of an only output to which the step gives none."""
_ONE_VALUE: Final = lazy_pattern(r"\w+:([0-9a-f]{64})")


class Step:
    """One step, one fan-out (a sequence of its elements), or one element of a fan-out."""

    def __init__(self, store: Store, row: StepRow, *, run_is_alive: Callable[[], bool]) -> None:
        self._store = store
        self._row = row
        self._run_is_alive = run_is_alive
        self._elements: list[Step] | None = None
        self._attempts: list[Attempt] | None = None
        self._outputs: Outputs | None = None
        self.run_id = row.run_id
        self.key = row.key
        self.name = row.name
        self.cause = row.cause
        self.cached_from = row.cached_from
        self.parent = row.parent
        self.index = row.idx
        self.count = row.count
        self.damage = row.damage

    # Status

    @property
    def status(self) -> str:
        """Its status; "interrupted" if it was running and the run's driver is dead."""
        if self._row.status == "running" and not self._run_is_alive():
            return "interrupted"
        return self._row.status

    @property
    def started(self) -> datetime | None:
        """When its last attempt began; for a fan-out, its first element."""
        return optional_time(self._started())

    @property
    def ended(self) -> datetime | None:
        """When it ended."""
        return optional_time(self._row.ended)

    @property
    def seconds(self) -> float | None:
        """Seconds that its last attempt took; None before its end, and for a step that did not run."""
        return seconds_between(self._started(), self._row.ended)

    @property
    def message(self) -> str:
        """Why it failed, in a sentence."""
        if not self._row.message and self.count and self._row.status == "failed":
            element = self._failed_element()
            return f"{element.key}: {element.message}" if element is not None else ""
        return self._row.message

    @property
    def attempt_count(self) -> int:
        """How many attempts have begun; of a fan-out, the most of one element that has ended."""
        return self._store.records.most_attempts(self.run_id, self.key) if self.count else self._row.attempts

    @property
    def usage(self) -> Usage:
        """What its last attempt used; for a fan-out, the CPU time of all elements and the largest memory of one."""
        if self.count and not self._row.usage:
            return total_usage(self._store.records.usages(self.run_id, self.key))
        return usage_of(self._row.usage)

    @property
    def lost(self) -> LostTime:
        """What failures of its attempts, and of ranks that its launcher started again, cost it; a fan-out's elements
        have their own."""
        works = [attempt.usage.lost for attempt in self.attempts if attempt.usage.lost is not None]
        pauses = [attempt.usage.restarting or 0.0 for attempt in self.attempts]
        for before, after in itertools.pairwise(self.attempts):
            if before.ended is not None and after.started is not None:
                pauses.append(max(0.0, (after.started - before.ended).total_seconds()))
        return LostTime(work=sum(works) if works else None, restarting=sum(pauses))

    @property
    def inputs(self) -> Mapping[str, str]:
        """Parameter → the digest of its value; for a list or a dict, the digests in that structure."""
        digests = {}
        for name, text in self._row.inputs.items():
            single = _ONE_VALUE.fullmatch(str(text))
            digests[name] = single[1] if single else str(text)
        return digests

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts that have ended, first to last. A fan-out has none: its elements do."""
        if self._attempts is None:
            records = self._store.records
            self._attempts = [Attempt(row, records) for row in records.attempts(self.run_id, self.key)]
        return self._attempts

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of its last attempt; None if it requested no accelerator. A fan-out's elements have their own."""
        return self.attempts[-1].receipt if self.attempts else None

    @property
    def metrics(self) -> Metrics:
        """What its last attempt that logged something did, by name: `step.metrics["loss"].frame()`; also while it runs.

        Those of a cached step are of the step that made the result.
        """
        run_id, key = self.run_id, self.key
        if self.cached_from and "/" in self.cached_from:
            run_id, _, key = self.cached_from.partition("/")
        records = self._store.records
        numbers = [number for one, number in records.metric_attempts(run_id) if one == key]
        return metrics_of(records, run_id, key, max(numbers, default=0))

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts by name: those that it logged, and over them what was logged of it from outside."""
        return {**self.metrics.facts, **self._store.registry.facts("step", f"{self.run_id}/{self.key}")}

    @property
    def placement(self) -> Placement | None:
        """Where its last attempt is or was on a platform with a queue; None for a step that ran elsewhere."""
        placements = self._placements
        return placements[-1] if placements else None

    @property
    def _placements(self) -> list[Placement]:
        return placements_of(self._store.records.job_events(self.run_id, self.key)).get(self.key, [])

    @property
    def failure(self) -> Failure | None:
        """The failure of the last attempt, or of a fan-out's first element that failed; None if it did not fail."""
        if self._row.status not in ("failed", "cancelled"):
            return None
        if self.count:
            element = self._failed_element()
            return None if element is None else element.failure
        last = self.attempts[-1].failure if self.attempts else None
        if last is None:  # without an attempt: its inputs could not be read
            return Failure(cause=self.cause, message=self._row.message) if self.cause else None
        # The attempt's row has the signal that ended it, the step's row the reason.
        return attrs.evolve(last, cause=self.cause or last.cause)

    @property
    def failed_key(self) -> str:
        """The key of what failed: the step's own, or that of a fan-out's first element that failed."""
        element = self._failed_element() if self.count else None
        return self.key if element is None else element.key

    @property
    def ended_by_status(self) -> Mapping[str, int]:
        """Of a fan-out: how many elements ended with which status."""
        return self._store.records.counts(self.run_id, parent=self.key)

    def unended_count(self, keys: Sequence[str]) -> int:
        """How many of some elements have not ended: who says that they run may have said so before."""
        return len(keys) - self._store.records.count_rows(self.run_id, keys)

    @property
    def caught_failures(self) -> int:
        """Of a fan-out: how many elements failed and succeeded all the same, because their failures were caught."""
        return self._store.records.caught_count(self.run_id, self.key)

    # Results

    @property
    def outputs(self) -> Outputs:
        """Its results by name; those of a fan-out are lists, once all elements have theirs. A sweep has those of
        its best trial, and `best_params`, `best_value` and `trials`."""
        if self._outputs is None:
            default = self._empty_output if self.count == 0 and self._row.status in STEP_GOOD else None
            self._outputs = Outputs(self._read_outputs(), missing=self._no_such_output, default=default)
        return self._outputs

    @property
    def output(self) -> Output:
        """Its only result."""
        if len(self.outputs) == 1:
            return next(iter(self.outputs.values()))
        if not self.outputs:
            raise self._no_such_output(UNNAMED)
        names = list(self.outputs)
        raise NoSuchKey(
            f"step '{self.key}' has {len(names)} outputs: {', '.join(names)}",
            fix=f"say which: step.outputs[{names[0]!r}]",
        )

    def load(self) -> Any:
        """The value of its only result; for a fan-out, the list of its elements' values."""
        return self.output.load()

    # The cache

    def why(self, against: str | None = None) -> StepReason:
        """Why it ran or was cached, compared with the newest earlier result, or with that of the run `against`."""
        from stoker.client.why import why

        return why(self._store, self.run_id, self.key, against=against or "")

    # The elements of a fan-out

    def __len__(self) -> int:
        if self.count is None:
            raise UsageError(
                f"step '{self.key}' has no elements: it is not a fan-out, or its elements have not been counted yet",
                fix="its own results are in step.outputs",
            )
        return self.count

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Step]:
        """The elements by index. An element is "pending" until it ends, also while it runs."""
        count = len(self)
        if self._elements is None:
            rows = {row.idx: row for row in self._store.records.steps(self.run_id, parent=self.key)}
            self._elements = [self._element(index, rows.get(index)) for index in range(count)]
        return iter(self._elements)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        count = len(self)
        if isinstance(index, slice):
            return list(self)[index]
        if not -count <= index < count:
            raise NoSuchIndex(f"step '{self.key}' has {count_text(count, 'element')}, and none with the index {index}")
        index %= count
        if self._elements is not None:
            return self._elements[index]
        return self._element(index, self._store.records.step(self.run_id, f"{self.key}[{index}]"))

    # Lines

    @property
    def ranks(self) -> list[int]:
        """The ranks that wrote lines in the last attempt of a distributed step; for a fan-out, in any attempt."""
        if self.count is not None:
            return ranks_of(self._store, self.run_id, attempts_with_logs(self._store, self.run_id, self.step_logs()))
        return ranks_of(self._store, self.run_id, [(self.key, last_attempt(self._store, self.run_id, self.key))])

    def logs(
        self,
        attempt: int | None = None,
        *,
        stream: str | None = None,
        rank: Ranks = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """The lines of its last attempt, or of one by number (0: its hooks); for a fan-out, those of all elements.

        For a distributed step, `rank` selects the lines of one process, `[0, 3]` of several, "launcher" those of none.
        With `follow`, new lines follow until the step ends, also those of its next attempts unless `attempt` is set.
        """
        log_filter = LogFilter.parse(stream, rank)
        if tail is not None and tail < 0:
            raise UsageError(f"tail={tail} is not a number of lines", fix="write 0 or more")
        if self.count is not None:
            return self._logs_of_elements(attempt, log_filter=log_filter, follow=follow, tail=tail)
        if follow and self.status not in STEP_DONE:  # a rank without lines may still write some
            return follow_lines(self._store, self.run_id, self.key, attempt, log_filter=log_filter, tail=tail)
        return recorded_lines(self._store, self.run_id, self.key, attempt, log_filter=log_filter, tail=tail)

    def step_logs(self) -> Iterator[StepLog]:
        """The logs of the step, or of its elements."""
        start = self._row.started or 0.0  # an element gets its start when it ends
        if self.count is None:
            yield StepLog(start=start, key=self.key)
            return
        for element in self:
            yield from element.step_logs()

    # As a document

    def as_dict(self, *, details: bool = True, elements: bool = True) -> dict[str, Any]:
        """The step as JSON; with details also its attempts, outputs and, unless they are not asked for, elements."""
        document: dict[str, Any] = {
            "key": self.key,
            "name": self.name,
            "status": self.status,
            "started": iso_text(self.started),
            "ended": iso_text(self.ended),
            "seconds": self.seconds,
            "cause": self.cause,
            "message": self.message,
            "cached_from": self.cached_from,
            "inputs": dict(self.inputs),
            "attempt_count": self.attempt_count,
            "count": self.count,
            "usage": self.usage.as_dict(),
        }
        if self.damage:
            document["damage"] = self.damage
        if self.index is not None:
            document.update(parent=self.parent, index=self.index)
        if details:
            placements = {placement.attempt: placement.as_dict() for placement in self._placements}
            document["placement"] = placements[max(placements)] if placements else None
            document["attempts"] = [
                {**attempt.as_dict(), "placement": placements.get(attempt.number)} for attempt in self.attempts
            ]
            document["outputs"] = {name: output.as_dict() for name, output in self.outputs.items()}
            if self.count is not None and elements:
                document["elements"] = [element.as_dict(details=False) for element in self]
        return document

    def __repr__(self) -> str:
        facts = [f"{self.status} ({self.cause})" if self.cause else self.status]
        if self.count is not None:
            facts.append(count_text(self.count, "element"))
        if self.seconds is not None:
            facts.append(time_text(self.seconds))
        return f"<Step '{self.key}' {', '.join(facts)}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.step(self.as_dict())

    # Helpers

    def _started(self) -> float | None:
        if self._row.started is None and self.count and self._row.ended is not None:
            return self._store.records.first_start(self.run_id, self.key)
        return self._row.started

    def _failed_element(self) -> Step | None:
        """The first element that ended as the fan-out did."""
        row = self._store.records.first_element(self.run_id, self.key, status=self._row.status)
        return None if row is None else self._element(row.idx or 0, row)

    def _element(self, index: int, row: StepRow | None) -> Step:
        if row is None:  # elements get their row when they end
            row = StepRow(
                run_id=self.run_id,
                key=f"{self.key}[{index}]",
                name=self.name,
                position=self._row.position,
                parent=self.key,
                idx=index,
            )
        return Step(self._store, row, run_is_alive=self._run_is_alive)

    def _read_outputs(self) -> list[Output]:
        records = self._store.records
        if self.count is None:
            rows = records.outputs(self.run_id, self.key)
            return [Output(self._store, row) for row in rows if row.name not in OWN]
        if self._row.status not in STEP_GOOD:
            return []
        rows = records.outputs(self.run_id, self.key)
        if any(row.name == PARAMS for row in rows):
            return [Output(self._store, row) for row in rows]
        if not self.count:
            return [self._empty_output(UNNAMED)]
        outputs = []
        names = [row.name for row in records.outputs(self.run_id, f"{self.key}[0]") if row.name not in OWN]
        for name in names:
            parts = [row.artifact for row in records.element_outputs(self.run_id, self.key, name)]
            if len(parts) == self.count:
                outputs.append(gather_output(self._store, self.run_id, self.key, name, parts))
        return outputs

    def _empty_output(self, name: str) -> Output:
        """The output of a fan-out without elements: an empty list, under any name, because no row has the names."""
        return gather_output(self._store, self.run_id, self.key, name, ())

    def _no_such_output(self, name: str) -> NoSuchKey:
        if self._row.status in STEP_GOOD:
            hint = nearest(name, self.outputs) if self.outputs else ": it returns nothing"
            return NoSuchKey(f"step '{self.key}' has no output '{name}'{hint}")
        message = f"step '{self.key}' has no output '{name}': it is {self.status}"
        if self._row.status not in STEP_DONE:
            fix = "run.wait() until it is there" if self._run_is_alive() else f"stoker resume {self.run_id}"
            return NoSuchKey(message, fix=fix)
        if self.count:
            return NoSuchKey(message, fix="elements that succeeded have theirs: step[0].outputs")
        return NoSuchKey(message, fix=f"see step.failure; `stoker resume {self.run_id}` tries it again")

    def _logs_of_elements(
        self, attempt: int | None, *, log_filter: LogFilter, follow: bool, tail: int | None
    ) -> Iterator[LogLine]:
        if follow or attempt is not None:
            wish = "follow" if follow else "an attempt"
            raise UsageError(
                f"step '{self.key}' is a fan-out: its elements have the logs",
                fix=f"ask for {wish} of one: step[0].logs(…)",
            )
        logs = attempts_with_logs(self._store, self.run_id, self.step_logs())
        require_ranks(self._store, self.run_id, logs, log_filter, where=f"step '{self.key}'")
        lines = (line for _, line in merge_by_time(self._store, self.run_id, self.step_logs(), log_filter=log_filter))
        return lines if tail is None else iter(deque(lines, maxlen=tail))


class Steps(Mapping[str, Step]):
    """A run's steps by key, in the order of the pipeline; elements of fan-outs are "key[3]"."""

    def __init__(self, store: Store, run_id: str, *, run_is_alive: Callable[[], bool]) -> None:
        self._store = store
        self._run_id = run_id
        self._run_is_alive = run_is_alive
        self._rows = {row.key: row for row in store.records.steps(run_id)}
        self._steps: dict[str, Step] = {}

    def __getitem__(self, key: str) -> Step:
        step = self._steps.get(key)
        if step is not None:
            return step
        row = self._rows.get(key)
        if row is not None:
            step = self._steps[key] = Step(self._store, row, run_is_alive=self._run_is_alive)
            return step
        parent, index = element_of(key)
        if index is not None and parent in self._rows and self._rows[parent].count is not None:
            return self[parent][index]
        raise NoSuchKey(f"run {self._run_id} has no step '{key}'{nearest(key, self._rows)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        parts = [f"'{row.key}' {self[row.key].status}" for row in _first_rows(self._rows.values())]
        more = len(self) - len(parts)
        return f"<Steps {', '.join(parts) or 'none'}{f', … {more:,} more' if more else ''}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


def _first_rows(rows: Iterable[StepRow]) -> list[StepRow]:
    return [row for row, _ in zip(rows, range(12))]
