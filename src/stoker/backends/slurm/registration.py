"""The registration of the slurm backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import (
    Backend,
    FlowDecorator,
    LeftJob,
    Leftover,
    ProbeRequest,
    RunningBackend,
    Services,
    StackSetup,
    Sweep,
)
from stoker.backends.base.beside import Beside, RunningAttempt
from stoker.backends.base.nodes import PlatformNode
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.findings import Check
from stoker.core.plan import Site

if TYPE_CHECKING:
    from stoker.backends.base.pulling import Puller


def open_slurm(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Open a backend that runs jobs on a cluster."""
    from stoker.backends.slurm.backend import SlurmBackend

    return SlurmBackend(site, options)


def puller(options: Mapping[str, Any]) -> Puller | None:
    """Who pulls images on the cluster's nodes."""
    if not SlurmSettings(**options).get("container", ""):
        return None
    from stoker.backends.slurm.pulling import puller_of

    return puller_of(options)


def default_store(options: Mapping[str, Any]) -> str:
    """A folder of the cluster, where its nodes do not see this machine's folders."""
    settings = SlurmSettings(**options)
    return "" if settings.shares or not settings.get("host") else settings.own_store


def doctor() -> Iterator[Check]:
    """Whether this machine has sbatch; a stack's `host` names a login node instead."""
    from stoker.backends.base.reaching import reach

    yield reach("slurm", commands=("sbatch",))


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Job folders in this machine's scratch folder, and on the clusters of all stacks."""
    local_folder = f"{sweep.scratch}/slurm"
    places: list[tuple[str | None, str]] = [(None, local_folder)] if os.path.isdir(local_folder) else []
    for options in parts:
        settings = SlurmSettings(**options)
        places.append((settings.get("host"), settings.folder_in(sweep.scratch)))
    if not places:
        return ()
    from stoker.backends.base.jobfolders import sweep_folders
    from stoker.backends.slurm import left

    return sweep_folders(places, sweep, left=left.left_of, end=lambda machine, run: left.end_jobs(machine, run, 0.0))


def has_driver(options: Mapping[str, Any], place: str) -> bool:
    """Whether the job of a detached driver is in the queue, such as "Slurm job 123"."""
    from stoker.backends.slurm import left

    return left.is_queued(SlurmSettings(**options), place)


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterable[LeftJob]:
    """Jobs of runs without a driver, on the clusters of all stacks."""
    if not _has_runs(parts, scratch):
        return ()
    from stoker.backends.slurm import left

    return left.left_jobs(parts, scratch, runs)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterable[LeftJob]:
    """End the jobs of a run without a driver."""
    if not _has_runs(parts, scratch):
        return ()
    from stoker.backends.slurm import left

    return left.end_left(parts, scratch, run, grace)


def _has_runs(parts: Sequence[Mapping[str, Any]], scratch: str) -> bool:
    """Whether there may be jobs: a stack names a cluster, or runs left folders on this machine."""
    return bool(parts) or os.path.isdir(f"{scratch}/slurm")


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """End jobs that a driver left on the cluster."""
    from stoker.backends.slurm import orphans

    return orphans.end_recorded(options, jobs)


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterable[Check]:
    """The login node, the controller, the shared folder, and a node by a job of one minute."""
    from stoker.backends.slurm import probe as slurmprobe

    return slurmprobe.probe(options, request)


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """What a cluster's own defaults are, behind its login node."""
    from stoker.backends.slurm import probe as slurmprobe

    return slurmprobe.suggest(answers)


SETUP: Final = StackSetup(
    questions={
        "host": "The login node, as you give it to ssh (a name of ~/.ssh/config, or user@host)",
        "partition": "The partition; empty for the cluster's default",
        "account": "The account that jobs are charged to; empty for your default",
        "folder": "A folder that login node and nodes see",
        "python": "The nodes' Python, 3.10 or later",
    },
    complete=lambda host: host if "://" in host else f"ssh://{host}",
    suggest=suggest,
)


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The nodes of the step's job."""
    from stoker.backends.slurm.beside import places

    return places(options, attempt)


def nodes(options: Mapping[str, Any]) -> Sequence[PlatformNode]:
    """The nodes of the cluster, in groups of equal ones."""
    from stoker.backends.slurm import nodelist

    return nodelist.nodes(options)


SLURM: Final = Backend(
    name="slurm",
    title="Slurm",
    settings=SlurmSettings,
    open=open_slurm,
    unasked=("STK170", "STK171"),  # of backends.slurm.facts, which is imported when a cluster is asked
    puller=puller,
    default_store=default_store,
    probe=probe,
    nodes=nodes,
    setup=SETUP,
    sends_code=True,
    decorator=FlowDecorator(
        name="slurm",
        title="Slurm",
        settings=SlurmSettings,
        help="Run the step on the stack's Slurm cluster: `@slurm(partition='gpu', time_limit='4h', gpu=1)`.",
    ),
    doctor=doctor,
    leftovers=leftovers,
    has_driver=has_driver,
    left_jobs=left_jobs,
    end_left=end_left,
    end_recorded=end_recorded,
    beside=beside,
)
