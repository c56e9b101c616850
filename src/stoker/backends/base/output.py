"""A container's output as it comes from an engine, cut into lines, with Stoker's own messages taken out."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from stoker.core.codec import from_json, parse_json
from stoker.core.errors import SettingsError
from stoker.core.plan import LogLine
from stoker.core.protocol import MARK, WorkerEvent

_LAST: Final = 20
_LONGEST: Final = 1 << 20
"""Bytes of a line after which it is handed on in pieces."""


class Reader:
    """Cuts the two streams of one container into lines and messages; `up`: the program inside has begun."""

    def __init__(self) -> None:
        self.up = False
        self._rest: dict[str, bytes] = {}
        self._read: dict[str, int] = {}
        self._skip: dict[str, int] = {}
        self._last: deque[str] = deque(maxlen=_LAST)

    def restart(self) -> None:
        """Expect the output once more from its beginning, and skip what was read already."""
        self._skip = dict(self._read)

    def read(self, stream: str, data: bytes) -> tuple[list[LogLine], list[WorkerEvent]]:
        """The lines and messages that are complete now."""
        skipped = min(self._skip.get(stream, 0), len(data))
        if skipped:
            self._skip[stream] -= skipped
            data = data[skipped:]
        self._read[stream] = self._read.get(stream, 0) + len(data)
        whole, newline, rest = (self._rest.get(stream, b"") + data).rpartition(b"\n")
        if len(rest) > _LONGEST:
            whole, newline, rest = whole + newline + rest, b"\n", b""
        self._rest[stream] = rest
        return self._parse(stream, whole) if newline else ([], [])

    def end(self) -> tuple[list[LogLine], list[WorkerEvent]]:
        """The remaining line without a newline."""
        lines: list[LogLine] = []
        messages: list[WorkerEvent] = []
        for stream, rest in self._rest.items():
            if rest:
                last_lines, last_messages = self._parse(stream, rest)
                lines += last_lines
                messages += last_messages
        self._rest = {}
        return lines, messages

    def last_words(self) -> str:
        """The last lines, for an error message."""
        return " | ".join(line for line in self._last if line.strip())[-2000:]

    def _parse(self, stream: str, data: bytes) -> tuple[list[LogLine], list[WorkerEvent]]:
        now = time.time()
        lines: list[LogLine] = []
        messages: list[WorkerEvent] = []
        for text in data.decode("utf-8", "replace").split("\n"):
            message = _message(text) if stream == "stdout" and text.startswith(MARK) else None
            if message is None:
                self._last.append(text)
                lines.append(LogLine(time=now, stream=stream, text=text))
            else:
                self.up = self.up or message.kind == "up"
                messages.append(message)
        return lines, messages


def _message(text: str) -> WorkerEvent | None:
    """The message of a marked line; None for a line of a step that only looks like one."""
    try:
        return from_json(WorkerEvent, parse_json(text[len(MARK) :]), strict=False)
    except SettingsError:
        return None
