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
"""Signals that a process gets by its own fault; SIGKILL and SIGTERM come from outside."""
_CHAIN: Final = 8
"""Chained exceptions that are searched at most; a longer chain is a recursion."""
_DIED: Final = frozenset({CRASHED, KILLED, EXITED})
"""Ends of a process that the worker got no report of: what it printed last is all that there is."""
_OPEN: Final = _DIED | {USER_ERROR, IMPORT_ERROR, INPUT_ERROR, UNSERIALIZABLE, WORKER_LOST}
"""Causes that leave open why an attempt failed; every other one is an explanation itself."""
_OTHERS: Final = ("subprocess.CalledProcessError", "ChildFailedError")
"""Exceptions that only report that another process failed: the reason is in what that one printed."""
ASK_THE_KERNEL: Final = frozenset({KILLED, GPU_HARDWARE, ILLEGAL_MEMORY_ACCESS})
"""Causes that the kernel's log may explain."""


@attrs.frozen(kw_only=True)
class Ending:
    """How an attempt ended, beside its exception."""

    cause: str = ""
    """The cause that the platform gives; empty where it gives none."""
    message: str = ""
    """The platform's own sentence."""
    code: int | None = None
    """The process's exit code; None where a signal ended it, or where it is not known."""
    signal: int | None = None
    """The number of the signal that ended the process; None where none did."""
    oom: str = ""
    """The proof that the kernel killed for want of memory meanwhile (`kernel.OomKills`); empty without one."""
    kernel: tuple[str, ...] = ()
    """The telling lines of the kernel's log (`kernel.KernelLog`)."""


@attrs.frozen(kw_only=True)
class Explanation:
    """Why an attempt failed."""

    cause: str
    sentence: str
    advice: str
    """What to do; empty where the error itself says it."""
    retryable: Retryable
    """Where another attempt may succeed."""
    evidence: str = ""
    """The line that shows the cause; empty where there is none."""


def describe_exception(error: BaseException) -> StepError:
    """An exception as a document: its type, its message, the traceback as text, and the user's line that raised it.

    A Stoker error that no line of the user's raised has no traceback: its message says all that there is to know.
    """
    user_part = _users(error.__traceback__)
    if isinstance(error, StokerError) and not _is_users(user_part):
        return StepError(type=type(error).__name__, message=_message(error), because=_because(error))
    lines = traceback.format_exception(type(error), error, user_part)
    frames = list(traceback.extract_tb(user_part))
    # The deepest line may be a library's; what the user can look at is the line that called it.
    frames = [frame for frame in frames if not _is_library(frame.filename)] or frames
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return StepError(
        type=_type(error),
        message=_message(error),
        traceback="".join(lines),
        place=location,
        because=_because(error),
    )


def _because(error: BaseException) -> tuple[str, ...]:
    """The exceptions that this one was raised from: a DataLoader's "exited unexpectedly" has its reason there."""
    causes: list[BaseException] = []
    line = [error.__cause__, *getattr(error, "exceptions", ())]
    while line and len(causes) < _CHAIN:
        cause = line.pop(0)
        if isinstance(cause, BaseException) and cause not in causes:
            causes.append(cause)
            line += [cause.__cause__, *getattr(cause, "exceptions", ())]
    return tuple(_line(_type(cause), _message(cause)) for cause in causes)


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


def explain_failure(error: StepError, lines: Sequence[str], ending: Ending) -> Explanation:
    """Why an attempt failed, from what it raised, what it printed last, and how it ended.

    The kernel's evidence outweighs what was raised, and that outweighs what was printed.
    """
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    number = ending.signal if ending.signal is not None else _signal_behind(ending.code)
    cause, sentence = ending.cause, ending.message
    if not cause:
        cause, sentence = of_exit(code=ending.code, signal_number=number)
    general, advice = signatures.general(cause)
    if "\n  fix: " in error.message:
        advice = ""  # a Stoker error brings its own
    elif cause == KILLED and number == signal.SIGTERM:
        advice = signatures.TERMINATED
    plain = _explanation(cause, sentence or general, advice, "")
    if cause not in _OPEN:
        return plain
    raised = list(_raised_texts(error, ending))
    printed = "\n".join(lines) if asks_the_log(error, cause) else ""
    if printed:
        raised += signatures.exceptions_in(lines)
    row, evidence = signatures.find_signature(raised, printed) or (None, "")
    explanation = plain if row is None else _explanation(row.cause, row.why, row.advice, evidence)
    if ending.oom and explanation.cause == KILLED and (number == signal.SIGKILL or row is not None):
        kernel = [line for line in ending.kernel if "Killed process" in line]
        return _explanation(HOST_OOM, *signatures.general(HOST_OOM), "; ".join([ending.oom, *kernel[-1:]]))
    if explanation.cause in (GPU_HARDWARE, ILLEGAL_MEMORY_ACCESS) and (event := signatures.xid_in(ending.kernel)):
        return _explanation(event[0].cause, event[0].why, event[0].advice, event[1])
    return explanation


def asks_the_log(error: StepError, cause: str) -> bool:
    """Whether the last lines of the log count: of the step's own exceptions, for those that report a dead process."""
    return not cause or cause in _DIED or error.type.endswith(_OTHERS)


def _explanation(cause: str, sentence: str, advice: str, evidence: str) -> Explanation:
    from stoker.worker import signatures

    retryable = signatures.retryable_of(cause)
    return Explanation(cause=cause, sentence=sentence, advice=advice, retryable=retryable, evidence=evidence)


def _raised_texts(error: StepError, ending: Ending) -> Iterator[str]:
    if error.type:
        yield _line(error.type, error.message)
    yield from error.because
    if ending.message:
        yield ending.message


def _signal_behind(code: int | None) -> int | None:
    """The signal that a shell or a container's first process passes on as 128 and its number."""
    number = (code or 0) - 128
    return number if number in _CRASHES or number in (signal.SIGKILL, signal.SIGTERM) else None


def explanation_lines(*, why: str, advice: str, evidence: str, body: str = "") -> str:
    """The lines that explain a failure below its traceback, each ended; what the body says already is left out."""
    rows = (("why", why), ("fix", advice), ("seen", evidence))
    return "".join(f"  {name}: {text}\n" for name, text in rows if text and text not in body)


def of_exit(*, code: int | None, signal_number: int | None) -> tuple[str, str]:
    """The cause and a sentence for a process that ended before its step did."""
    if signal_number is not None:
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(signal_number, f"signal {signal_number}")  # real-time signals have no names of their own
        if signal_number in _CRASHES:
            return CRASHED, f"the step's process crashed with {name} (a fault in native code)"
        if signal_number == signal.SIGKILL:
            return KILLED, (
                "the step's process was killed by SIGKILL from outside; without another cause this is often the "
                "kernel, out of memory (see `dmesg`)"
            )
        return KILLED, f"the step's process was ended by {name}"
    return EXITED, f"the step's process left with exit code {code} before the step returned"
