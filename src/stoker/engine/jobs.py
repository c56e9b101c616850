"""Submits a run's jobs to its backends, waits for them, polls them and cancels them. Knows no machine and no store.

Backends that wake us are polled only when they did; the others together, less and less often while nothing changes.
Short elements of a fan-out wait in a line at their worker: one that takes a tenth of a millisecond would otherwise wait
longer for the driver than it runs. A line holds what a worker does in a few milliseconds.
"""

from __future__ import annotations

import selectors
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.backends.base.backend import (
    GathersJobs,
    LeavesJobs,
    PlatformNotice,
    ReportsPlatform,
    RunningBackend,
    capability,
)
from stoker.core.plan import Capacity, Job, JobStatus, StepPlan
from stoker.core.protocol import ADOPTED, HookFacts
from stoker.core.values import frozen
from stoker.core.wire import Wakeup
from stoker.engine import clock
from stoker.engine.events import GRACE, PaceChanged
from stoker.engine.execution import lines_up
from stoker.worker.secrets import Masker, SecretReader

LINE_SECONDS: Final = 0.01
"""What stands in one worker's line should take no longer than this, so that an idle worker never waits long."""
LONGEST_LINE: Final = 64
_SMOOTHING: Final = 0.2


class Pace:
    """The backends of a run, and the mean time of its elements."""

    def __init__(self, backends: Mapping[str, RunningBackend], max_parallel: int | None) -> None:
        self._backends = backends
        self._wakes = {name: bool(list(backend.wakeups())) for name, backend in backends.items()}
        self._limit = max_parallel
        self._mean: float | None = None
        self._ahead = 0
        self._backend_names: dict[str, str] = {}
        self.all_wake = all(self._wakes.values())

    def capacities(self) -> dict[str, Capacity | None]:
        """What each backend runs at once, limited by `max_parallel`."""
        return {name: self._narrow(backend.capacity()) for name, backend in self._backends.items()}

    def _narrow(self, capacity: Capacity | None) -> Capacity | None:
        if self._limit is None:
            return capacity
        if capacity is None:
            return Capacity(cpus=float("inf"), memory=1 << 62, slots=self._limit)
        return attrs.evolve(capacity, slots=min(capacity.slots, self._limit))

    def distinct(self) -> Iterable[tuple[str, RunningBackend]]:
        """Each backend once, with a name of it."""
        return {id(backend): (name, backend) for name, backend in self._backends.items()}.values()

    def wakes(self, name: str) -> bool:
        """Whether the backend wakes us by itself."""
        return self._wakes[name]

    def remember_backend(self, job: str, backend: str) -> None:
        """Remember a job's backend, if some backend must be polled."""
        if not self.all_wake:
            self._backend_names[job] = backend

    def backend_of(self, job: str) -> str:
        """The name of a job's backend."""
        return self._backend_names[job]

    def may_line_up(self, step: StepPlan) -> bool:
        """Whether a job of this step marks its output's end, since others may stand behind it."""
        return lines_up(step) and self._wakes[step.backend]

    def add_duration(self, element: bool, seconds: float) -> None:
        """Take an element's seconds into the mean; other steps do not count."""
        if element:
            self._mean = seconds if self._mean is None else self._mean + _SMOOTHING * (seconds - self._mean)

    def updates(self) -> list[PaceChanged]:
        """Events for the machine when the lines should be longer or shorter."""
        if self._mean is None or self._limit is not None:
            return []
        ahead = int(min(LONGEST_LINE, LINE_SECONDS / max(self._mean, 1e-5)))
        ahead = ahead if ahead > 1 else 0
        if abs(ahead - self._ahead) <= self._ahead // 4:
            return []
        self._ahead = ahead
        events = []
        for name, backend in self._backends.items():
            capacity = backend.capacity()
            if capacity is not None and self._wakes[name]:
                events.append(PaceChanged(pool=name, ahead=ahead * max(1, int(capacity.cpus))))
        return events


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
            seconds = min(seconds, self._next_poll - clock.time())
        woken = clock.wait(self._selector, seconds)
        if any(key.fd == self._wakeup.descriptor for key, _ in woken):
            self._wakeup.clear()

    def poll(self) -> list[JobChange]:
        """What happened since the last call; lost and ended jobs are forgotten."""
        updates: list[JobChange] = []
        now = clock.time()
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
