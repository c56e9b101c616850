"""One try at a step, and why it failed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Iterable, Mapping

import attrs

from stoker.client.times import between, iso, moment
from stoker.core.status import RETRYABLE
from stoker.core.words import memory_text, time_text
from stoker.store.rows import AttemptRow


@attrs.frozen(kw_only=True)
class Usage:
    """What was used, where it was measured: `cpu` in seconds, `peak_memory` in bytes."""

    cpu: float | None = None
    peak_memory: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        return {"cpu": self.cpu, "peak_memory": self.peak_memory}

    def __str__(self) -> str:
        facts = [] if self.cpu is None else [f"cpu {time_text(self.cpu)}"]
        facts += [] if self.peak_memory is None else [f"peak {memory_text(self.peak_memory)}"]
        return ", ".join(facts)


def usage(recorded: Mapping[str, Any]) -> Usage:
    """The figures of a row."""
    cpu, peak = recorded.get("cpu"), recorded.get("peak")
    return Usage(cpu=None if cpu is None else float(cpu), peak_memory=None if peak is None else int(peak))


def usage_of_all(parts: Iterable[Usage]) -> Usage:
    """The figures of several that may have run side by side: their time together, the largest memory of one."""
    known = list(parts)
    times = [part.cpu for part in known if part.cpu is not None]
    peaks = [part.peak_memory for part in known if part.peak_memory is not None]
    return Usage(cpu=sum(times) if times else None, peak_memory=max(peaks, default=None))


@attrs.frozen(kw_only=True)
class Failure:
    """Why something failed: the classified cause, and the exception where the step's code raised one.

    `place` is the line of yours that raised it, `exit_code` is that of a process that died (negative: by that signal).
    `why` says what the message means, where that is known, `evidence` what shows it, `advice` what to do. `retryable`
    is where the same job may succeed: "here", "elsewhere", or "never" without a change.
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

    def as_dict(self) -> dict[str, Any]:
        """The failure as JSON."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}".rstrip(": ")


class Attempt:
    """One try at a step."""

    def __init__(self, row: AttemptRow) -> None:
        self.number = row.number
        self.status = row.status
        self.backend = row.backend
        self.started: datetime | None = moment(row.started)
        self.ended: datetime | None = moment(row.ended)
        self.seconds = between(row.started, row.ended)
        self.usage = usage(row.usage)
        self.failure = _failure(row)

    def as_dict(self) -> dict[str, Any]:
        """The attempt as JSON."""
        return {
            "number": self.number,
            "status": self.status,
            "backend": self.backend,
            "started": iso(self.started),
            "ended": iso(self.ended),
            "seconds": self.seconds,
            "failure": None if self.failure is None else self.failure.as_dict(),
            "usage": self.usage.as_dict(),
        }

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f" after {time_text(self.seconds)}"
        why = "" if self.failure is None else f": {self.failure}"
        return f"<Attempt {self.number} {self.status}{took}{why}>"


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
    )
