"""Admission: which ready tasks may start now, by what they ask for and what a backend has.

First come, first served. A task that does not fit lets smaller ones pass it, but only so often: a big request is never
starved. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Callable, Final, Iterable, Iterator

from stoker.core.plan import Capacity
from stoker.engine.events import TaskSpec

LOOKAHEAD: Final = 16
"""How many tasks behind one that does not fit are looked at; a fan-out's elements are alike, so few are enough."""
PATIENCE: Final = 64
"""How many tasks may pass one that does not fit before the pool is kept free for it."""


class Pool:
    """One backend's capacity, what running tasks take of it, and the line of tasks that wait for it."""

    def __init__(self, capacity: Capacity | None) -> None:
        self.capacity = capacity
        self.cpus = 0.0
        self.memory = 0
        self.devices = 0
        self.running = 0
        self.line: deque[TaskSpec] = deque()
        self.ahead_limit = 0
        self._ahead: dict[str, TaskSpec] = {}
        """Tasks that wait at busy workers by their keys, in the order in which they were admitted."""
        self._passed = 0

    def join(self, task: TaskSpec, *, first: bool = False) -> None:
        """Put a task at the end of the line, or with `first` at its head."""
        if first:
            self.line.appendleft(task)
        else:
            self.line.append(task)

    def admit(self, is_ready: Callable[[TaskSpec], bool]) -> Iterator[tuple[TaskSpec, bool]]:
        """Tasks that start now, each with whether it waits at a busy worker; `is_ready` tells which still may."""
        while self.line:
            head = self.line[0]
            if not is_ready(head):
                self.line.popleft()
                continue
            if not self._fits(head):
                break
            self.line.popleft()
            self._passed = 0
            self._take(head)
            yield head, False
        if self.line and self._passed < PATIENCE:
            yield from self._pass_by(is_ready)
        while self.line and self.line[0].ahead and len(self._ahead) < self.ahead_limit:
            task = self.line.popleft()
            if is_ready(task):
                self._ahead[task.key] = task
                yield task, True

    def _pass_by(self, is_ready: Callable[[TaskSpec], bool]) -> Iterator[tuple[TaskSpec, bool]]:
        head = self.line[0]
        if not _has_smaller(islice(self.line, 1, LOOKAHEAD), head):
            return  # elements of one fan-out, of which each that ends would take the line to pieces
        stay: list[TaskSpec] = [self.line.popleft()]
        while self.line and len(stay) < LOOKAHEAD and self._passed < PATIENCE:
            task = self.line.popleft()
            if not _has_smaller((task,), head) or not is_ready(task) or not self._fits(task):
                stay.append(task)
                continue
            self._passed += 1
            self._take(task)
            yield task, False
        self.line.extendleft(reversed(stay))

    def _fits(self, task: TaskSpec) -> bool:
        capacity = self.capacity
        if capacity is None:
            return True
        if not self.running:
            # A task alone on the machine always fits: preflight refuses requests that are too large for it.
            return True
        cpus = self.cpus + task.cpus * task.gang
        devices = task.devices * task.gang
        if capacity.devices is not None and devices <= capacity.devices < self.devices + devices:
            return False
        return (
            self.running < capacity.slots
            and cpus <= capacity.cpus + 1e-9
            and self.memory + task.memory * task.gang <= capacity.memory
        )

    def _take(self, task: TaskSpec) -> None:
        self.running += 1
        self.cpus += task.cpus * task.gang
        self.memory += task.memory * task.gang
        self.devices += task.devices * task.gang

    def release(self, task: TaskSpec) -> None:
        """Give back what a task took; the next one in a worker's line takes it over."""
        if self._ahead.pop(task.key, None) is not None:
            return
        self.running -= 1
        self.cpus -= task.cpus * task.gang
        self.memory -= task.memory * task.gang
        self.devices -= task.devices * task.gang
        if self._ahead:
            self._take(self._ahead.pop(next(iter(self._ahead))))
        if not self.running:
            self.cpus, self.memory, self.devices = 0.0, 0, 0


def _has_smaller(tasks: Iterable[TaskSpec], head: TaskSpec) -> bool:
    """Whether a task asks for less of anything than the head of the line: only such a one fits where that one does not.

    It looks at many tasks whenever an element ends, so it calls nothing for each.
    """
    for task in tasks:
        if task.cpus < head.cpus or task.memory < head.memory or task.gang < head.gang or task.devices < head.devices:
            return True
    return False
