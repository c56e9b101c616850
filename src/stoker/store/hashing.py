"""A SHA-256 that is computed in its own thread while the caller writes the same bytes.

`hashlib` releases the interpreter's lock, so that a second core does the work; small data is hashed by the caller.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Final

CHUNK: Final = 8 * 1024 * 1024
"""Bytes that are hashed and written at a time: large enough that passing them to a thread costs nothing."""
_INLINE_BYTES: Final = 1024 * 1024
"""Bytes below which hashing is faster than waking a thread."""


class Hash:
    """Computes the digest of bytes as they come. `wait` before a buffer changes; `hexdigest` or `stop` at the end."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._queue: queue.Queue[memoryview | None] = queue.Queue(maxsize=4)
        self._thread: threading.Thread | None = None

    def update(self, data: memoryview) -> None:
        """Add bytes, which must not change until `wait` has returned."""
        if self._thread is None:
            if data.nbytes < _INLINE_BYTES:
                self._sha.update(data)
                return
            self._thread = threading.Thread(target=self._work, name="stoker-hash", daemon=True)
            self._thread.start()
        self._queue.put(data)

    def wait(self) -> None:
        """Wait until all bytes so far are in the digest."""
        if self._thread is not None:
            self._queue.join()

    def hexdigest(self) -> str:
        """The digest of all bytes."""
        self.stop()
        return self._sha.hexdigest()

    def stop(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            data = self._queue.get()
            if data is not None:
                self._sha.update(data)
            self._queue.task_done()
            if data is None:
                return
