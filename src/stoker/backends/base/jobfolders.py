"""Folders of jobs on a cluster that nobody needs: their runs are over, or their driver is long gone."""

from __future__ import annotations

import os
from typing import Collection, Sequence

from stoker.backends.base.logins import Login
from stoker.core.words import dashed


def found(
    login: Login, folder: str, *, running: Collection[str], ours: Collection[str] | None, age: float
) -> list[str]:
    """Folders of runs in which nothing has been submitted for `age` seconds and that do not run.

    Of a folder that others may share only those of runs that are `ours`; None: all are.
    """
    minutes = f"+{int(age // 60)}"
    options = ["-mindepth", "3", "-maxdepth", "3", "-name", "jobs.json"]
    old = _runs(login.run(["find", folder, *options, "-mmin", minutes]).out)
    fresh = _runs(login.run(["find", folder, *options, "!", "-mmin", minutes]).out)
    kept = {dashed(run) for run in running} | fresh
    mine = None if ours is None else {dashed(run) for run in ours}
    return [f"{folder}/{run}" for run in sorted(old - kept) if mine is None or run in mine]


def remove(login: Login, folders: Sequence[str]) -> None:
    """Take them away."""
    if folders:
        login.remove(folders)


def _runs(paths: str) -> set[str]:
    """The folders two above files: those of runs."""
    return {os.path.basename(os.path.dirname(os.path.dirname(path))) for path in paths.splitlines()}
