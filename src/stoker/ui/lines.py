"""Lines of logs as rows of a page."""

from __future__ import annotations

import time
from typing import Any, Final, Iterator

import attrs

from stoker.client import Step
from stoker.client.logs import last_attempt
from stoker.core.plan import LogLine
from stoker.report import ansi
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
    text = element("span", {"class": "x"}, ansi.line(line.text))
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
        if wanted in ansi.plain(line.text).casefold():
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
