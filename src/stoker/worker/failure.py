"""Turns an exception or the way a process ended into a cause and words for a person.

The user's own traceback is shown whole; Stoker's frames above it are folded away.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Iterator, Sequence

import attrs

from stoker.core.errors import StokerError
from stoker.core.protocol import StepError
from stoker.core.status import (
    CRASHED,
    DRIVER_BROKEN,
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
from stoker.core.usercode import is_package_file, user_traceback
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import MESSAGE_LIMIT, TEXT_LIMIT, WHOLE_LIMIT, bounded
from stoker.worker.notice import Terminated

if TYPE_CHECKING:
    import traceback

    from stoker.worker.signatures import Signature

_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRAPPERS: Final = frozenset(os.path.join(_HERE, "worker", name) for name in ("evidence.py", "rank.py"))
"""Modules whose functions stand around a framework's in a rank."""
_STANDARD: Final = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_CRASHES: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
"""Signals that a process gets by its own fault; SIGKILL and SIGTERM come from outside."""
_CHAIN: Final = 8
"""Chained exceptions that are searched at most; a longer chain is a recursion."""
_CHAIN_SHOWN: Final = 100
"""Chained exceptions that a traceback shows; of a longer chain only the last one, since each may be long itself."""
_ENDING: Final = 1.0
"""Seconds that the kernel may take between closing a process's sockets and telling its parent of its end."""
WHOLE: Final = "the attempt's error.txt"
"""What a text that is cut calls the file that has all of it; `stoker show` names its path."""
_DIED: Final = frozenset({CRASHED, KILLED, EXITED})
"""Ends of a process that the worker got no report of: what it printed last is all that there is."""
_FAULT: Final = "Fatal Python error: "
"""How faulthandler's report begins: https://docs.python.org/3/library/faulthandler.html"""
_RAISED: Final = lazy_pattern(
    # An exception that a process died of, as Python prints it, also with a rank before it; or as C++ does.
    r"^(?:\[[^\]]*\]:? *)*(?:((?:\w+\.)*\w*(?:Error|Exception)\w*)(?::? *(.*))?|\s*what\(\): +(.*))$"
)
_FAULT_FRAME: Final = lazy_pattern(r'  File "(?P<file>.*)", line (?P<line>[0-9]+) in (?P<name>.+)')
_OF_A_GPU: Final = lazy_pattern(r"\bcu(?:da|dnn|blas)|\bNCCL|\bNVML", re.IGNORECASE)
"""Words of an error that a GPU which failed may have caused: CUDA calls that most often an unknown error."""
_FRAME: Final = lazy_pattern(r'  File "(?P<file>.*)", line [0-9]+')
_LONG_ROW: Final = 300
"""Characters of a line of an exception's message where a traceback is to be short."""
_OPEN: Final = _DIED | {USER_ERROR, IMPORT_ERROR, INPUT_ERROR, UNSERIALIZABLE, WORKER_LOST}
"""Causes that leave open why an attempt failed; every other one is an explanation itself."""
_SEARCHED: Final = 60
"""Last lines, but for frames, in which a reason is searched for; a caught error further up would mislead. JAX writes
thirty frames of its own after its reason."""
_TERMINATED: Final = (
    "look who asked for its end: a person, or a platform that takes its place back; "
    "the last lines of `stoker logs` may say more"
)
"""The advice after SIGTERM, which the OOM killer never sends."""
_OTHERS: Final = ("subprocess.CalledProcessError", "ChildFailedError")
"""Exceptions that only report that another process failed: the reason is in what that one printed."""
ASK_THE_KERNEL: Final = frozenset({KILLED, GPU_HARDWARE, ILLEGAL_MEMORY_ACCESS})
"""Causes that the kernel's log may explain."""


@frozen(kw_only=True)
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
    driver: tuple[Signature, str] | None = None
    """What the driver reported of the attempt's devices meanwhile (`xids.reported`)."""


@frozen(kw_only=True)
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


