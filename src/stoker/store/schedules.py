"""Schedules, and what starts runs by itself: the due times of schedules and the versions that watchers see.

A *firing* is a row with what is to start one run, and the id that this run gets. Who inserts it starts the run; who
finds it there does not, unless its owner died before the run was created: then it is taken over, with the same id, so
that of two drivers the table of runs accepts one.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any, Final, Literal, Mapping, Sequence

from stoker.core.errors import NotFound, UsageError, nearest
from stoker.core.values import frozen
from stoker.store.database import Database

Overlap = Literal["skip", "queue", "allow"]
State = Literal["claimed", "waiting", "started", "skipped", "failed", "missed"]
OVERLAPS: Final[Mapping[str, str]] = {
    "skip": "start nothing while the run before goes on",
    "queue": "start when the run before is over",
    "allow": "start beside it",
}
EXPIRES: Final = 600.0
"""Seconds after which a firing that started nothing may be taken over: images may be built before a run is created."""
BEGINNING: Final = "beginning"
"""The occasion of the row that says behind which version a watcher began."""
MISSED: Final = "nothing was started: was the machine on, and the schedule there?"
_SCHEDULE: Final = (
    *("name", "cron", "zone", "file", "words", "folder", "code", "stack", "target", "overlap"),
    *("paused", "since", "created", "author"),
)
_FIRING: Final = ("source", "occasion", "state", "due", "run_id", "owner", "changed", "note")
_SQL: Final[Mapping[str, str]] = {
    "put": f"INSERT INTO schedules ({', '.join(_SCHEDULE)}) VALUES ({', '.join('?' * len(_SCHEDULE))}) "
    f"ON CONFLICT (name) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _SCHEDULE[1:])}",
    "schedule": f"SELECT {', '.join(_SCHEDULE)} FROM schedules WHERE name = ?",
    "schedules": f"SELECT {', '.join(_SCHEDULE)} FROM schedules ORDER BY name",
    "remove": "DELETE FROM schedules WHERE name = ?",
    "pause": "UPDATE schedules SET paused = ?, since = ? WHERE name = ?",
    "forget": "DELETE FROM firings WHERE source = ?",
    "insert": f"INSERT INTO firings ({', '.join(_FIRING)}) VALUES ({', '.join('?' * len(_FIRING))}) "
    "ON CONFLICT (source, occasion) DO NOTHING",
    "firing": f"SELECT {', '.join(_FIRING)} FROM firings WHERE source = ? AND occasion = ?",
    "take_over": "UPDATE firings SET owner = ?, changed = ? WHERE source = ? AND occasion = ? AND owner = ? "
    "AND changed = ? AND state IN ('claimed', 'waiting')",
    "set": "UPDATE firings SET state = ?, changed = ?, note = ? WHERE source = ? AND occasion = ? AND owner = ?",
    "has_run": "SELECT 1 FROM runs WHERE id = ?",
    "of_run": f"SELECT {', '.join(_FIRING)} FROM firings WHERE run_id = ? AND run_id <> ''",
    "firings": f"SELECT {', '.join(_FIRING)} FROM firings WHERE source = ? AND due >= ? "
    "ORDER BY due DESC, occasion DESC LIMIT ?",
}


@frozen(kw_only=True)
class ScheduleRow:
    """When a pipeline is to run, and how."""

    name: str
    cron: str
    """Five fields (`core.cron`)."""
    zone: str
    """The time zone of these."""
    file: str
    """The file, and behind a colon the pipeline, as `stoker run` takes them."""
    words: tuple[str, ...] = ()
    """Parameters and options of the run."""
    folder: str
    """Where it is run."""
    code: str = ""
    """The digest of the package with the code, for a platform that does not have the folder."""
    stack: str
    target: str
    """What starts it: a name of `backends.base.timers`, or the flavor of the stack's orchestrator."""
    overlap: Overlap = "skip"
    paused: bool = False
    since: float
    """From when on times are due: when it was added, changed or resumed."""
    created: float
    author: str

    @property
    def path(self) -> str:
        """The file alone."""
        return self.file.rpartition(":")[0] or self.file

    @property
    def source(self) -> str:
        """What its firings name."""
        return f"schedule:{self.name}"


@frozen(kw_only=True)
class FiringRow:
    """What was to start one run."""

    source: str
    """ "schedule:NAME", or what a watcher watches and runs."""
    occasion: str
    """The due time in UTC, or the version that was seen."""
    state: State
    """`claimed`: somebody is about to start the run; `waiting`: for the run before to end."""
    due: float
    """Seconds since the epoch."""
    run_id: str
    """The id that the run has, or was to get."""
    owner: str
    """Who may change the row: drawn at random for each claim."""
    changed: float
    note: str = ""
    """Why no run was started."""

    @property
    def is_settled(self) -> bool:
        """Whether nobody will start its run any more."""
        return self.state not in ("claimed", "waiting")

    @property
    def words(self) -> str:
        """What started the run, as a person reads it."""
        kind, _, name = self.source.partition(":")
        if kind != "schedule":
            return f"{self.source}, {self.occasion}"
        return f"schedule '{name}', {self.occasion if self.occasion.startswith('by hand') else f'due {self.occasion}'}"


