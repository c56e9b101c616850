"""Jobs that an earlier driver of a run had sent: which of them the next one adopts, wherever jobs outlive their driver.

A job is adopted for the same step with the same request, if it still runs or went well. One that failed is tried again
instead.
"""

from __future__ import annotations

from typing import Callable, Generic, Iterable, TypeVar

import attrs

from stoker.backends.base.messages import request_digest
from stoker.core.plan import Job

Handle = TypeVar("Handle")


@attrs.frozen(kw_only=True)
class EarlierJob(Generic[Handle]):
    """A job that was sent, by what its platform has kept of it."""

    run: str
    key: str
    kind: str
    """As `job_kind` has it."""
    attempt: int
    digest: str
    """`messages.request_digest` of the job."""
    handle: Handle


def job_kind(job: Job) -> str:
    """What keeps a step and its hooks apart: "step", or the hook's name."""
    return job.hook.qualname if job.kind == "hook" and job.hook is not None else job.kind


class EarlierJobs(Generic[Handle]):
    """Those that nobody has adopted yet."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str, str], list[EarlierJob[Handle]]] = {}

    def add(self, jobs: Iterable[EarlierJob[Handle]]) -> None:
        """Jobs have been found."""
        for one in jobs:
            self._left.setdefault((one.run, one.key, one.kind), []).append(one)

    def of(self, job: Job) -> list[Handle]:
        """Those of the same step, as far as they are left."""
        return [one.handle for one in self._left.get((job.run, job.key, job_kind(job)), ())]

    def adopt(self, job: Job, worth: Callable[[Handle], bool]) -> tuple[Handle | None, list[Handle]]:
        """The latest attempt with the same request that is `worth` it, and the others of the step, which nobody needs.

        None of them is left afterwards.
        """
        mine = self._left.pop((job.run, job.key, job_kind(job)), [])
        digest = request_digest(job) if mine else ""
        adopted, others = None, []
        for one in sorted(mine, key=lambda one: -one.attempt):
            if adopted is None and one.digest == digest and worth(one.handle):
                adopted = one.handle
            else:
                others.append(one.handle)
        return adopted, others

    def left(self) -> list[Handle]:
        """Those that nobody adopted."""
        return [one.handle for jobs in self._left.values() for one in jobs]

    def take_left(self) -> list[Handle]:
        """Those that nobody adopted, taken out."""
        left, self._left = self.left(), {}
        return left
