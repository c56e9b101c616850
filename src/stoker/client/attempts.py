"""One try at a step, and why it failed."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

import attrs

from stoker.client.metrics import Metrics, metrics_of, usage_of
from stoker.client.placements import Placement, placements_of
from stoker.core.codec import to_json
from stoker.core.ladder import Change
from stoker.core.status import RETRYABLE
from stoker.core.values import frozen
from stoker.core.words import time_text
from stoker.store.records import Records
from stoker.store.rows import AttemptRow, iso_text, optional_time, seconds_between

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt, Track
    from stoker.store.receipts import ReceiptRow

_LATEST: Final = 253_402_300_799.0
"""Seconds from the epoch to the end of the year 9999, the last that Python's `datetime` has."""
_RANK: Final = re.compile(r"[0-9]{1,9}")


@frozen(kw_only=True)
class Failure:
    """Why something failed: the classified cause, and the exception if the step's code raised one."""

    cause: str
    message: str = ""
    type: str = ""
    """The type of the exception."""
    traceback: str = attrs.field(default="", repr=False)
    place: str = ""
    """The line of your code that raised the exception."""
    exit_code: int | None = None
    """The exit code of a process that died; negative for a signal."""
    why: str = ""
    """What the message means; empty if that is unknown."""
    advice: str = attrs.field(default="", repr=False)
    """What to do."""
    evidence: str = attrs.field(default="", repr=False)
    """The text that shows the cause."""
    retryable: str = ""
    """Where the same job may succeed: "here", "elsewhere", or "never" without a change."""
    rank: int | None = None
    """The process of a distributed step that failed first."""
    world_size: int | None = None
    """The processes of a distributed step."""
    failed_ranks: tuple[int, ...] = ()
    """All ranks that failed before the others were ended."""
    earlier: str = attrs.field(default="", repr=False)
    """Why the launcher started the ranks anew before, from the first start to the last (`max_restarts`)."""
    stacks: Mapping[int, str] = attrs.field(factory=dict, repr=False)
    """Rank → the text of its stacks, if the step hung."""
    whole: str = attrs.field(default="", repr=False)
    """The file with the whole traceback, if this one is cut."""

    @property
    def where(self) -> str:
        """The process that failed, of several: "rank 1 of 3"; empty for a step that was one."""
        return "" if self.rank is None else f"rank {self.rank} of {self.world_size}"

    def as_dict(self) -> dict[str, Any]:
        """The failure as JSON."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}".rstrip(": ")


class Attempt:
    """One try at a step.

    `changes` are the differences from the step's request after an attempt ran out of memory; each has `what`, `old` (as
    requested) and `new`.
    """

    def __init__(self, row: AttemptRow, records: Records) -> None:
        self._row = row
        self._records = records
        self._receipt: ReceiptRow | None = None
        self._receipt_was_read = False
        self.number = row.number
        self.status = row.status
        self.backend = row.backend
        self.started: datetime | None = optional_time(row.started)
        self.ended: datetime | None = optional_time(row.ended)
        self.seconds = seconds_between(row.started, row.ended)
        self.called: datetime | None = optional_time(_moment(row.usage.get("called")))
        """When the step's function was called; None where its inputs were there at once, or nothing says so."""
        self.returned: datetime | None = optional_time(_moment(row.usage.get("returned")))
        """When it returned, and its results began to be saved."""
        self.usage = usage_of(row.usage)
        self.changes = [
            Change(what=str(one["what"]), old=one["old"], new=one["new"])
            for one in row.changes
            if {"what", "old", "new"} <= one.keys()
        ]
        self.failure = _failure(row)

    @property
    def receipt(self) -> Receipt | None:
        """What it did with its accelerators; None if it requested none."""
        row = self._receipt_row()
        return None if row is None else row.receipt

    @property
    def placement(self) -> Placement | None:
        """Where it is or was on a platform with a queue; None for one that ran elsewhere."""
        placements = placements_of(self._records.job_events(self._row.run_id, self._row.key)).get(self._row.key, [])
        return next((one for one in placements if one.attempt == self.number), None)

    @property
    def metrics(self) -> Metrics:
        """What it logged of itself, by name; also while it runs."""
        return metrics_of(self._records, self._row.run_id, self._row.key, self.number)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Measurements over time, for charts: of each device, and of its processes (`uuid` empty)."""
        row = self._receipt_row()
        return () if row is None else row.tracks

    def as_dict(self) -> dict[str, Any]:
        """The attempt as JSON, without its tracks."""
        return {
            "number": self.number,
            "status": self.status,
            "backend": self.backend,
            "started": iso_text(self.started),
            "ended": iso_text(self.ended),
            "seconds": self.seconds,
            "failure": None if self.failure is None else self.failure.as_dict(),
            "usage": self.usage.as_dict(),
            "changes": [change.as_dict() for change in self.changes],
            "receipt": None if self.receipt is None else to_json(self.receipt),
        }

    def __repr__(self) -> str:
        duration = "" if self.seconds is None else f" after {time_text(self.seconds)}"
        changed = f" with {', '.join(map(str, self.changes))}" if self.changes else ""
        why = "" if self.failure is None else f": {self.failure}"
        return f"<Attempt {self.number} {self.status}{duration}{changed}{why}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.attempt(self.as_dict())

    def _receipt_row(self) -> ReceiptRow | None:
        if not self._receipt_was_read:
            self._receipt = self._records.receipt(self._row.run_id, self._row.key, self.number)
            self._receipt_was_read = True
        return self._receipt


def _failure(row: AttemptRow) -> Failure | None:
    if not row.cause:
        return None
    return Failure(
        cause=row.cause,
        message=row.message or str(row.error.get("message", "")),
        type=str(row.error.get("type", "")),
        traceback=str(row.error.get("traceback", "")),
        place=str(row.error.get("place", "")),
        exit_code=row.exit_code,
        why=str(row.error.get("why", "")),
        advice=str(row.error.get("advice", "")),
        evidence=str(row.error.get("evidence", "")),
        retryable=str(row.error.get("retryable") or RETRYABLE.get(row.cause, "")),
        rank=_number(row.error.get("rank")),
        world_size=_number(row.error.get("world_size")),
        failed_ranks=tuple(rank for rank in _list(row.error.get("failed_ranks")) if _number(rank) is not None),
        earlier=str(row.error.get("earlier", "")),
        stacks=_stacks(row.error.get("stacks")),
        whole=str(row.error.get("whole", "")),
    )


# A row may be of another version, or damaged: what has another form is left out.


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


def _moment(value: Any) -> float | None:
    return value if type(value) is float and 0 < value < _LATEST else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _stacks(value: Any) -> dict[int, str]:
    stacks = value if isinstance(value, dict) else {}
    return {int(rank): str(text) for rank, text in stacks.items() if _RANK.fullmatch(rank)}
