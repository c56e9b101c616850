"""The interface between `watched` and a platform with a queue: what the platform does, and what it reports of a job."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

import attrs

from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import WorkerEvent


class Away(BackendError):
    """The platform does not answer now; the call may be repeated."""


@attrs.frozen(kw_only=True)
class JobReport:
    """What a platform reports of a job at one poll."""

    running: bool = False
    message: str = ""
    """Why the job waits."""
    output: Sequence[tuple[int, str, bytes]] = ()
    """What the job's nodes wrote since the last poll: node, stream, bytes."""
    status: JobStatus | None = None
    """The end of the job; None until then."""
    events: Sequence[WorkerEvent] = ()
    """Events for the run's record."""


class Platform(Protocol):
    """Sends, finds, polls and ends jobs; every method is called in the watcher's thread and may raise `Away`.

    A handle is any value by which the platform identifies a job.
    """

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Handles, by name, of the jobs that an earlier driver sent and that are worth adopting."""

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Start jobs; by name a handle, or the `JobStatus` of a job that the platform refuses. A job that is not
        mentioned is sent again later."""

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, JobReport]:
        """What is new of jobs; a job that is not mentioned has no news."""

    def end(self, handles: Mapping[str, Any], *, grace: float) -> None:
        """Ask jobs to end within `grace` seconds; 0: at once. Jobs that are gone are ignored."""

    def forget(self, handle: Any) -> None:
        """A job is over and all of it is read: remove its files."""

    def close(self) -> None:
        """Close connections."""
