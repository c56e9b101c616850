"""How often a step saves a checkpoint: often enough that little is lost, rarely enough that saving costs little.

The best interval follows from what one checkpoint costs, which the step measures, and from how often a step is lost.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import attrs

from stoker.core.errors import UsageError
from stoker.core.resources import ResourceSettings
from stoker.core.status import DRIVER_BROKEN, GPU_HARDWARE, NODE_LOST, PREEMPTED, WORKER_LOST
from stoker.core.units import duration_text
from stoker.core.values import frozen

LOSSES: Final = (PREEMPTED, NODE_LOST, WORKER_LOST, GPU_HARDWARE, DRIVER_BROKEN)
"""Causes by which an attempt was lost with its place, whatever its code does."""
FIRST: Final = 600.0
"""Seconds until the first checkpoint of an attempt at most: only one that was saved tells what one costs."""
_UNMEASURED: Final = 1.0
"""Seconds that the first checkpoint is taken to cost."""
_HOUR: Final = 3600.0
_DEVICE_HOURS: Final = 54 * 24 * 16384 / 419
"""Hours of one GPU between two losses: 419 unexpected interruptions of 16,384 GPUs in 54 days (Llama Team 2024, The
Llama 3 Herd of Models, table 5, https://arxiv.org/abs/2407.21783)."""
_SPOT_HOURS: Final = 24.0
"""Hours of one spot machine: as long as a preemptible machine of Google's lives at most
(https://cloud.google.com/compute/docs/instances/preemptible)."""


@frozen(kw_only=True)
class LossRate:
    """How often an attempt at a step is lost with its place, and by whom that is known."""

    COMPACT: ClassVar = True
    between: float
    """Mean seconds between two losses."""
    source: str

    def __str__(self) -> str:
        return f"one loss in {rough_time(self.between)} ({self.source})"


def loss_rate(resources: ResourceSettings, losses: int, seconds: float) -> LossRate:
    """The loss rate of a step from `losses` in `seconds` of attempts where it will run; without any the usual one."""
    if losses:
        known = f"{losses:,} {'loss' if losses == 1 else 'losses'} in {rough_time(seconds)} of attempts there"
        return LossRate(between=seconds / losses, source=known)
    if resources.get("spot"):
        usual, source = _SPOT_HOURS * _HOUR / resources.node_count, "as long as Google's preemptible machines live"
    else:
        devices = max(1, resources.gpus_per_node) * resources.node_count
        usual, source = _DEVICE_HOURS * _HOUR / devices, "as the GPUs that trained Llama 3"
    seen = f"none in {rough_time(seconds)} of attempts there" if seconds else "no attempt there is known"
    return LossRate(between=max(usual, seconds), source=f"{seen}: {source}" if usual >= seconds else seen)


def best_interval(cost: float, between: float) -> float:
    """Seconds of work from one checkpoint to the next for which a run takes the least time.

    `cost` is the seconds that one takes, `between` the mean seconds between two losses, which come at random. It is
    the higher-order estimate of Daly 2006 (A higher order estimate of the optimum checkpoint interval for restart
    dumps, Future Generation Computer Systems 22, equation 37), whose first term is that of Young 1974 (A first order
    approximation to the optimum checkpoint interval, Communications of the ACM 17).
    """
    ratio = cost / (2 * between)
    if ratio >= 1:
        return between
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def rough_time(seconds: float) -> str:
    """A time in its largest units: "7h 12m"; parts that say nothing are left out."""
    for unit in (_HOUR * 24, _HOUR, 60.0):
        if seconds >= 10 * unit:
            return duration_text(round(seconds / unit) * unit)
    return duration_text(round(seconds, 0 if seconds >= 10 else 2))


@attrs.define(kw_only=True)
class Cadence:
    """Says of one attempt when its next checkpoint is due. Times are those of one steady clock, in seconds."""

    every: float | LossRate
    """Seconds from one to the next that a person asked for; or what the best interval follows from."""
    began: float
    """When the last checkpoint was saved, or the attempt began."""
    cost: float | None = None
    """Seconds that the last one took; None before the first."""
    asked: float | None = None
    """When the step was told to save one, until it is saved."""

    @property
    def interval(self) -> float:
        """Seconds from one to the next."""
        if not isinstance(self.every, LossRate):
            return self.every
        if self.cost is None:
            return min(FIRST, best_interval(_UNMEASURED, self.every.between))
        return best_interval(self.cost, self.every.between)

    def due(self, now: float, *, ending: bool) -> bool:
        """Whether the step is to save a checkpoint now; `ending`: it is asked to end. Raises `UsageError` where the
        last one was not said to be saved."""
        if self.asked is not None:
            raise UsageError(
                "context.checkpoint_due() said that a checkpoint is due, and the step did not say that it is saved",
                fix="call context.checkpoint_saved() after each one: it measures what one costs",
            )
        if ending or now - self.began >= self.interval:
            self.asked = now
        return self.asked is not None

    def saved(self, now: float) -> str:
        """Note that a checkpoint was saved; what follows from the first one that was measured, in words."""
        first = self.cost is None and self.asked is not None
        if self.asked is not None:
            self.cost, self.asked = max(0.001, now - self.asked), None
        self.began = now
        if not first or self.cost is None or not isinstance(self.every, LossRate):
            return ""
        return (
            f"checkpoints: the first one took {duration_text(round(self.cost, 3))}; from now on one is due after "
            f"{rough_time(self.interval)}, the best for {self.every}"
        )
