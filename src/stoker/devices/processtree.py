"""A process and its descendants as the system shows them: their pids, CPU time and memory.

Read up to twenty times a second from beside a step. The cost of each reading is measured, and expensive ones are
repeated so seldom that they take a thousandth of the time. Starts no thread.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

from stoker.system import Stat, system

SHARE: Final = 0.001
"""The part of one core that finding new processes may take, and the same for measuring their shared memory."""

FORGET: Final = 64
"""Searches after which processes outside of the tree are read again: pids are reused."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """The tree at one moment."""

    cpu: float | None
    """CPU seconds since the first reading; None for a tree that was never seen."""
    memory: int | None
    """Bytes; None where that is not known."""
    processes: int
    """Number of processes."""


def alive(pid: int, started: int | None = None) -> bool:
    """Whether a process runs; a zombie does not. Where the system does not show the process, whether the pid exists."""
    stat = system.stat_of(pid)
    if stat is None:
        return system.stat_of(os.getpid()) is None and _exists(pid)
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
        now = {pid: stat for pid in before if (stat := system.stat_of(pid)) and stat.started == before[pid].started}
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
        if self.pid not in members and (root := system.stat_of(self.pid)) is not None:
            members[self.pid] = root
        self._searches += 1
        if self._searches % FORGET == 0:
            self._foreign = {os.getpid()}
        pids = system.pids()
        self._foreign.intersection_update(pids)
        fresh = {pid: stat for pid in pids - self._foreign - members.keys() if (stat := system.stat_of(pid))}
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
        sizes = [size for pid in self._members if (size := system.memory_of(pid)) is not None]
        if not sizes:
            return None
        counted = sum(resident - shared for resident, shared in sizes) + max(shared for _, shared in sizes)
        now = time.monotonic()
        if len(sizes) == 1:
            self._shared_twice, self._measured = 0, frozenset(self._members)
        elif now >= self._measure_at:
            began = time.thread_time()
            parts = [system.proportional_of(pid) for pid in self._members]
            whole = sum(part for part in parts if part is not None)
            self._shared_twice = max(0, counted - whole) if None not in parts else 0
            self._measured = frozenset(self._members)
            self._measure_at = now + max(1.0, (time.thread_time() - began) / SHARE)
        if not self._members.keys() <= self._measured:
            return None
        return max(counted - self._shared_twice, *(resident for resident, _ in sizes))


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
