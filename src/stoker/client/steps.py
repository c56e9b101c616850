"""A step of a run, its attempts, results and lines; a fan-out with its elements; and all steps of a run by key."""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Iterator, Mapping, overload

import attrs

from stoker.client.attempts import Attempt, Failure
from stoker.client.logs import Source, Which, followed, last_attempt, merged, ranks_of, require_ranks, so_far, there
from stoker.client.missing import NoSuchIndex, NoSuchKey
from stoker.client.order import element_of
from stoker.client.outputs import Output, Outputs, gathered
from stoker.client.times import between, iso, moment
from stoker.client.usage import Usage, usage, usage_of_all
from stoker.core.errors import UsageError, nearest
from stoker.core.flow import OWN
from stoker.core.plan import LogLine
from stoker.core.status import STEP_DONE, STEP_GOOD
from stoker.core.words import count_text, time_text
from stoker.store.logs import Ranks
from stoker.store.rows import StepRow
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt

UNNAMED: Final = "output"
"""What the one output is called that its step gives no name."""
_ONE_VALUE: Final = re.compile(r"\w+:([0-9a-f]{64})")


class Step:
    """One step, one fan-out (a sequence of its elements), or one element of a fan-out."""

    def __init__(self, store: Store, row: StepRow, *, run_lives: Callable[[], bool]) -> None:
        self._store = store
        self._row = row
        self._run_lives = run_lives
        self._elements: list[Step] | None = None
        self._attempts: list[Attempt] | None = None
        self._outputs: Outputs | None = None
        self.run_id = row.run_id
        self.key = row.key
        self.name = row.name
        self.cause = row.cause
        self.cached_from = row.cached_from
        self.attempt_count = row.attempts
        self.parent = row.parent
        self.index = row.idx
        self.count = row.count

    # How it went

    @property
    def status(self) -> str:
        """Where it stands; "interrupted" if it was running and nobody runs the run any more."""
        if self._row.status == "running" and not self._run_lives():
            return "interrupted"
        return self._row.status

    @property
    def started(self) -> datetime | None:
        """When its last attempt began; of a fan-out its first element."""
        return moment(self._started())

    @property
    def ended(self) -> datetime | None:
        """When it was over."""
        return moment(self._row.ended)

    @property
    def seconds(self) -> float | None:
        """How long its last attempt took; None before its end, and for a step that did not run."""
        return between(self._started(), self._row.ended)

    @property
    def message(self) -> str:
        """Why it failed, in a sentence."""
        if not self._row.message and self.count and self._row.status == "failed":
            element = self._failed_element()
            return f"{element.key}: {element.message}" if element is not None else ""
        return self._row.message

    @property
    def usage(self) -> Usage:
        """What its last attempt used; of a fan-out the CPU time of all elements and the largest memory of one."""
        if self.count and not self._row.usage:
            return usage_of_all(element.usage for element in self)
        return usage(self._row.usage)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Parameter → the digest of what it was bound to; of a list or a dict the digests in their structure."""
        found = {}
        for name, digest in self._row.inputs.items():
            single = _ONE_VALUE.fullmatch(digest)
            found[name] = single[1] if single else digest
        return found

    @property
    def attempts(self) -> list[Attempt]:
        """The tries at it that are over, first to last. A fan-out has none of its own: its elements do."""
        if self._attempts is None:
            records = self._store.records
            self._attempts = [Attempt(row, records) for row in records.attempts(self.run_id, self.key)]
        return self._attempts

    @property
    def receipt(self) -> Receipt | None:
        """What its last attempt did with its accelerators; None if it asked for none. A fan-out's elements have one."""
        return self.attempts[-1].receipt if self.attempts else None

    @property
    def failure(self) -> Failure | None:
        """Why it failed: of the last attempt, or of a fan-out's first element that failed; None if it did not."""
        if self._row.status not in ("failed", "cancelled"):
            return None
        if self.count:
            element = self._failed_element()
            return None if element is None else element.failure
        last = self.attempts[-1].failure if self.attempts else None
        if last is None:  # without an attempt: its inputs could not be read
            return Failure(cause=self.cause, message=self._row.message) if self.cause else None
        # An attempt that was ended knows its signal; only the step knows why.
        return attrs.evolve(last, cause=self.cause or last.cause)

    # What it made

    @property
    def outputs(self) -> Outputs:
        """Its results by name; of a fan-out, once all elements have theirs, as lists."""
        if self._outputs is None:
            every = self._nothing_of if self.count == 0 and self._row.status in STEP_GOOD else None
            self._outputs = Outputs(self._found_outputs(), missing=self._no_output, every=every)
        return self._outputs

    @property
    def output(self) -> Output:
        """Its only result."""
        if len(self.outputs) == 1:
            return next(iter(self.outputs.values()))
        if not self.outputs:
            raise self._no_output(UNNAMED)
        names = list(self.outputs)
        raise NoSuchKey(
            f"step '{self.key}' has {len(names)} outputs: {', '.join(names)}",
            fix=f"say which: step.outputs[{names[0]!r}]",
        )

    def load(self) -> Any:
        """The value of its only result; of a fan-out the list of its elements' values."""
        return self.output.load()

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
        """The elements by index. One that has not ended yet says "pending", also while it runs."""
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

    # What it printed

    @property
    def ranks(self) -> list[int]:
        """Of a distributed step the ranks that wrote lines in its last attempt; of a fan-out, in any attempt."""
        if self.count is not None:
            return ranks_of(self._store, self.run_id, there(self._store, self.run_id, self.log_sources()))
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
        """The lines of its last attempt, or of one by number (0: of its hooks); of a fan-out those of all elements.

        Of a distributed step, `rank` asks for one process's lines, `[0, 3]` for several, "launcher" for those of none.
        `follow` goes on with new lines until the step is over, and then into its next attempts unless one was named.
        """
        which = Which.parse(stream, rank)
        if tail is not None and tail < 0:
            raise UsageError(f"tail={tail} is not a number of lines", fix="write 0 or more")
        if self.count is not None:
            return self._logs_of_elements(attempt, which=which, follow=follow, tail=tail)
        if follow and self.status not in STEP_DONE:  # a rank that wrote nothing yet may still
            return followed(self._store, self.run_id, self.key, attempt, which=which, tail=tail)
        return so_far(self._store, self.run_id, self.key, attempt, which=which, tail=tail)

    def log_sources(self) -> Iterator[Source]:
        """Where lines of it may be: itself, or its elements."""
        start = self._row.started or 0.0  # an element that still runs has no start yet
        if self.count is None:
            yield Source(start=start, key=self.key)
            return
        for element in self:
            yield from element.log_sources()

    # All of it

    def as_dict(self, *, details: bool = True) -> dict[str, Any]:
        """The step as JSON; with details also its attempts, outputs and elements."""
        document: dict[str, Any] = {
            "key": self.key,
            "name": self.name,
            "status": self.status,
            "started": iso(self.started),
            "ended": iso(self.ended),
            "seconds": self.seconds,
            "cause": self.cause,
            "message": self.message,
            "cached_from": self.cached_from,
            "inputs": dict(self.inputs),
            "attempt_count": self.attempt_count,
            "count": self.count,
            "usage": self.usage.as_dict(),
        }
        if self.index is not None:
            document.update(parent=self.parent, index=self.index)
        if details:
            document["attempts"] = [attempt.as_dict() for attempt in self.attempts]
            document["outputs"] = {name: output.as_dict() for name, output in self.outputs.items()}
            if self.count is not None:
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

    # Inside

    def _started(self) -> float | None:
        if self._row.started is None and self.count and self._row.ended is not None:
            return min((element._row.started for element in self if element._row.started is not None), default=None)
        return self._row.started

    def _failed_element(self) -> Step | None:
        return next((element for element in self if element._row.status == self._row.status), None)

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
        return Step(self._store, row, run_lives=self._run_lives)

    def _found_outputs(self) -> list[Output]:
        records = self._store.records
        if self.count is None:
            rows = records.outputs(self.run_id, self.key)
            return [Output(self._store, row) for row in rows if row.name not in OWN]
        if self._row.status not in STEP_GOOD:
            return []
        if not self.count:
            return [self._nothing_of(UNNAMED)]
        found = []
        names = [row.name for row in records.outputs(self.run_id, f"{self.key}[0]") if row.name not in OWN]
        for name in names:
            parts = [row.artifact for row in records.element_outputs(self.run_id, self.key, name)]
            if len(parts) == self.count:
                found.append(gathered(self._store, self.run_id, self.key, name, parts))
        return found

    def _nothing_of(self, name: str) -> Output:
        """What a fan-out over nothing made, whatever its output is called: no row says that."""
        return gathered(self._store, self.run_id, self.key, name, ())

    def _no_output(self, name: str) -> NoSuchKey:
        if self._row.status in STEP_GOOD:
            known = nearest(name, self.outputs) if self.outputs else ": it returns nothing"
            return NoSuchKey(f"step '{self.key}' has no output '{name}'{known}")
        message = f"step '{self.key}' has no output '{name}': it is {self.status}"
        if self._row.status not in STEP_DONE:
            fix = "run.wait() until it is there" if self._run_lives() else f"stoker resume {self.run_id}"
            return NoSuchKey(message, fix=fix)
        if self.count:
            return NoSuchKey(message, fix="elements that succeeded have theirs: step[0].outputs")
        return NoSuchKey(message, fix=f"see step.failure; `stoker resume {self.run_id}` tries it again")

    def _logs_of_elements(
        self, attempt: int | None, *, which: Which, follow: bool, tail: int | None
    ) -> Iterator[LogLine]:
        if follow or attempt is not None:
            what = "follow" if follow else "an attempt"
            raise UsageError(
                f"step '{self.key}' is a fan-out: its elements have the logs",
                fix=f"ask for {what} of one: step[0].logs(…)",
            )
        logs = there(self._store, self.run_id, self.log_sources())
        require_ranks(self._store, self.run_id, logs, which, where=f"step '{self.key}'")
        lines = (line for _, line in merged(self._store, self.run_id, self.log_sources(), which=which))
        return lines if tail is None else iter(deque(lines, maxlen=tail))


class Steps(Mapping[str, Step]):
    """A run's steps by key, in the order of the pipeline; elements of fan-outs as "key[3]", too."""

    def __init__(self, store: Store, run_id: str, *, run_lives: Callable[[], bool]) -> None:
        self._store = store
        self._run_id = run_id
        self._run_lives = run_lives
        self._rows = {row.key: row for row in store.records.steps(run_id)}
        self._steps: dict[str, Step] = {}

    def __getitem__(self, key: str) -> Step:
        step = self._steps.get(key)
        if step is not None:
            return step
        row = self._rows.get(key)
        if row is not None:
            step = self._steps[key] = Step(self._store, row, run_lives=self._run_lives)
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
        shown = [f"'{row.key}' {self[row.key].status}" for row in _some(self._rows.values())]
        more = len(self) - len(shown)
        return f"<Steps {', '.join(shown) or 'none'}{f', … {more:,} more' if more else ''}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


def _some(rows: Iterable[StepRow]) -> list[StepRow]:
    return [row for row, _ in zip(rows, range(12))]
