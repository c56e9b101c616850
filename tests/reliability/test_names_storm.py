"""A sample of the storm on names (`make storm-names`): processes that name things are killed, and so is PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.reliability import names_storm
from tests.servers import postgres

from stoker.store.store import open_store

SAMPLE: dict[str, Any] = {"processes": 4, "each": 30, "kills": 3, "drivers": 1}
LONG: dict[str, Any] = {"processes": 20, "each": 150, "kills": 60, "drivers": 10}


def test_a_sample_on_sqlite(tmp_path: Path, long_form: bool) -> None:
    result = names_storm.storm(tmp_path, seed=1, **(LONG if long_form else SAMPLE))
    assert not result.problems, "\n".join(result.problems)
    assert result.killed and result.versions > 20 and result.promotions > 5
    # What nothing may bring about is found.
    store = open_store(home=str(tmp_path / "home"))
    notes = [note for path in tmp_path.glob("notes-*") for note in names_storm.notes_in(path)]
    assert names_storm.wrong(store, notes) == []
    change = store.records.database.change
    rows = {(row.name, row.version) for row in store.registry.all_artifacts()}
    places = [(note["name"], note["version"]) for note in notes if note.get("did") == "save" and "name" in note]
    name, version = next(place for place in places if place in rows)
    change("UPDATE artifacts SET version = 9999 WHERE name = ? AND version = ?", (name, version))
    change("INSERT INTO promotions VALUES ('m', 9999, 1, 'nowhere', 'staging', 9999, 1.0, 'ann', 'twice', '')")
    wrong = "\n".join(names_storm.wrong(store, notes))
    assert f"{(name, version)} was saved and is gone" in wrong
    assert f"{name}@{version} is gone and is in marks" in wrong
    assert "promotions of m have the numbers" in wrong and ") displaced [" in wrong and "follows a stage" in wrong
    store.close()


@pytest.mark.xdist_group("postgresql-restarts")
@pytest.mark.long
def test_the_storm_on_postgresql(tmp_path: Path) -> None:
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    server = postgres.Server(programs, connections=200)
    try:
        server.start()
        result = names_storm.storm(tmp_path, seed=2, server=server, outages=8, **LONG)
    finally:
        server.kill()
    assert not result.problems, "\n".join(result.problems)
    assert result.versions > 20 and result.promotions > 5
