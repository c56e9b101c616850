"""Turns an exception or the way a process ended into a cause and words for a person.

The user's own traceback is shown whole; Stoker's frames above it are folded away.
"""

from __future__ import annotations

import os
import signal
import traceback
from types import TracebackType
from typing import Any, Final

from stoker.core.errors import StokerError
from stoker.core.status import CRASHED, EXITED, KILLED

_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CRASHES: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
"""Signals that a process raises by its own fault; SIGKILL and SIGTERM come from outside."""


def described(error: BaseException) -> dict[str, Any]:
    """An exception as JSON: its type, its message, the traceback as text, and the user's line that raised it.

    An error of ours that no line of the user's raised has no traceback: its message says all that there is to know.
    """
    shown = _users(error.__traceback__)
    if isinstance(error, StokerError) and not _is_users(shown):
        return {"type": type(error).__name__, "message": _message(error), "traceback": "", "place": ""}
    lines = traceback.format_exception(type(error), error, shown)
    frames = traceback.extract_tb(shown)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {
        "type": f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        "message": _message(error),
        "traceback": "".join(lines),
        "place": place,
    }


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # the user's own __str__ may fail
        return f"<the message cannot be shown: {type(broken).__name__} in __str__>"
    # "AssertionError" says more than nothing, and "KeyError: 'rate'" more than "'rate'".
    return f"{type(error).__name__}: {text}".rstrip(": ") if not text or isinstance(error, KeyError) else text


def _users(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not Stoker's; all of it when every frame is."""
    first = trace
    while trace is not None and not _is_users(trace):
        trace = trace.tb_next
    return trace if trace is not None else first


def _is_users(trace: TracebackType | None) -> bool:
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_HERE)


def of_exit(*, code: int | None, signal_number: int | None) -> tuple[str, str]:
    """The cause and a sentence for a process that ended before its step did."""
    if signal_number is not None:
        name = signal.Signals(signal_number).name
        if signal_number in _CRASHES:
            return CRASHED, f"the step's process crashed with {name} (a fault in native code)"
        if signal_number == signal.SIGKILL:
            return KILLED, (
                "the step's process was killed by SIGKILL from outside; without another cause this is often the "
                "kernel, out of memory (see `dmesg`)"
            )
        return KILLED, f"the step's process was ended by {name}"
    return EXITED, f"the step's process left with exit code {code} before the step returned"
