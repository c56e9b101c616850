"""Writes down what happens in a run, many rows a transaction, and remembers what earlier sessions of it finished.

Everything goes through `flush`: the runner calls it before it submits what depends on what was recorded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import StoreError
from stoker.core.plan import LogLine, StepPlan
from stoker.core.status import STEP_GOOD, StepStatus
from stoker.engine.doing import Doing
from stoker.engine.inputs import Wire, digest_of
from stoker.store.records import Batch
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RungRow, StepProgress, StepRow
from stoker.store.rungs import Rungs
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt, Track
    from stoker.store.receipts import ReceiptRow

_TAIL: Final = 40
"""Lines of a log that are asked why a process died; those of a caught error further up would mislead."""


@attrs.frozen
class Cached:
    """A cached result and the step that made it, as "run/step"."""

    outputs: Mapping[str, Wire]
    origin: str


class Recorder:
    """The rows of one run, held by one driver's token."""

    def __init__(self, store: Store, *, run: str, token: str) -> None:
        self._store = store
        self._rungs = Rungs(store.records.database)
        self._run = run
        self._token = token
        self._batch = Batch()
        # Not in the batch until it is written: a step that ends before has its whole row there already.
        self._progress: dict[str, StepProgress] = {}
        self._seq = store.records.next_seq(run)
        self._kept: dict[str, StepRow] = {}
        self._tried: dict[str, int] = {}
        self._resumed = False
        self._beat_at = time.monotonic()

    # What earlier sessions left

    def remember_earlier(self, but: Iterable[str] = ()) -> None:
        """Take over what earlier sessions of the run finished, and how often they tried the rest; `but` these steps."""
        self._resumed = True
        self._tried = self._store.records.attempt_numbers(self._run)
        for row in self._store.records.all_steps(self._run):
            self._tried[row.key] = max(row.attempts, self._tried.get(row.key, 0))
            if row.status in STEP_GOOD and row.name not in but:
                self._kept[row.key] = row

    def tried(self, key: str) -> int:
        """How many attempts earlier sessions made at a step, also those that ended with their driver."""
        known = self._tried.get(key, 0)
        # An element has no row while it runs, but what it printed is there: nothing is to be added to that.
        return max(known, *self._store.logs.attempts(self._run, key), 0) if self._resumed else known

    def is_kept(self, key: str) -> bool:
        """Whether an earlier session finished the step."""
        return key in self._kept

    def kept(self, key: str) -> Mapping[str, Wire] | None:
        """The outputs of a step that an earlier session finished."""
        if key not in self._kept:
            return None
        return {row.name: row.artifact.wire() for row in self._store.records.outputs(self._run, key)}

    def cached(self, key: str) -> Cached | None:
        """The cache's entry for a key."""
        row = self._store.records.cached(key, time.time())
        return None if row is None else Cached(row.outputs, f"{row.run_id}/{row.step_key}")

    # What happens

    def pending(self, steps: Iterable[StepPlan]) -> None:
        """Steps that will come."""
        for step in steps:
            self._batch.step(
                StepRow(
                    run_id=self._run,
                    key=step.key,
                    name=step.name,
                    position=step.position,
                    attempts=self.tried(step.key),
                )
            )

    def expanded(self, key: str, count: int) -> None:
        """A fan-out knows how many elements it has."""
        if not self.is_kept(key):
            row = StepProgress(run_id=self._run, key=key, status="running", started=time.time(), count=count)
            self._progress[key] = row

    def running(self, key: str, attempt: int, *, started: float, parent: str) -> None:
        """An attempt begins."""
        if parent:
            # Elements have no row until they end: ten thousand short ones would be written twice.
            return
        self._progress[key] = StepProgress(
            run_id=self._run, key=key, status="running", started=started, attempts=attempt
        )

    def attempt(self, key: str, step: StepPlan, facts: Mapping[str, Any]) -> None:
        """An attempt is over."""
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

    def settled(
        self,
        key: str,
        step: StepPlan,
        status: StepStatus,
        facts: Mapping[str, Any],
        doing: Doing | None,
        *,
        parent: str,
        index: int | None,
        count: int | None = None,
    ) -> None:
        """A step is over: its row, its outputs, and what the cache learns from it."""
        now = time.time()
        self._progress.pop(key, None)
        inputs = doing.inputs if doing is not None else {}
        known = doing.cache_key if doing is not None else ""
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
                inputs={name: digest_of(tree) for name, tree in inputs.items()},
                cache_key=known,
                attempts=facts.get("attempt") or self.tried(key),
                count=count,
                usage=facts.get("usage") or {},
            )
        )
        outputs = facts.get("outputs") or {}
        if status not in STEP_GOOD or not known:
            return
        for place, (name, wire) in enumerate(outputs.items()):
            row = OutputRow(run_id=self._run, key=key, name=name, artifact=from_wire(wire), place=place)
            self._batch.output(row)
        # What was computed without the devices that were asked for must not stand for what they would have computed.
        if status == "succeeded" and step.settings.cache and not facts.get("pretended"):
            expires = None if step.settings.cache_expires is None else now + step.settings.cache_expires
            self._batch.remember(
                CacheRow(key=known, run_id=self._run, step_key=key, created=now, expires=expires, outputs=outputs)
            )

    def receipt_of(self, key: str, attempt: int) -> ReceiptRow | None:
        """The receipt of an attempt that is over."""
        self.flush()
        return self._store.records.receipt(self._run, key, attempt)

    def outputs(self, key: str, outputs: Mapping[str, Wire]) -> None:
        """More results of a step than its worker told of."""
        for place, (name, wire) in enumerate(outputs.items()):
            row = OutputRow(run_id=self._run, key=key, name=name, artifact=from_wire(wire), place=place)
            self._batch.output(row)

    def learned(self, key: str) -> RungRow | None:
        """The changes with which a request worked the last time."""
        return self._rungs.found(key)

    def learn(self, key: str, changes: Mapping[str, Any]) -> None:
        """A request worked with these changes."""
        self._rungs.learn(RungRow(key=key, run_id=self._run, created=time.time(), changes=changes))

    def unlearn(self, key: str) -> None:
        """A request worked as it was."""
        self._rungs.forget(key)

    def receipt(self, key: str, attempt: int, receipt: Receipt, tracks: tuple[Track, ...]) -> None:
        """What an attempt did with its accelerators."""
        from stoker.store.receipts import ReceiptRow  # only for steps with devices

        self._batch.receipt(ReceiptRow(run_id=self._run, key=key, number=attempt, receipt=receipt, tracks=tracks))

    def event(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        """Something worth remembering that is no row of its own."""
        self._batch.event(EventRow(run_id=self._run, seq=self._seq, time=time.time(), kind=kind, key=key, data=data))
        self._seq += 1

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """A step wrote lines: they go to its log at once."""
        self._store.logs.append(self._run, key, attempt, lines)

    def tail(self, key: str, attempt: int, rank: int | None = None) -> list[str]:
        """The last lines that an attempt wrote, or one of its ranks; if that one wrote none, those of all."""
        logs = self._store.logs
        last = list(logs.lines(self._run, key, attempt, tail=_TAIL, rank=rank))
        if rank is not None and not last:
            last = list(logs.lines(self._run, key, attempt, tail=_TAIL))
        return [line.text for line in last]

    def flush(self) -> None:
        """Commit all that was recorded, if this driver still holds the run."""
        for row in self._progress.values():
            self._batch.change(row)
        self._progress.clear()
        if not len(self._batch):
            return
        batch, self._batch = self._batch, Batch()
        if not self._store.records.write(batch, run_id=self._run, token=self._token):
            raise StoreError(
                f"run {self._run} was taken over by another driver; this one writes nothing more",
                fix=f"see `stoker show {self._run}`: somebody resumed the run while this driver still lived",
            )

    # The heart

    def next_beat(self, every: float) -> float:
        """Seconds until the next look at the run's row."""
        return self._beat_at + every - time.monotonic()

    def beat(self) -> str:
        """Show that the driver lives; what somebody wishes of it: "", "cancel" or "now"."""
        self._beat_at = time.monotonic()
        wish = self._store.records.asked(self._run, self._token, time.time())
        return wish or ""
