"""What runs without a driver left with SkyPilot: clusters and managed jobs, known by their names."""

from __future__ import annotations

import os
from typing import Any, Collection, Iterator, Mapping, Sequence

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.skypilot.command import SkyCommand
from stoker.backends.skypilot.platform import end_names
from stoker.backends.skypilot.requests import PREFIX, prefix_of
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.errors import BackendError


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
    """Clusters and managed jobs of runs; results lie in the artifact store."""
    for _, names in _machines(parts):
        for run in runs:
            for name in _of_run(names, run):
                yield LeftJob(run=run, name=name, running=True)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
    """Take down what a run has left."""
    for sky, names in _machines(parts):
        mine = _of_run(names, run)
        end_names(sky, mine)
        for name in mine:
            yield LeftJob(run=run, name=name, running=True)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Take down what a driver left, as it recorded it; what was there."""
    sky = SkyCommand(SkypilotSettings(**options), os.environ)
    return end_names(sky, {str(job["name"]): bool(job["managed"]) for job in jobs if job.get("name")})


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Take down what runs of this database have left that nobody continues."""
    kept = sweep.kept
    count = 0
    for part in parts:
        try:
            for sky, names in _machines([part]):
                old = {name: names[name] for run in sweep.ours if run not in kept for name in _of_run(names, run)}
                count += len(old)
                if old and not sweep.dry_run:
                    end_names(sky, old)
        except BackendError as error:  # `Away` among them
            sweep.say(error.message)
    yield Leftover(kind="skypilot_machines", noun="cluster", rest="of runs with SkyPilot", count=count)


def _of_run(names: Mapping[str, bool], run: str) -> dict[str, bool]:
    return {name: managed for name, managed in names.items() if name.startswith(prefix_of(run))}


def _machines(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[SkyCommand, dict[str, bool]]]:
    """For each API server of the stacks, what it has of Stoker's: name → whether it is a managed job."""
    seen = set()
    for part in parts:
        settings = SkypilotSettings(**part)
        place = (settings.get("sky"), settings.get("api_server"))
        if place in seen:
            continue
        seen.add(place)
        sky = SkyCommand(settings, os.environ)
        names = {str(one.get("name")): False for one in sky.clusters()}
        for job in sky.managed_jobs(unfinished=True):
            names[str(job.get("job_name"))] = True
        yield sky, {name: managed for name, managed in names.items() if name.startswith(PREFIX)}
