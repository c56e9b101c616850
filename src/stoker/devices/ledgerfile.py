"""The ledger's file: transactions on it, and making it anew where it is missing or damaged.

It must not know what its rows mean. The folder is writable for everyone and not sticky. In a sticky one SQLite cannot
take away the journal that another user's crashed process left (tried: "disk I/O error" for everyone until that user
comes back), and Linux with `fs.protected_regular` lets nobody open another user's files for creating, as SQLite opens
journals. Whoever may write a ledger that all users share can spoil it in either case.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, Callable, Final, Iterator, TypeVar

from stoker.core.errors import BackendError

T = TypeVar("T")

VARIABLE: Final = "STOKER_LEASES"
VERSION: Final = 1
"""Of the tables. A Stoker that knows another one must not guess, and refuses."""

BUSY_SECONDS: Final = 30.0
"""How long a writer waits for others; a transaction takes a millisecond, so this is met when one was stopped inside."""

_TABLES: Final = (
    """CREATE TABLE tickets (
        number INTEGER PRIMARY KEY AUTOINCREMENT, ticket TEXT NOT NULL UNIQUE, claim TEXT NOT NULL, view TEXT NOT NULL,
        memory INTEGER NOT NULL, run TEXT NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL, pid INTEGER NOT NULL,
        started REAL NOT NULL, birth TEXT NOT NULL, devices TEXT NOT NULL,
        CHECK (typeof(memory) || typeof(attempt) || typeof(pid) || typeof(started) = 'integerintegerintegerreal'),
        CHECK (typeof(ticket) || typeof(claim) || typeof(birth) || typeof(devices) = 'texttexttexttext'))""",
    "CREATE TABLE views (view TEXT PRIMARY KEY, devices TEXT NOT NULL CHECK (typeof(devices) = 'text'))",
    f"PRAGMA user_version = {VERSION}",
)
"""`devices` of a ticket: UUIDs, none while it waits. A view: the devices that a ticket's holder sees, as JSON. The
checks keep out what a damaged file may tell."""

_LOG: Final = logging.getLogger(__name__)


def change(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """What some work in a transaction of its own returns; a ledger that is missing or damaged is begun anew."""
    with _explained(path):
        try:
            return _transaction(path, work)
        except (FileNotFoundError, sqlite3.DatabaseError) as error:
            if not _is_damage(error):
                raise
            _mend(path)
        return _transaction(path, work)


def _transaction(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """What some work returns, all of it kept or nothing. One connection each time: none to lose by a fork."""
    if not path.exists():
        raise FileNotFoundError(path)
    # mode=rw: SQLite would make a missing file, for this user alone.
    with contextlib.closing(_opened(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise sqlite3.DatabaseError("the file has no tables")
        if version != VERSION:
            raise BackendError(
                f"the ledger of devices {path} has version {version}; this Stoker knows version {VERSION}",
                fix=f"use one version of Stoker on this machine, or set {VARIABLE} to another folder: "
                "the two will then not know of each other's devices",
            )
        result = work(connection)
        connection.execute("COMMIT")
        return result


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    # Nothing here need survive the machine's end: no holder does. The death of processes is survived without syncing.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _is_damage(error: Exception) -> bool:
    # SQLite's own word for it is the plain class; its subclasses are locks, rights and full disks.
    return isinstance(error, FileNotFoundError) or type(error) is sqlite3.DatabaseError


def _mend(path: Path) -> None:
    """Make the ledger where it is missing; move a damaged one aside and begin anew with what it still tells.

    Nobody waits for a person: whatever can be read of living holders goes along, and what cannot be read was at most
    the lease of a step whose processes are on its devices, which are passed over as somebody else's until it ends.
    """
    _make_folder(path.parent)
    with _alone(path.parent):
        if path.exists() and _is_sound(path):
            return
        found = _salvaged(path) if path.exists() else []
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix="new-")
        os.fchmod(descriptor, 0o666)
        os.close(descriptor)
        with contextlib.closing(_opened(Path(fresh))) as connection:
            for statement in _TABLES:
                connection.execute(statement)
            for table, row in found:
                connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        if path.exists():
            aside = path.with_suffix(".damaged")
            # Its journal belongs to it: SQLite must not play it into the new one.
            for end in ("-journal", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{end}", f"{aside}{end}")
            _LOG.warning("the ledger of devices %s was damaged; %s rows were saved, see %s", path, len(found), aside)
        os.replace(fresh, path)


def _make_folder(folder: Path) -> None:
    """The folder, writable for everyone from the first moment; one that somebody has made stays as it is."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = tempfile.mkdtemp(dir=folder.parent, prefix=folder.name)
    os.chmod(fresh, 0o777)
    try:
        os.rename(fresh, folder)
    except OSError:
        os.rmdir(fresh)
        if not folder.is_dir():
            raise


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time makes or mends; the lock goes with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_sound(path: Path) -> bool:
    try:
        found = _transaction(path, lambda connection: connection.execute("PRAGMA quick_check(1)").fetchone())
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return False
        raise
    return bool(found == ("ok",))


def _salvaged(path: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """(table, row) of whatever a damaged ledger still tells."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_opened(path)) as connection:
        for table in ("views", "tickets"):
            with contextlib.suppress(sqlite3.Error):
                for row in connection.execute(f"SELECT * FROM {table}"):
                    found.append((table, row))
    return found


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = " ".join(str(error).split())
        fix = f"set {VARIABLE} to a folder that every user of this machine may write to"
        if "locked" in text:
            fix = "another process has held it for half a minute: end it, it may be stopped inside a transaction"
        elif "full" in text or "No space" in text:
            fix = f"free space on its disk, or set {VARIABLE} to a folder on another one"
        raise BackendError(f"the ledger of devices {path} cannot be used: {text}", fix=fix) from error
