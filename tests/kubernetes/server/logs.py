"""What a container prints, and the log endpoint's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from attrs import define, field, frozen
from tests.kubernetes.server.failures import Cause, Refused, bad_request, invalid
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
        left = wanted.limit_bytes
        news = asyncio.Event()
        self._news.add(news)
        try:
            while True:
                news.clear()
                lines = self.lines[position:]
                position += len(lines)
                data = b"".join(wanted.shown(stamp, line) for stamp, line in lines)
                if left is not None:
                    data, left = data[:left], left - len(data)
                if data:
                    yield data
                if (
                    not wanted.follow
                    or (self.closed and position == len(self.lines))
                    or (left is not None and left <= 0)
                ):
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
    tail: int | None
    limit_bytes: int | None
    since: float | None
    """Seconds since 1970 from which lines are wanted."""

    @classmethod
    def of(cls, pod: str, query: Mapping[str, str], clock: Clock) -> LogRequest:
        """The request that a query makes.

        Raises:
            Refused: 400 or 422 for parameters that mean nothing.
        """
        numbers: dict[str, int | None] = {}
        causes = []
        for name, least, why in (
            ("tailLines", 0, "must be greater than or equal to 0"),
            ("limitBytes", 1, "must be greater than 0"),
            ("sinceSeconds", 1, "must be greater than 0"),
        ):
            try:
                numbers[name] = int(query[name]) if name in query else None
            except ValueError:
                raise bad_request(f'strconv.ParseInt: parsing "{query[name]}": invalid syntax') from None
            value = numbers[name]
            if value is not None and value < least:
                causes.append(Cause.invalid(name, str(value), why))
        if "stream" in query and query["stream"] != "All":
            causes.append(Cause("stream", "FieldValueForbidden", "Forbidden: may not be specified"))
        if causes:
            raise invalid("PodLogOptions", pod, causes)
        seconds, since = numbers["sinceSeconds"], None
        if seconds is not None:
            since = clock.now() - seconds
        elif "sinceTime" in query:
            try:
                since = seconds_of(query["sinceTime"])
            except ValueError as error:
                raise bad_request(f'parsing time "{query["sinceTime"]}": {error}') from None
        flags = {name: query.get(name, "false") in ("true", "1") for name in ("follow", "previous", "timestamps")}
        return cls(
            query.get("container", ""),
            flags["follow"],
            flags["previous"],
            flags["timestamps"],
            numbers["tailLines"],
            numbers["limitBytes"],
            since,
        )

    def first(self, book: LogBook) -> int:
        """The position of the first line wanted."""
        position = 0
        if self.since is not None:
            least = int(self.since * 1e9)
            while position < len(book.lines) and book.lines[position][0] < least:
                position += 1
        if self.tail is not None:
            position = max(position, len(book.lines) - self.tail)
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
