"""The queries of a store: runs, their steps, attempts, outputs, the cache and the events. The only file with queries.

A driver collects what changed in a `RowBatch` and writes it in one transaction. A run's rows belong to the driver that
holds its token; every change of a run is an UPDATE that names the token, so that a driver that lost the run writes
nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.errors import NotFound, StoreError, UsageError, nearest
from stoker.store import rows
from stoker.store.database import Database
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RungRow, RunRow, StepProgress, StepRow

if TYPE_CHECKING:
    from stoker.store.receipts import ReceiptRow

_ORDER: Final = ("steps", "progress", "outputs", "attempts", "receipts", "cache", "events")
"""The order in which a batch is written: a step's row comes before its progress."""


class RowBatch:
    """Collects rows for one transaction. A row replaces the one with its key; an event never replaces another."""

    __slots__ = ("attempts", "cache", "events", "outputs", "progress", "receipts", "steps")

    def __init__(self) -> None:
        self.steps: list[Sequence[Any]] = []
        self.progress: list[Sequence[Any]] = []
        self.outputs: list[Sequence[Any]] = []
        self.attempts: list[Sequence[Any]] = []
        self.receipts: list[Sequence[Any]] = []
        self.cache: list[Sequence[Any]] = []
        self.events: list[Sequence[Any]] = []

    def step(self, row: StepRow) -> None:
        """Add a step."""
        self.steps.append(rows.STEPS.tuple_of(row))

    def change(self, row: StepProgress) -> None:
        """Add the progress of a step that has a row in the store or in this batch."""
        columns = rows.PROGRESS.tuple_of(row)
        self.progress.append((*columns[2:], *columns[:2]))

    def output(self, row: OutputRow) -> None:
        """Add a result of a step."""
        self.outputs.append(rows.output_columns(row))

    def attempt(self, row: AttemptRow) -> None:
        """Add an attempt."""
        self.attempts.append(rows.ATTEMPTS.tuple_of(row))

    def receipt(self, row: ReceiptRow) -> None:
        """Add the receipt of an attempt."""
        self.receipts.append(row.columns())

    def remember(self, row: CacheRow) -> None:
        """Add an entry of the cache."""
        self.cache.append(rows.CACHE.tuple_of(row))

    def event(self, row: EventRow) -> None:
        """Add an event."""
        self.events.append(rows.EVENTS.tuple_of(row))

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in _ORDER)


@attrs.frozen(kw_only=True)
class RunFilter:
    """Selects runs; an empty field selects all of them."""

    pipeline: str = ""
    status: str = ""
    tag: str = ""
    since: float | None = None
    """The earliest time of creation, seconds since the epoch."""
    limit: int = 50
    offset: int = 0
    """Newest runs to skip."""


