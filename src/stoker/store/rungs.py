"""What steps that ran out of memory got by with: read when such a step starts again, written when one worked.

Advice, not fact: a run's rows say what happened, so that no driver's token guards these.
"""

from __future__ import annotations

from typing import Final

from stoker.store import rows
from stoker.store.database import Database
from stoker.store.rows import RungRow

_NAMES: Final = ", ".join(rows.RUNGS.columns)
_MARKS: Final = ", ".join("?" * len(rows.RUNGS.columns))
_CHANGES: Final = ", ".join(f"{name} = excluded.{name}" for name in rows.RUNGS.columns[1:])


class Rungs:
    """The queries of one table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def found(self, key: str) -> RungRow | None:
        """What worked for the request that the key stands for."""
        row = self._database.row(self._database.sql(f"SELECT {_NAMES} FROM rungs WHERE key = ?"), (key,))
        return None if row is None else rows.RUNGS.row_of(row)

    def learn(self, row: RungRow) -> None:
        """Remember what worked, in place of what worked before."""
        statement = f"INSERT INTO rungs ({_NAMES}) VALUES ({_MARKS}) ON CONFLICT (key) DO UPDATE SET {_CHANGES}"
        self._database.change(self._database.sql(statement), rows.RUNGS.tuple_of(row))

    def forget(self, key: str) -> None:
        """The request worked as it is."""
        self._database.change(self._database.sql("DELETE FROM rungs WHERE key = ?"), (key,))
