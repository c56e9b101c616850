"""A stream whose reader may go away: what is written then is dropped, and the run is asked to stop.

`stoker run train.py 2>&1 | head` ends the reader after ten lines, and a lost terminal has none any more. An error out
of a write would end the driver in the middle of the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Callable, Final, TextIO

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