class Records:
    """Reads and writes the rows of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._sql = {name: database.sql(statement) for name, statement in _STATEMENTS.items()}

    # Writing.

    def write(self, batch: RowBatch, *, run_id: str = "", token: str = "") -> bool:
        """Write a batch, all or nothing. With a token that does not hold the run any more, write nothing: False."""
        rows_of = [(self._sql[name], getattr(batch, name)) for name in _ORDER]
        try:
            return self._write(rows_of, run_id, token)
        except (UnicodeEncodeError, StoreError) as error:
            if not isinstance(error, UnicodeEncodeError) and "NUL" not in str(error):
                raise
        # A text of the user's code that no database accepts: too rare to check every text before.
        cleaned = [(statement, [list(map(rows.clean_text, row)) for row in values]) for statement, values in rows_of]
        return self._write(cleaned, run_id, token)

    def _write(self, rows_of: Sequence[tuple[str, Sequence[Sequence[Any]]]], run_id: str, token: str) -> bool:
        # Without `transaction`, which is slower: every step of a run waits for this.
        database = self.database
        cursor = database.cursor()
        try:
            database.begin(cursor)
            try:
                if token:
                    cursor.execute(self._sql["is_holder"], (run_id, token))
                    if cursor.fetchone() is None:
                        database.rollback(cursor)
                        return False
                for statement, values in rows_of:
                    if values:
                        cursor.executemany(statement, values)
                cursor.execute("COMMIT")
            except BaseException:  # also an interrupt ends the transaction
                database.rollback(cursor)
                raise
        except database.errors as error:
            database.fail(error)
        return True

    def create_run(self, run: RunRow, *, plan: str = "", batch: RowBatch | None = None) -> None:
        """Create a run with its plan and first rows, in one transaction."""
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["runs"], list(map(rows.clean_text, rows.RUNS.tuple_of(run))))
            if plan:
                cursor.execute(self._sql["plans"], (run.id, plan))
            for name in _ORDER if batch is not None else ():
                values = getattr(batch, name)
                if values:
                    cursor.executemany(self._sql[name], values)

    def set_run(self, id: str, token: str, **fields: Any) -> bool:
        """Change columns of a run if the token still holds it; False if another driver took it over."""
        for name in fields:
            if name not in _SETTABLE:
                raise UsageError(f"a run has no column '{name}' that can be set{nearest(name, _SETTABLE)}")
        values = [
            rows.json_text(value) if name in _RUN_JSON else rows.clean_text(value) for name, value in fields.items()
        ]
        changes = ", ".join(f"{name} = ?" for name in fields)
        statement = self.database.sql(f"UPDATE runs SET {changes} WHERE id = ? AND token = ?")
        return self.database.change(statement, (*values, id, token)) == 1

    def take_over(self, id: str, *, expected: str, token: str, driver: Mapping[str, Any], plan: str = "") -> bool:
        """Give a run to another driver, with a new plan if `plan` is not empty.

        False means that the run's token is not the expected one any more, and that nothing was changed.
        """
        values = (token, rows.json_text(driver), time.time(), id, expected)
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["take_over"], values)
            is_expected: bool = cursor.rowcount == 1
            if is_expected and plan:
                cursor.execute(self._sql["plans"], (id, plan))
        return is_expected

    def request_end(self, id: str, request: str) -> bool:
        """Ask the driver of a running run to end it: "cancel" or "now". False if it does not run any more."""
        return self.database.change(self._sql["request_end"], (request, id)) == 1

    def cancel_waiting(self, id: str, *, token: str) -> bool:
        """Cancel a run whose driver has not begun: a driver that starts later finds another token. False if it was
        faster."""
        values = (os.urandom(8).hex(), time.time(), id, token)
        return self.database.change(self._sql["cancel_waiting"], values) == 1

    def heartbeat(self, id: str, token: str, now: float) -> str | None:
        """Record that the driver is alive, and return the request to end the run: "", "cancel" or "now".

        None means that another driver took the run over.
        """
        if self.database.change(self._sql["heartbeat"], (now, id, token)) != 1:
            return None
        row = self.database.row(self._sql["requested_end"], (id,))
        return str(row[0]) if row else None

    def delete_run(self, id: str) -> None:
        """Remove a run with all its rows and its entries of the cache; a run that is gone is fine."""
        with self.database.transaction() as cursor:
            for table in ("events", "receipts", "attempts", "outputs", "steps", "cache", "rungs", "plans"):
                cursor.execute(self.database.sql(f"DELETE FROM {table} WHERE run_id = ?"), (id,))
            cursor.execute(self.database.sql("DELETE FROM runs WHERE id = ?"), (id,))

    def forget(self, keys: Iterable[str]) -> None:
        """Remove entries of the cache."""
        with self.database.transaction() as cursor:
            cursor.executemany(self.database.sql("DELETE FROM cache WHERE key = ?"), [(key,) for key in keys])

    def forget_expired(self, now: float) -> int:
        """Remove the expired entries of the cache; returns their number."""
        return self.database.change(self.database.sql("DELETE FROM cache WHERE expires <= ?"), (now,))

    # What steps that ran out of memory got by with. This is advice, not fact: no driver's token guards these rows.

    def learned_changes(self, key: str) -> RungRow | None:
        """The changes with which a request worked; None if there are none."""
        row = self.database.row(self._sql["rung"], (key,))
        return None if row is None else rows.RUNGS.row_of(row)

    def learn_changes(self, row: RungRow) -> None:
        """Record the changes with which a request worked, in place of earlier ones."""
        self.database.change(self._sql["rungs"], rows.RUNGS.tuple_of(row))

    def forget_changes(self, key: str) -> None:
        """Remove the changes of a request: it worked without any."""
        self.database.change(self._sql["forget_rung"], (key,))

    # Reading.

    def run(self, id: str) -> RunRow:
        """The run with this id, or the only one whose id has this prefix."""
        row = self.database.row(self._sql["run"], (id,))
        if row is not None:
            return rows.RUNS.row_of(row)
        matches = self.database.rows(self._sql["runs_by_prefix"], (len(id), id)) if id else []
        if len(matches) == 1:
            return rows.RUNS.row_of(matches[0])
        if matches:
            listed = ", ".join(str(match[0]) for match in matches[:5]) + (", …" if len(matches) > 5 else "")
            raise NotFound(f"'{id}' begins the ids of several runs: {listed}", fix="write more of the id")
        ids = [newest[0] for newest in self.database.rows("SELECT id FROM runs ORDER BY created DESC LIMIT 200")]
        raise NotFound(f"there is no run '{id}'{nearest(id, ids)}", fix="`stoker runs` lists them")

    def plan(self, id: str) -> str:
        """The plan of a run as JSON; empty for a run without one."""
        row = self.database.row(self._sql["plan"], (id,))
        return str(row[0]) if row else ""

    def runs(self, run_filter: RunFilter | None = None) -> list[RunRow]:
        """The runs that match, newest first."""
        run_filter = run_filter or RunFilter()
        conditions: list[tuple[str, Any]] = []
        if run_filter.pipeline:
            conditions.append(("pipeline = ?", run_filter.pipeline))
        if run_filter.status:
            conditions.append(("status = ?", run_filter.status))
        if run_filter.tag:
            # A case-sensitive "contains" that both databases have: LIKE ignores case in SQLite.
            conditions.append(("replace(tags, ?, '') <> tags", rows.json_text(run_filter.tag)))
        if run_filter.since is not None:
            conditions.append(("created >= ?", run_filter.since))
        where = " WHERE " + " AND ".join(condition for condition, _ in conditions) if conditions else ""
        statement = f"{_RUN} {where} ORDER BY created DESC, id DESC LIMIT ? OFFSET ?"
        values = [value for _, value in conditions]
        page = (run_filter.limit, run_filter.offset)
        return [rows.RUNS.row_of(row) for row in self.database.rows(self.database.sql(statement), (*values, *page))]

    def step(self, run_id: str, key: str) -> StepRow | None:
        """One step."""
        row = self.database.row(self._sql["step"], (run_id, key))
        return None if row is None else rows.STEPS.row_of(row)

    def steps(self, run_id: str, *, parent: str = "", limit: int = -1, offset: int = 0) -> list[StepRow]:
        """A run's steps in the order of the pipeline, or a fan-out's elements by index; `limit` -1 is all of them."""
        page = (2**31 - 1 if limit < 0 else limit, offset)
        if parent:
            values = self.database.rows(self._sql["elements"], (run_id, parent, *page))
        else:
            values = self.database.rows(self._sql["top"], (run_id, *page))
        return [rows.STEPS.row_of(row) for row in values]

    def all_steps(self, run_id: str) -> list[StepRow]:
        """Every step and every element of a run, fan-outs before their elements."""
        return [rows.STEPS.row_of(row) for row in self.database.rows(self._sql["all_steps"], (run_id,))]

    def counts(self, run_id: str, *, parent: str | None = None) -> dict[str, int]:
        """Status → number of steps: of a whole run, or of one level (`parent=""` is the top)."""
        if parent is None:
            counts = self.database.rows(self._sql["counts"], (run_id,))
        else:
            counts = self.database.rows(self._sql["counts_of"], (run_id, parent))
        return {str(status): int(count) for status, count in counts}

    def outputs(self, run_id: str, key: str) -> list[OutputRow]:
        """A step's results by name."""
        return [rows.output_row(row) for row in self.database.rows(self._sql["outputs_of"], (run_id, key))]

    def element_outputs(self, run_id: str, parent: str, name: str) -> list[OutputRow]:
        """One result of every element of a fan-out that has it, by index."""
        values = self.database.rows(self._sql["element_outputs"], (run_id, parent, name))
        return [rows.output_row(row) for row in values]

    def lineage(self, digest: str) -> list[OutputRow]:
        """Every output with these bytes, oldest run first. Slow for values that are small enough to be no blob."""
        values = self.database.rows(self._sql["lineage"], (digest,)) or self.database.rows(
            self._sql["inline"], (digest,)
        )
        return [rows.output_row(row) for row in values]

    def attempts(self, run_id: str, key: str) -> list[AttemptRow]:
        """The attempts of a step that have ended, first to last."""
        return [rows.ATTEMPTS.row_of(row) for row in self.database.rows(self._sql["attempts_of"], (run_id, key))]

    def attempt_numbers(self, run_id: str) -> dict[str, int]:
        """Key of a step of a run → the number of its last attempt that has ended."""
        return {str(key): int(number) for key, number in self.database.rows(self._sql["attempt_numbers"], (run_id,))}

    def receipt(self, run_id: str, key: str, number: int) -> ReceiptRow | None:
        """The receipt of one attempt, with its tracks."""
        row = self.database.row(self._sql["receipt"], (run_id, key, number))
        from stoker.store.receipts import receipt_row

        return None if row is None else receipt_row(row)

    def receipts(self, run_id: str, *, key: str = "") -> list[ReceiptRow]:
        """The receipts of a run or of one step, attempt by attempt; without their tracks, which are large."""
        values = self.database.rows(self._sql["receipts_of"], (run_id, key, key))
        from stoker.store.receipts import receipt_row

        return [receipt_row((*row, None)) for row in values]

    def events(self, run_id: str, *, after: int = -1) -> list[EventRow]:
        """The events of a run with a number above `after`, in order."""
        return [rows.EVENTS.row_of(row) for row in self.database.rows(self._sql["events_of"], (run_id, after))]

    def next_seq(self, run_id: str) -> int:
        """The first number that no event of the run has."""
        row = self.database.row(self._sql["last_seq"], (run_id,))
        return 0 if row is None or row[0] is None else int(row[0]) + 1

    def cached(self, key: str, now: float) -> CacheRow | None:
        """The cache's entry for a key, unless it has expired."""
        row = self.database.row(self._sql["cached"], (key, now))
        return None if row is None else rows.CACHE.row_of(row)

    def references(self) -> Iterable[str]:
        """Texts that contain every digest that a row names; `store.sweep` searches them."""
        for column, table in _REFERENCES:
            for (text,) in self.database.rows(f"SELECT {column} FROM {table} WHERE {column} <> ''"):
                yield str(text)

    def manifests(self) -> list[OutputRow]:
        """Outputs that are lists of artifacts."""
        return [rows.output_row(row) for row in self.database.rows(self._sql["manifests"])]


