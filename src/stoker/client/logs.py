"""The lines of a step as they come, and those of many steps in the order of their times."""

from __future__ import annotations

import heapq
import itertools
from functools import partial
from typing import Collection, Final, Iterable, Iterator, cast

import attrs

from stoker.client.liveness import shown_status
from stoker.core.errors import NotFound, UsageError, nearest
from stoker.core.plan import LogLine
from stoker.core.status import STEP_DONE
from stoker.store.logs import LAUNCHER, Rank, Ranks
from stoker.store.store import Store

STREAMS: Final = ("stdout", "stderr")


@attrs.frozen(kw_only=True, slots=True)
class Source:
    """A step with lines, none of them older than `start`."""

    start: float
    key: str


@attrs.frozen(kw_only=True, slots=True)
class Which:
    """Which lines are asked for: of one stream or of both (""), of some ranks or of everybody (None)."""

    stream: str = ""
    ranks: frozenset[Rank] | None = None

    @classmethod
    def parse(cls, stream: str | None, rank: Ranks) -> Which:
        """What a person asked for; refuses what is no stream and no rank."""
        if stream is not None and stream not in STREAMS:
            raise UsageError(f"there is no stream '{stream}'{nearest(stream, STREAMS)}")
        if rank is None:
            return cls(stream=stream or "")
        one = isinstance(rank, (int, str)) or not isinstance(rank, Collection)
        several = [rank] if one else list(cast("Collection[Rank]", rank))
        for each in several:
            if each != LAUNCHER and (not isinstance(each, int) or isinstance(each, bool) or each < 0):
                raise UsageError(f"rank={each!r} is no rank", fix=f"write a number from 0, several, or '{LAUNCHER}'")
        return cls(stream=stream or "", ranks=frozenset(cast("list[Rank]", several)))

    def takes(self, line: LogLine) -> bool:
        """Whether a line is among them."""
        rank = LAUNCHER if line.rank is None else line.rank
        return (not self.stream or line.stream == self.stream) and (self.ranks is None or rank in self.ranks)


EVERY: Final = Which()


def ranks_of(store: Store, run: str, logs: Iterable[tuple[str, int]], *, enough: Collection[int] = ()) -> list[int]:
    """The ranks that wrote lines in logs (step and attempt); with `enough`, not looked for once these are found."""
    found: set[int] = set()
    for key, attempt in logs:
        missing = set(enough) - found
        if enough and not missing:
            break
        found.update(store.logs.ranks(run, key, attempt, enough=missing))
    return sorted(found)


def require_ranks(store: Store, run: str, logs: Iterable[tuple[str, int]], which: Which, *, where: str) -> None:
    """Refuse ranks of which there is no line, and name those that wrote."""
    wanted = sorted(rank for rank in which.ranks or () if isinstance(rank, int))
    if not wanted:
        return
    found = ranks_of(store, run, logs, enough=wanted)
    missing = [rank for rank in wanted if rank not in found]
    if missing and found:
        raise NotFound(f"{where} has no line of {ranks_text(missing)}: {ranks_text(found)} wrote")
    if missing:
        raise NotFound(f"{where} has no line of {ranks_text(missing)}, nor of any other", fix="ask without a rank")


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks in words, neighbours together: "rank 7", "ranks 0-3, 7"."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    one = len(spans) == 1 and spans[0][0] == spans[0][1]
    listed = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank {listed}" if one else f"ranks {listed}"


def last_attempt(store: Store, run: str, key: str) -> int:
    """The number of the latest attempt of which anything is known, 1 for a step of which nothing is."""
    row = store.records.step(run, key)
    recorded = [attempt.number for attempt in store.records.attempts(run, key)]
    return max(1, row.attempts if row is not None else 0, *recorded, *store.logs.attempts(run, key))


def there(store: Store, run: str, sources: Iterable[Source]) -> Iterator[tuple[str, int]]:
    """The logs that there are of steps, as step and attempt."""
    for source in sources:
        yield from ((source.key, attempt) for attempt in store.logs.attempts(run, source.key))


def so_far(
    store: Store, run: str, key: str, attempt: int | None, *, which: Which = EVERY, tail: int | None = None
) -> Iterator[LogLine]:
    """The lines that an attempt wrote, without a number the last one."""
    last = last_attempt(store, run, key)
    if attempt is not None and not 0 <= attempt <= last:
        raise NotFound(f"step '{key}' has no attempt {attempt}: its last one is {last}")
    number = last if attempt is None else attempt
    require_ranks(store, run, [(key, number)], which, where=f"attempt {number} of step '{key}'")
    return store.logs.lines(run, key, number, stream=which.stream, rank=which.ranks, tail=tail)


def followed(
    store: Store, run: str, key: str, attempt: int | None, *, which: Which = EVERY, tail: int | None = None
) -> Iterator[LogLine]:
    """An attempt's lines as they come until it is over; without a number, until the step is, whatever its attempts."""
    number = last_attempt(store, run, key) if attempt is None else attempt
    skipped = 0
    if tail is not None:
        there = sum(1 for _ in store.logs.lines(run, key, number, stream=which.stream, rank=which.ranks))
        skipped = max(0, there - tail)
    while True:
        over = partial(_is_over, store, run, key, number)
        lines = store.logs.follow(run, key, number, stream=which.stream, rank=which.ranks, done=over)
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


def whole(store: Store, run: str, key: str, *, which: Which = EVERY) -> Iterator[LogLine]:
    """All lines of a step: its attempts, first to last, and then what its hooks wrote, which is attempt 0."""
    for attempt in sorted(store.logs.attempts(run, key), key=lambda number: (number == 0, number)):
        yield from store.logs.lines(run, key, attempt, stream=which.stream, rank=which.ranks)


def merged(store: Store, run: str, sources: Iterable[Source], *, which: Which = EVERY) -> Iterator[tuple[str, LogLine]]:
    """The lines of many steps by time. A log is opened when its turn comes: no more are open than ran at once."""
    waiting = sorted(sources, key=lambda source: source.start, reverse=True)
    running: list[tuple[float, int, str, LogLine, Iterator[LogLine]]] = []
    ticket = itertools.count()
    while waiting or running:
        while waiting and (not running or waiting[-1].start <= running[0][0]):
            source = waiting.pop()
            lines = whole(store, run, source.key, which=which)
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
