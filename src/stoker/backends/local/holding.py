"""Jobs that are over only when every process of theirs is gone: those with devices, with ranks, or on several nodes.

Until then device memory may still be taken and samples may be missing, so that their status is held back.
"""

from __future__ import annotations

from typing import Iterable, Sequence

from stoker.core.plan import JobStatus
from stoker.worker.forked import Line


class Holding:
    """Each such job's workers, one a node, and how it ended; node 0 speaks for all."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Line]] = {}
        self._statuses: dict[str, JobStatus] = {}

    def begin(self, name: str, lines: Iterable[Line]) -> None:
        """A job's workers have been forked, the one of node 0 first."""
        self._lines[name] = list(lines)

    def over(self, name: str, status: JobStatus) -> Sequence[Line]:
        """How a job ended, as its first node says; whoever of it is still there, to be ended."""
        self._statuses.setdefault(name, status)
        return self._lines.get(name, ())

    def others(self, name: str) -> Sequence[Line]:
        """The workers of a job's further nodes that are still there."""
        return [line for line in self._lines.get(name, ()) if line.node]

    def speaks(self, line: Line, name: str) -> bool:
        """Whether a worker is the one whose word counts for the job."""
        return bool(self._lines.get(name)) and line.node == 0

    def gone(self, line: Line) -> tuple[str, JobStatus] | None:
        """A worker has ended; the job and its status if it was the last."""
        for name, lines in self._lines.items():
            if line in lines:
                lines.remove(line)
                if lines or name not in self._statuses:
                    return None
                del self._lines[name]
                return name, self._statuses.pop(name)
        return None

    def holds(self, name: str) -> bool:
        """Whether a job is one of these."""
        return name in self._lines
