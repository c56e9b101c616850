"""This machine: warm worker processes forked from a server that has imported the user's module.

A step with `isolation="fresh"` gets a process of its own that ends with it. So does a step that holds devices, from a
clean server that has not imported the user's module: the module may open devices when it is imported, and CUDA that was
initialized before a fork does not work after it. Every other step runs in a warm worker, one at a time, and sees no
device; short elements of a fan-out may queue for one worker. When a worker dies, the job that it was running fails, and
those that it had not read are sent again.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
from typing import TYPE_CHECKING, Any, Callable, Final, Hashable, Iterable, Literal, Mapping, Sequence

import attrs

from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.backends.base.channel import Updates
from stoker.backends.base.machine import check, request_of
from stoker.backends.base.messages import gang_task, node_environment, nodes_of, step_task, task_key, worker_job
from stoker.backends.base.statuses import failed, of_exit, of_result
from stoker.backends.local.settings import local_capacity
from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.packages import Interpreter
from stoker.core.plan import Capacity, Job, JobStatus, Site, StepPlan
from stoker.core.protocol import METRICS, GangTask, ServerHello, StepResult, WorkerEvent, WorkerExit
from stoker.core.status import CANCELLED, WORKER_LOST
from stoker.vendors.table import NO_DEVICES
from stoker.worker import spare
from stoker.worker.forked import ServerGone, ServerHandle, WorkerHandle
from stoker.worker.imports import FORKABLE, tuning
from stoker.worker.metrics import MetricFiles

if TYPE_CHECKING:
    from stoker.core.devices import Lease

GANG_GRACE: Final = 5.0
"""Seconds that the other nodes of a gang get when its first one is over; by then its agent has told them to end."""


class LocalBackend:
    """Runs jobs in processes on this machine."""

    name = "local"
    keeps_secrets: Literal[True] = True
    leaves_out: Literal["device"] = "device"
    packages_in: Literal["image", "environment"] = "environment"
    shares_kernel: Literal[True] = True

    def __init__(self, site: Site, options: Mapping[str, Any], services: Services = NO_SERVICES) -> None:
        self._site = site
        self._room = local_capacity(options)
        self._leasing = services.leasing
        self._environments = services.environments
        self._environment = services.environment
        self._selector = selectors.DefaultSelector()
        self._servers = Servers(site, self._selector)
        self._workers: dict[int, WorkerHandle] = {}
        self._idle: list[WorkerHandle] = []
        self._jobs: dict[str, Job] = {}
        self._worker_of: dict[str, WorkerHandle] = {}
        self._updates = Updates()
        self._numbers: dict[str, int] = {}
        self._tasks: dict[Hashable, int] = {}
        self._dedicated = DedicatedWorkers()
        self._preloads = Preloads(site.imports)
        self._survivors: dict[str, tuple[int, ...]] = {}
        self._metrics = MetricFiles(site.metrics)
        self._count = 0

    # Deciding

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether this machine has devices for a step beside some."""
        return self._leasing is not None and self._leasing.has_others(step, avoid)

    def capacity(self) -> Capacity:
        """The machine's CPUs, memory and devices, or what the stack's settings leave of them."""
        return self._room if self._leasing is None else attrs.evolve(self._room, devices=self._leasing.room())

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """Findings on what this machine cannot give a step."""
        if self._leasing is not None:
            yield from self._leasing.check(step)
        yield from check(step, self._room, leases=self._leasing is not None)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The command of the fork server, the message to a worker, and what the job requests of the machine."""
        return {
            "command": [sys.executable, "-m", "stoker.worker.forkserver"],
            "message": to_json(attrs.evolve(worker_job(job, 0), steps={"0": step_task(job.step)})),
            **request_of(job),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that runs the step in a process of its own; empty for a request with parts of another backend."""
        from stoker.backends.base.byhand import script

        return script(job, request, self._site) if request.keys() == LocalBackend.render(self, job).keys() else ""

    # Doing

    def submit(self, job: Job) -> str:
        """Send the job to an idle worker, to a new one, or, if it may wait, to the queue of a busy one."""
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
            # It ended since the last poll: its jobs are reported, and another server is started.
            self._server_ended(error.server)
            self._dispatch(job)
        return job.name

    def _start_leased(self, job: Job) -> None:
        self._dispatch(job)
        worker = self._worker_of.get(job.name)
        if worker is not None and worker.lease is not None:
            self._updates.put(job.name, JobStatus(state="running", lease=worker.lease))

    def _dispatch(self, job: Job) -> None:
        try:
            self._start(job)
        except BackendError as error:
            # Lost, not refused: the engine submits it again, and counts how often. The poll itself notices that the
            # fork server is gone.
            self._forget(job.name, JobStatus(state="unknown", lost=True, message=str(error)))

    def _start(self, job: Job) -> None:
        leases = [] if self._leasing is None else self._leasing.leases(job)
        nodes = nodes_of(job)
        if not leases and nodes == 1 and (job.step.settings.launch is None or job.kind == "hook"):
            self._worker_of[job.name] = worker = self._choose_worker(job)
            self._send(worker, job)
            return
        gang = gang_task(job, self._site.scratch) if nodes > 1 else None
        workers = [self._fork_node(job, node, leases[node] if leases else None, gang) for node in range(nodes)]
        self._dedicated.add(job.name, workers, gang)
        self._worker_of[job.name] = workers[0]
        for worker in workers:
            self._send(worker, job, gang)

    def _fork_node(self, job: Job, node: int, lease: Lease | None, gang: GangTask | None) -> WorkerHandle:
        """The worker of one node of a job."""
        visibility = {} if lease is None else _visibility(lease)
        position = {} if gang is None else node_environment(node, nodes_of(job))
        environment = {**job.step.settings.environment, **visibility, **position}
        return self._fork_worker(job, once=True, contain=True, environment=environment, lease=lease, node=node)

    def _bring_back(self, worker: WorkerHandle, name: str) -> None:
        """Start a node again that went away, of a gang that goes on without it; the gang bounds how often."""
        gang, job = self._dedicated.elastic_gang(name), self._jobs.get(name)
        if gang is None or job is None or not worker.node:
            return
        with contextlib.suppress(BackendError):  # the others go on without it
            again = self._fork_node(job, worker.node, worker.lease, gang)
            self._dedicated.join(name, again)
            self._send(again, job, gang)

    def _choose_worker(self, job: Job) -> WorkerHandle:
        if (job.step.settings.isolation == "fresh" or job.step.data) and job.kind == "step":
            return self._fork_worker(job, once=True, environment=job.step.settings.environment)
        for worker in self._servers.warm(reversed(self._idle), job.step.environment):
            self._idle.remove(worker)
            return worker
        warm = self._servers.warm(self._workers.values(), job.step.environment) if job.behind else []
        workers = [worker for worker in warm if self._may_queue(worker)]
        return min(workers, key=_queue_length) if workers else self._fork_worker(job, once=False, environment={})

    def _may_queue(self, worker: WorkerHandle) -> bool:
        return bool(worker.jobs) and not worker.once and self._jobs[worker.jobs[-1]].marked

    def _fork_worker(
        self,
        job: Job,
        *,
        once: bool,
        environment: Mapping[str, str],
        contain: bool = False,
        lease: Lease | None = None,
        node: int = 0,
    ) -> WorkerHandle:
        preload = self._preloads.of(job) if once else ()
        server = self._servers.get(
            job.step.environment,
            self._environments,
            # Libraries read where they keep data when they are imported, and that is not known before it is brought.
            clean=lease is not None or (once and bool(job.step.data)),
            preloads=bool(preload),
        )
        self._count += 1
        worker = WorkerHandle(self._count, server, once=once, contain=contain, lease=lease, node=node)
        try:
            server.fork(worker, {**self._environment, **environment}, preload)
        except BackendError:
            worker.close_worker_ends()
            worker.close()
            raise
        self._workers[worker.number] = worker
        self._selector.register(worker.results, selectors.EVENT_READ, worker)
        for output in worker.outputs:
            self._selector.register(output.descriptor, selectors.EVENT_READ, worker)
        return worker

    def _send(self, worker: WorkerHandle, job: Job, gang: GangTask | None = None) -> None:
        number = self._task_number(job.step)
        message = worker_job(job, number)
        if number not in worker.steps or worker.lease is not None or gang is not None:
            steps = {} if number in worker.steps else {str(number): step_task(job.step)}
            message = attrs.evolve(message, steps=steps, accelerators=worker.lease, gang=gang)
        worker.send(message)

    def _task_number(self, step: StepPlan) -> int:
        """The number by which workers know what a step calls; steps that call the same have the same."""
        number = self._numbers.get(step.key)
        if number is None:
            number = self._numbers[step.key] = self._tasks.setdefault(task_key(step), len(self._tasks))
        return number

    def wakeups(self) -> Iterable[int]:
        """One descriptor for all workers."""
        return (self._selector.fileno(),)

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call."""
        ended_servers = []
        for key, _ in self._selector.select(0):
            if isinstance(key.data, ServerHandle):
                if self._read_server(key.data):
                    ended_servers.append(key.data)
            elif key.data.number in self._workers:
                self._read(key.data)
        for server in ended_servers:
            self._server_ended(server)
        self._rebalance()
        if self._metrics.are_due():
            for worker in self._workers.values():
                if worker.jobs and not worker.node:
                    self._read_metrics(worker.jobs[0])
        if self._leasing is not None:
            self._leasing.retry(start=self._start_leased, tell=self._updates.put, refuse=self._forget)
        return self._updates.take()

    def _read(self, worker: WorkerHandle, *, over: bool = False) -> None:
        """Read results, then output: all that a finished job wrote is in the pipes when its result arrives."""
        messages, open = worker.receive()
        if not open:
            self._unwatch(worker.results.fileno())
        finished = any(isinstance(message, StepResult) for message in messages)
        for output in worker.outputs:
            if not output.read(self._updates.lines, all=over or finished):
                self._unwatch(output.descriptor)
        for message in messages:
            if isinstance(message, StepResult):
                self._finish(worker, message)
            else:
                self._updates.event(message.job, message)

    def _read_metrics(self, name: str, *, over: bool = False) -> None:
        rows = self._metrics.read(name, over=over)
        if rows:
            self._updates.event(name, WorkerEvent(kind=METRICS, job=name, data={"rows": rows}))

    def _finish(self, worker: WorkerHandle, result: StepResult) -> None:
        name = result.job
        if worker.node:
            worker.jobs.popleft()
            return  # its agent reported to that of the first node, whose result is the job's
        job = self._jobs.pop(name, None)
        if job is None:
            return
        worker.jobs.popleft()
        del self._worker_of[name]
        worker.steps.add(self._numbers[job.step.key])
        if not job.marked:
            for output in worker.outputs:
                output.end(self._updates.lines)
        worker.retired = result.retired
        if worker.retired:
            self._resubmit_unread(worker)
        elif not worker.jobs and not worker.once:
            self._idle.append(worker)
        if worker.once and result.ok:
            self._preloads.learn(job, result.imports)
        status = of_result(result, worker.lease)
        if self._dedicated.holds(name):
            self._end_gang(name, status)
        else:
            self._read_metrics(name, over=True)
            self._updates.put(name, status)

    def _end_gang(self, name: str, status: JobStatus) -> None:
        for worker in self._dedicated.set_status(name, status):
            if worker.node:
                worker.server.end(worker.number, grace=GANG_GRACE)

    def _rebalance(self) -> None:
        """Move jobs that a busy worker has not read to idle workers."""
        if not self._idle:
            return
        idle = {worker.server for worker in self._idle}
        workers = [worker for worker in self._workers.values() if len(worker.jobs) > 1 and worker.server in idle]
        if longest := max(workers, key=_queue_length, default=None):
            for name in self._withdraw_unread(longest):
                self._resubmit(name)

    def _withdraw_unread(self, worker: WorkerHandle) -> list[str]:
        """Withdraw and return the jobs that a worker has not read; a worker without jobs becomes idle."""
        names = worker.take_back()
        if names and not worker.jobs and not worker.once and not worker.retired:
            self._idle.append(worker)
        return names

    def _resubmit(self, name: str) -> None:
        self._worker_of.pop(name, None)
        self._dispatch(self._jobs[name])

    def _resubmit_unread(self, worker: WorkerHandle) -> None:
        for name in worker.take_back():
            self._resubmit(name)

    def _read_server(self, server: ServerHandle) -> bool:
        """Read a fork server's messages; whether the server is gone."""
        messages, there = server.receive()
        for message in messages:
            worker = None if message.exited is None else self._workers.get(message.exited.worker)
            if message.exited is not None and worker is not None:
                self._worker_exited(worker, message.exited)
        return not there

    def _worker_exited(self, worker: WorkerHandle, exited: WorkerExit) -> None:
        self._read(worker)
        self._note_survivors(worker, exited.survivors)
        unread = worker.take_back()
        # The running job goes first, so that the last output counts as its own.
        if worker.jobs:
            name = worker.jobs[0]
            self._fail(worker, name, exited)
            self._bring_back(worker, name)
        elif unread:
            # It died before it read a job. The job may be the cause, so the engine counts how often it happens.
            self._report_end(worker, unread.pop(0), JobStatus(state="unknown", lost=True))
        self._drop(worker)
        over = self._dedicated.remove(worker)
        if over is not None:
            self._forget(*over)
        for name in unread:
            self._resubmit(name)

    def _fail(self, worker: WorkerHandle, name: str, exited: WorkerExit) -> None:
        worker.jobs.popleft()
        for output in worker.outputs:
            output.end(self._updates.lines)
        self._report_end(worker, name, of_exit(exited, worker.lease))

    def _report_end(self, worker: WorkerHandle, name: str, status: JobStatus) -> None:
        """Report a job whose worker ended; a gang only with its first node, whose agent learns of the others' ends."""
        if not self._dedicated.holds(name):
            self._forget(name, status)
        elif self._dedicated.is_head(worker, name):
            self._end_gang(name, status)

    def _note_survivors(self, worker: WorkerHandle, pids: tuple[int, ...]) -> None:
        """Keep the pids of processes that a dedicated worker left and nobody can end: they keep its job's devices."""
        name = self._dedicated.job_of(worker)
        if name is not None and pids:
            self._survivors[name] = (*self._survivors.get(name, ()), *pids)

    def _forget(self, name: str, status: JobStatus) -> None:
        self._jobs.pop(name, None)
        self._worker_of.pop(name, None)
        self._read_metrics(name, over=True)
        self._updates.put(name, status)
        survivors = self._survivors.pop(name, ())
        if self._leasing is not None:
            self._leasing.release(name, survivors)

    def _drop(self, worker: WorkerHandle) -> None:
        del self._workers[worker.number]
        if worker in self._idle:
            self._idle.remove(worker)
        for descriptor in (worker.results.fileno(), *(output.descriptor for output in worker.outputs)):
            self._unwatch(descriptor)
        worker.close()

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _server_ended(self, server: ServerHandle) -> None:
        """Report the jobs of an ended server as lost; the next job starts another server, without importing ahead."""
        self._servers.forget(server)
        words = server.stderr_tail()
        survivors = server.close()
        message = "the process that held the workers went away" + (f": {words}" if words else "")
        for worker in [worker for worker in self._workers.values() if worker.server is server]:
            self._read(worker, over=True)
            self._note_survivors(worker, survivors)
            unread = worker.take_back()
            if worker.jobs:
                name = worker.jobs[0]
                for output in worker.outputs:
                    output.end(self._updates.lines)
                self._report_end(worker, name, failed(WORKER_LOST, message, worker.lease))
            for name in [*list(worker.jobs)[1:], *unread]:
                self._report_end(worker, name, JobStatus(state="unknown", lost=True, message=message))
            self._drop(worker)
            over = self._dedicated.remove(worker)
            if over is not None:
                self._forget(*over)

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job's process and all it started; a queued job is only withdrawn."""
        worker = self._worker_of.get(id)
        if worker is None:
            if id in self._jobs:  # it waits for devices
                self._forget(id, failed(CANCELLED))
            return
        if worker.jobs[0] != id:
            for name in self._withdraw_unread(worker):
                if name == id:
                    self._forget(name, failed(CANCELLED))
                else:
                    self._resubmit(name)
            if id not in self._worker_of:
                return
        for node_worker in self._dedicated.ending(id) or (worker,):
            node_worker.server.end(node_worker.number, grace=grace)

    def close(self) -> None:
        """End every worker."""
        self._preloads.save()
        survivors = self._servers.close()
        if self._leasing is not None:
            self._leasing.release_all(survivors)
        for worker in list(self._workers.values()):
            self._drop(worker)
        self._metrics.close()
        self._selector.close()


