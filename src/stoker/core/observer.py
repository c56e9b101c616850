"""Observers follow a run: the terminal, a notebook, a test. The engine calls them in its thread.

A `DeferredObserver` is told once the jobs that can begin are under way, so that showing a step delays none after it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Final, Mapping, Protocol, Sequence

from stoker.core.plan import LogLine, Plan


class Observer(Protocol):
    """What is called as a run goes on. Each call must be quick: the run waits for it."""

    def began(self, run: str, plan: Plan) -> None:
        """The run has an id and a plan; nothing has been submitted."""

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """A step's status changed; also "retrying", "sent" to a platform's queue, "waiting" with `message`, "expanded"
        with `count` (fan-outs), "leased" with the documents of its `devices`, and "caught" with `message` where it
        failed and counts as succeeded.

        Facts, where known: `parent` and `index` of an element, `seconds`, `cpu` (seconds), `peak` (bytes), `cause`,
        `message`, `traceback`, `attempt`, `receipt` (in a line), `warning`, `changes` (texts, with "retrying"), `wait`
        (seconds until the next attempt).
        """

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """A step wrote lines."""

    def logged(self, key: str, attempt: int, rows: Sequence[Sequence[Any]]) -> None:
        """A step logged numbers or facts of itself: rows as in `core.metrics`."""

    def message(self, text: str) -> None:
        """A line about the run as a whole."""

    def tick(self) -> None:
        """About a second went by: a live view may show that time passes."""

    def ended(self, status: str) -> None:
        """The run is over."""


_MOST: Final = 100
"""Calls that are kept: a person sees the first of ten thousand cached steps before the last one is found."""


class DeferredObserver:
    """Keeps the calls of an observer, in their order, until `deliver`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def began(self, run: str, plan: Plan) -> None:
        """The run has an id and a plan."""
        self._keep(self._observer.began, run, plan)

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        """A step's status changed; the facts are not changed afterwards."""
        self._keep(self._observer.changed, key, status, facts)

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        """A step wrote lines."""
        self._keep(self._observer.wrote, key, attempt, lines)

    def logged(self, key: str, attempt: int, rows: Sequence[Sequence[Any]]) -> None:
        """A step logged numbers or facts of itself."""
        self._keep(self._observer.logged, key, attempt, rows)

    def message(self, text: str) -> None:
        """A line about the run as a whole."""
        self._keep(self._observer.message, text)

    def tick(self) -> None:
        """About a second went by."""
        self._keep(self._observer.tick)

    def ended(self, status: str) -> None:
        """The run is over."""
        self._keep(self._observer.ended, status)

    def _keep(self, call: Callable[..., None], *arguments: Any) -> None:
        self._calls.append((call, arguments))
        if len(self._calls) >= _MOST:
            self.deliver()

    def deliver(self) -> None:
        """Make the calls that are kept."""
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)
