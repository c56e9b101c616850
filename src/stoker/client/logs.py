"""The lines of a step as they come, and those of many steps in the order of their times."""

from __future__ import annotations

import heapq
import itertools
from functools import partial
from typing import Iterable, Iterator

import attrs

from stoker.client.liveness import shown_status
from stoker.core.errors import NotFound
from stoker.core.plan import LogLine
from stoker.core.status import STEP_DONE
from stoker.store.store import Store


@attrs.frozen(kw_only=True, slots=True)
class Source:
    """A step with lines, none of them older than `start`."""

    start: float
    key: str


def last_attempt(store: Store, run: str, key: str) -> int:
    """The number of the latest attempt of which anything is known, 1 for a step of which nothing is."""
    row = store.records.step(run, key)
    recorded = [attempt.number for attempt in store.records.attempts(run, key)]
    return max(1, row.attempts if row is not None else 0, *recorded, *store.logs.attempts(run, key))


def followed(
    store: Store, run: str, key: str, attempt: int | None, *, stream: str = "", tail: int | None = None
) -> Iterator[LogLine]:
    """An attempt's lines as they come until it is over; without a number, until the step is, whatever its attempts."""
    number = last_attempt(store, run, key) if attempt is None else attempt
    skipped = 0
    if tail is not None:
        there = sum(1 for _ in store.logs.lines(run, key, number, stream=stream))
        skipped = max(0, there - tail)
    while True:
        lines = store.logs.follow(run, key, number, stream=stream, done=partial(_is_over, store, run, key, number))
        yield from itertools.islice(lines, skipped, None)
        if attempt is not None or (_step_is_over(store, run, key) and last_attempt(store, run, key) <= number):
            return
        number, skipped = number + 1, 0


def _is_over(store: Store, run: str, key: str, attempt: int) -> bool:
    """Whether an attempt writes nothing more: its row, or that of a later one, is written when it has ended."""
    ended = any(row.number >= attempt for row in store.records.attempts(run, key))
    return ended or _step_is_over(store, run, key)


def _step_is_over(store: Store, run: str, key: str) -> bool:
    row = store.records.step(run, key)
    if row is not None and row.status in STEP_DONE:
        return True
    try:
        return shown_status(store.records.run(run)) != "running"
    except NotFound:
        return True  # it was deleted meanwhile


def whole(store: Store, run: str, key: str, *, stream: str = "") -> Iterator[LogLine]:
    """All lines of a step: its attempts, first to last, and then what its hooks wrote, which is attempt 0."""
    for attempt in sorted(store.logs.attempts(run, key), key=lambda number: (number == 0, number)):
        yield from store.logs.lines(run, key, attempt, stream=stream)


def merged(store: Store, run: str, sources: Iterable[Source], *, stream: str = "") -> Iterator[tuple[str, LogLine]]:
    """The lines of many steps by time. A log is opened when its turn comes: no more are open than ran at once."""
    waiting = sorted(sources, key=lambda source: source.start, reverse=True)
    running: list[tuple[float, int, str, LogLine, Iterator[LogLine]]] = []
    ticket = itertools.count()
    while waiting or running:
        while waiting and (not running or waiting[-1].start <= running[0][0]):
            source = waiting.pop()
            lines = whole(store, run, source.key, stream=stream)
            first = next(lines, None)
            if first is not None:
                heapq.heappush(running, (first.time, next(ticket), source.key, first, lines))
        if not running:
            return
        _, order, key, line, lines = running[0]
        yield key, line
        following = next(lines, None)
        if following is None:
            heapq.heappop(running)
        else:
            heapq.heapreplace(running, (following.time, order, key, following, lines))
