"""Folders of jobs on a cluster that are not needed: their runs are over, or their driver is long gone."""

from __future__ import annotations

import os
from typing import Collection, Final, Iterable, Sequence

from stoker.backends.base.backend import Leftover, Sweep
from stoker.backends.base.logins import Login, login
from stoker.core.errors import StokerError
from stoker.core.words import dashed_name

AGE: Final = 86400.0
"""Seconds for which the files of an interrupted run stay: `stoker resume` adopts its jobs."""


def sweep_folders(locations: Iterable[tuple[str | None, str]], sweep: Sweep) -> Iterable[Leftover]:
    """Remove the folders that are not needed, or count them in a dry run.

    A location is a host (None: this machine) and a path. A host that does not answer is named and left.
    """
    count = 0
    for host, folder in dict.fromkeys(locations):
        connection = login(host)
        try:
            root = connection.expand(folder)
            ours = None if root.startswith(f"{sweep.scratch}/") else sweep.ours
            folders = find_unneeded(connection, root, running=sweep.running, ours=ours, age=AGE)
            if not sweep.dry_run:
                remove(connection, folders)
        except StokerError as error:
            sweep.say(f"not looked into: {error}")
            continue
        finally:
            connection.close()
        count += len(folders)
    yield Leftover(kind="job_folders", noun="folder", rest="of runs on clusters", count=count)


def find_unneeded(
    login: Login, folder: str, *, running: Collection[str], ours: Collection[str] | None, age: float
) -> list[str]:
    """Folders of runs in which nothing has been submitted for `age` seconds and that do not run.

    Of a folder that others may share only those of runs that are `ours`; None: all are.
    """
    minutes = f"+{int(age // 60)}"
    options = ["-mindepth", "3", "-maxdepth", "3", "-name", "jobs.json"]
    old = _runs(login.run(["find", folder, *options, "-mmin", minutes]).out)
    fresh = _runs(login.run(["find", folder, *options, "!", "-mmin", minutes]).out)
    needed = {dashed_name(run) for run in running} | fresh
    our_names = None if ours is None else {dashed_name(run) for run in ours}
    return [f"{folder}/{run}" for run in sorted(old - needed) if our_names is None or run in our_names]


def remove(login: Login, folders: Sequence[str]) -> None:
    """Remove the folders."""
    if folders:
        login.remove(folders)


def _runs(paths: str) -> set[str]:
    """The names of the folders two levels above files: those of runs."""
    return {os.path.basename(os.path.dirname(os.path.dirname(path))) for path in paths.splitlines()}
