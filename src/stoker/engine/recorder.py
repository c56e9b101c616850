"""Records what happens in a run, many rows a transaction, and knows what earlier sessions of the run finished.

`flush` commits: the runner calls it before it submits what depends on the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Mapping, Sequence, TypeVar

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import DatabaseUnreachable, StokerError, StoreError
from stoker.core.metrics import MetricBook, Row, book_of
from stoker.core.plan import LogLine, StepPlan, uses_cache
from stoker.core.protocol import JOB
from stoker.core.registry import registers
from stoker.core.status import STEP_GOOD, StepStatus
from stoker.core.sweep import SWEEP_EVENT
from stoker.core.values import frozen
from stoker.core.words import bounded
from stoker.engine import clock
from stoker.engine.execution import StepExecution
from stoker.engine.inputs import Wire
from stoker.plan.cachekey import KeyParts, recipe_digest, recipe_document, recipe_key
from stoker.store import artifacts
from stoker.store.batch import RowBatch
from stoker.store.records import Records
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RecipeRow, RungRow, StepProgress, StepRow
from stoker.store.store import Store
from stoker.store.writer import RunWriter

if TYPE_CHECKING:
    from typing import TypeAlias

    from stoker.core.metrics import Row
    from stoker.core.receipt import Receipt, Track
    from stoker.core.registry import Model
    from stoker.engine.names import RunNames
    from stoker.store.receipts import ReceiptRow

    Attempt: TypeAlias = "tuple[str, int]"


EVERY: Final = 1.0
"""Seconds between two pieces of an attempt that runs."""
JOIN: Final = 64
"""Pieces of an attempt that are joined: a training of days would have a hundred thousand."""


class RunMetrics:
    """What the attempts of one run logged and the store does not have yet."""

    def __init__(self, records: Records, run: str) -> None:
        self._records = records
        self._run = run
        self._books: dict[Attempt, MetricBook] = {}
        self._pieces: dict[Attempt, int] = {}
        self._write_at: dict[Attempt, float] = {}

    def add(self, key: str, attempt: int, rows: Iterable[Row]) -> None:
        """Add rows of an attempt."""
        self._books.setdefault((key, attempt), MetricBook()).add(rows)

    def write(self, batch: RowBatch) -> None:
        """Add to the batch a piece of each attempt whose last one is old enough."""
        now = clock.monotonic()
        for key, attempt in [one for one in self._books if self._write_at.get(one, 0.0) <= now]:
            self._write_at[key, attempt] = now + EVERY
            self._write(key, attempt, batch)

    def end(self, key: str, attempt: int, batch: RowBatch) -> None:
        """Add to the batch all that remains of an attempt that is over."""
        if (key, attempt) in self._books:
            self._write(key, attempt, batch)
        self._pieces.pop((key, attempt), None)
        self._write_at.pop((key, attempt), None)

    def _write(self, key: str, attempt: int, batch: RowBatch) -> None:
        data = self._books.pop((key, attempt)).packed()
        piece = self._pieces[key, attempt] = self._pieces.get((key, attempt), 0) + 1
        if piece % JOIN == 0:
            self._join(key, attempt, batch)
        batch.metric_piece(self._run, key, attempt, piece, data)

    def _join(self, key: str, attempt: int, batch: RowBatch) -> None:
        """Join the pieces that the store has. While it is away, and where one cannot be read, they stay as they are."""
        try:
            pieces = self._records.metric_pieces(self._run, key, attempt)
            book = MetricBook()
            for _, data in pieces:
                book.merge(book_of(data))
        except (DatabaseUnreachable, StoreError):
            return
        if len(pieces) > 1:
            batch.join_metrics(self._run, key, attempt, pieces[-1][0], book.packed())


T = TypeVar("T")

_TAIL: Final = 160
"""Last lines of a log that may say why a process died: faulthandler writes up to 100 frames of Python."""
_OF_ATTEMPTS: Final = ("started", "ended", "cause", "error", "exit_code", "usage", "changes")
_OF_STEPS: Final = ("started", "cause", "cached_from", "usage")
"""Facts that are columns of an attempt's and of a step's row, where an execution has them."""
_CHECK_EVERY: Final = 0.25
"""Seconds between two looks whether the store is still there, while rows are written."""


@frozen
class CachedResult:
    """A cached result and the step that made it, as "run/step"; `lost` is the digest of a part that is lost or damaged,
    with which the result cannot be used."""

    outputs: Mapping[str, Wire]
    origin: str
    lost: str = ""


@frozen
class OriginResult:
    """The result of a step in the run that this one repeats, the step as "run/step", and its cache key there."""

    outputs: Mapping[str, Wire]
    origin: str
    cache_key: str
    recipe: str


class Recorder:
    """The rows of one run, held by one driver's token."""

    def __init__(self, store: Store, *, run: str, token: str, writer: RunWriter | None = None) -> None:
        self._store = store
        self._run = run
        self._token = token
        self._writer = RunWriter(store, run=run, token=token) if writer is None else writer
        self._batch = RowBatch()
        # Not in the batch until it is written: a step that ends before has its whole row there already.
        self._pending: dict[str, StepPlan] = {}
        self._progress: dict[str, StepProgress] = {}
        self._seq = store.records.next_seq(run)
        self._finished: dict[str, StepRow] = {}
        self._first_starts: dict[str, float] = {}
        self._attempts: dict[str, int] = {}
        self._resumed = False
        self._failed_fanouts: set[str] = set()
        self._origin: dict[str, StepRow] = {}
        self._same_inputs = True
        self._not_taken: set[str] = set()
        self._metrics: RunMetrics | None = None
        self._run_names: RunNames | None = None
        self._model: Model | None = None
        self._model_version: int | None = None
        self._recipes: dict[tuple[Any, ...], str] = {}
        # By the digest of a step's code: the latest that was named, with the step's setting `cache`. The elements of a
        # fan-out have one recipe, and so have most steps that share a function.
        self._latest_recipe: dict[str, tuple[tuple[bool | str, bool], KeyParts, str]] = {}
        # Of fan-outs, what their elements used so far: seconds of CPU time, and the largest peak in bytes.
        self._used: dict[str, dict[str, Any]] = {}
        self._beat_at = clock.monotonic()
        self._check_at = 0.0
        self.blobs = store.blobs
        self._place = store.blobs.place()

    # Earlier sessions, and the run that this one repeats

    def load_origin(self, rows: Iterable[StepRow], *, same_inputs: bool) -> None:
        """Load the steps of another run whose results this run takes.

        With `same_inputs` a step takes a result only if it is given what the other run's step was given.
        """
        self._origin = {row.key: row for row in rows}
        self._same_inputs = same_inputs

    def result_of_origin(self, key: str, step: StepPlan, digests: Mapping[str, str]) -> OriginResult | None:
        """The result of a step or an element in the run that this one repeats; None where it is to run.

        What depends on a step that runs is not taken either: it would be of other code than what it depends on.
        """
        row = self._origin.get(key)
        if row is None:
            return None
        result = None if self._same_inputs and self._has_others(step, row, digests) else self._taken(row)
        if result is None:
            self._not_taken.update((key, step.key))
        return result

    def _has_others(self, step: StepPlan, row: StepRow, digests: Mapping[str, str]) -> bool:
        """Whether a step has other inputs than it had, or depends on a step whose result is not taken."""
        return not self._not_taken.isdisjoint(step.needs) or dict(row.inputs) != digests

    def _taken(self, row: StepRow) -> OriginResult | None:
        outputs = self._ask(self._store.records.outputs, row.run_id, row.key)
        if self._first_lost(output.artifact for output in outputs):
            return None  # the step computes it once more
        wires = {output.name: output.artifact.wire() for output in outputs}
        return OriginResult(wires, f"{row.run_id}/{row.key}", row.cache_key, row.recipe)

    def has_origin(self, key: str) -> bool:
        """Whether the run that this one repeats has a result of the step that was to be taken."""
        return key in self._origin

    def load_earlier(self) -> None:
        """Load what earlier sessions of the run finished, and how often they tried each step."""
        self._resumed = True
        self._attempts = self._store.records.attempt_numbers(self._run)
        for row in self._store.records.all_steps(self._run):
            self._attempts[row.key] = max(row.attempts, self._attempts.get(row.key, 0))
            if row.parent and row.started is not None:
                self._first_starts[row.parent] = min(row.started, self._first_starts.get(row.parent, row.started))
            if row.status == "failed" and row.count is not None:
                self._failed_fanouts.add(row.key)
            if row.status in STEP_GOOD and not row.damage:
                self._finished[row.key] = row

    def sweep_events(self, key: str) -> list[Mapping[str, Any]]:
        """What earlier sessions recorded of a sweep, in order."""
        if not self._resumed:
            return []
        return [one.data for one in self._ask(self._store.records.step_events, self._run, key, SWEEP_EVENT)]

    def had_failed(self, key: str) -> bool:
        """Whether a fan-out had failed when this session began."""
        return key in self._failed_fanouts

    def attempt_spans(self, key: str) -> list[tuple[float | None, float | None]]:
        """When the attempts of earlier sessions at a step began and ended."""
        return [(row.started, row.ended) for row in self._ask(self._store.records.attempts, self._run, key)]

    def logged_value(self, origin: str, name: str) -> float | None:
        """What the step "run/step" logged last under a name; None for nothing."""
        self.flush()
        run, _, key = origin.partition("/")
        records = self._store.records
        numbers = [number for one, number in self._ask(records.metric_attempts, run) if one == key]
        book = MetricBook()
        for _, data in self._ask(records.metric_pieces, run, key, max(numbers, default=0)):
            book.merge(book_of(data))
        ranks = sorted(rank for metric, rank in book.series if metric == name)
        last = book.series[name, ranks[0]].last if ranks else None
        return None if last is None else last.value

    def first_start(self, key: str) -> float | None:
        """When earlier sessions began the first element of a fan-out; None where they recorded none."""
        return self._first_starts.get(key)

    def earlier_attempts(self, key: str) -> int:
        """How many attempts earlier sessions made at a step, also those that ended with their driver."""
        recorded = self._attempts.get(key, 0)
        # An element has no row while it runs, but what it printed is there: nothing is to be added to that.
        return max(recorded, *self._store.logs.attempts(self._run, key), 0) if self._resumed else recorded

    def is_finished(self, key: str) -> bool:
        """Whether an earlier session finished the step."""
        return key in self._finished

    def finished_status(self, key: str) -> StepStatus:
        """How a step ended that an earlier session finished: it succeeded, or its result was cached."""
        return self._finished[key].status

    def finished_outputs(self, key: str) -> Mapping[str, Wire] | None:
        """The outputs of a step that an earlier session finished."""
        if key not in self._finished:
            return None
        rows = self._ask(self._store.records.outputs, self._run, key)
        outputs = {row.name: row.artifact for row in rows}
        lost = next((row.damage for row in rows if row.damage), "") or self._first_lost(outputs.values())
        if lost:
            self.reopen(key, lost)
            return None
        return {name: artifact.wire() for name, artifact in outputs.items()}

    def reopen(self, key: str, lost: str) -> None:
        """Record that a finished step runs again, because one of its outputs is lost or damaged."""
        self._finished.pop(key, None)
        self.record_event("lost", key, {"artifact": lost})

    def _first_lost(self, outputs: Iterable[StoredArtifact]) -> str:
        for artifact in outputs:
            lost = artifacts.unusable(artifact, self._store.blobs)
            if lost:
                return lost
        return ""

    def recipe_of(self, step: StepPlan, parts: KeyParts) -> str:
        """The name of what a step's cache key is made of beside its inputs; what it names is kept."""
        latest = self._latest_recipe.get(step.code)
        asked = (step.settings.cache, uses_cache(step))
        if latest is not None and latest[0] == asked and latest[1].differs_in_inputs_only(parts):
            return latest[2]
        key = recipe_key(step, parts)
        name = self._recipes.get(key)
        if name is None:
            name = recipe_digest(key)
            if not self._has_recipe(name):
                self._batch.recipe(RecipeRow(digest=name, created=clock.time(), document=recipe_document(step, parts)))
            self._recipes[key] = name
        self._latest_recipe[step.code] = (asked, parts, name)
        return name

    def _has_recipe(self, name: str) -> bool:
        """Whether the database has a recipe; not known while it is away, and a recipe may be written twice."""
        try:
            return self._ask(self._store.records.has_recipe, name)
        except DatabaseUnreachable:
            return False

    def cached_result(self, key: str) -> CachedResult | None:
        """The cache's entry for a key."""
        row = self._ask(self._store.records.cached, key, clock.time())
        if row is None:
            return None
        lost = self._first_lost(map(from_wire, row.outputs.values()))
        return CachedResult(row.outputs, f"{row.run_id}/{row.step_key}", lost)

    # While the database is away

    @property
    def is_away(self) -> bool:
        """Whether the database's server was away at the last look: what is recorded is kept in the journal then, and
        reading raises `DatabaseUnreachable`."""
        return self._writer.is_away

    def _ask(self, query: Callable[..., T], *values: Any) -> T:
        """The result of a query, or of a change made at once; `DatabaseUnreachable` while the server is away."""
        if self._writer.is_away:
            raise DatabaseUnreachable("the database is away")
        try:
            return query(*values)
        except DatabaseUnreachable as error:
            self._writer.lose(error)
            raise

    # Recording

    def record_pending(self, steps: Iterable[StepPlan]) -> None:
        """Record steps that will run."""
        self._pending |= {step.key: step for step in steps}

    def record_expansion(self, key: str, count: int) -> None:
        """Record how many elements a fan-out has."""
        if not self.is_finished(key):
            started = self._first_starts.get(key, clock.time())
            row = StepProgress(run_id=self._run, key=key, status="running", started=started, count=count)
            self._progress[key] = row

    def record_running(self, key: str, attempt: int, *, started: float, parent: str) -> None:
        """Record that an attempt begins."""
        if parent:
            # Elements have no row until they end: ten thousand short ones would be written twice.
            return
        self._progress[key] = StepProgress(
            run_id=self._run, key=key, status="running", started=started, attempts=attempt
        )

    def record_queued(self, key: str, attempt: int, *, parent: str, message: str = "") -> None:
        """Record that an attempt waits in its platform's queue or for devices, and why."""
        if not parent:
            self._progress[key] = StepProgress(
                run_id=self._run, key=key, status="pending", attempts=attempt, message=bounded(message)
            )

    def adopt_attempt(self, key: str, attempt: int) -> None:
        """Take up an attempt that an earlier driver began: what it wrote is read again from its beginning."""
        self._store.logs.delete_attempt(self._run, key, attempt)
        self._batch.forget_metrics(self._run, key, attempt)

    def job_events(self, key: str, attempt: int) -> list[Mapping[str, Any]]:
        """What earlier drivers recorded of an attempt as a job of its platform; nothing while the database is away."""
        try:
            events = self._ask(self._store.records.job_events, self._run, key)
        except DatabaseUnreachable:
            return []
        return [one.data for one in events if one.kind == JOB and one.data.get("attempt") == attempt]

    def left_out(self) -> list[Mapping[str, Any]]:
        """What earlier sessions of the run recorded of faulty places; nothing while the database is away."""
        try:
            return [one.data for one in self._ask(self._store.records.left_out_events, self._run)]
        except DatabaseUnreachable:
            return []

    def record_metrics(self, key: str, step: StepPlan, attempt: int, rows: Sequence[Row]) -> Sequence[Row]:
        """Record what an attempt logged of itself; the store has it within about a second.

        Returns the rows without those that register names.
        """
        if self._model is not None or any(map(registers, rows)):
            rows = self._names().take_logged(key, step, attempt, rows, self._batch)
        if self._metrics is None:
            self._metrics = RunMetrics(self._store.records, self._run)
        self._metrics.add(key, attempt, rows)
        return rows

    def use_model(self, model: Model | None, version: int | None) -> None:
        """Say which version of a model the run uses; None for the one that it makes."""
        self._model, self._model_version = model, version

    def _names(self) -> RunNames:
        if self._run_names is None:
            from stoker.engine.names import RunNames  # only for runs that name something

            self._run_names = RunNames(self._run, self._model, self._model_version)
        return self._run_names

    def record_attempt(self, key: str, step: StepPlan, facts: Mapping[str, Any]) -> None:
        """Record an attempt that is over."""
        if self._metrics is not None:
            self._metrics.end(key, facts["attempt"], self._batch)
        self._batch.attempt(
            AttemptRow(
                run_id=self._run,
                key=key,
                number=facts["attempt"],
                status="failed" if facts.get("cause") else "succeeded",
                backend=step.backend,
                message=bounded(facts.get("message", "")),
                **{name: facts[name] for name in _OF_ATTEMPTS if name in facts},
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
        now = clock.time()
        self._pending.pop(key, None)
        self._progress.pop(key, None)
        cache_key = execution.cache_key if execution is not None else ""
        columns = {name: facts[name] for name in _OF_STEPS if name in facts}
        if parent and not self._resumed:  # elements of earlier sessions are counted by who looks
            self._add_usage(parent, columns.get("usage") or {})
        elif key in self._used:
            columns["usage"] = self._used.pop(key)
        self._batch.step(
            StepRow(
                run_id=self._run,
                key=key,
                name=step.name,
                position=step.position,
                parent=parent,
                idx=index,
                status=status,
                ended=facts.get("ended") or now,
                message=bounded(facts.get("message", "")),
                inputs=execution.digests if execution is not None else {},
                cache_key=cache_key,
                recipe=execution.recipe if execution is not None else "",
                attempts=facts.get("attempt") or self.earlier_attempts(key),
                count=count,
                **columns,
            )
        )
        outputs = facts.get("outputs") or {}
        if status not in STEP_GOOD or not cache_key:
            return
        for position, (name, wire) in enumerate(outputs.items()):
            row = OutputRow(run_id=self._run, key=key, name=name, artifact=from_wire(wire), place=position)
            self._batch.output(row)
        for output in step.outputs:
            if output.artifact is not None:
                self._names().add_outputs(key, step, outputs, self._batch, reused=status != "succeeded")
                break
        # What was computed without the devices that were asked for must not stand for what they would have computed.
        if status == "succeeded" and uses_cache(step) and not facts.get("pretended"):
            expires = None if step.settings.cache_expires is None else now + step.settings.cache_expires
            self._batch.remember(
                CacheRow(key=cache_key, run_id=self._run, step_key=key, created=now, expires=expires, outputs=outputs)
            )

    def _add_usage(self, parent: str, usage: Mapping[str, Any]) -> None:
        total = self._used.setdefault(parent, {})
        cpu, peak = usage.get("cpu"), usage.get("peak")
        if cpu is not None:
            total["cpu"] = total.get("cpu", 0.0) + cpu
        if peak is not None and peak > total.get("peak", -1):
            total["peak"] = peak

    def receipt_of(self, key: str, attempt: int) -> ReceiptRow | None:
        """The receipt of an attempt that is over."""
        self.flush()
        return self._writer.patiently(lambda: self._store.records.receipt(self._run, key, attempt))

    def record_outputs(self, key: str, outputs: Mapping[str, Wire]) -> None:
        """Record results of a step beside those that its worker reported."""
        for position, (name, wire) in enumerate(outputs.items()):
            row = OutputRow(run_id=self._run, key=key, name=name, artifact=from_wire(wire), place=position)
            self._batch.output(row)

    def learned_changes(self, key: str) -> RungRow | None:
        """The changes with which a request worked the last time."""
        return self._ask(self._store.records.learned_changes, key)

    def learn_changes(self, key: str, changes: Mapping[str, Any]) -> None:
        """Remember that a request worked with these changes."""
        row = RungRow(key=key, run_id=self._run, created=clock.time(), changes=changes)
        try:
            self._ask(self._store.records.learn_changes, row)
        except DatabaseUnreachable:
            self._batch.learn(row)

    def forget_changes(self, key: str) -> None:
        """Forget the changes of a request that worked unchanged."""
        try:
            self._ask(self._store.records.forget_changes, key)
        except DatabaseUnreachable:
            self._batch.forget(key)

    def record_receipt(self, key: str, attempt: int, receipt: Receipt, tracks: tuple[Track, ...]) -> None:
        """Record what an attempt did with its accelerators."""
        from stoker.store.receipts import ReceiptRow  # only for steps with devices

        self._batch.receipt(ReceiptRow(run_id=self._run, key=key, number=attempt, receipt=receipt, tracks=tracks))

    def record_event(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        """Record an event that has no row of its own."""
        self._batch.event(EventRow(run_id=self._run, seq=self._seq, time=clock.time(), kind=kind, key=key, data=data))
        self._seq += 1

    def append_log(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """Append lines to a step's log, at once."""
        self._store.logs.append(self._run, key, attempt, lines)

    def keep_error(self, key: str, attempt: int, digest: str) -> str:
        """Copy what an attempt raised, which its worker stored as a blob, beside its log; returns the file's path, or
        "" where that cannot be done."""
        try:
            return self._store.logs.write_error(self._run, key, attempt, self._store.blobs.read(digest))
        except StokerError:
            return ""

    def last_saved(self, key: str, before: float) -> float | None:
        """When a step last saved a checkpoint before a moment, as `Checkpoints.last_saved` says it."""
        return self._store.checkpoints.last_saved(self._run, key, before)

    def tail(self, key: str, attempt: int, rank: int | None = None) -> list[str]:
        """The last lines that an attempt wrote, or one of its ranks; if that one wrote none, those of all."""
        logs = self._store.logs
        lines = list(logs.lines(self._run, key, attempt, tail=_TAIL, rank=rank))
        if rank is not None and not lines:
            lines = list(logs.lines(self._run, key, attempt, tail=_TAIL))
        return [line.text for line in lines]

    def flush(self) -> None:
        """Commit all that was recorded, or keep it in the journal; `StoreError` where another driver holds the run."""
        for key, step in self._pending.items():
            tried = self.earlier_attempts(key)
            row = StepRow(run_id=self._run, key=key, name=step.name, position=step.position, attempts=tried)
            self._batch.step(row)
        self._pending.clear()
        for progress in self._progress.values():
            self._batch.change(progress)
        self._progress.clear()
        if self._metrics is not None:
            self._metrics.write(self._batch)
        if not self._batch:
            return
        batch, self._batch = self._batch, RowBatch()
        self._writer.write(batch)
        if clock.monotonic() >= self._check_at:
            self.check_store()

    def check_store(self) -> None:
        """Raise `StoreError` if the store was removed or unmounted: what is recorded now would be lost."""
        self._check_at = clock.monotonic() + _CHECK_EVERY
        self._store.records.database.check_place()
        self._store.blobs.check_place(self._place)

    # The heartbeat

    def next_beat(self, every: float) -> float:
        """Seconds until the next look at the run's row."""
        return self._beat_at + every - clock.monotonic()

    def beat(self, active: Mapping[str, Any] | None = None) -> str:
        """Record that the driver lives and which elements run (`RunRow.active`); what a person asks of it: "", "cancel"
        or "now". Nothing while the database is away: then this looks for it.

        Raises `StoreError` where another driver holds the run: this one then appends no more lines to its logs either,
        which no token guards.
        """
        self._beat_at = clock.monotonic()
        self.check_store()
        if not self._writer.look():
            return ""
        try:
            request = self._ask(self._store.records.heartbeat, self._run, self._token, clock.time(), active)
        except DatabaseUnreachable:
            return ""
        if request is None:
            raise self._writer.overtaken()
        return request
