"""A cluster that computes nothing, with the interface of the real ones: nodes, devices, a queue, losses and failures.

Time passes only while everybody waits, from one event to the next. The cluster outlives a driver, as a real one does:
each driver has a `SimulatedBackend` of its own, and a later one adopts what an earlier one left.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import selectors
from collections import deque
from typing import Any, Callable, Iterable, Mapping

import attrs

from stoker.backends.base.adoption import EarlierJobs, about
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Job, JobStatus, StepPlan
from stoker.core.protocol import ADOPTED, StepError, StepResult, WorkerEvent
from stoker.core.settings import demand
from stoker.core.status import CANCELLED, NODE_LOST, PREEMPTED, USER_ERROR
from stoker.core.wire import Wakeup
from stoker.simulation.cluster import ClusterFile, Nodes, Spread, StepFacts

Results = Callable[[Job], Mapping[str, Any]]
"""What an attempt returns: wires by output."""


class Stuck(Exception):
    """Everybody waits, and nothing is left that could happen."""


class Events:
    """What is going to happen, and the time: a clock of the engine (`engine.clock.Clock`)."""

    def __init__(self, start: float) -> None:
        self.now = start
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.has_news: Callable[[], bool] = lambda: False

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.now

    monotonic = time

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._heap, (max(moment, self.now), next(self._order), event))

    def wait(self, selector: selectors.BaseSelector, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Go on to the first moment with news, at most by so many seconds; all that happens in it has happened then."""
        until = self.now + max(0.0, seconds)
        while not self.has_news() and self._heap and self._heap[0][0] <= until:
            self.now = self._heap[0][0]
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
        if not self.has_news():
            if math.isinf(until):
                raise Stuck("nothing is left that could happen")
            self.now = until
        return selector.select(0)


@attrs.define(eq=False)
class _SimulatedNode:
    group: Nodes
    cpus: float
    memory: int
    devices: int
    is_open: bool = True
    jobs: set[SimulatedJob] = attrs.field(factory=set)


@attrs.frozen(kw_only=True)
class SimulatedAttempt:
    """An attempt that is over."""

    key: str
    number: int
    submitted: float
    started: float | None
    """When the step began; None where it never did."""
    ended: float
    cause: str
    group: str
    """The nodes' name; empty where it had none."""
    held: float
    """Seconds for which it held its nodes."""
    nodes: int
    cpus: float
    """Cores of each."""
    devices: int
    """Accelerators of each."""
    share: float
    """The part of each node that it held: the largest of its parts of cores, memory and accelerators."""


@attrs.define(eq=False)
class SimulatedJob:
    """A job that waits, runs or is over."""

    job: Job
    number: int
    """Its place in the queue."""
    submitted: float
    fits: Mapping[str, int]
    """Group of nodes where it can run → accelerators of each node."""
    cpus: float
    memory: int
    gang: int
    shape: tuple[Any, ...]
    """What it asks for: of two that are alike neither gets a place where the other does not."""
    expected: float
    """Seconds for which it is expected to hold its nodes."""
    nodes: list[_SimulatedNode] = attrs.field(factory=list)
    placed: float | None = None
    began: float | None = None
    end: float = math.inf
    status: JobStatus | None = None
    """How it ended."""
    asked_to_end: bool = False


