"""A store's database copied into an empty one of another kind: all rows or none, and compared before it counts."""

from __future__ import annotations

import re
import zlib
from typing import Any, Callable, Final, Iterator, Sequence

from stoker.core.errors import StoreError, UsageError
from stoker.store.database import GENERATED, MIGRATIONS, Database

PAGE: Final = 1000
"""Rows that are in memory at a time."""
_CREATED: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)")
_DROPPED: Final = re.compile(r"DROP TABLE (?:IF EXISTS )?(\w+)")


def tables() -> tuple[str, ...]:
    """The tables of a database of this version."""
    found: dict[str, None] = {}
    for statement in (statement for migration in MIGRATIONS for statement in migration):
        found.update(dict.fromkeys(_CREATED.findall(statement)))
        for name in _DROPPED.findall(statement):
            found.pop(name, None)
    return tuple(found)


def copy_database(source: Database, target: Database, note: Callable[[str, int], None]) -> dict[str, int]:
    """Copy every row into a database that has none; the number of rows of each table.

    The source is read as it is at one moment. The target has all of it or nothing, also where this process is killed,
    and is read once more before that: each table must have as many rows as the source's, with the same checksum.
    `note` is told of each table and its rows. Raises `UsageError` where the target has rows already, and `StoreError`
    where a row cannot be kept as it is.
    """
    names = tables()
    for name in names:
        if target.row(f"SELECT 1 FROM {name} LIMIT 1") is not None:
            raise UsageError(
                f"the database {target.label} is not empty: it has {name}",
                fix="name a new one; two stores are not made one",
            )
    counts: dict[str, int] = {}
    with source.transaction() as reading:
        if source.dialect == "postgresql":
            reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        with target.transaction() as writing:
            for name in names:
                columns = _columns(source, name)
                if set(columns) != set(_columns(target, name)):
                    raise StoreError(f"the table {name} has other columns in {target.label} than in {source.label}")
                statement = target.sql(
                    f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
                )
                copied = _Sum()
                for page in _pages(source, reading, name, columns):
                    copied.add(page)
                    _insert(writing, statement, page, name, target)
                found = _Sum()
                for page in _pages(target, writing, name, columns):
                    found.add(page)
                if (found.rows, found.sum) != (copied.rows, copied.sum):
                    raise StoreError(
                        f"{target.label} gives back other rows of {name} than it got: {found.rows} of {copied.rows}",
                        fix="its encoding must be UTF-8; nothing was changed",
                    )
                counts[name] = copied.rows
                note(name, copied.rows)
    return counts


class _Sum:
    """How many rows there are, and a checksum in which their order does not count."""

    def __init__(self) -> None:
        self.rows = 0
        self.sum = 0

    def add(self, page: Sequence[Sequence[Any]]) -> None:
        self.rows += len(page)
        for row in page:
            values = [bytes(value) if isinstance(value, (bytes, memoryview)) else value for value in row]
            self.sum += zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


def _columns(database: Database, table: str) -> list[str]:
    cursor = database.cursor()
    cursor.execute(f"SELECT * FROM {table} LIMIT 0")
    return [column[0] for column in cursor.description if column[0] != GENERATED]


def _pages(database: Database, cursor: Any, table: str, columns: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a table, within the cursor's transaction; a server keeps what was not fetched yet."""
    query = f"SELECT {', '.join(columns)} FROM {table}"
    if database.dialect == "sqlite":
        rows = cursor.connection.cursor().execute(query)
        while page := rows.fetchmany(PAGE):
            yield page
        return
    cursor.execute(f"DECLARE pages NO SCROLL CURSOR FOR {query}")
    while True:
        cursor.execute(f"FETCH {PAGE} FROM pages")
        page = cursor.fetchall()
        if not page:
            break
        yield page
    cursor.execute("CLOSE pages")


def _insert(cursor: Any, statement: str, page: Sequence[Sequence[Any]], table: str, target: Database) -> None:
    refusals: tuple[type[Exception], ...] = (ValueError, *target.errors)  # ValueError: NUL, which PostgreSQL has not
    try:
        cursor.executemany(statement, page)
    except refusals as error:
        raise StoreError(
            f"a row of {table} cannot be kept in {target.label}: {str(error).splitlines()[0]}",
            fix="`stoker store check` says what is damaged; nothing was changed",
        ) from error