def describe_exception(error: BaseException, *, keep: Callable[[str], str] | None = None) -> StepError:
    """An exception as a document: its type, its message, the traceback as text, and the user's line that raised it.

    A Stoker error that no line of the user's raised has no traceback: its message says all that there is to know.
    Texts that are too long for a row are cut; `keep` stores the whole and returns its digest, or "" where it cannot.
    """
    user_part = _users(error.__traceback__)
    if isinstance(error, StokerError) and not _is_users(user_part):
        return StepError(type=type(error).__name__, message=_message(error), because=_because(error))
    late: list[BaseException] = []
    text = _traceback(error, user_part, late)
    words = _words(error)
    digest = ""
    if keep is not None and (len(text) > TEXT_LIMIT or len(words) > MESSAGE_LIMIT):
        digest = keep(bounded(text, WHOLE_LIMIT))
    whole = WHOLE if digest else ""
    import traceback  # a run without failures does not need it

    frames = list(traceback.extract_tb(user_part))
    # The deepest line may be a library's; what the user can look at is the line that called it.
    frames = [frame for frame in frames if not _is_library(frame.filename)] or frames
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return StepError(
        type=_type(error),
        message=bounded(words, whole=whole),
        traceback=bounded(text, TEXT_LIMIT, whole=whole),
        place=location,
        because=(*_because(error), *(_line(_type(one), _message(one)) for one in late)),
        whole=digest,
    )


def _traceback(error: BaseException, trace: TracebackType | None, late: list[BaseException]) -> str:
    """The traceback with those of the exceptions that led to it, as far as Python can print them. What is raised
    meanwhile goes into `late`: torch's handler of SIGCHLD raises why a loader's worker died."""
    if isinstance(error, StokerError) and trace is not None:  # its message says it all
        return f"{user_traceback(error)}\n"
    import traceback

    causes, link = 0, error
    while (earlier := _earlier(link)) is not None and causes <= _CHAIN_SHOWN:
        causes, link = causes + 1, earlier
    chained = causes <= _CHAIN_SHOWN
    try:
        shown = traceback.TracebackException(type(error), error, trace, compact=True)
        _leave_out_wrappers(shown)
        text = "".join(shown.format(chain=chained))
    except Exception as broken:  # attributes of the user's own, or groups within groups within groups
        late.append(broken)
        frames = "".join(traceback.format_tb(trace))
        text = f"Traceback (most recent call last):\n{frames}{_line(_type(error), _message(error))}\n"
        return f"{text}<the rest of the traceback cannot be shown: {_line(_type(broken), _message(broken))}>\n"
    return text if chained else f"<more than {_CHAIN_SHOWN} earlier exceptions left out>\n\n{text}"


def _leave_out_wrappers(shown: traceback.TracebackException | None) -> None:
    """Take the frames out of a traceback that stand between the user's call of a framework and the framework."""
    while shown is not None:
        shown.stack[:] = [frame for frame in shown.stack if frame.filename not in _WRAPPERS]
        shown = shown.__cause__ or shown.__context__


def _earlier(error: BaseException) -> BaseException | None:
    """The exception that Python prints before this one."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _because(error: BaseException) -> tuple[str, ...]:
    """The exceptions that this one was raised from: a DataLoader's "exited unexpectedly" has its reason there."""
    causes: list[BaseException] = []
    line = [error.__cause__, *_members(error)]
    while line and len(causes) < _CHAIN:
        cause = line.pop(0)
        if isinstance(cause, BaseException) and not any(cause is other for other in causes):
            causes.append(cause)
            line += [cause.__cause__, *_members(cause)]
    return (
        *(_line(_type(cause), _message(cause)) for cause in causes),
        *(line for one in (error, *causes) for line in _signals_of_loaders(one)),
    )


def _signals_of_loaders(error: BaseException) -> Iterator[str]:
    """What the end of a DataLoader's worker leaves out of the exception: the signal that ended the worker.

    Torch names it only where it hears of the end by SIGCHLD. On a busy machine its own look comes first ("exited
    unexpectedly"), or the worker's closed socket does, before the worker is seen to have ended ("connection reset"):
    the processes that its frame holds say more (torch/utils/data/dataloader.py, `_try_get_data`).
    """
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_code.co_name != "_try_get_data":
            continue
        workers = frame.f_locals.get("failed_workers")
        if not workers and isinstance(error, (OSError, EOFError)):
            workers = getattr(frame.f_locals.get("self"), "_workers", None)
            _await_one(workers if isinstance(workers, list) else [])
        for worker in workers if isinstance(workers, list) else ():
            code = getattr(worker, "exitcode", None)
            if isinstance(code, int) and code < 0:
                name = signal.strsignal(-code) or f"signal {-code}"
                yield f"RuntimeError: DataLoader worker (pid {worker.pid}) is killed by signal: {name}."


