"""A process and its descendants as /proc shows them: their pids, CPU time and memory.

Read up to twenty times a second from beside a step. The cost of each reading is measured, and expensive ones are
repeated so seldom that they take a thousandth of the time. Uses the standard library only, and starts no thread.
"""

from __future__ import annotations

import os
import time
from typing import Final, Iterable, NamedTuple

PROC: Final = "/proc"
SHARE: Final = 0.001
"""The part of one core that finding new processes may take, and the same for measuring their shared memory."""

FORGET: Final = 64
"""Searches after which processes outside of the tree are read again: pids are reused."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """Fields of /proc/PID/stat: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html."""

    state: str
    """One letter: "R" runs, "Z" is a zombie."""
    parent: int
    """The parent's pid."""
    session: int
    """The session's id."""
    own_ticks: int
    """CPU time of the process, in clock ticks."""
    children_ticks: int
    """CPU time of the children that it has waited for, and of theirs, in clock ticks."""
    started: int
    """Its start, in clock ticks after the boot."""


class Reading(NamedTuple):
    """The tree at one moment."""

    cpu: float | None
    """CPU seconds since the first reading; None for a tree that was never seen."""
    memory: int | None
    """Bytes; None where that is not known."""
    processes: int
    """Number of processes."""


def stat_of(pid: int) -> Stat | None:
    """The fields of a process; None for one that has ended or may not be read."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:
            data = file.read(1024)
    except OSError:
        return None
    # The name is in parentheses and may have blanks and parentheses in it.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        own_ticks=int(fields[11]) + int(fields[12]),
        children_ticks=int(fields[13]) + int(fields[14]),
        started=int(fields[19]),
    )


def alive(pid: int, started: int | None = None) -> bool:
    """Whether a process runs; a zombie does not. Without /proc, whether the pid exists."""
    stat = stat_of(pid)
    if stat is None:
        return not os.path.exists(f"{PROC}/self/stat") and _exists(pid)
    return stat.state not in "ZX" and (started is None or stat.started == started)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


class Tree:
    """A process and its descendants. A member stays one when its parent has ended.

    Members are the processes whose parent is a member, or whose session the first process leads. The session, or the
    first process being their subreaper, tells processes that were orphaned before they were seen.
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
        now = {pid: stat for pid in before if (stat := stat_of(pid)) and stat.started == before[pid].started}
        if time.monotonic() >= self._search_at or self.pid not in now:
            self._search(now)
        self._members = now
        if self._first:
            self._first = not now
        else:
            self._spent += _ticks_between(before, now)
        return Reading(None if self._first else self._spent / _TICKS, self._memory(), len(now))

    def _search(self, members: dict[int, Stat]) -> None:
        """Add new processes to `members`; reads only pids that are not known yet."""
        began = time.thread_time()
        if self.pid not in members and (root := stat_of(self.pid)) is not None:
            members[self.pid] = root
        self._searches += 1
        if self._searches % FORGET == 0:
            self._foreign = {os.getpid()}
        pids = _pids()
        self._foreign.intersection_update(pids)
        fresh = {pid: stat for pid in pids - self._foreign - members.keys() if (stat := stat_of(pid))}
        while True:
            ours = [pid for pid, stat in fresh.items() if stat.parent in members or stat.session == self.pid != pid]
            if not ours:
                break
            for pid in ours:
                members[pid] = fresh.pop(pid)
        self._foreign.update(fresh)
        self._search_at = time.monotonic() + (time.thread_time() - began) / SHARE

    def _memory(self) -> int | None:
        """Resident bytes of all processes, counting each page once.

        The private pages of all, plus the largest share of files and shared memory of one process, less the pages that
        forked processes share. The last is measured by PSS, which walks all pages; it is read seldom and assumed
        constant in between. None while it is not known for a new process.
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
        return {int(name) for name in os.listdir(PROC) if name.isdecimal()}
    except OSError:
        return set()


def _ticks_between(before: dict[int, Stat], now: dict[int, Stat]) -> int:
    """Clock ticks that the tree used between two readings.

    A process that was waited for is in its parent's `children_ticks`, with the ticks that were already counted. The
    last ticks of one that nobody waited for are lost.
    """
    own_ticks = sum(stat.own_ticks - (before[pid].own_ticks if pid in before else 0) for pid, stat in now.items())
    children_ticks = sum(
        stat.children_ticks - (before[pid].children_ticks if pid in before else 0) for pid, stat in now.items()
    )
    counted_before = sum(stat.own_ticks + stat.children_ticks for pid, stat in before.items() if pid not in now)
    return own_ticks + max(0, children_ticks - counted_before)


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
