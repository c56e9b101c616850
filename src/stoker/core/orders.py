"""What a driver and programs elsewhere write for each other: a job's SPEC, the orders of a pool, those of a mailbox.

A pool is a folder (`worker.pool` runs its workers). The driver appends `PoolOrder`s to one file, the workers append
`PoolNote`s to one file each. Both are JSON, one document a line; a line without its end is not written yet.

A mailbox is a folder, or a prefix of an object store, where nothing else is shared. The driver leaves numbered orders
there; `worker.mailbox` takes them one after another, and leaves what became of each beside it. Each note has one
writer, who writes it whole. Nobody lists a folder while it waits, which object stores make slow and dear: a program
asks for its next order by name, and a driver for the states of the orders on their way.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final, Iterator, Mapping, TypeVar

import attrs

from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.protocol import VERSION, StepTask, WorkerJob
from stoker.core.values import frozen

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


@frozen(kw_only=True)
class BootSpec:
    """SPEC: a job with its step, and where the place has what they need; all that `worker.boot` gets.

    `package` is the digest of the user's code in the artifact store at `blobs`, made from the folder `root` of the
    driver's machine: what `job` and `step` say of files below it is meant in the folder where the package is unpacked.
    Without a package, `root`, `folder` and `path` are the place's own. `environment` are variables with secrets in
    them. `simulate` describes accelerators to be pretended. `grace`: seconds between SIGTERM and SIGKILL; `warning`:
    seconds before the platform's limit of the job's time in which it sends SIGUSR1, 0 where it does not. `keep`: how
    many copies of the step's checkpoints the artifact store gets, 0 where every node sees the folder `checkpoints`.

    A lease among the job's that names no devices is filled in with those that the platform gave.
    """

    version: int = VERSION
    job: WorkerJob
    step: StepTask
    blobs: str
    package: str = ""
    root: str = ""
    folder: str = "."
    path: tuple[str, ...] = ()
    checkpoints: str = ""
    keep: int = 0
    environment: Mapping[str, str] = attrs.field(factory=dict)
    simulate: str = ""
    grace: float = 0.0
    warning: float = 0.0


@frozen(kw_only=True)
class PoolSpec:
    """How the workers of a pool live."""

    version: int = 1
    idle_after: float = 30.0
    """Seconds without an order after which a worker leaves; 0: never."""
    lifetime: float = 0.0
    """Seconds that the platform gives a worker from its start; 0: no limit."""
    preload: tuple[str, ...] = ()
    """Packages of `worker.imports.FORKABLE` that a worker imports when it starts."""
    imports: tuple[str, ...] = ()
    """Modules of Stoker's that users' modules import: a worker imports them while its first job runs."""
    emptied: tuple[str, ...] = ()
    """Folders of the place, such as /tmp of a container, from which a worker removes what an order's program left."""


@frozen(kw_only=True)
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


@frozen(kw_only=True)
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


JOB: Final = "job.json"
"""The document of an order's job (`BootSpec`), in the order's folder."""
SAMPLES: Final = "samples.jsonl"
"""What the monitor of an order's devices has written, in the order's folder."""
LOST: Final = 75
"""The exit code of a waiting program that heard nothing for too long: EX_TEMPFAIL of sysexits.h."""
_DIGITS: Final = 5


@frozen(kw_only=True)
class MailOrder:
    """The driver's: run the job whose document is in the order's folder; or, with `leave`, end with that exit code."""

    COMPACT: ClassVar = True
    version: int = 1
    leave: int = -1


@frozen(kw_only=True)
class MailState:
    """The program's: how far it is with an order, from the moment in which it takes it."""

    COMPACT: ClassVar = True
    version: int = 1
    host: str = ""
    began: float = 0.0
    """When the program took the order, in seconds since the epoch."""
    pieces: int = 0
    """How many pieces of output there are."""
    over: bool = False
    """Whether the job has ended, so that nothing more is written."""
    code: int = 0
    """Then: the exit code of `worker.boot`, negative for a signal."""
    lost: bool = False
    """Then: whether the program that had taken the order is gone, and `worker.boot` with it."""


@frozen(kw_only=True)
class MailEnd:
    """The driver's: end the job of the order, with so many seconds to leave."""

    COMPACT: ClassVar = True
    version: int = 1
    grace: float = 0.0


@frozen(kw_only=True)
class MailPiece:
    """The program's: what the job wrote since the last piece, as pairs of the stream's name and Latin-1 text."""

    COMPACT: ClassVar = True
    version: int = 1
    frames: tuple[tuple[str, str], ...] = ()


def order_folder(number: int) -> str:
    """The folder of an order in its mailbox."""
    return f"{number:0{_DIGITS}d}"


def order_note(number: int) -> str:
    """The name of an order in its mailbox."""
    return f"{order_folder(number)}/order.json"


def state_note(number: int) -> str:
    """The name of an order's state."""
    return f"{order_folder(number)}/state.json"


def end_note(number: int) -> str:
    """The name of the request to end an order."""
    return f"{order_folder(number)}/end.json"


def piece_note(number: int, piece: int) -> str:
    """The name of a piece of an order's output."""
    return f"{order_folder(number)}/out-{piece:06d}.json"


UP: Final = "up.json"
"""The note of a program that waits for its first order."""
