"""How a script ends: `python train.py` ends as `stoker run train.py` does.

An error of Stoker's that nothing catches is a message and an exit code, not a traceback.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

from stoker.core.errors import StokerError

_exit_code = 0


def watch_script() -> None:
    """In a script with Python's own way of showing errors, show ours as `stoker run` does and leave with its code."""
    if sys.excepthook is sys.__excepthook__ and getattr(sys.modules.get("__main__"), "__file__", None):
        sys.excepthook = _uncaught
        atexit.register(_leave)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    global _exit_code
    if not isinstance(error, StokerError) or os.environ.get("STOKER_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"error: {error}\n")
    _exit_code = error.exit_code if isinstance(error, StokerError) else 1


def _leave() -> None:
    """Python always exits with 1 after an uncaught error; called after nearly all else that is called at exit."""
    if _exit_code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)
