"""Devices for the jobs of a backend that runs them on this machine: asked for, waited for, given back.

The ledger itself is `devices.leases`, which the driver hands in; here it is only `core.devices.Devices`. It is opened
when the first step asks for an accelerator: finding devices costs a driver's start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator, Sequence

import attrs

from stoker.backends.base.statuses import failed
from stoker.core.errors import BackendError
from stoker.core.findings import Finding, errors
from stoker.core.plan import Job, JobStatus, Site, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.status import REFUSED
from stoker.core.values import frozen

if TYPE_CHECKING:
    from stoker.core.devices import Claim, Device, Devices, Lease


NO_SUCH_DEVICE: Final = "STK103"
FALLS_BACK: Final = "STK111"
OWN_VISIBILITY: Final = "STK112"

ASK_AGAIN: Final = 0.5
"""Seconds between two looks into the ledger for a job that waits; what we release ourselves is looked for at once."""
TELL_AGAIN: Final = 10.0
"""Seconds between two reasons for one job's wait: one that counts a stranger's memory would change with every look."""


@frozen(kw_only=True)
class _Wait:
    """A job that waits for devices; times are of the monotonic clock."""

    job: Job
    reason: str
    """Why it waits, as last reported."""
    reported_at: float
    due: float
    """When to ask again."""


class Leasing:
    """The claims of one session's jobs. `find` opens the ledger, `process` is (pid, start) of who holds them."""

    def __init__(self, find: Callable[[], Devices], *, process: tuple[int, float], scratch: str, limits: bool) -> None:
        self._find = find
        self._opened: Devices | None = None
        self._process = process
        self._scratch = scratch
        self._limits = limits
        self._tickets: dict[str, str] = {}
        self._granted: dict[str, Lease] = {}
        self._waiting: dict[str, _Wait] = {}

    @property
    def _devices(self) -> Devices:
        if self._opened is None:
            self._opened = self._find()
        return self._opened

    # Before a run

    def room(self) -> int | None:
        """How many devices steps can hold at once; None where no step asks, or where all may use the same ones."""
        if not self._limits:
            return None
        devices = self._devices.inventory().devices
        return len(devices) if all(device.exclusive for device in devices) else None

    def check(self, step: StepPlan) -> Iterator[Finding]:
        """Findings on the accelerators that a step asks for and this machine lacks."""
        report = reporter_of(step)
        variables = _visibility_set_by(step)
        if variables:
            yield report.error(
                OWN_VISIBILITY,
                f"its environment sets {', '.join(variables)}",
                "which devices a step sees follows from its lease, and another step may hold these",
                f"remove {variables[0]}, and ask for devices: resources=ResourceSettings(gpu_count=1)",
            )
        claim = claimed(step)
        if claim is None or not (reason := self._devices.impossible(claim)):
            return
        if step.settings.accelerator_policy == "prefer":
            what = f"asks for {describe(step.settings.resources)}; it runs without: {reason}"
            why = 'accelerator_policy="prefer" lets it; its receipt will say cpu-fallback'
            yield report.translated(FALLS_BACK, what, why)
            return
        what = f"asks for {describe(step.settings.resources)}: {reason}"
        yield report.error(NO_SUCH_DEVICE, what, self._why(), _alternatives(step.name, claim))

    def _why(self) -> str:
        broken = errors(self._devices.inventory().findings)
        if broken:
            return f"{broken[0].what} ({broken[0].code}): {broken[0].fix}"
        return "a step is never silently given less than it asks for"

    # During a run

    def has_others(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether a step's claim can be met without some devices, or by the fallback that it allows."""
        claim = claimed(step)
        if claim is None:
            return False
        left = attrs.evolve(claim, avoid=tuple(avoid))
        return step.settings.accelerator_policy == "prefer" or not self._devices.impossible(left)

    def wants(self, job: Job) -> bool:
        """Whether a job needs devices."""
        return job.kind == "step" and job.step.settings.resources.gpus_per_node > 0

    def request(self, job: Job, *, start: Callable[[Job], None], tell: Callable[[str, JobStatus], None]) -> None:
        """Start a job that gets its devices; report why another one waits, which `retry` asks for again."""
        answer = self.ask(job)
        if not isinstance(answer, str):
            start(job)
        elif self.wait(job, answer):
            tell(job.name, JobStatus(state="queued", message=answer))

    def retry(
        self,
        *,
        start: Callable[[Job], None],
        tell: Callable[[str, JobStatus], None],
        refuse: Callable[[str, JobStatus], None],
    ) -> None:
        """Ask again for the waiting jobs that are due."""
        for job in self.due_jobs():
            try:
                self.request(job, start=start, tell=tell)
            except BackendError as error:
                refuse(job.name, failed(REFUSED, str(error)))

    def ask(self, job: Job) -> Lease | str:
        """The lease of a job, or why it still waits; it keeps its place in the queue until it is released."""
        from stoker.core.devices import Holder, Lease  # only for steps with devices

        lease = self._granted.get(job.name)
        if lease is not None:
            return lease
        claim = _claim_of(job)
        assert claim is not None  # `wants` was asked
        ticket = self._tickets.get(job.name)
        if ticket is None:
            reason = self._devices.impossible(claim)
            if reason and job.step.settings.accelerator_policy == "prefer":
                return self._give(job, Lease(devices=(), fallback=reason))
            if reason and job.avoid:
                raise BackendError(
                    f"no other device is left: {reason}",
                    fix="see to the device (`stoker devices`, `stoker doctor`), then `stoker resume`, or run elsewhere",
                )
            pid, started = self._process
            holder = Holder(run=job.run, key=job.key, attempt=job.attempt, pid=pid, started=started)
            ticket = self._tickets[job.name] = self._devices.claim(claim, holder)
        try:
            answer = self._devices.answer(ticket)
        except BackendError:
            self.release(job.name)  # a refused job must not keep others waiting
            raise
        return answer if isinstance(answer, str) else self._give(job, answer)

    def _give(self, job: Job, lease: Lease) -> Lease:
        self._waiting.pop(job.name, None)
        self._granted[job.name] = lease
        os.makedirs(self._scratch, exist_ok=True)
        for node in range(_nodes(job)):
            # The monitor appends: remove the file of a lost submission of this attempt, or of a driver that died.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._samples(job, node))
        return lease

    def _samples(self, job: Job, node: int) -> str:
        return samples_path(self._scratch, job.name, node)

    def wait(self, job: Job, reason: str) -> bool:
        """Note that a job waits; whether the reason is news."""
        now = time.monotonic()
        wait = self._waiting.get(job.name)
        news = wait is None or (wait.reason != reason and wait.reported_at + TELL_AGAIN <= now)
        if wait is None or news:
            wait = _Wait(job=job, reason=reason, reported_at=now, due=now)
        self._waiting[job.name] = attrs.evolve(wait, due=now + ASK_AGAIN)
        return news

    def due_jobs(self) -> list[Job]:
        """The waiting jobs that should ask again now, in the order of their requests."""
        now = time.monotonic()
        return [wait.job for wait in self._waiting.values() if wait.due <= now]

    def waits(self, name: str) -> bool:
        """Whether a job waits for devices."""
        return name in self._waiting

    def hand_over(self, name: str, pid: int) -> None:
        """Tie a job's lease to a process that outlives this one."""
        ticket = self._tickets.get(name)
        if ticket is not None:
            self._devices.hand_over(ticket, pid)

    def adopt(self, job: Job, lease: Lease) -> None:
        """Take over the lease of an adopted job from an earlier driver."""
        if lease.ticket and self._devices.holds(lease.ticket):
            self._tickets[job.name] = lease.ticket

    def release(self, name: str, survivors: Sequence[int] = ()) -> None:
        """Release a job's devices, or stop waiting for them; other waiting jobs of this run may ask at once.

        Where processes of the job survive, its devices are free when these have ended.
        """
        self._waiting.pop(name, None)
        self._granted.pop(name, None)
        ticket = self._tickets.pop(name, None)
        if ticket is not None:
            try:
                if survivors:
                    self._devices.quarantine(ticket, survivors)
                else:
                    self._devices.release(ticket)
            except BackendError as error:
                import logging

                logging.getLogger(__name__).warning(
                    "the devices of %s only become free when this process ends: %s", name, error
                )
            self._waiting = {other: attrs.evolve(wait, due=0.0) for other, wait in self._waiting.items()}

    def release_all(self, survivors: Sequence[int] = ()) -> None:
        """Release all devices, as `release` does."""
        for name in [*self._tickets, *self._granted]:
            self.release(name, survivors)

    # Leases by node

    def leases(self, job: Job) -> list[Lease]:
        """The lease of each of a job's nodes; empty for a job without devices.

        The gate proves them, the monitor watches them and the run records them. The first has the others in `others`.
        """
        whole = self._granted.get(job.name)
        if whole is None:
            return []
        nodes = _nodes(job)
        each = len(whole.held) // nodes
        parts = [whole.held[node * each : (node + 1) * each] for node in range(nodes)]
        first, *others = [self._lease(job, whole, part, node) for node, part in enumerate(parts)]
        return [attrs.evolve(first, others=tuple(others)), *others]

    def _lease(self, job: Job, whole: Lease, devices: tuple[Device, ...], node: int) -> Lease:
        inventory = self._devices.inventory()
        return attrs.evolve(
            _without_devices(job, self._samples(job, node)),
            ticket=whole.ticket,
            devices=devices,
            memory=whole.memory,
            fallback=whole.fallback,
            driver=inventory.driver,
            cuda=inventory.cuda,
            simulated=inventory.simulated,
            started=time.time(),
        )


def samples_path(scratch: str, job: str, node: int = 0) -> str:
    """The file that the monitor of a job on this machine writes, in a stack's folder of scratch files."""
    # Each job has its own file: characters other than letters and digits are written as their code points.
    name = "".join(letter if letter.isalnum() or letter == "_" else f"-{ord(letter):x}-" for letter in job)
    name += f".{node}" if node else ""
    return os.path.join(scratch, f"samples-{name}.jsonl")


def samples_file(job: Job, site: Site, platform: str) -> str:
    """The file in which the devices of a platform's job are accounted for, as this machine calls it."""
    return f"{site.scratch}/samples-{platform}-{hashlib.sha256(job.name.encode()).hexdigest()[:16]}.jsonl"


def requested_lease(job: Job, *, samples: str) -> Lease | None:
    """The lease without devices: what follows from the step alone; None for a hook, and a step that asks for none.

    Where a platform allocates the devices, the worker fills them in (`worker.boot`).
    """
    is_wanted = job.kind == "step" and job.step.settings.resources.gpus_per_node
    return _without_devices(job, samples) if is_wanted else None


def _without_devices(job: Job, samples: str) -> Lease:
    from stoker.core.devices import Lease  # only for steps with devices

    settings = job.step.settings
    return Lease(
        asked=describe(settings.resources),
        count=settings.resources.gpus_per_node,
        policy=settings.accelerator_policy,
        samples=samples,
        interval=settings.monitor.interval,
        idle_below=settings.monitor.idle_below,
        idle_for=settings.monitor.idle_for,
        on_idle=settings.on_idle_gpu,
        health_check=settings.health_check,
    )


def claimed(step: StepPlan) -> Claim | None:
    """The claim of a step for all of its nodes together: one claim, so that two gangs never wait for each other."""
    if not step.settings.resources.gpus_per_node:
        return None
    from stoker.core.devices import claim_of

    claim, nodes = claim_of(step.settings.resources), step.settings.resources.get("nodes", 1)
    if claim is None or nodes == 1:
        return claim
    choices = tuple(attrs.evolve(choice, count=(choice.count or claim.count) * nodes) for choice in claim.choices)
    return attrs.evolve(claim, count=claim.count * nodes, choices=choices)


def _claim_of(job: Job) -> Claim | None:
    """A job's claim for all of its nodes together, without the devices that its run leaves out."""
    claim = claimed(job.step)
    return attrs.evolve(claim, avoid=job.avoid) if claim is not None and job.avoid else claim


def claim_document(job: Job) -> dict[str, Any]:
    """A job's claim on the ledger for all of its nodes together, as data; empty for a job without devices."""
    claim = _claim_of(job) if job.kind == "step" else None
    if claim is None:
        return {}
    fields = attrs.asdict(claim, recurse=False)
    return {
        **fields,
        "choices": [str(choice) for choice in claim.choices],
        "policy": job.step.settings.accelerator_policy,
    }


def _visibility_set_by(step: StepPlan) -> list[str]:
    """The variables of vendors that a step sets itself."""
    if not step.settings.environment:
        return []
    from stoker.vendors.registry import visibility_variables  # it loads every vendor

    return sorted(visibility_variables() & step.settings.environment.keys())


def _nodes(job: Job) -> int:
    return int(job.step.settings.resources.get("nodes", 1))


def _alternatives(step: str, claim: Claim) -> str:
    model = str(claim.choices[0].name) if claim.choices else "H100-80GB"
    return (
        f"run where there is one (--stack NAME), or pretend (--simulate {claim.count}x{model}), or let the step "
        f"run on the CPU (--set steps.{step}.accelerator_policy=prefer)"
    )
