"""The database of a store, SQLite or Postgres: a connection for each thread, and migrations of the schema.

Statements use `?` for values in both; this module must not know the meaning of any table. SQLite runs in WAL mode with
`synchronous=NORMAL`: a killed process loses nothing, a power cut at most the last transactions, never the file. WAL
needs a local disk: a home on a network file system that several machines share needs Postgres instead.

A Postgres server that restarts closes its connections. A statement that finds its connection closed is executed once
more on a new one, so `change` is for statements that may be executed twice; a transaction is not repeated, except for
its BEGIN. Where the server does not answer, `DatabaseUnreachable` is raised; `store.postgres` says how much later. A
server that has become a replica takes no writes: its connection counts as lost, and the next one goes to whichever
server of the address does (`host1,host2`, `target_session_attrs=read-write`). A server that has no connection left, or
starts, is asked again for a minute by who opens the database; a run that goes on has its journal meanwhile.

A SQLite database that may only be read, somebody else's or one on a disk that is mounted to be read, is three files:
the pages, the log of newer pages (`-wal`) and an index of it in shared memory (`-shm`). While a writer lives all three
exist, and SQLite reads them without writing if it may read them. A writer that ends leaves the first alone; SQLite
would make the others to read it, and fails where it may not: `immutable` tells it that nobody writes. That is wrong as
soon as somebody does, so what was read is thrown away if the files have changed meanwhile, and read again. A writer
that was killed leaves a log without an index, or an index that may not be read: then the first two are copied, and the
copy is read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, NoReturn, Sequence, TypeAlias
from urllib.parse import quote

from stoker.core.errors import DatabaseUnreachable, MissingPackage, StoreError
from stoker.store.access import create_file, make_folders


def _migrations() -> Sequence[Sequence[str]]:
    """The statements of `schema.sql`: entry N brings a database from version N to N + 1."""
    with open(os.path.join(os.path.dirname(__file__), "schema.sql"), encoding="utf-8") as file:
        _, *parts = file.read().split("\n--- ")
    texts = ["\n".join(line for line in part.splitlines()[1:] if not line.startswith("--")) for part in parts]
    return [[found for statement in text.split(";") if (found := statement.strip())] for text in texts]


MIGRATIONS: Final = _migrations()
GENERATED: Final = "folded"
"""The columns that PostgreSQL fills itself."""

BUSY_SECONDS: Final = 60.0
"""How long a writer waits for other writers. Transactions take microseconds: only a process that was stopped inside
one makes others wait so long."""

_LOST: Final = ("08", "25006", "57P01", "57P02", "57P03", "57P05")
"""The first characters of the SQLSTATEs after which a connection is of no use: connection exceptions, a server that
only reads, shutdown by an administrator, crash of another backend, start or stop in progress, idle for too long.
https://www.postgresql.org/docs/current/errcodes-appendix.html"""
_REFUSED: Final = ("too many c", "connection slots", "starting up")
"""Parts of what a server says that takes no connection for now; libpq hands on no SQLSTATE of it."""

