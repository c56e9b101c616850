"""Moments of the store as Python's, and as text."""

from __future__ import annotations

from datetime import datetime, timezone


def local(seconds: float) -> datetime:
    """A time of the store's, seconds since the epoch, in the local zone."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def moment(seconds: float | None) -> datetime | None:
    """The same for one that may not have come."""
    return None if seconds is None else local(seconds)


def iso(time: datetime | None) -> str | None:
    """ISO 8601 with its zone, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def between(started: float | None, ended: float | None) -> float | None:
    """Seconds from start to end, where both are known."""
    return None if started is None or ended is None else max(0.0, ended - started)
