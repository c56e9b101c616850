"""What a driver and the workers of a pool write for each other: `worker.pool` runs the workers.

A pool is a folder. The driver appends `PoolOrder`s to one file, the workers append `PoolNote`s to one file each. Both
are JSON, one document a line; a line without its end is not written yet.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final, Iterator, TypeVar

import attrs

from stoker.core.codec import from_json, parse_json, to_json

T = TypeVar("T", "PoolOrder", "PoolNote")

SPEC: Final = "pool.json"
"""The file of a pool that holds its `PoolSpec`."""
ORDERS: Final = "orders"
"""The file to which the driver appends, there before the first worker starts."""
CLAIMS: Final = "claims"
"""The folder with a file for each order that was taken, named by its number, with the name of who took it."""
DRIVER: Final = "driver"
"""The name of the driver in a claim: an order that it took back is begun by no worker."""
IDLE: Final = "idle"
LIFETIME: Final = "lifetime"
TOLD: Final = "told"
SIGNAL: Final = "signal"
REMAINS: Final = "remains"
"""Why a worker left: no work came, no order fits into its time, it was told to, the platform ends it, or processes of
an order could not be ended."""


@attrs.frozen(kw_only=True)
class PoolSpec:
    """How the workers of a pool live."""

    version: int = 1
    idle_after: float = 30.0
    """Seconds without an order after which a worker leaves; 0: never."""
    lifetime: float = 0.0
    """Seconds that the platform gives a worker from its start; 0: no limit."""
    preload: tuple[str, ...] = ()
    """Packages of `worker.preloading.FORKABLE` that a worker imports when it starts."""
    imports: tuple[str, ...] = ()
    """Modules of Stoker's that users' modules import: a worker imports them while its first job runs."""
    emptied: tuple[str, ...] = ()
    """Folders of the place, such as /tmp of a container, from which a worker removes what an order's program left."""


@attrs.frozen(kw_only=True)
class PoolOrder:
    """A line of the driver's: run a job (`spec`), end one (`end`), or take nothing more (`close`)."""

    COMPACT: ClassVar = True
    number: int = -1
    """Of the order to run or to end; each order of a pool has another one."""
    spec: str = ""
    """The path or URI of the job's SPEC, as `worker.boot` gets it."""
    out: str = ""
    """The file to which the job's standard output is appended; empty: the worker's own."""
    err: str = ""
    """The same for standard error. If it is the same file as `out`, the step's lines are events there: the order of the
    two streams is kept."""
    seconds: float = 0.0
    """Of the worker's lifetime that must be left when it begins the job, unless it is the worker's first one."""
    end: bool = False
    grace: float = 0.0
    """Seconds between the request to end and the kill; 0: at once."""
    close: bool = False


@attrs.frozen(kw_only=True)
class PoolNote:
    """A line of a worker's. `up`: the host's name, the first line; `claimed`: it takes an order; `over`: that order's
    program has ended with an exit `code`, negative for a signal, and nothing is left of it; `closed`: why it leaves,
    the last line."""

    COMPACT: ClassVar = True
    time: float = 0.0
    """Seconds since the epoch."""
    up: str = ""
    pid: int = 0
    claimed: int = -1
    over: int = -1
    code: int = 0
    closed: str = ""


def journal_of(name: str) -> str:
    """The file of a pool to which the worker of that name appends."""
    return f"journal-{name}"


def wake_of(name: str) -> str:
    """The FIFO of a pool that the worker of that name reads, where the driver made one: a byte in it means that there
    is an order. FIFOs work between processes of one kernel only."""
    return f"wake-{name}"


def line(document: PoolOrder | PoolNote) -> bytes:
    """A document as a line."""
    return json.dumps(to_json(document), separators=(",", ":")).encode() + b"\n"


def documents(cls: type[T], data: bytes) -> Iterator[T]:
    """The documents of whole lines; what the last one is still to get is left to the caller (`whole`).

    Raises `SettingsError` for a line that is none of ours.
    """
    for text in data.splitlines():
        yield from_json(cls, parse_json(text), strict=False)


def whole(data: bytes) -> bytes:
    """The part of what was read that consists of whole lines."""
    return data[: data.rfind(b"\n") + 1]
