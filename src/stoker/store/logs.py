"""Stores the lines that steps write: a file for each attempt, with the time and stream of each line.

    1718000000.123456 o loading
    1718000002.654321 o3 epoch 3: loss 0.21

The number behind the stream's letter is the rank of the process that wrote the line. Lines without a rank come from a
step of one process, or from a launcher.

Each batch is one write in append mode, so that several processes can share a file; files are read without loading them
whole. Text is UTF-8; other bytes are replaced. Of a line that is overwritten with carriage returns, as by progress
bars, the last text is kept. A line of more than 64 KiB is split, and each part but the last ends in "…".
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from functools import lru_cache
from typing import Callable, Collection, Final, Iterable, Iterator, Literal, Mapping, Protocol

from stoker.core.errors import StoreError
from stoker.core.plan import LogLine
from stoker.store.access import create_file, make_folders
from stoker.store.blobs import remove_tree

MAX_LINE_BYTES: Final = 64 * 1024
"""Bytes of one line, so that a reader needs little memory; a terminal has no use for more."""
LAUNCHER: Final = "launcher"
"""Selects the lines without a rank: those of the program that started the ranks, or of a step of one process."""

Rank = int | Literal["launcher"]
"""The writer of a line."""
Ranks = Rank | Collection[Rank] | None
"""A selection of writers; None for all."""

_BLOCK: Final = 256 * 1024
_STREAMS: Final[Mapping[bytes, str]] = {b"o": "stdout", b"e": "stderr"}
_LETTERS: Final[Mapping[str, str]] = {"stdout": "o", "stderr": "e"}
_ELLIPSIS: Final = "…".encode()
_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]")
_MAX_NAME_BYTES: Final = 200
"""Bytes of a file name; file systems take 255."""


class Elsewhere(Protocol):
    """Logs of runs that are driven in another home: `store.logcopies.LogCopies`."""

    def bring(self, run: str) -> None:
        """Write what is new of them into files."""

    def lag(self, run: str) -> float:
        """Seconds after which what was written by now has come; 0 for a run that was driven here."""


class Logs:
    """The log files below a folder; with `elsewhere` those are brought there that are written in other places."""

    def __init__(self, folder: str, elsewhere: Elsewhere | None = None) -> None:
        self.folder = folder
        self._elsewhere = elsewhere

    def _bring(self, run: str) -> None:
        if self._elsewhere is not None:
            self._elsewhere.bring(run)

    def path(self, run: str, key: str, attempt: int) -> str:
        """The file of an attempt; it exists once the attempt has written something."""
        return os.path.join(self.folder, file_name(run), file_name(key), f"{attempt}.log")

    def error_path(self, run: str, key: str, attempt: int) -> str:
        """The file of what an attempt raised, where that is too long for its row."""
        return os.path.join(self.folder, file_name(run), file_name(key), f"{attempt}.error.txt")

    def write_error(self, run: str, key: str, attempt: int, data: bytes) -> str:
        """Write that file, and return its path."""
        path = self.error_path(run, key, attempt)
        self._write(path, data)
        return path

    def append(self, run: str, key: str, attempt: int, lines: Iterable[LogLine]) -> None:
        """Append lines; without any, no file is created."""
        head, last, stream = "", -1.0, ""
        rank: int | None = None
        parts: list[str] = []
        for line in lines:
            if line.time != last or line.stream != stream or line.rank != rank:
                last, stream, rank = line.time, line.stream, line.rank
                letter = _LETTERS.get(stream, "o")
                head = f"{last:.6f} {letter} " if rank is None else f"{last:.6f} {letter}{rank} "
            text = line.text
            if len(text) > MAX_LINE_BYTES // 4 or "\n" in text or "\r" in text:
                text = f"\n{head}".join(_clean_lines(text))
            parts.append(head)
            parts.append(text)
            parts.append("\n")
        if parts:
            self._write(self.path(run, key, attempt), "".join(parts).encode("utf-8", "replace"))

    def lines(
        self, run: str, key: str, attempt: int, *, tail: int | None = None, stream: str = "", rank: Ranks = None
    ) -> Iterator[LogLine]:
        """The lines so far, or the last `tail` of them, of both streams or one, of all ranks or some.

        Without a log there are none.
        """
        self._bring(run)
        matches = _line_filter(stream, rank)
        try:
            with open(self.path(run, key, attempt), "rb", buffering=_BLOCK) as file:
                if tail is not None:
                    yield from map(_parse_line, _last_lines(file.fileno(), tail, matches))
                    return
                for raw in file:
                    if matches is None or matches(raw):
                        yield _parse_line(raw)
        except FileNotFoundError:
            return

    def ranks(self, run: str, key: str, attempt: int, *, enough: Collection[int] = ()) -> list[int]:
        """The ranks that wrote lines; with `enough`, reading stops once these were found."""
        self._bring(run)
        ranks: set[int] = set()
        missing = set(enough)
        try:
            with open(self.path(run, key, attempt), "rb", buffering=_BLOCK) as file:
                for raw in file:
                    head = _parse_head(raw)
                    if head is None or head[2] is None or head[2] in ranks:
                        continue
                    ranks.add(head[2])
                    missing.discard(head[2])
                    if enough and not missing:
                        break
        except FileNotFoundError:
            pass
        return sorted(ranks)

    def follow(
        self,
        run: str,
        key: str,
        attempt: int,
        *,
        done: Callable[[], bool],
        stream: str = "",
        rank: Ranks = None,
        interval: float = 0.2,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[LogLine]:
        """The lines so far and then each new one, until `done` returns True: then no more will come."""
        offset = 0
        while True:
            finished = done()
            lag = self._elsewhere.lag(run) if finished and self._elsewhere is not None else 0.0
            if lag:
                sleep(lag)
            while True:
                lines, after = self.read(run, key, attempt, offset, stream=stream, rank=rank, whole=not finished)
                yield from lines
                if after == offset:
                    break
                offset = after
            if finished:
                return
            sleep(interval)

    def read(
        self,
        run: str,
        key: str,
        attempt: int,
        offset: int,
        *,
        stream: str = "",
        rank: Ranks = None,
        whole: bool = True,
        limit: int = _BLOCK,
    ) -> tuple[list[LogLine], int]:
        """The lines behind an offset in bytes, of about `limit` bytes, and the offset behind them.

        The offset stays where there is nothing new. With `whole`, a line that is still being written is left for later.
        """
        self._bring(run)
        try:
            with open(self.path(run, key, attempt), "rb") as file:
                file.seek(offset)
                data = file.read(limit)
                while data and b"\n" not in data and (more := file.read(limit)):
                    data += more  # a line that is longer than the limit
        except FileNotFoundError:
            return [], offset
        complete, mark, incomplete = data.rpartition(b"\n")
        raw_lines = complete.split(b"\n") if mark else []
        if incomplete and not whole and not mark:
            raw_lines, incomplete = [incomplete], b""
        matches = _line_filter(stream, rank)
        lines = [_parse_line(raw) for raw in raw_lines if matches is None or matches(raw)]
        return lines, offset + len(data) - len(incomplete)

    def last(
        self, run: str, key: str, attempt: int, count: int, *, stream: str = "", rank: Ranks = None
    ) -> tuple[list[LogLine], int]:
        """The last complete lines so far, and the offset behind them, from which `read` goes on."""
        self._bring(run)
        size, length = self._size(run, key, attempt), _BLOCK
        while True:
            start = max(0, size - length)
            if start:  # the line that is cut is not read
                _, start = self.read(run, key, attempt, start, limit=1)
            lines, offset = self.read(run, key, attempt, start, stream=stream, rank=rank, limit=max(1, size - start))
            if len(lines) >= count or size <= length:
                return lines[-count:] if count else [], offset
            length *= 4

    def count(self, run: str, key: str, attempt: int, end: int, *, stream: str = "", rank: Ranks = None) -> int:
        """The number of complete lines before an offset."""
        matches, number = _line_filter(stream, rank), 0
        try:
            with open(self.path(run, key, attempt), "rb", buffering=_BLOCK) as file:
                if matches is None:
                    while end > 0 and (data := file.read(min(_BLOCK, end))):
                        number += data.count(b"\n")
                        end -= len(data)
                    return number
                for raw in file:
                    end -= len(raw)
                    if end < 0:
                        break
                    number += matches(raw)
        except FileNotFoundError:
            pass
        return number

    def _size(self, run: str, key: str, attempt: int) -> int:
        try:
            return os.path.getsize(self.path(run, key, attempt))
        except FileNotFoundError:
            return 0

    def attempts(self, run: str, key: str) -> list[int]:
        """The numbers of the attempts that have a log."""
        self._bring(run)
        try:
            names = os.listdir(os.path.join(self.folder, file_name(run), file_name(key)))
        except FileNotFoundError:
            return []
        return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())

    def delete(self, run: str) -> None:
        """Remove the logs of a run; a run without any is fine."""
        remove_tree(os.path.join(self.folder, file_name(run)))

    def delete_attempt(self, run: str, key: str, attempt: int) -> None:
        """Delete the lines of one attempt; without any this does nothing."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(run, key, attempt))

    def _write(self, path: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(path, flags)
            except FileNotFoundError:
                make_folders(os.path.dirname(path))
                descriptor = create_file(path, flags)
            try:
                view = memoryview(data)
                while view.nbytes:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StoreError(
                f"the log {path} cannot be written: {'the disk is full' if full else error}",
                fix="free space on the disk" if full else "check the folder's permissions",
            ) from error


def file_name(key: str) -> str:
    """A run's or step's name as a file name, readable where possible; different names have different ones."""
    raw = key.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in raw)
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _MAX_NAME_BYTES:
        import hashlib

        # Truncated; the rows have the whole name.
        name = f"{name[: _MAX_NAME_BYTES - 17]}~{hashlib.sha256(raw).hexdigest()[:16]}"
    return name


