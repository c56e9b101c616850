"""What steps with a process of their own were seen to import, so that the next such process has it from the start.

Kept in the home between runs, by the digest of a step's code: a step whose code changed is watched anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final

from stoker.core.plan import Job
from stoker.worker.imports import FORKABLE, tuning

_MOST: Final = 1_000
"""Steps that are kept, those used last."""


class Preloads:
    """The packages by step; `path` is the file between runs, empty for none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: dict[str, tuple[str, ...]] | None = None
        self._changed = False

    def of(self, job: Job) -> tuple[str, ...]:
        """The packages to import before the process of a job is forked; none before it was seen."""
        if not _imports_may_come_first(job):
            return ()
        known, key = self._known(), _key(job)
        names = known.pop(key, ())
        if names:
            known[key] = names  # among those used last
        return names

    def learn(self, job: Job, imports: tuple[str, ...]) -> None:
        """Take note of what the process of a job imported."""
        known, key = self._known(), _key(job)
        if _imports_may_come_first(job) and known.get(key, ()) != imports:
            known.pop(key, None)
            if imports:
                known[key] = imports
            self._changed = True

    def save(self) -> None:
        """Write the file, if there is something new; a file that cannot be written only costs time later."""
        if not self._changed or not self._path or self._names is None:
            return
        import tempfile

        self._changed = False
        newest = dict(list(self._names.items())[-_MOST:])
        with contextlib.suppress(OSError):
            folder = os.path.dirname(self._path)
            with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".imports-", delete=False) as file:
                json.dump(newest, file)
            os.replace(file.name, self._path)

    def _known(self) -> dict[str, tuple[str, ...]]:
        if self._names is None:
            self._names = _read(self._path)
        return self._names


def _imports_may_come_first(job: Job) -> bool:
    """Whether a job is a step's own process, without variables that packages read when they are imported."""
    settings = job.step.settings
    return job.kind == "step" and settings.launch is None and not tuning(settings.environment)


def _key(job: Job) -> str:
    return f"{job.step.code} {job.step.environment}".rstrip()


def _read(path: str) -> dict[str, tuple[str, ...]]:
    """The file's content; what is damaged in it is left out."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {
        key: names
        for key, value in document.items()
        if isinstance(value, list) and (names := tuple(name for name in FORKABLE if name in value))
    }
