"""How fast short elements follow each other, and which backends a run has.

An element of a fan-out that takes a tenth of a millisecond would spend more time waiting for the driver than running,
so short ones stand in line at their worker. How many: so that the line is done in a few milliseconds.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core.events import Paced
from stoker.core.plan import Capacity, StepPlan
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
        self._places: dict[str, str] = {}
        self.all_wake = all(self._wakes.values())

    def capacities(self) -> dict[str, Capacity | None]:
        """What each pool can run at once; `max_parallel` narrows every one."""
        return {name: self._narrowed(backend.capacity()) for name, backend in self._backends.items()}

    def _narrowed(self, room: Capacity | None) -> Capacity | None:
        if self._limit is None:
            return room
        if room is None:
            return Capacity(cpus=float("inf"), memory=1 << 62, slots=self._limit)
        return attrs.evolve(room, slots=min(room.slots, self._limit))

    def distinct(self) -> Iterable[tuple[str, RunningBackend]]:
        """Each backend once, with a name of it."""
        return {id(backend): (name, backend) for name, backend in self._backends.items()}.values()

    def wakes(self, name: str) -> bool:
        """Whether the backend wakes us by itself."""
        return self._wakes[name]

    def placed(self, job: str, backend: str) -> None:
        """Remember where a job is, where that must be asked for."""
        if not self.all_wake:
            self._places[job] = backend

    def backend_of(self, job: str) -> str:
        """Where a job was placed."""
        return self._places[job]

    def may_line_up(self, step: StepPlan) -> bool:
        """Whether a job of this step marks its output's end, since others may stand behind it."""
        return lines_up(step) and self._wakes[step.backend]

    def took(self, element: bool, seconds: float) -> None:
        """Learn from an element's time."""
        if element:
            self._mean = seconds if self._mean is None else self._mean + _SMOOTHING * (seconds - self._mean)

    def changed(self) -> list[Paced]:
        """News for the machine when the lines should be longer or shorter."""
        if self._mean is None or self._limit is not None:
            return []
        ahead = int(min(LONGEST_LINE, LINE_SECONDS / max(self._mean, 1e-5)))
        ahead = ahead if ahead > 1 else 0
        if abs(ahead - self._ahead) <= self._ahead // 4:
            return []
        self._ahead = ahead
        events = []
        for name, backend in self._backends.items():
            room = backend.capacity()
            if room is not None and self._wakes[name]:
                events.append(Paced(pool=name, ahead=ahead * max(1, int(room.cpus))))
        return events
