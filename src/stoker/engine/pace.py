"""Lets short elements of a fan-out wait at their worker, so that they do not wait for the driver.

An element that takes a tenth of a millisecond would otherwise wait longer for the driver than it runs. A line holds
what a worker does in a few milliseconds.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core.plan import Capacity, StepPlan
from stoker.engine.events import PaceChanged
from stoker.engine.tasks import lines_up

LINE_SECONDS: Final = 0.01
"""What stands in one worker's line should take no longer than this, so that an idle worker never waits long."""
LONGEST_LINE: Final = 64
_SMOOTHING: Final = 0.2


class Pace:
    """The backends of a run, and the mean time of its elements."""

    def __init__(self, backends: Mapping[str, RunningBackend], max_parallel: int | None) -> None:
        self._backends = backends
        self._wakes = {name: bool(list(backend.wakeups())) for name, backend in backends.items()}
        self._limit = max_parallel
        self._mean: float | None = None
        self._ahead = 0
        self._backend_names: dict[str, str] = {}
        self.all_wake = all(self._wakes.values())

    def capacities(self) -> dict[str, Capacity | None]:
        """What each backend runs at once, limited by `max_parallel`."""
        return {name: self._narrow(backend.capacity()) for name, backend in self._backends.items()}

    def _narrow(self, capacity: Capacity | None) -> Capacity | None:
        if self._limit is None:
            return capacity
        if capacity is None:
            return Capacity(cpus=float("inf"), memory=1 << 62, slots=self._limit)
        return attrs.evolve(capacity, slots=min(capacity.slots, self._limit))

    def distinct(self) -> Iterable[tuple[str, RunningBackend]]:
        """Each backend once, with a name of it."""
        return {id(backend): (name, backend) for name, backend in self._backends.items()}.values()

    def wakes(self, name: str) -> bool:
        """Whether the backend wakes us by itself."""
        return self._wakes[name]

    def remember_backend(self, job: str, backend: str) -> None:
        """Remember a job's backend, if some backend must be polled."""
        if not self.all_wake:
            self._backend_names[job] = backend

    def backend_of(self, job: str) -> str:
        """The name of a job's backend."""
        return self._backend_names[job]

    def may_line_up(self, step: StepPlan) -> bool:
        """Whether a job of this step marks its output's end, since others may stand behind it."""
        return lines_up(step) and self._wakes[step.backend]

    def add_duration(self, element: bool, seconds: float) -> None:
        """Take an element's seconds into the mean; other steps do not count."""
        if element:
            self._mean = seconds if self._mean is None else self._mean + _SMOOTHING * (seconds - self._mean)

    def updates(self) -> list[PaceChanged]:
        """Events for the machine when the lines should be longer or shorter."""
        if self._mean is None or self._limit is not None:
            return []
        ahead = int(min(LONGEST_LINE, LINE_SECONDS / max(self._mean, 1e-5)))
        ahead = ahead if ahead > 1 else 0
        if abs(ahead - self._ahead) <= self._ahead // 4:
            return []
        self._ahead = ahead
        events = []
        for name, backend in self._backends.items():
            capacity = backend.capacity()
            if capacity is not None and self._wakes[name]:
                events.append(PaceChanged(pool=name, ahead=ahead * max(1, int(capacity.cpus))))
        return events
