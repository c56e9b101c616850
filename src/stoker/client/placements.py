"""Where attempts were on a platform with a queue, and when they were sent, waited, ran and ended there; and the faulty
nodes and devices that runs left out."""

from __future__ import annotations

import itertools
import time
from datetime import datetime
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.client.keys import element_of
from stoker.core.protocol import JOB
from stoker.core.values import frozen
from stoker.store.rows import EventRow, StepRow, iso_text, local_time, seconds_between
from stoker.store.store import Store


@frozen(kw_only=True)
class Placement:
    """One attempt as a job of a platform. Times are None until they are known."""

    attempt: int
    """The attempt's number, from 1."""
    job: str = ""
    """The job in words, such as "job 12_3"."""
    id: str = ""
    """The platform's id of the job: Slurm's job id with the array index, Ray's submission id."""
    task: str = ""
    """Ray's id of the task."""
    node: str = ""
    """The node, or the first of several, by its host name or the platform's."""
    partition: str = ""
    """Slurm's partition; of a waiting job, those where it may run."""
    url: str = ""
    """The address of the job in the platform's dashboard."""
    sent: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    noticed: datetime | None = None
    """When the driver learned of the end."""
    waits: tuple[tuple[datetime, str], ...] = ()
    """Each change of the reason why it waited, with its time."""
    earlier: tuple[tuple[datetime, datetime], ...] = ()
    """From when until when the same job ran before its platform put it back into the queue, for each such start."""

    @property
    def run_seconds(self) -> float | None:
        """Seconds from the start to the end; None before the end."""
        return seconds_between(_epoch(self.started), _epoch(self.ended))

    @property
    def queue_seconds(self) -> float | None:
        """Seconds from being sent to the start, without those of earlier starts; None before the start."""
        seconds = seconds_between(_epoch(self.sent), _epoch(self.started))
        ran = sum((end - start).total_seconds() for start, end in self.earlier)
        return None if seconds is None else max(0.0, seconds - ran)

    def as_dict(self) -> dict[str, Any]:
        """The placement as JSON."""
        return {
            **{name: getattr(self, name) for name in ("attempt", "job", "id", "task", "node", "partition", "url")},
            **{name: iso_text(getattr(self, name)) for name in ("sent", "started", "ended", "noticed")},
            "queue_seconds": self.queue_seconds,
            "run_seconds": self.run_seconds,
            "waits": [[iso_text(moment), reason] for moment, reason in self.waits],
        }


def placements_of(events: Iterable[EventRow]) -> dict[str, list[Placement]]:
    """The placements by step or element, first attempt to last, from the run's events in their order."""
    placements: dict[str, dict[int, Placement]] = {}
    for event in events:
        number = event.data.get("attempt")
        if type(number) is not int:
            continue
        attempts = placements.setdefault(event.key, {})
        placement = attempts.get(number) or Placement(attempt=number)
        if event.kind == JOB:
            changes = _changes(event.data, event.time)
            started = placement.started
            again = None if started is None else next((at for at, _ in placement.waits if at > started), None)
            if started is not None and again is None:
                changes.pop("started", None)  # a later driver reports the start that is known
            elif started is not None and again is not None and "started" in changes:
                changes["earlier"] = (*placement.earlier, (started, again))
            attempts[number] = attrs.evolve(placement, **changes)
        elif event.kind == "waiting" and placement.sent is not None:
            wait = (local_time(event.time), str(event.data.get("message", "")))
            attempts[number] = attrs.evolve(placement, waits=(*placement.waits, wait))
    return {key: [attempts[number] for number in sorted(attempts)] for key, attempts in placements.items() if attempts}


def device_waits(events: Iterable[EventRow]) -> dict[str, list[tuple[float, float | None]]]:
    """When attempts waited for devices, by step or element: from the first word of it to the lease, None without one.
    Of one that had its devices at once both are the same.

    `events` have those of platforms' queues among them; what was sent to one waits there.
    """
    waits: dict[tuple[str, int], tuple[float, float | None]] = {}
    sent = set()
    for event in events:
        number = event.data.get("attempt")
        if type(number) is not int:
            continue
        attempt = (event.key, number)
        if event.kind == JOB:
            sent.add(attempt)
            waits.pop(attempt, None)
        elif event.kind == "waiting" and attempt not in sent:
            waits.setdefault(attempt, (event.time, None))
        elif event.kind == "leased" and attempt not in sent:
            waits[attempt] = (waits.get(attempt, (event.time, None))[0], event.time)
    found: dict[str, list[tuple[float, float | None]]] = {}
    for (key, _), wait in sorted(waits.items()):
        found.setdefault(key, []).append(wait)
    return found


