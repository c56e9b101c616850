"""A sweep as data: which parameters a step is tried with, what is compared, and what ends the search."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final, Literal, Mapping

from stoker.core.costs import Budget
from stoker.core.errors import UsageError
from stoker.core.values import frozen

Goal = Literal["minimize", "maximize"]
Plain = bool | int | float | str | None

PARAMS: Final = "best_params"
VALUE: Final = "best_value"
TRIALS: Final = "trials"
RESULTS: Final = (PARAMS, VALUE, TRIALS)
"""The outputs of a sweep beside those of its step."""
SWEEP_EVENT: Final = "sweep"
"""The kind of the events in which a run's record has what a sweep decided and heard."""
OPEN_ENDED: Final = 10_000
"""Trials of a sweep that only its budget ends."""


@frozen(kw_only=True)
class Domain:
    """What one parameter may be: one of `values`, or a number from `low` to `high`, both included."""

    COMPACT: ClassVar = True
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """Whether it is a whole number."""
    log: bool = False
    """Whether orders of magnitude are equally likely, not numbers."""
    step: float | None = None
    """The distance between two numbers, from `low` on; None where there is none."""

    def grid(self) -> list[Plain] | None:
        """Everything that it may be, in order; None where that cannot be counted."""
        if self.values:
            return list(self.values)
        step = self.step or (1.0 if self.whole and not self.log else 0.0)
        if not step:
            return None
        return [self._number(self.low + step * place) for place in range(self._steps(step) + 1)]

    def at(self, share: float) -> Plain:
        """What lies at a share of the way through it, from 0 to below 1."""
        counted = self.grid()
        if counted is not None:
            return counted[min(int(share * len(counted)), len(counted) - 1)]
        if not self.log:
            return self._number(self.low + share * (self.high - self.low))
        # A whole number has the room from half below to half above it.
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        number = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return self._number(min(max(number, self.low), self.high))

    def _steps(self, step: float) -> int:
        return math.floor((self.high - self.low) / step + 1e-9)

    def _number(self, number: float) -> Plain:
        return round(number) if self.whole else float(number)


def between(low: float, high: float, *, log: bool = False, step: float | None = None) -> Domain:
    """A parameter from `low` to `high`, both included: a whole number if both are; else any number.

    `log`: evenly over the orders of magnitude; `step`: only `low`, `low + step`, ….
    """
    fix = "write between(1e-5, 1e-1, log=True), between(1, 8) or between(0.0, 0.9, step=0.1), for example"
    for number in (low, high, *(() if step is None else (step,))):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise UsageError(f"between({low!r}, {high!r}): {number!r} is not a number", fix=fix)
    if low > high:
        raise UsageError(f"between({low!r}, {high!r}): {low!r} is above {high!r}", fix=fix)
    if log and low <= 0:
        raise UsageError(f"between({low!r}, {high!r}, log=True): only numbers above 0 have magnitudes", fix=fix)
    whole = isinstance(low, int) and isinstance(high, int)
    if step is not None and (log or step <= 0 or (whole and not isinstance(step, int))):
        what = "log has no step" if log else "not above 0" if step <= 0 else "the numbers would not be whole"
        raise UsageError(f"between({low!r}, {high!r}, step={step!r}): {what}", fix=fix)
    return Domain(low=float(low), high=float(high), whole=whole, log=log, step=None if step is None else float(step))


@frozen(kw_only=True)
class ASHA:
    """Ends a trial early unless it is among the best: asynchronous successive halving.

    After `min_steps`, `min_steps * factor`, `min_steps * factor²`, … steps that a trial logged, it goes on if its value
    is among the best `1/factor` of all that came so far.
    """

    min_steps: int = 1
    factor: int = 4

    def __attrs_post_init__(self) -> None:
        for name, least in (("min_steps", 1), ("factor", 2)):
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                raise UsageError(f"ASHA({name}={number!r}) is not a whole number from {least}", fix=f"write {least}")


@frozen(kw_only=True)
class SweepPlan:
    """How a step's elements come by their parameters, and which of them is the best."""

    COMPACT: ClassVar = True
    space: Mapping[str, Domain]
    method: str
    metric: str
    goal: Goal = "minimize"
    trials: int
    """How many at most."""
    parallel: int
    seed: int = 0
    early_stop: ASHA | None = None
    budget: Budget | None = None
    max_failures: int | None = None

    def only(self, params: Mapping[str, Plain]) -> SweepPlan:
        """The sweep with one trial, which has these parameters."""
        space = {name: Domain(values=(value,)) for name, value in params.items()}
        return SweepPlan(space=space, method="grid", metric=self.metric, goal=self.goal, trials=1, parallel=1)

    def is_better(self, one: float, other: float) -> bool:
        """Whether a value is better than another one."""
        return one < other if self.goal == "minimize" else one > other
