"""What is new of jobs between two polls: statuses, lines and events, put in by any thread, taken out by `poll`; and a
container's output as it comes from an engine, cut into lines, with Stoker's own messages taken out."""

from __future__ import annotations

import queue
import time
from collections import deque
from typing import Callable, Final, Iterable, Sequence

import attrs

from stoker.core.codec import from_json, parse_json
from stoker.core.errors import SettingsError
from stoker.core.plan import JobStatus, LogLine
from stoker.core.protocol import ASIDE, MARK, METRICS, WorkerEvent
from stoker.core.wire import Wakeup


class Updates:
    """The latest status of each job that changed, and all that it wrote meanwhile; for one thread."""

    def __init__(self) -> None:
        self.lines: dict[str, list[LogLine]] = {}
        self._statuses: dict[str, JobStatus] = {}
        self._events: dict[str, list[WorkerEvent]] = {}

    def put(self, name: str, status: JobStatus) -> None:
        """Set a job's status; a job keeps the start, while it runs also the lease, of an earlier status of one poll."""
        before = self._statuses.get(name)
        if before is not None and before.state == "running":
            # It runs, it has devices, it began: three statuses that may come between two polls, in any order.
            if status.state == "running":
                status = attrs.evolve(status, lease=status.lease or before.lease)
            if status.started is None and before.started is not None:
                status = attrs.evolve(status, started=before.started)
        self._statuses[name] = status

    def write(self, name: str, lines: Sequence[LogLine]) -> None:
        """Add lines that a job wrote."""
        self.lines.setdefault(name, []).extend(lines)

    def event(self, name: str, event: WorkerEvent) -> None:
        """Add an event of a running worker; events of unknown kinds are ignored."""
        if event.kind == "began":
            self.put(name, JobStatus(state="running", started=event.time))
        elif event.kind == "lines":
            aside = event.note == ASIDE
            lines = [
                LogLine(time=time, stream=stream, text=text, rank=rank, aside=aside)
                for time, stream, rank, text in event.lines
            ]
            self.write(name, lines)
        elif event.kind in ("noted", METRICS):
            self._events.setdefault(name, []).append(event)

    def take(self) -> dict[str, JobStatus]:
        """All that is new, once."""
        statuses, self._statuses = self._statuses, {}
        lines, self.lines = self.lines, {}
        events, self._events = self._events, {}
        for name in {*lines, *events}:
            status = statuses.get(name) or JobStatus(state="running")
            statuses[name] = _complete(status, tuple(lines.get(name, ())), tuple(events.get(name, ())))
        return statuses


class Channel:
    """Updates from watching threads to the thread that polls. `over` is called there with each job that ended."""

    def __init__(self, over: Callable[[str], None]) -> None:
        self._over = over
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._updates = Updates()
        self._wakeup = Wakeup()

    # From any thread

    def put(self, name: str, status: JobStatus) -> None:
        """Set a job's status."""
        self.call(lambda: self._put(name, status))

    def write(self, name: str, lines: Sequence[LogLine]) -> None:
        """Add lines that a job wrote."""
        self.call(lambda: self._updates.write(name, lines))

    def event(self, name: str, event: WorkerEvent) -> None:
        """Add an event of a running worker."""
        self.call(lambda: self._updates.event(name, event))

    def call(self, work: Callable[[], None]) -> None:
        """Call a function in the thread that polls."""
        self._calls.put(work)
        self._wakeup.set()

    # In the thread that polls

    def wakeups(self) -> Iterable[int]:
        """The descriptor that is readable while there is news."""
        return (self._wakeup.descriptor,)

    def receive(self) -> None:
        """Take in what other threads put."""
        self._wakeup.clear()
        while not self._calls.empty():
            self._calls.get()()

    def take(self) -> dict[str, JobStatus]:
        """What is new of each job since the last call."""
        self.receive()
        return self._updates.take()

    def close(self) -> None:
        """Close the descriptors; what a thread still puts is dropped."""
        self._wakeup.close()

    def _put(self, name: str, status: JobStatus) -> None:
        self._updates.put(name, status)
        if status.lost or status.state in ("succeeded", "failed"):
            self._over(name)


def _complete(status: JobStatus, lines: tuple[LogLine, ...], events: tuple[WorkerEvent, ...]) -> JobStatus:
    # Built by hand: attrs.evolve costs ten times as much, and this runs for every step.
    return JobStatus(
        state=status.state,
        result=status.result,
        cause=status.cause,
        message=status.message,
        exit_code=status.exit_code,
        started=status.started,
        ended=status.ended,
        lost=status.lost,
        lines=lines,
        usage=status.usage,
        lease=status.lease,
        events=events,
    )


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
