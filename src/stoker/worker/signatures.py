"""The table of failures: what is known of each, from the most telling row to the least, and what is said of the rest.

The first row that is seen decides. Hardware stands first, because it makes everything else fail as well; ranks that
lost each other stand last, because that is mostly a consequence.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Iterator, Mapping, Sequence

from stoker.core import status
from stoker.worker import signatures_gpu, signatures_host, signatures_imports, signatures_ranks
from stoker.worker.signature import Signature

ROWS: Final[tuple[Signature, ...]] = (
    *signatures_gpu.HARDWARE,
    *signatures_host.PLACE,
    *signatures_gpu.MEMORY,
    *signatures_host.MEMORY,
    *signatures_host.DISK,
    *signatures_gpu.DRIVER,
    *signatures_gpu.BUILD,
    *signatures_imports.IMPORTS,
    *signatures_gpu.KERNELS,
    *signatures_ranks.RANKS,
)

_LOOK: Final = "the last lines of `stoker logs` may say more"
GENERAL: Final[Mapping[str, tuple[str, str]]] = {
    status.USER_ERROR: ("the step's code raised an exception", ""),
    status.CRASHED: (
        "the step's process crashed in native code",
        (
            "suspect extensions first: faulthandler.enable() at the step's start shows the Python line; after SIGBUS "
            "also a full /dev/shm, or a file that shrank while it was mapped"
        ),
    ),
    status.KILLED: (
        "the step's process was killed from outside",
        f"look who did it: the kernel out of memory (`dmesg`), a platform that takes its place back, a person; {_LOOK}",
    ),
    status.EXITED: ("the step's process left before the step returned", f"return from the step instead; {_LOOK}"),
    status.TIMED_OUT: ("the step ran longer than it may", "raise its timeout, or find out where it waits"),
    status.CANCELLED: ("the step was ended before it was done", ""),
    status.UNSERIALIZABLE: (
        "what the step returned cannot be kept",
        "return data instead of a handle, such as an open file, a lock or a connection; open that where it is used",
    ),
    status.IMPORT_ERROR: (
        "the step's file, or a module that it imports, could not be imported where the step ran",
        "import it there by hand: `python -c 'import …'` shows the same error",
    ),
    status.INPUT_ERROR: (
        "an input of the step could not be loaded",
        "the environment that reads a value must have the packages of the one that wrote it",
    ),
    status.HOST_OOM: (
        "the kernel ended the step's process by SIGKILL, because memory was used up",
        signatures_host.MORE_MEMORY,
    ),
    status.HANG: (
        "the ranks of the step wait for each other, and no longer get on",
        (
            "look in the stacks for the rank that took another way: a condition on its rank around a collective "
            "operation, or data that ends earlier than others'; a step that is meant to pause sets hang_after"
        ),
    ),
    status.GANG_INCOMPLETE: (
        "not all nodes of the step came up in time",
        "see why the missing one did not start; gang_timeout says how long the others wait for it",
    ),
    status.IDLE_GPU: (
        "on_idle_gpu of the step says that it must use the devices that it holds",
        (
            "see `stoker gpu` for when they worked; move model and data to the device, or ask for fewer; if long "
            'pauses are meant, raise Monitor(idle_for=…), or say on_idle_gpu="warn"'
        ),
    ),
    status.WORKER_LOST: (
        "the process that held the workers went away",
        "try again; if it recurs, look for what ends it",
    ),
    status.REFUSED: ("the backend would not take the step", ""),
}
"""cause → (why, advice), where no row says more; causes that only rows or platforms give are found among the rows."""

_RAISED: Final = re.compile(
    # An exception that a process died of, as Python prints it, also with a rank before it; or as C++ does.
    r"^(?:\[[^\]]*\]:? *)*(?:((?:\w+\.)*\w*(?:Error|Exception)\w*)(?::? *(.*))?|\s*what\(\): +(.*))$"
)


TERMINATED: Final = f"look who asked for its end: a person, or a platform that takes its place back; {_LOOK}"
"""The advice after SIGTERM, which the OOM killer never sends."""


def known(raised: Sequence[str], printed: str) -> tuple[Signature, str] | None:
    """The first row seen in what was raised (each "type: message") or printed, and the line that shows it."""
    for row in ROWS:
        for text in raised:
            if line := row.seen_in(text):
                return row, line
        if row.printed and (line := row.seen_in(printed)):
            return row, line
    return None


def raised_in(lines: Iterable[str]) -> Iterator[str]:
    """The exceptions that a process printed, as "type: message": what it died of without a word to the worker."""
    for line in lines:
        match = _RAISED.match(line)
        if match is not None:
            kind, message, native = match.groups()
            yield f"{kind}: {message or ''}" if native is None else native


def general(cause: str) -> tuple[str, str]:
    """Why and advice for a cause of which no more than its name is known."""
    if cause in GENERAL:
        return GENERAL[cause]
    # Of several rows the last is the plainest.
    row = next((row for row in reversed(ROWS) if row.cause == cause), None)
    return (row.why, row.advice) if row is not None else ("", "")
