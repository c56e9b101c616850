"""This machine: warm worker processes forked from a server that has imported the user's module.

A step with `isolation="fresh"` gets a process of its own that ends with it. So does one that holds devices, from a
server of its own, which has not imported the user's module: that one may ask for devices when it is imported, and CUDA
that was asked before a fork is of no use after it. Every other step runs in a warm worker, one at a time, and sees no
device; short elements of a fan-out may stand in line behind each other. When a worker dies, the job that it was running
has failed, and those that it had not read are sent again.
"""

from __future__ import annotations

import selectors
import sys
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Literal, Mapping, Sequence

import attrs

from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.backends.base.channel import Updates
from stoker.backends.base.machine import check, request_of
from stoker.backends.base.messages import gang_task, node_environment, nodes_of, step_task, worker_job
from stoker.backends.base.statuses import failed, of_exit, of_result
from stoker.backends.local.settings import room
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.packages import Interpreter
from stoker.core.plan import Capacity, Job, JobStatus, Site, StepPlan
from stoker.core.protocol import GangTask, ServerHello, StepResult, WorkerExit
from stoker.core.status import CANCELLED, WORKER_LOST
from stoker.vendors.table import NO_DEVICES
from stoker.worker import spare
from stoker.worker.forked import ServerGone, ServerHandle, WorkerHandle

if TYPE_CHECKING:
    from stoker.core.devices import Lease

GANG_GRACE: Final = 5.0
"""Seconds that the other nodes of a gang get when its first one is over; by then its agent has told them to end."""


