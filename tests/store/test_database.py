"""Opening: fresh, old, newer, damaged, from many processes and threads at once, and after a fork."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker.core.errors import MissingPackage, StoreError
from stoker.store import database as module
from stoker.store.database import MIGRATIONS, Database


def opened(path: Path) -> Database:
    return Database(f"sqlite://{path}")


def test_a_fresh_database_has_the_newest_schema_in_wal_mode(tmp_path: Path) -> None:
    database = opened(tmp_path / "new" / "stoker.db")
    assert database.row("SELECT max(version) FROM stoker_schema") == (len(MIGRATIONS),)
    assert database.row("PRAGMA journal_mode") == ("wal",)
    assert database.row("PRAGMA synchronous") == (1,)
    assert database.row("PRAGMA busy_timeout") == (60_000,)
    database.close()


def test_a_newer_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    database = opened(tmp_path / "x.db")
    database.change("INSERT INTO stoker_schema VALUES (99, 0)")
    database.close()
    with pytest.raises(StoreError, match=rf"version 99.*versions up to {len(MIGRATIONS)}") as caught:
        opened(tmp_path / "x.db")
    assert "upgrade" in caught.value.fix


def test_an_older_schema_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path / "x.db").close()
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE later (x {blob})",)))
    database = opened(tmp_path / "x.db")
    assert database.rows("SELECT x FROM later") == []
    assert database.row("SELECT max(version) FROM stoker_schema") == (len(MIGRATIONS) + 1,)
    database.close()


def test_a_migration_that_fails_leaves_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path / "x.db").close()
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE later (x text)", "no such statement")))
    with pytest.raises(StoreError, match="syntax error"):
        opened(tmp_path / "x.db")
    monkeypatch.undo()
    database = opened(tmp_path / "x.db")
    assert database.row("SELECT count(*) FROM sqlite_master WHERE name = 'later'") == (0,)
    database.close()


@pytest.mark.parametrize("content", [b"this is no database, it is a text" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert caught.value.fix
    assert path.read_bytes() == content


def test_a_folder_in_the_place_of_the_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir()
    with pytest.raises(StoreError, match="cannot be opened"):
        opened(tmp_path / "x.db")


def test_a_home_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        opened(tmp_path / "file" / "x.db")


@pytest.mark.parametrize("uri", ["", "x.db", "mysql://host/name", "sqlite://", "sqlite://:memory:"])
def test_an_address_of_another_kind_is_a_store_error(uri: str) -> None:
    with pytest.raises(StoreError, match="not a database that Stoker can open"):
        Database(uri)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreError) as caught:
        Database("mysql://me:geheim@host/name")
    assert "geheim" not in str(caught.value)
    assert "mysql://me@host/name" in str(caught.value)


def test_postgres_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingPackage, match="psycopg") as caught:
        Database("postgresql://host/name")
    assert "stoker[postgres]" in caught.value.fix


def test_a_transaction_happens_all_or_not_at_all(tmp_path: Path) -> None:
    database = opened(tmp_path / "x.db")
    with pytest.raises(ZeroDivisionError), database.transaction() as cursor:
        cursor.execute("INSERT INTO plans VALUES ('a', 'b')")
        raise ZeroDivisionError
    assert database.rows("SELECT * FROM plans") == []
    with pytest.raises(StoreError), database.transaction() as cursor:
        cursor.execute("INSERT INTO plans VALUES ('a', 'b')")
        cursor.execute("INSERT INTO plans VALUES ('a', 'b')")
    assert database.rows("SELECT * FROM plans") == []
    database.close()


def test_threads_have_connections_of_their_own_which_end_with_them(tmp_path: Path) -> None:
    database = opened(tmp_path / "x.db")
    seen: list[object] = []

    def read() -> None:
        seen.append(database.row("SELECT count(*) FROM runs"))

    for _ in range(20):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert seen == [(0,)] * 20
    assert len(database._open) <= 2
    database.close()
    assert database.row("SELECT count(*) FROM runs") == (0,)  # it opens again
    database.close()


def test_a_forked_child_gets_a_connection_of_its_own(tmp_path: Path) -> None:
    database = opened(tmp_path / "x.db")
    child = os.fork()
    if not child:
        status = 1
        try:
            database.change("INSERT INTO plans VALUES ('child', '')")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    database.change("INSERT INTO plans VALUES ('parent', '')")
    assert database.rows("SELECT run_id FROM plans ORDER BY run_id") == [("child",), ("parent",)]
    database.close()


OPEN = """
import sys, time
from stoker.store.database import Database
while time.time() < float(sys.argv[2]): pass
database = Database("sqlite://" + sys.argv[1])
database.change("INSERT INTO plans VALUES (?, '')", (sys.argv[3],))
print(database.row("SELECT count(*) FROM stoker_schema")[0])
database.close()
"""


def test_processes_that_open_a_fresh_database_at_once_migrate_it_once(tmp_path: Path) -> None:
    import time

    path, at = str(tmp_path / "fresh.db"), str(time.time() + 0.5)
    processes = [
        subprocess.Popen([sys.executable, "-c", OPEN, path, at, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(6)
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=60)
        assert (process.returncode, printed.strip()) == (0, str(len(MIGRATIONS)))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM plans").fetchone() == (6,)
    connection.close()


def test_drivers_of_other_databases_are_not_imported_for_sqlite(tmp_path: Path) -> None:
    code = (
        "import sys; from stoker.store.database import Database\n"
        f"Database('sqlite:///{tmp_path}/a.db').close()\n"
        "assert 'psycopg' not in sys.modules, 'it costs 100 ms'\n"
        "assert None not in sys.modules.values(), 'a placeholder breaks the imports of other threads'\n"
        "import psycopg"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_postgres_after_sqlite_in_one_process(tmp_path: Path, postgres_uri: str) -> None:
    code = (
        "import sys; from stoker.store.database import Database\n"
        f"first = Database('sqlite:///{tmp_path}/a.db')\n"
        f"Database('{postgres_uri}').rows('SELECT 1')\n"
        "assert first.rows('SELECT 2') == [(2,)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_nobody_uses_any_more_is_closed(tmp_path: Path) -> None:
    """Python 3.13 warns of connections that end open."""
    database = opened(tmp_path / "stoker.db")
    cursor = database.cursor()
    del database
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        cursor.execute("SELECT 1")
