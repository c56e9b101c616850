"""When a failed attempt is followed by another, as a person asks for it; the engine decides by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Iterable

import attrs

from stoker.core import units
from stoker.core.errors import SettingsError, nearest
from stoker.core.ladder import Rung, parse_ladder
from stoker.core.plugins import entry_points
from stoker.core.status import CAUSES, NEVER_RETRIED
from stoker.core.units import UNSET, parse_texts, strict
from stoker.core.values import frozen

if TYPE_CHECKING:
    from datetime import timedelta

MAX_DELAY: Final = 3600.0
"""Seconds between two attempts beyond which a run looks hung."""


def parse_times(value: int | str) -> int:
    """How often an attempt may be repeated."""
    raw: Any = value
    return raw if raw is UNSET else units.count(raw)


def parse_causes(value: str | Iterable[str]) -> tuple[str, ...]:
    """Causes after which an attempt is repeated; none is any."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    causes = parse_texts([raw] if isinstance(raw, str) else raw) or ()
    for cause in causes:
        if cause not in CAUSES:
            # A cause of another distribution is called as its entry point.
            others = [entry.name for entry in entry_points("stoker.causes")]
            if cause not in others:
                raise SettingsError(f"there is no cause '{cause}'{nearest(cause, [*CAUSES, *others])}")
        if cause in NEVER_RETRIED:
            raise SettingsError(f"'{cause}' is never tried again: trying again cannot help", fix="remove it")
    return causes


def parse_delay(value: float | str | timedelta) -> float:
    """Seconds."""
    raw: Any = value
    return raw if raw is UNSET else units.duration(raw)


def parse_backoff(value: float | str) -> float:
    """What each wait is multiplied with for the next; 1 keeps it."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    if units.number(raw) < 1:
        raise SettingsError(f"{value!r} would make each wait shorter than the last", fix="write 1 or more")
    return units.number(raw)


def parse_jitter(value: float) -> float:
    """The part of a wait by which it may be longer or shorter."""
    raw: Any = value
    if raw is UNSET or (isinstance(raw, (int, float)) and not isinstance(raw, bool) and 0 <= raw <= 1):
        return value
    raise SettingsError(f"{value!r} is not a part", fix="write a number from 0 to 1, such as 0.1")


@strict
@frozen
class Retry:
    """`Retry(3)`: up to 3 more attempts after a failure.

    What is not given is `UNSET` until the layers are merged; then it is what `NO_RETRY` has.
    """

    times: int = attrs.field(default=UNSET, converter=parse_times)
    """How many attempts may follow the first one. Not given, it is the number of rungs of `on_oom`."""
    on: tuple[str, ...] = attrs.field(default=UNSET, converter=parse_causes, kw_only=True)
    """The causes after which another attempt is made; none is any that another attempt may cure."""
    delay: float = attrs.field(default=UNSET, converter=parse_delay, kw_only=True)
    """Seconds of the first wait."""
    backoff: float = attrs.field(default=UNSET, converter=parse_backoff, kw_only=True)
    """The n-th wait is `delay * backoff ** (n - 1)`."""
    max_delay: float = attrs.field(default=UNSET, converter=parse_delay, kw_only=True)
    """Seconds of the longest wait."""
    jitter: float = attrs.field(default=UNSET, converter=parse_jitter, kw_only=True)
    """The part of a wait by which it may be longer or shorter, from 0 to 1."""
    on_oom: tuple[Rung, ...] = attrs.field(default=UNSET, converter=parse_ladder, kw_only=True)
    """A ladder: after an attempt that ran out of memory the next rung that can help is taken, and the request stays
    changed. Where none is left, another attempt is made only if `on` names the cause."""


# No delay by default: on one machine a failure is rarely cured by waiting, and who retries a network says how long.
NO_RETRY: Final = Retry(times=0, on=(), delay=0.0, backoff=2.0, max_delay=MAX_DELAY, jitter=0.1, on_oom=())
