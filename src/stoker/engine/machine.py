"""The engine's mind: told what happened, it says what to do next. No clock, no I/O, no randomness.

Each event is applied to the state and answered with actions; the same events in the same order always give the same
actions, so that every order of them can be tested. It knows keys, not code: what a step does is the runner's business.
A graph may grow at any time: fan-outs expand, a finished step may bring its successors, a dynamic body adds as it goes.
"""

from __future__ import annotations

import heapq
from typing import Callable, Final, Iterable, Mapping

from stoker.core.events import (
    Action,
    Added,
    Began,
    Cancel,
    Closed,
    Ended,
    Event,
    Expand,
    Expanded,
    Finished,
    Forgiven,
    Hit,
    Hook,
    HookDone,
    Lost,
    Paced,
    Prepare,
    Prepared,
    Retrying,
    Settled,
    Stopped,
    Submit,
    Task,
    Ticked,
    Unready,
)
from stoker.core.plan import Capacity
from stoker.core.status import CANCELLED, STEP_DONE, STEP_GOOD, TIMED_OUT, WORKER_LOST, StepStatus
from stoker.engine.nodes import Node
from stoker.engine.outcomes import outcome, pause, retried_after
from stoker.engine.pool import Pool

LOST_LIMIT: Final = 3
"""How often an attempt may be lost before its start until that counts as its failure: a user's module that kills the
process that imports it would otherwise be tried for ever."""