_PRAGMAS: Final = {
    "synchronous": "normal",  # first: the change of the mode of a new file syncs, too
    "journal_mode": "wal",
    "foreign_keys": "off",
    # Pages of the log before it is copied into the database. SQLite's default is 1000; with a bigger log, pages that
    # change with every step are copied and synced four times less often. 16 MB at most.
    "wal_autocheckpoint": 4000,
    "temp_store": "memory",
}
_DIALECTS: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "{blob}": "blob",
        "{clustered}": " WITHOUT ROWID",
        "{locked}": "",
        "{searched}": ", stack, pipeline, tags",
        "{like}": "LIKE",
        "{postgresql}": "-- ",
        "{name_has}": "name LIKE ? ESCAPE '!'",
    },
    "postgresql": {
        "{blob}": "bytea",
        "{clustered}": "",
        "{locked}": " FOR SHARE",
        "{searched}": "",
        "{like}": "ILIKE",
        "{postgresql}": "",
        "{name_has}": "strpos(folded, (SELECT lower(?::text))) > 0",
    },
}
"""placeholder → its SQL. `{clustered}`: the table is its primary key's index. `{locked}`: the rows of a query do not
change until the transaction ends; in SQLite, a transaction that may write is the only one anyway. `{searched}`: columns
of an index that are only read where it is searched. `{like}`: ignores case. `{postgresql}`
stands before a statement that only PostgreSQL has. `{name_has}`: whether a name has a part
(`Database.name_part`) in any case; in PostgreSQL, where ILIKE takes five times as long, by the column of names in lower
case."""
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
        self._open: list[_Opened] = []
        # Without it, every process would end with a ResourceWarning of Python 3.13.
        weakref.finalize(self, _close, self._open, lambda thread: thread is threading.current_thread())
        self._place: tuple[int, int] | None = None
        self._errors = self._driver_errors()
        # A store of somebody else, or on a disk that is mounted to be read.
        self.read_only = bool(self.path) and is_read_only(self.path)
        if self.path and not self.read_only:
            _make_folder(self.path)
        try:
            self._migrate_when_admitted()
        except BaseException:  # also an interrupt leaves no connection open
            self.close()
            raise

    def sql(self, statement: str) -> str:
        """A statement in the dialect of this database; `?` stands for a value and must not occur otherwise."""
        for placeholder, sql in _DIALECTS[self.dialect].items():
            statement = statement.replace(placeholder, sql)
        return statement if self.dialect == "sqlite" else statement.replace("?", "%s")

    def name_part(self, text: str) -> str:
        """The value of `{name_has}` for a text."""
        return containing(text) if self.dialect == "sqlite" else text

    def cursor(self) -> Any:
        """A DB-API cursor of this thread's connection, outside any transaction."""
        local = self._local
        if getattr(local, "pid", 0) != os.getpid():
            self._connect()
        return local.connection.cursor()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row of a query."""
        rows: list[tuple[Any, ...]] = self._read(statement, values, methodcaller("fetchall"))
        return rows

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query."""
        row: tuple[Any, ...] | None = self._read(statement, values, methodcaller("fetchone"))
        return row

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement that may be executed twice, and return the number of rows that it changed."""
        try:
            cursor = self._executed(statement, values)
            count: int = cursor.rowcount
        except self._errors as error:
            self.fail(error)
        return count

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor whose changes are committed all together or not at all."""
        try:
            cursor = self.begin()
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:  # also an interrupt ends the transaction
                self.rollback(cursor)
                raise
        except self._errors as error:
            self.fail(error)

    def begin(self) -> Any:
        """A cursor in a transaction that may write from its first statement on."""
        # SQLite's plain BEGIN takes the write lock late, and a transaction that read before then fails at once.
        return self._executed("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")

    def _read(self, statement: str, values: Sequence[Any], fetch: Callable[[Any], Any]) -> Any:
        """What `fetch` returns of a query; read again where the database changed under a connection that must not."""
        while True:
            try:
                result = fetch(self._executed(statement, values))
            except self._errors as error:
                if self.read_only and self._is_outdated():
                    continue
                self.fail(error)
            if not self.read_only or not self._is_outdated():
                return result

    def _executed(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """A cursor that has executed a statement, on a new connection where the server had closed this thread's."""
        cursor = self.cursor()
        try:
            cursor.execute(statement, values)
        except self._errors as error:
            if not self._is_lost(error):
                raise
            self._forget_connection()
            cursor = self.cursor()
            cursor.execute(statement, values)
        return cursor

    def _is_lost(self, error: BaseException) -> bool:
        """Whether an error means that this thread's connection cannot be used any more."""
        if self.dialect == "sqlite":
            return False
        import psycopg

        connection = getattr(self._local, "connection", None)
        state = getattr(error, "sqlstate", None)
        if state is None and isinstance(error, psycopg.OperationalError):
            # It is libpq's own: every error of a server has a state. A connection that is lost inside of a pipeline, as
            # `executemany` uses one, stays open and in it: "cannot exit pipeline mode while busy".
            return True
        return getattr(connection, "closed", False) or (state or "").startswith(_LOST)

    def _forget_connection(self) -> None:
        """Close this thread's connection; the next use opens another."""
        self._local.pid = 0
        self._local.connection.close()

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
        if self._is_lost(error):
            self._forget_connection()
            raise self._store_error(error, DatabaseUnreachable) from error
        raise self._store_error(error) from error

    def close(self) -> None:
        """Close every thread's connection; the next use opens the database again."""
        with self._lock:
            self._local = threading.local()
            _close(self._open, lambda thread: True)

    def integrity(self) -> str:
        """What SQLite finds wrong with its file, in its words; empty where nothing is, and for a server's database."""
        if self.dialect != "sqlite":
            return ""
        lines = [str(line) for (line,) in self.rows("PRAGMA integrity_check(5)")]
        return "" if lines == ["ok"] else "; ".join(lines)

    def check_place(self) -> None:
        """Raise `StoreError` if the database file is not the one that was opened.

        SQLite goes on with a file that was deleted, and what it writes is gone when the process ends.
        """
        if self._place is None:
            return
        try:
            status = os.stat(self.path)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._place:
            raise StoreError(
                f"the database {self.path} was removed, replaced or unmounted while it was in use",
                fix="mount it again, or start the run again: what was recorded since then is lost",
            )

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
        if self.read_only:
            return self._open_for_reading()
        if self.dialect == "sqlite":
            return _sqlite_connection(self.path)
        import psycopg

        from stoker.store.postgres import open_connection

        try:
            return open_connection("postgresql://" + self.uri.partition("://")[2])
        except psycopg.OperationalError as error:
            raise self._store_error(error, DatabaseUnreachable) from error

    def _open_for_reading(self) -> Any:
        """A connection that writes nothing beside the file."""
        connection, self._local.state = reading_connection(self.path)
        return connection

    def _is_outdated(self) -> bool:
        """Whether this thread reads a database as it was, and it has changed; the next use opens it again."""
        state = getattr(self._local, "state", None)
        if state is None or state == state_of(self.path):
            return False
        self._local.pid = 0
        return True

    def _connect(self) -> None:
        """Open this thread's connection; close those of threads that have ended."""
        with self._lock:
            _close(self._open)
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
            if self.path and self._place is None:
                status = os.stat(self.path)
                self._place = status.st_dev, status.st_ino
            self._local.connection = connection
            self._local.pid = os.getpid()
            self._open.append((self._local.pid, threading.current_thread(), connection))

    def _migrate_when_admitted(self) -> None:
        """Migrate the schema over the first connection, for which a server that is full is asked for a while."""
        end = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._migrate()
                return
            except DatabaseUnreachable as error:
                if time.monotonic() > end or not any(words in error.message for words in _REFUSED):
                    raise
            time.sleep(0.1 + os.urandom(1)[0] / 256)  # drivers that start together ask at different moments

    def _migrate(self) -> None:
        """Migrate the schema to this version, exactly once even if many processes try."""
        version = self._version()
        if version == len(MIGRATIONS):
            return
        if self.read_only:
            raise StoreError(
                f"the store {self.label} has schema version {version}, this Stoker reads version {len(MIGRATIONS)}: it "
                "must be migrated, and may only be read here",
                fix="let its owner run `stoker runs` with this version of Stoker, which migrates it",
            )
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
                for statement in map(self.sql, statements):
                    if not statement.startswith("--"):
                        cursor.execute(statement)
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

    def _store_error(self, error: BaseException, kind: type[StoreError] = StoreError) -> StoreError:
        text = " ".join(str(error).split())
        for words, message, fix in _ERRORS:
            if words in text or (kind is DatabaseUnreachable and words == "connection"):
                return kind(f"{self.label}: {message} ({text})", fix=fix)
        return kind(f"{self.label}: {text}")


_Opened: TypeAlias = "tuple[int, threading.Thread, Any]"
"""A connection, and the process and the thread that opened it."""
_FORKED: Final[list[Any]] = []
"""Connections that a fork copied, referenced here so that they are never closed in this process."""


def _close(opened: list[_Opened], unused: Callable[[threading.Thread], bool] = lambda thread: False) -> None:
    """Close the connections of threads that have ended, and of those that are `unused`; the others stay in the list.

    A connection must not be used after a fork, not even closed: the parent process still uses it.
    """
    in_use = []
    for pid, thread, connection in opened:
        if pid != os.getpid():
            _FORKED.append(connection)
        elif thread.is_alive() and not unused(thread):
            in_use.append((pid, thread, connection))
        else:
            connection.close()
    opened[:] = in_use


_ERRORS: Final[Iterable[tuple[str, str, str]]] = (
    (
        "read-only transaction",
        "the database server takes no writes",
        "name every server of its cluster, as postgresql://user@host1,host2/name?target_session_attrs=read-write",
    ),
    *(
        (words, "the database server has no connection left", "raise its max_connections: each driver holds one or two")
        for words in ("too many c", "connection slots")
    ),
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
    """Create the folder of a database file, and the file: SQLite would let everybody read it."""
    try:
        make_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.close(create_file(path, os.O_RDWR | os.O_EXCL))
    except OSError as error:
        raise StoreError(f"the folder of {path} cannot be made: {error}", fix="choose another home") from error


def _sqlite_connection(path: str) -> Any:
    """A connection to a file, with the pragmas set."""
    import sqlite3

    # Connections of threads that have ended are closed by the next thread that opens one, hence check_same_thread.
    # Without an isolation level, Python begins no transaction of its own.
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    # A cell that is no UTF-8 spoils one value, not every query that returns its row.
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
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


State = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of change of the pages and of the log; None for a file that is not there."""
_COPIES: Final = 20
"""How often a database is copied that changes while it is being copied."""


def is_read_only(path: str) -> bool:
    """Whether a database file exists that this process may not write, or beside which it may make no files."""
    if not os.path.exists(path):
        return False
    return not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK | os.X_OK))


def state_of(path: str) -> State:
    """The state of a database's pages and log."""
    return tuple(_file_state(path + suffix) for suffix in ("", "-wal"))


def reading_connection(path: str) -> tuple[Any, State | None]:
    """A connection to a database that may only be read.

    The state is that of the files when they were read as they were then; None if the connection sees what is written.
    """
    import sqlite3

    log = _file_state(path + "-wal")
    if log is not None and os.path.exists(path + "-shm"):
        connection = _connect(path, "mode=ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection, None
        except sqlite3.OperationalError:  # the index cannot be read
            connection.close()
    state = state_of(path)
    if log is None or not log[1]:
        return _connect(path, "mode=ro&immutable=1"), state
    return _copied(path)


def _copied(path: str) -> tuple[Any, State]:
    """A connection to a private copy of the pages and the log, which has no name any more."""
    import shutil
    import sqlite3
    import tempfile

    with tempfile.TemporaryDirectory(prefix="stoker-read-") as folder:
        copy = os.path.join(folder, "copy.db")
        for _ in range(_COPIES):
            state = state_of(path)
            shutil.copyfile(path, copy)
            if state[1] is not None:
                shutil.copyfile(path + "-wal", copy + "-wal")
            if state == state_of(path):
                break
        else:
            raise sqlite3.OperationalError("unable to open database file: it changes too often to be copied")
        connection = _connect(copy, "mode=rw")
        try:
            # Moves the log's pages into the file, so that the connection needs no other one.
            connection.execute("PRAGMA journal_mode = delete").fetchone()
            connection.execute("PRAGMA query_only = on")
        except BaseException:  # also an interrupt leaves no connection open
            connection.close()
            raise
        return connection, state


def _connect(path: str, options: str) -> Any:
    import sqlite3

    uri = f"file:///{quote(path.lstrip('/'))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=60.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA temp_store = memory")
    return connection


def _file_state(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def containing(text: str) -> str:
    """The pattern of LIKE, with "!" before what stands for itself, that finds a text anywhere."""
    for character in "!%_":
        text = text.replace(character, f"!{character}")
    return f"%{text}%"
