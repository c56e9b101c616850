"""Reads the sampler's file. Missing files and damaged lines mean fewer samples, never an error.

Also how long none of a step's devices has worked, as a value without a clock; the monitor decides by it. A device whose
driver does not report its utilisation does not count as idle.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError
from stoker.core.receipt import Track, Use
from stoker.core.resources import WATCHED
from stoker.devices.idleness import Idle, has_worked, highest

Line = Mapping[str, Any]
Rows = list[tuple[float, float, Line]]
"""(time, seconds since the sample before, row) of one device."""

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

_TAIL: Final = 64 * 1024
"""Bytes at a file's end that hold the last samples."""
_WINDOW: Final = 1.0
"""Seconds over which the cores in use are a mean."""

COVERED: Final = 0.9
"""The part of a step's time for which power must be known, for its integral to count as the step's energy."""


@attrs.frozen(kw_only=True)
class Samples:
    """The samples of one attempt."""

    header: Line = attrs.field(factory=dict)
    """The sampler's document; empty where there is no file."""
    moments: tuple[Line, ...] = ()
    """The samples: lines with `t`, `cpu`, `rss`, `procs` and `devices`."""
    events: tuple[Line, ...] = ()
    """Lines with one of `failed`, `strays`, `xid`, `ecc` and `stop`."""
    end: Line | None = None
    """The last line; None for a sampler that was killed or still runs."""

    @property
    def devices(self) -> tuple[Line, ...]:
        """The devices that the step held."""
        return tuple(self.header.get("devices") or ())

    @property
    def simulated(self) -> bool:
        """Whether the devices are simulated, so that nothing was measured on them."""
        devices = self.devices
        return bool(self.header.get("simulated")) or bool(devices and all(one.get("simulated") for one in devices))

    @property
    def interval(self) -> float:
        """Seconds between samples."""
        return float(self.header.get("interval") or WATCHED.interval)

    @property
    def idle_below(self) -> float:
        """Percent of utilisation from which a device counts as working."""
        return float(self.header.get("idle_below") or WATCHED.idle_below)

    @property
    def idle_for(self) -> float:
        """Seconds without work after which devices count as left idle."""
        return float(self.header.get("idle_for") or WATCHED.idle_for)

    @property
    def seconds(self) -> float:
        """From the step's start to the last line."""
        last = self.end or (self.moments[-1] if self.moments else {})
        return float(last.get("end", last.get("t", 0.0)))

    def of(self, uuid: str) -> Iterator[tuple[float, float, Line | None]]:
        """(time, seconds since the sample before, the device's row or None where it did not answer) of each sample.

        The first sample's seconds are 0: it covers time before the step.
        """
        before = None
        for moment in self.moments:
            t = float(moment["t"])
            yield t, 0.0 if before is None else max(0.0, t - before), moment.get("devices", {}).get(uuid)
            before = t


def read(path: str | Path) -> Samples:
    """Read a sampler's file. Skips damaged lines; a missing file has no samples.

    What was measured until a line with `checked` is left out, with the sample after it, which reaches back: the gate's
    health check had the devices work, and not the step.
    """
    reaches_back = False
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
                elif "checked" in line:
                    moments, reaches_back = [], True
                elif any(name in line for name in _EVENTS):
                    events.append(line)
                elif isinstance(line.get("t"), (int, float)):
                    if not reaches_back:
                        moments.append(line)
                    reaches_back = False
    except OSError:
        return Samples()
    return Samples(header=header, moments=tuple(moments), events=tuple(events), end=end)


@attrs.frozen(kw_only=True)
class LatestSample:
    """What a monitor that runs measured last."""

    age: float
    """Seconds since then."""
    interval: float
    """Seconds between two samples, as far as they tell."""
    cpus: float | None
    """Cores in use since some samples before."""
    memory: int | None
    """Bytes."""
    processes: int
    devices: Mapping[str, Line]
    """UUID → the newest row; a value that changes slowly is that of an earlier one."""


