"""The queries of a store: runs, their steps, attempts, outputs, the cache and the events; those of names are in
`store.namesql`, those of schedules in `store.schedules`. No other file has queries.

A driver collects what changed in a `RowBatch` (`store.batch`) and writes it in one transaction. A run's rows belong to
the driver that holds its token; every change of a run is an UPDATE that names the token, so that a driver that lost the
run writes nothing.
"""

from __future__ import annotations

import base64
import os
import time
import zlib
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import DatabaseUnreachable, NotFound, StoreError, UsageError, nearest
from stoker.core.values import frozen
from stoker.store import registry, rows, statements
from stoker.store.batch import RowBatch
from stoker.store.database import Database, containing
from stoker.store.rows import (
    AttemptRow,
    CacheRow,
    EventRow,
    OutputRow,
    RecipeRow,
    RungRow,
    RunRow,
    StepRow,
)

if TYPE_CHECKING:
    from stoker.store.receipts import ReceiptRow

_OF_RUNS: Final = (
    "artifact_uses",
    "events",
    "receipts",
    "metrics",
    "log_pieces",
    "attempts",
    "outputs",
    "steps",
    "cache",
    "rungs",
    "plans",
)
"""Tables whose rows go with a run."""
_SHARED: Final = frozenset({"cache", "rungs", "recipes"})
"""Rows of a batch that other drivers write, too; their first column is their key."""
_RUNS_AT_ONCE: Final = 500
"""Runs that are in memory while every run is read."""
_SOURCES_AT_ONCE: Final = 500
"""Values in one query: SQLite allows 999 in old versions."""


@frozen(kw_only=True)
class LogPiece:
    """What a file of a run's logs has grown by (`store.logcopies`)."""

    number: int
    """In the order in which pieces came; a file that was written anew has another one at place 0."""
    name: str
    """The file, in the folder of the run's logs."""
    place: int
    """Where it begins in the file."""
    size: int
    """Bytes of it."""
    data: bytes
    """The same, compressed by zlib."""


@frozen(kw_only=True)
class RunFilter:
    """Selects runs; an empty field selects all of them."""

    pipeline: str = ""
    status: str = ""
    tag: str = ""
    stack: str = ""
    branch: str = ""
    author: str = ""
    """"user@host", or a user on any host."""
    text: str = ""
    """A part of the id, of the pipeline's name or of a tag, in any case."""
    since: float | None = None
    """The earliest time of creation, seconds since the epoch."""
    before: tuple[float, str] | None = None
    """The time of creation and the id of a run: only older ones."""
    limit: int = 50
    offset: int = 0
    """Newest runs to skip."""


