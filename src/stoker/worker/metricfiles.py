"""The files in which steps log of themselves (`worker.metrics`), read by whoever started the steps."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from typing import TYPE_CHECKING, Final

from stoker.core.values import lazy_pattern

if TYPE_CHECKING:
    from stoker.core.metrics import Row

_SAFE: Final = lazy_pattern(r"[^A-Za-z0-9_-]+")
_PIECE: Final = 1 << 22
"""Bytes that are read of a file at once, so that a step that logs without end does not fill its reader's memory."""
_PAUSE: Final = 0.5
"""Seconds between two looks at a file while its step runs."""


def file_name(run: str, key: str, attempt: int) -> str:
    """The name of the file of an attempt of a step."""
    return f"{_SAFE.sub('-', key)[:100]}-{zlib.crc32(f'{run}/{key}'.encode()):08x}-{attempt}"


class MetricFiles:
    """The files of the attempts that one process started, below one folder, read while their steps write them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._offsets: dict[str, int] = {}
        self._look_at = 0.0
        self._folder_exists = False

    def are_due(self) -> bool:
        """Whether it is time for the next look at what steps that still run have written."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _PAUSE
        return self._has_folder()

    def read(self, job: str, *, over: bool = False) -> list[Row]:
        """The rows that are new of a job, "run/key/attempt"; with `over`, all that remain, and the file is removed."""
        rows: list[Row] = []
        if not self._has_folder():
            return rows
        path = self._path(job)
        while True:
            offset = self._offsets.get(path, 0)
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read(_PIECE)
            except OSError:
                break  # nothing was logged
            from stoker.core.metrics import rows_of  # only for steps that log something

            whole = len(data) if over and len(data) < _PIECE else data.rfind(b"\n") + 1
            if not whole and len(data) == _PIECE:
                whole = len(data)  # no line is as long
            rows += rows_of(data[:whole])
            self._offsets[path] = offset + whole
            if not over or len(data) < _PIECE:
                break
        if over and path in self._offsets:
            del self._offsets[path]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return rows

    def close(self) -> None:
        """Remove the folder, unless others of this process have files there."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def _has_folder(self) -> bool:
        """Whether any step has logged something: the first one that does makes the folder."""
        self._folder_exists = self._folder_exists or os.path.isdir(self.folder)
        return self._folder_exists

    def _path(self, job: str) -> str:
        run, _, key_and_attempt = job.partition("/")
        key, _, attempt = key_and_attempt.rpartition("/")
        return os.path.join(self.folder, file_name(run, key, int(attempt) if attempt.isdecimal() else 0))
