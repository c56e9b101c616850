"""Copies of a run's logs in the database, where the driver's home is seen by nobody else, such as one in a pod.

The driver sends what its files have grown by (`LogSender`), in numbered pieces. A reader on another machine writes them
into files of its own, in which everything is read as if the run had been driven here (`LogCopies`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import zlib
from pathlib import Path
from typing import Final, Iterator

from stoker.core.errors import DatabaseUnreachable, NotFound, StoreError
from stoker.store.access import create_file, make_folders
from stoker.store.logs import file_name
from stoker.store.records import LogPiece, Records

MARK: Final = ".elsewhere"
"""In the folder of a run's logs: they are copies, and the last piece has this number."""
PAUSE: Final = 2.0
"""Seconds between two looks at the driver's files: a piece is a row."""
LOOK: Final = 1.0
"""Seconds between two looks for further pieces."""
PIECE: Final = 1 << 20
"""Bytes of one piece before it is compressed."""
AT_ONCE: Final = 16
"""Pieces in one transaction."""
TAIL: Final = 256
"""Bytes by which a file is known again that may have been written anew."""


class LogCopies:
    """Brings the logs of runs that are driven elsewhere."""

    def __init__(self, records: Records, folder: str) -> None:
        self._records = records
        self._folder = folder
        self._looked: dict[str, float] = {}

    def bring(self, run: str) -> None:
        """Write what is new of a run's logs, if they are copies; those of a run that was driven here are left alone."""
        folder = Path(self._folder, file_name(run))
        mark = folder / MARK
        now = time.monotonic()
        if now - self._looked.get(run, -LOOK) < LOOK or (folder.is_dir() and not mark.exists()):
            return
        self._looked[run] = now
        if not mark.exists():
            if not self._records.log_pieces(run, after=-1, limit=1):
                return
            self.expect(run)
        with open(mark, "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # further readers of this machine
            last = int(file.read() or -1)
            for piece in self._after(run, last):
                _write(folder / piece.name.lstrip("/"), piece)
                last = piece.number
            file.seek(0)
            file.write(f"{last}\n")
            file.truncate()

    def lag(self, run: str) -> float:
        """Seconds after which what a driver has written by now has come; 0 once the run is over."""
        if not Path(self._folder, file_name(run), MARK).exists():
            return 0.0
        try:
            return 2 * PAUSE if self._records.run(run).status == "running" else 0.0
        except NotFound:  # it was deleted meanwhile
            return 0.0

    def expect(self, run: str) -> None:
        """Take a run's logs for copies from now on."""
        folder = Path(self._folder, file_name(run))
        make_folders(str(folder))
        with contextlib.suppress(FileExistsError):
            os.close(create_file(str(folder / MARK), os.O_WRONLY | os.O_EXCL))

    def restore(self, run: str) -> None:
        """Write the logs of earlier drivers of a run, for one that begins in an empty home."""
        folder = Path(self._folder, file_name(run))
        there = {path.relative_to(folder).as_posix() for path in _files(folder)}
        for piece in self._after(run, -1):
            if piece.name not in there:
                _write(folder / piece.name, piece)

    def _after(self, run: str, last: int) -> Iterator[LogPiece]:
        while pieces := self._records.log_pieces(run, after=last, limit=AT_ONCE):
            yield from pieces
            last = pieces[-1].number


class LogSender:
    """Sends the logs of a run that this process drives, in a thread of its own."""

    def __init__(self, records: Records, folder: str, *, run: str, token: str) -> None:
        self._records = records
        self._folder = Path(folder, file_name(run))
        self._run = run
        self._token = token
        self._number = records.last_log_piece(run) + 1
        # What the database has of each file: so many bytes, and the last ones of them.
        self._sent = {name: (size, self._tail(name, size)) for name, size in records.log_sizes(run).items()}
        self._over = threading.Event()
        self._alone = threading.Lock()
        self._thread = threading.Thread(target=self._send_often, name="stoker-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest."""
        self._over.set()
        self._thread.join()
        self.send()

    def send(self) -> None:
        """Send what is new; nothing while the database is away, or where another driver has the run."""
        with self._alone, contextlib.suppress(DatabaseUnreachable):
            pieces: list[LogPiece] = []
            before = dict(self._sent)
            for path in _files(self._folder):
                for piece in self._pieces(path, path.relative_to(self._folder).as_posix()):
                    pieces.append(piece)
                    if len(pieces) >= AT_ONCE:
                        self._commit(pieces, before)
                        pieces, before = [], dict(self._sent)
            if pieces:
                self._commit(pieces, before)

    def _send_often(self) -> None:
        while not self._over.wait(PAUSE):
            with contextlib.suppress(StoreError):  # the run's own writer says what is wrong with the store
                self.send()

    def _pieces(self, path: Path, name: str) -> Iterator[LogPiece]:
        size, tail = self._sent.get(name, (0, b""))
        if tail != self._tail(name, size):
            size = 0  # an attempt that was adopted is written again from its beginning
        try:
            with open(path, "rb") as file:
                file.seek(size)
                while data := file.read(PIECE):
                    number, place, size = self._number, size, size + len(data)
                    tail = (tail + data)[-TAIL:] if place else data[-TAIL:]
                    self._number, self._sent[name] = number + 1, (size, tail)
                    yield LogPiece(number=number, name=name, place=place, size=len(data), data=zlib.compress(data))
        except FileNotFoundError:
            return

    def _tail(self, name: str, size: int) -> bytes:
        """The bytes of a file before a place in it; fewer where it is shorter."""
        try:
            with open(self._folder / name, "rb") as file:
                file.seek(max(0, size - TAIL))
                return file.read(min(TAIL, size))
        except FileNotFoundError:
            return b""

    def _commit(self, pieces: list[LogPiece], before: dict[str, tuple[int, bytes]]) -> None:
        try:
            self._records.add_log_pieces(self._run, self._token, pieces)
        except BaseException:  # also an interrupt: they are sent again by the next look
            self._sent = before
            raise


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.name != MARK and path.is_file():
            yield path


def _write(path: Path, piece: LogPiece) -> None:
    if ".." in path.parts:
        return  # nothing that Stoker wrote
    make_folders(str(path.parent))
    descriptor = create_file(str(path), os.O_WRONLY)
    try:
        os.ftruncate(descriptor, piece.place)
        os.pwrite(descriptor, zlib.decompress(piece.data), piece.place)
    finally:
        os.close(descriptor)