class Records:
    """Reads and writes the rows of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._sql = {name: database.sql(statement) for name, statement in statements.STATEMENTS.items()}

    # Writing.

    def write(self, batch: RowBatch, *, run_id: str = "", token: str = "") -> bool:
        """Write a batch, all or nothing. With a token that does not hold the run any more, write nothing: False."""
        rows_of = self._rows_of(batch)
        try:
            try:
                return self._write(rows_of, run_id, token)
            except DatabaseUnreachable:
                # Whether it was committed is not known: each statement replaces what it wrote before.
                return self._write(rows_of, run_id, token)
        except (UnicodeEncodeError, StoreError) as error:
            if not isinstance(error, UnicodeEncodeError) and "NUL" not in str(error):
                raise
        # A text of the user's code that no database accepts: too rare to check every text before.
        cleaned = [(statement, [list(map(rows.clean_text, row)) for row in values]) for statement, values in rows_of]
        return self._write(cleaned, run_id, token)

    def _rows_of(self, batch: RowBatch) -> Sequence[tuple[str, Sequence[Sequence[Any]]]]:
        named = batch.registrations
        rows_of = []
        for name, values in batch.as_dict().items():
            if values is not named:
                # In one order, so that no two drivers each wait for a row that the other one has written.
                ordered = sorted(values, key=itemgetter(0)) if name in _SHARED and len(values) > 1 else values
                rows_of.append((self._sql[name], ordered))
        if named:
            rows_of += [(self.database.sql(text), values) for text, values in registry.statements_of(named)]
        return rows_of

    def _write(self, rows_of: Sequence[tuple[str, Sequence[Sequence[Any]]]], run_id: str, token: str) -> bool:
        # Without `transaction`, which is slower: every step of a run waits for this.
        database = self.database
        try:
            cursor = database.begin()
            try:
                if token:
                    cursor.execute(self._sql["is_holder"], (run_id, token))
                    if cursor.fetchone() is None:
                        database.rollback(cursor)
                        return False
                for statement, values in rows_of:
                    cursor.executemany(statement, values)
                cursor.execute("COMMIT")
            except BaseException:  # also an interrupt ends the transaction
                database.rollback(cursor)
                raise
        except database.errors as error:
            database.fail(error)
        return True

    def create_run(self, run: RunRow, *, plan: str = "", batch: RowBatch | None = None) -> None:
        """Create a run with its plan and first rows, in one transaction; does nothing where that was done already."""
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["runs"], list(map(rows.clean_text, rows.RUNS.tuple_of(run))))
            if cursor.rowcount == 0:
                cursor.execute(self._sql["is_holder"], (run.id, run.token))
                if cursor.fetchone() is None:
                    raise StoreError(f"{self.database.label}: there is a run '{run.id}' already", fix="start it again")
                return
            if plan:
                cursor.execute(self._sql["plans"], (run.id, plan))
            for statement, values in self._rows_of(batch) if batch is not None else ():
                cursor.executemany(statement, values)

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

    def set_tags(self, id: str, tags: Sequence[str], *, expected: Sequence[str]) -> bool:
        """Give a run other tags if it still has the expected ones; False if somebody else changed them."""
        statement = self.database.sql("UPDATE runs SET tags = ? WHERE id = ? AND tags = ?")
        return self.database.change(statement, (rows.json_text(tags), id, rows.json_text(expected))) == 1

    def take_over(self, id: str, *, expected: str, token: str, driver: Mapping[str, Any], plan: str = "") -> bool:
        """Give a run to another driver, with a new plan if `plan` is not empty.

        False means that the run's token is neither of the two, or that the run has succeeded, and that nothing was
        changed.
        """
        values = (token, rows.json_text(driver), time.time(), id, expected)
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["take_over"], values)
            if cursor.rowcount == 0:
                # An earlier call may have changed it, and lost the connection before it knew.
                cursor.execute(self._sql["is_holder"], (id, token))
                return cursor.fetchone() is not None
            if plan:
                cursor.execute(self._sql["plans"], (id, plan))
        return True

    def request_end(self, id: str, request: str) -> bool:
        """Ask the driver of a running run to end it: "cancel" or "now". False if it does not run any more."""
        return self.database.change(self._sql["request_end"], (request, id)) == 1

    def cancel_waiting(self, id: str, *, token: str) -> bool:
        """Cancel a run whose driver has not begun: a driver that starts later finds another token. False if it was
        faster."""
        nobody = os.urandom(8).hex()
        if self.database.change(self._sql["cancel_waiting"], (nobody, time.time(), id, token)) == 1:
            return True
        # A statement that was executed twice changes nothing the second time.
        return self.database.row(self._sql["is_holder"], (id, nobody)) is not None

    def heartbeat(self, id: str, token: str, now: float, active: Mapping[str, Any] | None = None) -> str | None:
        """Record that the driver is alive and which elements run, and return the request to end the run: "", "cancel"
        or "now".

        None means that another driver took the run over.
        """
        if self.database.change(self._sql["heartbeat"], (now, rows.json_text(active or {}), id, token)) != 1:
            return None
        row = self.database.row(self._sql["requested_end"], (id,))
        return str(row[0]) if row else None

    def delete_run(self, id: str) -> None:
        """Remove a run with all its rows and its entries of the cache; a run that is gone is fine."""
        with self.database.transaction() as cursor:
            for table in _OF_RUNS:
                cursor.execute(self.database.sql(f"DELETE FROM {table} WHERE run_id = ?"), (id,))
            facts = "DELETE FROM facts WHERE (kind = 'run' AND name = ?) OR (kind = 'step' AND substr(name, 1, ?) = ?)"
            cursor.execute(self.database.sql(facts), (id, len(id) + 1, f"{id}/"))
            cursor.execute(self.database.sql("DELETE FROM runs WHERE id = ?"), (id,))

    def rows_of_run(self, id: str, blobs: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """The rows of a run by table, as JSON, for another store; of outputs those that are small, and those of which
        `blobs` has the digest."""
        found: dict[str, list[dict[str, Any]]] = {}
        for table, columns in _EXCHANGED.items():
            statement = f"{statements.columns(columns, table)} WHERE {columns[0]} = ?"
            cells = self.database.rows(self.database.sql(statement), (id,))
            found[table] = [dict(zip(columns, map(_plain, row))) for row in cells]
        found["outputs"] = [row for row in found["outputs"] if row["inline"] is not None or row["digest"] in blobs]
        return found

    def add_run_rows(self, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Add the rows of a run of another store; of a run that is here already nothing is changed.

        Raises `StoreError` for rows that no run has.
        """
        with self.database.transaction() as cursor:
            for table, columns in _EXCHANGED.items():
                marks = ", ".join("?" * len(columns))
                statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
                values = [
                    [_from_plain(row.get(name, "") if name in _LATER else row[name]) for name in columns]
                    for row in found[table]
                ]
                cursor.executemany(self.database.sql(statement), values)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove entries of the cache."""
        with self.database.transaction() as cursor:
            cursor.executemany(self.database.sql("DELETE FROM cache WHERE key = ?"), [(key,) for key in keys])

    def forget_expired(self, now: float) -> int:
        """Remove the expired entries of the cache; returns their number."""
        return self.database.change(self.database.sql("DELETE FROM cache WHERE expires <= ?"), (now,))

    # The user's code: files by the digests of their texts. They belong to no run, and are never changed.

    def keep_sources(self, texts: Mapping[str, bytes]) -> None:
        """Keep texts by their digests; one that is there stays."""
        new = [(digest, time.time(), zlib.compress(text)) for digest, text in texts.items()]
        with self.database.transaction() as cursor:
            cursor.executemany(self._sql["sources"], new)

    def sources(self, digests: Iterable[str]) -> dict[str, bytes]:
        """The texts that are kept of these."""
        texts: dict[str, bytes] = {}
        for digest in set(digests):
            row = self.database.row(self._sql["source"], (digest,))
            if row is not None:
                texts[digest] = zlib.decompress(bytes(row[0]))
        return texts

    def forget_sources(self, needed: Collection[str], *, before: float) -> None:
        """Remove the texts that were kept before a time and are not needed."""
        unneeded = [
            (str(digest),)
            for (digest,) in self.database.rows(self._sql["old_sources"], (before,))
            if str(digest) not in needed
        ]
        if unneeded:
            with self.database.transaction() as cursor:
                cursor.executemany(self._sql["forget_source"], unneeded)

    def has_recipe(self, digest: str) -> bool:
        """Whether there is a recipe of this name."""
        return self.database.row(self._sql["has_recipe"], (digest,)) is not None

    def recipe(self, digest: str) -> RecipeRow | None:
        """The recipe of this name."""
        row = self.database.row(self._sql["recipe"], (digest,))
        return None if row is None else rows.RECIPES.row_of(row)

    def forget_recipes(self, *, before: float) -> None:
        """Remove the recipes that were kept before a time and that no step has."""
        self.database.change(self._sql["forget_recipes"], (before,))

    def earlier_steps(self, pipeline: str, key: str, *, before: float, limit: int = 50) -> list[StepRow]:
        """The step of this key in earlier runs of a pipeline, newest run first."""
        values = self.database.rows(self._sql["earlier_steps"], (pipeline, before, key, limit))
        return [rows.STEPS.row_of(row) for row in values]

    def maker_of(self, run_id: str, digest: str) -> OutputRow | None:
        """The output of a run that had these bytes first."""
        row = self.database.row(self._sql["maker_of"], (run_id, digest))
        return None if row is None else rows.output_row(row)

    def diffs(self) -> set[str]:
        """The digests of the differences that runs have."""
        return {
            str(digest) for (digest,) in self.database.rows("SELECT worktree FROM runs WHERE length(worktree) = 64")
        }

    def missing_sources(self, digests: Collection[str]) -> set[str]:
        """Those of the digests by which no text is kept."""
        known: set[str] = set()
        listed = list(digests)
        for start in range(0, len(listed), _SOURCES_AT_ONCE):
            part = listed[start : start + _SOURCES_AT_ONCE]
            marks = ", ".join("?" * len(part))
            statement = self.database.sql(f"SELECT digest FROM sources WHERE digest IN ({marks})")
            known.update(str(digest) for (digest,) in self.database.rows(statement, part))
        return set(digests) - known

    # What steps that ran out of memory got by with. This is advice, not fact: no driver's token guards these rows.

    def learned_changes(self, key: str) -> RungRow | None:
        """The changes with which a request worked; None if there are none."""
        row = self.database.row(self._sql["rung"], (key,))
        return None if row is None else _whole_or_none(rows.RUNGS, row)

    def learn_changes(self, row: RungRow) -> None:
        """Record the changes with which a request worked, in place of earlier ones."""
        self.database.change(self._sql["rungs"], rows.RUNGS.tuple_of(row))

    def forget_changes(self, key: str) -> None:
        """Remove the changes of a request: it worked without any."""
        self.database.change(self._sql["forget_rung"], (key,))

    # Reading.

    def run(self, id: str) -> RunRow:
        """The run with this id, or the only one whose id has this prefix."""
        id = rows.clean_text(id)
        row = self.database.row(self._sql["run"], (id,))
        if row is not None:
            return rows.RUNS.row_of(row)
        matches = self.database.rows(self._sql["runs_by_prefix"], (len(id), id)) if id else []
        if len(matches) == 1:
            return rows.RUNS.row_of(matches[0])
        if matches:
            listed = ", ".join(str(match[0]) for match in matches[:5]) + (", …" if len(matches) > 5 else "")
            raise NotFound(f"'{id}' begins the ids of several runs: {listed}", fix="write more of the id")
        ids = [str(newest[0]) for newest in self.database.rows("SELECT id FROM runs ORDER BY created DESC LIMIT 200")]
        missing = f"there is no run '{id}' in {self.database.label}{nearest(id, ids)}"
        raise NotFound(missing, fix="`stoker runs` lists them")

    def existing(self, ids: Iterable[str]) -> frozenset[str]:
        """Those of some ids of which there is a run."""
        asked = tuple(dict.fromkeys(filter(None, ids)))
        if not asked:
            return frozenset()
        statement = f"SELECT id FROM runs WHERE id IN ({', '.join('?' * len(asked))})"
        return frozenset(str(id) for (id,) in self.database.rows(self.database.sql(statement), asked))

    def plan(self, id: str) -> str:
        """The plan of a run as JSON; empty for a run without one."""
        row = self.database.row(self._sql["plan"], (id,))
        return str(row[0]) if row else ""

    def runs(self, run_filter: RunFilter | None = None) -> list[RunRow]:
        """The runs that match, newest first."""
        run_filter = run_filter or RunFilter()
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        if run_filter.pipeline:
            conditions.append(("pipeline = ?", (run_filter.pipeline,)))
        if run_filter.status:
            conditions.append(("status = ?", (run_filter.status,)))
        if run_filter.tag:
            # A case-sensitive "contains" that both databases have: LIKE ignores case in SQLite.
            conditions.append(("tags <> '' AND replace(tags, ?, '') <> tags", (rows.json_text(run_filter.tag),)))
        if run_filter.stack:
            conditions.append(("stack = ?", (run_filter.stack,)))
        if run_filter.branch:
            conditions.append(("branch = ?", (run_filter.branch,)))
        if run_filter.author:
            begins = f"{run_filter.author}@"
            conditions.append(("(author = ? OR substr(author, 1, ?) = ?)", (run_filter.author, len(begins), begins)))
        if run_filter.text:
            found = (
                "(id {like} ? ESCAPE '!' OR pipeline {like} ? ESCAPE '!' OR tags <> '' AND tags {like} ? ESCAPE '!')"
            )
            conditions.append((found, (containing(run_filter.text),) * 3))
        if run_filter.since is not None:
            conditions.append(("created >= ?", (run_filter.since,)))
        if run_filter.before is not None:
            conditions.append(("(created, id) < (?, ?)", run_filter.before))
        where = " WHERE " + " AND ".join(condition for condition, _ in conditions) if conditions else ""
        statement = f"{statements.RUN} {where} ORDER BY created DESC, id DESC LIMIT ? OFFSET ?"
        values = [rows.clean_text(value) for _, given in conditions for value in given]
        page = (run_filter.limit, run_filter.offset)
        return [rows.RUNS.row_of(row) for row in self.database.rows(self.database.sql(statement), (*values, *page))]

    def every_run(self, run_filter: RunFilter | None = None) -> Iterator[RunRow]:
        """Every run that matches, newest first, read in pages; `limit`, `offset` and `before` do not apply."""
        page = attrs.evolve(run_filter or RunFilter(), limit=_RUNS_AT_ONCE, offset=0, before=None)
        while True:
            found = self.runs(page)
            yield from found
            if len(found) < _RUNS_AT_ONCE:
                return
            # Not by an offset: the database would walk over all that was read before.
            page = attrs.evolve(page, before=(found[-1].created, found[-1].id))

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

    def first_element(self, run_id: str, parent: str, *, status: str) -> StepRow | None:
        """The first element of a fan-out that has a status; None without one."""
        row = self.database.row(self._sql["first_element"], (run_id, parent, status))
        return None if row is None else rows.STEPS.row_of(row)

    def first_start(self, run_id: str, parent: str) -> float | None:
        """When the first element of a fan-out started; None before that."""
        row = self.database.row(self._sql["first_start"], (run_id, parent))
        return None if row is None or row[0] is None else float(row[0])

    def first_that_ran(self, run_id: str, parent: str) -> tuple[StepRow | None, int]:
        """The first element of a fan-out whose result was not cached, and how many there are."""
        number = self.database.row(self._sql["count_that_ran"], (run_id, parent))
        row = self.database.row(self._sql["first_that_ran"], (run_id, parent))
        return None if row is None else rows.STEPS.row_of(row), int(number[0]) if number is not None else 0

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

    def most_attempts(self, run_id: str, parent: str) -> int:
        """The most attempts of one element of a fan-out that has ended; 0 while none has."""
        row = self.database.row(self._sql["most_attempts"], (run_id, parent))
        return int(row[0]) if row is not None and isinstance(row[0], int) else 0

    def count_rows(self, run_id: str, keys: Sequence[str]) -> int:
        """How many of these keys have a row."""
        number = 0
        for first in range(0, len(keys), _MOST_VALUES):
            some = keys[first : first + _MOST_VALUES]
            statement = f"SELECT count(*) FROM steps WHERE run_id = ? AND key IN ({', '.join('?' * len(some))})"
            row = self.database.row(self.database.sql(statement), (run_id, *some))
            number += int(row[0]) if row is not None else 0
        return number

    def caught_count(self, run_id: str, parent: str) -> int:
        """How many elements of a fan-out succeeded with a message: their failures were caught."""
        row = self.database.row(self._sql["caught_count"], (run_id, parent))
        return int(row[0]) if row is not None else 0

    def usages(self, run_id: str, parent: str) -> list[dict[str, Any]]:
        """What elements of a fan-out used, where it is known; a document that cannot be read is left out."""
        found = [text for (text,) in self.database.rows(self._sql["usages"], (run_id, parent)) if text]
        return rows.objects_of(found)

    def first_failures(self, run_ids: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """Run → key, cause and message of the first of its steps that failed, of the runs that have such a step; the
        message of a fan-out is that of its first such element."""
        if not run_ids:
            return {}
        marks = ", ".join("?" * len(run_ids))
        statement = (
            f"SELECT run_id, key, cause, message FROM steps WHERE run_id IN ({marks}) AND parent = '' "
            "AND status = 'failed' ORDER BY run_id, position"
        )
        found: dict[str, tuple[str, str, str]] = {}
        for run, key, cause, message in self.database.rows(self.database.sql(statement), tuple(run_ids)):
            found.setdefault(str(run), (str(key), str(cause), str(message)))
        for run, (key, cause, message) in found.items():
            if not message:  # a fan-out fails with its elements, which have the words
                row = self.database.row(self._sql["failed_element"], (run, key))
                found[run] = (key, cause, str(row[0]) if row is not None else "")
        return found

    def outputs(self, run_id: str, key: str) -> list[OutputRow]:
        """A step's results by name."""
        return [rows.output_row(row) for row in self.database.rows(self._sql["outputs_of"], (run_id, key))]

    def element_outputs(self, run_id: str, parent: str, name: str) -> list[OutputRow]:
        """One result of every element of a fan-out that has it, by index."""
        values = self.database.rows(self._sql["element_outputs"], (run_id, parent, name))
        return [rows.output_row(row) for row in values]

    def lineage(self, digest: str) -> list[OutputRow]:
        """Every output with these bytes, oldest run first. Slow for values that are small enough to be no blob."""
        digest = rows.clean_text(digest)
        values = self.database.rows(self._sql["lineage"], (digest,)) or self.database.rows(
            self._sql["inline"], (digest,)
        )
        return [rows.output_row(row) for row in values]

    def attempts(self, run_id: str, key: str) -> list[AttemptRow]:
        """The attempts of a step that have ended, first to last."""
        return [rows.ATTEMPTS.row_of(row) for row in self.database.rows(self._sql["attempts_of"], (run_id, key))]

    def attempt_seconds(self, run_id: str) -> list[tuple[str, float]]:
        """(key, seconds) of the attempts of a run that have ended, elements' too."""
        return [(str(key), float(seconds)) for key, seconds in self.database.rows(self._sql["spans"], (run_id,))]

    def losses(self, stack: str, backend: str, causes: Sequence[str]) -> tuple[int, float]:
        """Of the attempts that a stack's backend ran: how many ended by one of the causes, and the seconds of all."""
        values = (*causes, stack, backend)
        row = self.database.row(self.database.sql(statements.LOSSES.format(", ".join("?" * len(causes)))), values)
        return (0, 0.0) if row is None or row[1] is None else (int(row[0]), float(row[1]))

    def attempt_numbers(self, run_id: str) -> dict[str, int]:
        """Key of a step of a run → the number of its last attempt that has ended."""
        numbers = self.database.rows(self._sql["attempt_numbers"], (run_id,))
        return {str(key): number for key, number in numbers if isinstance(number, int)}

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

    def job_events(self, run_id: str, key: str = "") -> list[EventRow]:
        """The events of jobs on platforms with a queue, and of waits for devices, of a run or of one step or element,
        in order."""
        return [rows.EVENTS.row_of(row) for row in self.database.rows(self._sql["job_events"], (run_id, key, key))]

    def left_events(self, run_id: str = "") -> list[EventRow]:
        """The events of a run, or of all, that tell of jobs left on a platform and of their end, in order."""
        return [rows.EVENTS.row_of(row) for row in self.database.rows(self._sql["left_events"], (run_id, run_id))]

    def left_out_events(self, run_id: str = "", *, since: float = 0.0) -> list[EventRow]:
        """The events by which a run, or any, left out faulty nodes and devices since a time, in order."""
        values = self.database.rows(self._sql["left_out_events"], (since, run_id, run_id))
        return [rows.EVENTS.row_of(row) for row in values]

    def step_events(self, run_id: str, key: str, kind: str) -> list[EventRow]:
        """The events of one kind that tell of a step, in order."""
        return [rows.EVENTS.row_of(row) for row in self.database.rows(self._sql["step_events"], (run_id, key, kind))]

    def next_seq(self, run_id: str) -> int:
        """The first number that no event of the run has."""
        row = self.database.row(self._sql["last_seq"], (run_id,))
        return 0 if row is None or row[0] is None else int(row[0]) + 1

    def cached(self, key: str, now: float) -> CacheRow | None:
        """The cache's entry for a key, unless it has expired."""
        row = self.database.row(self._sql["cached"], (key, now))
        return None if row is None else _whole_or_none(rows.CACHE, row)

    def references(self) -> Iterable[str]:
        """Texts that contain every digest that a row names; `store.check` searches them."""
        for column, table in _REFERENCES:
            for (text,) in self.database.rows(f"SELECT {column} FROM {table} WHERE {column} <> ''"):
                yield str(text)

    def all_outputs(self) -> Iterator[OutputRow]:
        """The outputs of all runs."""
        for row in self.database.rows(self._sql["all_outputs"]):
            yield rows.output_row(row)

    def blob_outputs(self, limit: int) -> list[OutputRow]:
        """Outputs whose bytes are blobs, at most `limit`."""
        return [rows.output_row(row) for row in self.database.rows(self._sql["blob_outputs"], (limit,))]

    def all_cached(self) -> Iterator[CacheRow]:
        """The entries of the cache, expired ones too."""
        for row in self.database.rows(self._sql["all_cached"]):
            yield rows.CACHE.row_of(row)

    def all_plans(self) -> Iterator[tuple[str, str]]:
        """The id and the plan's text of each run that has one."""
        for run_id, plan in self.database.rows(self._sql["all_plans"]):
            yield str(run_id), str(plan)

    def metric_pieces(self, run_id: str, key: str, number: int) -> list[tuple[int, bytes]]:
        """The pieces of what an attempt logged, by their numbers, in the order in which they came."""
        values = self.database.rows(self._sql["metric_pieces"], (run_id, key, number))
        return [(int(piece), bytes(data)) for piece, data in values]

    def last_metric_pieces(self, run_id: str, *, prefix: str = "") -> list[tuple[str, int, bytes]]:
        """(key, attempt, data) of what the last attempts that logged something did, of keys that begin so.

        One read for all elements of a fan-out, in the order in which the pieces of each came.
        """
        values = self.database.rows(self._sql["last_metric_pieces"], (run_id, len(prefix), prefix))
        return [(str(key), int(number), bytes(data)) for key, number, data in values]

    def cached_from(self, run_id: str, *, parent: str | None = None) -> dict[str, str]:
        """Step or element → the "run/step" that made its result, of a run or of one fan-out's elements."""
        values = self.database.rows(self._sql["cached_from"], (run_id, parent or "", parent is None))
        return {str(key): str(origin) for key, origin in values}

    def metric_attempts(self, run_id: str) -> list[tuple[str, int]]:
        """The attempts of a run that logged something: key and number."""
        return [(str(key), int(number)) for key, number in self.database.rows(self._sql["metric_attempts"], (run_id,))]

    def add_log_pieces(self, run_id: str, token: str, pieces: Sequence[LogPiece]) -> None:
        """Add pieces of a run's logs; nothing where another driver has the run. One that is there already stays."""
        with self.database.transaction() as cursor:
            cursor.execute(self._sql["is_holder"], (run_id, token))
            if cursor.fetchone() is None:
                return
            for piece in pieces:
                if not piece.place:
                    cursor.execute(self._sql["outdated_log"], (run_id, piece.name, piece.number))
            values = [(run_id, one.number, one.name, one.place, one.size, one.data) for one in pieces]
            cursor.executemany(self._sql["log_pieces"], values)

    def log_pieces(self, run_id: str, *, after: int, limit: int) -> list[LogPiece]:
        """The next pieces of a run's logs behind a number."""
        return [
            LogPiece(number=int(number), name=str(name), place=int(place), size=int(size), data=bytes(data))
            for number, name, place, size, data in self.database.rows(self._sql["next_log"], (run_id, after, limit))
        ]

    def log_sizes(self, run_id: str) -> dict[str, int]:
        """The bytes that there are of each file of a run's logs."""
        return {str(name): int(size) for name, size in self.database.rows(self._sql["log_sizes"], (run_id,))}

    def last_log_piece(self, run_id: str) -> int:
        """The number of the last piece of a run's logs; -1 without any."""
        row = self.database.row(self._sql["last_log"], (run_id,))
        return -1 if row is None or row[0] is None else int(row[0])

    def all_receipts(self) -> Iterator[tuple[str, StoreError | None]]:
        """Each receipt's place, as "run/step", and why it cannot be read."""
        from stoker.store.receipts import receipt_row

        for values in self.database.rows(self._sql["all_receipts"]):
            try:
                receipt_row(values)
            except StoreError as error:
                yield f"{values[0]}/{values[1]}", error
            else:
                yield f"{values[0]}/{values[1]}", None

    def manifests(self) -> list[OutputRow]:
        """Outputs that are lists of artifacts."""
        return [rows.output_row(row) for row in self.database.rows(self._sql["manifests"])]


