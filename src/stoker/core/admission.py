"""What a step counts for while it runs, where a backend has room for so much and no more."""

from __future__ import annotations

from typing import Final

import attrs

from stoker.core.settings import StepSettings

DEFAULT_CPUS: Final = 1.0
"""What a step counts for where it does not say: one core, so that a machine is filled but not overrun. One that must
have accelerators counts for none: these are fewer than cores, and decide how many such steps run."""


@attrs.frozen(kw_only=True)
class Demand:
    """Of each node of a step: cores, bytes of memory, and the accelerators that it takes whole."""

    cpus: float
    memory: int
    devices: int


def demand(settings: StepSettings) -> Demand:
    """What each node of a step counts for."""
    resources = settings.resources
    devices = resources.gpus_per_node
    must_have = devices and settings.accelerator_policy == "require"
    return Demand(
        cpus=resources.get("cpu_count", 0.0 if must_have else DEFAULT_CPUS),
        memory=resources.get("memory", 0),
        devices=0 if resources.get("share") else devices,
    )
