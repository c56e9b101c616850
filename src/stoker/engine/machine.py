"""The engine's state machine: events go in, actions come out. No clock, no I/O, no randomness.

The same events in the same order always give the same actions, so that every order of them can be tested. The machine
knows tasks by their keys; what a step does is the runner's business. The graph may grow at any time: a fan-out expands,
a finished step adds its successors, the body of a dynamic pipeline adds steps as it goes.
"""

from __future__ import annotations

import heapq
from typing import Callable, Final, Iterable, Mapping, Sequence

from stoker.core.plan import Capacity
from stoker.core.status import (
    CANCELLED,
    DAMAGED_INPUT,
    KILLED,
    STEP_DONE,
    STEP_GOOD,
    STOPPED,
    TIMED_OUT,
    WORKER_LOST,
    StepStatus,
)
from stoker.engine.events import (
    Action,
    Added,
    Adopted,
    Began,
    CallHook,
    Cancel,
    Closed,
    Curtailed,
    Ended,
    Event,
    Expand,
    Expanded,
    Extended,
    FinishRun,
    Forgiven,
    Halted,
    HookEnded,
    InputLost,
    Lost,
    NotPrepared,
    PaceChanged,
    Prepare,
    Prepared,
    RecordEnd,
    RecordRetry,
    ResultFound,
    Stopped,
    Submit,
    TaskSpec,
    Ticked,
)
from stoker.engine.outcomes import fanout_outcome, retries_after, retry_delay, sweep_outcome
from stoker.engine.pool import Pool

LOST_LIMIT: Final = 3
"""How often an attempt may be lost before its start until that counts as its failure: a user's module that kills the
process that imports it would otherwise be tried for ever."""

MOVE_LIMIT: Final = 3
"""How often a task is tried in another place because its own was faulty, beside its retries: what breaks four devices
in a row is the step."""

RESTORE_LIMIT: Final = 3
"""How often a task may wait for lost inputs to be computed again until that counts as its failure: what a disk damages
faster than it is computed would otherwise be computed for ever."""

WINDOW: Final = 4096
"""Elements of one fan-out that the machine knows at one time, on backends whose capacity is known: many more than one
machine runs at once. Of elements that are settled it keeps how and in which attempt they ended, of later ones nothing:
there may be a million of them."""

_ENDED_FROM_OUTSIDE: Final = frozenset({CANCELLED, KILLED, WORKER_LOST})
"""Causes as which the end of an attempt may be seen that was asked to end."""


class ScheduledTask:
    """A task and its status: pending → preparing → ready → running (→ waiting → ready …) → a final status."""

    __slots__ = (
        "attempt",
        "cancelled",
        "causes",
        "children",
        "doom",
        "elements",
        "ends",
        "expanded",
        "failures",
        "index",
        "known",
        "limit",
        "live",
        "losses",
        "moves",
        "reopened",
        "restorations",
        "status",
        "task",
        "unmet",
    )

    def __init__(self, task: TaskSpec, index: int = 0) -> None:
        self.task = task
        # Of an element, its index in its fan-out.
        self.index = index
        self.status = "pending"
        # Requirements that are still open.
        self.unmet = 0
        # The number of the latest attempt, from 1.
        self.attempt = task.tried
        # Attempts of this session that failed, and those that were lost before they began.
        self.failures = 0
        self.losses = 0
        # Attempts that ended because their place was faulty: they use up no retry.
        self.moves = 0
        # How often its inputs were lost, and whether it ran again after its end because its outputs were.
        self.restorations = 0
        self.reopened = False
        # The cause for which the running attempt is being cancelled.
        self.cancelled = ""
        # Of a fan-out: whether its elements are known, how many are not settled, and of each status the first
        # element's index and cause.
        self.expanded = False
        self.children = 0
        self.causes: dict[str, tuple[int, str]] = {}
        # Of a sweep: the cause for which it fails, whatever its trials do.
        self.doom = ""
        # Its elements, how many of them the machine has taken up, how many of those are not settled, and how many may
        # be; of each one that is, its status and its latest attempt.
        self.elements: Sequence[TaskSpec] = ()
        self.known = 0
        self.live = 0
        self.limit = WINDOW
        self.ends: list[tuple[StepStatus, int] | None] = []


