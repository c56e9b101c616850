"""What a driver and a waiting program write for each other where they share nothing but the artifact store.

A mailbox is a folder, or a prefix of an object store. The driver leaves numbered orders there; `worker.mailbox` takes
them one after another, and leaves what became of each beside it. Each note has one writer, who writes it whole. Nobody
lists a folder while it waits, which object stores make slow and dear: a program asks for its next order by name, and a
driver for the states of the orders on their way.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

JOB: Final = "job.json"
"""The document of an order's job (`core.bootspec.BootSpec`), in the order's folder."""
SAMPLES: Final = "samples.jsonl"
"""What the monitor of an order's devices has written, in the order's folder."""
LOST: Final = 75
"""The exit code of a waiting program that heard nothing for too long: EX_TEMPFAIL of sysexits.h."""
_DIGITS: Final = 5


@attrs.frozen(kw_only=True)
class MailOrder:
    """The driver's: run the job whose document is in the order's folder; or, with `leave`, end with that exit code."""

    COMPACT: ClassVar = True
    version: int = 1
    leave: int = -1


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class MailEnd:
    """The driver's: end the job of the order, with so many seconds to leave."""

    COMPACT: ClassVar = True
    version: int = 1
    grace: float = 0.0


@attrs.frozen(kw_only=True)
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
