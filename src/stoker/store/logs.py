"""What steps print: a file for each attempt, a line for each line, with its time and stream.

    1718000000.123456 o loading
    1718000002.654321 o3 epoch 3: loss 0.21

The number behind the stream's letter is the rank of the process that wrote it. Without one, the step is one process, or
it is its launcher's line.

Files are appended to with one write a batch, so that several processes may, and read without loading them. Text is
UTF-8; bytes that are not are replaced. Of a line drawn over with carriage returns, as progress bars do, the last
drawing is kept. A line of more than 64 KiB is split, and each part but the last ends in "…".
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from functools import lru_cache
from typing import Callable, Collection, Final, Iterable, Iterator, Literal, Mapping

from stoker.core.errors import StoreError
from stoker.core.plan import LogLine
from stoker.store.blobs import remove_tree

LONGEST: Final = 64 * 1024
"""Bytes of one line. A reader holds one line at a time, and a terminal has no use for more."""
LAUNCHER: Final = "launcher"
"""Asks for the lines that are of no rank: what started the ranks wrote them, or the only process of the step."""

Rank = int | Literal["launcher"]
"""Who wrote a line."""
Ranks = Rank | Collection[Rank] | None
"""Whose lines are asked for; None: everybody's."""

_BLOCK: Final = 256 * 1024
_STREAMS: Final[Mapping[bytes, str]] = {b"o": "stdout", b"e": "stderr"}
_LETTERS: Final[Mapping[str, str]] = {"stdout": "o", "stderr": "e"}
_MORE: Final = "…".encode()
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]")
_LONGEST_NAME: Final = 200
"""Bytes of a file name; file systems take 255."""


