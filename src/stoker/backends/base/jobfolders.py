"""Folders of jobs on a cluster that are not needed: their runs are over, or their driver is long gone."""

from __future__ import annotations

import os
from typing import Callable, Collection, Final, Iterable, Sequence

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.base.logins import Login, login
from stoker.core.errors import StokerError
from stoker.core.words import dashed_name

AGE: Final = 86400.0
"""Seconds for which the files of a run that is over stay: its driver may still remove them."""


def sweep_folders(
    locations: Iterable[tuple[str | None, str]],
    sweep: Sweep,
    *,
    left: Callable[[Login, str], Sequence[LeftJob]] | None = None,
    end: Callable[[Login, str], object] | None = None,
) -> Iterable[Leftover]:
    """Remove the folders that are not needed, or count them in a dry run.

    A location is a host (None: this machine) and a path. A host that does not answer is named and left. `left` lists
    the jobs of a run's folder that go on or wait to be adopted, `end` ends them; without these, folders of interrupted
    runs stay unless the sweep is forced.
    """
    count = 0
    for host, folder in dict.fromkeys(locations):
        connection = login(host)
        try:
            root = connection.expand(folder)
            ours = None if root.startswith(f"{sweep.scratch}/") else sweep.ours
            gone = set(sweep.ours) - set(sweep.known)
            folders = find_unneeded(connection, root, running=sweep.running, ours=ours, age=AGE, gone=gone)
            folders = [one for one in folders if not _stays(connection, one, sweep, left, end)]
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
    login: Login,
    folder: str,
    *,
    running: Collection[str],
    ours: Collection[str] | None,
    age: float,
    gone: Collection[str] = (),
) -> list[str]:
    """Folders of runs in which nothing has been submitted for `age` seconds and that do not run, and those of runs that
    are `gone`, however old.

    Of a folder that others may share only those of runs that are `ours`; None: all are.
    """
    minutes = f"+{int(age // 60)}"
    options = ["-mindepth", "3", "-maxdepth", "3", "-name", "jobs.json"]
    old = _runs(login.run(["find", folder, *options, "-mmin", minutes]).out)
    fresh = _runs(login.run(["find", folder, *options, "!", "-mmin", minutes]).out)
    old |= fresh & (removed := {dashed_name(run) for run in gone})
    needed = {dashed_name(run) for run in running} | (fresh - removed)
    our_names = None if ours is None else {dashed_name(run) for run in ours}
    return [f"{folder}/{run}" for run in sorted(old - needed) if our_names is None or run in our_names]


def _stays(
    login: Login,
    folder: str,
    sweep: Sweep,
    left: Callable[[Login, str], Sequence[LeftJob]] | None,
    end: Callable[[Login, str], object] | None,
) -> bool:
    """Whether a run's folder stays because of jobs that go on or wait to be adopted; those that may go are ended."""
    run = os.path.basename(folder)
    resumable = run in map(dashed_name, sweep.resumable)
    deleted = run in map(dashed_name, set(sweep.ours) - set(sweep.known))
    if not resumable and not deleted:
        return False
    if left is None or end is None:
        return not sweep.force and run in map(dashed_name, sweep.interrupted)
    jobs = left(login, folder)
    if resumable and not sweep.force:
        return bool(jobs)
    if any(job.running for job in jobs) and not sweep.dry_run:
        end(login, folder)
    return resumable and any(not job.running for job in jobs)


def remove(login: Login, folders: Sequence[str]) -> None:
    """Remove the folders."""
    if folders:
        login.remove(folders)


def _runs(paths: str) -> set[str]:
    """The names of the folders two levels above files: those of runs."""
    return {os.path.basename(os.path.dirname(os.path.dirname(path))) for path in paths.splitlines()}
