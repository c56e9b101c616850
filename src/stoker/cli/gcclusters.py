"""The part of `stoker gc` that looks into folders of jobs on clusters: those of all stacks that share this home."""

from __future__ import annotations

import os
from typing import Any, Callable, Collection, Final

from stoker import config
from stoker.core.errors import StokerError
from stoker.store.store import Store

AGE: Final = 86400.0
"""Seconds for which the files of a run that broke off stay: `stoker resume` takes over what its jobs have done."""


def swept(
    store: Store,
    *,
    running: Collection[str],
    known: Collection[str],
    dry_run: bool,
    said: Callable[[str], None],
) -> int:
    """How many folders of runs went, or would go; a cluster that does not answer is named and left."""
    scratch = os.path.join(str(store.home), "scratch")
    here = [f"{scratch}/{name}" for name in ("slurm", "ray") if os.path.isdir(f"{scratch}/{name}")]
    places = dict.fromkeys([*((None, folder) for folder in here), *_places(scratch)])
    if not places:
        return 0
    from stoker.backends.base import jobfolders
    from stoker.backends.base.logins import login

    count = 0
    for host, folder in places:
        there = login(host)
        try:
            place = there.expand(folder)
            ours = None if place.startswith(f"{scratch}/") else known
            gone = jobfolders.found(there, place, running=running, ours=ours, age=AGE)
            if not dry_run:
                jobfolders.remove(there, gone)
        except StokerError as error:
            said(f"not looked into: {error}")
            continue
        finally:
            there.close()
        count += len(gone)
    return count


def _places(scratch: str) -> list[tuple[str | None, str]]:
    """Where jobs have their files on the clusters of any stack here: the host, and the folder there."""
    found: list[tuple[str | None, str]] = []
    for stack in config.stacks():
        components: list[Any] = [stack.orchestrator, *stack.step_operators.values()]
        for component in components:
            if component.flavor == "slurm":
                from stoker.backends.slurm.backend import folder_of
                from stoker.core.slurm import SlurmSettings

                settings = SlurmSettings(**component.options)
                found.append((settings.get("host"), folder_of(settings, scratch)))
    return found