def _queue_length(worker: WorkerHandle) -> int:
    return len(worker.jobs)


def _visibility(lease: Lease) -> Mapping[str, str]:
    from stoker.vendors.registry import environment_of  # only for steps with devices

    return environment_of(lease.held)


class DedicatedWorkers:
    """The workers of each job that has its own, one a node, and the status of ended jobs; node 0's counts."""

    def __init__(self) -> None:
        self._workers: dict[str, list[WorkerHandle]] = {}
        self._statuses: dict[str, JobStatus] = {}
        self._elastic: dict[str, GangTask] = {}

    def add(self, name: str, workers: Iterable[WorkerHandle], gang: GangTask | None) -> None:
        """Add a job's workers, by node."""
        self._workers[name] = list(workers)
        if gang is not None and gang.least:
            self._elastic[name] = gang

    def join(self, name: str, worker: WorkerHandle) -> None:
        """Add the worker of a node that comes back."""
        self._workers[name].append(worker)

    def elastic_gang(self, name: str) -> GangTask | None:
        """The gang of a job whose nodes may come back; None where they do not, and once the job is to end."""
        return self._elastic.get(name)

    def set_status(self, name: str, status: JobStatus) -> Sequence[WorkerHandle]:
        """Set the status of a job, as its first node reports it; the workers that remain to be ended."""
        self._statuses.setdefault(name, status)
        return self.ending(name)

    def ending(self, name: str) -> Sequence[WorkerHandle]:
        """The workers of a job that is to end: none of them comes back."""
        self._elastic.pop(name, None)
        return self._workers.get(name, ())

    def is_head(self, worker: WorkerHandle, name: str) -> bool:
        """Whether a worker is that of the job's first node."""
        return bool(self._workers.get(name)) and worker.node == 0

    def remove(self, worker: WorkerHandle) -> tuple[str, JobStatus] | None:
        """Remove a worker that ended; the job and its status, if it was the last."""
        for name, workers in self._workers.items():
            if worker in workers:
                workers.remove(worker)
                if workers or name not in self._statuses:
                    return None
                del self._workers[name]
                return name, self._statuses.pop(name)
        return None

    def job_of(self, worker: WorkerHandle) -> str | None:
        """The job that a worker belongs to."""
        return next((name for name, workers in self._workers.items() if worker in workers), None)

    def holds(self, name: str) -> bool:
        """Whether a job has workers of its own."""
        return name in self._workers


