"""Writes text to stdout and stderr: what others wrote is made harmless there, and Stoker's own colours pass.

Text that goes to a regular file stays as it is, so that `stoker logs RUN > FILE` has the very characters; to anything
else, a terminal or a pipe that may end in one, it goes through `core.printable`.

`stoker run train.py 2>&1 | head` ends the reader after ten lines, and a lost terminal has none any more. An error out
of a write would end the driver in the middle of the run: `GuardedStream` drops what is written then, and the run is
asked to stop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import Callable, Final, TextIO

from stoker.core.printable import printable
from stoker.core.values import lazy_pattern

STEP_COLOURS: Final = "STOKER_STEP_COLOURS"
"""The variable that lets the colours of steps' own output pass, where it is set and neither empty nor 0."""
_MARK: Final = f"\ufdd0{os.urandom(8).hex()}"
"""Stands for the escape character of Stoker's own colours until the text is written. No text from elsewhere has it."""

_SEQUENCE: Final = lazy_pattern(_MARK + r"\[[0-9;]*[A-Za-z]")


def painted(text: str, colour: str) -> str:
    """The text in an ANSI colour, such as "1;31", for `write`."""
    return f"{_MARK}[{colour}m{text}{_MARK}[0m"


def control(sequence: str) -> str:
    """A sequence that moves the cursor or erases, such as "3F" or "J", for `write`."""
    return f"{_MARK}[{sequence}"


def unpainted(text: str) -> str:
    """A text for `write` without its colours and other sequences."""
    return _SEQUENCE.sub("", text)


def step_text(text: str) -> str:
    """A line that a step wrote, for `write`: its colours are kept where the setting says so."""
    if os.environ.get(STEP_COLOURS, "") in ("", "0"):
        return text
    return printable(text, colours=True).replace("\x1b", _MARK)


def echo(text: str, *, err: bool = False) -> None:
    """Write a text and a newline to stdout or stderr."""
    write(f"{text}\n", sys.stderr if err else sys.stdout)


def say(text: str) -> None:
    """Write a message that is no result to stderr; without a stderr it is lost."""
    if sys.stderr is None:
        return
    try:
        echo(text, err=True)
    except (OSError, ValueError):  # closed, or on a full disk: nobody can be told
        return


def write(text: str, stream: TextIO) -> None:
    """Write a text to a stream; characters that its encoding lacks are written as escapes."""
    if text.removesuffix("\n").isprintable():  # nothing that `printable` changes, and no mark
        shown = text
    else:
        raw = is_file(stream)
        shown = "\x1b".join(part if raw else printable(part) for part in text.split(_MARK))
    try:
        stream.write(shown)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))


def is_file(stream: TextIO) -> bool:
    """Whether a stream writes to a regular file."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # closed, or no file at all, as in a notebook
        return False


_GONE: Final = frozenset({errno.EPIPE, errno.EIO, errno.ECONNRESET})
"""Errors of a write that nobody will read: a closed pipe, a terminal that was hung up, a closed socket."""


class GuardedStream:
    """Writes to a stream until that fails. A reader that went away stops the run; a full disk only ends the view."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = False
        self.on_reader_gone: Callable[[], None] = _ignore
        """Called once, when there is no reader any more."""

    def write(self, text: str) -> int:
        """Write, or drop."""
        if not self._lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flush, if there is a reader."""
        if not self._lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    def _lose(self, error: Exception) -> None:
        self._lost = True
        drop_rest(self._stream)
        if isinstance(error, OSError) and error.errno in _GONE:
            self.on_reader_gone()


def drop_rest(stream: TextIO) -> None:
    """Let a stream that cannot be written end in nothing: Python flushes it once more when it exits, and would fail."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


def flush_or_drop(stream: TextIO | None) -> OSError | None:
    """Flush a stream at the end of a program; what cannot be written is dropped. Returns the error of that."""
    if stream is None:
        return None
    try:
        stream.flush()
    except OSError as error:
        drop_rest(stream)
        return error
    return None


def open_missing() -> None:
    """Open standard streams that were closed (`>&-`) to nothing: a file that is opened later must not become one."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)  # a program that is started from here has a standard stream, too
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  for ever


def _ignore() -> None:
    """The run has not begun, or is over."""
