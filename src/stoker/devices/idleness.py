"""How long none of a step's devices has worked: what the monitor decides with, as a value without a clock.

A device whose driver does not tell its utilisation is not idle: it may work, and nothing is held against it.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple


class Idle(NamedTuple):
    """Since when no device has worked, in seconds after the step's start; None while one does, or nobody knows."""

    since: float | None = None

    def after(self, t: float, rows: Mapping[str, Mapping[str, Any]], held: Iterable[str], below: float) -> Idle:
        """What follows from a sample at `t`; the device is idle from the first sample that says so."""
        uuids = list(held)
        if not uuids or not all(idle(rows.get(uuid, {}), below) for uuid in uuids):
            return Idle()
        return self if self.since is not None else Idle(t)

    def seconds(self, t: float) -> float:
        """How long it has lasted."""
        return 0.0 if self.since is None else max(0.0, t - self.since)


def worked(row: Mapping[str, Any], below: float) -> bool | None:
    """Whether a device computed since the sample before; None where the driver does not tell."""
    told = highest(row)
    return None if told is None else told >= below


def highest(row: Mapping[str, Any]) -> float | None:
    """The highest utilisation of a sample, in percent."""
    told = [float(row[name]) for name in ("u", "up") if row.get(name) is not None]
    return max(told) if told else None


def idle(row: Mapping[str, Any], below: float) -> bool:
    """Whether the driver says that a device did not compute."""
    return worked(row, below) is False


def sentence(count: int, seconds: float, below: float) -> str:
    """Why a step is ended."""
    which = "its device has" if count == 1 else f"none of its {count} devices has"
    none = " not" if count == 1 else ""
    return f"{which}{none} worked (utilisation below {below:g} %) for {span(seconds)}"


def span(seconds: float) -> str:
    """Seconds in words: "45 s", "12 min", "3.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
