"""Records what happens in a run, many rows a transaction, and knows what earlier sessions of the run finished.

`flush` commits: the runner calls it before it submits what depends on the rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import StoreError
from stoker.core.plan import LogLine, StepPlan
from stoker.core.status import STEP_GOOD, StepStatus
from stoker.engine.execution import StepExecution
from stoker.engine.inputs import Wire, tree_digest
from stoker.store.records import RowBatch
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RungRow, StepProgress, StepRow
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt, Track
    from stoker.store.receipts import ReceiptRow

_TAIL: Final = 40
"""Last lines of a log that are searched for why a process died; a caught error further up would mislead."""


@attrs.frozen
class CachedResult:
    """A cached result and the step that made it, as "run/step"."""

    outputs: Mapping[str, Wire]
    origin: str


class Recorder:
    """The rows of one run, held by one driver's token."""

    def __init__(self, store: Store, *, run: str, token: str) -> None:
        self._store = store
        self._run = run
        self._token = token
        self._batch = RowBatch()
        # Not in the batch until it is written: a step that ends before has its whole row there already.
        self._progress: dict[str, StepProgress] = {}
        self._seq = store.records.next_seq(run)
        self._finished: dict[str, StepRow] = {}
        self._attempts: dict[str, int] = {}
        self._resumed = False
        self._beat_at = time.monotonic()

    # Earlier sessions

    def load_earlier(self, but: Iterable[str] = ()) -> None:
        """Load what earlier sessions of the run finished, `but` for these steps, and how often they tried each."""
        self._resumed = True
        self._attempts = self._store.records.attempt_numbers(self._run)
        for row in self._store.records.all_steps(self._run):
            self._attempts[row.key] = max(row.attempts, self._attempts.get(row.key, 0))
            if row.status in STEP_GOOD and row.name not in but:
                self._finished[row.key] = row

    def earlier_attempts(self, key: str) -> int:
        """How many attempts earlier sessions made at a step, also those that ended with their driver."""
        recorded = self._attempts.get(key, 0)
        # An element has no row while it runs, but what it printed is there: nothing is to be added to that.
        return max(recorded, *self._store.logs.attempts(self._run, key), 0) if self._resumed else recorded

    def is_finished(self, key: str) -> bool:
        """Whether an earlier session finished the step."""
        return key in self._finished

    def finished_outputs(self, key: str) -> Mapping[str, Wire] | None:
        """The outputs of a step that an earlier session finished."""
        if key not in self._finished:
            return None
        return {row.name: row.artifact.wire() for row in self._store.records.outputs(self._run, key)}

    def cached_result(self, key: str) -> CachedResult | None:
        """The cache's entry for a key."""
        row = self._store.records.cached(key, time.time())
        return None if row is None else CachedResult(row.outputs, f"{row.run_id}/{row.step_key}")

    # Recording

    def record_pending(self, steps: Iterable[StepPlan]) -> None:
        """Record steps that will run."""
        for step in steps:
            self._batch.step(
                StepRow(
                    run_id=self._run,
                    key=step.key,
                    name=step.name,
                    position=step.position,
                    attempts=self.earlier_attempts(step.key),
                )
            )

    def record_expansion(self, key: str, count: int) -> None:
        """Record how many elements a fan-out has."""
        if not self.is_finished(key):
            row = StepProgress(run_id=self._run, key=key, status="running", started=time.time(), count=count)
            self._progress[key] = row

    def record_running(self, key: str, attempt: int, *, started: float, parent: str) -> None:
        """Record that an attempt begins."""
        if parent:
            # Elements have no row until they end: ten thousand short ones would be written twice.
            return
        self._progress[key] = StepProgress(
            run_id=self._run, key=key, status="running", started=started, attempts=attempt
        )

    def record_attempt(self, key: str, step: StepPlan, facts: Mapping[str, Any]) -> None:
        """Record an attempt that is over."""
        self._batch.attempt(
            AttemptRow(
                run_id=self._run,
                key=key,
                number=facts["attempt"],
                status="failed" if facts.get("cause") else "succeeded",
                backend=step.backend,
                started=facts.get("started"),
                ended=facts.get("ended"),
                cause=facts.get("cause", ""),
                message=facts.get("message", ""),
                error=facts.get("error") or {},
                exit_code=facts.get("exit_code"),
                usage=facts.get("usage") or {},
                changes=facts.get("changes") or (),
            )
        )

    def record_settled(
        self,
        key: str,
        step: StepPlan,
        status: StepStatus,
        facts: Mapping[str, Any],
        execution: StepExecution | None,
        *,
        parent: str,
        index: int | None,
        count: int | None = None,
    ) -> None:
        """Record a settled step: its row, its outputs, and its entry in the cache."""
        now = time.time()
        self._progress.pop(key, None)
        inputs = execution.inputs if execution is not None else {}
        cache_key = execution.cache_key if execution is not None else ""
        self._batch.step(
            StepRow(
                run_id=self._run,
                key=key,
                name=step.name,
                position=step.position,
                parent=parent,
                idx=index,
                status=status,
                started=facts.get("started"),
                ended=facts.get("ended") or now,
                cause=facts.get("cause", ""),
                message=facts.get("message", ""),
                cached_from=facts.get("cached_from", ""),
                inputs={name: tree_digest(tree) for name, tree in inputs.items()},
                cache_key=cache_key,
                attempts=facts.get("attempt") or self.earlier_attempts(key),
                count=count,
                usage=facts.get("usage") or {},
            )
        )
        outputs = facts.get("outputs") or {}
        if status not in STEP_GOOD or not cache_key:
            return
        for position, (name, wire) in enumerate(outputs.items()):
            row = OutputRow(run_id=self._run, key=key, name=name, artifact=from_wire(wire), place=position)
            self._batch.output(row)
        # What was computed without the devices that were asked for must not stand for what they would have computed.
        if status == "succeeded" and step.settings.cache and not facts.get("pretended"):
            expires = None if step.settings.cache_expires is None else now + step.settings.cache_expires
            self._batch.remember(
                CacheRow(key=cache_key, run_id=self._run, step_key=key, created=now, expires=expires, outputs=outputs)
            )

    def receipt_of(self, key: str, attempt: int) -> ReceiptRow | None:
        """The receipt of an attempt that is over."""
        self.flush()
        return self._store.records.receipt(self._run, key, attempt)

    def record_outputs(self, key: str, outputs: Mapping[str, Wire]) -> None:
        """Record results of a step beside those that its worker reported."""
        for position, (name, wire) in enumerate(outputs.items()):
            row = OutputRow(run_id=self._run, key=key, name=name, artifact=from_wire(wire), place=position)
            self._batch.output(row)

    def learned_changes(self, key: str) -> RungRow | None:
        """The changes with which a request worked the last time."""
        return self._store.records.learned_changes(key)

    def learn_changes(self, key: str, changes: Mapping[str, Any]) -> None:
        """Remember that a request worked with these changes."""
        self._store.records.learn_changes(RungRow(key=key, run_id=self._run, created=time.time(), changes=changes))

    def forget_changes(self, key: str) -> None:
        """Forget the changes of a request that worked unchanged."""
        self._store.records.forget_changes(key)

    def record_receipt(self, key: str, attempt: int, receipt: Receipt, tracks: tuple[Track, ...]) -> None:
        """Record what an attempt did with its accelerators."""
        from stoker.store.receipts import ReceiptRow  # only for steps with devices

        self._batch.receipt(ReceiptRow(run_id=self._run, key=key, number=attempt, receipt=receipt, tracks=tracks))

    def record_event(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        """Record an event that has no row of its own."""
        self._batch.event(EventRow(run_id=self._run, seq=self._seq, time=time.time(), kind=kind, key=key, data=data))
        self._seq += 1

    def append_log(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """Append lines to a step's log, at once."""
        self._store.logs.append(self._run, key, attempt, lines)

    def tail(self, key: str, attempt: int, rank: int | None = None) -> list[str]:
        """The last lines that an attempt wrote, or one of its ranks; if that one wrote none, those of all."""
        logs = self._store.logs
        lines = list(logs.lines(self._run, key, attempt, tail=_TAIL, rank=rank))
        if rank is not None and not lines:
            lines = list(logs.lines(self._run, key, attempt, tail=_TAIL))
        return [line.text for line in lines]

    def flush(self) -> None:
        """Commit all that was recorded, if this driver still holds the run."""
        for row in self._progress.values():
            self._batch.change(row)
        self._progress.clear()
        if not len(self._batch):
            return
        batch, self._batch = self._batch, RowBatch()
        if not self._store.records.write(batch, run_id=self._run, token=self._token):
            raise StoreError(
                f"run {self._run} was taken over by another driver; this one writes nothing more",
                fix=f"see `stoker show {self._run}`: somebody resumed the run while this driver still lived",
            )

    # The heartbeat

    def next_beat(self, every: float) -> float:
        """Seconds until the next look at the run's row."""
        return self._beat_at + every - time.monotonic()

    def beat(self) -> str:
        """Record that the driver lives; what a person asks of it: "", "cancel" or "now"."""
        self._beat_at = time.monotonic()
        request = self._store.records.heartbeat(self._run, self._token, time.time())
        return request or ""
