"""Processes of this machine: one's identity, its descendants, their CPU time.

Also what a process asks of the kernel for its end and for its children's: Linux's prctl(2); elsewhere nothing happens.
A parent-death signal comes when the *thread* that forked the process ends, is forgotten when a process forks, and is
kept by exec unless the program has other rights than its caller.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any, Final, NamedTuple, NoReturn

from stoker.system import system

MARK: Final = "STOKER_FORK_SERVER"
"""The variable in the environment of a fork server and of all below it: the driver's `mark_of`, and a number."""


def reopen_streams() -> None:
    """In a fork whose descriptors 1 and 2 were replaced: let what Python prints go there, line by line."""
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def leave(code: int) -> NoReturn:
    """In a fork: write what was printed, and exit without the clean-up of the process that it was forked from."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


def this_process() -> dict[str, Any]:
    """This process as a run's row names its driver: host, pid and start, so that others can see whether it lives."""
    return process_of(os.getpid())


def process_of(pid: int) -> dict[str, Any]:
    """A living process of this machine, as `this_process` describes this one."""
    return {"host": socket.gethostname(), "pid": pid, "started": system.started_at(pid)}


def mark_of(pid: int) -> str:
    """A process's pid and its start in clock ticks after the boot: no other process of this boot has the same."""
    stat = system.stat_of(pid)
    return f"{pid}-{0 if stat is None else stat.started}"


def descendants(pid: int) -> list[int]:
    """Everything below a process, children before their own; those that have ended and wait to be reaped left out."""
    pids: list[int] = []
    queue = [pid]
    while queue:
        below = system.children_of(queue.pop(0))
        queue += below
        pids += [child for child in below if runs(child)]
    return pids


class Activity(NamedTuple):
    """What a process and all below it have used so far; nothing of one that is gone."""

    cpu: float = 0.0
    """Seconds of CPU."""
    starved: float = 0.0
    """Seconds that threads were ready to run, and other threads had the CPUs: 0 where the kernel does not count it."""
    moved: int = 0
    """Bytes read from and written to files, pipes and disks; 0 where they may not be read."""


def use_of(pid: int) -> Activity:
    """What a process and all below it have used so far."""
    ticks = starved = moved = 0
    for process in (pid, *descendants(pid)):
        stat = system.stat_of(process)
        if stat is not None:
            ticks += stat.own_ticks + stat.children_ticks
        # rchar and wchar; then the nanoseconds in a run queue: https://docs.kernel.org/scheduler/sched-stats.html
        with contextlib.suppress(ValueError, IndexError):
            moved += sum(int(line.split()[1]) for line in system.kernel_file(f"{process}/io").splitlines()[:2])
            for thread in system.threads_of(process):
                starved += int(system.kernel_file(f"{process}/task/{thread}/schedstat").split()[1])
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), starved / 1e9, moved)


def runs(pid: int) -> bool:
    """Whether a process has not ended; one that waits to be reaped has, unless threads of it are still there."""
    stat = system.stat_of(pid)
    return stat is not None and stat.state != "X" and (stat.state != "Z" or len(system.threads_of(pid)) > 1)


_PDEATHSIG: Final = 1
_SET_NAME: Final = 15
_CHILD_SUBREAPER: Final = 36


def become_subreaper(library: Any) -> None:
    """Be the parent of every descendant whose own parent ends, also across sessions."""
    system.prctl(library, _CHILD_SUBREAPER, 1)


def die_with(parent: int, number: int, library: Any) -> None:
    """Ask for a signal when the parent ends; where it has ended already, end this process.

    Called in a child right after its fork, with the library loaded before it.
    """
    system.prctl(library, _PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str, library: Any) -> None:
    """Set what /proc/PID/comm and `ps` show of this process: 15 bytes at most."""
    system.prctl(library, _SET_NAME, name.encode())
