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
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import PlatformNotice
from stoker.backends.base.channel import Channel, Reader
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import AtHand, Away, JobReport, Platform, PromptPlatform, RemotePlatform, Silence
from stoker.backends.base.statuses import failed
from stoker.core.devices import Lease
from stoker.core.errors import BackendError, StokerError
from stoker.core.plan import Job, JobStatus, LogLine
from stoker.core.protocol import ADOPTED, JOB, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.core.words import time_text

log = logging.getLogger(__name__)

GATHER: Final = 0.05
"""Seconds without a further job after which those submitted are sent together."""
PAUSES: Final = (0.2, 0.3, 0.5, 1.0, 2.0)
"""Seconds between two polls, longer while nothing changes. A platform may call its own controller less often."""
AWAY: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a platform that did not answer is called again."""
FORCE: Final = 30.0
"""Seconds after a kill in which a platform may still report the end of the job; then the job counts as ended."""


LEAVE: Final = 3.0
"""Seconds after a request to end at once in which jobs may be reported to be over; then the driver leaves them."""
CLOSE: Final = 0.5
"""Seconds for the thread to end after its call was broken off."""
REMIND: Final = 300.0
"""Seconds after which a platform's silence is reported again."""
_NAMED: Final = 5
"""Jobs that are named when they are left; more are a count."""


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
    since: float = 0.0
    """When the job was sent and, once it runs, when it began, in seconds since the epoch."""
    reason: str = ""
    """Why the job waits, as last reported."""
    facts: dict[str, Any] = attrs.field(factory=dict)
    """Where the job is, for the record."""
    reported: dict[str, Any] = attrs.field(factory=dict)
    """The facts that were reported last."""
    force: float = float("inf")
    """When the job is killed, on the monotonic clock."""
    give_up: float = float("inf")
    """When the job counts as ended although the platform has not said so, on the monotonic clock."""


class _Handles(Mapping[str, Any]):
    """The handles of the jobs that were sent, by name: a look at the few of which something is new reads no others."""

    def __init__(self, flights: Mapping[str, _Flight]) -> None:
        self._flights = flights

    def __getitem__(self, name: str) -> Any:
        return self._flights[name].handle

    def __iter__(self) -> Iterator[str]:
        return iter(self._flights)

    def __len__(self) -> int:
        return len(self._flights)


