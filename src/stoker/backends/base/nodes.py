"""A platform's nodes as `stoker top` and the page of devices list them: values, and the question to a stack's parts."""

from __future__ import annotations

import attrs

from stoker.core.values import frozen


@frozen(kw_only=True)
class NodeDevices:
    """Accelerators of one kind on a node."""

    model: str
    """The platform's name for them, or the catalog's where a label tells the model."""
    count: float
    free: float | None = None
    """How many nothing asked for; None where the platform does not tell."""


@frozen(kw_only=True)
class PlatformNode:
    """A node of a platform, or several that are alike; amounts are those of each."""

    name: str
    """Its name; of several as the platform lists them, such as "gpu[01-08]"."""
    count: int = 1
    state: str = ""
    """The platform's word, such as "idle" or "not ready"."""
    group: str = ""
    """Partitions of Slurm that it is in."""
    cpus: float | None = None
    memory: int | None = None
    """Bytes; None where the platform does not tell."""
    devices: tuple[NodeDevices, ...] = attrs.field(factory=tuple)
