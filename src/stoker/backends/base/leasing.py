"""Devices for the jobs of a backend that runs them on this machine: asked for, waited for, given back.

The ledger itself is `devices.leases`, which the driver hands in; here it is only `core.devices.Devices`. It is opened
when the first step asks for an accelerator: finding devices costs a driver's start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator

import attrs

from stoker.backends.base.statuses import failed
from stoker.core.errors import BackendError
from stoker.core.findings import Finding, errors
from stoker.core.plan import Job, JobStatus, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.status import REFUSED

if TYPE_CHECKING:
    from stoker.core.devices import Claim, Device, Devices, Lease

log = logging.getLogger(__name__)

NO_SUCH_DEVICE: Final = "STK103"
FALLS_BACK: Final = "STK111"
OWN_VISIBILITY: Final = "STK112"

ASK_AGAIN: Final = 0.5
"""Seconds between two looks into the ledger for a job that waits; what we release ourselves is looked for at once."""
TELL_AGAIN: Final = 10.0
"""Seconds between two reasons for one job's wait: one that counts a stranger's memory would change with every look."""


@attrs.frozen(kw_only=True)
class _Wait:
    """A job in line: the reason that was told last and when, and when to ask again, by the monotonic clock."""

    job: Job
    told: str
    told_at: float
    due: float


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
        """What this machine cannot give a step of what it asks of accelerators."""
        report = reporter_of(step)
        own = _own_visibility(step)
        if own:
            yield report.error(
                OWN_VISIBILITY,
                f"its environment sets {', '.join(own)}",
                "which devices a step sees follows from its lease, and another step may hold these",
                f"remove {own[0]}, and ask for devices: resources=ResourceSettings(gpu_count=1)",
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
        yield report.error(NO_SUCH_DEVICE, what, self._why(), _ways_on(step.name, claim))

    def _why(self) -> str:
        broken = errors(self._devices.inventory().findings)
        if broken:
            return f"{broken[0].what} ({broken[0].code}): {broken[0].fix}"
        return "a step is never silently given less than it asks for"

    # During a run

    def wants(self, job: Job) -> bool:
        """Whether a job is to hold devices."""
        return job.kind == "step" and job.step.settings.resources.gpus_per_node > 0

    def request(self, job: Job, *, start: Callable[[Job], None], tell: Callable[[str, JobStatus], None]) -> None:
        """Start a job that holds its devices; one that has to wait is told why, and is looked at again by `retry`."""
        granted = self.ask(job)
        if not isinstance(granted, str):
            start(job)
        elif self.wait(job, granted):
            tell(job.name, JobStatus(state="queued", message=granted))

    def retry(
        self,
        *,
        start: Callable[[Job], None],
        tell: Callable[[str, JobStatus], None],
        refuse: Callable[[str, JobStatus], None],
    ) -> None:
        """Ask again for the jobs that wait, where it is time to."""
        for job in self.due():
            try:
                self.request(job, start=start, tell=tell)
            except BackendError as error:
                refuse(job.name, failed(REFUSED, str(error)))

    def ask(self, job: Job) -> Lease | str:
        """What a job gets, or why it still waits; it stands in line until it is released."""
        from stoker.core.devices import Holder, Lease  # only for steps with devices

        lease = self._granted.get(job.name)
        if lease is not None:
            return lease
        claim = claimed(job.step)
        assert claim is not None  # `wants` was asked
        ticket = self._tickets.get(job.name)
        if ticket is None:
            reason = self._devices.impossible(claim)
            if reason and job.step.settings.accelerator_policy == "prefer":
                return self._give(job, Lease(devices=(), fallback=reason))
            pid, started = self._process
            holder = Holder(run=job.run, key=job.key, attempt=job.attempt, pid=pid, started=started)
            ticket = self._tickets[job.name] = self._devices.claim(claim, holder)
        try:
            answer = self._devices.answer(ticket)
        except BackendError:
            self.release(job.name)  # whoever is refused stands in nobody's way
            raise
        return answer if isinstance(answer, str) else self._give(job, answer)

    def _give(self, job: Job, lease: Lease) -> Lease:
        self._waiting.pop(job.name, None)
        self._granted[job.name] = lease
        os.makedirs(self._scratch, exist_ok=True)
        for node in range(_nodes(job)):
            # Of the same attempt, sent once before and lost, or of a driver that died: the monitor would append to it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._samples(job, node))
        return lease

    def _samples(self, job: Job, node: int) -> str:
        # Each name is a file of its own: what is no letter or digit is written as its number.
        name = "".join(letter if letter.isalnum() or letter == "_" else f"-{ord(letter):x}-" for letter in job.name)
        name += f".{node}" if node else ""
        return os.path.join(self._scratch, f"samples-{name}.jsonl")

    def wait(self, job: Job, reason: str) -> bool:
        """Note that a job waits; whether the reason is news."""
        now = time.monotonic()
        known = self._waiting.get(job.name)
        news = known is None or (known.told != reason and known.told_at + TELL_AGAIN <= now)
        if known is None or news:
            known = _Wait(job=job, told=reason, told_at=now, due=now)
        self._waiting[job.name] = attrs.evolve(known, due=now + ASK_AGAIN)
        return news

    def due(self) -> list[Job]:
        """Those who wait and should ask again now, first come first."""
        now = time.monotonic()
        return [wait.job for wait in self._waiting.values() if wait.due <= now]

    def waits(self, name: str) -> bool:
        """Whether a job stands in line."""
        return name in self._waiting

    def granted(self, name: str) -> Lease | None:
        """What a job holds, on all of its nodes together."""
        return self._granted.get(name)

    def hand_over(self, name: str, pid: int) -> None:
        """Let a job's lease live as long as a process that outlives this one."""
        ticket = self._tickets.get(name)
        if ticket is not None:
            self._devices.hand_over(ticket, pid)

    def adopt(self, job: Job, lease: Lease) -> None:
        """Go on with a lease that another driver had got, for a job that is taken over from it."""
        if lease.ticket and self._devices.holds(lease.ticket):
            self._tickets[job.name] = lease.ticket

    def release(self, name: str) -> None:
        """Give back what a job holds, or leave the line; whoever of ours waits may ask at once."""
        self._waiting.pop(name, None)
        self._granted.pop(name, None)
        ticket = self._tickets.pop(name, None)
        if ticket is not None:
            try:
                self._devices.release(ticket)
            except BackendError as error:
                log.warning("the devices of %s only become free when this process ends: %s", name, error)
            self._waiting = {other: attrs.evolve(wait, due=0.0) for other, wait in self._waiting.items()}

    def release_all(self) -> None:
        """Give everything back."""
        for name in [*self._tickets, *self._granted]:
            self.release(name)

    # What others are told

    def leases(self, job: Job) -> list[Lease]:
        """What a job holds on each of its nodes; nothing for a job that holds none.

        These are what the gate proves, the monitor watches and the run remembers. That of the first node knows the
        others.
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
            requested_lease(job, samples=self._samples(job, node)),
            ticket=whole.ticket,
            devices=devices,
            memory=whole.memory,
            fallback=whole.fallback,
            driver=inventory.driver,
            cuda=inventory.cuda,
            simulated=inventory.simulated,
            started=time.time(),
        )


def requested_lease(job: Job, *, samples: str) -> Lease:
    """What a lease has from the step alone, whoever hands out the devices.

    A platform that hands them out itself is taken at its word where the step runs (`worker.granted`).
    """
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
    )


def claimed(step: StepPlan) -> Claim | None:
    """What a step claims for all of its nodes together: one claim, so that two gangs never wait for each other."""
    if not step.settings.resources.gpus_per_node:
        return None
    from stoker.core.devices import claim_of

    claim, nodes = claim_of(step.settings.resources), step.settings.resources.get("nodes", 1)
    if claim is None or nodes == 1:
        return claim
    choices = tuple(attrs.evolve(choice, count=(choice.count or claim.count) * nodes) for choice in claim.choices)
    return attrs.evolve(claim, count=claim.count * nodes, choices=choices)


def claim_document(job: Job) -> dict[str, Any]:
    """What the ledger is asked for a job, for all of its nodes together; empty for one that is to hold nothing."""
    claim = claimed(job.step) if job.kind == "step" else None
    if claim is None:
        return {}
    found = attrs.asdict(claim, recurse=False)
    return {
        **found,
        "choices": [str(choice) for choice in claim.choices],
        "policy": job.step.settings.accelerator_policy,
    }


def _own_visibility(step: StepPlan) -> list[str]:
    """The variables of vendors that a step sets itself."""
    if not step.settings.environment:
        return []
    from stoker.vendors.registry import visibility_variables  # it loads every vendor

    return sorted(visibility_variables() & step.settings.environment.keys())


def _nodes(job: Job) -> int:
    return int(job.step.settings.resources.get("nodes", 1))


def _ways_on(step: str, claim: Claim) -> str:
    pretended = str(claim.choices[0].name) if claim.choices else "H100-80GB"
    return (
        f"run where there is one (--stack NAME), or pretend (--simulate {claim.count}x{pretended}), or let the step "
        f"run on the CPU (--set steps.{step}.accelerator_policy=prefer)"
    )