class SimulatedCluster:
    """The state of a cluster. `durations` are by a step's name; what is drawn depends on seed, key and attempt."""

    def __init__(
        self,
        cluster: ClusterFile,
        durations: Mapping[str, Spread],
        events: Events,
        *,
        seed: int,
        results: Results,
    ) -> None:
        self.cluster = cluster
        self.events = events
        self.attempts: list[SimulatedAttempt] = []
        self.jobs: list[SimulatedJob] = []
        self._durations = durations
        self._seed = seed
        self._results = results
        self._order = itertools.count()
        self._lines: dict[tuple[Any, ...], deque[SimulatedJob]] = {}
        self._running: set[SimulatedJob] = set()
        self._done: dict[tuple[str, str], float] = {}
        """Seconds of work up to a step's last checkpoint."""
        self._requests: dict[int, tuple[StepPlan, dict[str, Any]]] = {}
        self._will_schedule = False
        self.tell: Callable[[SimulatedJob, JobStatus], None] = lambda one, status: None
        self._groups = {
            group.name: [_SimulatedNode(group, group.cpus, group.memory, group.devices) for _ in range(group.count)]
            for group in cluster.nodes
        }
        self.nodes = [node for nodes in self._groups.values() for node in nodes]
        for number, node in enumerate(self.nodes):
            self._expect_losses(node, random.Random(f"{seed}/node {number}"))

    # What steps ask for

    def request(self, step: StepPlan) -> dict[str, Any]:
        """What a step asks for, and where it can run."""
        known = self._requests.get(id(step))
        if known is None or known[0] is not step:
            settings = step.settings
            need, gang = demand(settings), settings.resources.node_count
            fits = {}
            # Who asks for no accelerator leaves those to others where it can.
            for group in sorted(self.cluster.nodes, key=lambda group: group.devices > 0):
                devices = group.devices_for(settings.resources)
                if devices is None and settings.accelerator_policy == "prefer":
                    devices = 0
                alone = need.cpus <= group.cpus and need.memory <= group.memory and gang <= group.count
                if devices is not None and alone:
                    fits[group.name] = devices
            fields: dict[str, Any] = {"fits": fits, "cpus": need.cpus, "memory": need.memory, "gang": gang}
            fields["expected"] = self._duration(step.name).median + self.cluster.queue.start.median
            fields["shape"] = (need.cpus, need.memory, gang, tuple(fits.items()), fields["expected"])
            known = self._requests[id(step)] = (step, fields)
        return known[1]

    def room(self) -> Capacity:
        """All nodes together."""
        groups = self.cluster.nodes
        return Capacity(
            cpus=sum(one.cpus * one.count for one in groups),
            memory=sum(one.memory * one.count for one in groups),
            slots=1 << 30,
            devices=sum(one.devices * one.count for one in groups),
        )

    # Jobs

    def submit(self, job: Job) -> SimulatedJob:
        """Put a job in the queue."""
        one = SimulatedJob(job=job, number=next(self._order), submitted=self.events.now, **self.request(job.step))
        self.jobs.append(one)
        if job.kind == "hook":
            self.events.at(self.events.now, lambda: self._end(one, JobStatus(state="succeeded")))
        else:
            self._lines.setdefault(one.shape, deque()).append(one)
            self._schedule_soon()
        return one

    def cancel(self, one: SimulatedJob) -> None:
        """End a job; one that is over stays as it is."""
        if one.status is None and not one.asked_to_end:
            one.asked_to_end = True
            self.events.at(self.events.now, lambda: self._fail(one, CANCELLED, "it was asked to end"))

    def _duration(self, name: str) -> Spread:
        return self._durations.get(name, Spread(median=0.0))

    def _schedule_soon(self) -> None:
        """Look for places once all that happens in this moment has happened."""
        if not self._will_schedule:
            self._will_schedule = True
            self.events.at(self.events.now, self._schedule)

    def _schedule(self) -> None:
        self._will_schedule = False
        policy = self.cluster.queue.policy
        blocked: set[tuple[Any, ...]] = set()
        reserved = math.inf
        """When the first job that waits will have a place."""
        while lines := [shape for shape, line in self._lines.items() if line and shape not in blocked]:
            shape = min(lines, key=lambda shape: self._lines[shape][0].number)
            one = self._lines[shape][0]
            places = None
            if one.status is None and self.events.now + one.expected <= reserved:
                places = self._places(one)
            if one.status is not None or places is not None:
                self._lines[shape].popleft()
                if places is not None:
                    self._place(one, places)
                continue
            if policy == "fifo":
                return
            if policy == "backfill" and math.isinf(reserved):
                reserved = self._first_place(one)
            blocked.add(shape)

    def _places(self, one: SimulatedJob) -> list[_SimulatedNode] | None:
        for group, devices in one.fits.items():
            found = []
            for node in self._groups[group]:
                if (
                    node.is_open
                    and node.cpus + 1e-9 >= one.cpus
                    and node.memory >= one.memory
                    and node.devices >= devices
                ):
                    found.append(node)
                    if len(found) == one.gang:
                        return found
        return None

    def _first_place(self, one: SimulatedJob) -> float:
        """When a job will have a place, if the others end when they are expected to and no node is lost."""
        free = {id(node): [node.cpus, node.memory, node.devices] for node in self.nodes if node.is_open}
        for other in sorted(self._running, key=lambda other: (other.placed or 0.0) + other.expected):
            for node in other.nodes:
                if id(node) in free:
                    room = free[id(node)]
                    room[0] += other.cpus
                    room[1] += other.memory
                    room[2] += other.fits[node.group.name]
            for group, devices in one.fits.items():
                enough = [
                    node
                    for node in self._groups[group]
                    if id(node) in free
                    and free[id(node)][0] + 1e-9 >= one.cpus
                    and free[id(node)][1] >= one.memory
                    and free[id(node)][2] >= devices
                ]
                if len(enough) >= one.gang:
                    return max(self.events.now, (other.placed or 0.0) + other.expected)
        return math.inf

    def _place(self, one: SimulatedJob, nodes: list[_SimulatedNode]) -> None:
        now = self.events.now
        one.nodes, one.placed = nodes, now
        self._running.add(one)
        for node in nodes:
            node.cpus -= one.cpus
            node.memory -= one.memory
            node.devices -= one.fits[node.group.name]
            node.jobs.add(one)
        draw = random.Random(f"{self._seed}/{one.job.key}/{one.job.attempt}")
        begin = now + self.cluster.queue.start.draw(draw)
        work = self._duration(one.job.step.name).draw(draw) - self._done.get((one.job.run, one.job.key), 0.0)
        facts = self.cluster.steps.get(one.job.step.name, StepFacts())
        one.end = begin + work
        self.events.at(begin, lambda: self._begin(one))
        if draw.random() < facts.failure_rate:
            message = f"the simulation drew this failure ({facts.failure_rate:g} of the attempts)"
            self.events.at(begin + work * draw.random(), lambda: self._fail(one, facts.failure_cause, message))
        else:
            self.events.at(one.end, lambda: self._succeed(one))

    def _begin(self, one: SimulatedJob) -> None:
        if one.status is None:
            one.began = self.events.now
            self.tell(one, JobStatus(state="running", started=one.began))

    def _succeed(self, one: SimulatedJob) -> None:
        if one.status is None:
            result = StepResult(ok=True, outputs=self._results(one.job), start=one.began or 0.0, end=self.events.now)
            self._end(one, JobStatus(state="succeeded", result=result))

    def _fail(self, one: SimulatedJob, cause: str, message: str) -> None:
        if one.status is None:
            error = StepError(message=message) if cause == USER_ERROR else None
            result = None if error is None else StepResult(ok=False, cause=cause, error=error)
            self._end(one, JobStatus(state="failed", cause=cause, message=message, result=result))

    def _end(self, one: SimulatedJob, status: JobStatus) -> None:
        now = self.events.now
        one.status = attrs.evolve(status, started=one.began, ended=now)
        self._running.discard(one)
        group = one.nodes[0].group if one.nodes else None
        devices = 0 if group is None else one.fits[group.name]
        for node in one.nodes:
            node.cpus += one.cpus
            node.memory += one.memory
            node.devices += devices
            node.jobs.discard(one)
        self._keep_checkpoint(one)
        if one.job.kind == "step":
            share = 0.0
            if group is not None:
                parts = [one.cpus / group.cpus, one.memory / group.memory]
                share = max(*parts, devices / group.devices if group.devices else 0.0)
            self.attempts.append(
                SimulatedAttempt(
                    key=one.job.key,
                    number=one.job.attempt,
                    submitted=one.submitted,
                    started=one.began,
                    ended=now,
                    cause=status.cause,
                    group="" if group is None else group.name,
                    held=0.0 if one.placed is None else now - one.placed,
                    nodes=len(one.nodes),
                    cpus=one.cpus,
                    devices=devices,
                    share=share,
                )
            )
        self.tell(one, one.status)
        self._schedule_soon()

    def _keep_checkpoint(self, one: SimulatedJob) -> None:
        every = self.cluster.steps.get(one.job.step.name, StepFacts()).checkpoint
        if every is not None and one.began is not None:
            mine = (one.job.run, one.job.key)
            done = self._done.get(mine, 0.0) + self.events.now - one.began
            self._done[mine] = max(self._done.get(mine, 0.0), done // every * every)

    # Nodes

    def _expect_losses(self, node: _SimulatedNode, draw: random.Random) -> None:
        group = node.group
        for mean, cause, notice in (
            (group.mean_time_between_losses, PREEMPTED, group.notice),
            (group.mean_time_between_failures, NODE_LOST, 0.0),
        ):
            if mean is not None:
                self._expect_loss(node, draw, mean, cause, notice)

    def _expect_loss(self, node: _SimulatedNode, draw: random.Random, mean: float, cause: str, notice: float) -> None:
        def announce() -> None:
            node.is_open = False
            self.events.at(self.events.now + notice, lose)

        def lose() -> None:
            for one in list(node.jobs):
                self._fail(one, cause, f"a node of {node.group.name} was lost")
            self.events.at(self.events.now + node.group.returns, come_back)

        def come_back() -> None:
            node.is_open = True
            self._schedule_soon()
            self._expect_loss(node, draw, mean, cause, notice)

        self.events.at(self.events.now + draw.expovariate(1 / mean), announce)


class SimulatedBackend:
    """A driver's view of a simulated cluster (`RunningBackend`)."""

    name = "simulated"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._news: dict[str, JobStatus] = {}
        self._wakeup = Wakeup()
        self._names: dict[SimulatedJob, str] = {}
        """This driver's jobs, those that it adopted among them, and the names by which it knows them."""
        self._jobs: dict[str, SimulatedJob] = {}
        self._earlier: EarlierJobs[SimulatedJob] = EarlierJobs()
        for one in cluster.jobs:
            self._earlier.note(one.job.run, about(one.job), one)
        cluster.tell = self._tell
        cluster.events.has_news = lambda: bool(self._news)

    def capacity(self) -> Capacity | None:
        """All nodes together where the cluster has no queue."""
        return self._cluster.room() if self._cluster.cluster.queue.policy == "none" else None

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """Nothing: a simulation says what it cannot place before it begins."""
        return ()

    def render(self, job: Job) -> Mapping[str, Any]:
        """What the queue gets."""
        request = self._cluster.request(job.step)
        return {"name": job.name, **{name: request[name] for name in ("cpus", "memory", "gang", "fits")}}

    def submit(self, job: Job) -> str:
        """Submit a job, or adopt the one of an earlier driver at the same step that runs or went well."""
        if job.name in self._jobs:
            return job.name
        adopted, others = self._earlier.adopt(job, _is_worth)
        for other in others:
            self._cluster.cancel(other)
        one = self._cluster.submit(job) if adopted is None else adopted.handle
        self._jobs[job.name], self._names[one] = one, job.name
        if adopted is not None:
            event = WorkerEvent(kind="note", note=ADOPTED, data={"attempt": adopted.attempt})
            waits = JobStatus(state="queued" if one.began is None else "running", started=one.began)
            self._news[job.name] = attrs.evolve(one.status or waits, events=(event,))
        return job.name

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new."""
        news, self._news = self._news, {}
        for name, status in news.items():
            if status.state in ("succeeded", "failed"):
                self._jobs.pop(name, None)  # a later attempt may have the name
        return news

    def wakeups(self) -> Iterable[int]:
        """Nothing of it ever turns readable: the clock knows when there is news."""
        return (self._wakeup.descriptor,)

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job; steps of a simulation end at once."""
        if id in self._jobs:
            self._cluster.cancel(self._jobs[id])

    def close(self) -> None:
        """Let go of the descriptor; the cluster goes on."""
        self._wakeup.close()

    def _tell(self, one: SimulatedJob, status: JobStatus) -> None:
        name = self._names.get(one)
        if name is not None:
            earlier = self._news.get(name)
            self._news[name] = status if earlier is None else attrs.evolve(status, events=earlier.events)


def _is_worth(one: SimulatedJob) -> bool:
    """Whether a job runs or went well, so that a later driver adopts it."""
    return not one.asked_to_end and (one.status is None or one.status.state == "succeeded")
