"""The deadline and the budget of a run: whether what runs would pass one before it could be ended in good order.

Used in the runner's thread, of runs that have such a limit alone. Attempts count from when they run to their end:
waiting in a queue costs nothing. What a driver that died could not record is not known here.
"""

from __future__ import annotations

from typing import Final, Iterable

from stoker.core.costs import HOUR, Budget
from stoker.core.errors import UsageError
from stoker.core.plan import JobStatus, StepPlan
from stoker.core.words import time_text
from stoker.engine.events import GRACE

ENDING: Final = GRACE + 5.0
"""Seconds that are kept for the end of a run: the grace of its steps, and what the driver needs to hear of it."""


class RunLimits:
    """What is left of a run's time and money."""

    def __init__(self, *, deadline: float | None, budget: Budget | None) -> None:
        # Seconds since the epoch.
        self._deadline = deadline
        self._budget = budget
        self._spent = 0.0
        self._rates: dict[str, float] = {}
        # By the key of a step or an element: the step, and when its attempt began to run.
        self._running: dict[str, tuple[str, float]] = {}
        # Of earlier sessions: seconds of attempts by step.
        self._earlier: dict[str, float] = {}

    def load(self, spans: Iterable[tuple[str, float]]) -> None:
        """Take over the (step, seconds) of attempts of earlier sessions."""
        for key, seconds in spans:
            self._earlier[key] = self._earlier.get(key, 0.0) + seconds

    def add(self, step: StepPlan) -> None:
        """Take a step of the run; `UsageError` where nothing says what it counts against the budget."""
        if self._budget is None:
            return
        rate = self._budget.hourly(step.settings, step.price)
        if rate is None:
            what = f"step '{step.key}': nothing says what it costs, and the run has budget={str(self._budget)!r}"
            raise UsageError(what, where=step.where, fix="write prices in stoker.toml, or a budget in device hours")
        self._rates[step.key] = rate
        self._spent += rate * self._earlier.pop(step.key, 0.0) / HOUR

    def begin(self, key: str, step: str, moment: float) -> None:
        """Note that an attempt at a step, or at an element of it, runs."""
        self._running.setdefault(key, (step, moment))

    def end(self, key: str, moment: float) -> None:
        """Note that it runs no more."""
        if key in self._running:
            step, began = self._running.pop(key)
            self._spent += self._rates.get(step, 0.0) * max(0.0, moment - began) / HOUR

    def note(self, key: str, parent: str, status: JobStatus, began: float | None, now: float) -> None:
        """Note by its status whether an attempt runs; `began` is when, as far as the runner knows."""
        if status.lost or status.state == "queued":
            self.end(key, now)
            return
        began = status.started or began or (now if status.lease else None)
        if began is not None:
            self.begin(key, parent or key, began)
        if status.state in ("succeeded", "failed"):
            self.end(key, status.ended or now)

    def problem(self, now: float) -> str:
        """Why the run has to end now; empty if it need not."""
        if self._deadline is not None and now + ENDING >= self._deadline:
            left = max(0.0, self._deadline - now)
            return f"its deadline is in {time_text(left)}" if left else "its deadline is over"
        budget = self._budget
        if budget is None:
            return ""
        rates = [(self._rates.get(step, 0.0) / HOUR, began) for step, began in self._running.values()]
        spent = self._spent + sum(rate * max(0.0, now - began) for rate, began in rates)
        burning = sum(rate for rate, _ in rates)
        if spent + burning * ENDING < budget.amount:
            return ""
        return f"{budget.text(spent)} of {budget} are used, and what runs takes {budget.text(burning * HOUR)} an hour"