class LocalBackend:
    """Runs jobs in processes on this machine."""

    name = "local"
    packages_in: Literal["image", "environment"] = "environment"
    shares_kernel: Literal[True] = True

    def __init__(self, site: Site, options: Mapping[str, Any], services: Services = NO_SERVICES) -> None:
        self._site = site
        self._room = room(options)
        self._leasing = services.leasing
        self._environments = services.environments
        self._selector = selectors.DefaultSelector()
        self._servers = Servers(site, self._selector)
        self._lines: dict[int, WorkerHandle] = {}
        self._idle: list[WorkerHandle] = []
        self._jobs: dict[str, Job] = {}
        self._line_of: dict[str, WorkerHandle] = {}
        self._updates = Updates()
        self._steps: dict[str, int] = {}
        self._holding = Holding()
        self._count = 0

    # Deciding

    def capacity(self) -> Capacity:
        """The machine's CPUs, memory and devices, or what the stack's settings leave of them."""
        return self._room if self._leasing is None else attrs.evolve(self._room, devices=self._leasing.room())

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What this machine cannot give a step."""
        if self._leasing is not None:
            yield from self._leasing.check(step)
        yield from check(step, self._room, leases=self._leasing is not None)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The command of the fork server, the message that a worker is sent, and what the job takes of the machine."""
        return {
            "command": [sys.executable, "-m", "stoker.worker.forkserver"],
            "message": to_json(attrs.evolve(worker_job(job, 0), steps={"0": step_task(job.step)})),
            **request_of(job),
        }

    # Doing

    def submit(self, job: Job) -> str:
        """Give the job to an idle worker, to a new one, or, if it may, into the line of a busy one."""
        if job.name in self._jobs:
            return job.name
        if self._leasing is not None and self._leasing.wants(job):
            self._jobs[job.name] = job
            try:
                self._leasing.request(job, start=self._start_leased, tell=self._updates.put)
            except BackendError:  # raised again: a ledger that cannot be used refuses the job
                del self._jobs[job.name]
                raise
            return job.name
        self._jobs[job.name] = job
        try:
            self._start(job)
        except ServerGone as error:
            # It went away since the last poll: what it held is told to the engine, and another one takes its place.
            self._server_is_gone(error.server)
            self._place(job)
        return job.name

    def _start_leased(self, job: Job) -> None:
        self._place(job)
        line = self._line_of.get(job.name)
        if line is not None and line.lease is not None:
            self._updates.put(job.name, JobStatus(state="running", lease=line.lease))

    def _place(self, job: Job) -> None:
        try:
            self._start(job)
        except BackendError as error:
            # Lost, not refused: the engine submits it again, and counts how often. In the middle of a poll this is no
            # moment to give up all lines; the poll will hear by itself that the fork server is gone.
            self._forget(job.name, JobStatus(state="unknown", lost=True, message=str(error)))

    def _start(self, job: Job) -> None:
        leases = [] if self._leasing is None else self._leasing.leases(job)
        nodes = nodes_of(job)
        if not leases and nodes == 1 and (job.step.settings.launch is None or job.kind == "hook"):
            self._line_of[job.name] = line = self._line_for(job)
            self._send(line, job)
            return
        settings_environment, lines = job.step.settings.environment, []
        gang = gang_task(job, self._site.scratch) if nodes > 1 else None
        for node in range(nodes):
            lease = leases[node] if leases else None
            visibility = {} if lease is None else _visibility(lease)
            place = {} if gang is None else node_environment(node, nodes)
            lines.append(
                self._forked(
                    job, once=True, environment={**settings_environment, **visibility, **place}, lease=lease, node=node
                )
            )
        self._holding.begin(job.name, lines)
        self._line_of[job.name] = lines[0]
        for line in lines:
            self._send(line, job, gang)

    def _line_for(self, job: Job) -> WorkerHandle:
        if job.step.settings.isolation == "fresh" and job.kind == "step":
            return self._forked(job, once=True, environment=job.step.settings.environment)
        for line in self._servers.warm(reversed(self._idle), job.step.environment):
            self._idle.remove(line)
            return line
        behind = self._servers.warm(self._lines.values(), job.step.environment) if job.behind else []
        lines = [line for line in behind if self._takes_more(line)]
        return min(lines, key=_length) if lines else self._forked(job, once=False, environment={})

    def _takes_more(self, line: WorkerHandle) -> bool:
        return bool(line.jobs) and not line.once and self._jobs[line.jobs[-1]].marked

    def _forked(
        self,
        job: Job,
        *,
        once: bool,
        environment: Mapping[str, str],
        lease: Lease | None = None,
        node: int = 0,
    ) -> WorkerHandle:
        server = self._servers.get(job.step.environment, self._environments, clean=lease is not None)
        self._count += 1
        line = WorkerHandle(self._count, server, once=once, lease=lease, node=node)
        try:
            server.fork(line, environment)
        except BackendError:
            line.close_worker_ends()
            line.close()
            raise
        self._lines[line.number] = line
        self._selector.register(line.results, selectors.EVENT_READ, line)
        for output in line.outputs:
            self._selector.register(output.descriptor, selectors.EVENT_READ, line)
        return line

    def _send(self, line: WorkerHandle, job: Job, gang: GangTask | None = None) -> None:
        number = self._steps.setdefault(job.step.key, len(self._steps))
        message = worker_job(job, number)
        if number not in line.steps or line.lease is not None or gang is not None:
            steps = {} if number in line.steps else {str(number): step_task(job.step)}
            message = attrs.evolve(message, steps=steps, accelerators=line.lease, gang=gang)
        line.send(message)

    def wakeups(self) -> Iterable[int]:
        """One descriptor that stands for every worker's."""
        return (self._selector.fileno(),)

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new since the last call."""
        gone = []
        for key, _ in self._selector.select(0):
            if isinstance(key.data, ServerHandle):
                if self._hear(key.data):
                    gone.append(key.data)
            elif key.data.number in self._lines:
                self._read(key.data)
        for server in gone:
            self._server_is_gone(server)
        self._share()
        if self._leasing is not None:
            self._leasing.retry(start=self._start_leased, tell=self._updates.put, refuse=self._forget)
        return self._updates.take()

    def _read(self, line: WorkerHandle, *, over: bool = False) -> None:
        """Results first, then output: whatever a finished job wrote is in the pipes by the time its result is."""
        messages, open = line.receive()
        if not open:
            self._unwatch(line.results.fileno())
        finished = any(isinstance(message, StepResult) for message in messages)
        for output in line.outputs:
            if not output.read(self._updates.lines, all=over or finished):
                self._unwatch(output.descriptor)
        for message in messages:
            if isinstance(message, StepResult):
                self._finish(line, message)
            else:
                self._updates.event(message.job, message)

    def _finish(self, line: WorkerHandle, result: StepResult) -> None:
        name = result.job
        if line.node:
            line.jobs.popleft()
            return  # its agent told the first node's, which speaks for all
        job = self._jobs.pop(name, None)
        if job is None:
            return
        line.jobs.popleft()
        del self._line_of[name]
        line.steps.add(self._steps[job.step.key])
        if not job.marked:
            for output in line.outputs:
                output.end(self._updates.lines)
        line.retired = result.retired
        if line.retired:
            self._send_elsewhere(line)
        elif not line.jobs and not line.once:
            self._idle.append(line)
        status = of_result(result, line.lease)
        if self._holding.holds(name):
            self._is_over(name, status)
        else:
            self._updates.put(name, status)

    def _is_over(self, name: str, status: JobStatus) -> None:
        for line in self._holding.over(name, status):
            if line.node:
                line.server.end(line.number, grace=GANG_GRACE)

    def _share(self) -> None:
        """Idle workers take what stands unread in others' lines."""
        if not self._idle:
            return
        idle = {line.server for line in self._idle}
        lines = [line for line in self._lines.values() if len(line.jobs) > 1 and line.server in idle]
        if longest := max(lines, key=_length, default=None):
            for name in self._taken_back(longest):
                self._again(name)

    def _taken_back(self, line: WorkerHandle) -> list[str]:
        """The jobs that stood unread in a line; a worker that had not even read its first one is idle then."""
        names = line.take_back()
        if names and not line.jobs and not line.once and not line.retired:
            self._idle.append(line)
        return names

    def _again(self, name: str) -> None:
        self._line_of.pop(name, None)
        self._place(self._jobs[name])

    def _send_elsewhere(self, line: WorkerHandle) -> None:
        for name in line.take_back():
            self._again(name)

    def _hear(self, server: ServerHandle) -> bool:
        """Take in what a fork server says; whether it is gone."""
        messages, there = server.receive()
        for message in messages:
            line = None if message.exited is None else self._lines.get(message.exited.worker)
            if message.exited is not None and line is not None:
                self._worker_exited(line, message.exited)
        return not there

    def _worker_exited(self, line: WorkerHandle, exited: WorkerExit) -> None:
        self._read(line)
        unread = line.take_back()
        # The job that was running goes first, so that what the worker wrote last is still its own.
        if line.jobs:
            self._fail(line, line.jobs[0], exited)
        elif unread:
            # It died before it read a job. That may be the job's doing, so the engine counts how often it happens.
            self._ended(line, unread.pop(0), JobStatus(state="unknown", lost=True))
        self._drop(line)
        over = self._holding.gone(line)
        if over is not None:
            self._forget(*over)
        for name in unread:
            self._again(name)

    def _fail(self, line: WorkerHandle, name: str, exited: WorkerExit) -> None:
        line.jobs.popleft()
        for output in line.outputs:
            output.end(self._updates.lines)
        self._ended(line, name, of_exit(exited, line.lease))

    def _ended(self, line: WorkerHandle, name: str, status: JobStatus) -> None:
        """A job ended with its worker; a gang only when its first node did, which hears of the others' ends itself."""
        if not self._holding.holds(name):
            self._forget(name, status)
        elif self._holding.speaks(line, name):
            self._is_over(name, status)

    def _forget(self, name: str, status: JobStatus) -> None:
        self._jobs.pop(name, None)
        self._line_of.pop(name, None)
        self._updates.put(name, status)
        if self._leasing is not None:
            self._leasing.release(name)

    def _drop(self, line: WorkerHandle) -> None:
        del self._lines[line.number]
        if line in self._idle:
            self._idle.remove(line)
        for descriptor in (line.results.fileno(), *(output.descriptor for output in line.outputs)):
            self._unwatch(descriptor)
        line.close()

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _server_is_gone(self, server: ServerHandle) -> None:
        """Everything that ran is lost with it; the next job starts another one, without importing ahead."""
        self._servers.gone(server)
        words = server.stderr_tail()
        server.close()
        message = "the process that held the workers went away" + (f": {words}" if words else "")
        for line in [line for line in self._lines.values() if line.server is server]:
            self._read(line, over=True)
            unread = line.take_back()
            if line.jobs:
                name = line.jobs[0]
                for output in line.outputs:
                    output.end(self._updates.lines)
                self._ended(line, name, failed(WORKER_LOST, message, line.lease))
            for name in [*list(line.jobs)[1:], *unread]:
                self._ended(line, name, JobStatus(state="unknown", lost=True, message=message))
            self._drop(line)
            over = self._holding.gone(line)
            if over is not None:
                self._forget(*over)

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job's process and all it started; a job still in line is only taken out of it."""
        line = self._line_of.get(id)
        if line is None:
            if id in self._jobs:  # it waits for devices
                self._forget(id, failed(CANCELLED))
            return
        if line.jobs[0] != id:
            for name in self._taken_back(line):
                if name == id:
                    self._forget(name, failed(CANCELLED))
                else:
                    self._again(name)
            if id not in self._line_of:
                return
        for one in (line, *self._holding.others(id)):
            one.server.end(one.number, grace=grace)

    def close(self) -> None:
        """End every worker."""
        self._servers.close()
        if self._leasing is not None:
            self._leasing.release_all()
        for line in list(self._lines.values()):
            self._drop(line)
        self._selector.close()


