"""The interface between `watched` and a platform with a queue: what the platform does, what it reports of a job, and
whether it answers at all."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final, Iterable, Iterator, Mapping, Protocol, Sequence, runtime_checkable

import attrs

from stoker.backends.base.leasing import OWN_VISIBILITY
from stoker.core.errors import Away, DiskFull
from stoker.core.findings import Finding
from stoker.core.plan import Job, JobStatus, StepPlan, reporter_of
from stoker.core.protocol import WorkerEvent
from stoker.launchers.registry import launcher_named
from stoker.vendors.table import NO_DEVICES

__all__ = [
    "SLOW",
    "Answers",
    "AtHand",
    "Away",
    "DiskFull",
    "JobReport",
    "Platform",
    "RemotePlatform",
    "Silence",
]

SLOW: Final = 5.0
"""Seconds after which a call without an answer counts as silence: two looks at the shortest pause, and a margin."""
_FEW: Final = 2
"""Unanswered questions in a row that count as silence, however fast each of them failed: one may be an accident."""


@attrs.frozen(kw_only=True)
class JobReport:
    """What a platform reports of a job at one poll."""

    running: bool = False
    message: str = ""
    """Why the job waits."""
    reason: str = ""
    """The part of the message that is reported when it changes; empty for all of it."""
    facts: Mapping[str, str] = attrs.field(factory=dict)
    """What is known of where the job runs: "node", "partition", "task"."""
    output: Sequence[tuple[int, str, bytes]] = ()
    """What the job's nodes wrote since the last poll: node, stream, bytes."""
    status: JobStatus | None = None
    """The end of the job; None until then."""
    events: Sequence[WorkerEvent] = ()
    """Events for the run's record."""


class Platform(Protocol):
    """Sends, finds, polls and ends jobs; every method is called in the watcher's thread and may raise `Away`.

    A handle is any value by which the platform identifies a job. A platform whose jobs may outlive their driver is a
    `RemotePlatform`.
    """

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Handles, by name, of the jobs that an earlier driver sent and that are worth adopting."""

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Start jobs; by name a handle, or the `JobStatus` of a job that the platform refuses. A job that is not
        mentioned, or that is "queued" because the platform has no room for it yet, is sent again later."""

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, JobReport]:
        """What is new of jobs; a job that is not mentioned has no news."""

    def end(self, handles: Mapping[str, Any], *, grace: float) -> None:
        """Ask jobs to end within `grace` seconds; 0: at once. Jobs that are gone are ignored."""

    def forget(self, handle: Any) -> None:
        """A job is over and all of it is read: remove its files."""

    def close(self) -> None:
        """Close connections."""


