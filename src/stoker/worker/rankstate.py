"""What the agent knows of each rank, and a rank's output on its way into lines."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import IO, Final

import attrs

from stoker.core.protocol import StepResult

Line = tuple[float, str, "int | None", str]
"""Time, stream, rank (None: the launcher), text."""
AGENT: Final = "STOKER_RANK_AGENT"
"""The variable with the address of a node's agent, where one command of one launcher starts the ranks of all nodes."""
STACKS: Final = signal.SIGRTMIN + 11 if sys.platform == "linux" else signal.SIGUSR2
"""Has a rank write the stacks of its threads; users and schedulers keep SIGUSR1 and SIGUSR2 for themselves."""
_LONGEST: Final = 1 << 20
"""Bytes without a newline after which they become a line all the same."""


def stacks_file(folder: str, rank: int) -> str:
    """Where a rank writes its stacks when it is asked for them."""
    return os.path.join(folder, f"rank-{rank}.stacks")


@attrs.define(kw_only=True)
class RankState:
    """One rank: its process, what it delivered, and how it ended. Times are of the monotonic clock.

    `status`: its exit code, or the negative number of the signal that ended it; None while it runs.
    """

    rank: int
    child: int
    restarts: int = 0
    result: StepResult | None = None
    status: int | None = None
    failed_at: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether it delivered a result that is none of a failure."""
        return self.result is not None and self.result.ok


class Output:
    """One stream of one process. `source` can be waited for."""

    def __init__(self, name: str, rank: int | None, source: socket.socket | IO[bytes]) -> None:
        self.name = name
        self.rank = rank
        self.source = source
        self._rest = b""

    def read(self, size: int) -> bytes | None:
        """What is there; empty at the end, None where nothing is there yet."""
        try:
            if isinstance(self.source, socket.socket):
                return self.source.recv(size)
            return self.source.read(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""

    def cut(self, data: bytes) -> list[Line]:
        """The lines that are whole now."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > _LONGEST:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        return self._lines(whole) if newline else []

    def end(self) -> list[Line]:
        """What is left without a newline."""
        rest, self._rest = self._rest, b""
        return self._lines(rest) if rest else []

    def _lines(self, data: bytes) -> list[Line]:
        now = time.time()
        return [(now, self.name, self.rank, text) for text in data.decode("utf-8", "replace").split("\n")]
