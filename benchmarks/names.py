"""How long lists of many named artifacts take: `python -m benchmarks.names N`.

Prints a line of JSON: the milliseconds of each query in a store with N names, of which half have a tag, and of the
slowest; the best of several times each, because other work on the machine only makes them slower. The store is SQLite's
below `STOKER_HOME`, or the database of PostgreSQL that `BENCH_POSTGRES` names; an empty one is filled.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, Mapping

from stoker.store.database import Database
from stoker.store.registry import Names

QUERIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "page": {},
    "search": {"text": "no such name"},
    "tag": {"tag": "half"},
    "tag_search": {"tag": "half", "text": "no such name"},
    "offset": {"offset": 0.9},
    "tag_offset": {"tag": "half", "offset": 0.4},
}
"""What is asked for; an offset is a part of the names."""
_COLUMNS: Final = (
    "name, version, digest, serializer, type, size, meta, inline, created, author, run_id, key, output, token"
)
_TIMES: Final = 15


def fill(database: Database, count: int) -> None:
    """Give a database versions of `count` names: every tenth has several, every second the tag "half"."""
    names = [(f"team-{number % 7}/artifact-{number:06d}", number) for number in range(count)]
    versions = [
        (name, version, f"{number:064x}", "json", "builtins.int", 8, "", b"1", 1e9 + number, "bench", "", "", "", "")
        for name, number in names
        for version in range(1, 6 if number % 10 == 0 else 2)
    ]
    with database.transaction() as cursor:
        for table, rows in (
            ("artifact_names (name, changed, gone)", [(name, 1e9 + number, 0) for name, number in names]),
            (f"artifacts ({_COLUMNS})", versions),
            ("marks (kind, name, version, mark)", [("artifact", name, 1, "half") for name, number in names[1::2]]),
        ):
            values = f"VALUES ({', '.join('?' * len(rows[0]))})"
            cursor.executemany(database.sql(f"INSERT INTO {table} {values}"), rows)
    for table in ("artifact_names", "artifacts", "marks"):
        database.rows(f"ANALYZE {table}") if database.path else database.change(f"VACUUM ANALYZE {table}")


def main() -> None:
    """Ask every query."""
    count = int(sys.argv[1])
    uri = os.environ.get("BENCH_POSTGRES") or f"sqlite://{Path(os.environ['STOKER_HOME']) / 'stoker.db'}"
    database = Database(uri)
    names = Names(database)
    if not names.artifacts(limit=1):
        fill(database, count)
    found = {}
    for query, asked in QUERIES.items():
        seconds = []
        for _ in range(_TIMES):
            begin = time.perf_counter()
            names.artifacts(**{**asked, "offset": int(count * asked.get("offset", 0))})
            seconds.append(time.perf_counter() - begin)
        found[query] = min(seconds) * 1000
    print(json.dumps({**found, "slowest": max(found.values())}))
    database.close()


if __name__ == "__main__":
    main()
