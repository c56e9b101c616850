"""A backend: each step is a process of this machine, with a umask of its own.

orchestrator = {flavor = "acme", umask = "027"}
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import Backend, FlowDecorator, RunningBackend, Services
from stoker.backends.base.messages import boot_spec
from stoker.backends.base.platforms import JobReport
from stoker.backends.base.statuses import failed, of_boot
from stoker.backends.base.watched import Watched
from stoker.core.codec import from_json, to_json
from stoker.core.errors import SettingsError
from stoker.core.findings import Check, Finding
from stoker.core.plan import Job, JobStatus, Site, StepPlan, reporter_of
from stoker.core.protocol import RESULT, StepResult
from stoker.core.status import WORKER_LOST
from stoker.core.units import UNSET, count, strict, value_or

FEWEST = 64
SHELL = "/bin/sh"


def parse_open_files(value: Any) -> Any:
    """A number of files; a process needs some to start."""
    if value is None or value is UNSET:
        return value
    if count(value) < FEWEST:
        raise SettingsError(f"open_files: {value!r} is less than {FEWEST}", fix=f"write open_files={FEWEST} or more")
    return count(value)


@strict
@attrs.frozen(kw_only=True)
class AcmeSettings:
    """How a step's process is started."""

    open_files: int | None = attrs.field(default=UNSET, converter=parse_open_files)
    """The most files that each process of the step may have open at a time (`ulimit -n`); the machine's own limit where
    nothing is given."""


class AcmeBackend(Watched):
    """Runs the jobs of one run."""

    name = "acme"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = options
        super().__init__(AcmePlatform(site, options))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What a plain process cannot give a step is refused."""
        report, resources = reporter_of(step), step.settings.resources
        if resources.gpus_per_node:
            yield report.error("ACME201", "asks for accelerators", "Acme leases none", "use another backend")
        if resources.get("nodes", 1) > 1:
            yield report.refused("ACME202", "asks for several nodes", "a process is on one", "resources.nodes=1")
        if step.settings.docker is not None:
            yield report.refused("ACME203", "asks for an image", "it runs in the driver's Python", "docker=null")

    def render(self, job: Job) -> Mapping[str, Any]:
        """Exactly what is started, and the document that it reads."""
        return {"command": command(job, self._options, "SPEC"), "document": document(job, self._site)}


def command(job: Job, options: Mapping[str, Any], spec: str) -> list[str]:
    """What is started for a job: the worker, under the step's limit."""
    own = next(iter(job.step.settings.backend.values()), {})
    limit = value_or(AcmeSettings(**{**options, **own}).open_files, None)
    worker = [sys.executable, "-m", "stoker.worker.boot", spec]
    return worker if limit is None else [SHELL, "-c", 'ulimit -n "$0" && exec "$@"', str(limit), *worker]


def document(job: Job, site: Site) -> dict[str, Any]:
    """All that a job is told."""
    spec: dict[str, Any] = to_json(boot_spec(job, site, checkpoints=site.checkpoints, grace=5.0))
    return spec


@attrs.define
class Handle:
    """A job that runs."""

    job: Job
    folder: Path
    """Where its document, its output and its result are."""
    process: subprocess.Popen[bytes]
    offsets: dict[str, int] = attrs.field(factory=dict)
    """stream → bytes that were read of it."""

    def output(self) -> list[tuple[int, str, bytes]]:
        """What it wrote since the last call: node, stream, bytes."""
        pieces = []
        for stream in ("stdout", "stderr"):
            with open(self.folder / stream, "rb") as file:
                file.seek(self.offsets.get(stream, 0))
                pieces.append((0, stream, file.read()))
                self.offsets[stream] = file.tell()
        return pieces

    def status(self) -> JobStatus:
        """How it ended: its own result is believed before its exit code."""
        result = self.folder / RESULT
        if not result.exists():
            return failed(WORKER_LOST, f"the process ended with {self.process.returncode} and left no result")
        document = from_json(StepResult, json.loads(result.read_text()), strict=False)
        return of_boot(document, None, memory=self.job.step.settings.resources.get("memory", 0))


class AcmePlatform:
    """Starts processes and looks after them; called by one thread of `Watched`."""

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = options

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Jobs of an earlier driver: none, since a process ends with its driver."""
        return {}

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        """Start a process for each job."""
        return {job.name: self._start(job) for job in jobs}

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, JobReport]:
        """What each wrote, and whether it is over."""
        return {name: _look(handle) for name, handle in handles.items()}

    def end(self, handles: Mapping[str, Any], *, grace: float) -> None:
        """Ask processes to end, or end them where there is no grace left."""
        for handle in handles.values():
            handle.process.terminate() if grace else handle.process.kill()

    def forget(self, handle: Any) -> None:
        """Remove the folder of a job that is over."""
        shutil.rmtree(handle.folder, ignore_errors=True)

    def close(self) -> None:
        """Nothing is open."""

    def _start(self, job: Job) -> Handle:
        Path(self._site.scratch).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="acme-", dir=self._site.scratch))
        spec = folder / "job.json"
        spec.write_text(json.dumps(document(job, self._site)))
        with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
            argv = command(job, self._options, str(spec))
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        return Handle(job, folder, process)


def _look(handle: Handle) -> JobReport:
    over = handle.process.poll() is not None  # before its output is read: nothing comes after that
    return JobReport(running=True, output=handle.output(), status=handle.status() if over else None)


def open_acme(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """The backend of one run."""
    return AcmeBackend(site, options)


def doctor() -> Iterator[Check]:
    """Whether the shell is there."""
    shell = shutil.which(SHELL)
    yield Check(name="acme", found=shell or "", problem="" if shell else f"there is no {SHELL}")


ACME = Backend(
    name="acme",
    title="Acme",
    settings=AcmeSettings,
    open=open_acme,
    decorator=FlowDecorator(
        name="acme", title="Acme", settings=AcmeSettings, help="Run the step at Acme: `@acme(open_files=512)`."
    ),
    doctor=doctor,
)
