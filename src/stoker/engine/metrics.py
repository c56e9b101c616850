"""Keeps what steps log of themselves: collects rows, and writes a piece of each attempt every second or so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Iterable

from stoker.core.errors import DatabaseUnreachable, StoreError
from stoker.core.metrics import MetricBook, Row, book_of
from stoker.store.batch import RowBatch
from stoker.store.records import Records

if TYPE_CHECKING:
    from typing import TypeAlias

    Attempt: TypeAlias = "tuple[str, int]"

EVERY: Final = 1.0
"""Seconds between two pieces of an attempt that runs."""
JOIN: Final = 64
"""Pieces of an attempt that are joined: a training of days would have a hundred thousand."""


class RunMetrics:
    """What the attempts of one run logged and the store does not have yet."""

    def __init__(self, records: Records, run: str) -> None:
        self._records = records
        self._run = run
        self._books: dict[Attempt, MetricBook] = {}
        self._pieces: dict[Attempt, int] = {}
        self._write_at: dict[Attempt, float] = {}

    def add(self, key: str, attempt: int, rows: Iterable[Row]) -> None:
        """Add rows of an attempt."""
        self._books.setdefault((key, attempt), MetricBook()).add(rows)

    def write(self, batch: RowBatch) -> None:
        """Add to the batch a piece of each attempt whose last one is old enough."""
        now = time.monotonic()
        for key, attempt in [one for one in self._books if self._write_at.get(one, 0.0) <= now]:
            self._write_at[key, attempt] = now + EVERY
            self._write(key, attempt, batch)

    def end(self, key: str, attempt: int, batch: RowBatch) -> None:
        """Add to the batch all that remains of an attempt that is over."""
        if (key, attempt) in self._books:
            self._write(key, attempt, batch)
        self._pieces.pop((key, attempt), None)
        self._write_at.pop((key, attempt), None)

    def _write(self, key: str, attempt: int, batch: RowBatch) -> None:
        data = self._books.pop((key, attempt)).packed()
        piece = self._pieces[key, attempt] = self._pieces.get((key, attempt), 0) + 1
        if piece % JOIN == 0:
            self._join(key, attempt, batch)
        batch.metric_piece(self._run, key, attempt, piece, data)

    def _join(self, key: str, attempt: int, batch: RowBatch) -> None:
        """Join the pieces that the store has. While it is away, and where one cannot be read, they stay as they are."""
        try:
            pieces = self._records.metric_pieces(self._run, key, attempt)
            book = MetricBook()
            for _, data in pieces:
                book.merge(book_of(data))
        except (DatabaseUnreachable, StoreError):
            return
        if len(pieces) > 1:
            batch.join_metrics(self._run, key, attempt, pieces[-1][0], book.packed())
