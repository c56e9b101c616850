"""How long none of a step's devices has worked, as a value without a clock. The monitor decides by it.

A device whose driver does not report its utilisation does not count as idle.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence


class Idle(NamedTuple):
    """The time since which no device has worked."""

    since: float | None = None
    """Seconds after the step's start; None while a device works, or does not report its utilisation."""

    def after(self, t: float, rows: Mapping[str, Mapping[str, Any]], held: Sequence[str], below: float) -> Idle:
        """The state after a sample at `t`. `held` are the UUIDs of the step's devices, `below` percent of utilisation.

        Devices count as idle from the first sample in which all of them are.
        """
        if not held or not all(is_idle(rows.get(uuid, {}), below) for uuid in held):
            return Idle()
        return self if self.since is not None else Idle(t)

    def seconds(self, t: float) -> float:
        """How long it has lasted."""
        return 0.0 if self.since is None else max(0.0, t - self.since)


def has_worked(row: Mapping[str, Any], below: float) -> bool | None:
    """Whether a device computed since the sample before; None where the driver does not report it."""
    utilization = highest(row)
    return None if utilization is None else utilization >= below


def highest(row: Mapping[str, Any]) -> float | None:
    """The highest utilisation of a sample, in percent."""
    values = [float(row[name]) for name in ("u", "up") if row.get(name) is not None]
    return max(values) if values else None


def is_idle(row: Mapping[str, Any], below: float) -> bool:
    """Whether the driver reports that a device did not compute."""
    return has_worked(row, below) is False


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
