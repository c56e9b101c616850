"""The settings of the local backend: what this machine may give to a run."""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.plan import Capacity
from stoker.core.units import UNSET, WHOLE_RUN, parse_number, parse_positive_count, parse_size, strict
from stoker.core.values import frozen


@strict
@frozen(kw_only=True)
class LocalSettings:
    """What this machine may give to a whole run; what is not given is all that the machine has."""

    max_workers: int | None = attrs.field(default=UNSET, converter=parse_positive_count, metadata=WHOLE_RUN)
    """How many steps run at once."""
    cpus: float | None = attrs.field(default=UNSET, converter=parse_number, metadata=WHOLE_RUN)
    """CPU cores for all steps that run at once."""
    memory: int | None = attrs.field(default=UNSET, converter=parse_size, metadata=WHOLE_RUN)
    """Bytes for all steps that run at once, or a text such as "16GB"."""


def local_capacity(options: Mapping[str, Any]) -> Capacity:
    """The capacity of this machine for steps, as the settings limit it."""
    from stoker.backends.base import machine

    settings = LocalSettings(**options)
    return machine.machine_capacity(cpus=settings.cpus, memory=settings.memory, slots=settings.max_workers)
