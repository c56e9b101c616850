"""Checks that files still have the bytes that their digests name: once per process and file, and again if it changed.

A digest is slow: SHA-256 reads 0.3 to 2 GB a second on one core. Every blob above `SUMMED` bytes therefore has
checksums beside it, the CRC-32 of each chunk, which several threads compare at the speed of memory. They decide only
that a file is whole; that it is damaged is always the digest's word, so that a lost or damaged file of checksums costs
time and nothing else. Knows neither serializers nor the database.

CRC-32 finds every flipped bit and every burst of up to 32 bits in a chunk, and misses other damage once in 4 billion
chunks. It is zlib's, which every Python has: the store is read inside other people's images.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zlib
from typing import Any, Callable, Final, Iterator, Sequence

from stoker.store.access import make_folders
from stoker.store.hashing import CHUNK, has_digest

SUMMED: Final = 1024 * 1024
"""Bytes above which a blob has checksums. A smaller one is hashed in half a millisecond, less than a file costs."""
_PIECE: Final = 1024 * 1024
"""Bytes that are read at a time: they stay in a core's cache between the read and the checksum."""
_THREADS: Final = 3
"""Threads that compare one file's checksums: more do not speed it up where four cores share the memory's bandwidth."""
_HEADER: Final = struct.Struct("<8sQI")
_MAGIC: Final = b"stkcrc1\n"
_REMEMBERED: Final = 100_000
"""Files of which it is remembered that they are whole; above that all are forgotten."""

State = tuple[int, ...]
"""What a file's status says when its content changes: device, inode, size, and the times of change in nanoseconds."""

_whole: dict[str, tuple[str, Any]] = {}
"""path → the digest that its content has, and the state in which it was checked"""


def state_of(status: os.stat_result) -> State:
    """The state of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_known_whole(path: str, digest: str, state: Any) -> bool:
    """Whether this process has checked the path in this state."""
    return _whole.get(path) == (digest, state)


def remember_whole(path: str, digest: str, state: Any) -> None:
    """Remember that the path had the digest's content in this state."""
    if len(_whole) >= _REMEMBERED:
        _whole.clear()
    _whole[path] = digest, state


def is_whole(path: str, digest: str, sums_path: str) -> bool:
    """Whether a file's content has the digest. `sums_path` is the file of its checksums, empty for one without.

    Raises `OSError` for a file that is not there or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        state = state_of(status)
        if is_known_whole(path, digest, state):
            return True
        if not _has_digest(descriptor, status.st_size, digest, sums_path):
            return False
        # The state of before: a change while it was read is one more reason to check again.
        remember_whole(path, digest, state)
        return True
    finally:
        os.close(descriptor)


class Sums:
    """The checksums of bytes as they come."""

    def __init__(self) -> None:
        self.size = 0
        self._sums: list[int] = []
        self._current = 0

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        while data.nbytes:
            part = data[: CHUNK - self.size % CHUNK]
            self._current = zlib.crc32(part, self._current)
            self.size += part.nbytes
            data = data[part.nbytes :]
            if self.size % CHUNK == 0:
                self._sums.append(self._current)
                self._current = 0

    def values(self) -> Sequence[int]:
        """The checksum of each chunk, that of the last one too."""
        return [*self._sums, self._current] if self.size % CHUNK else list(self._sums)

    def document(self) -> bytes:
        """The file of checksums: header, one number a chunk, and the checksum of all that."""
        values = self.values()
        body = _HEADER.pack(_MAGIC, self.size, CHUNK) + struct.pack(f"<{len(values)}I", *values)
        return body + struct.pack("<I", zlib.crc32(body))


def sums_of(data: memoryview) -> Sums:
    """The checksums of some bytes."""
    sums = Sums()
    sums.update(data.cast("B"))
    return sums


def read_sums(path: str, size: int) -> Sequence[int] | None:
    """The checksums in a file; None if there is none, if it is damaged, or if it is about another size."""
    try:
        with open(path, "rb") as file:
            document = file.read()
    except OSError:
        return None
    body = document[:-4]
    count = -(-size // CHUNK)
    if len(body) != _HEADER.size + 4 * count or struct.pack("<I", zlib.crc32(body)) != document[-4:]:
        return None
    if _HEADER.unpack_from(body) != (_MAGIC, size, CHUNK):
        return None
    return struct.unpack_from(f"<{count}I", body, _HEADER.size)


def write_sums(path: str, scratch: str, document: bytes) -> None:
    """Write a file of checksums; not where the folder cannot be written, since it only saves time."""
    try:
        make_folders(os.path.dirname(path))
        with open(scratch, "xb") as file:
            file.write(document)
        os.replace(scratch, path)
    except OSError:
        return


def has_sums(path: str, sums: Sums) -> bool:
    """Whether a file has the bytes that were summed, up to one chance in 4 billion a chunk; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size == sums.size and _has_sums(descriptor, sums.size, sums.values())
    finally:
        os.close(descriptor)