def _whole_or_none(schema: rows.TableSchema[rows.Row], values: Sequence[Any]) -> rows.Row | None:
    """The row of what is kept for reuse; a damaged one counts as none, and is written again."""
    try:
        return schema.row_of(values)
    except StoreError:
        return None


def _plain(cell: Any) -> Any:
    """A cell as JSON: bytes are a mapping."""
    return {"bytes": base64.b64encode(cell).decode()} if isinstance(cell, (bytes, memoryview)) else cell


def _from_plain(cell: Any) -> Any:
    return base64.b64decode(cell["bytes"]) if isinstance(cell, dict) else cell


_EXCHANGED: Final[Mapping[str, Sequence[str]]] = {
    "runs": rows.RUNS.columns,
    "plans": ("run_id", "plan"),
    "steps": rows.STEPS.columns,
    "outputs": rows.OUTPUT_COLUMNS,
    "attempts": rows.ATTEMPTS.columns,
    "receipts": rows.RECEIPT_COLUMNS,
    "metrics": rows.METRIC_COLUMNS,
    "artifact_uses": ("run_id", "key", "parameter", "name", "version"),
}
"""Table → its columns, that of the run's id first: what stores give each other of a run."""
_LATER: Final = frozenset({"revision", "branch", "author", "worktree"})
"""Columns that earlier versions did not export."""
_MOST_VALUES: Final = 500
"""Values of one statement: SQLite takes 999 at least."""
_RUN_JSON: Final = frozenset({"parameters", "tags", "driver", "active"})
_SETTABLE: Final = frozenset(rows.RUNS.columns) - {"id", "token", "created", "pipeline", "origin"}
_REFERENCES: Final = (
    ("plan", "plans"),
    ("inputs", "steps"),
    ("outputs", "cache"),
    ("digest", "outputs"),
    ("meta", "outputs"),
    ("digest", "artifacts"),
    ("meta", "artifacts"),
    ("code", "schedules"),
)