class Schedules:
    """The schedules and firings of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = {name: database.sql(statement) for name, statement in _SQL.items()}

    def put(self, row: ScheduleRow) -> None:
        """Add a schedule, or change the one of its name."""
        values: list[Any] = [getattr(row, name) for name in _SCHEDULE]
        values[_SCHEDULE.index("words")] = json.dumps(row.words)
        values[_SCHEDULE.index("paused")] = int(row.paused)
        self._database.change(self._sql["put"], values)

    def find(self, name: str) -> ScheduleRow | None:
        """The schedule of a name."""
        row = self._database.row(self._sql["schedule"], (name,))
        return None if row is None else _schedule(row)

    def get(self, name: str) -> ScheduleRow:
        """The same; `NotFound` where there is none."""
        row = self.find(name)
        if row is None:
            known = [one.name for one in self.all()]
            raise NotFound(f"there is no schedule '{name}'{nearest(name, known)}", fix="stoker schedule list")
        return row

    def all(self) -> list[ScheduleRow]:
        """Every schedule, by name."""
        return [_schedule(row) for row in self._database.rows(self._sql["schedules"])]

    def pause(self, name: str, *, paused: bool, now: float) -> None:
        """Have nothing be due from now on, or again."""
        self._database.change(self._sql["pause"], (int(paused), now, name))

    def remove(self, name: str) -> None:
        """Remove a schedule with its history; one that is gone is fine."""
        with self._database.transaction() as cursor:
            cursor.execute(self._sql["forget"], (f"schedule:{name}",))
            cursor.execute(self._sql["remove"], (name,))

    def claim(self, firing: FiringRow, *, expires: float = EXPIRES) -> FiringRow | None:
        """Make a firing this caller's: the row, with the id that the run is to get; None where it is somebody else's.

        One that nobody touched for `expires` seconds before `firing.changed`, and whose run was not created, is taken
        over.
        """
        values = [getattr(firing, name) for name in _FIRING]
        self._database.change(self._sql["insert"], values)
        row = self.firing(firing.source, firing.occasion)
        if row is None:
            raise UsageError(f"the schedule or watch '{firing.source}' was removed meanwhile")
        if row.owner == firing.owner:  # the statement may have been executed twice
            return row
        if row.is_settled or row.changed > firing.changed - expires:
            return None
        if self._database.row(self._sql["has_run"], (row.run_id,)) is not None:
            return None
        mine = (firing.owner, firing.changed, row.source, row.occasion, row.owner, row.changed)
        self._database.change(self._sql["take_over"], mine)
        row = self.firing(firing.source, firing.occasion)
        return row if row is not None and row.owner == firing.owner else None

    def note_missed(self, source: str, dues: Sequence[datetime], *, now: float) -> None:
        """Write down due times that were missed, before the times of a schedule change; known ones stay."""
        values = [
            (source, due.astimezone(timezone.utc).isoformat(), "missed", due.timestamp(), "", "", now, MISSED)
            for due in dues
        ]
        with self._database.transaction() as cursor:
            cursor.executemany(self._sql["insert"], values)

    def begin(self, source: str, occasion: str, *, now: float) -> str:
        """What a source begins behind, which the first call says; the same ever after."""
        self._database.change(self._sql["insert"], (source, BEGINNING, "skipped", 0.0, "", "", now, occasion))
        row = self.firing(source, BEGINNING)
        return occasion if row is None else row.note

    def settle(self, firing: FiringRow, state: State, *, now: float, note: str = "") -> None:
        """Say what became of a firing, or that its owner lives; nothing where it was taken over."""
        values = (state, now, note, firing.source, firing.occasion, firing.owner)
        self._database.change(self._sql["set"], values)

    def firing(self, source: str, occasion: str) -> FiringRow | None:
        """One firing."""
        row = self._database.row(self._sql["firing"], (source, occasion))
        return None if row is None else _firing(row)

    def of_run(self, run_id: str) -> FiringRow | None:
        """What started a run; None for a run that a person started."""
        row = self._database.row(self._sql["of_run"], (run_id,))
        return None if row is None else _firing(row)

    def firings(self, source: str, *, since: float = 0.0, limit: int = 1000) -> list[FiringRow]:
        """The firings of a source, those due last first."""
        return [_firing(row) for row in self._database.rows(self._sql["firings"], (source, since, limit))]


def _schedule(values: Sequence[Any]) -> ScheduleRow:
    fields = dict(zip(_SCHEDULE, values))
    words = tuple(json.loads(fields.pop("words")))
    return ScheduleRow(**{**fields, "paused": bool(fields["paused"])}, words=words)


def _firing(values: Sequence[Any]) -> FiringRow:
    return FiringRow(**dict(zip(_FIRING, values)))
