"""The digest of a blob: SHA-256 of its bytes, or of its chunks' SHA-256 where it has more than one.

The chunks of a large blob are hashed in threads, while the caller writes the same bytes: `hashlib` releases the
interpreter's lock. A core without SHA instructions hashes 0.34 GB a second, so that a model of 70 GB would wait
minutes for its name. SHA-256 is what every Python has: blobs are made inside other people's images, too, and the same
bytes have the same name everywhere.

Stores of earlier versions name large blobs by the SHA-256 of all bytes; `has_digest` knows both.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from functools import partial
from typing import Any, Final, Iterable, Iterator

from stoker.system import system

CHUNK: Final = 8 * 1024 * 1024
"""Bytes of a chunk: large enough that passing it to a thread costs nothing. It is part of what a digest means."""
_INLINE_BYTES: Final = 1024 * 1024
"""Bytes below which hashing is faster than waking a thread."""
_THREADS: Final = min(8, system.cpus())
"""Threads of one digest. Eight hash faster than most disks write."""
_TREE: Final = b"stoker sha256 of 8 MiB chunks\n"
"""What the root begins with, so that no blob's bytes have the digest of another blob's chunks."""


class Hash:
    """Computes the digest of bytes as they come. `wait` before a buffer changes; `hexdigest` or `stop` at the end."""

    def __init__(self) -> None:
        self._chunks = [hashlib.sha256()]
        self._room = CHUNK
        self._threads: dict[int, _Thread] = {}

    def update(self, data: memoryview) -> None:
        """Add bytes, which must not change until `wait` has returned."""
        data = data.cast("B")
        while data.nbytes:
            if not self._room:
                self._chunks.append(hashlib.sha256())
                self._room = CHUNK
            part = data[: self._room]
            self._room -= part.nbytes
            data = data[part.nbytes :]
            # The parts of a chunk go to one thread, which keeps their order; small ones, too, once it has begun.
            number = len(self._chunks) % _THREADS
            if number not in self._threads:
                if part.nbytes < _INLINE_BYTES:
                    self._chunks[-1].update(part)
                    continue
                self._threads[number] = _Thread()
            self._threads[number].parts.put((self._chunks[-1], part))

    def wait(self) -> None:
        """Wait until all bytes so far are in the digest."""
        for thread in self._threads.values():
            thread.parts.join()

    def hexdigest(self) -> str:
        """The digest of all bytes."""
        self.stop()
        if len(self._chunks) == 1:
            return self._chunks[0].hexdigest()
        root = hashlib.sha256(_TREE)
        for chunk in self._chunks:
            root.update(chunk.digest())
        return root.hexdigest()

    def stop(self) -> None:
        """End the threads, if there are any."""
        for thread in self._threads.values():
            thread.parts.put(None)
        for thread in self._threads.values():
            thread.join()
        self._threads = {}


class _Thread(threading.Thread):
    """A thread that adds parts to the hashes beside them, in order."""

    def __init__(self) -> None:
        super().__init__(name="stoker-hash", daemon=True)
        # One more part than the thread works on: who reads faster than it hashes keeps no more in memory.
        self.parts: queue.Queue[tuple[Any, memoryview] | None] = queue.Queue(maxsize=1)
        self.start()

    def run(self) -> None:
        while True:
            part = self.parts.get()
            if part is not None:
                part[0].update(part[1])
            self.parts.task_done()
            if part is None:
                return


def digest_of(pieces: Iterable[bytes]) -> str:
    """The digest of bytes in pieces, which are hashed at once if each has a chunk of its own; they must not change."""
    content = Hash()
    try:
        for data in pieces:
            content.update(memoryview(data))
        return content.hexdigest()
    finally:
        content.stop()


def has_digest(pieces: Iterable[bytes], digest: str) -> bool:
    """Whether bytes in pieces have a digest, of this version or of an earlier one."""
    whole = hashlib.sha256()

    def observed() -> Iterator[bytes]:
        for data in pieces:
            yield data
            whole.update(data)

    return digest in (digest_of(observed()), whole.hexdigest())


def file_has_digest(path: str, digest: str) -> bool:
    """Whether a file's bytes have a digest; every one is read. Raises `OSError` for one that cannot be read."""
    with open(path, "rb", buffering=0) as file:
        return has_digest(iter(partial(file.read, CHUNK), b""), digest)
