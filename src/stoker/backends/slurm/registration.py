"""The registration of the slurm backend."""

from __future__ import annotations

import os
import shutil
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Backend, FlowDecorator, Leftover, RunningBackend, Services, Sweep
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.findings import Check
from stoker.core.plan import Site


def open_slurm(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Open a backend that runs jobs on a cluster."""
    from stoker.backends.slurm.backend import SlurmBackend

    return SlurmBackend(site, options)


def doctor() -> Iterator[Check]:
    """Whether this machine has sbatch; a stack's `host` names a login node instead."""
    yield Check(name="slurm", found=shutil.which("sbatch") or "nothing to reach it with (optional)")


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

    return sweep_folders(places, sweep)


SLURM: Final = Backend(
    name="slurm",
    title="Slurm",
    settings=SlurmSettings,
    open=open_slurm,
    sends_code=True,
    decorator=FlowDecorator(
        name="slurm",
        title="Slurm",
        settings=SlurmSettings,
        help="Run the step on the stack's Slurm cluster: `@slurm(partition='gpu', time_limit='4h', gpu=1)`.",
    ),
    doctor=doctor,
    leftovers=leftovers,
)
