"""Times and figures as a person reads them."""

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


def time_text(seconds: float) -> str:
    """`"3 ms"`, `"1.2 s"`, `"2 m 05 s"`, `"3 h 07 m"`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def memory_text(size: float) -> str:
    """Bytes in powers of 1000: `"412 MB"`, `"1.4 GB"`."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size / 1000:.3g} TB"


def count_text(number: int, noun: str) -> str:
    """`"1 step"`, `"3 steps"`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