def _length(line: WorkerHandle) -> int:
    return len(line.jobs)


def _visibility(lease: Lease) -> Mapping[str, str]:
    from stoker.vendors.registry import environment_of  # only for steps with devices

    return environment_of(lease.held)


class Holding:
    """Each such job's workers, one a node, and how it ended; node 0 speaks for all."""

    def __init__(self) -> None:
        self._lines: dict[str, list[WorkerHandle]] = {}
        self._statuses: dict[str, JobStatus] = {}

    def begin(self, name: str, lines: Iterable[WorkerHandle]) -> None:
        """A job's workers have been forked, the one of node 0 first."""
        self._lines[name] = list(lines)

    def over(self, name: str, status: JobStatus) -> Sequence[WorkerHandle]:
        """How a job ended, as its first node says; whoever of it is still there, to be ended."""
        self._statuses.setdefault(name, status)
        return self._lines.get(name, ())

    def others(self, name: str) -> Sequence[WorkerHandle]:
        """The workers of a job's further nodes that are still there."""
        return [line for line in self._lines.get(name, ()) if line.node]

    def speaks(self, line: WorkerHandle, name: str) -> bool:
        """Whether a worker is the one whose word counts for the job."""
        return bool(self._lines.get(name)) and line.node == 0

    def gone(self, line: WorkerHandle) -> tuple[str, JobStatus] | None:
        """A worker has ended; the job and its status if it was the last."""
        for name, lines in self._lines.items():
            if line in lines:
                lines.remove(line)
                if lines or name not in self._statuses:
                    return None
                del self._lines[name]
                return name, self._statuses.pop(name)
        return None

    def holds(self, name: str) -> bool:
        """Whether a job is one of these."""
        return name in self._lines


