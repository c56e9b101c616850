"""Lines of logs as rows of a page, and new ones for browsers that follow them: each log is read once, however many look
at it.

A reader looks at its file twice a second and makes one event of what is new, which every browser gets as the same
bytes. Of very many lines the last ones are sent, and how many were left out: a browser shows no ten thousand lines a
second, and no server should write them for each of fifty viewers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from typing import Any, AsyncIterator, Final, Iterator

import attrs

from stoker.client import Step
from stoker.client.logs import last_attempt
from stoker.core.errors import InfrastructureError, StokerError
from stoker.core.plan import LogLine
from stoker.core.status import STEP_DONE
from stoker.report import markup
from stoker.report.markup import Html, element, joined
from stoker.store.logs import Ranks
from stoker.store.store import Store

PAGE: Final = 1000
"""Lines of a page."""
MOST_FOUND: Final = 500
"""Lines that a search shows."""


@attrs.frozen(kw_only=True)
class LogPage:
    """A page of a log."""

    attempt: int
    attempts: tuple[int, ...]
    rank: Ranks
    ranks: tuple[int, ...]
    rows: Html
    first: int
    """The number of the first line that it shows, from 1."""
    shown: int
    total: int
    """Lines of the log so far."""
    offset: int = 0
    """Bytes so far, from which a browser follows it."""
    follows: bool = False
    """Whether more may come."""
    query: str = ""
    """What is searched in it; empty for none."""


def log_page(store: Store, step: Step, *, attempt: int | None, rank: Ranks, start: int | None, query: str) -> LogPage:
    """Lines of an attempt at a step: the last ones, those from number `start` on, or those with a text in them."""
    newest = last_attempt(store, step.run_id, step.key)
    number = newest if attempt is None else attempt
    place: tuple[str, str, int] = (step.run_id, step.key, number)
    logs = store.logs
    last, offset = logs.last(*place, PAGE, rank=rank)
    total = logs.count(*place, offset, rank=rank)
    first = max(1, total - len(last) + 1)
    found: Iterator[tuple[int, LogLine]] = enumerate(last, first)
    if query:
        found = _found(logs.lines(*place, rank=rank), query)
    elif start is not None:
        first = max(1, min(start, total))
        found = _slice(logs.lines(*place, rank=rank), first)
    rows = [row_of(line, number=n) for n, line in found]
    return LogPage(
        attempt=number,
        attempts=tuple(logs.attempts(step.run_id, step.key)),
        rank=rank,
        # A log whose last lines have no rank is read no further: it may be long, and of a step of one process.
        ranks=tuple(logs.ranks(*place)) if rank is not None or any(line.rank is not None for line in last) else (),
        rows=joined(rows),
        first=first,
        shown=len(rows),
        total=total,
        offset=offset,
        follows=step.status == "running" and number == newest and not query and start is None,
        query=query,
    )


def row_of(line: LogLine, number: int | None = None) -> Html:
    """A line with its number, its time and its rank."""
    anchor = f"L{number}" if number is not None else None
    count: Html = (
        element("span", {"class": "n", "id": anchor}, str(number)) if anchor else Html('<span class="n"></span>')
    )
    clock = time.strftime("%H:%M:%S", time.localtime(line.time)) if line.time else ""
    rank = element("span", {"class": "rank"}, f"r{line.rank}") if line.rank is not None else Html("")
    text = element("span", {"class": "x"}, markup.line(line.text))
    kind = "line stderr" if line.stream == "stderr" else "line"
    return element("div", {"class": kind}, count, element("span", {"class": "t"}, clock), rank, text)


def rank_of(text: str) -> Ranks:
    """The rank of an address: a number, "launcher", or None for all."""
    if text == "launcher":
        return "launcher"
    return int(text) if text.isdecimal() and len(text) < 10 else None


def text_lines(store: Store, step: Step, attempt: int, rank: Ranks) -> Iterator[bytes]:
    """A whole log as a file of text, some lines at a time."""
    part: list[str] = []
    for line in store.logs.lines(step.run_id, step.key, attempt, rank=rank):
        part.append(line.text if line.rank is None else f"[rank {line.rank}] {line.text}")
        if len(part) >= PAGE:
            yield ("\n".join(part) + "\n").encode("utf-8", "replace")
            part = []
    yield ("\n".join(part) + "\n").encode("utf-8", "replace") if part else b""


def _found(lines: Iterator[LogLine], query: str) -> Iterator[tuple[int, LogLine]]:
    wanted, shown = query.casefold(), 0
    for number, line in enumerate(lines, 1):
        if wanted in markup.plain(line.text).casefold():
            yield number, line
            shown += 1
            if shown >= MOST_FOUND:
                return


def _slice(lines: Iterator[LogLine], first: int) -> Iterator[tuple[int, LogLine]]:
    for number, line in enumerate(lines, 1):
        if number >= first + PAGE:
            return
        if number >= first:
            yield number, line


def line_document(line: LogLine, number: int) -> dict[str, Any]:
    """A line as JSON."""
    return {"number": number, "time": line.time, "stream": line.stream, "rank": line.rank, "text": line.text}


_LOGGER: Final = logging.getLogger(__name__)

INTERVAL: Final = 0.5
"""Seconds between two looks at a file."""
MOST_LINES: Final = 300
"""Lines of one event."""
_KEPT: Final = 8
"""Events of a log that wait for slow browsers; one that is slower reads the file itself."""
_READ: Final = 4 * 1024 * 1024
"""Bytes that are read at a look: 80,000 lines of 100 characters a second."""
_AGAIN: Final = 5.0
"""Seconds until a log that could not be read is looked at again."""
_QUIET: Final = 15.0
"""Seconds after which a browser hears that the connection lives; proxies close one that is silent for a minute."""

Place = tuple[str, str, int, Ranks]
"""Run, key, attempt and rank."""


@attrs.frozen(kw_only=True)
class LogNews:
    """What was new in a log at one look."""

    start: int
    """The offset of the first byte of it."""
    end: int
    """The offset behind the last one."""
    data: bytes
    """As browsers get it."""


class TooManyFollow(InfrastructureError):
    """The server has no connection left for another browser that follows a log."""


class Streams:
    """The readers of the logs that somebody follows."""

    def __init__(self, most: int = 500) -> None:
        self.most = most
        """Browsers that may follow at once: each holds a connection, and pages need some, too."""
        self._readers: dict[Place, _LogReader] = {}
        self._closing = False

    def check(self) -> None:
        """Raise `TooManyFollow` if no more browsers can follow logs."""
        if sum(reader.viewers for reader in self._readers.values()) >= self.most:
            message = f"{self.most:,} browsers follow logs already, as many as this server has connections for"
            raise TooManyFollow(message, fix="close some of them, or start the server with a higher `ulimit -n`")

    def close(self) -> None:
        """End every stream: the server stops."""
        self._closing = True
        for reader in self._readers.values():
            reader.wake()

    async def follow(self, store: Store, place: Place, offset: int) -> AsyncIterator[bytes]:
        """What comes behind an offset of a log, as server-sent events, until the attempt ends."""
        reader = self._readers.get(place)
        if reader is None:
            reader = self._readers[place] = _LogReader(store, place, offset)
        reader.viewers += 1
        try:
            async for data in reader.follow(offset):
                yield data
                if self._closing:
                    return
            yield b"event: end\ndata: {}\n\n"
        finally:
            reader.viewers -= 1
            if not reader.viewers:
                reader.stop()
                if self._readers.get(place) is reader:
                    del self._readers[place]


class _LogReader:
    """Reads one log for all who follow it."""

    def __init__(self, store: Store, place: Place, offset: int) -> None:
        self.viewers = 0
        self._store = store
        self._place = place
        self._offset = offset
        self._events: deque[LogNews] = deque(maxlen=_KEPT)
        self._ended = False
        self._news = asyncio.Event()
        self._readings: dict[tuple[int, int], asyncio.Task[bytes]] = {}
        self._task = asyncio.create_task(self._read())

    def stop(self) -> None:
        self._task.cancel()

    def wake(self) -> None:
        self._ended = True
        self._tell()

    async def follow(self, offset: int) -> AsyncIterator[bytes]:
        """What one browser gets that has everything up to an offset."""
        while True:
            news = self._news
            event = next((one for one in self._events if one.end > offset), None)
            if event is None and self._offset > offset:
                event = LogNews(start=offset - 1, end=self._offset, data=b"")  # what it lacks waits no more
            if event is not None:
                own = event.start != offset
                yield await self._read_between(offset, event.end) if own else event.data
                offset = event.end
            elif self._ended:
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), _QUIET)
                except (TimeoutError, asyncio.TimeoutError):
                    yield b": still there\n\n"

    async def _read_between(self, start: int, end: int) -> bytes:
        """What stands between two places, read once for all browsers that come with the same ones."""
        reading = self._readings.get((start, end))
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(self._between, start, end))
            self._readings[start, end] = reading
            reading.add_done_callback(lambda _: self._readings.pop((start, end)))
        return await asyncio.shield(reading)

    async def _read(self) -> None:
        while not self._ended:
            try:
                event, over = await asyncio.to_thread(self._look)
            except (OSError, StokerError) as error:
                # No file can be opened, or the database does not answer: who follows waits until it is over.
                _LOGGER.warning("the log of %s of run %s cannot be read now: %s", self._place[1], self._place[0], error)
                await asyncio.sleep(_AGAIN)
                continue
            if event is not None:
                self._events.append(event)
                self._offset = event.end
            elif over:
                self._ended = True
            if event is not None or self._ended:
                self._tell()
            if event is None or event.end - event.start < _READ:
                await asyncio.sleep(INTERVAL)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _look(self) -> tuple[LogNews | None, bool]:
        """What is new, and whether nothing more will come."""
        over = self._is_over()  # before the look: what was written until then is read
        run, key, attempt, rank = self._place
        start = self._offset
        lines, end = self._store.logs.read(run, key, attempt, start, rank=rank, whole=not over, limit=_READ)
        if end == start:
            return None, over
        return LogNews(start=start, end=end, data=_event(lines, end)), False

    def _between(self, start: int, end: int) -> bytes:
        run, key, attempt, rank = self._place
        lines: list[LogLine] = []
        left_out, position = 0, start
        while position < end:
            more, after = self._store.logs.read(
                run, key, attempt, position, rank=rank, limit=min(_READ, end - position)
            )
            if after == position:
                break
            lines += more
            left_out += max(0, len(lines) - MOST_LINES)
            lines, position = lines[-MOST_LINES:], after
        return _event(lines, end, left_out=left_out)

    def _is_over(self) -> bool:
        run, key, attempt, _ = self._place
        records = self._store.records
        row = records.step(run, key)
        if row is not None and row.status in STEP_DONE:
            return True
        if last_attempt(self._store, run, key) > attempt:
            return True
        if any(one.number == attempt for one in records.attempts(run, key)):
            return True
        return records.run(run).status != "running"


def _event(lines: list[LogLine], end: int, *, left_out: int = 0) -> bytes:
    """An event with the last of some lines; the browser counts them."""
    shown = lines[-MOST_LINES:]
    left_out += len(lines) - len(shown)
    document = {"html": joined(map(row_of, shown)).markup, "lines": len(shown), "left_out": left_out}
    return f"id: {end}\nevent: lines\ndata: {json.dumps(document)}\n\n".encode()
