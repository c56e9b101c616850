"""Names for runs, and for the process that drives one."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH: Final = 1_735_689_600
"""2025-01-01: the ids' clock starts here, so that eight characters last until the year 2059."""


def new_id(now: float) -> str:
    """A run's id: eight characters of time, so that ids sort by it, and four drawn at random."""
    number = int((now - _EPOCH) * 1000)
    time_part = "".join(_ALPHABET[number >> shift & 31] for shift in range(35, -5, -5))
    return time_part + "".join(_ALPHABET[byte & 31] for byte in os.urandom(4))


def new_token() -> str:
    """What a driver holds a run by: who takes the run over writes another one."""
    return os.urandom(8).hex()


def this_process() -> dict[str, Any]:
    """The driver as a run's row names it, so that others can see whether it lives."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started()}


def _started() -> float:
    """When this process started, in seconds since the epoch, so that another one with its pid is not taken for it."""
    try:
        # proc(5): field 22 of stat counts clock ticks since the boot, whose time is in /proc/stat. Reading these two
        # files takes 0.1 ms; psutil does the same, but takes 20 ms to import.
        with open("/proc/self/stat") as stat, open("/proc/stat") as boot:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            booted = next(int(line.split()[1]) for line in boot if line.startswith("btime"))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        import psutil

        return float(psutil.Process().create_time())
