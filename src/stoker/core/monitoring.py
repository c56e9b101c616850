"""How a step's devices are watched, and what becomes of a step that leaves them idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from stoker.core import units
from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, strict
from stoker.core.values import frozen

if TYPE_CHECKING:
    from datetime import timedelta

AcceleratorPolicy = Literal["require", "prefer"]
"""`require`: without its accelerators a step is refused. `prefer`: it runs on the CPU, and its receipt says so."""

OnIdle = Literal["warn", "fail", "stop", "ignore"]
"""What happens to a step whose devices stay idle: a warning, a failure at its end, an end at once, or nothing."""

HealthCheck = Literal["off", "quick"]
"""Whether devices do seconds of work before a run's first step on them, whose results are compared."""

SHORTEST: Final = 0.05
"""Seconds between two samples. NVML's own utilisation is a mean over 1/6 s to 1 s, so that less tells nothing more."""


def parse_interval(value: float | str | timedelta) -> float:
    """Seconds between two samples."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    seconds = units.duration(raw)
    if seconds < SHORTEST:
        raise SettingsError(f"{value!r} is too often to measure anything", fix=f"write {SHORTEST:g} seconds or more")
    return seconds


def parse_percent(value: float | str) -> float:
    """A part of 100."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    number = units.number(raw)
    if not 0 < number <= 100:
        raise SettingsError(f"{value!r} is not a percentage", fix="write a number above 0, up to 100")
    return number


def parse_window(value: float | str | timedelta) -> float:
    """Seconds without work after which a device counts as left idle."""
    raw: Any = value
    return raw if raw is UNSET else units.positive_duration(raw)


@strict
@frozen
class Monitor:
    """`Monitor(0.5)`: a sample of the step's devices every half a second.

    What is not given is `UNSET` until the layers are merged; then it is what `WATCHED` has.
    """

    interval: float = attrs.field(default=UNSET, converter=parse_interval)
    """Seconds between two samples."""
    idle_below: float = attrs.field(default=UNSET, converter=parse_percent, kw_only=True)
    """Percent of utilisation; a device with less is idle in that sample."""
    idle_for: float = attrs.field(default=UNSET, converter=parse_window, kw_only=True)
    """Seconds during which all of a step's devices are idle until `on_idle_gpu="stop"` ends it."""


# Ten minutes: loading data and compiling kernels take minutes; who pays by the second says less.
WATCHED: Final = Monitor(1.0, idle_below=5.0, idle_for=600.0)
