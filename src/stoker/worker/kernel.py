"""What the kernel of this machine knows of a step's end: the OOM killer's counters, and the telling lines of its log.

SIGKILL does not name its sender. The kernel counts each process that it kills for want of memory, per control group and
for the whole machine; a counter that rises while a step runs explains the step's SIGKILL.

Its log names the processes that it killed, and the GPU driver's XIDs. /dev/kmsg is readable by root only where
kernel.dmesg_restrict is set, and is mostly absent in containers. What cannot be read counts as no evidence.
"""

from __future__ import annotations

import collections
import os
import time
import weakref
from typing import Final, Iterable, Iterator

from stoker.system import LINUX
from stoker.worker.containment import V1_COUNTER, groups_in

FRESH: Final = 1.0
"""Seconds for which a reading of a counter stands for "now". It costs 0.05 ms, and thousands of steps may start, or
fail together, in a second."""
_MACHINE: Final = "/proc/vmstat"
_TELLING: Final = ("NVRM: Xid", "Killed process")
"""Words of the log's lines that explain ends of processes."""
_RECORD: Final = 8192
"""Bytes of the longest record: a read takes one record, and fails if its buffer is smaller (the kernel's own limit)."""
_KEPT: Final = 1000
"""Telling lines that are kept: a broken device can fill the log."""


# The counters of the OOM killer


def candidates(membership: str, mounts: str) -> Iterator[str]:
    """The files that may hold a process's counter, nearest first, from its /proc/self/cgroup and mountinfo.

    cgroup v1 has it in memory.oom_control since Linux 4.13 (memory.failcnt counts allocations at the limit, which end
    no process); v2 in memory.events, with those of the groups below. A container sees its own group as the mount's
    root, or is told a path that only exists outside: then the mount itself is its group.
    """
    of: dict[str, str] = {}
    for line in membership.splitlines():
        _, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if not controllers:
            of["v2"] = path
        elif "memory" in controllers.split(","):
            of["v1"] = path
    for line in mounts.splitlines():
        fields, mark, system = line.partition(" - ")
        parts, types = fields.split(), system.split()
        if not mark or len(parts) < 5 or len(types) < 3:
            continue
        if types[0] == "cgroup" and "memory" in types[2].split(",") and "v1" in of:
            yield from _below(parts[4], parts[3], of["v1"], V1_COUNTER)
        elif types[0] == "cgroup2" and "v2" in of:
            yield from _below(parts[4], parts[3], of["v2"], "memory.events")


def _below(mount: str, root: str, path: str, name: str) -> Iterator[str]:
    inside = path[len(root) :] if root != "/" and (path + "/").startswith(root + "/") else path
    yield os.path.join(mount, inside.strip("/"), name)
    yield os.path.join(mount, name)


def kills_in(text: str) -> int | None:
    """The number of kills in a counter's file; None if it has none."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def evidence(path: str, before: int, after: int) -> str:
    """What a counter that rose proves, in words; empty if it did not."""
    if after <= before:
        return ""
    whose = "of this machine (any process may be meant)" if path == _MACHINE else f"in {path}"
    return f"the kernel's oom_kill counter {whose} rose from {before} to {after} while the step ran"


class OomKills:
    """The counter of this process's control group, else the machine's; read at most once a second."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._last: int | None = None
        self._below: dict[str, int] = {}
        """The counters of groups below that Stoker made, by file; those of groups that were removed stay."""
        self._explained = 0
        """The count up to which kills have explained an end: one kill must not explain two."""

    def now(self) -> int | None:
        """The count, at most a second old."""
        if time.monotonic() - self._read_at > FRESH:
            self._read()
        return self._last

    def since(self, before: int | None) -> str:
        """The proof of a kill since a reading; empty without one. A kill explains one end only."""
        after = self._read()
        if before is None or after is None:
            return ""
        start = max(before, self._explained)
        proof = evidence(self._path or "", start, after)
        if proof:
            self._explained = start + 1
        return proof

    def _read(self) -> int | None:
        self._read_at = time.monotonic()
        if self._path is None:
            self._path = next((path for path in _paths() if kills_in(text_of(path)) is not None), "")
        self._last = self._count(self._path) if self._path else None
        return self._last

    def _count(self, path: str) -> int | None:
        count = kills_in(text_of(path))
        if count is None or os.path.basename(path) != V1_COUNTER:
            return count
        # cgroup v1 counts a kill in the group of the process that was killed, and in none above it.
        for folder in groups_in(os.path.dirname(path)):
            counter = os.path.join(folder, V1_COUNTER)
            self._below[counter] = max(self._below.get(counter, 0), kills_in(text_of(counter)) or 0)
        return count + sum(self._below.values())


def _paths() -> Iterator[str]:
    if LINUX:
        yield from candidates(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo"))
        yield _MACHINE


def text_of(path: str) -> str:
    """The text of a file of the kernel's; empty where it is missing or not readable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# The kernel's log


def telling(records: Iterable[str], since: float) -> list[str]:
    """The lines of a log that explain ends of processes, since a time in seconds since the boot."""
    lines = []
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        line = text.partition("\n")[0]
        # "priority,number,microseconds,flags;text", see the kernel's Documentation/ABI/testing/dev-kmsg.
        late = len(fields) >= 3 and fields[2].isdecimal() and int(fields[2]) / 1e6 >= since
        if late and any(words in line for words in _TELLING):
            lines.append(line)
    return lines


class KernelLog:
    """The kernel's log from now on. A line belongs to the attempts that had begun when it was read.

    Its own times cannot say so: the kernel's clock of its log and a process's drift apart by seconds within days, and
    by any time where a virtual machine was stopped and went on.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._path = path
        self._opened = time.time()
        self._lines: collections.deque[tuple[float, str]] = collections.deque(maxlen=_KEPT)
        """The telling lines, each with the time at which it was read."""
        self._descriptor = _opened(path)
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def look(self, now: float) -> None:
        """Read what was logged until now, in seconds since the epoch. Called as each attempt begins."""
        if self._descriptor is not None:
            for line in telling(_records(self._descriptor), float("-inf")):
                self._lines.append((now, line))

    def since(self, began: float) -> list[str]:
        """The telling lines of an attempt that began at this time, in seconds since the epoch."""
        if began < self._opened:
            return self._by_its_clock(time.time() - began)
        self.look(time.time())
        return [line for read, line in self._lines if read > began]

    def _by_its_clock(self, seconds_ago: float) -> list[str]:
        """The lines of an attempt that another driver began, and of one second more."""
        descriptor = _opened(self._path)
        if descriptor is None:
            return []
        try:
            return telling(_records(descriptor), time.monotonic() - seconds_ago - 1.0)
        finally:
            os.close(descriptor)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def _records(descriptor: int) -> Iterator[str]:
    while True:
        try:
            data = os.read(descriptor, _RECORD)
        except BrokenPipeError:
            continue  # the record was overwritten meanwhile; the next read goes on behind it
        except OSError:
            return  # BlockingIOError: that was the last one
        if not data:
            return
        yield data.decode("utf-8", "replace")
