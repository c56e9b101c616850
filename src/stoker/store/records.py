"""What happened, as rows: runs, their steps, attempts, outputs, the cache and the events. The only file with queries.

A driver collects what changed in a `Batch` and writes it in one transaction. A run's rows belong to the driver that
holds its token; every change of a run is an UPDATE that names the token, so that a driver that lost the run writes
nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.errors import NotFound, StoreError, UsageError, nearest
from stoker.store import rows
from stoker.store.database import Database
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RunRow, StepProgress, StepRow

if TYPE_CHECKING:
    from stoker.store.receipts import ReceiptRow

_ORDER: Final = ("steps", "progress", "outputs", "attempts", "receipts", "cache", "events")
"""In which a batch's rows are written: a step's row comes before what changes of it."""


class Batch:
    """Rows collected for one transaction; a row that is there already is replaced, an event's is not."""

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
        """The whole row of a step."""
        self.steps.append(rows.STEPS.tuple_of(row))

    def change(self, row: StepProgress) -> None:
        """How far a step is that has its row already, be it in this very batch."""
        columns = rows.PROGRESS.tuple_of(row)
        self.progress.append((*columns[2:], *columns[:2]))

    def output(self, row: OutputRow) -> None:
        """A result of a step."""
        self.outputs.append(rows.output_columns(row))

    def attempt(self, row: AttemptRow) -> None:
        """One try at a step."""
        self.attempts.append(rows.ATTEMPTS.tuple_of(row))

    def receipt(self, row: ReceiptRow) -> None:
        """What an attempt did with its accelerators."""
        self.receipts.append(row.columns())

    def remember(self, row: CacheRow) -> None:
        """Results to be found again by what they depend on."""
        self.cache.append(rows.CACHE.tuple_of(row))

    def event(self, row: EventRow) -> None:
        """Something that happened."""
        self.events.append(rows.EVENTS.tuple_of(row))

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in _ORDER)


@attrs.frozen(kw_only=True)
class RunFilter:
    """Which runs to list, newest first; `since` is a time of creation."""

    pipeline: str = ""
    status: str = ""
    tag: str = ""
    since: float | None = None
    limit: int = 50
    offset: int = 0


