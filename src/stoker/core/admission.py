"""How much of a backend's capacity a running step takes."""

from __future__ import annotations

from typing import Final

from stoker.core.settings import StepSettings
from stoker.core.values import frozen

DEFAULT_CPUS: Final = 1.0
"""Cores of a step that names none: a machine is then filled but not overrun. A step that must have accelerators takes
none: there are fewer of them than cores, so that they decide how many such steps run."""


@frozen(kw_only=True)
class Demand:
    """What each node of a step takes."""

    cpus: float
    """Cores."""
    memory: int
    """Bytes."""
    devices: int
    """Accelerators that it takes whole."""


def demand(settings: StepSettings) -> Demand:
    """What each node of a step takes of its backend's capacity."""
    resources = settings.resources
    devices = resources.gpus_per_node
    must_have = devices and settings.accelerator_policy == "require"
    return Demand(
        cpus=resources.get("cpu_count", 0.0 if must_have else DEFAULT_CPUS),
        memory=resources.get("memory", 0),
        devices=0 if devices and resources.get("share") else devices,
    )
