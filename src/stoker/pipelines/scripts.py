"""How a script ends: `python train.py` ends as `stoker run train.py` does.

An error of Stoker's that nothing catches is a message and an exit code, not a traceback, and so is Ctrl-C in a call of
Stoker's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from types import TracebackType

from stoker.core.errors import EXIT_INFRASTRUCTURE, EXIT_INTERRUPTED, EXIT_USAGE, SettingsError, StokerError
from stoker.core.printable import printable
from stoker.core.usercode import (
    is_user_file,
    raised_by_user,
    replaced_functions,
    replaced_text,
    source_line,
    user_traceback,
)

_exit_code = 0


def watch_script() -> None:
    """In a script with Python's own way of showing errors, show ours as `stoker run` does and leave with its code."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if sys.excepthook is sys.__excepthook__ and file and is_user_file(file):
        sys.excepthook = _uncaught
        atexit.register(_leave)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    global _exit_code
    if (
        isinstance(error, KeyboardInterrupt)
        and _passes_through_stoker(trace)
        and not os.environ.get("STOKER_TRACEBACK")
    ):
        sys.stderr.write("interrupted\n")
        _exit_code = EXIT_INTERRUPTED
        return
    through_stoker = _passes_through_stoker(trace)
    if isinstance(error, StokerError) and not os.environ.get("STOKER_TRACEBACK"):
        if isinstance(error, SettingsError):
            error.where = error.where or line_of_settings(trace)
        sys.stderr.write(printable(f"error: {error}\n"))
    elif through_stoker and raised_by_user(error) and not os.environ.get("STOKER_TRACEBACK"):
        sys.stderr.write(printable(f"{user_traceback(error)}\n"))
    elif through_stoker and not os.environ.get("STOKER_TRACEBACK") and (replaced := replaced_functions()):
        sys.stderr.write(printable(f"error: {replaced_text(error, replaced)}\n"))
    else:
        sys.__excepthook__(kind, error, trace)
    if isinstance(error, StokerError):
        _exit_code = error.exit_code
    elif through_stoker:  # in a pipeline's body, for example; what a script does by itself ends as it always does
        _exit_code = EXIT_USAGE if raised_by_user(error) or replaced_functions() else EXIT_INFRASTRUCTURE


def line_of_settings(trace: TracebackType | None) -> str:
    """The user's line that makes settings, such as `ResourceSettings(…)` or `Torchrun(…)`; empty if an error comes from
    elsewhere."""
    line = ""
    for frame, number in traceback.walk_tb(trace):
        package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        if package != "stoker":
            line = source_line(frame.f_code.co_filename, number)
        elif rest.partition(".")[0] not in ("core", "launchers"):
            line = ""
    return line


def _passes_through_stoker(trace: TracebackType | None) -> bool:
    package = __name__.partition(".")[0]
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == package:
            return True
        trace = trace.tb_next
    return False


def _leave() -> None:
    """Python always exits with 1 after an uncaught error; called after nearly all else that is called at exit."""
    if _exit_code:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # its reader is gone, or it was closed
                stream.flush()
        os._exit(_exit_code)
