"""Whether the process that a line of the ledger names still lives, or its pid belongs to somebody else by now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SAME_START: Final = 2.0
"""Seconds by which two readings of one process's start may differ: they are rounded, and counted from the kernel's idea
of when it booted, which moves a little as the clock is set. A pid is not given out again that fast."""

_GONE: Final = ("Z", "X", "x")
"""States of proc(5) in which a process no longer does anything: a zombie, and dead."""


def birth_of(pid: int, started: float) -> str:
    """When a process began, as the kernel counts, which no setting of the clock moves; empty for one that is gone.

    `started` is its start in seconds since the epoch, as it was told: with another one, this is another process.
    """
    told = _told(pid)
    if told is None:
        return f"?{pid}" if _lives_unseen(pid, started) else ""
    state, ticks = told
    # This process knows that it lives, however far somebody has set the clock since its start was told.
    if state in _GONE or (pid != os.getpid() and not _began(pid, started)):
        return ""
    return f"{_boot()} {ticks}"


def lives(pid: int, started: float, birth: str) -> bool:
    """Whether a process whose birth was once told is still there."""
    told = _told(pid)
    if told is None:
        return _lives_unseen(pid, started)
    state, ticks = told
    if state in _GONE:
        return False
    return birth == f"{_boot()} {ticks}" if " " in birth else _began(pid, started)


def family(pid: int) -> frozenset[int]:
    """The pids of a process and of its ancestors; none for one that cannot be seen from here."""
    import psutil

    try:
        process = psutil.Process(pid)
        return frozenset((pid, *(parent.pid for parent in process.parents())))
    except psutil.Error:
        return frozenset()


def namespace() -> str:
    """What tells machines apart that share a folder, but not their pids: containers. Empty for the machine itself."""
    # The first namespace has had this number since Linux 3.8: PROC_PID_INIT_INO in include/linux/proc_ns.h.
    try:
        found = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return "" if found == f"pid:[{0xEFFFFFFC}]" else found.partition("[")[2].rstrip("]")


def _told(pid: int) -> tuple[str, str] | None:
    """(state, start in ticks since the boot) as Linux tells them; None elsewhere, and for a process that it hides."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name before it may hold blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def _boot() -> str:
    global _BOOT
    if not _BOOT:
        try:
            _BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            _BOOT = "boot"
    return _BOOT


_BOOT = ""


def _began(pid: int, started: float) -> bool:
    import psutil

    try:
        return abs(psutil.Process(pid).create_time() - started) <= SAME_START
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _lives_unseen(pid: int, started: float) -> bool:
    """For a process of which /proc tells nothing: there is none, this is no Linux, or it hides other people's."""
    import psutil

    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's, and there
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and _began(pid, started)
    except psutil.Error:
        # Hidden (proc(5), hidepid): that it is there is all that can be known.
        return True
