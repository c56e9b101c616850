"""An open store in a folder of its own, and the rows' queries on every database there is.

They run on a PostgreSQL server that is started for them (or on the one that TEST_POSTGRES names); each test gets its
own schema.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import postgres

from stoker.store.blobs import Blobs
from stoker.store.database import Database
from stoker.store.records import Records
from stoker.store.store import Store, open_store


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """A PostgreSQL server for the whole session."""
    given = os.environ.get("TEST_POSTGRES")
    if given:
        yield given
        return
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    with postgres.running(programs) as uri:
        yield uri


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A fresh store."""
    opened = open_store(home=str(tmp_path / "home"))
    yield opened
    opened.close()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """A fresh artifact store."""
    return Blobs(str(tmp_path / "artifacts"))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        opened = Database(f"sqlite://{tmp_path}/stoker.db")
        yield opened
        opened.close()
        return
    uri = request.getfixturevalue("postgres_uri")
    import psycopg

    schema = f"test_{os.urandom(6).hex()}"
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        opened = Database(f"{uri}?options=-csearch_path%3D{schema}")
        yield opened
        opened.close()
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def records(database: Database) -> Records:
    """The queries on a fresh database of each kind."""
    return Records(database)
