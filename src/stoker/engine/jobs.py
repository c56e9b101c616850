"""Submits a run's jobs to its backends, waits for them, polls them and cancels them. Knows no machine and no store.

Backends that wake us are polled only when they did; the others together, less and less often while nothing changes.
"""

from __future__ import annotations

import selectors
import time
from typing import Any, Final, Mapping

import attrs

from stoker.backends.base.backend import (
    GathersJobs,
    LeavesJobs,
    PlatformNotice,
    ReportsPlatform,
    RunningBackend,
    capability,
)
from stoker.core.plan import Job, JobStatus, StepPlan
from stoker.core.protocol import ADOPTED, HookFacts
from stoker.core.values import frozen
from stoker.core.wire import Wakeup
from stoker.engine.pace import Pace
from stoker.worker.secrets import Masker, SecretReader

GRACE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL for a step that is ended: time to write a checkpoint."""
_POLL: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between questions to a platform that cannot wake us, longer while nothing changes."""
_OVER: Final = ("succeeded", "failed")


@frozen(kw_only=True)
class JobChange:
    """A job's new status. `hook` is the name of the hook that the job is, if it is one."""

    key: str
    attempt: int
    status: JobStatus
    hook: str = ""
    adopted: int = 0
    """Of a job that is an earlier driver's: the number of the attempt as which it was submitted here."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.status.state in _OVER


class RunJobs:
    """The jobs that one run has at its backends."""

    def __init__(
        self,
        run: str,
        backends: Mapping[str, RunningBackend],
        *,
        max_parallel: int | None,
        secrets: SecretReader,
        pipeline: str = "",
    ) -> None:
        self.run = run
        self._pipeline = pipeline
        self._secrets = secrets
        self._backends = backends
        self.pace = Pace(backends, max_parallel)
        reporting = [(name, capability(backend, ReportsPlatform)) for name, backend in self.pace.distinct()]
        self._reporting = [(name, backend) for name, backend in reporting if backend is not None]
        self._queueing = frozenset(name for name, _ in self._reporting)
        gathering = [capability(backend, GathersJobs) for _, backend in self.pace.distinct()]
        self._gathering = [backend for backend in gathering if backend is not None]
        self._jobs: dict[str, tuple[str, int, str]] = {}
        self._hooks: dict[str, RunningBackend] = {}
        # The names of jobs that were adopted, by key and the attempt's number.
        self._adopted: dict[tuple[str, int], str] = {}
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup.descriptor, selectors.EVENT_READ)
        for backend in set(backends.values()):
            for descriptor in backend.wakeups():
                self._selector.register(descriptor, selectors.EVENT_READ)
        self._quiet_polls = 0
        self._next_poll = 0.0

    def submit(
        self,
        key: str,
        attempt: int,
        step: StepPlan,
        inputs: Mapping[str, Any],
        *,
        element: bool,
        behind: bool,
        avoid: tuple[str, ...] = (),
    ) -> None:
        """Submit an attempt; what its backend raises is raised, and the attempt is then not known here."""
        job = Job(
            name=self._name(key, attempt),
            run=self.run,
            key=key,
            attempt=attempt,
            step=step,
            inputs=inputs,
            marked=element and self.pace.may_line_up(step),
            behind=behind,
            secrets=self._secrets.values_of(step.settings.environment, inputs),
            pipeline=self._pipeline,
            avoid=avoid,
        )
        self._backends[step.backend].submit(job)
        self._jobs[job.name] = (key, attempt, "")
        self.pace.remember_backend(job.name, step.backend)

    def complete(self) -> None:
        """Declare that nothing more is submitted before something has ended."""
        for backend in self._gathering:
            backend.complete()

    def call_hook(self, key: str, which: str, step: StepPlan, facts: HookFacts) -> None:
        """Have a worker call a hook."""
        job = Job(
            name=f"{self.run}/{key}/{which}",
            run=self.run,
            key=key,
            attempt=0,
            step=step,
            inputs={},
            kind="hook",
            hook=step.hooks[which],
            told=facts,
            secrets=self._secrets.values_of(step.settings.environment, {}),
            pipeline=self._pipeline,
        )
        self._backends[step.backend].submit(job)
        self._jobs[job.name] = (key, 0, which)
        self._hooks[job.name] = self._backends[step.backend]
        self.pace.remember_backend(job.name, step.backend)

    def cancel(self, key: str, attempt: int, step: StepPlan, *, hard: bool) -> None:
        """Ask for an attempt's end; its last update still comes."""
        self._backends[step.backend].cancel(self._name(key, attempt), grace=0.0 if hard else GRACE)

    def end_hooks(self, *, hard: bool) -> None:
        """Ask for the end of the hooks that run: one that hangs must not keep the run from its end."""
        for name, backend in self._hooks.items():
            backend.cancel(name, grace=0.0 if hard else GRACE)

    # Platforms

    def notices(self) -> list[tuple[str, PlatformNotice]]:
        """What is new of the backends' platforms, with the backend's name in the stack."""
        return [(name, notice) for name, backend in self._reporting for notice in backend.notices()]

    def queues(self, backend: str) -> bool:
        """Whether a backend's jobs wait in a queue of their platform: it reports when they run."""
        return backend in self._queueing

    def silences(self) -> list[str]:
        """The platforms that do not answer, in words."""
        return [silence for _, backend in self._reporting if (silence := backend.silence())]

    def _name(self, key: str, attempt: int) -> str:
        return self._adopted.get((key, attempt)) or f"{self.run}/{key}/{attempt}"

    # Waiting

    def wake(self) -> None:
        """End the present wait; safe in a signal handler and from any thread."""
        self._wakeup.set()

    def wait(self, seconds: float) -> None:
        """Wait for an update, a wake, or the time to poll again."""
        if self._jobs and not self.pace.all_wake:
            seconds = min(seconds, self._next_poll - time.time())
        woken = self._selector.select(max(0.0, seconds))
        if any(key.fd == self._wakeup.descriptor for key, _ in woken):
            self._wakeup.clear()

    def poll(self) -> list[JobChange]:
        """What happened since the last call; lost and ended jobs are forgotten."""
        updates: list[JobChange] = []
        now = time.time()
        due = now >= self._next_poll
        for name, backend in self.pace.distinct():
            if self.pace.wakes(name):
                statuses = backend.poll(())
            elif self._jobs and due:
                statuses = backend.poll([job for job in self._jobs if self.pace.backend_of(job) == name])
            else:
                continue
            for job, status in statuses.items():
                self._receive(job, status, updates)
        if due and not self.pace.all_wake:
            self._quiet_polls = 0 if updates else min(self._quiet_polls + 1, len(_POLL) - 1)
            self._next_poll = now + _POLL[self._quiet_polls]
        return updates

    def _receive(self, job: str, status: JobStatus, updates: list[JobChange]) -> None:
        entry = self._jobs.get(job)
        if entry is None:
            return
        key, attempt, hook = entry
        submitted = 0
        for event in status.events:
            if event.note == ADOPTED and not hook:
                submitted, attempt = attempt, int(event.data["attempt"])
                self._jobs[job] = (key, attempt, "")
                self._adopted[key, attempt] = job
        if status.lost or status.state in _OVER:
            del self._jobs[job]
            self._hooks.pop(job, None)
            if self._adopted:
                self._adopted.pop((key, attempt), None)
        updates.append(JobChange(key=key, attempt=attempt, status=status, hook=hook, adopted=submitted))

    def leave(self) -> None:
        """Let jobs go on without this driver, where their platform can."""
        for _, backend in self.pace.distinct():
            leaving = capability(backend, LeavesJobs)
            if leaving is not None:
                leaving.leave()

    def close(self) -> None:
        """Close what waiting needed; the backends are their owner's to close."""
        self._selector.close()
        self._wakeup.close()


def masked_status(status: JobStatus, masker: Masker) -> JobStatus:
    """A job's status with the secrets masked in its lines, its message, its events and what was raised."""
    return attrs.evolve(
        status,
        lines=tuple([attrs.evolve(line, text=masker.text(line.text)) for line in status.lines]),
        message=masker.text(status.message),
        events=tuple([attrs.evolve(event, data=masker.document(event.data)) for event in status.events]),
        result=None if status.result is None else masker.result(status.result),
    )
