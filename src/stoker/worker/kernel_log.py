"""What the kernel wrote of a step's end: the processes that it killed for want of memory, and the GPU driver's XIDs.

/dev/kmsg is only for root where kernel.dmesg_restrict is set, and in containers it mostly is not there. Without it
less is known, and nothing is claimed.
"""

from __future__ import annotations

import os
import time
from typing import Final, Iterable, Iterator

_TELLING: Final = ("NVRM: Xid", "Killed process")
_RECORD: Final = 8192
"""Bytes of the longest record: a read takes one record, and fails if its buffer is smaller (the kernel's own limit)."""
FRESH: Final = 1.0
"""Seconds for which a reading stands for "now": a full log takes 30 ms, and a thousand elements may fail together."""


def telling(records: Iterable[str], since: float) -> list[str]:
    """The lines of a log that explain ends of processes, from a moment on (seconds since the boot)."""
    found = []
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        line = text.partition("\n")[0]
        # "priority,number,microseconds,flags;text", see the kernel's Documentation/ABI/testing/dev-kmsg.
        late = len(fields) >= 3 and fields[2].isdigit() and int(fields[2]) / 1e6 >= since
        if late and any(words in line for words in _TELLING):
            found.append(line)
    return found


class KernelLog:
    """The kernel's log, read when something failed."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._path = path
        self._read_at = float("-inf")
        self._records: list[str] = []

    def since(self, seconds_ago: float) -> list[str]:
        """The telling lines of the last seconds, and of one more: the kernel's clock is not quite the process's."""
        now = time.monotonic()
        if now - self._read_at > FRESH:
            self._read_at = now
            self._records = list(_records(self._path))
        return telling(self._records, now - seconds_ago - 1.0)


def _records(path: str) -> Iterator[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while True:
            try:
                data = os.read(descriptor, _RECORD)
            except BrokenPipeError:
                continue  # the record was overwritten meanwhile; the next read goes on behind it
            if not data:
                return
            yield data.decode("utf-8", "replace")
    except OSError:
        return  # BlockingIOError: that was the last one
    finally:
        os.close(descriptor)
