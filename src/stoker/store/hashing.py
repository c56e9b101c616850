"""A SHA-256 that is computed in a thread of its own while the caller writes the same bytes.

`hashlib` lets go of the interpreter's lock, so that a second core does the work; small data is hashed at once.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Final

CHUNK: Final = 8 * 1024 * 1024
"""Bytes that are hashed and written at a time: large enough that handing them over costs nothing."""
_AT_ONCE: Final = 1024 * 1024
"""Less than this is hashed before a thread would have woken up."""


class Hash:
    """The digest of bytes as they come. `wait` before a buffer changes; `hexdigest` or `stop` at the end."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._queue: queue.Queue[memoryview | None] = queue.Queue(maxsize=4)
        self._thread: threading.Thread | None = None

    def update(self, data: memoryview) -> None:
        """Take bytes in; they must not change until `wait` has returned."""
        if self._thread is None:
            if data.nbytes < _AT_ONCE:
                self._sha.update(data)
                return
            self._thread = threading.Thread(target=self._work, name="stoker-hash", daemon=True)
            self._thread.start()
        self._queue.put(data)

    def wait(self) -> None:
        """Return when everything so far is in the digest."""
        if self._thread is not None:
            self._queue.join()

    def hexdigest(self) -> str:
        """The digest of everything."""
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
