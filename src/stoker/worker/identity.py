"""Which process this is, so that another one can see whether it still lives."""

from __future__ import annotations

import os
import socket
from typing import Any


def this_process() -> dict[str, Any]:
    """The driver as a run's row names it, so that others can see whether it lives."""
    return process_of(os.getpid())


def process_of(pid: int) -> dict[str, Any]:
    """A process of this machine that surely lives, in the same words."""
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> float:
    """When a process started, in seconds since the epoch, so that another one with its pid is not taken for it."""
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
