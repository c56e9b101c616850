"""What schedules did and will do: their due times beside what was started for them, and what was missed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, Final, Iterator

from stoker.client.client import Client
from stoker.client.runs import Run
from stoker.core.cron import Cron
from stoker.core.errors import NotFound
from stoker.core.values import frozen
from stoker.store.rows import iso_text, local_time
from stoker.store.schedules import EXPIRES, MISSED, FiringRow, ScheduleRow, Schedules
from stoker.store.store import Store

GRACE: Final = 300.0
"""Seconds after a due time in which its run may still begin: a platform may have to find a node and pull an image."""
_MOST: Final = 1000
"""Missed times that are counted."""


@frozen(kw_only=True)
class Occasion:
    """A due time of a schedule, or a start by hand, and what came of it."""

    due: datetime
    state: str
    """The status of its run; "starting", "waiting", "skipped" or "missed", and "lost" where its starter died before
    there was a run."""
    run_id: str = ""
    note: str = ""
    by_hand: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The occasion as JSON."""
        return {
            "due": self.due.isoformat(),
            "state": self.state,
            "run": self.run_id or None,
            "note": self.note,
            "by_hand": self.by_hand,
        }


class Schedule:
    """A schedule of a store, as it is at a moment."""

    def __init__(self, store: Store, row: ScheduleRow, now: float) -> None:
        self.row = row
        self._store = store
        self._rows = Schedules(store.records.database)
        self._now = datetime.fromtimestamp(now, timezone.utc)
        self._cron = Cron.parse(row.cron)

    def next(self) -> datetime | None:
        """The next due time; None while it is paused."""
        if self.row.paused:
            return None
        return next(self._cron.times(self._now, self.row.zone))

    def missed(self) -> list[datetime]:
        """The due times since it was added, changed or resumed for which nothing was started; the first thousand."""
        if self.row.paused:
            return []
        since = datetime.fromtimestamp(self.row.since, timezone.utc)
        latest = self._now - timedelta(seconds=GRACE)
        known = {row.occasion for row in self._rows.firings(self.row.source, since=self.row.since, limit=100_000)}
        found = (due for due in self._until(since, latest) if due.astimezone(timezone.utc).isoformat() not in known)
        return list(islice(found, _MOST))

    def _until(self, since: datetime, latest: datetime) -> Iterator[datetime]:
        for due in self._cron.times(since, self.row.zone):
            if due > latest:
                return
            yield due

    def history(self, limit: int = 20) -> list[Occasion]:
        """What became of its due times, the last first."""
        rows = self._rows.firings(self.row.source, limit=limit)
        found = [self._occasion(row) for row in rows]
        found += [Occasion(due=due.astimezone(timezone.utc), state="missed", note=MISSED) for due in self.missed()]
        return sorted(found, key=lambda one: one.due, reverse=True)[:limit]

    def _occasion(self, row: FiringRow) -> Occasion:
        state: str = row.state
        note = row.note
        run = _run(self._store, row.run_id)
        if run is not None:
            state, note = run.status, ""
        elif row.state == "started":
            state, note = "deleted", "its run was removed"
        elif row.state == "claimed":
            lost = row.changed < self._now.timestamp() - EXPIRES
            state, note = ("lost", "its starter died before there was a run") if lost else ("starting", "")
        return Occasion(
            due=datetime.fromtimestamp(row.due, timezone.utc),
            state=state,
            run_id=row.run_id if run is not None else "",
            note=note,
            by_hand=row.occasion.startswith("by hand"),
        )

    def as_dict(self) -> dict[str, Any]:
        """The schedule as JSON."""
        upcoming, last, missed = self.next(), self.history(1), self.missed()
        return {
            "name": self.row.name,
            "cron": self.row.cron,
            "zone": self.row.zone,
            "file": self.row.file,
            "parameters": list(self.row.words),
            "folder": self.row.folder,
            "stack": self.row.stack,
            "on": self.row.target,
            "overlap": self.row.overlap,
            "paused": self.row.paused,
            "created": iso_text(local_time(self.row.created)),
            "author": self.row.author,
            "next": None if upcoming is None else upcoming.isoformat(),
            "last": last[0].as_dict() if last else None,
            "missed": len(missed),
        }


def schedules_of(client: Client, now: float) -> list[Schedule]:
    """The schedules of a store, by name."""
    rows = Schedules(client.store.records.database).all()
    return [Schedule(client.store, row, now) for row in rows]


def _run(store: Store, run_id: str) -> Run | None:
    try:
        return Client(store=store).run(run_id) if run_id else None
    except NotFound:
        return None
