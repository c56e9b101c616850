"""The state of each rank as the agent keeps it, and a rank's output, split into lines."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from typing import IO, Any, Final, Mapping

import attrs

from stoker.core.codec import from_json
from stoker.core.protocol import Operation, RankEvidence, StepError, StepResult
from stoker.core.status import CANCELLED
from stoker.system import system
from stoker.worker.evidence import read_trail, trail_file
from stoker.worker.secrets import Masker

Line = tuple[float, str, "int | None", str]
"""Time, stream, rank (None: the launcher), text."""
AGENT: Final = "STOKER_RANK_AGENT"
"""The variable with the address of a node's agent, where one command of one launcher starts the ranks of all nodes."""
STACKS: Final = system.STACKS
"""The signal on which a rank writes the stacks of its threads."""
_SAID: Final = 120
"""Lines of a rank in which the reason of its abort is looked for; NCCL's watchdog and JAX's client print their own."""
_LONGEST: Final = 1 << 20
"""Bytes without a newline after which they become a line all the same."""


def stacks_file(folder: str, rank: int) -> str:
    """Where a rank writes its stacks when it is asked for them."""
    return os.path.join(folder, f"rank-{rank}.stacks")


@attrs.define(kw_only=True)
class RankState:
    """One rank: its process, its result, and how it ended."""

    rank: int
    watcher: int
    """The pid of its watcher."""
    child: int
    """The pid of the rank itself, below its watcher."""
    restarts: int = 0
    """How often its launcher has started it again."""
    result: StepResult | None = None
    """None until it has delivered one."""
    status: int | None = None
    """Its exit code, or the negative number of the signal that ended it; None while it runs."""
    failed_at: float = 0.0
    """On the monotonic clock; 0 while it has not failed."""
    started_at: float = attrs.field(factory=time.time)
    """In seconds since the epoch: when its watcher reported."""
    ended_at: float = 0.0
    """In seconds since the epoch: when its process ended; 0 while it runs."""
    outside: bool = False
    """Whether SIGTERM ended it before any rank had failed, and before anybody was to be ended."""
    said: deque[str] = attrs.field(factory=lambda: deque(maxlen=_SAID))
    """Its last lines of stderr."""
    account: Mapping[str, Any] = attrs.field(factory=dict)
    """What it answered when it was asked where it stands (`evidence.RankWitness`)."""

    @property
    def succeeded(self) -> bool:
        """Whether it delivered a result, and not that of a failure."""
        return self.result is not None and self.result.ok


def evidence_of(state: RankState, folder: str) -> RankEvidence:
    """What is known of a rank, from its state, its account, and the trail that it left in a folder."""
    operations, waited = read_trail(trail_file(folder, state.rank))
    end, error, cause, at = "", None, "", state.ended_at
    if state.result is not None:
        end = "returned" if state.result.ok else "raised"
        error, cause, at = state.result.error, state.result.cause, state.result.end or at
    elif state.status is not None:
        end = "died"
    if was_ended(state) and not state.outside:
        end = "asked"
    account = state.account
    raising = end in ("", "asked") and bool(account.get("raising"))
    if raising:
        error = from_json(StepError, account["raising"], strict=False)
    return RankEvidence(
        rank=state.rank,
        end=end,
        at=at,
        status=state.status,
        cause=cause,
        error=error,
        raising=raising,
        stands=account.get("stands", ""),
        text=account.get("text", ""),
        lock=account.get("lock", ""),
        said="\n".join(state.said) if end == "died" else "",
        threads={name: from_json(StepError, text, strict=False) for name, text in account.get("threads", ())},
        operations=operations,
        counts={one.group: one.number for one in operations},
        waited=waited,
        recorded=tuple(from_json(Operation, one, strict=False) for one in account.get("recorded", ())),
    )


def waited_by(state: RankState, folder: str) -> float:
    """The seconds that a rank has spent in collective operations so far, the one that runs included."""
    operations, seconds = read_trail(trail_file(folder, state.rank))
    running = [time.time() - one.began for one in operations if not one.ended and state.status is None]
    return seconds + sum(running)


def was_ended(state: RankState) -> bool:
    """Whether it was ended without a fault of its own: after a failure, launchers and the agent send SIGTERM."""
    if state.result is None:
        return state.status == -signal.SIGTERM
    return state.result.cause == CANCELLED


class RankOutput:
    """One output stream of one rank or launcher, split into lines. `source` is registered with a selector."""

    def __init__(
        self, name: str, rank: int | None, source: socket.socket | IO[bytes], masker: Masker | None = None
    ) -> None:
        self.name = name
        self.rank = rank
        self.source = source
        self._masker = masker
        self._rest = b""

    def read(self, size: int) -> bytes | None:
        """What can be read now; empty at the end, None where nothing can be read yet."""
        try:
            if isinstance(self.source, socket.socket):
                return self.source.recv(size)
            return self.source.read(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""

    def feed(self, data: bytes) -> list[Line]:
        """The lines that these bytes complete."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > _LONGEST:
            end = len(self._rest) if self._masker is None else self._masker.whole_end_of_bytes(self._rest)
            whole, newline, self._rest = whole + newline + self._rest[:end], b"\n", self._rest[end:]
        return self._lines(whole) if newline else []

    def end(self) -> list[Line]:
        """The last line, if it has no newline."""
        data, self._rest = self._rest, b""
        return self._lines(data) if data else []

    def _lines(self, data: bytes) -> list[Line]:
        now = time.time()
        return [(now, self.name, self.rank, text) for text in data.decode("utf-8", "replace").split("\n")]
