"""The processes below one, as Linux tells them; elsewhere psutil is asked."""

from __future__ import annotations

import os


def children(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads started them; none for one that is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except FileNotFoundError:
        if not os.path.isdir("/proc/self/task"):
            return _asked(pid)
    except OSError:
        return found
    return found


def descendants(pid: int) -> list[int]:
    """Everything below a process, children before their own; those that have ended and wait to be reaped left out."""
    found: list[int] = []
    line = [pid]
    while line:
        below = children(line.pop(0))
        line += below
        found += [child for child in below if _runs(child)]
    return found


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process and all below it have used so far; 0 for one that is gone."""
    ticks = 0
    for one in (pid, *descendants(pid)):
        fields = _stat(one)
        if len(fields) > 14:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that have ended: proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def _runs(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str]:
    """What stands behind the name in /proc/PID/stat: the state first."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _asked(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []
