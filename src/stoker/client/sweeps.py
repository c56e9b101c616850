"""A sweep of a run as it was recorded: its trials, which of them is the best, and how much each parameter matters."""

from __future__ import annotations

import math
from typing import Any, Final, Mapping, Sequence

from stoker.client.metrics import Metric
from stoker.client.steps import Step
from stoker.core.metrics import Point, Series
from stoker.core.sweep import SWEEP_EVENT, Goal, Plain
from stoker.core.values import frozen
from stoker.store.store import Store

_FEW: Final = 2
"""Trials below which nothing can be said of parameters."""


@frozen(kw_only=True)
class SweepTrial:
    """One trial."""

    key: str
    """The element's key."""
    params: Mapping[str, Plain]
    status: str = ""
    """How it ended; empty for one that has not."""
    value: float | None = None
    """Its metric; None for one that has not succeeded."""


@frozen(kw_only=True)
class SweepRecord:
    """A sweep with the trials that have begun, in their order."""

    metric: str
    goal: Goal
    method: str
    trials: Sequence[SweepTrial]

    @property
    def best(self) -> SweepTrial | None:
        """The trial with the best metric, the first of equal ones; None while none has succeeded."""
        sign = 1 if self.goal == "minimize" else -1
        known = [(sign * one.value, place) for place, one in enumerate(self.trials) if one.value is not None]
        return self.trials[min(known)[1]] if known else None

    def importance(self) -> dict[str, float]:
        """Parameter → the share of the metric's variance that it explains by itself, the largest first.

        An estimate from the trials as they are: they are put in groups, by choice or by equal parts of a parameter's
        order, and the variance between the groups is compared with that of all (the correlation ratio, as in Plischke,
        Borgonovo and Smith 2013, doi:10.1016/j.ejor.2012.11.047), less what groups of so few trials have by chance
        (Kelley 1935, doi:10.1073/pnas.21.9.554).
        """
        known = [(one.params, one.value) for one in self.trials if one.value is not None]
        shares = {name: _share([(params[name], value) for params, value in known]) for name in self.names}
        return dict(sorted(shares.items(), key=lambda pair: -pair[1]))

    @property
    def names(self) -> list[str]:
        """The parameters."""
        return list(self.trials[0].params) if self.trials else []


def sweep_of(store: Store, step: Step) -> SweepRecord | None:
    """The sweep whose trials the elements of a step are; None for another fan-out."""
    events = [one.data for one in store.records.step_events(step.run_id, step.key, SWEEP_EVENT)]
    if not events:
        return None
    asked: list[Mapping[str, Any]] = []
    ended: dict[int, Mapping[str, Any]] = {}
    for data in events:
        if "ask" in data:
            asked.append(data["params"])
        elif "tell" in data:
            ended[data["tell"]] = data
        for index in data.get("again", ()):
            ended.pop(index, None)
    trials = [
        SweepTrial(
            key=f"{step.key}[{index}]",
            params=params,
            status=ended[index]["status"] if index in ended else "",
            value=ended[index]["value"] if index in ended else None,
        )
        for index, params in enumerate(asked)
    ]
    first = events[0]
    return SweepRecord(metric=first["metric"], goal=first["goal"], method=first["method"], trials=trials)


def metric_of(name: str, value: float) -> Metric:
    """A trial's value as a metric that it logged once."""
    series = Series(name=name)
    series.add(Point(0.0, 0.0, value))
    return Metric({0: series}, 0)


def _share(pairs: Sequence[tuple[Plain, float]]) -> float:
    """The share of the variance of values that groups of what stands beside them explain."""
    count = len(pairs)
    groups = _groups(pairs)
    if count <= len(groups) or len(groups) < _FEW:
        return 0.0
    mean = math.fsum(value for _, value in pairs) / count
    whole = math.fsum((value - mean) ** 2 for _, value in pairs)
    within = 0.0
    for group in groups:
        middle = math.fsum(group) / len(group)
        within += math.fsum((value - middle) ** 2 for value in group)
    if not whole or not math.isfinite(whole):
        return 0.0
    return max(0.0, 1 - within / whole * (count - 1) / (count - len(groups)))


def _groups(pairs: Sequence[tuple[Plain, float]]) -> list[list[float]]:
    """The values by what stands beside them; numbers that are many in as many parts as have as many members."""
    parts = math.isqrt(len(pairs))
    given = {given for given, _ in pairs}
    if len(given) > parts and all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in given):
        values = [value for _, value in sorted(pairs)]
        return [values[len(values) * part // parts : len(values) * (part + 1) // parts] for part in range(parts)]
    groups: dict[str, list[float]] = {}
    for one, value in pairs:
        groups.setdefault(repr(one), []).append(value)
    return list(groups.values())
