"""Writes text to stdout and stderr: what others wrote is made harmless there, and Stoker's own colours pass.

Text that goes to a regular file stays as it is, so that `stoker logs RUN > FILE` has the very characters; to anything
else, a terminal or a pipe that may end in one, it goes through `core.printable`.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Final, TextIO

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
