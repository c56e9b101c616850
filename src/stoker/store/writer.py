"""Writes the rows of one run, and keeps them in a journal while the database's server is away.

The rows of each call are one transaction, and all transactions reach the database in the order of the calls. A
transaction may be written twice, where a connection was lost during its COMMIT: `Records` replaces a row by itself
then. A server is looked for at growing intervals, for as long as the store's patience lasts.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, Callable, Final, TypeVar

from stoker.core.errors import DatabaseUnreachable, StoreError
from stoker.core.units import duration_text
from stoker.store.journal import JournalEntry, RunJournal
from stoker.store.records import Records, RowBatch
from stoker.store.store import Store

T = TypeVar("T")

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
"""Seconds between two looks for a server that is away: the first time, then twice as long each time, up to the
longest. A server with many drivers gets their looks at random moments: each pause is shortened by up to a half."""


class RunWriter:
    """Writes what belongs to one driver's run; for one thread at a time.

    `patience` is how many seconds the server may be away; 0 raises the first error. `report` takes a line for the
    person when the server is lost and when it is back.
    """

    def __init__(
        self,
        store: Store,
        *,
        run: str,
        token: str,
        patience: float = 0.0,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._records = store.records
        self._run = run
        self._token = token
        self._patience = patience
        self._report = report
        self._journal = RunJournal(store.home, run)
        self._waiting: deque[JournalEntry] = deque()
        self._lost_at: float | None = None
        self._pause = FIRST_PAUSE
        self._look_at = 0.0
        self._gave_up = False
        # Whether another driver was seen to hold the run.
        self.is_overtaken = False

    def write(self, batch: RowBatch) -> None:
        """Commit a batch, or keep it in the journal. `StoreError` where another driver has taken the run over."""
        entry = JournalEntry(token=self._token, batch=batch)
        if self._lost_at is None:
            try:
                self._commit(entry)
                return
            except DatabaseUnreachable as error:
                self.lose(error)
        self._keep(entry)

    def end(self, **fields: Any) -> None:
        """Set columns of the run's row at its end, after all that waits; waits for the server."""
        entry = JournalEntry(token=self._token, fields=fields)
        if self._lost_at is None:
            try:
                # A run that another driver has by now keeps that driver's columns.
                self._records.set_run(self._run, self._token, **fields)
                return
            except DatabaseUnreachable as error:
                self.lose(error)
        self._keep(entry)
        while not self._gave_up and not self.look():
            self._sleep()

    def patiently(self, work: Callable[[], T]) -> T:
        """The result of work that needs the database and may be done twice; waits for the server."""
        while True:
            if self.look():
                try:
                    return work()
                except DatabaseUnreachable as error:
                    self.lose(error)
            self._sleep()

    def lose(self, error: DatabaseUnreachable) -> None:
        """Take note that the server is away; raises the error where there is no patience."""
        if self._patience <= 0:
            raise error
        if self._lost_at is not None:
            return
        self._lost_at = time.monotonic()
        self._pause = FIRST_PAUSE
        self._look_at = self._lost_at
        self._report(
            f"the database {self._records.database.label} is away: steps that run go on, and what happens is kept in "
            f"{self._journal.path} for up to {duration_text(self._patience)}"
        )

    @property
    def is_away(self) -> bool:
        """Whether the server was away at the last look."""
        return self._lost_at is not None

    def look(self) -> bool:
        """Whether the database has everything: where it was away and a look is due, write all that waits.

        Raises `StoreError` where another driver has taken the run over, and `DatabaseUnreachable` once the patience is
        over; the journal is kept then.
        """
        if self._lost_at is None:
            return True
        now = time.monotonic()
        if now < self._look_at:
            return False
        try:
            self._records.database.row("SELECT 1")
            self._write_waiting()
        except DatabaseUnreachable as error:
            self._put_off(error, now)
            return False
        self._report(f"the database is back after {duration_text(round(now - self._lost_at))}")
        self._lost_at = None
        return True

    def _put_off(self, error: DatabaseUnreachable, now: float) -> None:
        assert self._lost_at is not None  # called while the server is away
        if now - self._lost_at >= self._patience:
            self._gave_up = True
            place = f"; what happened since is in {self._journal.path}" if self._journal.exists() else ""
            raise DatabaseUnreachable(
                f"{error.message}; it has been away for {duration_text(self._patience)}{place}",
                fix=f"stoker resume {self._run}, once the server is back; `reconnect` of the stack is how long to wait",
            ) from error
        # Random bytes: the module `random` is not needed elsewhere.
        self._look_at = now + self._pause * (0.5 + os.urandom(1)[0] / 512)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _write_waiting(self) -> None:
        while self._waiting:
            self._commit(self._waiting[0])
            self._waiting.popleft()
        self._journal.delete()

    def _commit(self, entry: JournalEntry) -> None:
        if not write_entry(self._records, self._run, entry):
            self._waiting.clear()
            self._journal.delete()
            self._lost_at = None
            raise self.overtaken()

    def overtaken(self) -> StoreError:
        """The error for a run that another driver holds by now."""
        self.is_overtaken = True
        return StoreError(
            f"run {self._run} was taken over by another driver; this one writes nothing more",
            fix=f"see `stoker show {self._run}`: somebody resumed the run while this driver still lived",
        )

    def _keep(self, entry: JournalEntry) -> None:
        self._journal.append(entry)
        self._waiting.append(entry)

    def _sleep(self) -> None:
        time.sleep(max(0.0, self._look_at - time.monotonic()))


def write_entry(records: Records, run: str, entry: JournalEntry) -> bool:
    """Write one entry of a run's journal; False if the entry's token does not hold the run any more."""
    if entry.batch and not records.write(entry.batch, run_id=run, token=entry.token):
        return False
    return not entry.fields or records.set_run(run, entry.token, **entry.fields)


def restore(store: Store, run: str, token: str) -> int:
    """Write the journal that a dead driver of a run left, if the run still has that driver's token, and remove it.

    Returns the number of transactions that were written.
    """
    journal = RunJournal(store.home, run)
    count = 0
    for entry in journal.entries():
        if entry.token != token or not write_entry(store.records, run, entry):
            break
        count += 1
    journal.delete()
    return count
