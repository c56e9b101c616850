"""Which jobs of an earlier driver a later one adopts, on platforms whose jobs outlive their driver.

A job is adopted for the same step with the same request, if it still runs or went well. A failed job is tried again.
"""

from __future__ import annotations

from typing import Any, Callable, Generic, Iterable, Mapping, TypeVar

import attrs

from stoker.backends.base.messages import request_digest
from stoker.core.plan import Job

Handle = TypeVar("Handle")


@attrs.frozen(kw_only=True)
class EarlierJob(Generic[Handle]):
    """A job that an earlier driver sent, from what its platform knows of it."""

    run: str
    key: str
    kind: str
    """As `job_kind` has it."""
    attempt: int
    digest: str
    """`messages.request_digest` of the job."""
    handle: Handle


def job_kind(job: Job) -> str:
    """ "step", or the name of a hook: tells the jobs of a step from those of its hooks."""
    return job.hook.qualname if job.kind == "hook" and job.hook is not None else job.kind


def about(job: Job) -> dict[str, Any]:
    """What a later driver must know of a job to adopt it, as data."""
    return {"key": job.key, "kind": job_kind(job), "attempt": job.attempt, "digest": request_digest(job)}


class EarlierJobs(Generic[Handle]):
    """The jobs of earlier drivers that are not adopted yet."""

    def __init__(self) -> None:
        self._remaining: dict[tuple[str, str, str], list[EarlierJob[Handle]]] = {}

    def add(self, jobs: Iterable[EarlierJob[Handle]]) -> None:
        """Add jobs that a platform reports."""
        for job in jobs:
            self._remaining.setdefault((job.run, job.key, job.kind), []).append(job)

    def note(self, run: str, about: Mapping[str, Any], handle: Handle) -> None:
        """Add a job of which a platform kept what `about` says."""
        known = {name: about[name] for name in ("key", "kind", "attempt", "digest")}
        self.add([EarlierJob(run=run, handle=handle, **known)])

    def of(self, job: Job) -> list[Handle]:
        """The remaining jobs of the same step."""
        return [one.handle for one in self._remaining.get((job.run, job.key, job_kind(job)), ())]

    def adopt(self, job: Job, worth: Callable[[Handle], bool]) -> tuple[EarlierJob[Handle] | None, list[Handle]]:
        """The latest attempt with the same request that is `worth` it, and the other attempts, which are not needed.

        All of them are taken out.
        """
        attempts = self._remaining.pop((job.run, job.key, job_kind(job)), [])
        digest = request_digest(job) if attempts else ""
        adopted, others = None, []
        for earlier in sorted(attempts, key=lambda attempt: -attempt.attempt):
            if adopted is None and earlier.digest == digest and worth(earlier.handle):
                adopted = earlier
            else:
                others.append(earlier.handle)
        return adopted, others

    def remaining(self) -> list[Handle]:
        """The handles of all jobs that are not adopted."""
        return [one.handle for jobs in self._remaining.values() for one in jobs]

    def take_remaining(self) -> list[Handle]:
        """The same, taken out."""
        handles, self._remaining = self.remaining(), {}
        return handles