@runtime_checkable
class RemotePlatform(Platform, Protocol):
    """A platform that may be silent, and whose jobs may go on when the driver is gone."""

    answers: Answers
    """Whether the platform answers; read in any thread."""

    def identity(self, handle: Any) -> Mapping[str, Any]:
        """A job as JSON by which another process can end it, with its name for people under "job"; asks nobody."""

    def adopted_attempt(self, handle: Any) -> int:
        """The number of the attempt as which an earlier driver sent an adopted job; 0 for a job of this driver."""

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Identities of submissions that were not answered, so that their jobs may exist; asks nobody."""

    def abandon(self) -> None:
        """Break off the call that waits for an answer, called in another thread; nothing is asked afterwards."""


@runtime_checkable
class PromptPlatform(Platform, Protocol):
    """A platform where a program that runs already takes jobs, so that it is worth while to be quick."""

    def gather(self) -> float:
        """Seconds without a further job after which those submitted are sent together."""

    def pause(self, quiet: float) -> float:
        """Seconds until the next look, where nothing has changed for `quiet` seconds."""


@attrs.frozen(kw_only=True)
class Silence:
    """A platform that does not answer."""

    who: str
    """What does not answer, such as "Slurm's controller"."""
    since: float
    """When it was first asked in vain, in seconds since the epoch."""
    tries: int
    """Questions without an answer, the one that waits now included."""
    tried: str
    """The last question, such as "squeue"."""
    why: str
    """How that question ended; empty while it waits for its answer."""

    @property
    def text(self) -> str:
        """Who does not answer, since when, and what was tried."""
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        number = "asked once" if self.tries == 1 else f"asked {self.tries} times"
        named = self.why if not self.tried or self.tried in self.why else f"{self.tried}: {self.why}"
        ending = named if self.why else f"{self.tried} waits for its answer"
        return f"{self.who} has not answered since {since} ({number}; the last time: {ending})"


@attrs.frozen(kw_only=True)
class _OpenQuestion:
    words: str
    asked: float


@attrs.frozen(kw_only=True)
class _MissedAnswers:
    since: float
    count: int
    tried: str
    error: Away


class Answers:
    """The questions to one platform and their answers.

    `who` is what answers, in words; `slow` the seconds after which a call without an answer counts as silence.
    """

    def __init__(self, who: str, *, slow: float = SLOW) -> None:
        self.who = who
        self._slow = slow
        self._open: _OpenQuestion | None = None
        self._misses: _MissedAnswers | None = None

    @contextlib.contextmanager
    def question(self, words: str) -> Iterator[None]:
        """Within the block the platform is asked; an `Away` that leaves it means that no answer came."""
        self._open = _OpenQuestion(words=words, asked=time.time())
        try:
            yield
        except Away as error:
            self.miss(error)
            raise
        except Exception:  # a refusal is an answer, too
            self._misses = None
            raise
        else:
            self._misses = None
        finally:
            self._open = None

    def miss(self, error: Away) -> None:
        """Count a question as unanswered, once for each error."""
        misses, question = self._misses, self._open
        if misses is not None and misses.error is error:
            return
        asked = question.asked if question is not None else time.time()
        self._misses = _MissedAnswers(
            since=asked if misses is None else misses.since,
            count=1 if misses is None else misses.count + 1,
            tried=question.words if question is not None else "",
            error=error,
        )

    def silence(self, now: float) -> Silence | None:
        """The silence at a time in seconds since the epoch; None for a platform that answers."""
        question, misses = self._open, self._misses
        if misses is not None and (misses.count >= _FEW or now - misses.since >= self._slow):
            waits = question is not None and now - question.asked >= self._slow
            return Silence(
                who=self.who,
                since=misses.since,
                tries=misses.count + waits,
                tried=question.words if waits and question is not None else misses.tried,
                why="" if waits else misses.error.message,
            )
        if question is not None and now - question.asked >= self._slow:
            return Silence(who=self.who, since=question.asked, tries=1, tried=question.words, why="")
        return None


class AtHand:
    """What a platform says of itself whose jobs end with their driver: it answers, and nothing is left there."""

    def __init__(self) -> None:
        self.answers = Answers("the platform")

    def identity(self, handle: Any) -> Mapping[str, Any]:
        """Its handle in words."""
        return {"job": str(handle)}

    def adopted_attempt(self, handle: Any) -> int:
        """Each job is this driver's."""
        return 0

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Every submission is answered."""
        return ()

    def abandon(self) -> None:
        """No call waits for an answer from elsewhere."""


def own_visibility(step: StepPlan, why: str, names: Iterable[str] = NO_DEVICES) -> Iterator[Finding]:
    """Variables of the step's environment that choose devices, which the platform does."""
    for name in sorted(set(step.settings.environment) & set(names)):
        what, fix = f"sets {name} in its environment", "remove it, and ask for gpu_count"
        yield reporter_of(step).error(OWN_VISIBILITY, what, why, fix)


def ranks_elsewhere(step: StepPlan, nodes: int, code: str, lacks: str) -> Iterator[Finding]:
    """A launcher whose program starts ranks on other nodes, which it cannot reach: `lacks` says why."""
    launch = step.settings.launch
    head = None if launch is None else launcher_named(launch.launcher).head(launch.arguments or {})
    if head is not None and nodes > 1:
        what = f"starts its ranks on several nodes by {head.program}"
        why = f"{head.program} reaches other nodes by ssh or a scheduler, and {lacks}"
        yield reporter_of(step).error(code, what, why, "use torchrun, or resources.nodes=1")