def _clean_lines(text: str) -> Iterator[str]:
    """The lines of a text as they are stored."""
    for line in text.split("\n"):
        yield from _split_line(line.rstrip("\r").rpartition("\r")[2].encode("utf-8", "replace"))


def _split_line(line: bytes) -> Iterator[str]:
    while len(line) > MAX_LINE_BYTES:
        end = MAX_LINE_BYTES - len(_ELLIPSIS)
        while line[end] & 0xC0 == 0x80:  # not inside a character
            end -= 1
        yield (line[:end] + _ELLIPSIS).decode()
        line = line[end:]
    yield line.decode()


def _parse_line(raw: bytes) -> LogLine:
    """The line for a line of the file; one in another format is returned as it is, at time 0."""
    raw = raw.rstrip(b"\n")
    head = _parse_head(raw)
    if head is None:
        return LogLine(time=0.0, stream="stdout", text=raw.decode("utf-8", "replace"))
    moment, stream, rank, text = head
    return LogLine(time=moment, stream=stream, text=text.decode("utf-8", "replace"), rank=rank)


def _parse_head(raw: bytes) -> tuple[float, str, int | None, bytes] | None:
    """Time, stream, rank and text of a line of the file; None if it has another format."""
    try:
        stamp, tag, text = raw.split(b" ", 2)
        stream, rank = _parse_tag(tag)
        return float(stamp), stream, rank, text
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _parse_tag(tag: bytes) -> tuple[str, int | None]:
    stream, digits = _STREAMS.get(tag[:1]), tag[1:]
    if stream is None or not (digits.isdigit() or not digits):
        raise ValueError(tag)
    return stream, int(digits) if digits else None


