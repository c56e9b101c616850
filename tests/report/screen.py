"""A screen for tests: shows what a terminal shows of what a program writes to a real pseudo-terminal."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Callable, Final, Sequence

PATIENCE: Final = 120.0
"""Seconds to wait for something on the screen, on a machine that is busy."""
_SEQUENCE: Final = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-9;?]*)?$")


class Screen:
    """Rows of characters with a cursor. Knows what Stoker writes: lines, colours, up by lines, erase to an end."""

    def __init__(self, *, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []
        """Lines that have left the screen at its top."""
        self._lines = [""] * rows
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """Show a text."""
        text = self._rest + text
        begun = _BEGUN.search(text)
        self._rest = text[begun.start() :] if begun else ""
        text = text[: begun.start()] if begun else text
        position = 0
        for match in _SEQUENCE.finditer(text):
            self._write(text[position : match.start()])
            self._obey(match[1], match[2])
            position = match.end()
        self._write(text[position:])

    @property
    def lines(self) -> list[str]:
        """The lines that are seen, without empty ones below the last."""
        lines = [line.rstrip() for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        """What is seen."""
        return "\n".join(self.lines)

    def narrow(self, columns: int) -> None:
        """Wrap the lines at fewer columns; the cursor is at the begin of a line."""
        lines = [line.rstrip() for line in self._lines[: self._row]]
        wrapped = [line[at : at + columns] for line in lines for at in range(0, max(1, len(line)), columns)]
        self.columns = columns
        self.scrolled += wrapped[: max(0, len(wrapped) + 1 - self.rows)]
        wrapped = wrapped[-(self.rows - 1) :]
        self._row, self._column = len(wrapped), 0
        self._lines = [*wrapped, *[""] * (self.rows - len(wrapped))]

    def _write(self, text: str) -> None:
        for letter in text:
            if letter == "\r":
                self._column = 0
            elif letter == "\n":
                self._down()
            else:
                assert letter >= " ", f"a control character: {letter!r}"
                if self._column == self.columns:
                    self._column = 0
                    self._down()
                line = self._lines[self._row].ljust(self._column)
                self._lines[self._row] = line[: self._column] + letter + line[self._column + 1 :]
                self._column += 1

    def _down(self) -> None:
        if self._row == self.rows - 1:
            self.scrolled.append(self._lines.pop(0).rstrip())
            self._lines.append("")
        else:
            self._row += 1

    def _obey(self, arguments: str, command: str) -> None:
        number = int(arguments) if arguments.isdecimal() else 1
        if command == "F":
            self._row, self._column = max(0, self._row - number), 0
        elif command == "K":
            assert arguments in ("", "0")
            self._lines[self._row] = self._lines[self._row][: self._column]
        elif command == "J":
            assert arguments in ("", "0")
            self._lines[self._row] = self._lines[self._row][: self._column]
            self._lines[self._row + 1 :] = [""] * (self.rows - self._row - 1)
        else:
            assert command == "m", f"a sequence that nobody writes: {arguments}{command}"


class Terminal:
    """A program on a pseudo-terminal with a screen."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, env: dict[str, str], columns: int = 100, rows: int = 30
    ) -> None:
        self.screen = Screen(columns=columns, rows=rows)
        self._leader, follower = pty.openpty()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        names = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES", "CI", "NO_COLOR")}
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env={**names, "TERM": "xterm-256color"},
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (one thread)
        )
        os.close(follower)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._leader)

    def send(self, text: str) -> None:
        """Type."""
        os.write(self._leader, text.encode())

    def resize(self, *, columns: int) -> None:
        """Make the terminal narrower: what was written wraps, as terminals do it."""
        size = struct.pack("HHHH", self.screen.rows, columns, 0, 0)
        self.screen.narrow(columns)
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, size)

    def wait_for(self, condition: Callable[[str], object], patience: float = PATIENCE) -> str:
        """Read until the screen fulfils a condition; returns its text then."""
        until = time.monotonic() + patience
        while not condition(self.screen.text):
            assert time.monotonic() < until, f"not seen:\n{self.screen.text}"
            assert self._read(1.0), f"the program ended, with this on the screen:\n{self.screen.text}"
        return self.screen.text

    def end(self, patience: float = PATIENCE) -> int:
        """Read until the program ends; its exit code."""
        until = time.monotonic() + patience
        while self._read(1.0):
            assert time.monotonic() < until, f"it does not end:\n{self.screen.text}"
        return self.process.wait(timeout=PATIENCE)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._leader], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._leader, 65536)
        except OSError:  # Linux: the last process has closed the terminal
            return False
        self.screen.feed(self._decoder.decode(piece))
        return bool(piece)
