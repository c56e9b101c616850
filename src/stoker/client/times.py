"""Converts the store's times to `datetime` and to text."""

from __future__ import annotations

from datetime import datetime, timezone


def local_time(seconds: float) -> datetime:
    """Seconds since the epoch as a time in the local zone."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def optional_time(seconds: float | None) -> datetime | None:
    """The same for a time that may be None."""
    return None if seconds is None else local_time(seconds)


def iso_text(time: datetime | None) -> str | None:
    """A time as ISO 8601 with its zone, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def seconds_between(start: float | None, end: float | None) -> float | None:
    """Seconds from start to end; None if one of them is unknown."""
    return None if start is None or end is None else max(0.0, end - start)