class Records:
    """The queries of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._sql = {name: database.sql(statement) for name, statement in _STATEMENTS.items()}

    # Writing.

    def write(self, batch: Batch, *, run_id: str = "", token: str = "") -> bool:
        """Write a batch, all or nothing; with a token, only while that driver still holds the run."""
        rows_of = [(self._sql[name], getattr(batch, name)) for name in _ORDER]
        try:
            return self._write(rows_of, run_id, token)
        except (UnicodeEncodeError, StoreError) as error:
            if not isinstance(error, UnicodeEncodeError) and "NUL" not in str(error):
                raise
        # A message of the user's code that no database takes: rare enough to be looked for only now.
        cleaned = [(statement, [list(map(rows.clean, row)) for row in values]) for statement, values in rows_of]
        return self._write(cleaned, run_id, token)

    def _write(self, rows_of: Sequence[tuple[str, Sequence[Sequence[Any]]]], run_id: str, token: str) -> bool:
        # By hand and not by `transaction`: this is what every step of a run waits for.
        database = self.database
        cursor = database.cursor()
        try:
            database.begin(cursor)
            try:
                if token:
                    cursor.execute(self._sql["held"], (run_id, token))
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

    def create_run(self, run: RunRow, *, plan: str = "", batch: Batch | None = None) -> None:
        """A new run with its plan and first rows, in one transaction."""
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["runs"], list(map(rows.clean, rows.RUNS.tuple_of(run))))
            if plan:
                cursor.execute(self._sql["plans"], (run.id, plan))
            for name in _ORDER if batch is not None else ():
                values = getattr(batch, name)
                if values:
                    cursor.executemany(self._sql[name], values)

    def set_run(self, id: str, token: str, **fields: Any) -> bool:
        """Change columns of a run if the token still holds it; False means that another driver took it over."""
        for name in fields:
            if name not in _SETTABLE:
                raise UsageError(f"a run has no column '{name}' that can be set{nearest(name, _SETTABLE)}")
        values = [rows.text(value) if name in _RUN_JSON else rows.clean(value) for name, value in fields.items()]
        changes = ", ".join(f"{name} = ?" for name in fields)
        statement = self.database.sql(f"UPDATE runs SET {changes} WHERE id = ? AND token = ?")
        return self.database.change(statement, (*values, id, token)) == 1

    def take_over(self, id: str, *, expected: str, token: str, driver: Mapping[str, Any], plan: str = "") -> bool:
        """Make a run another driver's, with the plan by which it goes on if that differs from the one it had.

        False means that the run's token is not the expected one any more, and that nothing was changed.
        """
        values = (token, rows.text(driver), time.time(), id, expected)
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["take_over"], values)
            taken: bool = cursor.rowcount == 1
            if taken and plan:
                cursor.execute(self._sql["plans"], (id, plan))
        return taken

    def ask(self, id: str, wish: str) -> bool:
        """Leave a wish, "cancel" or "now", for the driver of a running run; False if it does not run any more."""
        return self.database.change(self._sql["ask"], (wish, id)) == 1

    def asked(self, id: str, token: str, now: float) -> str | None:
        """Show that the driver lives and read what is wished of it; None if another driver took the run over."""
        if self.database.change(self._sql["beat"], (now, id, token)) != 1:
            return None
        found = self.database.row(self._sql["asked"], (id,))
        return str(found[0]) if found else None

    def delete_run(self, id: str) -> None:
        """Remove a run with everything of it, also what the cache knows from it; a run that is gone is fine."""
        with self.database.transaction() as cursor:
            for table in ("events", "receipts", "attempts", "outputs", "steps", "cache", "rungs", "plans"):
                cursor.execute(self.database.sql(f"DELETE FROM {table} WHERE run_id = ?"), (id,))
            cursor.execute(self.database.sql("DELETE FROM runs WHERE id = ?"), (id,))

    def forget(self, keys: Iterable[str]) -> None:
        """Remove entries of the cache."""
        with self.database.transaction() as cursor:
            cursor.executemany(self.database.sql("DELETE FROM cache WHERE key = ?"), [(key,) for key in keys])

    def forget_expired(self, now: float) -> int:
        """Remove the cache's entries that are past their time; how many."""
        return self.database.change(self.database.sql("DELETE FROM cache WHERE expires <= ?"), (now,))

    # Reading.

    def run(self, id: str) -> RunRow:
        """The run with this id, or with the only id that begins so."""
        found = self.database.row(self._sql["run"], (id,))
        if found is not None:
            return rows.RUNS.row_of(found)
        begun = self.database.rows(self._sql["begun"], (len(id), id)) if id else []
        if len(begun) == 1:
            return rows.RUNS.row_of(begun[0])
        if begun:
            shown = ", ".join(str(row[0]) for row in begun[:5]) + (", …" if len(begun) > 5 else "")
            raise NotFound(f"'{id}' begins the ids of several runs: {shown}", fix="write more of the id")
        known = [row[0] for row in self.database.rows("SELECT id FROM runs ORDER BY created DESC LIMIT 200")]
        raise NotFound(f"there is no run '{id}'{nearest(id, known)}", fix="`stoker runs` lists them")

    def plan(self, id: str) -> str:
        """The plan of a run as JSON; empty for a run without one."""
        found = self.database.row(self._sql["plan"], (id,))
        return str(found[0]) if found else ""

    def runs(self, which: RunFilter | None = None) -> list[RunRow]:
        """Runs, newest first."""
        which = which or RunFilter()
        conditions: list[tuple[str, Any]] = []
        if which.pipeline:
            conditions.append(("pipeline = ?", which.pipeline))
        if which.status:
            conditions.append(("status = ?", which.status))
        if which.tag:
            # "contains", case and all, in words that both databases have: LIKE ignores case in SQLite.
            conditions.append(("replace(tags, ?, '') <> tags", rows.text(which.tag)))
        if which.since is not None:
            conditions.append(("created >= ?", which.since))
        where = " WHERE " + " AND ".join(condition for condition, _ in conditions) if conditions else ""
        statement = f"{_RUN} {where} ORDER BY created DESC, id DESC LIMIT ? OFFSET ?"
        values = [value for _, value in conditions]
        found = self.database.rows(self.database.sql(statement), (*values, which.limit, which.offset))
        return [rows.RUNS.row_of(row) for row in found]

    def step(self, run_id: str, key: str) -> StepRow | None:
        """One step."""
        found = self.database.row(self._sql["step"], (run_id, key))
        return None if found is None else rows.STEPS.row_of(found)

    def steps(self, run_id: str, *, parent: str = "", limit: int = -1, offset: int = 0) -> list[StepRow]:
        """A run's steps in the order of the pipeline, or a fan-out's elements by index; `limit` -1 is all of them."""
        page = (2**31 - 1 if limit < 0 else limit, offset)
        if parent:
            found = self.database.rows(self._sql["elements"], (run_id, parent, *page))
        else:
            found = self.database.rows(self._sql["top"], (run_id, *page))
        return [rows.STEPS.row_of(row) for row in found]

    def all_steps(self, run_id: str) -> list[StepRow]:
        """Every step and every element of a run, fan-outs before their elements."""
        return [rows.STEPS.row_of(row) for row in self.database.rows(self._sql["all_steps"], (run_id,))]

    def counts(self, run_id: str, *, parent: str | None = None) -> dict[str, int]:
        """How many steps stand at each status: all of a run's, or one level's (`parent=""` is the top)."""
        if parent is None:
            found = self.database.rows(self._sql["counts"], (run_id,))
        else:
            found = self.database.rows(self._sql["counts_of"], (run_id, parent))
        return {str(status): int(count) for status, count in found}

    def outputs(self, run_id: str, key: str) -> list[OutputRow]:
        """A step's results by name."""
        return [rows.output_row(row) for row in self.database.rows(self._sql["outputs_of"], (run_id, key))]

    def element_outputs(self, run_id: str, parent: str, name: str) -> list[OutputRow]:
        """One result of every element of a fan-out that has it, by index."""
        found = self.database.rows(self._sql["element_outputs"], (run_id, parent, name))
        return [rows.output_row(row) for row in found]

    def lineage(self, digest: str) -> list[OutputRow]:
        """Every output with these bytes, oldest run first. For values so small that they are no blob it is slow."""
        found = self.database.rows(self._sql["lineage"], (digest,)) or self.database.rows(
            self._sql["inline"], (digest,)
        )
        return [rows.output_row(row) for row in found]

    def attempts(self, run_id: str, key: str) -> list[AttemptRow]:
        """The tries at a step, first to last."""
        return [rows.ATTEMPTS.row_of(row) for row in self.database.rows(self._sql["attempts_of"], (run_id, key))]

    def attempt_numbers(self, run_id: str) -> dict[str, int]:
        """The number of the last recorded try at each step of a run that has been tried."""
        return {str(key): int(number) for key, number in self.database.rows(self._sql["attempt_numbers"], (run_id,))}

    def receipt(self, run_id: str, key: str, number: int) -> ReceiptRow | None:
        """What one attempt did with its accelerators, with the tracks of its charts."""
        found = self.database.row(self._sql["receipt"], (run_id, key, number))
        from stoker.store.receipts import receipt_row

        return None if found is None else receipt_row(found)

    def receipts(self, run_id: str, *, key: str = "") -> list[ReceiptRow]:
        """The receipts of a run, or of one step, attempt by attempt and without their tracks, which take most room."""
        found = self.database.rows(self._sql["receipts_of"], (run_id, key, key))
        from stoker.store.receipts import receipt_row

        return [receipt_row((*row, None)) for row in found]

    def events(self, run_id: str, *, after: int = -1) -> list[EventRow]:
        """What happened in a run, in order, from behind `after`."""
        return [rows.EVENTS.row_of(row) for row in self.database.rows(self._sql["events_of"], (run_id, after))]

    def next_seq(self, run_id: str) -> int:
        """The first number that no event of the run has."""
        found = self.database.row(self._sql["last_seq"], (run_id,))
        return 0 if found is None or found[0] is None else int(found[0]) + 1

    def cached(self, key: str, now: float) -> CacheRow | None:
        """The results under a key, unless their time is over."""
        found = self.database.row(self._sql["cached"], (key, now))
        return None if found is None else rows.CACHE.row_of(found)

    def references(self) -> Iterable[str]:
        """Texts in which every digest occurs that a row names; `store.sweep` looks through them."""
        for column, table in _REFERENCES:
            for (found,) in self.database.rows(f"SELECT {column} FROM {table} WHERE {column} <> ''"):
                yield str(found)

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
    "held": "SELECT 1 FROM runs WHERE id = ? AND token = ?{locked}",
    "take_over": "UPDATE runs SET token = ?, driver = ?, heartbeat = ?, status = 'running', ended = NULL, error = '', "
    "asked = '', sessions = sessions + 1 WHERE id = ? AND token = ?",
    "ask": "UPDATE runs SET asked = ? WHERE id = ? AND status = 'running'",
    "beat": "UPDATE runs SET heartbeat = ? WHERE id = ? AND token = ?",
    "asked": "SELECT asked FROM runs WHERE id = ?",
    "run": f"{_RUN} WHERE id = ?",
    "begun": f"{_RUN} WHERE substr(id, 1, ?) = ? ORDER BY created DESC LIMIT 6",
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
