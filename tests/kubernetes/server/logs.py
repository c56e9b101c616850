"""What a container prints, and the log endpoint's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from attrs import define, field, frozen
from tests.kubernetes.server.failures import Refused, bad_request
from tests.kubernetes.server.objects import Clock, nano_stamp, seconds_of


@define(eq=False)
class LogBook:
    """The lines that one run of a container printed; stdout and stderr together."""

    clock: Clock
    lines: list[tuple[int, bytes]] = field(factory=list)
    """Time in nanoseconds since 1970, and the line with its end, if it had one."""
    closed: bool = False
    """Whether nothing more will come."""
    _rest: bytes = b""
    _news: set[asyncio.Event] = field(factory=set)

    def add(self, data: bytes) -> None:
        """Add what was read from the container."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._append(line + b"\n")
        if whole:
            self._wake()

    def close(self) -> None:
        """Nothing more will come."""
        if self._rest:
            self._append(self._rest)
            self._rest = b""
        self.closed = True
        self._wake()

    def _append(self, line: bytes) -> None:
        stamp = int(self.clock.now() * 1e9)
        if self.lines and stamp <= self.lines[-1][0]:
            stamp = self.lines[-1][0] + 1
        self.lines.append((stamp, line))

    def _wake(self) -> None:
        for event in self._news:
            event.set()

    async def stream(self, wanted: LogRequest) -> AsyncIterator[bytes]:
        """The lines that a request asks for, and with `follow` all that come until the container has ended."""
        position = wanted.first(self)
        news = asyncio.Event()
        self._news.add(news)
        try:
            while True:
                news.clear()
                lines = self.lines[position:]
                position += len(lines)
                data = b"".join(wanted.shown(stamp, line) for stamp, line in lines)
                if data:
                    yield data
                if not wanted.follow or (self.closed and position == len(self.lines)):
                    return
                await news.wait()
        finally:
            self._news.discard(news)


@frozen
class LogRequest:
    """The parameters of the log endpoint."""

    container: str
    follow: bool
    previous: bool
    timestamps: bool
    since: float | None
    """Seconds since 1970 from which lines are wanted."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> LogRequest:
        """The request that a query makes.

        Raises:
            Refused: 400 for a time that is none.
        """
        try:
            since = seconds_of(query["sinceTime"]) if "sinceTime" in query else None
        except ValueError as error:
            raise bad_request(f'parsing time "{query["sinceTime"]}": {error}') from None
        follow, previous, timestamps = (
            query.get(name, "false") in ("true", "1") for name in ("follow", "previous", "timestamps")
        )
        return cls(query.get("container", ""), follow, previous, timestamps, since)

    def first(self, book: LogBook) -> int:
        """The position of the first line wanted."""
        least, position = int((self.since or 0.0) * 1e9), 0
        while position < len(book.lines) and book.lines[position][0] < least:
            position += 1
        return position

    def shown(self, stamp: int, line: bytes) -> bytes:
        """A line as this request wants it."""
        return f"{nano_stamp(stamp)} ".encode() + line if self.timestamps else line


def unreachable_node(address: str, namespace: str, pod: str, container: str) -> Refused:
    """500 while the pod's node does not answer."""
    return Refused(
        500,
        f'Get "https://{address}:10250/containerLogs/{namespace}/{pod}/{container}": dial tcp {address}:10250: '
        "connect: connection refused",
    )
