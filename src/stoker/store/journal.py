"""A file of rows that the database of a run has not got yet, beside the run's driver.

Each line is one transaction, in order: a checksum, a space, and a JSON document. A line is synced before `append`
returns. A driver that dies while it writes leaves a line that is cut, which is left out when the file is read, like
everything behind a damaged line.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import zlib
from typing import Any, Final, Mapping

import attrs

from stoker.core.errors import StoreError
from stoker.core.values import frozen
from stoker.store.access import create_file, make_folders
from stoker.store.logs import file_name
from stoker.store.records import RowBatch

log = logging.getLogger(__name__)

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
                log.warning("the journal %s is damaged: its last %d entries are left out", self.path, left)
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
