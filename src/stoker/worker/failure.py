"""Turns an exception or the way a process ended into a cause and words for a person.

The user's own traceback is shown whole; Stoker's frames above it are folded away.
"""

from __future__ import annotations

import os
import signal
import traceback
from types import TracebackType
from typing import Final, Iterator, Sequence

import attrs

from stoker.core.errors import StokerError
from stoker.core.protocol import StepError
from stoker.core.status import (
    CRASHED,
    EXITED,
    GPU_HARDWARE,
    HOST_OOM,
    ILLEGAL_MEMORY_ACCESS,
    IMPORT_ERROR,
    INPUT_ERROR,
    KILLED,
    UNSERIALIZABLE,
    USER_ERROR,
    WORKER_LOST,
    Retryable,
)

_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD: Final = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_CRASHES: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
"""Signals that a process raises by its own fault; SIGKILL and SIGTERM come from outside."""
_CHAIN: Final = 8
"""Exceptions below one another that are looked at; a chain of more is a recursion."""
_DIED: Final = frozenset({CRASHED, KILLED, EXITED})
"""The process ended without a word to the worker: what it printed last is all that it said."""
_OPEN: Final = _DIED | {USER_ERROR, IMPORT_ERROR, INPUT_ERROR, UNSERIALIZABLE, WORKER_LOST}
"""How an attempt ended, which leaves open why; every other cause says it already."""
_OTHERS: Final = ("subprocess.CalledProcessError", "ChildFailedError")
"""Exceptions that only say that another process failed: the reason is in what that one printed."""
ASK_THE_KERNEL: Final = frozenset({KILLED, GPU_HARDWARE, ILLEGAL_MEMORY_ACCESS})
"""Causes of which the kernel of the machine may know more."""


@attrs.frozen(kw_only=True)
class Ending:
    """How an attempt ended, beside its exception: what a platform says, how the process ended, what the kernel knows.

    `oom` is the proof that the kernel killed for want of memory meanwhile (`memory_pressure`), `kernel` the telling
    lines of its log (`kernel_log`).
    """

    cause: str = ""
    message: str = ""
    code: int | None = None
    signal: int | None = None
    oom: str = ""
    kernel: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Explanation:
    """Why an attempt failed: a sentence, what to do, where another attempt may succeed, and the line that shows it."""

    cause: str
    sentence: str
    advice: str
    retryable: Retryable
    evidence: str = ""


def described(error: BaseException) -> StepError:
    """An exception as a document: its type, its message, the traceback as text, and the user's line that raised it.

    An error of ours that no line of the user's raised has no traceback: its message says all that there is to know.
    """
    shown = _users(error.__traceback__)
    if isinstance(error, StokerError) and not _is_users(shown):
        return StepError(type=type(error).__name__, message=_message(error), because=_because(error))
    lines = traceback.format_exception(type(error), error, shown)
    frames = list(traceback.extract_tb(shown))
    # The deepest line may be a library's; what the user can look at is the line that called it.
    frames = [frame for frame in frames if not _is_library(frame.filename)] or frames
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return StepError(
        type=_type(error),
        message=_message(error),
        traceback="".join(lines),
        place=place,
        because=_because(error),
    )


def _because(error: BaseException) -> tuple[str, ...]:
    """The exceptions that this one was raised from: a DataLoader's "exited unexpectedly" has its reason there."""
    found: list[BaseException] = []
    line = [error.__cause__, *getattr(error, "exceptions", ())]
    while line and len(found) < _CHAIN:
        cause = line.pop(0)
        if isinstance(cause, BaseException) and cause not in found:
            found.append(cause)
            line += [cause.__cause__, *getattr(cause, "exceptions", ())]
    return tuple(_line(_type(cause), _message(cause)) for cause in found)


def _line(kind: str, message: str) -> str:
    """An exception as Python prints it; one without words has its type for a message."""
    return kind if message == kind.rpartition(".")[2] else f"{kind}: {message}"


