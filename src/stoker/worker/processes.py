"""Processes of this machine: one's identity, its children and descendants, their CPU time.

From /proc on Linux; elsewhere psutil tells.

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
    return {"host": socket.gethostname(), "pid": pid, "started": _start_time(pid)}


def mark_of(pid: int) -> str:
    """A process's pid and its start in clock ticks after the boot: no other process of this boot has the same."""
    fields = _stat(pid)
    return f"{pid}-{fields[19] if len(fields) > 19 else 0}"  # proc(5): field 22 of stat, of which two are cut off


def children(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads started them; none for one that is gone."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                pids += [int(child) for child in file.read().split()]
    except FileNotFoundError:
        if not os.path.isdir("/proc/self/task"):
            return _children_by_psutil(pid)
    except OSError:
        return pids
    return pids


def descendants(pid: int) -> list[int]:
    """Everything below a process, children before their own; those that have ended and wait to be reaped left out."""
    pids: list[int] = []
    queue = [pid]
    while queue:
        below = children(queue.pop(0))
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
        fields = _stat(process)
        if len(fields) > 14:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that have ended: proc(5)
        # rchar and wchar; then the nanoseconds in a run queue: https://docs.kernel.org/scheduler/sched-stats.html
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/io", "rb") as file:
            moved += sum(int(file.readline().split()[1]) for _ in range(2))
        with contextlib.suppress(OSError, ValueError, IndexError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:
                    starved += int(file.read().split()[1])
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), starved / 1e9, moved)


def _start_time(pid: int) -> float:
    """When a process started, in seconds since the epoch: tells it from a later one with the same pid."""
    try:
        # proc(5): field 22 of stat counts clock ticks since the boot, whose time is in /proc/stat. Reading these two
        # files takes 0.1 ms; psutil does the same, but takes 20 ms to import.
        with open(f"/proc/{pid}/stat") as stat, open("/proc/stat") as boot:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            booted = next(int(line.split()[1]) for line in boot if line.startswith("btime"))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        import psutil

        return float(psutil.Process(pid).create_time())


def runs(pid: int) -> bool:
    """Whether a process has not ended; one that waits to be reaped has, unless threads of it are still there."""
    fields = _stat(pid)
    if not fields or fields[0] == "X":
        return False
    if fields[0] != "Z":
        return True
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """What stands behind the name in /proc/PID/stat: the state first."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _children_by_psutil(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


_PDEATHSIG: Final = 1
_SET_NAME: Final = 15
_CHILD_SUBREAPER: Final = 36


def libc() -> Any:
    """The C library of this process; None where there is none to load."""
    import ctypes

    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def become_subreaper(library: Any) -> None:
    """Be the parent of every descendant whose own parent ends, also across sessions."""
    _prctl(library, _CHILD_SUBREAPER, 1)


def die_with(parent: int, number: int, library: Any) -> None:
    """Ask for a signal when the parent ends; where it has ended already, end this process.

    Called in a child right after its fork, with the library loaded before it.
    """
    _prctl(library, _PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str, library: Any) -> None:
    """Set what /proc/PID/comm and `ps` show of this process: 15 bytes at most."""
    if sys.platform == "linux" and library is not None:
        library.prctl(_SET_NAME, name.encode(), 0, 0, 0)


def _prctl(library: Any, option: int, value: int) -> None:
    if sys.platform == "linux" and library is not None:
        library.prctl(option, value, 0, 0, 0)
