"""Every step in the driver's own process, one after the other, so that `breakpoint()` and a debugger work.

What a step prints goes straight to the terminal and is not stored; a step that crashes takes the run with it.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any, Callable, Iterable, Iterator, Mapping

from stoker.backends.local import job_message, step_document
from stoker.backends.machine import check, room
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Job, JobStatus, LogLine, Site, StepPlan

Execute = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


class InlineBackend:
    """Runs a job when it is polled; `execute` is the worker's `run`, put in by the driver."""

    name = "inline"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._room = room(options)
        self._waiting: deque[Job] = deque()
        self._wake_in, self._wake_out = os.pipe()
        self.execute: Execute | None = None

    def capacity(self) -> Capacity:
        """One step at a time, as big as the machine."""
        return Capacity(cpus=self._room.cpus, memory=self._room.memory, slots=1)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What this machine cannot give a step; the same as without a debugger."""
        return check(step, self._room)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The message that the step's function is called for."""
        return {"message": job_message(job, 0), "step": step_document(job.step)}

    def submit(self, job: Job) -> str:
        """Put the job in line for the next poll."""
        self._waiting.append(job)
        os.write(self._wake_out, b"x")
        return job.name

    def wakeups(self) -> Iterable[int]:
        """Readable while a job waits."""
        return (self._wake_in,)

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Run the next job."""
        if not self._waiting:
            return {}
        if self.execute is None:
            raise BackendError("the inline backend has not been told how to run a job")
        job = self._waiting.popleft()
        os.read(self._wake_in, 1)
        with _surroundings(job.step.settings.environment):
            result = self.execute(job_message(job, 0), step_document(job.step))
        status = JobStatus(
            state="succeeded" if result["ok"] else "failed",
            result=result,
            cause=result.get("cause", ""),
            started=result["start"],
            ended=result["end"],
            usage={"cpu": result["cpu"]},
        )
        return {job.name: status}

    def logs(self, id: str, *, follow: bool = False) -> Iterator[LogLine]:
        """Nothing: output went to the terminal."""
        return iter(())

    def cancel(self, id: str, *, grace: float) -> None:
        """Take a waiting job out of the line; one that runs holds this very thread."""
        for job in list(self._waiting):
            if job.name == id:
                self._waiting.remove(job)
                os.read(self._wake_in, 1)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._wake_in)
        os.close(self._wake_out)


@contextlib.contextmanager
def _surroundings(environment: Mapping[str, str]) -> Iterator[None]:
    """A step's environment variables; whatever it does to them or to the working directory is put back."""
    before, folder = dict(os.environ), os.getcwd()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