def _type(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


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


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen ", _STANDARD, _HERE)) or any(part in file for part in _INSTALLED)


def _is_users(trace: TracebackType | None) -> bool:
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_HERE)


def explained(error: StepError, lines: Sequence[str], ending: Ending) -> Explanation:
    """Why an attempt failed, from what it raised, what it printed last, and how it ended.

    What the kernel knows outweighs what was raised, and that outweighs what was printed.
    """
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    number = ending.signal if ending.signal is not None else _signal_behind(ending.code)
    cause, sentence = ending.cause, ending.message
    if not cause:
        cause, sentence = of_exit(code=ending.code, signal_number=number)
    general, advice = signatures.general(cause)
    if "\n  fix: " in error.message:
        advice = ""  # an error of ours brings its own
    elif cause == KILLED and number == signal.SIGTERM:
        advice = signatures.TERMINATED
    plain = _explanation(cause, sentence or general, advice, "")
    if cause not in _OPEN:
        return plain
    raised = list(_raised(error, ending))
    printed = "\n".join(lines) if asks_the_log(error, cause) else ""
    if printed:
        raised += signatures.raised_in(lines)
    row, evidence = signatures.known(raised, printed) or (None, "")
    found = plain if row is None else _explanation(row.cause, row.why, row.advice, evidence)
    if ending.oom and found.cause == KILLED and (number == signal.SIGKILL or row is not None):
        kernel = [line for line in ending.kernel if "Killed process" in line]
        return _explanation(HOST_OOM, *signatures.general(HOST_OOM), "; ".join([ending.oom, *kernel[-1:]]))
    if found.cause in (GPU_HARDWARE, ILLEGAL_MEMORY_ACCESS) and (event := signatures.xid_in(ending.kernel)):
        return _explanation(event[0].cause, event[0].why, event[0].advice, event[1])
    return found


def asks_the_log(error: StepError, cause: str) -> bool:
    """Whether what was printed last has a say: of an exception of the step's own, only a process that died below it."""
    return not cause or cause in _DIED or error.type.endswith(_OTHERS)


def _explanation(cause: str, sentence: str, advice: str, evidence: str) -> Explanation:
    from stoker.worker import signatures

    retryable = signatures.retryable_of(cause)
    return Explanation(cause=cause, sentence=sentence, advice=advice, retryable=retryable, evidence=evidence)


def _raised(error: StepError, ending: Ending) -> Iterator[str]:
    if error.type:
        yield _line(error.type, error.message)
    yield from error.because
    if ending.message:
        yield ending.message


def _signal_behind(code: int | None) -> int | None:
    """The signal that a shell or a container's first process passes on as 128 and its number."""
    number = (code or 0) - 128
    return number if number in _CRASHES or number in (signal.SIGKILL, signal.SIGTERM) else None


def shown(*, why: str, advice: str, evidence: str, body: str = "") -> str:
    """The lines below a failure's traceback that explain it, each ended; what the body says already is left out."""
    rows = (("why", why), ("fix", advice), ("seen", evidence))
    return "".join(f"  {name}: {text}\n" for name, text in rows if text and text not in body)


def of_exit(*, code: int | None, signal_number: int | None) -> tuple[str, str]:
    """The cause and a sentence for a process that ended before its step did."""
    if signal_number is not None:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(signal_number, f"signal {signal_number}")  # real-time signals have no names of their own
        if signal_number in _CRASHES:
            return CRASHED, f"the step's process crashed with {name} (a fault in native code)"
        if signal_number == signal.SIGKILL:
            return KILLED, (
                "the step's process was killed by SIGKILL from outside; without another cause this is often the "
                "kernel, out of memory (see `dmesg`)"
            )
        return KILLED, f"the step's process was ended by {name}"
    return EXITED, f"the step's process left with exit code {code} before the step returned"
