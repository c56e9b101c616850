"""What one device did from a step's start to its end, added up from samples. Pure: no clock, no driver."""

from __future__ import annotations

import itertools
from typing import Final, Iterable, Iterator

from stoker.core.receipt import Use
from stoker.devices.idleness import Idle, highest, worked
from stoker.devices.samples import Line, Samples

COVERED: Final = 0.9
"""The part of a step's time for which power must be told, if its integral is to be called the step's energy."""


def use_of(samples: Samples, device: Line) -> Use:
    """One device's account; what was never told is None."""
    uuid = str(device["uuid"])
    rows = [(t, span, row) for t, span, row in samples.of(uuid) if row is not None]
    below = samples.idle_below
    known = [(t, span, worked(row, below)) for t, span, row in rows if span and worked(row, below) is not None]
    spans = sum(span for _, span, _ in known)
    peaks = [told for _, span, row in rows if span and (told := highest(row)) is not None]
    return Use(
        uuid=uuid,
        kind=str(device.get("kind", "")),
        index=int(device.get("index", 0)),
        model=str(device.get("model", "")),
        memory=int(device.get("memory", 0)),
        simulated=samples.simulated or bool(device.get("simulated")),
        samples=len(rows),
        utilization_mean=_mean(rows, "u", timed=True),
        utilization_peak=max(peaks, default=None),
        idle=sum(span for _, span, busy in known if not busy) / spans if spans else None,
        first_use=next((t for t, _, busy in known if busy), None),
        longest_idle=_longest(samples, [uuid]) if spans else None,
        memory_mean=_mean(rows, "m"),
        memory_peak=_whole(_highest(rows, "m")),
        own_memory_peak=_whole(_highest(rows, "o")),
        power_mean=_mean(rows, "w"),
        power_peak=_highest(rows, "w"),
        energy=_energy(samples, uuid),
        temperature_peak=_highest(rows, "c"),
        clock_mean=_mean(rows, "f"),
        pcie_received=_mean(rows, "rx"),
        pcie_sent=_mean(rows, "tx"),
        throttled=_throttled(row for _, _, row in rows),
    )


def longest_idle(samples: Samples) -> float:
    """Seconds for which none of the devices worked, at the longest; 0 where that is not known."""
    return _longest(samples, [str(device["uuid"]) for device in samples.devices])


def processes_on(samples: Samples, uuid: str) -> int | None:
    """The most of the step's processes that were on a device at once; None where the driver does not tell."""
    told = [int(row["n"]) for _, _, row in samples.of(uuid) if row is not None and row.get("n") is not None]
    return max(told, default=None)


def _longest(samples: Samples, uuids: list[str]) -> float:
    idle, longest = Idle(), 0.0
    for moment in samples.moments:
        t = float(moment["t"])
        idle = idle.after(t, moment.get("devices", {}), uuids, samples.idle_below)
        longest = max(longest, idle.seconds(t))
    return longest


Rows = list[tuple[float, float, Line]]


def _told(rows: Rows, key: str) -> Iterator[tuple[float, float]]:
    """Values and the seconds for which they stand: those since the last row that told one."""
    gathered = 0.0
    for _, span, row in rows:
        gathered += span
        if row.get(key) is not None:
            yield float(row[key]), gathered
            gathered = 0.0


def _mean(rows: Rows, key: str, *, timed: bool = False) -> float | None:
    """The mean over time. `timed`: a value is about the time before it, so that the first, which has none, is not
    the step's; else a single value is its own mean."""
    told = list(_told(rows, key))
    whole = sum(span for _, span in told)
    if whole:
        return round(
            sum(value * span for value, span in told) / whole, 6
        )  # 300 W all the time are not 299.99999999999994
    return None if timed or not told else sum(value for value, _ in told) / len(told)


def _highest(rows: Rows, key: str) -> float | None:
    return max((float(row[key]) for _, _, row in rows if row.get(key) is not None), default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _energy(samples: Samples, uuid: str) -> float | None:
    """Joules: by the device's own counter, else the integral of its power, where that is told all the time."""
    rows = list(samples.of(uuid))
    counted = [float(row["j"]) for _, _, row in rows if row is not None and row.get("j") is not None]
    if len(counted) > 1 and all(later >= earlier for earlier, later in itertools.pairwise(counted)):
        return counted[-1] - counted[0]
    joules = covered = 0.0
    before: float | None = None
    for _, span, row in rows:
        power = None if row is None or row.get("w") is None else float(row["w"])
        if power is not None and before is not None:
            joules += span * (power + before) / 2
            covered += span
        before = power
    whole = sum(span for _, span, _ in rows)
    return joules if covered and covered >= COVERED * whole else None


def _throttled(rows: Iterable[Line]) -> dict[str, float]:
    told = [row["r"] for row in rows if row.get("r") is not None]
    reasons = sorted({reason for found in told for reason in found})
    return {reason: sum(reason in found for found in told) / len(told) for reason in reasons}
