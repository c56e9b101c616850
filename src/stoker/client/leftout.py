"""Faulty nodes and devices that runs left out: what a run's record and the store's say of them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final, Iterable

import attrs

from stoker.store.rows import EventRow, iso_text, local_time
from stoker.store.store import Store

RECENT: Final = 7 * 86400.0
"""Seconds for which a faulty place is named after a run left it out: within a week somebody has looked at it."""


@attrs.frozen(kw_only=True)
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