Interpreters = Callable[[str], Interpreter]
"""Finds the interpreter of an environment by its name."""


class Servers:
    """Fork servers by whether they are clean, by whether they import packages for steps that were seen to import them,
    and by the name of their environment; "" is the driver's own.

    A step that was not seen yet may set variables before it imports a package, and finds none imported.
    """

    def __init__(self, site: Site, selector: selectors.BaseSelector) -> None:
        self._site = site
        self._selector = selector
        self._servers: dict[tuple[bool, bool, str], ServerHandle] = {}

    def get(
        self, environment: str, interpreters: Interpreters | None, *, clean: bool, preloads: bool = False
    ) -> ServerHandle:
        """The server of an environment, started and registered with the selector if there is none."""
        server = self._servers.get((clean, preloads, environment))
        if server is None:
            site = self._site
            interpreter = None
            if environment:
                if interpreters is None:
                    raise BackendError(f"nobody told this backend where environment {environment} is")
                interpreter = interpreters(environment)
                site = attrs.evolve(site, path=interpreter.path)
            server = self._servers[clean, preloads, environment] = _server(site, clean=clean, interpreter=interpreter)
            self._selector.register(server.fileno(), selectors.EVENT_READ, server)
        return server

    def warm(self, workers: Iterable[WorkerHandle], environment: str) -> list[WorkerHandle]:
        """The workers that the warm server of an environment forked."""
        server = self._servers.get((False, False, environment))
        return [worker for worker in workers if worker.server is server]

    def forget(self, server: ServerHandle) -> None:
        """Forget a server that ended: the next job starts another one."""
        self._servers = {kind: other for kind, other in self._servers.items() if other is not server}
        self._selector.unregister(server.fileno())

    def close(self) -> list[int]:
        """End all servers, with all that they started; returns pids that do not end."""
        survivors: list[int] = []
        for server in self._servers.values():
            self._selector.unregister(server.fileno())
            survivors += server.close()
        self._servers = {}
        return survivors


