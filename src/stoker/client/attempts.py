"""One try at a step, and why it failed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Mapping

import attrs

from stoker.client.times import between, iso, moment
from stoker.client.usage import usage
from stoker.core.codec import to_json
from stoker.core.ladder import Change
from stoker.core.status import RETRYABLE
from stoker.core.words import time_text
from stoker.store.records import Records
from stoker.store.rows import AttemptRow

if TYPE_CHECKING:
    from stoker.core.receipt import Receipt, Track
    from stoker.store.receipts import ReceiptRow


@attrs.frozen(kw_only=True)
class Failure:
    """Why something failed: the classified cause, and the exception where the step's code raised one.

    `place` is the line of yours that raised it, `exit_code` is that of a process that died (negative: by that signal).
    `why` says what the message means, where that is known, `evidence` what shows it, `advice` what to do. `retryable`
    is where the same job may succeed: "here", "elsewhere", or "never" without a change. Of a distributed step `rank` is
    the process that failed first, of `world_size`; `failed_ranks` are all that failed before they were ended. `stacks`
    has the text of each rank's stacks where they hung.
    """

    cause: str
    message: str = ""
    type: str = ""
    traceback: str = attrs.field(default="", repr=False)
    place: str = ""
    exit_code: int | None = None
    why: str = ""
    advice: str = attrs.field(default="", repr=False)
    evidence: str = attrs.field(default="", repr=False)
    retryable: str = ""
    rank: int | None = None
    world_size: int | None = None
    failed_ranks: tuple[int, ...] = ()
    stacks: Mapping[int, str] = attrs.field(factory=dict, repr=False)

    @property
    def where(self) -> str:
        """Which of several processes failed: "rank 1 of 3"; empty for a step that was one."""
        return "" if self.rank is None else f"rank {self.rank} of {self.world_size}"

    def as_dict(self) -> dict[str, Any]:
        """The failure as JSON."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}".rstrip(": ")


class Attempt:
    """One try at a step.

    `changes`: what of its request was not as asked, since an attempt had run out of memory; each has `what`, `old` (as
    asked) and `new`.
    """

    def __init__(self, row: AttemptRow, records: Records) -> None:
        self._row = row
        self._records = records
        self._accelerators: ReceiptRow | None = None
        self._looked = False
        self.number = row.number
        self.status = row.status
        self.backend = row.backend
        self.started: datetime | None = moment(row.started)
        self.ended: datetime | None = moment(row.ended)
        self.seconds = between(row.started, row.ended)
        self.usage = usage(row.usage)
        self.changes = [Change(what=one["what"], old=one["old"], new=one["new"]) for one in row.changes]
        self.failure = _failure(row)

    @property
    def receipt(self) -> Receipt | None:
        """What it did with its accelerators; None for one that asked for none."""
        found = self._receipt_row()
        return None if found is None else found.receipt

    @property
    def tracks(self) -> tuple[Track, ...]:
        """What was measured over its time, for charts: of each device, and of its processes (`uuid` empty)."""
        found = self._receipt_row()
        return () if found is None else found.tracks

    def as_dict(self) -> dict[str, Any]:
        """The attempt as JSON, without its tracks."""
        return {
            "number": self.number,
            "status": self.status,
            "backend": self.backend,
            "started": iso(self.started),
            "ended": iso(self.ended),
            "seconds": self.seconds,
            "failure": None if self.failure is None else self.failure.as_dict(),
            "usage": self.usage.as_dict(),
            "changes": [change.as_dict() for change in self.changes],
            "receipt": None if self.receipt is None else to_json(self.receipt),
        }

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f" after {time_text(self.seconds)}"
        changed = f" with {', '.join(map(str, self.changes))}" if self.changes else ""
        why = "" if self.failure is None else f": {self.failure}"
        return f"<Attempt {self.number} {self.status}{took}{changed}{why}>"

    def _repr_html_(self) -> str:
        from stoker.client import html

        return html.attempt(self.as_dict())

    def _receipt_row(self) -> ReceiptRow | None:
        if not self._looked:
            self._accelerators = self._records.receipt(self._row.run_id, self._row.key, self.number)
            self._looked = True
        return self._accelerators


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
        rank=row.error.get("rank"),
        world_size=row.error.get("world_size"),
        failed_ranks=tuple(row.error.get("failed_ranks", ())),
        stacks={int(rank): str(text) for rank, text in row.error.get("stacks", {}).items()},
    )