def latest(path: str | Path) -> LatestSample | None:
    """The newest sample of a file, by its last lines; None without one, and of a monitor that has ended."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = list(_lines(file.read().split(b"\n")))
            written = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    moments = [line for line in lines if isinstance(line.get("t"), (int, float)) and "devices" in line]
    if not moments or any("end" in line for line in lines):
        return None
    rows: dict[str, dict[str, Any]] = {}
    for moment in moments:
        for uuid, row in moment["devices"].items():
            rows[uuid] = {**rows.get(uuid, {}), **row}
    last, used = moments[-1], [value for _, value in cores(moments, _WINDOW)]
    return LatestSample(
        age=max(0.0, time.time() - written),
        interval=(last["t"] - moments[0]["t"]) / max(1, len(moments) - 1),
        cpus=used[-1] if used else None,
        memory=last.get("rss"),
        processes=int(last.get("procs") or 0),
        devices=rows,
    )


def cores(moments: Iterable[Line], window: float = 0.0) -> Iterator[tuple[float, float]]:
    """(time, cores in use) of each sample: the mean since the sample before, or over at least `window` seconds.

    The kernel counts CPU time in hundredths of a second, so that short windows are imprecise.
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
    """Every quantity that was measured, over time, each thinned to `points` values at most."""
    quantities = []
    for device in samples.devices:
        uuid = str(device["uuid"])
        rows = list(samples.of(uuid))
        for key, name in NAMES.items():
            # Slowly changing values are not in every row; a missing row is a device that did not answer.
            points_of_device = [
                (t, None if row is None else row[key]) for t, _, row in rows if row is None or key in row
            ]
            quantities.append(_track(name, uuid, points_of_device, points))
    quantities.append(_track("cpus", "", list(cores(samples.moments)), points))
    memory = [(float(moment["t"]), moment.get("rss")) for moment in samples.moments]
    quantities.append(_track("memory", "", memory, points))
    return tuple(track for track in quantities if track is not None)