Interpreters = Callable[[str], Interpreter]
"""Finds the interpreter of an environment by its name."""


class Servers:
    """Fork servers by whether they are clean, and by the name of their environment; "" is the driver's own."""

    def __init__(self, site: Site, selector: selectors.BaseSelector) -> None:
        self._site = site
        self._selector = selector
        self._known: dict[tuple[bool, str], ServerHandle] = {}

    def get(self, environment: str, interpreters: Interpreters | None, *, clean: bool) -> ServerHandle:
        """The server of a kind, which hears in the selector from now on."""
        server = self._known.get((clean, environment))
        if server is None:
            site = self._site
            interpreter = None
            if environment:
                if interpreters is None:
                    raise BackendError(f"nobody told this backend where environment {environment} is")
                interpreter = interpreters(environment)
                site = attrs.evolve(site, path=interpreter.path)
            server = self._known[clean, environment] = _server(site, clean=clean, interpreter=interpreter)
            self._selector.register(server.fileno(), selectors.EVENT_READ, server)
        return server

    def warm(self, lines: Iterable[WorkerHandle], environment: str) -> list[WorkerHandle]:
        """Those of the workers that the warm server of an environment begot."""
        server = self._known.get((False, environment))
        return [line for line in lines if line.server is server]

    def gone(self, server: ServerHandle) -> None:
        """One went away: the next job starts another one."""
        self._known = {kind: other for kind, other in self._known.items() if other is not server}
        self._selector.unregister(server.fileno())

    def close(self) -> None:
        """End all of them, with all that they started."""
        for server in self._known.values():
            self._selector.unregister(server.fileno())
            server.close()
        self._known = {}


def _server(site: Site, *, clean: bool, interpreter: Interpreter | None) -> ServerHandle:
    """A clean server imports packages that no device needs to be chosen for, a warm one the user's modules."""
    hello = ServerHello(
        path=site.path,
        folder=site.folder,
        blobs=site.artifacts,
        checkpoints=site.checkpoints,
        environment=NO_DEVICES,
        preload=site.preload if clean else (),
        sources=() if clean else site.sources,
    )
    process = spare.take() if interpreter is None else spare.SpawnedServer(interpreter)
    return ServerHandle(process, hello, scratch=site.scratch)
