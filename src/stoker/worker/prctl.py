"""What a process asks of the kernel for its end and for its children's: Linux's prctl(2). Elsewhere nothing happens.

A parent-death signal comes when the *thread* that forked the process ends, is forgotten when a process forks, and is
kept by exec unless the program has other rights than its caller.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

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
