"""The machine itself: its cores and its memory, and how much of them is in use."""

from __future__ import annotations

import os

from stoker.core.values import frozen


@frozen(kw_only=True)
class HostUse:
    """The machine itself."""

    cpus: int
    busy: float
    """Percent of all cores."""
    load: float
    """The load average of the last minute."""
    memory: int
    """Bytes."""
    memory_used: int


def host_use() -> HostUse:
    """The machine's cores and memory; `busy` is since the call before."""
    import psutil

    memory = psutil.virtual_memory()
    return HostUse(
        cpus=psutil.cpu_count() or 1,
        busy=psutil.cpu_percent(),
        load=os.getloadavg()[0],
        memory=memory.total,
        memory_used=memory.total - memory.available,
    )