def _columns(names: Sequence[str], table: str) -> str:
    return "SELECT " + ", ".join(names) + f" FROM {table}"


def _upsert(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    marks = ", ".join("?" * len(names))
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )


_RUN: Final = _columns(rows.RUNS.columns, "runs")
_STEP: Final = _columns(rows.STEPS.columns, "steps")
_OUTPUT: Final = _columns(rows.OUTPUT_COLUMNS, "outputs")
_CACHE: Final = _columns(rows.CACHE.columns, "cache")
_RUN_JSON: Final = frozenset({"parameters", "tags", "driver"})
_SETTABLE: Final = frozenset(rows.RUNS.columns) - {"id", "token", "created", "pipeline"}
_REFERENCES: Final = (("plan", "plans"), ("inputs", "steps"), ("outputs", "cache"), ("digest", "outputs"))

_STATEMENTS: Final[Mapping[str, str]] = {
    "runs": f"INSERT INTO runs ({', '.join(rows.RUNS.columns)}) VALUES ({', '.join('?' * len(rows.RUNS.columns))})",
    "plans": _upsert("plans", ("run_id", "plan"), ("run_id",)),
    "steps": _upsert("steps", rows.STEPS.columns, ("run_id", "key")),
    "progress": "UPDATE steps SET "
    + ", ".join(f"{name} = ?" for name in rows.PROGRESS.columns[2:])
    + " WHERE run_id = ? AND key = ?",
    "outputs": _upsert("outputs", rows.OUTPUT_COLUMNS, ("run_id", "key", "name")),
    "attempts": _upsert("attempts", rows.ATTEMPTS.columns, ("run_id", "key", "number")),
    "receipts": _upsert("receipts", rows.RECEIPT_COLUMNS, ("run_id", "key", "number")),
    "cache": _upsert("cache", rows.CACHE.columns, ("key",)),
    "events": f"INSERT INTO events ({', '.join(rows.EVENTS.columns)}) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (run_id, seq) DO NOTHING",
    "is_holder": "SELECT 1 FROM runs WHERE id = ? AND token = ?{locked}",
    "take_over": "UPDATE runs SET token = ?, driver = ?, heartbeat = ?, status = 'running', ended = NULL, error = '', "
    "asked = '', sessions = sessions + 1 WHERE id = ? AND token = ?",
    "request_end": "UPDATE runs SET asked = ? WHERE id = ? AND status = 'running'",
    "cancel_waiting": "UPDATE runs SET token = ?, status = 'cancelled', ended = ? "
    "WHERE id = ? AND token = ? AND status = 'running'",
    "heartbeat": "UPDATE runs SET heartbeat = ? WHERE id = ? AND token = ?",
    "requested_end": "SELECT asked FROM runs WHERE id = ?",
    "rungs": _upsert("rungs", rows.RUNGS.columns, ("key",)),
    "rung": _columns(rows.RUNGS.columns, "rungs") + " WHERE key = ?",
    "forget_rung": "DELETE FROM rungs WHERE key = ?",
    "run": f"{_RUN} WHERE id = ?",
    "runs_by_prefix": f"{_RUN} WHERE substr(id, 1, ?) = ? ORDER BY created DESC LIMIT 6",
    "plan": "SELECT plan FROM plans WHERE run_id = ?",
    "step": f"{_STEP} WHERE run_id = ? AND key = ?",
    "top": f"{_STEP} WHERE run_id = ? AND parent = '' ORDER BY position, key LIMIT ? OFFSET ?",
    "elements": f"{_STEP} WHERE run_id = ? AND parent = ? AND parent <> '' ORDER BY idx LIMIT ? OFFSET ?",
    "all_steps": f"{_STEP} WHERE run_id = ? ORDER BY position, parent, idx",
    "counts": "SELECT status, count(*) FROM steps WHERE run_id = ? GROUP BY status",
    "counts_of": "SELECT status, count(*) FROM steps WHERE run_id = ? AND parent = ? GROUP BY status",
    "outputs_of": f"{_OUTPUT} WHERE run_id = ? AND key = ? ORDER BY place, name",
    "element_outputs": "SELECT "
    + ", ".join(f"outputs.{name}" for name in rows.OUTPUT_COLUMNS)
    + " FROM steps JOIN outputs ON outputs.run_id = steps.run_id AND outputs.key = steps.key"
    " WHERE steps.run_id = ? AND steps.parent = ? AND steps.parent <> '' AND outputs.name = ? ORDER BY steps.idx",
    "lineage": f"{_OUTPUT} WHERE digest = ? AND inline IS NULL ORDER BY run_id, key, name",
    "inline": f"{_OUTPUT} WHERE digest = ? ORDER BY run_id, key, name",
    "manifests": f"{_OUTPUT} WHERE serializer = 'list'",
    "attempts_of": _columns(rows.ATTEMPTS.columns, "attempts") + " WHERE run_id = ? AND key = ? ORDER BY number",
    "attempt_numbers": "SELECT key, max(number) FROM attempts WHERE run_id = ? GROUP BY key",
    "receipt": _columns(rows.RECEIPT_COLUMNS, "receipts") + " WHERE run_id = ? AND key = ? AND number = ?",
    "receipts_of": _columns(rows.RECEIPT_COLUMNS[:-1], "receipts")
    + " WHERE run_id = ? AND (key = ? OR ? = '') ORDER BY key, number",
    "events_of": _columns(rows.EVENTS.columns, "events") + " WHERE run_id = ? AND seq > ? ORDER BY seq",
    "last_seq": "SELECT max(seq) FROM events WHERE run_id = ?",
    "cached": f"{_CACHE} WHERE key = ? AND (expires IS NULL OR expires > ?)",
}