def _line_filter(stream: str, rank: Ranks) -> Callable[[bytes], bool] | None:
    """A function that selects lines of the file; None if all are selected."""
    if not stream and rank is None:
        return None
    selection = (rank,) if isinstance(rank, (int, str)) else rank
    ranks = None if selection is None else {None if one == LAUNCHER else one for one in selection}
    # A line in another format counts as stdout without a rank, as in `_parse_line`.
    selects_unparsed = stream in ("", "stdout") and (ranks is None or None in ranks)

    def matches(raw: bytes) -> bool:
        head = _parse_head(raw)
        if head is None:
            return selects_unparsed
        return (not stream or head[1] == stream) and (ranks is None or head[2] in ranks)

    return matches


def _last_lines(descriptor: int, count: int, matches: Callable[[bytes], bool] | None) -> Iterable[bytes]:
    """The last selected lines of a file, read from its end."""
    lines: deque[bytes] = deque()
    position = os.fstat(descriptor).st_size
    incomplete = b""
    while position > 0 and len(lines) < count:
        start = max(0, position - _BLOCK)
        data = os.pread(descriptor, position - start, start) + incomplete
        position = start
        block = data.split(b"\n")
        incomplete = block.pop(0) if start else b""
        for raw in reversed(block):
            if len(lines) >= count:
                break
            if raw and (matches is None or matches(raw)):
                lines.appendleft(raw)
    return lines