def _lines(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for data in file:
        try:
            yield parse_object(data)
        except SettingsError:
            continue


def _track(name: str, uuid: str, series: list[tuple[float, float | None]], points: int) -> Track | None:
    values = [value for _, value in series if value is not None]
    if not values:
        return None
    size = -(-len(series) // max(1, points))
    parts = [series[at : at + size] for at in range(0, len(series), size)]
    return Track(
        name=name,
        uuid=uuid,
        times=tuple(round(sum(t for t, _ in part) / len(part), 3) for part in parts),
        values=tuple(_mean([value for _, value in part if value is not None]) for part in parts),
        peak=max(values),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def use_of(samples: Samples, device: Line) -> Use:
    """What the step did with one device; None for what was never measured."""
    uuid = str(device["uuid"])
    rows = [(t, span, row) for t, span, row in samples.of(uuid) if row is not None]
    below = samples.idle_below
    timed = [(t, span, has_worked(row, below)) for t, span, row in rows if span and has_worked(row, below) is not None]
    spans = sum(span for _, span, _ in timed)
    peaks = [utilization for _, span, row in rows if span and (utilization := highest(row)) is not None]
    return Use(
        uuid=uuid,
        kind=str(device.get("kind", "")),
        index=int(device.get("index", 0)),
        model=str(device.get("model", "")),
        memory=int(device.get("memory", 0)),
        slice=str(device.get("slice", "")),
        simulated=samples.simulated or bool(device.get("simulated")),
        samples=len(rows),
        utilization_mean=_mean_over_time(rows, "u", timed=True),
        utilization_peak=max(peaks, default=None),
        idle=sum(span for _, span, busy in timed if not busy) / spans if spans else None,
        first_use=next((t for t, _, busy in timed if busy), None),
        longest_idle=_longest(samples, [uuid]) if spans else None,
        memory_mean=_mean_over_time(rows, "m"),
        memory_peak=_as_int(_highest(rows, "m")),
        own_memory_peak=_as_int(_highest(rows, "o")),
        power_mean=_mean_over_time(rows, "w"),
        power_peak=_highest(rows, "w"),
        energy=_energy(samples, uuid),
        temperature_peak=_highest(rows, "c"),
        clock_mean=_mean_over_time(rows, "f"),
        pcie_received=_mean_over_time(rows, "rx"),
        pcie_sent=_mean_over_time(rows, "tx"),
        throttled=_throttled_shares(row for _, _, row in rows),
    )


def longest_idle(samples: Samples) -> float:
    """Seconds for which none of the devices worked, at the longest; 0 where that is not known."""
    return _longest(samples, [str(device["uuid"]) for device in samples.devices])


def processes_on(samples: Samples, uuid: str) -> list[int]:
    """How many of the step's processes were on a device, each time that its processes were listed: once a second at
    most, however often it is sampled. Empty where the driver does not report them.
    """
    return [int(row["n"]) for _, _, row in samples.of(uuid) if row is not None and row.get("n") is not None]


def _longest(samples: Samples, uuids: list[str]) -> float:
    idle, longest = Idle(), 0.0
    for moment in samples.moments:
        t = float(moment["t"])
        idle = idle.after(t, moment.get("devices", {}), uuids, samples.idle_below)
        longest = max(longest, idle.seconds(t))
    return longest


def _values(rows: Rows, key: str) -> Iterator[tuple[float, float]]:
    """Values and the seconds since the last row that had one."""
    gathered = 0.0
    for _, span, row in rows:
        gathered += span
        if row.get(key) is not None:
            yield float(row[key]), gathered
            gathered = 0.0


def _mean_over_time(rows: Rows, key: str, *, timed: bool = False) -> float | None:
    """The mean over time. With `timed`, a value describes the time before it, so that the first does not count;
    otherwise a single value is its own mean.
    """
    values = list(_values(rows, key))
    whole = sum(span for _, span in values)
    if whole:
        return round(
            sum(value * span for value, span in values) / whole, 6
        )  # 300 W all the time are not 299.99999999999994
    return None if timed or not values else sum(value for value, _ in values) / len(values)


def _highest(rows: Rows, key: str) -> float | None:
    return max((float(row[key]) for _, _, row in rows if row.get(key) is not None), default=None)


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _energy(samples: Samples, uuid: str) -> float | None:
    """Joules: by the device's own counter, and by its power before the first reading of it and after the last.

    Without two readings it is the integral of the power, where that is known throughout.
    """
    rows = list(samples.of(uuid))
    counted = [at for at, (_, _, row) in enumerate(rows) if row is not None and row.get("j") is not None]
    counter = [float(row["j"]) for _, _, row in rows if row is not None and row.get("j") is not None]
    if len(counter) > 1 and all(later >= earlier for earlier, later in itertools.pairwise(counter)):
        before, after = rows[: counted[0] + 1], rows[counted[-1] :]
        return _integral(before)[0] + counter[-1] - counter[0] + _integral(after)[0]
    joules, covered = _integral(rows)
    whole = sum(span for _, span, _ in rows)
    return joules if covered and covered >= COVERED * whole else None


def _integral(rows: Iterable[tuple[float, float, Line | None]]) -> tuple[float, float]:
    """Joules by the power of rows, the first of which only begins, and the seconds for which it is known."""
    joules = covered = 0.0
    before: float | None = None
    for _, span, row in rows:
        power = None if row is None or row.get("w") is None else float(row["w"])
        if power is not None and before is not None:
            joules += span * (power + before) / 2
            covered += span
        before = power
    return joules, covered


def _throttled_shares(rows: Iterable[Line]) -> dict[str, float]:
    samples = [row["r"] for row in rows if row.get("r") is not None]
    reasons = sorted({reason for reasons_of_sample in samples for reason in reasons_of_sample})
    return {
        reason: sum(reason in reasons_of_sample for reasons_of_sample in samples) / len(samples) for reason in reasons
    }