class JobWatcher:
    """Sends, polls and ends jobs in a thread; the public methods may be called from any other thread."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._remote = platform if isinstance(platform, RemotePlatform) else AtHand()
        self._prompt = platform if isinstance(platform, PromptPlatform) else None
        self._outbox: dict[str, Job] = {}
        self._flights: dict[str, _Flight] = {}
        self._ends: dict[str, float] = {}
        # Jobs in the outbox whose submission has begun: they may exist on the platform.
        self._begun: set[str] = set()
        # Why jobs in the outbox wait, as last reported.
        self._waits: dict[str, str] = {}
        # Jobs that are to end at once, and the timer after which they are left.
        self._hard: set[str] = set()
        self._timer: threading.Timer | None = None
        self._left = False
        self._notices: list[PlatformNotice] = []
        self._reported: Silence | None = None
        self._remind_at = 0.0
        self._submitted: set[str] = set()
        self._channel = Channel(over=self._forget)
        self._changed = threading.Condition()
        self._last_submit = 0.0
        # Whether no further job comes before one that was submitted has ended.
        self._complete = False
        self._urgent = False
        self._end_urgent = False
        self._closing = False
        self._away = 0
        # When the first of the jobs that were asked to end is to be killed or given up, on the monotonic clock.
        self._deadline = float("inf")
        self._thread: threading.Thread | None = None

    # Called by the backend

    def submit(self, job: Job) -> str:
        """Queue a job to be sent; later polls report what becomes of it."""
        with self._changed:
            if job.name in self._submitted:
                return job.name
            self._submitted.add(job.name)
            self._outbox[job.name] = job
            self._last_submit, self._complete = time.monotonic(), False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stoker-watch", daemon=True)
                self._thread.start()
            self._urgent = True
            self._changed.notify()
        return job.name

    def complete(self) -> None:
        """Send what was submitted without waiting for more."""
        with self._changed:
            self._complete = True
            self._changed.notify()

    def cancel(self, name: str, grace: float) -> None:
        """End a job; one whose submission has not begun is over at once.

        Without grace the job is left on the platform if it is not reported to be over within `LEAVE` seconds.
        """
        with self._changed:
            if name in self._outbox and name not in self._begun:
                del self._outbox[name]
                self._channel.put(name, failed(CANCELLED))
            else:
                self._ends[name] = min(grace, self._ends.get(name, grace))
                if not grace:
                    self._hard.add(name)
                    self._start_timer()
            self._urgent = self._end_urgent = True
            self._changed.notify()

    def _start_timer(self) -> None:
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Timer(LEAVE, self._leave)
            self._timer.daemon = True
            self._timer.start()

    def _leave(self) -> None:
        """Give up the jobs that were to end at once and are not over: they may still run on the platform."""
        with self._changed:
            flights = dict(self._flights)
            sent = [flights[name] for name in sorted(self._hard) if name in flights]
            unsent = [self._outbox[name] for name in sorted(self._hard) if name in self._outbox]
            if not sent and not unsent:
                return
            self._left = True
        jobs = [{"key": one.job.key, **self._remote.identity(one.handle)} for one in sent]
        doubtful = [dict(one) for one in self._remote.doubtful()] if unsent else []
        text = _left_text(self._remote.answers.who, jobs, doubtful)
        self._notices.append(PlatformNotice(kind="left", text=text, data={"jobs": [*jobs, *doubtful]}))
        for name in [*(one.job.name for one in sent), *(job.name for job in unsent)]:
            self._channel.put(name, failed(CANCELLED, "the run ended before the platform had confirmed the job's end"))

    def wakeups(self) -> Iterable[int]:
        """Descriptors that are readable when there is news."""
        return self._channel.wakeups()

    def poll(self) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call."""
        return self._channel.take()

    def silence(self) -> Silence | None:
        """The platform's silence; None for one that answers."""
        return self._remote.answers.silence(time.time())

    def notices(self) -> Sequence[PlatformNotice]:
        """What is new of the platform since the last call."""
        if self._thread is None:
            return ()
        silence, reported, clock = self.silence(), self._reported, time.monotonic()
        if silence is not None and (reported is None or clock >= self._remind_at):
            text = f"{silence.text}; jobs there go on, and it is asked again until it answers"
            data = {"since": silence.since, "tries": silence.tries}
            self._notices.append(PlatformNotice(kind="platform-away", text=text, data=data))
            self._reported, self._remind_at = silence, clock + REMIND
        elif silence is None and reported is not None:
            duration = time_text(time.time() - reported.since)
            text = f"{reported.who} answers again, after {duration}"
            self._notices.append(PlatformNotice(kind="platform-back", text=text))
            self._reported = None
        notices, self._notices = self._notices, []
        return notices

    def _forget(self, name: str) -> None:
        with self._changed:
            self._submitted.discard(name)

    def leave(self) -> None:
        """End the thread and no job; a call that waits for its answer gets `LEAVE` seconds."""
        with self._changed:
            self._closing = self._left = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LEAVE)

    def close(self) -> None:
        """End the jobs that still run, and the thread; where jobs were left, the platform is asked nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._timer is not None:
            self._timer.cancel()
        if self._left:
            self._remote.abandon()
            if self._thread is not None:
                self._thread.join(CLOSE)
            if self._thread is None or not self._thread.is_alive():
                self._channel.close()
            return
        if self._thread is not None:
            self._thread.join()
        self._platform.close()
        self._channel.close()

    # The thread

    def _run(self) -> None:
        quiet, last_change = 0, time.monotonic()
        while not self._closing:
            self._urgent = self._end_urgent = False
            try:
                changed = self._turn()
                quiet = 0 if changed else min(quiet + 1, len(PAUSES) - 1)
                now = time.monotonic()
                last_change = now if changed else last_change
                pause = PAUSES[quiet] if self._prompt is None else self._prompt.pause(now - last_change)
                self._away = 0
            except Away as error:
                self._remote.answers.miss(error)
                pause = AWAY[min(self._away, len(AWAY) - 1)]
                self._say_away(error, pause)
            except Exception as error:  # the top of a thread: the engine of the run would wait for ever
                log.exception("the watch over the jobs failed")
                self._give_up(f"{type(error).__name__}: {error}")
                return
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._end_urgent or (self._urgent and not self._away), pause
                )
        if not self._left:
            self._end_all()

    def _turn(self) -> bool:
        """End, send and look once; whether anything changed."""
        ended = self._end()
        sent = self._send()
        return self._look() or sent or ended

    def _send(self) -> bool:
        gather = GATHER if self._prompt is None else self._prompt.gather()
        with self._changed:
            while self._outbox and not self._closing and not self._complete:
                seconds = self._last_submit + gather - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(seconds)
            jobs = list(self._outbox.values())
            self._begun.update(self._outbox)
        if not jobs:
            return False
        handles = dict(self._platform.find(jobs))
        fresh = []
        for job in jobs:
            if job.name in handles:
                continue
            if job.name in self._ends:  # the platform does not know it
                handles[job.name] = failed(CANCELLED)
            else:
                fresh.append(job)
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
            if isinstance(handle, JobStatus) and handle.state == "queued":
                if self._waits.get(job.name) != handle.message:
                    self._waits[job.name] = handle.message
                    self._channel.put(job.name, handle)
                del handles[job.name]
                continue
            with self._changed:
                if not isinstance(handle, JobStatus):
                    facts = dict(self._remote.identity(handle))
                    self._flights[job.name] = _Flight(job=job, handle=handle, facts=facts)
                del self._outbox[job.name]
                self._begun.discard(job.name)
            if isinstance(handle, JobStatus):
                self._channel.put(job.name, handle)
            else:
                self._report_sent(self._flights[job.name])
        return bool(handles)

    def _report_sent(self, flight: _Flight) -> None:
        earlier = self._remote.adopted_attempt(flight.handle)
        if earlier:
            self._channel.event(flight.job.name, WorkerEvent(kind="noted", note=ADOPTED, data={"attempt": earlier}))
        else:
            flight.since = time.time()
            self._report_state(flight, "sent", flight.since)

    def _report_place(self, flight: _Flight) -> None:
        """Report where a job is once its node is known, and again where the platform says more or something else."""
        if flight.facts.get("node") and flight.facts != flight.reported:
            self._report_state(flight, "placed", time.time())

    def _report_state(self, flight: _Flight, state: str, moment: float) -> None:
        flight.reported = dict(flight.facts)
        data = {"state": state, "time": moment, **flight.facts}
        self._channel.event(flight.job.name, WorkerEvent(kind="noted", note=JOB, data=data))

    def _report_running(self, flight: _Flight, moment: float) -> None:
        """Report once that a job runs."""
        if not flight.running:
            flight.running, flight.reason, flight.since = True, "", moment
            self._report_state(flight, "running", moment)
            self._channel.put(flight.job.name, JobStatus(state="running"))

    def _end(self) -> bool:
        with self._changed:
            ends = {name: grace for name, grace in self._ends.items() if name in self._flights}
            self._ends = {name: grace for name, grace in self._ends.items() if name in self._outbox}
        now = time.monotonic()
        by_grace: dict[float, dict[str, Any]] = {}
        for name, grace in ends.items():
            by_grace.setdefault(grace, {})[name] = self._flights[name].handle
        try:
            for grace, handles in by_grace.items():
                self._platform.end(handles, grace=grace)
                for name in handles:
                    self._flights[name].force = now + grace if grace else float("inf")
                    self._flights[name].give_up = now + grace + FORCE
                    self._deadline = min(self._deadline, now + (grace or FORCE))
            overdue = self._flights if now >= self._deadline else {}
            to_kill = {name: flight.handle for name, flight in overdue.items() if flight.force <= now}
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
        updates = self._platform.look(_Handles(self._flights))
        changed = False
        for name, update in updates.items():
            changed = self._apply(self._flights[name], update) or changed
        return self._give_up_silent() or changed

    def _give_up_silent(self) -> bool:
        """Count jobs as ended whose end the platform has not told in time; whether there are any."""
        now = time.monotonic()
        if now < self._deadline:
            return False
        silent = [flight for flight in self._flights.values() if flight.give_up <= now]
        for flight in silent:
            self._end_flight(flight, failed(CANCELLED, "the platform did not tell how the job ended", _lease(flight)))
        self._deadline = min((min(one.force, one.give_up) for one in self._flights.values()), default=float("inf"))
        return bool(silent)

    def _apply(self, flight: _Flight, update: JobReport) -> bool:
        """Pass on what is new of a job; whether anything is."""
        name = flight.job.name
        changed = False
        flight.facts.update(update.facts)
        for node, stream, data in update.output:
            lines, events = flight.readers.setdefault(node, Reader()).read(stream, data)
            changed = self._pass_on(flight, node, lines, events) or changed
        for event in update.events:
            changed = True
            self._channel.event(name, event)
        if update.status is not None:
            for node, reader in flight.readers.items():
                self._pass_on(flight, node, *reader.end())
            status = update.status
            if status.started:
                self._report_running(flight, max(status.started, flight.since))
            elif flight.running and status.ended is not None:
                # A platform may tell the end to the second, and the worker its start exactly.
                status = attrs.evolve(status, ended=max(status.ended, flight.since))
            self._report_place(flight)
            self._end_flight(flight, status)
            return True
        if flight.running:
            self._report_place(flight)
        if update.running and not flight.running:
            self._report_running(flight, time.time())
            return True
        reason = update.reason or update.message
        if not update.running and update.message and reason != flight.reason:
            if flight.running:
                flight.facts.pop("node", None)  # it may start elsewhere
            flight.running, flight.reason = False, reason
            self._channel.put(name, JobStatus(state="queued", message=update.message))
            return True
        return changed

    def _pass_on(self, flight: _Flight, node: int, lines: Sequence[LogLine], events: Sequence[WorkerEvent]) -> bool:
        name = flight.job.name
        if lines:
            self._channel.write(name, lines)
        for event in events:
            if event.kind == "up" and node == 0:
                flight.facts.setdefault("node", str(event.data.get("host", "")))
                self._report_running(flight, event.time or time.time())
            elif event.lease is not None:
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


def _left_text(who: str, jobs: Sequence[Mapping[str, Any]], doubtful: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the jobs that are left; ends without a full stop."""
    names = [f"{one['job']} ({one['key']})" if one.get("key") else str(one["job"]) for one in (*jobs, *doubtful)]
    if not names:
        return f"the driver leaves without waiting for {who}: no job of its own is known to be there"
    # A name is Slurm's number, or words: "a submission with the comment 4f12".
    noun = f"{len(names):,} jobs: " if len(names) > 1 else "" if names[0].startswith("a ") else "job "
    more = ", …" if len(names) > _NAMED else ""
    return f"the driver leaves without waiting for {who}: {noun}{', '.join(names[:_NAMED])}{more} may still run there"


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

    def complete(self) -> None:
        """Send what was submitted without waiting for more."""
        self._watcher.complete()

    def wakeups(self) -> Iterable[int]:
        """Descriptors that are readable when there is news."""
        return self._watcher.wakeups()

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call."""
        return self._watcher.poll()

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job: ask, and kill it after `grace` seconds."""
        self._watcher.cancel(id, grace)

    def notices(self) -> Sequence[PlatformNotice]:
        """What is new of the platform since the last call."""
        return self._watcher.notices()

    def silence(self) -> str:
        """Which platform has not answered, since when, and what was tried; empty for one that answers."""
        silence = self._watcher.silence()
        return "" if silence is None else silence.text

    def leave(self) -> None:
        """End the thread and no job: a later driver adopts them."""
        self._watcher.leave()

    def close(self) -> None:
        """End the jobs that still run, and the thread."""
        self._watcher.close()
