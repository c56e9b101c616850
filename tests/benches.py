"""A bench for a backend: steps of a file, sent to a real platform one by one, without an engine of runs."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from tests.steps import job_in, output_of

from stoker.backends.base.backend import RunningBackend
from stoker.core.plan import Job, JobStatus, LogLine, Site
from stoker.images.wheel import worker_bundle
from stoker.store.blobs import Blobs

Backend = TypeVar("Backend", bound=RunningBackend)


@pytest.fixture(scope="session")
def bundle(made_wheels: Path) -> Path:
    """Stoker's worker in a folder, for places that lack it."""
    return worker_bundle(made_wheels)


class Bench(Generic[Backend]):
    """One run's backends, site and store; steps are functions of `CODE`."""

    CODE: ClassVar[str]
    VALUES: ClassVar[tuple[str, ...]]
    """Functions of `CODE` that return something."""
    SECONDS: ClassVar[float]
    """For anything to come about."""

    def __init__(self, folder: Path, bundle: Path, **site: Any) -> None:
        self.folder, self.code = folder, folder / "code"
        self.code.mkdir(exist_ok=True)
        (self.code / "steps.py").write_text(self.CODE)
        self.blobs = Blobs(str(folder / "artifacts"))
        Path(self.blobs.uri).mkdir(exist_ok=True)
        self.site = Site(
            artifacts=self.blobs.uri,
            scratch=str(folder / "scratch"),
            folder=str(self.code),
            checkpoints=str(folder / "checkpoints"),
            bundle=str(bundle),
            **site,
        )
        self.options: dict[str, Any] = {}
        self.made: list[Backend] = []
        self.lines: dict[str, list[LogLine]] = {}
        self.news: dict[str, list[JobStatus]] = {}

    def close(self) -> None:
        """Close every backend."""
        for backend in self.made:
            with contextlib.suppress(RuntimeError):
                backend.close()

    def job(self, function: str, **given: Any) -> Job:
        """An attempt at a function of `CODE`."""
        return job_in(self.code, self.blobs, function, values=self.VALUES, **given)

    def until(self, backend: Backend, done: Callable[[], bool], seconds: float = 0.0) -> None:
        """Wait for a condition."""
        end = time.monotonic() + (seconds or self.SECONDS)
        while not done():
            assert time.monotonic() < end, (self.news, self.lines)
            select.select(list(backend.wakeups()), [], [], 0.2)
            self.poll(backend)

    def poll(self, backend: Backend) -> None:
        """Ask for what is new, and keep it: a backend says it once."""
        for name, status in backend.poll(()).items():
            self.news.setdefault(name, []).append(status)
            self.lines.setdefault(name, []).extend(status.lines)

    def ended(self, job: Job) -> JobStatus | None:
        """How a job ended; None for one that has not."""
        over = [one for one in self.news.get(job.name, ()) if one.state in ("succeeded", "failed") or one.lost]
        return over[-1] if over else None

    def over(self, backend: Backend, *jobs: Job) -> JobStatus:
        """Send jobs and wait for their ends; that of the first."""
        for job in jobs:
            backend.submit(job)
        return self.end(backend, *jobs)

    def end(self, backend: Backend, *jobs: Job, seconds: float = 0.0) -> JobStatus:
        """Wait for the ends of jobs; that of the first."""
        self.until(backend, lambda: all(self.ended(job) is not None for job in jobs), seconds)
        found = self.ended(jobs[0])
        assert found is not None
        return found

    def says(self, backend: Backend, job: Job, text: str) -> None:
        """Wait for a line of a job."""
        self.until(backend, lambda: text in self.texts(job))

    def texts(self, job: Job, stream: str = "stdout") -> list[str]:
        """The lines of a job."""
        return [line.text for line in self.lines.get(job.name, ()) if line.stream == stream]

    def output(self, status: JobStatus | None) -> Any:
        """What a job has returned."""
        return output_of(status, self.blobs)