class Checks:
    """Checks of a step's inputs, which go on in threads while the step computes.

    `add` remembers a file that the step may read at any time; `join` raises what a check raised. A file that changed
    since its check is checked again then.
    """

    def __init__(self, check: Callable[[str, int | None], object]) -> None:
        self._check = check
        self._pid = os.getpid()
        self._files: dict[str, int | None] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._errors: list[BaseException] = []
        self._watched: list[Callable[[], None]] = []

    @property
    def usable(self) -> bool:
        """Whether this is the process whose step is checked; one that it forked checks before it reads."""
        return os.getpid() == self._pid

    def add(self, digest: str, size: int | None, *, start: bool) -> None:
        """Check a file again at the end, and, with `start`, for the first time beside the step."""
        self._files[digest] = size
        if start and digest not in self._threads:
            thread = threading.Thread(target=self._work, args=(digest, size), name="stoker-check", daemon=True)
            self._threads[digest] = thread
            thread.start()

    def watch(self, check: Callable[[], None]) -> None:
        """Call a check of something else at the end, which raises if it fails."""
        self._watched.append(check)

    def join(self) -> None:
        """Wait for all checks; raises the first error."""
        threads, self._threads = self._threads, {}
        files, self._files = self._files, {}
        for thread in threads.values():
            thread.join()
        if self._errors:
            raise self._errors[0]
        for digest, size in files.items():
            self._check(digest, size)
        watched, self._watched = self._watched, []
        for check in watched:
            check()

    def _work(self, digest: str, size: int | None) -> None:
        try:
            self._check(digest, size)
        except BaseException as error:  # raised by `join`, in the thread that waits for it
            self._errors.append(error)


def _has_digest(descriptor: int, size: int, digest: str, sums_path: str) -> bool:
    if size <= SUMMED:
        return hashlib.sha256(_bytes_of(descriptor, size)).hexdigest() == digest
    expected = read_sums(sums_path, size)
    if expected is not None and _has_sums(descriptor, size, expected):
        return True
    sums = Sums()
    if not has_digest(_summed_pieces(descriptor, sums), digest):
        return False
    if sums_path:
        write_sums(sums_path, f"{sums_path}.{os.getpid()}-{threading.get_ident()}", sums.document())
    return True


def _summed_pieces(descriptor: int, sums: Sums) -> Iterator[bytes]:
    """The chunks of a file, which are added to the checksums."""
    while data := os.pread(descriptor, CHUNK, sums.size):
        sums.update(memoryview(data))
        yield data


def _bytes_of(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.pread(descriptor, size - len(data), len(data))
        if not part:
            break
        data += part
    return data


def _has_sums(descriptor: int, size: int, expected: Sequence[int]) -> bool:
    """Whether every chunk has its checksum."""
    workers = min(_THREADS, len(expected)) or 1
    failed = threading.Event()

    def compare(first: int) -> None:
        buffer = memoryview(bytearray(_PIECE))
        for number in range(first, len(expected), workers):
            if failed.is_set() or _sum_of_chunk(descriptor, number * CHUNK, size, buffer) != expected[number]:
                failed.set()
                return

    threads = [threading.Thread(target=compare, args=(first,), daemon=True) for first in range(1, workers)]
    for thread in threads:
        thread.start()
    compare(0)
    for thread in threads:
        thread.join()
    return not failed.is_set()


def _sum_of_chunk(descriptor: int, start: int, size: int, buffer: memoryview) -> int:
    """The checksum of the chunk at `start`; -1, which no chunk has, if the file is shorter or cannot be read."""
    checksum, offset, end = 0, start, min(start + CHUNK, size)
    while offset < end:
        try:
            count = os.preadv(descriptor, [buffer[: end - offset]], offset)
        except OSError:
            return -1
        if not count:
            return -1
        checksum = zlib.crc32(buffer[:count], checksum)
        offset += count
    return checksum
