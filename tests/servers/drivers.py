"""A driver in a process of its own, whose terminal is read line by line while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Final

from tests.waiting import until

LEAVES: Final = 20.0
"""Seconds in which the second Ctrl-C ends a driver: fewer than it waits for an answer (30), and enough for a machine
that is busy with other tests."""


class Driver:
    """A driver whose terminal is read line by line."""

    def __init__(self, project: Any, *argv: str, python: str = sys.executable, path: str = "") -> None:
        more = {"PYTHONPATH": path} if path else {}
        self.process = subprocess.Popen(
            [python, *argv],
            cwd=project.folder,
            env={**os.environ, "STOKER_HOME": str(project.home), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def says(self, *words: str) -> str:
        """Wait for a line with all words; that line."""
        matching: list[str] = []

        def is_there() -> bool:
            matching[:] = [line for line in self.lines if all(word in line for word in words)]
            assert matching or self.process.poll() is None, self.text
            return bool(matching)

        try:
            until(is_there)
        except AssertionError as error:
            raise AssertionError(f"nothing with {words} in:\n{self.text}") from error
        return matching[0]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        code = self.process.wait(timeout=120)
        self._reader.join(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