def _await_one(processes: list[Any]) -> None:
    """Wait until one of some child processes has ended, `_ENDING` seconds at most: its socket closes before it ends.

    Torch's handler of SIGCHLD may raise here what the process's exit code says, too.
    """
    from multiprocessing import connection  # only a program with such a loader has it anyhow

    with contextlib.suppress(AttributeError, TypeError, OSError, ValueError, RuntimeError):
        ready = connection.wait([process.sentinel for process in processes], _ENDING)
        for process in processes:
            if process.sentinel in ready:  # its files are closed, and its exit code comes a moment later
                process.join(_ENDING)


def _line(kind: str, message: str) -> str:
    """An exception as Python prints it; one without words has its type for a message."""
    return kind if message == kind.rpartition(".")[2] else f"{kind}: {message}"


def _type(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def _members(error: BaseException) -> Sequence[object]:
    """The exceptions of a group; of another type, an attribute of the same name may be anything."""
    try:
        members = getattr(error, "exceptions", ())
    except Exception:  # a property of the user's own
        return ()
    return members[:_CHAIN] if isinstance(members, (list, tuple)) else ()


def _message(error: BaseException) -> str:
    return bounded(_words(error))


def _words(error: BaseException) -> str:
    """The message, however long. One that never ends is ended as the step is, by its timeout."""
    try:
        text = str.__str__(str(error))  # not of a subclass, whose own methods could fail later
    except (Terminated, KeyboardInterrupt):
        raise
    except BaseException as broken:  # the user's own __str__ may fail, or leave
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
    return file.startswith(("<frozen ", _STANDARD, _HERE)) or is_package_file(file)


def _is_users(trace: TracebackType | None) -> bool:
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_HERE)


def explain_failure(error: StepError, lines: Sequence[str], ending: Ending) -> Explanation:
    """Why an attempt failed, from what it raised, what it printed last, and how it ended.

    The kernel's evidence outweighs what was raised, and that outweighs what was printed.
    """
    from stoker.worker import signatures
    from stoker.worker.nativestack import NATIVE_FRAME

    number = ending.signal if ending.signal is not None else _signal_behind(ending.code)
    cause, sentence = ending.cause, ending.message
    if not cause:
        cause, sentence = of_exit(code=ending.code, signal_number=number)
    general, advice = signatures.general(cause)
    if "\n  fix: " in error.message:
        advice = ""  # a Stoker error brings its own
    elif cause == KILLED and number == signal.SIGTERM:
        advice = _TERMINATED
    plain = _explanation(cause, sentence or general, advice, "")
    if cause not in _OPEN:
        return plain
    raised = list(_raised_texts(error, ending))
    frames = (_FAULT_FRAME, NATIVE_FRAME)
    told = [line for line in lines if not any(frame.fullmatch(line.rstrip()) for frame in frames)]
    last = told[-_SEARCHED:] if asks_the_log(error, cause) else ()
    printed = "\n".join(last)
    raised += exceptions_in(last)
    row, evidence = signatures.find_signature(raised, printed) or (None, "")
    explanation = plain if row is None else _explanation(row.cause, row.why, row.advice, evidence)
    if explanation.cause == CRASHED and not explanation.evidence:
        explanation = attrs.evolve(explanation, evidence=place_of_fault(lines))
    if ending.oom and explanation.cause == KILLED and (number == signal.SIGKILL or row is not None):
        kernel = [line for line in ending.kernel if "Killed process" in line]
        return _explanation(HOST_OOM, *signatures.general(HOST_OOM), "; ".join([ending.oom, *kernel[-1:]]))
    event = None
    if explanation.cause in (GPU_HARDWARE, ILLEGAL_MEMORY_ACCESS):
        event = signatures.xid_in(ending.kernel) or ending.driver
    elif explanation.cause in (CRASHED, DRIVER_BROKEN) or (
        explanation.cause in _OPEN and _OF_A_GPU.search("\n".join([*raised, printed]))
    ):
        event = ending.driver
    return explanation if event is None else _explanation(event[0].cause, event[0].why, event[0].advice, event[1])


