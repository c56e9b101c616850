"""Opens a SQLite database that may only be read: somebody else's, or one on a disk that is mounted to be read.

A database in WAL mode is three files: the pages, the log of newer pages (`-wal`) and an index of it in shared memory
(`-shm`). While a writer lives all three exist, and SQLite reads them without writing if it may read them. A writer that
ends leaves the first alone; SQLite would make the others to read it, and fails where it may not: `immutable` tells it
that nobody writes. That is wrong as soon as somebody does, so what was read is thrown away if the files have changed
meanwhile, and read again. A writer that was killed leaves a log without an index, or an index that may not be read:
then the first two are copied, and the copy is read.
"""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import quote

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
