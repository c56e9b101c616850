"""What a platform with a queue of its own must be able to do, and what it tells of a job: the seam to `watched`."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

import attrs

from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import WorkerEvent


class Away(BackendError):
    """The platform does not answer now; whatever was asked may be asked again."""


@attrs.frozen(kw_only=True)
class Seen:
    """What a platform knows of a job at one look.

    `output` are pieces of what its nodes wrote since the last look: node, stream, bytes. `status` is its end, None
    while there is none; until then `running` says that it does, or `message` why it waits. `events` are worth
    remembering. `brought` has copies on this machine of samples that nodes wrote elsewhere,
    by the paths there.
    """

    running: bool = False
    message: str = ""
    output: Sequence[tuple[int, str, bytes]] = ()
    status: JobStatus | None = None
    events: Sequence[WorkerEvent] = ()
    brought: Mapping[str, str] = attrs.field(factory=dict)


class Platform(Protocol):
    """How a platform's jobs are sent, found, looked after and ended; all of it in the watch's thread.

    A handle is whatever the platform needs to know one job by. Each call may raise `Away`.
    """

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Handles of those jobs, by name, that an earlier driver had sent and that are worth taking over."""

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Have jobs start; by name a handle, or the `JobStatus` of one that the platform refuses. One that is not
        mentioned is sent again later."""

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, Seen]:
        """What is known of jobs now. One that is not mentioned has no news."""

    def end(self, handles: Mapping[str, Any], *, grace: float) -> None:
        """Ask jobs to end within `grace` seconds; 0: at once. Those that are gone are fine."""

    def forget(self, handle: Any) -> None:
        """A job is over and all of it is known: what it left behind may go."""

    def close(self) -> None:
        """Let go of connections."""