def _server(site: Site, *, clean: bool, interpreter: Interpreter | None) -> ServerHandle:
    """A clean server imports only packages that do not open devices, a warm one the user's modules."""
    hello = ServerHello(
        path=site.path,
        folder=site.folder,
        blobs=site.artifacts,
        checkpoints=site.checkpoints,
        metrics=site.metrics,
        environment=NO_DEVICES,
        preload=site.preload if clean else (),
        sources=() if clean else site.sources,
    )
    process = spare.take() if interpreter is None else spare.SpawnedServer(interpreter)
    return ServerHandle(process, hello, scratch=site.scratch)


# What processes import


_MOST: Final = 1_000
"""Steps that are kept, those used last."""


class Preloads:
    """The packages by step; `path` is the file between runs, empty for none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: dict[str, tuple[str, ...]] | None = None
        self._changed = False

    def of(self, job: Job) -> tuple[str, ...]:
        """The packages to import before the process of a job is forked; none before it was seen."""
        if not _imports_may_come_first(job):
            return ()
        known, key = self._known(), _key(job)
        names = known.pop(key, ())
        if names:
            known[key] = names  # among those used last
        return names

    def learn(self, job: Job, imports: tuple[str, ...]) -> None:
        """Take note of what the process of a job imported."""
        known, key = self._known(), _key(job)
        if _imports_may_come_first(job) and known.get(key, ()) != imports:
            known.pop(key, None)
            if imports:
                known[key] = imports
            self._changed = True

    def save(self) -> None:
        """Write the file, if there is something new; a file that cannot be written only costs time later."""
        if not self._changed or not self._path or self._names is None:
            return
        import tempfile

        self._changed = False
        newest = dict(list(self._names.items())[-_MOST:])
        with contextlib.suppress(OSError):
            folder = os.path.dirname(self._path)
            with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".imports-", delete=False) as file:
                json.dump(newest, file)
            os.replace(file.name, self._path)

    def _known(self) -> dict[str, tuple[str, ...]]:
        if self._names is None:
            self._names = _read(self._path)
        return self._names


def _imports_may_come_first(job: Job) -> bool:
    """Whether a job is a step's own process, without variables that packages read when they are imported."""
    settings = job.step.settings
    return job.kind == "step" and settings.launch is None and not tuning(settings.environment)


def _key(job: Job) -> str:
    return f"{job.step.code} {job.step.environment}".rstrip()


def _read(path: str) -> dict[str, tuple[str, ...]]:
    """The file's content; what is damaged in it is left out."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {
        key: names
        for key, value in document.items()
        if isinstance(value, list) and (names := tuple(name for name in FORKABLE if name in value))
    }