def place_of_fault(lines: Sequence[str]) -> str:
    """Where Python stood when native code failed, from what faulthandler wrote last: the innermost line, the innermost
    one of the user's, and the library of native code; empty where it wrote nothing."""
    from stoker.worker.nativestack import place_of_native_fault

    begin = max((number for number, line in enumerate(lines) if line.startswith(_FAULT)), default=len(lines))
    frames = [match for line in lines[begin:] if (match := _FAULT_FRAME.fullmatch(line.rstrip()))]
    native = place_of_native_fault(lines)
    if not frames and not native:
        return ""
    place = lines[begin].strip() if begin < len(lines) else "a fault in native code"
    if frames:
        inner, *outer = frames
        place += f", in {inner['name']} ({inner['file']}:{inner['line']})"
        called = next((frame for frame in outer if not _is_library(frame["file"])), None)
        if called is not None and _is_library(inner["file"]):
            place += f", called in {called['name']} ({called['file']}:{called['line']})"
    return f"{place}; native: {native}" if native else place


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


def explanation_lines(
    *, why: str, advice: str, evidence: str, whole: str = "", earlier: str = "", body: str = ""
) -> str:
    """The lines that explain a failure below its traceback, each ended; what the body says already is left out."""
    rows = (("why", why), ("fix", advice), ("seen", evidence), ("before", earlier), ("whole", whole))
    return "".join(f"  {name}: {text}\n" for name, text in rows if text and text not in body)


def short_traceback(text: str, lines: int) -> str:
    """A traceback in so many lines: of the last exception, the innermost frames of the user's, and what it says."""
    rows = text.split("\n")
    begins = [number for number, row in enumerate(rows) if row.startswith("Traceback (most recent call last):")]
    if len(rows) <= lines or not begins:
        return text
    rows = rows[begins[-1] :]
    frames: list[list[str]] = []
    says = next((number for number, row in enumerate(rows[1:], 1) if not row.startswith("  ")), len(rows))
    for row in rows[1:says]:
        if row.startswith("  File "):
            frames.append([row])
        elif frames and not set(row) <= set(" ^~"):
            frames[-1].append(row)
    own = [frame for frame in frames if (match := _FRAME.match(frame[0])) and not _is_library(match["file"])] or frames
    words = [row if len(row) <= _LONG_ROW else row[: _LONG_ROW - 1] + "…" for row in rows[says:]][: max(1, lines - 3)]
    shown: list[str] = []
    while own and len(shown) + len(own[-1]) + len(words) < lines:
        shown = [*own.pop(), *shown]
    return "\n".join([rows[0], *shown, *words])


def of_exit(*, code: int | None, signal_number: int | None) -> tuple[str, str]:
    """The cause and a sentence for a process that ended before its step did."""
    if signal_number is not None:
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(signal_number, f"signal {signal_number}")  # real-time signals have no names of their own
        if signal_number in _CRASHES:
            kind = "segmentation fault" if name == "SIGSEGV" else "fault"
            return CRASHED, f"the step's process crashed with {name} (a {kind} in native code)"
        if signal_number == signal.SIGKILL:
            return KILLED, (
                "the step's process was killed by SIGKILL from outside; without another cause this is often the "
                "kernel, out of memory (see `dmesg`)"
            )
        return KILLED, f"the step's process was ended by {name}"
    return EXITED, f"the step's process left with exit code {code} before the step returned"


def exceptions_in(lines: Iterable[str]) -> Iterator[str]:
    """The exceptions that a process printed, as "type: message": what it died of without a word to the worker."""
    for line in lines:
        match = _RAISED.match(line)
        if match is not None:
            kind, message, native = match.groups()
            yield f"{kind}: {message or ''}" if native is None else native