def idle_seconds(
    placements: Mapping[str, Sequence[Placement]],
    steps: Sequence[StepRow],
    *,
    waits: Mapping[str, Sequence[tuple[float, float | None]]],
    since: float = 0.0,
    until: float | None,
) -> float:
    """Seconds in which something waited for a place, in its platform's queue or for devices (`waits`), while nothing
    of the run ran; `until` is the run's end.

    A fan-out whose elements wait for devices counts as running from the first lease on: its elements take turns.
    """
    end = time.time() if until is None else until
    placed = {element_of(key)[0] for key in placements}
    busy: list[tuple[float, float]] = []
    queued: list[tuple[float, float]] = []
    ends = {row.key: row.ended or end for row in steps}
    first: dict[str, tuple[float, float]] = {}
    for key, spans in waits.items():
        parent, index = element_of(key)
        over = ends.get(parent, end)
        for begin, leased in spans:
            if index is None:
                queued.append((begin, over if leased is None else leased))
            else:
                before, lease = first.get(parent, (begin, over))
                first[parent] = (min(before, begin), min(lease, over if leased is None else leased))
    queued += first.values()
    for row in steps:
        if row.started is None or row.key in placed:
            continue
        spans = waits.get(row.key, ())
        begin = row.started
        for waited, leased in (first[row.key],) if row.key in first else spans:
            busy.append((begin, waited))
            begin = ends[row.key] if leased is None else leased
        busy.append((begin, ends[row.key]))
    for placement in (one for attempts in placements.values() for one in attempts):
        sent, started, ended = (_epoch(getattr(placement, name)) for name in ("sent", "started", "ended"))
        if sent is not None:
            queued.append((sent, min(filter(None, (started, ended, end)))))
        if started is not None:
            busy.append((started, ended or end))
        busy += [(begin.timestamp(), over.timestamp()) for begin, over in placement.earlier]
    queued = [(max(begin, since), over) for begin, over in queued]
    moments = sorted({moment for span in (*queued, *busy) for moment in span})
    changes: dict[float, list[int]] = {moment: [0, 0] for moment in moments}
    for kind, spans in enumerate((queued, busy)):
        for begin, over in spans:
            if begin < over:
                changes[begin][kind] += 1
                changes[over][kind] -= 1
    seconds, waiting, running = 0.0, 0, 0
    for moment, following in itertools.pairwise(moments):
        waiting, running = waiting + changes[moment][0], running + changes[moment][1]
        seconds += following - moment if waiting and not running else 0.0
    return seconds


def _changes(data: Mapping[str, Any], noticed: float) -> dict[str, Any]:
    names = ("job", "id", "task", "node", "partition", "url")
    changes: dict[str, Any] = {name: str(data[name]) for name in names if data.get(name)}
    moment = data.get("time")
    if isinstance(moment, (int, float)):
        field = {"sent": "sent", "running": "started", "ended": "ended"}.get(str(data.get("state")))
        if field is not None:
            changes[field] = local_time(float(moment))
    if data.get("state") == "ended":
        changes["noticed"] = local_time(noticed)
    return changes


def _epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


RECENT: Final = 7 * 86400.0
"""Seconds for which a faulty place is named after a run left it out: within a week somebody has looked at it."""


@frozen(kw_only=True)
class LeftOut:
    """A node or device that a run left out because an attempt failed there."""

    place: str
    """The node's name, or the device's UUID."""
    kind: str
    """Either "node" or "device"."""
    host: str
    """The machine of a device, or of a node that its platform calls by an id; empty for other nodes."""
    backend: str
    run: str
    step: str
    attempt: int
    cause: str
    message: str
    time: datetime

    def __str__(self) -> str:
        return f"{self.place}: {self.cause} in attempt {self.attempt} of {self.step}: {self.message}".rstrip(": ")

    def as_dict(self) -> dict[str, Any]:
        """The place as JSON."""
        return {**attrs.asdict(self), "time": iso_text(self.time)}


def left_out_of(events: Iterable[EventRow]) -> list[LeftOut]:
    """The places in events of the kind `protocol.LEFT_OUT`, in their order."""
    return [
        LeftOut(
            place=str(place),
            kind=str(event.data.get("kind", "")),
            host=str(event.data.get("host", "")),
            backend=str(event.data.get("backend", "")),
            run=event.run_id,
            step=event.key,
            attempt=int(event.data.get("attempt") or 0),
            cause=str(event.data.get("cause", "")),
            message=str(event.data.get("message", "")),
            time=local_time(event.time),
        )
        for event in events
        for place in event.data.get("places", ())
    ]


def recently_left_out(store: Store) -> list[LeftOut]:
    """What runs of a store left out within the last week, the latest of each place, oldest first."""
    latest = {
        (one.kind, one.host, one.place): one
        for one in left_out_of(store.records.left_out_events(since=time.time() - RECENT))
    }
    return sorted(latest.values(), key=lambda one: one.time)
