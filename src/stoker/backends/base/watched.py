"""Backends whose jobs run on a platform with a queue of its own: one thread makes all calls to the platform.

The thread sends submitted jobs, many at once, so that a fan-out becomes an array; polls them, less and less often while
nothing changes; and ends cancelled ones. A platform that does not answer is called again for as long as the run lives:
jobs there go on without the driver. Each platform implements `platforms.Platform`.

Jobs outlive this process. A later driver with the same jobs finds them (`Platform.find`) and adopts those that still
run or went well.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.channel import Channel
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.output import Reader
from stoker.backends.base.platforms import Away, JobReport, Platform
from stoker.backends.base.statuses import failed
from stoker.core.devices import Lease
from stoker.core.errors import BackendError, StokerError
from stoker.core.plan import Job, JobStatus, LogLine
from stoker.core.protocol import WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST

log = logging.getLogger(__name__)

GATHER: Final = 0.05
"""Seconds without a further job after which those submitted are sent together."""
PAUSES: Final = (0.2, 0.3, 0.5, 1.0, 2.0)
"""Seconds between two polls, longer while nothing changes. A platform may call its own controller less often."""
AWAY: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a platform that did not answer is called again."""
FORCE: Final = 30.0
"""Seconds after a kill in which a platform may still report the end of the job; then the job counts as ended."""


@attrs.define(kw_only=True)
class _Flight:
    """A job that was sent."""

    job: Job
    handle: Any
    """As `Platform.send` returned it."""
    readers: dict[int, Reader] = attrs.field(factory=dict)
    """By node."""
    leases: dict[int, Lease] = attrs.field(factory=dict)
    """The devices of each node, as the nodes reported them."""
    running: bool = False
    message: str = ""
    """Why the job waits, as last reported."""
    force: float = float("inf")
    """When the job is killed, on the monotonic clock."""
    give_up: float = float("inf")
    """When the job counts as ended although the platform has not said so, on the monotonic clock."""


