"""The database of a store, SQLite or Postgres: a connection for each thread, and migrations of the schema.

Statements use `?` for values in both; this module must not know the meaning of any table. SQLite runs in WAL mode with
`synchronous=NORMAL`: a killed process loses nothing, a power cut at most the last transactions, never the file. WAL
needs a local disk: a home on a network file system that several machines share needs Postgres instead.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import Any, Final, Iterable, Iterator, Mapping, NoReturn, Sequence

from stoker.core.errors import MissingPackage, StoreError
from stoker.store.schema import MIGRATIONS

BUSY_SECONDS: Final = 60.0
"""How long a writer waits for other writers. Transactions take microseconds: only a process that was stopped inside
one makes others wait so long."""

_PRAGMAS: Final = {
    "journal_mode": "wal",
    "synchronous": "normal",
    "foreign_keys": "off",
    # Pages of the log before it is copied into the database. SQLite's default is 1000; with a bigger log, pages that
    # change with every step are copied and synced four times less often. 16 MB at most.
    "wal_autocheckpoint": 4000,
    "temp_store": "memory",
}
_DIALECTS: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {"{blob}": "blob", "{clustered}": " WITHOUT ROWID", "{locked}": ""},
    "postgresql": {"{blob}": "bytea", "{clustered}": "", "{locked}": " FOR SHARE"},
}
"""placeholder → its SQL. `{clustered}`: the table is its primary key's index. `{locked}`: the rows of a query do not
change until the transaction ends; in SQLite, a transaction that may write is the only one anyway."""
_SCHEMES: Final = {"sqlite": "sqlite", "postgresql": "postgresql", "postgres": "postgresql"}
_MIGRATION_LOCK: Final = 7_305_801
"""Any number that no other program uses for a Postgres advisory lock."""


class Database:
    """The store's database, open and migrated; safe to use from any thread and after a fork."""

    def __init__(self, uri: str) -> None:
        scheme, mark, address = uri.partition("://")
        if not mark or scheme not in _SCHEMES or not address or ":memory:" in address:
            raise StoreError(
                f"'{_without_password(uri)}' is not a database that Stoker can open",
                fix="write sqlite:///path/to/stoker.db or postgresql://user@host/name",
            )
        self.uri = uri
        self.label = _without_password(uri)
        self.dialect = _SCHEMES[scheme]
        self.path = os.path.abspath(address) if self.dialect == "sqlite" else ""
        self._lock = threading.Lock()
        self._local = threading.local()
        self._open: list[tuple[threading.Thread, Any]] = []
        self._errors = self._driver_errors()
        if self.path:
            _make_folder(self.path)
        try:
            self._migrate()
        except BaseException:  # also an interrupt leaves no connection open
            self.close()
            raise

    def sql(self, statement: str) -> str:
        """A statement in the dialect of this database; `?` stands for a value and must not occur otherwise."""
        for placeholder, sql in _DIALECTS[self.dialect].items():
            statement = statement.replace(placeholder, sql)
        return statement if self.dialect == "sqlite" else statement.replace("?", "%s")

    def cursor(self) -> Any:
        """A DB-API cursor of this thread's connection, outside any transaction."""
        local = self._local
        if getattr(local, "pid", 0) != os.getpid():
            self._connect()
        return local.connection.cursor()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row of a query."""
        try:
            cursor = self.cursor()
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except self._errors as error:
            self.fail(error)
        return rows

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query."""
        try:
            cursor = self.cursor()
            cursor.execute(statement, values)
            row: tuple[Any, ...] | None = cursor.fetchone()
        except self._errors as error:
            self.fail(error)
        return row

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement and return the number of rows that it changed."""
        try:
            cursor = self.cursor()
            cursor.execute(statement, values)
            count: int = cursor.rowcount
        except self._errors as error:
            self.fail(error)
        return count

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor whose changes are committed all together or not at all."""
        try:
            cursor = self.cursor()
            self.begin(cursor)
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:  # also an interrupt ends the transaction
                self.rollback(cursor)
                raise
        except self._errors as error:
            self.fail(error)

    def begin(self, cursor: Any) -> None:
        """Start a transaction that may write from its first statement on."""
        # SQLite's plain BEGIN takes the write lock late, and a transaction that read before then fails at once.
        cursor.execute("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")

    def rollback(self, cursor: Any) -> None:
        """Undo a transaction; one that the database has undone already is fine."""
        try:
            cursor.execute("ROLLBACK")
        except self._errors:
            pass

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of the driver; pass them to `fail`."""
        return self._errors

    def fail(self, error: BaseException) -> NoReturn:
        """Raise a driver's error as a `StoreError`; the next use reopens a connection that the server closed."""
        connection = getattr(self._local, "connection", None)
        if getattr(connection, "closed", False):
            self._local.pid = 0
        raise self._store_error(error) from error

    def close(self) -> None:
        """Close every thread's connection; the next use opens the database again."""
        with self._lock:
            connections, self._open = [connection for _, connection in self._open], []
            self._local = threading.local()
            for connection in connections:
                connection.close()

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of this database's driver. No other driver is imported: psycopg takes 100 ms."""
        if self.dialect == "sqlite":
            import sqlite3

            return (sqlite3.Error,)
        try:
            import psycopg
        except ImportError as error:
            raise MissingPackage(
                f"{self.label} needs the package 'psycopg'", fix="pip install 'stoker[postgres]'"
            ) from error
        return (psycopg.Error,)

    def _open_connection(self) -> Any:
        """A new connection that commits each statement outside a transaction."""
        if self.dialect == "sqlite":
            return _sqlite_connection(self.path)
        import psycopg

        return psycopg.connect("postgresql://" + self.uri.partition("://")[2], autocommit=True)

    def _connect(self) -> None:
        """Open this thread's connection; close those of threads that have ended."""
        with self._lock:
            pid = os.getpid()
            if self._open and getattr(self, "_pid", pid) != pid:
                # A connection must not be used after a fork, not even closed: the parent process still uses it.
                _FORKED.append(self._open)
                self._open = []
            self._pid = pid
            in_use: list[tuple[threading.Thread, Any]] = []
            for thread, connection in self._open:
                if thread.is_alive():
                    in_use.append((thread, connection))
                else:
                    connection.close()
            deadline = time.monotonic() + BUSY_SECONDS
            while True:
                try:
                    connection = self._open_connection()
                    break
                except self._errors as error:
                    # Changing to WAL mode while another process does the same is refused without waiting.
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        self.fail(error)
                    time.sleep(0.005)
            self._open = [*in_use, (threading.current_thread(), connection)]
            self._local.connection = connection
            self._local.pid = pid

    def _migrate(self) -> None:
        """Migrate the schema to this version, exactly once even if many processes try."""
        if self._version() == len(MIGRATIONS):
            return
        with self.transaction() as cursor:
            if self.dialect == "postgresql":
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS stoker_schema (version integer PRIMARY KEY, applied double precision)"
            )
            cursor.execute("SELECT max(version) FROM stoker_schema")
            version = cursor.fetchone()[0] or 0
            self._refuse_newer(version)
            for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
                for statement in statements:
                    cursor.execute(self.sql(statement))
                cursor.execute(self.sql("INSERT INTO stoker_schema VALUES (?, ?)"), (number, time.time()))

    def _version(self) -> int:
        """The version of the schema, 0 for a new database. Raises `StoreError` for one newer than this code."""
        catalog = {
            "sqlite": "SELECT 1 FROM sqlite_master WHERE name = 'stoker_schema'",
            "postgresql": "SELECT 1 WHERE to_regclass('stoker_schema') IS NOT NULL",
        }
        if self.row(catalog[self.dialect]) is None:
            return 0
        newest = self.row("SELECT max(version) FROM stoker_schema")
        version = int(newest[0] or 0) if newest else 0
        self._refuse_newer(version)
        return version

    def _refuse_newer(self, version: int) -> None:
        newest = len(MIGRATIONS)
        if version > newest:
            raise StoreError(
                f"the store {self.label} has schema version {version}; this Stoker knows versions up to {newest}",
                fix="upgrade Stoker here (pip install -U stoker), or set STOKER_HOME to another folder",
            )

    def _store_error(self, error: BaseException) -> StoreError:
        text = " ".join(str(error).split())
        for words, message, fix in _ERRORS:
            if words in text:
                return StoreError(f"{self.label}: {message} ({text})", fix=fix)
        return StoreError(f"{self.label}: {text}")