class Logs:
    """The log files below a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, run: str, key: str, attempt: int) -> str:
        """The file of an attempt; it exists once the attempt has printed something."""
        return os.path.join(self.folder, file_name(run), file_name(key), f"{attempt}.log")

    def append(self, run: str, key: str, attempt: int, lines: Iterable[LogLine]) -> None:
        """Add lines; none makes no file."""
        head, last, stream = "", -1.0, ""
        rank: int | None = None
        parts: list[str] = []
        for line in lines:
            if line.time != last or line.stream != stream or line.rank != rank:
                last, stream, rank = line.time, line.stream, line.rank
                letter = _LETTERS.get(stream, "o")
                head = f"{last:.6f} {letter} " if rank is None else f"{last:.6f} {letter}{rank} "
            text = line.text
            if len(text) > LONGEST // 4 or "\n" in text or "\r" in text:
                text = f"\n{head}".join(_tidy(text))
            parts.append(head)
            parts.append(text)
            parts.append("\n")
        if parts:
            self._write(self.path(run, key, attempt), "".join(parts).encode("utf-8", "replace"))

    def lines(
        self, run: str, key: str, attempt: int, *, tail: int | None = None, stream: str = "", rank: Ranks = None
    ) -> Iterator[LogLine]:
        """The lines so far, or the last `tail` of them, of both streams or one, of all ranks or some.

        Where there is no log there are none.
        """
        asked = _asked(stream, rank)
        try:
            with open(self.path(run, key, attempt), "rb", buffering=_BLOCK) as file:
                if tail is not None:
                    yield from map(_line, _last(file.fileno(), tail, asked))
                    return
                for raw in file:
                    if asked is None or asked(raw):
                        yield _line(raw)
        except FileNotFoundError:
            return

    def ranks(self, run: str, key: str, attempt: int, *, enough: Collection[int] = ()) -> list[int]:
        """The ranks that wrote lines; with `enough`, it is not read further once these are found."""
        found: set[int] = set()
        missing = set(enough)
        try:
            with open(self.path(run, key, attempt), "rb", buffering=_BLOCK) as file:
                for raw in file:
                    head = _head(raw)
                    if head is None or head[2] is None or head[2] in found:
                        continue
                    found.add(head[2])
                    missing.discard(head[2])
                    if enough and not missing:
                        break
        except FileNotFoundError:
            pass
        return sorted(found)

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
        """The lines so far and then each new one, until `done` says that no more will come."""
        asked = _asked(stream, rank)
        offset, rest = 0, b""
        path = self.path(run, key, attempt)
        while True:
            finished = done()
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    while data := file.read(_BLOCK):
                        offset += len(data)
                        whole, mark, rest = (rest + data).rpartition(b"\n")
                        for raw in whole.split(b"\n") if mark else ():
                            if asked is None or asked(raw):
                                yield _line(raw)
            except FileNotFoundError:
                pass
            if finished:
                if rest and (asked is None or asked(rest)):
                    yield _line(rest)
                return
            sleep(interval)

    def attempts(self, run: str, key: str) -> list[int]:
        """The numbers of the attempts that have a log."""
        try:
            names = os.listdir(os.path.join(self.folder, file_name(run), file_name(key)))
        except FileNotFoundError:
            return []
        return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())

    def delete(self, run: str) -> None:
        """Remove the logs of a run; a run without any is fine."""
        remove_tree(os.path.join(self.folder, file_name(run)))

    def _write(self, path: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(path, flags, 0o644)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                descriptor = os.open(path, flags, 0o644)
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
    """A run's or step's name as a file name; different names have different ones, and most can be read."""
    raw = key.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_NAME:
        import hashlib

        # Cut off; rows know the whole name.
        name = f"{name[: _LONGEST_NAME - 17]}~{hashlib.sha256(raw).hexdigest()[:16]}"
    return name


def _tidy(text: str) -> Iterator[str]:
    """The lines of a text, as the file keeps them."""
    for line in text.split("\n"):
        yield from _parts(line.rstrip("\r").rpartition("\r")[2].encode("utf-8", "replace"))


def _parts(line: bytes) -> Iterator[str]:
    while len(line) > LONGEST:
        end = LONGEST - len(_MORE)
        while line[end] & 0xC0 == 0x80:  # not inside a character
            end -= 1
        yield (line[:end] + _MORE).decode()
        line = line[end:]
    yield line.decode()


def _line(raw: bytes) -> LogLine:
    """A line of the file; one that was written by something else is kept as it is, at time 0."""
    raw = raw.rstrip(b"\n")
    head = _head(raw)
    if head is None:
        return LogLine(time=0.0, stream="stdout", text=raw.decode("utf-8", "replace"))
    moment, stream, rank, text = head
    return LogLine(time=moment, stream=stream, text=text.decode("utf-8", "replace"), rank=rank)


def _head(raw: bytes) -> tuple[float, str, int | None, bytes] | None:
    """Time, stream and rank of a line of the file, and its text; None if something else wrote it."""
    try:
        stamp, tag, text = raw.split(b" ", 2)
        stream, rank = _origin(tag)
        return float(stamp), stream, rank, text
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _origin(tag: bytes) -> tuple[str, int | None]:
    stream, digits = _STREAMS.get(tag[:1]), tag[1:]
    if stream is None or not (digits.isdigit() or not digits):
        raise ValueError(tag)
    return stream, int(digits) if digits else None


def _asked(stream: str, rank: Ranks) -> Callable[[bytes], bool] | None:
    """Says of a line of the file whether it is asked for; None: every line is."""
    if not stream and rank is None:
        return None
    several = (rank,) if isinstance(rank, (int, str)) else rank
    ranks = None if several is None else {None if one == LAUNCHER else one for one in several}
    # What something else wrote is on stdout and of no rank, as `_line` reads it.
    others = stream in ("", "stdout") and (ranks is None or None in ranks)

    def asked(raw: bytes) -> bool:
        head = _head(raw)
        if head is None:
            return others
        return (not stream or head[1] == stream) and (ranks is None or head[2] in ranks)

    return asked


def _last(descriptor: int, count: int, asked: Callable[[bytes], bool] | None) -> Iterable[bytes]:
    """The last lines of a file that are asked for, read from its end."""
    found: deque[bytes] = deque()
    position = os.fstat(descriptor).st_size
    rest = b""
    while position > 0 and len(found) < count:
        start = max(0, position - _BLOCK)
        data = os.pread(descriptor, position - start, start) + rest
        position = start
        lines = data.split(b"\n")
        rest = lines.pop(0) if start else b""
        for raw in reversed(lines):
            if len(found) >= count:
                break
            if raw and (asked is None or asked(raw)):
                found.appendleft(raw)
    return found