class Machine:
    """The state of one run. `capacities` are by pool; None is a pool whose platform keeps its own queue."""

    def __init__(self, capacities: Mapping[str, Capacity | None], *, fail_fast: bool = True) -> None:
        self._tasks: dict[str, ScheduledTask] = {}
        self._followers: dict[str, list[ScheduledTask]] = {}
        self._pools = {name: Pool(capacity) for name, capacity in capacities.items()}
        self._fail_fast = fail_fast
        self._open = True
        self._unsettled = 0
        self._hooks = 0
        self._stopping = ""
        # Failed tasks, and of elements their fan-outs.
        self._failed: dict[str, str] = {}
        self._finished = False
        self._alarms: list[tuple[float, str, int]] = []
        self._extra_time: dict[tuple[str, int], float] = {}
        # Fan-outs with elements that the machine has not taken up yet.
        self._partly: list[ScheduledTask] = []
        # One of each pair of a status and an attempt: a million elements end in few ways.
        self._ends: dict[tuple[StepStatus, int], tuple[StepStatus, int]] = {}
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[..., None]] = {
            Added: self._grow,
            Closed: self._close,
            Forgiven: self._forgive,
            PaceChanged: self._set_line_length,
            Prepared: self._enqueue,
            ResultFound: self._use_result,
            Expanded: self._expand,
            Curtailed: self._curtail,
            Halted: self._halt_trial,
            Adopted: self._renumber,
            Began: self._arm_timeout,
            Extended: self._extend_timeout,
            Ended: self._end_attempt,
            Lost: self._resubmit,
            NotPrepared: self._fail_unprepared,
            InputLost: self._restore_input,
            Stopped: self._stop,
            Ticked: self._ring_alarms,
            HookEnded: self._end_hook,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """The actions that follow from `event`; none where it is about something that is over."""
        self._handlers[type(event)](event, now)
        if self._partly:
            for fanout in self._partly:
                self._take_up(fanout)
            self._partly = [fanout for fanout in self._partly if fanout.known < len(fanout.elements)]
        self._admit()
        if not self._open and not self._unsettled and not self._hooks and not self._finished:
            self._finished = True
            failed = bool(self._failed) or self._stopping == "failed"
            self._actions.append(
                FinishRun(status="cancelled" if self._stopping == "stopped" else "failed" if failed else "succeeded")
            )
        actions, self._actions = self._actions, []
        return actions

    @property
    def grows(self) -> bool:
        """Whether steps may still be added."""
        return self._open

    def next_wake(self) -> float | None:
        """When a `Ticked` is due, if nothing else happens before."""
        while self._alarms and not self._alarm_is_live(self._alarms[0]):
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def status(self, key: str) -> str:
        """A task's status: one of `ScheduledTask`'s, or a final one."""
        return self._state(key).status

    def may_restore(self, key: str) -> bool:
        """Whether an `InputLost` of a task has lost inputs computed again; else it ends the task."""
        state = self._tasks[key]
        return not self._stopping and not state.cancelled and state.restorations < RESTORE_LIMIT

    def attempt(self, key: str) -> int:
        """The number of the task's latest attempt, from 1; 0 before the first."""
        return self._state(key).attempt

    def waiting(self, pool: str) -> int:
        """How many tasks wait in a pool's line."""
        return len(self._pools[pool].line)

    def _state(self, key: str) -> ScheduledTask:
        """A task; one that is not kept, an element that is settled or not taken up yet, is made again."""
        state = self._tasks.get(key)
        if state is None:
            fanout, index = self._place_of(key)
            state = ScheduledTask(fanout.elements[index], index)
            state.status, state.attempt = fanout.ends[index] or (state.status, state.attempt)
        return state

    def _place_of(self, key: str) -> tuple[ScheduledTask, int]:
        """The fan-out of an element, and the element's index."""
        parent, _, index = key[:-1].rpartition("[")
        return self._tasks[parent], int(index)

    # Growth

    def _grow(self, event: Added, now: float) -> None:
        self._add(event.tasks)

    def _add(self, tasks: Iterable[TaskSpec]) -> None:
        states = []
        for task in tasks:
            if task.key in self._tasks:
                raise ValueError(f"task '{task.key}' was added twice")
            state = self._tasks[task.key] = ScheduledTask(task)
            self._unsettled += 1
            states.append(state)
        for state in states:
            self._link_to(state, state.task.requires)

    def _link_to(self, state: ScheduledTask, requirements: Iterable[str]) -> None:
        """Let a task wait for requirements; it is skipped if one can never be met, and prepared if all are."""
        doomed = bool(self._stopping)
        for requirement in requirements:
            met = self._is_met(requirement)
            if met is None:
                state.unmet += 1
                self._followers.setdefault(requirement, []).append(state)
            doomed = doomed or met is False
        if state.status != "pending":
            return
        if doomed:
            self._settle(state, "skipped")
        elif not state.unmet:
            self._prepare(state)

    def _is_met(self, requirement: str) -> bool | None:
        """Whether a requirement is met (True), can never be (False), or is still open (None)."""
        state = self._tasks.get(requirement.removesuffix("[]"))
        if state is None:
            fanout, index = self._place_of(requirement)
            end = fanout.ends[index]
            return None if end is None else end[0] in STEP_GOOD
        if requirement.endswith("[]") and state.expanded:
            return True
        if state.status in STEP_DONE:
            return state.status in STEP_GOOD
        return None

    def _close(self, event: Closed, now: float) -> None:
        self._open = False
        if event.failed:
            self._halt("failed", hard=False)

    def _forgive(self, event: Forgiven, now: float) -> None:
        self._failed = {key: parent for key, parent in self._failed.items() if event.key not in (key, parent)}

    def _set_line_length(self, event: PaceChanged, now: float) -> None:
        self._pools[event.pool].ahead_limit = event.ahead

    # From preparation to submission

    def _prepare(self, state: ScheduledTask) -> None:
        state.status = "preparing"
        key = state.task.key
        self._actions.append(Expand(key=key) if state.task.fanout else Prepare(key=key))

    def _find(self, key: str, status: str) -> ScheduledTask | None:
        state = self._tasks.get(key)
        return state if state is not None and state.status == status else None

    def _enqueue(self, event: Prepared, now: float) -> None:
        state = self._find(event.key, "preparing")
        if state is not None:
            state.status = "ready"
            state.task = event.escalated or state.task
            self._pools[state.task.pool].join(state.task)

    def _use_result(self, event: ResultFound, now: float) -> None:
        state = self._find(event.key, "preparing")
        if state is not None:
            self._settle(state, event.earlier or "cached")

    def _fail_unprepared(self, event: NotPrepared, now: float) -> None:
        state = self._find(event.key, "preparing")
        if state is not None:
            self._settle(state, "failed", event.cause)

    def _expand(self, event: Expanded, now: float) -> None:
        state = self._find(event.key, "preparing")
        if state is None:
            return
        state.status = "running"
        state.expanded = True
        state.children = len(event.tasks)
        state.elements = event.tasks
        state.ends = [None] * len(event.tasks)
        self._unsettled += len(event.tasks)
        if event.tasks and self._pools[event.tasks[0].pool].capacity is None:
            state.limit = len(event.tasks)  # the line is at the platform
        state.limit = state.limit if event.limit is None else event.limit
        self._partly.append(state)
        self._take_up(state)
        self._release(state.task.key + "[]", good=True)
        if not event.tasks and state.status == "running":
            self._settle(state, "succeeded")

    def _curtail(self, event: Curtailed, now: float) -> None:
        """End a sweep at `count` elements, and those at once if it failed."""
        sweep = self._find(event.key, "running")
        if sweep is None:
            return
        self._drop_elements(sweep, event.count)
        sweep.doom = sweep.doom or event.cause
        if sweep.doom:
            for index in range(sweep.known):
                self._end_early(f"{event.key}[{index}]")
        if not sweep.children:
            self._settle(sweep, *self._outcome(sweep))

    def _drop_elements(self, sweep: ScheduledTask, count: int) -> None:
        """Forget the elements from `count` on: none of them was prepared."""
        for index in range(count, sweep.known):
            del self._tasks[f"{sweep.task.key}[{index}]"]
            sweep.live -= 1
        dropped = len(sweep.elements) - count
        sweep.elements = [sweep.elements[index] for index in range(count)]
        del sweep.ends[count:]
        sweep.known = min(sweep.known, count)
        sweep.children -= dropped
        self._unsettled -= dropped

    def _end_early(self, key: str) -> None:
        """End an element whose fan-out has failed."""
        state = self._tasks.get(key)
        if state is not None and state.status == "running":
            self._cancel(state, CANCELLED)
        elif state is not None and state.status not in STEP_DONE:
            self._settle(state, "skipped")

    def _halt_trial(self, event: Halted, now: float) -> None:
        state = self._find_running(event.key, event.attempt)
        if state is not None:
            self._cancel(state, STOPPED)

    def _take_up(self, fanout: ScheduledTask) -> None:
        """Take up the next elements of a fan-out, in order: each waits at most for such as are taken up, too."""
        while fanout.live < fanout.limit and fanout.known < len(fanout.elements):
            task = fanout.elements[fanout.known]
            if task.key in self._tasks:
                raise ValueError(f"task '{task.key}' was added twice")
            state = self._tasks[task.key] = ScheduledTask(task, fanout.known)
            fanout.known += 1
            fanout.live += 1
            self._link_to(state, task.requires)

    def _admit(self) -> None:
        if self._stopping:
            return
        for pool in self._pools.values():
            if pool.line:
                for task, behind in pool.admit(self._is_ready):
                    state = self._tasks[task.key]
                    state.status = "running"
                    state.attempt += 1
                    self._actions.append(Submit(key=task.key, attempt=state.attempt, behind=behind))

    def _is_ready(self, task: TaskSpec) -> bool:
        state = self._tasks.get(task.key)
        return state is not None and state.status == "ready"

    # Attempts

    def _find_running(self, key: str, attempt: int) -> ScheduledTask | None:
        state = self._find(key, "running")
        return state if state is not None and state.attempt == attempt and not state.task.fanout else None

    def _restore_input(self, event: InputLost, now: float) -> None:
        state = self._find_running(event.key, event.attempt)
        if state is not None:
            self._pools[state.task.pool].release(state.task)
        else:
            state = self._find(event.key, "preparing")
        if state is None:
            return
        if self._stopping or state.cancelled:
            cause = state.cancelled or CANCELLED
            self._settle(state, "cancelled" if cause == CANCELLED else "failed", cause)
            return
        state.restorations += 1
        producers = [self._state(key) for key in event.producers]
        if state.restorations > RESTORE_LIMIT:
            self._settle(state, "failed", DAMAGED_INPUT)
            return
        state.status = "pending"
        for producer in producers:
            if producer.status in STEP_GOOD:
                self._reopen(producer, state)
        state.unmet = 0
        self._link_to(state, event.producers)

    def _reopen(self, producer: ScheduledTask, consumer: ScheduledTask) -> None:
        """Run a task again after its end; tasks that wait for others, beside the `consumer`, wait for it once more."""
        producer.status = "pending"
        producer.reopened = True
        self._unsettled += 1
        self._tasks[producer.task.key] = producer
        if producer.task.parent:
            self._tasks[producer.task.parent].ends[producer.index] = None
        for other in self._tasks.values():
            if other is not consumer and other.status == "pending" and producer.task.key in other.task.requires:
                other.unmet += 1
                self._followers.setdefault(producer.task.key, []).append(other)
        self._prepare(producer)

    def _renumber(self, event: Adopted, now: float) -> None:
        state = self._find_running(event.key, event.attempt)
        if state is not None:
            state.attempt = event.earlier

    def _arm_timeout(self, event: Began, now: float) -> None:
        state = self._find_running(event.key, event.attempt)
        if state is not None and state.task.timeout is not None:
            limit = state.task.timeout + self._extra_time.pop((event.key, event.attempt), 0.0)
            heapq.heappush(self._alarms, (now + limit, event.key, event.attempt))

    def _extend_timeout(self, event: Extended, now: float) -> None:
        if self._find_running(event.key, event.attempt) is not None:
            mine = (event.key, event.attempt)
            alarm = next((alarm for alarm in self._alarms if alarm[1:] == mine), None)
            if alarm is None:  # both are heard of at once, and this one first
                self._extra_time[mine] = event.seconds
            else:
                self._alarms[self._alarms.index(alarm)] = (alarm[0] + event.seconds, *mine)
                heapq.heapify(self._alarms)

    def _resubmit(self, event: Lost, now: float) -> None:
        state = self._find_running(event.key, event.attempt)
        if state is None:
            return
        state.losses += 1
        if state.losses > LOST_LIMIT or state.cancelled or self._stopping:
            self._end_attempt(Ended(key=event.key, attempt=event.attempt, cause=state.cancelled or WORKER_LOST), now)
            return
        pool = self._pools[state.task.pool]
        pool.release(state.task)
        state.attempt -= 1
        state.status = "ready"
        pool.join(state.task, first=True)

    def _end_attempt(self, event: Ended, now: float) -> None:
        state = self._find_running(event.key, event.attempt)
        if state is None:
            return
        self._pools[state.task.pool].release(state.task)
        if event.grown:
            self._add(event.grown)
        if not event.cause:
            self._settle(state, "succeeded")
            return
        # One that failed by itself before it could be asked to end has failed.
        cause = state.cancelled if state.cancelled and event.cause in _ENDED_FROM_OUTSIDE else event.cause
        if cause in (CANCELLED, STOPPED):
            self._settle(state, "cancelled" if cause == CANCELLED else "stopped", cause)
            return
        escalated = None if state.cancelled else event.escalated
        if event.elsewhere and not state.cancelled and not self._stopping and state.moves < MOVE_LIMIT:
            state.moves += 1
            self._wait_until(state, cause, now)
        elif self._may_retry(state, cause, escalated):
            state.task = escalated or state.task
            self._retry_later(state, cause, now)
        else:
            self._settle(state, "failed", cause)

    def _may_retry(self, state: ScheduledTask, cause: str, escalated: TaskSpec | None) -> bool:
        worthwhile = escalated is not None or retries_after(cause, state.task)
        return worthwhile and state.failures < state.task.retries and not self._stopping

    def _retry_later(self, state: ScheduledTask, cause: str, now: float) -> None:
        state.failures += 1
        self._wait_until(state, cause, now + retry_delay(state.task, state.failures))

    def _wait_until(self, state: ScheduledTask, cause: str, at: float) -> None:
        """Try a task again at a time."""
        state.cancelled = ""
        state.status = "waiting"
        self._actions.append(RecordRetry(key=state.task.key, attempt=state.attempt, cause=cause, at=at))
        heapq.heappush(self._alarms, (at, state.task.key, state.attempt))

    def _alarm_is_live(self, alarm: tuple[float, str, int]) -> bool:
        _, key, attempt = alarm
        state = self._tasks.get(key)
        if state is None:
            return False
        return state.attempt == attempt and (
            state.status == "waiting" or (state.status == "running" and not state.cancelled)
        )

    def _ring_alarms(self, event: Ticked, now: float) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            alarm = heapq.heappop(self._alarms)
            if not self._alarm_is_live(alarm):
                continue
            state = self._tasks[alarm[1]]
            if state.status == "waiting":
                state.status = "ready"
                self._pools[state.task.pool].join(state.task)
            else:
                self._cancel(state, TIMED_OUT)

    # Final statuses

    def _settle(self, state: ScheduledTask, status: StepStatus, cause: str = "") -> None:
        """Give a task its final status, and then every task whose status follows from it; a loop: chains are long."""
        unsettled: list[tuple[ScheduledTask, StepStatus, str]] = [(state, status, cause)]
        while unsettled:
            state, status, cause = unsettled.pop()
            if state.status in STEP_DONE:
                continue
            state.status = status
            self._unsettled -= 1
            task = state.task
            if task.parent:
                del self._tasks[task.key]
                end = (status, state.attempt)
                self._tasks[task.parent].ends[state.index] = self._ends.setdefault(end, end)
            self._actions.append(RecordEnd(key=task.key, status=status, cause=cause))
            if state.reopened and status != "failed":
                unsettled.extend(self._release(task.key, good=status in STEP_GOOD))
                continue
            if (status == "succeeded" and task.on_success) or (status == "failed" and task.on_failure):
                self._hooks += 1
                self._actions.append(
                    CallHook(key=task.key, which="on_success" if status == "succeeded" else "on_failure")
                )
            if task.parent and not state.reopened:
                self._count_child(self._tasks[task.parent], state, cause, unsettled)
            good = status in STEP_GOOD
            unsettled.extend(self._release(task.key, good=good))
            if task.fanout and not state.expanded:
                unsettled.extend(self._release(task.key + "[]", good=good))
            if status == "failed" and not (task.trial and task.parent):
                self._failed[task.key] = task.parent
                if self._fail_fast and not self._stopping:
                    self._halt("failing", hard=False)

    def _release(self, requirement: str, *, good: bool) -> list[tuple[ScheduledTask, StepStatus, str]]:
        """Start the tasks of which this was the last requirement; those that can never start are returned, to skip."""
        skipped: list[tuple[ScheduledTask, StepStatus, str]] = []
        for follower in self._followers.pop(requirement, ()):
            if follower.status != "pending":
                continue
            if not good:
                skipped.append((follower, "skipped", ""))
                continue
            follower.unmet -= 1
            if not follower.unmet and not self._stopping:
                self._prepare(follower)
        return skipped

    def _count_child(
        self,
        parent: ScheduledTask,
        child: ScheduledTask,
        cause: str,
        unsettled: list[tuple[ScheduledTask, StepStatus, str]],
    ) -> None:
        parent.children -= 1
        parent.live -= 1
        first = (child.index, cause)
        parent.causes[child.status] = min(first, parent.causes.get(child.status, first))
        if not parent.children and parent.status == "running":
            unsettled.append((parent, *self._outcome(parent)))

    def _outcome(self, fanout: ScheduledTask) -> tuple[StepStatus, str]:
        """The status of a fan-out whose elements are settled, and its cause."""
        causes = {status: cause for status, (_, cause) in fanout.causes.items()}
        if fanout.doom and not self._stopping:
            return "failed", fanout.doom
        return sweep_outcome(causes) if fanout.task.trial else fanout_outcome(causes)

    def _end_hook(self, event: HookEnded, now: float) -> None:
        self._hooks = max(0, self._hooks - 1)

    # The end of the run

    def _stop(self, event: Stopped, now: float) -> None:
        self._open = False
        self._halt("stopped", hard=event.hard)

    def _halt(self, why: str, *, hard: bool) -> None:
        """Start nothing more and end what runs, because a person "stopped" the run, its body "failed", or a step is
        "failing"."""
        if self._stopping != "stopped":
            self._stopping = why
        if why == "failing":
            self._open = False
        for state in list(self._tasks.values()):
            if state.task.fanout and state.expanded and state.status == "running":
                if state.task.trial:
                    self._drop_elements(state, state.known)
                if not state.children:
                    self._settle(state, "skipped")
            elif state.status == "running":
                self._cancel(state, CANCELLED, hard=hard)
            elif state.status not in STEP_DONE:
                self._settle(state, "skipped")

    def _cancel(self, state: ScheduledTask, cause: str, *, hard: bool = False) -> None:
        if state.cancelled and not hard:
            return
        state.cancelled = state.cancelled or cause
        self._actions.append(Cancel(key=state.task.key, attempt=state.attempt, hard=hard, cause=state.cancelled))