_FORKED: Final[list[Any]] = []
"""Connections that a fork copied, referenced here so that they are never closed in this process."""

_ERRORS: Final[Iterable[tuple[str, str, str]]] = (
    ("not a database", "the file is not a database", "move it away, or set STOKER_HOME to another folder"),
    ("malformed", "the database file is damaged", "restore a copy, or move it away: the next run starts a new one"),
    ("disk is full", "the disk is full", "free space on it, for example with `stoker gc`, and run again"),
    ("No space left", "the disk is full", "free space on it, for example with `stoker gc`, and run again"),
    ("readonly", "the database cannot be written", "check the permissions of the file and its folder"),
    ("unable to open", "the database cannot be opened", "check that the path is a file in a folder you may write to"),
    ("locked", "another process has held the database for a minute", "end it: it may be stopped inside a transaction"),
    ("connection", "the database server does not answer", "check the address, and that the server runs"),
)
"""(text in a driver's error, message, fix)"""


def _make_folder(path: str) -> None:
    """Create the folder of a database file."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder of {path} cannot be made: {error}", fix="choose another home") from error


def _sqlite_connection(path: str) -> Any:
    """A connection to a file, with the pragmas set."""
    import sqlite3

    # Connections of threads that have ended are closed by the next thread that opens one, hence check_same_thread.
    # Without an isolation level, Python begins no transaction of its own.
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for pragma, value in _PRAGMAS.items():
            connection.execute(f"PRAGMA {pragma} = {value}")
    except BaseException:  # also an interrupt leaves no connection open
        connection.close()
        raise
    return connection


def _without_password(uri: str) -> str:
    scheme, mark, address = uri.partition("://")
    user, at, host = address.rpartition("@")
    if not at:
        return uri
    return f"{scheme}{mark}{user.partition(':')[0]}@{host}"