class Machine:
    """The state of one run. `capacities` by pool name; None is a pool whose platform keeps its own queue."""

    def __init__(self, capacities: Mapping[str, Capacity | None], *, fail_fast: bool = True) -> None:
        self._nodes: dict[str, Node] = {}
        self._followers: dict[str, list[Node]] = {}
        self._pools = {name: Pool(capacity) for name, capacity in capacities.items()}
        self._fail_fast = fail_fast
        self._open = True
        self._unsettled = 0
        self._hooks = 0
        self._stopping = ""
        self._failed: set[str] = set()
        self._finished = False
        self._alarms: list[tuple[float, str, int]] = []
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[..., None]] = {
            Added: self._added,
            Closed: self._closed,
            Forgiven: self._forgiven,
            Paced: self._paced,
            Prepared: self._prepared,
            Hit: self._hit,
            Expanded: self._expanded,
            Began: self._began,
            Ended: self._ended,
            Lost: self._lost,
            Unready: self._unready,
            Stopped: self._stopped,
            Ticked: self._ticked,
            HookDone: self._hook_done,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do after `event`; an event about something that is over is answered with nothing."""
        self._handlers[type(event)](event, now)
        self._admit()
        if not self._open and not self._unsettled and not self._hooks and not self._finished:
            self._finished = True
            failed = bool(self._failed) or self._stopping == "failed"
            self._actions.append(
                Finished(status="cancelled" if self._stopping == "stopped" else "failed" if failed else "succeeded")
            )
        actions, self._actions = self._actions, []
        return actions

    def next_wake(self) -> float | None:
        """When a `Ticked` is due, if nothing else happens before."""
        while self._alarms and not self._alarm_is_live(self._alarms[0]):
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def status(self, key: str) -> str:
        """Where a task stands, in the machine's words."""
        return self._nodes[key].status

    def attempt(self, key: str) -> int:
        """The number of the task's latest attempt, from 1; 0 before the first."""
        return self._nodes[key].attempt

    def waiting(self, pool: str) -> int:
        """How many tasks stand in a pool's line."""
        return len(self._pools[pool].line)

    # Growth

    def _added(self, event: Added, now: float) -> None:
        self._add(event.tasks)

    def _add(self, tasks: Iterable[Task]) -> None:
        nodes = []
        for task in tasks:
            if task.key in self._nodes:
                raise ValueError(f"task '{task.key}' was added twice")
            node = Node(task)
            self._nodes[task.key] = node
            self._unsettled += 1
            nodes.append(node)
        for node in nodes:
            self._link(node)

    def _link(self, node: Node) -> None:
        doomed = bool(self._stopping)
        for requirement in node.task.requires:
            met = self._met(requirement)
            if met is None:
                node.unmet += 1
                self._followers.setdefault(requirement, []).append(node)
            doomed = doomed or met is False
        if node.status != "pending":
            return
        if doomed:
            self._settle(node, "skipped")
        elif not node.unmet:
            self._start(node)

    def _met(self, requirement: str) -> bool | None:
        """Whether a requirement is met (True), can never be (False), or is still open (None)."""
        node = self._nodes[requirement.removesuffix("[]")]
        if requirement.endswith("[]") and node.expanded:
            return True
        if node.status in STEP_DONE:
            return node.status in STEP_GOOD
        return None

    def _closed(self, event: Closed, now: float) -> None:
        self._open = False
        if event.failed:
            self._halt("failed", hard=False)

    def _forgiven(self, event: Forgiven, now: float) -> None:
        self._failed = {key for key in self._failed if key != event.key and self._nodes[key].task.parent != event.key}

    def _paced(self, event: Paced, now: float) -> None:
        self._pools[event.pool].ahead_limit = event.ahead

    # A task on its way

    def _start(self, node: Node) -> None:
        node.status = "preparing"
        key = node.task.key
        self._actions.append(Expand(key=key) if node.task.fanout else Prepare(key=key))

    def _in_state(self, key: str, status: str) -> Node | None:
        node = self._nodes.get(key)
        return node if node is not None and node.status == status else None

    def _prepared(self, event: Prepared, now: float) -> None:
        node = self._in_state(event.key, "preparing")
        if node is not None:
            node.status = "ready"
            node.task = event.escalated or node.task
            self._pools[node.task.pool].join(node.task)

    def _hit(self, event: Hit, now: float) -> None:
        node = self._in_state(event.key, "preparing")
        if node is not None:
            self._settle(node, "succeeded" if event.kept else "cached")

    def _unready(self, event: Unready, now: float) -> None:
        node = self._in_state(event.key, "preparing")
        if node is not None:
            self._settle(node, "failed", event.cause)

    def _expanded(self, event: Expanded, now: float) -> None:
        node = self._in_state(event.key, "preparing")
        if node is None:
            return
        node.status = "running"
        node.expanded = True
        node.children = len(event.tasks)
        self._add(event.tasks)
        self._release(node.task.key + "[]", good=True)
        if not event.tasks and node.status == "running":
            self._settle(node, "succeeded")

    def _admit(self) -> None:
        if self._stopping:
            return
        for pool in self._pools.values():
            if pool.line:
                for task, behind in pool.admit(self._is_ready):
                    node = self._nodes[task.key]
                    node.status = "running"
                    node.attempt += 1
                    self._actions.append(Submit(key=task.key, attempt=node.attempt, behind=behind))

    def _is_ready(self, task: Task) -> bool:
        return self._nodes[task.key].status == "ready"

    def _running(self, key: str, attempt: int) -> Node | None:
        node = self._in_state(key, "running")
        return node if node is not None and node.attempt == attempt and not node.task.fanout else None

    def _began(self, event: Began, now: float) -> None:
        node = self._running(event.key, event.attempt)
        if node is not None and node.task.timeout is not None:
            heapq.heappush(self._alarms, (now + node.task.timeout, event.key, event.attempt))

    def _lost(self, event: Lost, now: float) -> None:
        node = self._running(event.key, event.attempt)
        if node is None:
            return
        node.losses += 1
        if node.losses > LOST_LIMIT or node.cancelled or self._stopping:
            self._ended(Ended(key=event.key, attempt=event.attempt, cause=node.cancelled or WORKER_LOST), now)
            return
        pool = self._pools[node.task.pool]
        pool.release(node.task)
        node.attempt -= 1
        node.status = "ready"
        pool.join(node.task, first=True)

    def _ended(self, event: Ended, now: float) -> None:
        node = self._running(event.key, event.attempt)
        if node is None:
            return
        self._pools[node.task.pool].release(node.task)
        if event.grown:
            self._add(event.grown)
        if not event.cause:
            self._settle(node, "succeeded")
            return
        cause = node.cancelled or event.cause
        if cause == CANCELLED:
            self._settle(node, "cancelled", cause)
            return
        escalated = None if node.cancelled else event.escalated
        if self._retries(node, cause, escalated):
            node.task = escalated or node.task
            self._wait(node, cause, now)
        else:
            self._settle(node, "failed", cause)

    def _retries(self, node: Node, cause: str, escalated: Task | None) -> bool:
        wanted = escalated is not None or retried_after(cause, node.task)
        return wanted and node.failures < node.task.retries and not self._stopping

    def _wait(self, node: Node, cause: str, now: float) -> None:
        node.failures += 1
        node.cancelled = ""
        node.status = "waiting"
        at = now + pause(node.task, node.failures)
        self._actions.append(Retrying(key=node.task.key, attempt=node.attempt, cause=cause, at=at))
        heapq.heappush(self._alarms, (at, node.task.key, node.attempt))

    def _alarm_is_live(self, alarm: tuple[float, str, int]) -> bool:
        _, key, attempt = alarm
        node = self._nodes[key]
        return node.attempt == attempt and (
            node.status == "waiting" or (node.status == "running" and not node.cancelled)
        )

    def _ticked(self, event: Ticked, now: float) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            alarm = heapq.heappop(self._alarms)
            if not self._alarm_is_live(alarm):
                continue
            node = self._nodes[alarm[1]]
            if node.status == "waiting":
                node.status = "ready"
                self._pools[node.task.pool].join(node.task)
            else:
                self._cancel(node, TIMED_OUT)

    # The end of a task

    def _settle(self, node: Node, status: StepStatus, cause: str = "") -> None:
        """Give a task its final status, and all that follows from it; a loop, because chains are long."""
        line: list[tuple[Node, StepStatus, str]] = [(node, status, cause)]
        while line:
            node, status, cause = line.pop()
            if node.status in STEP_DONE:
                continue
            node.status = status
            self._unsettled -= 1
            task = node.task
            self._actions.append(Settled(key=task.key, status=status, cause=cause))
            if (status == "succeeded" and task.on_success) or (status == "failed" and task.on_failure):
                self._hooks += 1
                self._actions.append(Hook(key=task.key, which="on_success" if status == "succeeded" else "on_failure"))
            if task.parent:
                self._child_settled(self._nodes[task.parent], node, cause, line)
            good = status in STEP_GOOD
            line.extend(self._release(task.key, good=good))
            if task.fanout and not node.expanded:
                line.extend(self._release(task.key + "[]", good=good))
            if status == "failed":
                self._failed.add(task.key)
                if self._fail_fast and not self._stopping:
                    self._halt("failing", hard=False)

    def _release(self, requirement: str, *, good: bool) -> list[tuple[Node, StepStatus, str]]:
        """Tell those who wait for a requirement; those who now never can are returned, to be skipped."""
        skipped: list[tuple[Node, StepStatus, str]] = []
        for follower in self._followers.pop(requirement, ()):
            if follower.status != "pending":
                continue
            if not good:
                skipped.append((follower, "skipped", ""))
                continue
            follower.unmet -= 1
            if not follower.unmet and not self._stopping:
                self._start(follower)
        return skipped

    def _child_settled(self, parent: Node, child: Node, cause: str, line: list[tuple[Node, StepStatus, str]]) -> None:
        parent.children -= 1
        parent.causes.setdefault(child.status, cause)
        if not parent.children and parent.status == "running":
            line.append((parent, *outcome(parent.causes)))

    def _hook_done(self, event: HookDone, now: float) -> None:
        self._hooks = max(0, self._hooks - 1)

    # The end of the run

    def _stopped(self, event: Stopped, now: float) -> None:
        self._open = False
        self._halt("stopped", hard=event.hard)

    def _halt(self, why: str, *, hard: bool) -> None:
        """Start nothing more, end what runs. `why`: "stopped" by a person, "failed" body, or a "failing" step."""
        if self._stopping != "stopped":
            self._stopping = why
        if why == "failing":
            self._open = False
        for node in list(self._nodes.values()):
            if node.task.fanout and node.expanded and node.status == "running":
                if not node.children:
                    self._settle(node, "skipped")
            elif node.status == "running":
                self._cancel(node, CANCELLED, hard=hard)
            elif node.status not in STEP_DONE:
                self._settle(node, "skipped")

    def _cancel(self, node: Node, cause: str, *, hard: bool = False) -> None:
        if node.cancelled and not hard:
            return
        node.cancelled = node.cancelled or cause
        self._actions.append(Cancel(key=node.task.key, attempt=node.attempt, hard=hard, cause=node.cancelled))
