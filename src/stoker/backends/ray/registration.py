"""The ray backend, as it is registered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Backend, FlowDecorator, Leftover, ProbeRequest, RunningBackend, Services, Sweep
from stoker.backends.base.nodes import PlatformNode
from stoker.backends.ray.settings import RaySettings
from stoker.core.findings import Check
from stoker.core.plan import Site

if TYPE_CHECKING:
    from stoker.backends.base.beside import Beside, RunningAttempt


def open_ray(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs jobs on one Ray cluster."""
    from stoker.backends.ray.backend import RayBackend

    return RayBackend(site, options)


def doctor() -> Iterator[Check]:
    """Whether a variable names a cluster."""
    from stoker.backends.base.reaching import reach

    yield reach("ray", variables=("RAY_ADDRESS",))


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """Whether the dashboard answers, which Ray and Python the cluster has, and its nodes."""
    from stoker.backends.ray.check import probe as probe_cluster

    return probe_cluster(options, os.environ)


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Folders of jobs in this machine's scratch folder; those of a cluster that shares no folder lie in its store."""
    own = f"{sweep.scratch}/ray"
    if not os.path.isdir(own):
        return ()
    from stoker.backends.base.jobfolders import sweep_folders

    return sweep_folders([(None, own)], sweep)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """End jobs that a driver left on the cluster."""
    from stoker.backends.ray import platform

    return platform.end_recorded(options, jobs)


def nodes(options: Mapping[str, Any]) -> Sequence[PlatformNode]:
    """The nodes of the cluster that are alive."""
    from stoker.backends.ray import nodelist

    return nodelist.nodes(options)


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterable[Beside]:
    """The nodes of a running attempt."""
    from stoker.backends.ray.beside import places

    return places(options, attempt)


RAY: Final = Backend(
    name="ray",
    title="Ray",
    settings=RaySettings,
    open=open_ray,
    sends_code=True,
    decorator=FlowDecorator(
        name="ray",
        title="Ray",
        settings=RaySettings,
        help="Run the step on the stack's Ray cluster: `@ray(gpu=1, gpu_fraction=0.5)`.",
    ),
    doctor=doctor,
    probe=probe,
    nodes=nodes,
    leftovers=leftovers,
    end_recorded=end_recorded,
    beside=beside,
)
