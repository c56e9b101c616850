"""Writes the rows of one run, and keeps them in a journal while the database's server is away.

The rows of each call are one transaction, and all transactions reach the database in the order of the calls. A
transaction may be written twice, where a connection was lost during its COMMIT: `Records` replaces a row by itself
then. A server is looked for at growing intervals, for as long as the store's patience lasts.

Each line of the journal, a file beside the run's driver, is one transaction, in order: a checksum, a space, and a JSON
document. A line is synced before `append` returns. A driver that dies while it writes leaves a line that is cut, which
is left out when the file is read, like everything behind a damaged line.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections import deque
from typing import Any, Callable, Final, Mapping, TypeVar

import attrs

from stoker.core.errors import DatabaseUnreachable, StoreError
from stoker.core.units import duration_text
from stoker.core.values import frozen
from stoker.store.access import create_file, make_folders
from stoker.store.batch import RowBatch
from stoker.store.logs import file_name
from stoker.store.records import Records
from stoker.store.store import Store

VERSION: Final = 1
"""The version of the lines. A journal of another version is refused."""
_BYTES: Final = "base64"
"""The only key of an object that stands for bytes; no column holds an object, since JSON columns are texts."""


@frozen(kw_only=True)
class JournalEntry:
    """One transaction."""

    token: str
    """That of the driver; the database takes the entry only while the token holds the run."""
    batch: RowBatch = attrs.field(factory=RowBatch)
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    """Columns of the run's own row."""


class RunJournal:
    """The journal of one run, in the folder `journals` of a store's home. Its file exists while it has entries."""

    def __init__(self, home: str, run: str) -> None:
        self.path = os.path.join(home, "journals", file_name(run) + ".jsonl")
        self._damaged = False

    def append(self, entry: JournalEntry) -> None:
        """Add an entry; it is on the disk when this returns. `StoreError` where the disk does not take it."""
        document = {"version": VERSION, "token": entry.token, "fields": entry.fields, "rows": entry.batch.as_dict()}
        line = json.dumps(document, separators=(",", ":"), default=_bytes_document).encode()
        try:
            make_folders(os.path.dirname(self.path))
            descriptor = create_file(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                _write_whole(descriptor, b"%08x %s\n" % (zlib.crc32(line), line))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(
                f"the database is away, and its journal {self.path} cannot be written: {error}",
                fix="free space on its disk, then `stoker resume` the run",
            ) from error

    def entries(self) -> list[JournalEntry]:
        """Every whole entry in order; none where there is no file. `StoreError` for a file of another version."""
        try:
            with open(self.path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"the journal {self.path} cannot be read: {error}", fix="check its permissions") from error
        entries: list[JournalEntry] = []
        for line in lines[:-1]:
            checksum, _, text = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                left = len(lines) - 1 - len(entries)
                import logging

                logging.getLogger(__name__).warning(
                    "the journal %s is damaged: its last %d entries are left out", self.path, left
                )
                self._damaged = True
                break
            document = json.loads(text, object_hook=_bytes_of)
            if document["version"] != VERSION:
                raise StoreError(
                    f"the journal {self.path} has version {document['version']}; this Stoker knows version {VERSION}",
                    fix="resume the run with the version of Stoker that started it",
                )
            batch = RowBatch.from_dict(document["rows"])
            entries.append(JournalEntry(token=document["token"], batch=batch, fields=document["fields"]))
        return entries

    def exists(self) -> bool:
        """Whether a driver left a journal of the run."""
        return os.path.exists(self.path)

    def delete(self) -> None:
        """Remove the file: the database has all of it, or will take none of it. One that was found to be damaged is
        kept beside, since nobody else has what is in it."""
        try:
            if self._damaged:
                os.replace(self.path, f"{self.path}.damaged")
            else:
                os.unlink(self.path)
        except FileNotFoundError:
            pass


def _write_whole(descriptor: int, line: bytes) -> None:
    """Write all of a line; what a full disk took of it is removed again, so that the next line does not join it."""
    size = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _bytes_document(value: Any) -> dict[str, str]:
    return {_BYTES: base64.b64encode(bytes(value)).decode("ascii")}


def _bytes_of(document: dict[str, Any]) -> Any:
    return base64.b64decode(document[_BYTES]) if document.keys() == {_BYTES} else document


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
