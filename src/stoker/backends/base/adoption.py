"""What outlives its driver on a platform: which jobs a later driver adopts, and which folders of jobs nobody needs.

A job is adopted for the same step with the same request, if it still runs or went well. A failed job is tried again.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Collection, Final, Generic, Iterable, Mapping, Sequence, TypeVar

import attrs

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.base.logins import Login, login
from stoker.backends.base.messages import request_digest
from stoker.core.errors import StokerError
from stoker.core.plan import Job
from stoker.core.words import dashed_name

Handle = TypeVar("Handle")
AGE: Final = 86400.0
"""Seconds for which the files of a run that is over stay: its driver may still remove them."""


@attrs.frozen(kw_only=True)
class EarlierJob(Generic[Handle]):
    """A job that an earlier driver sent, from what its platform knows of it."""

    run: str
    key: str
    kind: str
    """As `job_kind` has it."""
    attempt: int
    digest: str
    """`messages.request_digest` of the job."""
    handle: Handle


def job_kind(job: Job) -> str:
    """ "step", or the name of a hook: tells the jobs of a step from those of its hooks."""
    return job.hook.qualname if job.kind == "hook" and job.hook is not None else job.kind


def about(job: Job) -> dict[str, Any]:
    """What a later driver must know of a job to adopt it, as data."""
    return {"key": job.key, "kind": job_kind(job), "attempt": job.attempt, "digest": request_digest(job)}


class EarlierJobs(Generic[Handle]):
    """The jobs of earlier drivers that are not adopted yet."""

    def __init__(self) -> None:
        self._remaining: dict[tuple[str, str, str], list[EarlierJob[Handle]]] = {}

    def add(self, jobs: Iterable[EarlierJob[Handle]]) -> None:
        """Add jobs that a platform reports."""
        for job in jobs:
            self._remaining.setdefault((job.run, job.key, job.kind), []).append(job)

    def note(self, run: str, about: Mapping[str, Any], handle: Handle) -> None:
        """Add a job of which a platform kept what `about` says."""
        known = {name: about[name] for name in ("key", "kind", "attempt", "digest")}
        self.add([EarlierJob(run=run, handle=handle, **known)])

    def of(self, job: Job) -> list[Handle]:
        """The remaining jobs of the same step."""
        return [one.handle for one in self._remaining.get((job.run, job.key, job_kind(job)), ())]

    def adopt(self, job: Job, worth: Callable[[Handle], bool]) -> tuple[EarlierJob[Handle] | None, list[Handle]]:
        """The latest attempt with the same request that is `worth` it, and the other attempts, which are not needed.

        All of them are taken out.
        """
        attempts = self._remaining.pop((job.run, job.key, job_kind(job)), [])
        digest = request_digest(job) if attempts else ""
        adopted, others = None, []
        for earlier in sorted(attempts, key=lambda attempt: -attempt.attempt):
            if adopted is None and earlier.digest == digest and worth(earlier.handle):
                adopted = earlier
            else:
                others.append(earlier.handle)
        return adopted, others

    def remaining(self) -> list[Handle]:
        """The handles of all jobs that are not adopted."""
        return [one.handle for jobs in self._remaining.values() for one in jobs]

    def take_remaining(self) -> list[Handle]:
        """The same, taken out."""
        handles, self._remaining = self.remaining(), {}
        return handles


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
