"""What a backend has to tell at the next poll, gathered by job: a status, lines, events."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import attrs

from stoker.core.plan import JobStatus, LogLine


class News:
    """The latest status of each job that changed, and all that it wrote meanwhile."""

    def __init__(self) -> None:
        self.lines: dict[str, list[LogLine]] = {}
        self._statuses: dict[str, JobStatus] = {}
        self._events: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}

    def put(self, name: str, status: JobStatus) -> None:
        """A job's status changed; of an earlier one that nobody asked for, what it had got stays."""
        before = self._statuses.get(name)
        if before is not None and before.state == status.state == "running":
            # It runs, it has devices, it began: three pieces of news that may come between two polls, in any order.
            started = before.started if status.started is None else status.started
            status = attrs.evolve(status, started=started, lease=status.lease or before.lease)
        self._statuses[name] = status

    def said(self, name: str, message: Mapping[str, Any]) -> None:
        """What the agent of a distributed step sends on: `lines` of its ranks, or an `event` with `data`."""
        if "lines" in message:
            self.lines.setdefault(name, []).extend(
                LogLine(time=time, stream=stream, text=text, rank=rank) for time, stream, rank, text in message["lines"]
            )
        else:
            self._events.setdefault(name, []).append((message["event"], message["data"]))

    def taken(self) -> dict[str, JobStatus]:
        """All of it, once."""
        news, self._statuses = self._statuses, {}
        lines, self.lines = self.lines, {}
        events, self._events = self._events, {}
        for name in {*lines, *events}:
            status = news.get(name)
            told = tuple(lines.get(name, ())), tuple(events.get(name, ()))
            # Built by hand: attrs.evolve costs ten times as much, and this runs for every step.
            news[name] = (
                JobStatus(state="running", lines=told[0], events=told[1]) if status is None else _with(status, *told)
            )
        return news


def _with(status: JobStatus, lines: tuple[LogLine, ...], events: Sequence[tuple[str, Mapping[str, Any]]]) -> JobStatus:
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
        events=tuple(events),
    )
