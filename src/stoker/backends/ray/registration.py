"""The ray backend, as it is registered."""

from __future__ import annotations

import os
from typing import Any, Final, Iterable, Mapping, Sequence

from stoker.backends.base.backend import Backend, FlowDecorator, Leftover, Sweep, later, reach
from stoker.backends.ray.settings import RaySettings


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Folders of jobs in this machine's scratch folder; those of a cluster that shares no folder lie in its store."""
    own = f"{sweep.scratch}/ray"
    if not os.path.isdir(own):
        return ()
    from stoker.backends.base.adoption import sweep_folders

    return sweep_folders([(None, own)], sweep)


RAY: Final = Backend(
    name="ray",
    title="Ray",
    settings=RaySettings,
    open=later("stoker.backends.ray.backend:RayBackend", takes=2),
    sends_code=True,
    decorator=FlowDecorator(
        name="ray",
        title="Ray",
        settings=RaySettings,
        help="Run the step on the stack's Ray cluster: `@ray(gpu=1, gpu_fraction=0.5)`.",
    ),
    doctor=lambda: reach("ray", variables=("RAY_ADDRESS",)),
    probe=later("stoker.backends.ray.backend:probe", takes=1),
    nodes=later("stoker.backends.ray.jobs:nodes"),
    leftovers=leftovers,
    end_recorded=later("stoker.backends.ray.platform:end_recorded"),
    beside=later("stoker.backends.ray.beside:places"),
)
