"""Reads the lines of a step, also while it runs, and merges those of many steps by time."""

from __future__ import annotations

import heapq
import itertools
from functools import partial
from typing import Callable, Collection, Final, Iterable, Iterator, cast

from stoker.client.leftjobs import shown_status
from stoker.core.errors import NotFound, UsageError, nearest
from stoker.core.plan import LogLine
from stoker.core.status import STEP_DONE
from stoker.core.values import frozen
from stoker.store.logs import LAUNCHER, Rank, Ranks
from stoker.store.store import Store

STREAMS: Final = ("stdout", "stderr")


@frozen(kw_only=True)
class StepLog:
    """The lines of a step."""

    start: float
    """Seconds since the epoch; no line is older."""
    key: str
    """The step's key; empty for the pipeline's own hooks."""


@frozen(kw_only=True)
class LogFilter:
    """Selects lines by stream and rank."""

    stream: str = ""
    """ "stdout" or "stderr"; empty for both."""
    ranks: frozenset[Rank] | None = None
    """None for all ranks and the launcher."""

    @classmethod
    def parse(cls, stream: str | None, rank: Ranks) -> LogFilter:
        """The filter for a user's arguments. Raises `UsageError` for an unknown stream or rank."""
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

    def matches(self, line: LogLine) -> bool:
        """Whether the filter selects a line."""
        rank = LAUNCHER if line.rank is None else line.rank
        return (not self.stream or line.stream == self.stream) and (self.ranks is None or rank in self.ranks)


ALL_LINES: Final = LogFilter()


def ranks_of(store: Store, run: str, logs: Iterable[tuple[str, int]], *, enough: Collection[int] = ()) -> list[int]:
    """The ranks with lines in logs (step and attempt); with `enough`, reading stops once these ranks were found."""
    ranks: set[int] = set()
    for key, attempt in logs:
        missing = set(enough) - ranks
        if enough and not missing:
            break
        ranks.update(store.logs.ranks(run, key, attempt, enough=missing))
    return sorted(ranks)


def require_ranks(
    store: Store, run: str, logs: Iterable[tuple[str, int]], log_filter: LogFilter, *, where: str
) -> None:
    """Raise `NotFound` if a rank of the filter has no line; the message names the ranks that have."""
    required = sorted(rank for rank in log_filter.ranks or () if isinstance(rank, int))
    if not required:
        return
    present = ranks_of(store, run, logs, enough=required)
    missing = [rank for rank in required if rank not in present]
    if missing and present:
        raise NotFound(f"{where} has no line of {ranks_text(missing)}: {ranks_text(present)} wrote")
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
    """The number of the latest attempt in the store; 1 for a step without any."""
    row = store.records.step(run, key)
    recorded = [attempt.number for attempt in store.records.attempts(run, key)]
    return max(1, row.attempts if row is not None else 0, *recorded, *store.logs.attempts(run, key))


def attempts_with_logs(store: Store, run: str, sources: Iterable[StepLog]) -> Iterator[tuple[str, int]]:
    """The attempts of steps that have a log, as (key, attempt)."""
    for source in sources:
        yield from ((source.key, attempt) for attempt in store.logs.attempts(run, source.key))


def recorded_lines(
    store: Store, run: str, key: str, attempt: int | None, *, log_filter: LogFilter = ALL_LINES, tail: int | None = None
) -> Iterator[LogLine]:
    """The lines so far of an attempt, by default of the last one."""
    last = last_attempt(store, run, key)
    if attempt is not None and not 0 <= attempt <= last:
        raise NotFound(f"step '{key}' has no attempt {attempt}: its last one is {last}")
    number = last if attempt is None else attempt
    require_ranks(store, run, [(key, number)], log_filter, where=f"attempt {number} of step '{key}'")
    return store.logs.lines(run, key, number, stream=log_filter.stream, rank=log_filter.ranks, tail=tail)


def follow_lines(
    store: Store,
    run: str,
    key: str,
    attempt: int | None,
    *,
    log_filter: LogFilter = ALL_LINES,
    tail: int | None = None,
    before_look: Callable[[], None] | None = None,
) -> Iterator[LogLine]:
    """An attempt's lines as they come, until it ends; without a number, those of all attempts until the step ends.

    `before_look` is called before each look for new lines.
    """
    number = last_attempt(store, run, key) if attempt is None else attempt
    skipped = 0
    if tail is not None:
        count = sum(1 for _ in store.logs.lines(run, key, number, stream=log_filter.stream, rank=log_filter.ranks))
        skipped = max(0, count - tail)
    while True:
        has_ended = partial(_attempt_has_ended, store, run, key, number, before_look)
        lines = store.logs.follow(run, key, number, stream=log_filter.stream, rank=log_filter.ranks, done=has_ended)
        yield from itertools.islice(lines, skipped, None)
        if attempt is not None or (_step_has_ended(store, run, key) and last_attempt(store, run, key) <= number):
            return
        number, skipped = number + 1, 0


def _attempt_has_ended(store: Store, run: str, key: str, attempt: int, before_look: Callable[[], None] | None) -> bool:
    """Whether an attempt has ended: then its row, or that of a later attempt, is in the store."""
    if before_look is not None:
        before_look()
    has_row = any(row.number >= attempt for row in store.records.attempts(run, key))
    return has_row or _step_has_ended(store, run, key)


def _step_has_ended(store: Store, run: str, key: str) -> bool:
    row = store.records.step(run, key)
    if row is not None and row.status in STEP_DONE:
        return True
    try:
        return shown_status(store.records.run(run)) != "running"
    except NotFound:
        return True  # the run was deleted meanwhile


def step_lines(store: Store, run: str, key: str, *, log_filter: LogFilter = ALL_LINES) -> Iterator[LogLine]:
    """All lines of a step: its attempts, first to last, then attempt 0, the output of its hooks."""
    for attempt in sorted(store.logs.attempts(run, key), key=lambda number: (number == 0, number)):
        yield from store.logs.lines(run, key, attempt, stream=log_filter.stream, rank=log_filter.ranks)


def merge_by_time(
    store: Store, run: str, sources: Iterable[StepLog], *, log_filter: LogFilter = ALL_LINES
) -> Iterator[tuple[str, LogLine]]:
    """The lines of many steps by time. Logs are opened at their steps' starts: as many at once as steps ran at once."""
    waiting = sorted(sources, key=lambda source: source.start, reverse=True)
    running: list[tuple[float, int, str, LogLine, Iterator[LogLine]]] = []
    ticket = itertools.count()
    while waiting or running:
        while waiting and (not running or waiting[-1].start <= running[0][0]):
            source = waiting.pop()
            lines = step_lines(store, run, source.key, log_filter=log_filter)
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
