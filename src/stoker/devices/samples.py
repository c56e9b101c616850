"""What the sampler wrote, read back: a value that a lost line, or a file that was never made, leaves as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.core.monitoring import WATCHED
from stoker.core.receipt import Track

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
