"""Runs whose driver has not begun: they can be ended by anybody, and by one only."""

from __future__ import annotations

import os
import time
from typing import Final

from stoker.store.database import Database

PLACE: Final = "place"
"""In a row's `driver` document: where the driver is to begin, in words; who begins writes a document without it."""
OUTPUT: Final = "output"
"""The file that such a driver writes to."""


def cancel(database: Database, run: str, *, token: str) -> bool:
    """End a run that still has this token; the driver that comes later finds another one. False if it was first."""
    statement = "UPDATE runs SET token = ?, status = 'cancelled', ended = ? WHERE id = ? AND token = ? "
    values = (os.urandom(8).hex(), time.time(), run, token)
    return database.change(database.sql(statement + "AND status = 'running'"), values) == 1
