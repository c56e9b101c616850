"""Whether the process of a ticket still runs, or its pid belongs to another process by now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SAME_START: Final = 2.0
"""Seconds by which two readings of one process's start may differ: they are rounded, and relative to the kernel's time
of the boot, which moves a little when the clock is set. A pid is not reused that fast."""

_GONE: Final = ("Z", "X", "x")
"""States of proc(5) of a process that has ended: zombie and dead."""


def birth_of(pid: int, started: float | None) -> str:
    """A process's start in the kernel's count, which setting the clock does not move; empty for one that has ended.

    `started` is the start that was recorded, in seconds since the epoch: a process with another start is not the same.
    None where the process is known to be the one that is meant.
    """
    status = _stat(pid)
    if started is None:
        return "" if status is None or status[0] in _GONE else f"{_boot()} {status[1]}"
    if status is None:
        return f"?{pid}" if _is_alive_without_proc(pid, started) else ""
    state, ticks = status
    # This process runs, however far the clock was set since its start was recorded.
    if state in _GONE or (pid != os.getpid() and not _has_start(pid, started)):
        return ""
    return f"{_boot()} {ticks}"


def is_alive(pid: int, started: float, birth: str) -> bool:
    """Whether the process with this pid and `birth_of` still runs."""
    status = _stat(pid)
    if status is None:
        return _is_alive_without_proc(pid, started)
    state, ticks = status
    if state in _GONE:
        return False
    return birth == f"{_boot()} {ticks}" if " " in birth else _has_start(pid, started)


def family(pid: int) -> frozenset[int]:
    """The pids of a process and of its ancestors; none for one that cannot be seen from here."""
    import psutil

    try:
        process = psutil.Process(pid)
        return frozenset((pid, *(parent.pid for parent in process.parents())))
    except psutil.Error:
        return frozenset()


def has_ended(pid: int) -> bool:
    """Whether no process has a pid; False inside a container, where drivers list the pids of the host."""
    if namespace():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # another user's process
    return False


def is_this_boot(boot: str) -> bool:
    """Whether the machine has not been started again since a `birth_of` was taken: `boot` is its first word."""
    return boot == _boot()


def namespace() -> str:
    """The id of a container's pid namespace, which tells it from others that share a folder; empty outside of
    containers.
    """
    # The first namespace has had this number since Linux 3.8: PROC_PID_INIT_INO in include/linux/proc_ns.h.
    try:
        link = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return "" if link == f"pid:[{0xEFFFFFFC}]" else link.partition("[")[2].rstrip("]")


def _stat(pid: int) -> tuple[str, str] | None:
    """(state, start in ticks since the boot) from /proc; None without it, and for a hidden process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name before them may have blanks and parentheses in it.
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


def _has_start(pid: int, started: float) -> bool:
    import psutil

    try:
        return abs(psutil.Process(pid).create_time() - started) <= SAME_START
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _is_alive_without_proc(pid: int, started: float) -> bool:
    """Whether a process runs that /proc does not show: none has the pid, this is not Linux, or it is hidden."""
    import psutil

    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and _has_start(pid, started)
    except psutil.Error:
        # Hidden (proc(5), hidepid): only its existence is known.
        return True
