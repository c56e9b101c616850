"""Every step in the driver's own process, one after the other, so that `breakpoint()` and a debugger work.

What a step prints goes straight to the terminal and is not stored; a step that crashes takes the run with it. A step
that asks for devices has them leased, proved and watched as in a worker; the monitor is a process beside the driver.
What the user's module read of its environment when it was imported, it read before any lease.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Iterable, Iterator, Literal, Mapping

import attrs

from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.backends.base.channel import Updates
from stoker.backends.base.machine import check, request_of
from stoker.backends.base.messages import step_task, worker_job
from stoker.backends.base.statuses import failed, of_result
from stoker.backends.local.settings import local_capacity
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Job, JobStatus, Site, StepPlan, reporter_of
from stoker.core.protocol import METRICS, WorkerEvent
from stoker.core.status import CANCELLED
from stoker.core.units import duration_text
from stoker.core.wire import Wakeup
from stoker.vendors.table import NO_DEVICES
from stoker.worker.metrics import MetricFiles
from stoker.worker.processes import MARK, mark_of
from stoker.worker.secrets import masked_output

if TYPE_CHECKING:
    from stoker.core.devices import Lease

log = logging.getLogger(__name__)

STOPS_NOTHING: Final = "STK113"
NOT_UNDER_DEBUG: Final = "STK193"

_FIRST_SAMPLE: Final = 10.0
"""Seconds that a step waits for its monitor to begin: importing it and asking the driver take tenths."""
_LAST_SAMPLE: Final = 5.0
"""Seconds that a monitor gets to write its last sample; a driver that hangs would hold it for ever."""
_LOOK: Final = 0.01


@attrs.frozen
class _Ready:
    """A job that can run now, and the devices that it holds."""

    job: Job
    lease: Lease | None = None


class InlineBackend:
    """Runs a job when it is polled, by the services' `execute`."""

    name = "inline"
    keeps_secrets: Literal[True] = True
    runs_in_driver: Literal[True] = True

    def __init__(self, site: Site, options: Mapping[str, Any], services: Services = NO_SERVICES) -> None:
        self._room = local_capacity(options)
        self._ready: deque[_Ready] = deque()
        self._updates = Updates()
        self._wakeup = Wakeup()
        self._execute = services.execute
        self._leasing = services.leasing
        self._metrics = MetricFiles(site.metrics)

    def capacity(self) -> Capacity:
        """One step at a time, as big as the machine."""
        return Capacity(cpus=self._room.cpus, memory=self._room.memory, slots=1)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """Findings on what this machine cannot give a step."""
        if self._leasing is not None:
            yield from self._leasing.check(step)
        yield from check(step, self.capacity(), leases=self._leasing is not None)
        if step.settings.resources.gpus_per_node and step.settings.on_idle_gpu == "stop":
            what = 'its on_idle_gpu="stop" counts as "warn" under --debug'
            why = "a step in the driver's own process may stand at a breakpoint, and its devices are idle meanwhile"
            yield reporter_of(step).translated(STOPS_NOTHING, what, why)
        reporter = reporter_of(step)
        if step.settings.timeout is not None:
            what = f"its timeout of {duration_text(step.settings.timeout)} does not end it under --debug"
            why = "a step in the driver's own process may stand at a breakpoint, and cannot be ended without the driver"
            yield reporter.warning(NOT_UNDER_DEBUG, what, why)
        if step.settings.isolation != "warm":
            what = f'its isolation="{step.settings.isolation}" counts as "warm" under --debug'
            why = "every step runs in the driver's own process, with the modules that are imported there already"
            yield reporter.warning(NOT_UNDER_DEBUG, what, why)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The message for the step's function, and what the job requests of the machine."""
        return {
            "message": to_json(worker_job(job, 0)),
            "step": to_json(step_task(job.step)),
            **request_of(job),
            "process": "driver",
        }

    def submit(self, job: Job) -> str:
        """Queue the job for the next polls, or have it wait for devices."""
        if self._leasing is not None and self._leasing.wants(job):
            self._leasing.request(job, start=self._start_leased, tell=self._tell)
        else:
            self._ready.append(_Ready(job))
            self._wakeup.set()
        return job.name

    def _start_leased(self, job: Job) -> None:
        assert self._leasing is not None  # it granted the devices
        lease = self._leasing.leases(job)[0]
        if lease.on_idle == "stop":
            lease = attrs.evolve(lease, on_idle="warn")
        self._ready.append(_Ready(job, lease))
        self._tell(job.name, JobStatus(state="running", lease=lease))

    def _tell(self, name: str, status: JobStatus) -> None:
        self._updates.put(name, status)
        self._wakeup.set()

    def _refuse(self, name: str, status: JobStatus) -> None:
        if self._leasing is not None:
            self._leasing.release(name)
        self._tell(name, status)

    def wakeups(self) -> Iterable[int]:
        """Readable while there is something to poll for."""
        return (self._wakeup.descriptor,)

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new; where nothing is, run the next job."""
        self._wakeup.clear()
        if self._leasing is not None:
            self._leasing.retry(start=self._start_leased, tell=self._tell, refuse=self._refuse)
        news = self._updates.take()
        if not news and self._ready:
            self._run(self._ready.popleft())
            news = self._updates.take()
        if self._ready:
            self._wakeup.set()
        return news

    def _run(self, ready: _Ready) -> None:
        if self._execute is None:
            raise BackendError("the inline backend was opened without the service that runs a job")
        job, lease = ready.job, ready.lease
        message = attrs.evolve(worker_job(job, 0), accelerators=lease)
        try:
            visibility = NO_DEVICES if lease is None else _visibility(lease)
            environment = {**job.step.settings.environment, **visibility, MARK: f"{mark_of(os.getpid())}-debug"}
            with _monitored(lease), _environment_set(environment), masked_output(message.secrets):
                result = self._execute(message, step_task(job.step))
        finally:
            if self._leasing is not None:
                self._leasing.release(job.name)
        if rows := self._metrics.read(job.name, over=True):
            self._updates.event(job.name, WorkerEvent(kind=METRICS, job=job.name, data={"rows": rows}))
        self._updates.put(job.name, of_result(result, lease))

    def cancel(self, id: str, *, grace: float) -> None:
        """Withdraw a waiting job; a running one occupies this thread and ends by itself."""
        queued = [ready for ready in self._ready if ready.job.name == id]
        for ready in queued:
            self._ready.remove(ready)
        waits = self._leasing is not None and self._leasing.waits(id)
        if not queued and not waits:
            return
        self._refuse(id, failed(CANCELLED))

    def close(self) -> None:
        """Give back the devices, and close the descriptors."""
        if self._leasing is not None:
            self._leasing.release_all()
        self._metrics.close()
        self._wakeup.close()


def _visibility(lease: Lease) -> Mapping[str, str]:
    from stoker.vendors.registry import environment_of  # only for steps with devices

    return environment_of(lease.held)


@contextlib.contextmanager
def _environment_set(environment: Mapping[str, str]) -> Iterator[None]:
    """Set a step's environment variables; afterwards restore the environment and the working directory."""
    before, folder = dict(os.environ), os.getcwd()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _monitored(lease: Lease | None) -> Iterator[None]:
    """Run a monitor beside this process while a step with devices runs in it."""
    monitor = _monitor(lease) if lease is not None else None
    if monitor is None or lease is None:
        yield
        return
    try:
        _await_begin(monitor, lease.samples)
        yield
    finally:
        monitor.terminate()
        try:
            monitor.wait(_LAST_SAMPLE)
        except subprocess.TimeoutExpired:
            monitor.kill()
            monitor.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_document(lease))


def _monitor(lease: Lease) -> subprocess.Popen[bytes] | None:
    """The process that samples this one; None where it cannot be started."""
    try:
        with open(_document(lease), "w", encoding="utf-8") as file:
            json.dump({**to_json(lease), "pid": os.getpid()}, file)
        # In a session of its own: what Ctrl-C ends at a terminal is the step.
        return subprocess.Popen(
            [sys.executable, "-m", "stoker.devices.monitor", _document(lease)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        log.warning("the step's devices are not watched: %s", error)
        return None


def _document(lease: Lease) -> str:
    """The file in which the monitor reads what to watch."""
    return lease.samples.removesuffix(".jsonl") + ".json"


def _await_begin(monitor: subprocess.Popen[bytes], samples: str) -> None:
    """Wait for a sample behind the header: from then on a monitor that is told to end writes its last one."""
    deadline = time.monotonic() + _FIRST_SAMPLE
    while monitor.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError), open(samples, "rb") as file:
            if file.read().count(b"\n") > 1:
                return
        time.sleep(_LOOK)