class JobWatcher:
    """Sends, polls and ends jobs in a thread; the public methods may be called from any other thread."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._outbox: dict[str, Job] = {}
        self._flights: dict[str, _Flight] = {}
        self._ends: dict[str, float] = {}
        self._submitted: set[str] = set()
        self._channel = Channel(over=self._forget)
        self._changed = threading.Condition()
        self._last_submit = 0.0
        self._urgent = False
        self._closing = False
        self._away = 0
        self._thread: threading.Thread | None = None

    # Called by the backend

    def submit(self, job: Job) -> str:
        """Queue a job to be sent; later polls report what becomes of it."""
        with self._changed:
            if job.name in self._submitted:
                return job.name
            self._submitted.add(job.name)
            self._outbox[job.name] = job
            self._last_submit = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stoker-watch", daemon=True)
                self._thread.start()
            self._urgent = True
            self._changed.notify()
        return job.name

    def cancel(self, name: str, grace: float) -> None:
        """End a job; one that was not sent yet is over at once."""
        with self._changed:
            if self._outbox.pop(name, None) is not None:
                self._channel.put(name, failed(CANCELLED))
            else:
                self._ends[name] = min(grace, self._ends.get(name, grace))
            self._urgent = True
            self._changed.notify()

    def wakeups(self) -> Iterable[int]:
        """Descriptors that are readable when there is news."""
        return self._channel.wakeups()

    def poll(self) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call."""
        return self._channel.take()

    def _forget(self, name: str) -> None:
        with self._changed:
            self._submitted.discard(name)

    def close(self) -> None:
        """End the jobs that still run, and the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._platform.close()
        self._channel.close()

    # The thread

    def _run(self) -> None:
        quiet = 0
        while not self._closing:
            self._urgent = False
            try:
                quiet = 0 if self._turn() else min(quiet + 1, len(PAUSES) - 1)
                pause, self._away = PAUSES[quiet], 0
            except Away as error:
                pause = AWAY[min(self._away, len(AWAY) - 1)]
                self._say_away(error, pause)
            except Exception as error:  # the top of a thread: the engine of the run would wait for ever
                log.exception("the watch over the jobs failed")
                self._give_up(f"{type(error).__name__}: {error}")
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closing or (self._urgent and not self._away), pause)
        self._end_all()

    def _turn(self) -> bool:
        """Send, end and look once; whether anything changed."""
        sent = self._send()
        ended = self._end()
        return self._look() or sent or ended

    def _send(self) -> bool:
        with self._changed:
            while self._outbox and not self._closing:
                seconds = self._last_submit + GATHER - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(seconds)
            jobs = list(self._outbox.values())
        if not jobs:
            return False
        handles = dict(self._platform.find(jobs))
        fresh = [job for job in jobs if job.name not in handles]
        try:
            handles.update(self._platform.send(fresh) if fresh else {})
        except StokerError as error:
            if isinstance(error, Away):
                raise
            handles.update({job.name: failed(REFUSED, str(error)) for job in fresh})
        for job in jobs:
            handle = handles.get(job.name)
            if handle is None:
                continue
            with self._changed:
                cancelled = self._outbox.pop(job.name, None) is None
            if isinstance(handle, JobStatus):
                if not cancelled:
                    self._channel.put(job.name, handle)
                continue
            self._flights[job.name] = _Flight(job=job, handle=handle)
            if cancelled:  # while it was being sent
                with self._changed:
                    self._ends[job.name] = 0.0
        return bool(handles)

    def _end(self) -> bool:
        with self._changed:
            ends, self._ends = self._ends, {}
        now = time.monotonic()
        by_grace: dict[float, dict[str, Any]] = {}
        for name, grace in ends.items():
            flight = self._flights.get(name)
            if flight is not None:
                by_grace.setdefault(grace, {})[name] = flight.handle
        try:
            for grace, handles in by_grace.items():
                self._platform.end(handles, grace=grace)
                for name in handles:
                    self._flights[name].force = now + grace if grace else float("inf")
                    self._flights[name].give_up = now + grace + FORCE
            to_kill = {name: flight.handle for name, flight in self._flights.items() if flight.force <= now}
            if to_kill:
                self._platform.end(to_kill, grace=0.0)
                for name in to_kill:
                    self._flights[name].force = float("inf")
        except Away:
            with self._changed:
                self._ends = {**ends, **self._ends}
            raise
        return bool(ends)

    def _look(self) -> bool:
        if not self._flights:
            return False
        updates = self._platform.look({name: flight.handle for name, flight in self._flights.items()})
        changed = False
        for name, update in updates.items():
            changed = self._apply(self._flights[name], update) or changed
        now = time.monotonic()
        for flight in list(self._flights.values()):
            if flight.give_up <= now:
                self._end_flight(
                    flight, failed(CANCELLED, "the platform did not tell how the job ended", _lease(flight))
                )
                changed = True
        return changed

    def _apply(self, flight: _Flight, update: JobReport) -> bool:
        """Pass on what is new of a job; whether anything is."""
        name = flight.job.name
        changed = False
        for node, stream, data in update.output:
            lines, events = flight.readers.setdefault(node, Reader()).read(stream, data)
            changed = self._pass_on(flight, node, lines, events) or changed
        for event in update.events:
            changed = True
            self._channel.event(name, event)
        if update.status is not None:
            for node, reader in flight.readers.items():
                self._pass_on(flight, node, *reader.end())
            self._end_flight(flight, update.status)
            return True
        if update.running and not flight.running:
            flight.running, flight.message = True, ""
            self._channel.put(name, JobStatus(state="running"))
            return True
        if not update.running and update.message and update.message != flight.message:
            flight.running, flight.message = False, update.message
            self._channel.put(name, JobStatus(state="queued", message=update.message))
            return True
        return changed

    def _pass_on(self, flight: _Flight, node: int, lines: Sequence[LogLine], events: Sequence[WorkerEvent]) -> bool:
        name = flight.job.name
        if lines:
            self._channel.write(name, lines)
        for event in events:
            if event.lease is not None:
                flight.leases[node] = event.lease
                if len(flight.leases) == nodes_of(flight.job):
                    self._channel.put(name, JobStatus(state="running", lease=_lease(flight)))
            elif event.kind != "began" or node == 0:
                self._channel.event(name, event)
        return bool(lines or events)

    def _end_flight(self, flight: _Flight, status: JobStatus) -> None:
        del self._flights[flight.job.name]
        if flight.leases and not status.lease:
            status = attrs.evolve(status, lease=_lease(flight))
        self._channel.put(flight.job.name, status)
        with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
            self._platform.forget(flight.handle)

    def _say_away(self, error: Away, pause: float) -> None:
        self._away += 1
        if self._away > 1:
            return
        with self._changed:
            waiting = list(self._outbox)
        waiting += [name for name, flight in self._flights.items() if not flight.running]
        for name in waiting:
            self._channel.put(name, JobStatus(state="queued", message=f"{error}; asked again in {pause:g} s"))

    def _give_up(self, why: str) -> None:
        with self._changed:
            names = [*self._outbox, *self._flights]
            self._outbox.clear()
        for name in names:
            self._channel.put(name, failed(WORKER_LOST, why))

    def _end_all(self) -> None:
        """End the jobs that this driver sent and that still run."""
        handles = {name: flight.handle for name, flight in self._flights.items()}
        if handles:
            with contextlib.suppress(StokerError):
                self._platform.end(handles, grace=0.0)


def _lease(flight: _Flight) -> Lease | None:
    """The first node's lease, which knows the others; None where there is none."""
    leases = flight.leases
    if 0 not in leases:
        return None
    return attrs.evolve(leases[0], others=tuple(leases[node] for node in sorted(leases)[1:]))


class Watched:
    """The methods of a backend that are the same for all such platforms."""

    def __init__(self, platform: Platform) -> None:
        self._watcher = JobWatcher(platform)

    def capacity(self) -> None:
        """No limit: the platform has a queue, so that every ready job may be sent."""
        return

    def submit(self, job: Job) -> str:
        """Queue a job to be sent; later polls report what becomes of it."""
        return self._watcher.submit(job)

    def wakeups(self) -> Iterable[int]:
        """Descriptors that are readable when there is news."""
        return self._watcher.wakeups()

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call."""
        return self._watcher.poll()

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job: ask, and kill it after `grace` seconds."""
        self._watcher.cancel(id, grace)

    def close(self) -> None:
        """End the jobs that still run, and the thread."""
        self._watcher.close()
