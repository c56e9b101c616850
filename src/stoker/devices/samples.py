"""What the sampler wrote, read back: a value that a lost line, or a file that was never made, leaves as it is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.core.monitoring import WATCHED
from stoker.core.receipt import Track, Use
from stoker.devices.idleness import Idle, highest, worked

Line = Mapping[str, Any]

_EVENTS: Final = ("failed", "strays", "xid", "ecc", "stop")

NAMES: Final[Mapping[str, str]] = {
    "u": "utilization",
    "m": "memory",
    "o": "own_memory",
    "w": "power",
    "c": "temperature",
    "f": "clock",
    "rx": "pcie_received",
    "tx": "pcie_sent",
}
"""Names in the file → names of tracks."""


@attrs.frozen(kw_only=True)
class Samples:
    """One attempt's samples. `header` is the sampler's document, empty where there is none.

    `moments` are lines with `t`, `cpu`, `rss`, `procs` and `devices`; `events` what happened; `end` the last line, None
    for a sampler that was killed or still runs.
    """

    header: Line = attrs.field(factory=dict)
    moments: tuple[Line, ...] = ()
    events: tuple[Line, ...] = ()
    end: Line | None = None

    @property
    def devices(self) -> tuple[Line, ...]:
        """The devices that the step held."""
        return tuple(self.header.get("devices") or ())

    @property
    def simulated(self) -> bool:
        """Whether the devices are made up, so that nothing was measured on them."""
        held = self.devices
        return bool(self.header.get("simulated")) or bool(held and all(one.get("simulated") for one in held))

    @property
    def interval(self) -> float:
        """Seconds between samples."""
        return float(self.header.get("interval") or WATCHED.interval)

    @property
    def idle_below(self) -> float:
        """Percent of utilisation from which on a device works."""
        return float(self.header.get("idle_below") or WATCHED.idle_below)

    @property
    def idle_for(self) -> float:
        """Seconds without work after which devices are left idle."""
        return float(self.header.get("idle_for") or WATCHED.idle_for)

    @property
    def seconds(self) -> float:
        """From the step's start to the last line."""
        last = self.end or (self.moments[-1] if self.moments else {})
        return float(last.get("end", last.get("t", 0.0)))

    def of(self, uuid: str) -> Iterator[tuple[float, float, Line | None]]:
        """Each moment's time, the seconds since the one before, and the device's row; None where it did not answer.

        The first moment's seconds are 0: what it tells of the time before it is not the step's.
        """
        before = None
        for moment in self.moments:
            t = float(moment["t"])
            yield t, 0.0 if before is None else max(0.0, t - before), moment.get("devices", {}).get(uuid)
            before = t


def read(path: str | Path) -> Samples:
    """A sampler's file; lines that are cut or damaged are left out, and a file that is missing has no samples."""
    header: Line = {}
    moments: list[Line] = []
    events: list[Line] = []
    end: Line | None = None
    try:
        with open(path, "rb") as file:
            for line in _lines(file):
                if "header" in line:
                    header = line
                elif "end" in line:
                    end = line
                elif any(name in line for name in _EVENTS):
                    events.append(line)
                elif isinstance(line.get("t"), (int, float)):
                    moments.append(line)
    except OSError:
        return Samples()
    return Samples(header=header, moments=tuple(moments), events=tuple(events), end=end)


def cores(moments: Iterable[Line], window: float = 0.0) -> Iterator[tuple[float, float]]:
    """The CPU cores in use: time, and the mean since the moment before, or over `window` seconds and more.

    The kernel counts CPU time in hundredths of a second, so that short windows tell little.
    """
    past: list[tuple[float, float]] = []
    first = 0
    for moment in moments:
        if moment.get("cpu") is None:
            continue
        t, cpu = float(moment["t"]), float(moment["cpu"])
        while first + 1 < len(past) and t - past[first + 1][0] >= window:
            first += 1
        if past and t - past[first][0] >= max(window, 1e-3):
            yield t, max(0.0, cpu - past[first][1]) / (t - past[first][0])
        past.append((t, cpu))


def tracks(samples: Samples, points: int = 600) -> tuple[Track, ...]:
    """Every quantity that was told, over time, each thinned to `points` values at most."""
    found = []
    for device in samples.devices:
        uuid = str(device["uuid"])
        rows = list(samples.of(uuid))
        for key, name in NAMES.items():
            # What changes slowly is not in every row; a row that is missing is a device that did not answer.
            told = [(t, None if row is None else row[key]) for t, _, row in rows if row is None or key in row]
            found.append(_track(name, uuid, told, points))
    found.append(_track("cpus", "", list(cores(samples.moments)), points))
    memory = [(float(moment["t"]), moment.get("rss")) for moment in samples.moments]
    found.append(_track("memory", "", memory, points))
    return tuple(track for track in found if track is not None)


def _lines(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for data in file:
        try:
            line = json.loads(data)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def _track(name: str, uuid: str, told: list[tuple[float, float | None]], points: int) -> Track | None:
    values = [value for _, value in told if value is not None]
    if not values:
        return None
    size = -(-len(told) // max(1, points))
    parts = [told[at : at + size] for at in range(0, len(told), size)]
    return Track(
        name=name,
        uuid=uuid,
        times=tuple(round(sum(t for t, _ in part) / len(part), 3) for part in parts),
        values=tuple(_mean([value for _, value in part if value is not None]) for part in parts),
        peak=max(values),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


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
        utilization_mean=_mean_over_time(rows, "u", timed=True),
        utilization_peak=max(peaks, default=None),
        idle=sum(span for _, span, busy in known if not busy) / spans if spans else None,
        first_use=next((t for t, _, busy in known if busy), None),
        longest_idle=_longest(samples, [uuid]) if spans else None,
        memory_mean=_mean_over_time(rows, "m"),
        memory_peak=_whole(_highest(rows, "m")),
        own_memory_peak=_whole(_highest(rows, "o")),
        power_mean=_mean_over_time(rows, "w"),
        power_peak=_highest(rows, "w"),
        energy=_energy(samples, uuid),
        temperature_peak=_highest(rows, "c"),
        clock_mean=_mean_over_time(rows, "f"),
        pcie_received=_mean_over_time(rows, "rx"),
        pcie_sent=_mean_over_time(rows, "tx"),
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


def _values(rows: Rows, key: str) -> Iterator[tuple[float, float]]:
    """Values and the seconds for which they stand: those since the last row that told one."""
    gathered = 0.0
    for _, span, row in rows:
        gathered += span
        if row.get(key) is not None:
            yield float(row[key]), gathered
            gathered = 0.0


def _mean_over_time(rows: Rows, key: str, *, timed: bool = False) -> float | None:
    """The mean over time. `timed`: a value is about the time before it, so that the first, which has none, is not
    the step's; else a single value is its own mean."""
    told = list(_values(rows, key))
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
