"""What a called pipeline reaches first: it starts the fork server, and then imports the driver while that boots.

Kept apart from the driver because the driver's imports take as long as the fork server's start. Here is also what makes
`python train.py` end as `stoker run train.py` does: an error of ours that nobody catches is a message and an exit code.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Mapping

from stoker.core.errors import StokerError, UsageError
from stoker.core.request import RunRequest
from stoker.worker import spare

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.run.program import Program

_exit_code = 0


def run(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a program to its end, or with `detach` to its beginning; see `driver.run`."""
    watch_script()
    if request.detach and request.debug:
        raise UsageError("--debug runs every step in this process, which --detach leaves", fix="leave one of them out")
    if not request.debug and not request.detach:
        spare.start()
    try:
        from stoker.run import driver

        return driver.run(program, arguments, request)
    finally:
        spare.discard()


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
