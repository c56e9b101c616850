"""A process with all that it started, as /proc tells: who they are, what CPU time they took, what memory they hold.

Made to be asked up to twenty times a second from beside a step: what a question costs is measured, and the dear ones
are asked so seldom that they take a thousandth of the time. Uses the standard library only, and starts no thread.
"""

from __future__ import annotations

import os
import time
from typing import Final, Iterable, NamedTuple

PROC: Final = "/proc"
SHARE: Final = 0.001
"""The part of one core that may go into each of: finding new processes, and measuring what is shared between them."""

FORGET: Final = 64
"""Searches after which the processes that were not of the tree are looked at again: their numbers may be used again."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """What /proc/PID/stat says: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html. Times in clock ticks.

    `own` is the CPU time of the process, `ended` that of the children which it has waited for, and of theirs.
    """

    state: str
    parent: int
    session: int
    own: int
    ended: int
    started: int


class Reading(NamedTuple):
    """The tree at one moment: CPU seconds since the first reading (None for one that was never seen), bytes of memory,
    number of processes."""

    cpu: float | None
    memory: int | None
    processes: int


def stat_of(pid: int) -> Stat | None:
    """None for a process that is gone, or that may not be read."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:
            data = file.read(1024)
    except OSError:
        return None
    # The name is in parentheses and may hold any, blanks and parentheses too.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        own=int(fields[11]) + int(fields[12]),
        ended=int(fields[13]) + int(fields[14]),
        started=int(fields[19]),
    )


def alive(pid: int, started: int | None = None) -> bool:
    """Whether a process still runs; one that has ended and was not waited for does not. Without /proc, whether it is
    there at all."""
    found = stat_of(pid)
    if found is None:
        return not os.path.exists(f"{PROC}/self/stat") and _there(pid)
    return found.state not in "ZX" and (started is None or found.started == started)


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True


class Tree:
    """A process and its descendants. One that once belonged to it stays so, also when its parent has ended.

    A process belongs to it whose parent does, or whose session the first process leads: what was orphaned before it
    was seen is known by that, or by the first process being its subreaper.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: dict[int, Stat] = {}
        self._foreign: set[int] = {os.getpid()}
        self._searches = 0
        self._search_at = 0.0
        self._spent = 0
        self._first = True
        self._shared_twice = 0
        self._measured: frozenset[int] = frozenset()
        self._measure_at = 0.0

    @property
    def members(self) -> frozenset[int]:
        """The processes of the last reading."""
        return frozenset(self._members)

    def read(self) -> Reading:
        """The tree now."""
        before = self._members
        now = {pid: found for pid in before if (found := stat_of(pid)) and found.started == before[pid].started}
        if time.monotonic() >= self._search_at or self.pid not in now:
            self._search(now)
        self._members = now
        if self._first:
            self._first = not now
        else:
            self._spent += _taken(before, now)
        return Reading(None if self._first else self._spent / _TICKS, self._memory(), len(now))

    def _search(self, known: dict[int, Stat]) -> None:
        """Add the processes that are new: only numbers not seen before are read."""
        began = time.thread_time()
        if self.pid not in known and (root := stat_of(self.pid)) is not None:
            known[self.pid] = root
        self._searches += 1
        if self._searches % FORGET == 0:
            self._foreign = {os.getpid()}
        listed = _pids()
        self._foreign.intersection_update(listed)
        fresh = {pid: found for pid in listed - self._foreign - known.keys() if (found := stat_of(pid))}
        while True:
            ours = [pid for pid, found in fresh.items() if found.parent in known or found.session == self.pid != pid]
            if not ours:
                break
            for pid in ours:
                known[pid] = fresh.pop(pid)
        self._foreign.update(fresh)
        self._search_at = time.monotonic() + (time.thread_time() - began) / SHARE

    def _memory(self) -> int | None:
        """Bytes in memory of all processes, each page once.

        The resident pages of all, less those of files and shared memory but for the largest part of one process, less
        what forked processes share beside them. That is measured by PSS, which walks all pages and so is asked seldom,
        and taken to stay the same between. None while it is not known for a process that is new.
        """
        sizes = [size for pid in self._members if (size := _sizes(pid)) is not None]
        if not sizes:
            return None
        counted = sum(resident - shared for resident, shared in sizes) + max(shared for _, shared in sizes)
        now = time.monotonic()
        if len(sizes) == 1:
            self._shared_twice, self._measured = 0, frozenset(self._members)
        elif now >= self._measure_at:
            began = time.thread_time()
            parts = [_proportional(pid) for pid in self._members]
            whole = sum(part for part in parts if part is not None)
            self._shared_twice = max(0, counted - whole) if None not in parts else 0
            self._measured = frozenset(self._members)
            self._measure_at = now + max(1.0, (time.thread_time() - began) / SHARE)
        if not self._members.keys() <= self._measured:
            return None
        return max(counted - self._shared_twice, *(resident for resident, _ in sizes))


def _pids() -> set[int]:
    try:
        return {int(name) for name in os.listdir(PROC) if name.isdigit()}
    except OSError:
        return set()


def _taken(before: dict[int, Stat], now: dict[int, Stat]) -> int:
    """Ticks that the tree took between two readings.

    A process that has ended and was waited for is in its parent's `ended`, with what was seen of it before; one that
    nobody waited for takes its last ticks with it.
    """
    own = sum(found.own - (before[pid].own if pid in before else 0) for pid, found in now.items())
    ended = sum(found.ended - (before[pid].ended if pid in before else 0) for pid, found in now.items())
    seen = sum(found.own + found.ended for pid, found in before.items() if pid not in now)
    return own + max(0, ended - seen)


def _sizes(pid: int) -> tuple[int, int] | None:
    """Resident bytes, and how many of them belong to files or shared memory."""
    try:
        with open(f"{PROC}/{pid}/statm", "rb", buffering=0) as file:
            fields = file.read(256).split()
        return int(fields[1]) * _PAGE, int(fields[2]) * _PAGE
    except (OSError, IndexError):
        return None


def _proportional(pid: int) -> int | None:
    """PSS in bytes: each page divided by the processes that map it."""
    try:
        with open(f"{PROC}/{pid}/smaps_rollup", "rb", buffering=0) as file:
            lines: Iterable[bytes] = file.read(4096).splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None
