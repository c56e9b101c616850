"""Observers follow a run: the terminal, a notebook, a test. The engine calls them in its thread."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

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
