"""Jobs that stand in line at a worker that is slow to read them: none waits for ever, and none comes without its step.

A worker that is stopped stands for one that the machine gives no time to; what it then does is the same each time.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.backends.local.backend import LocalBackend
from stoker.core import wire
from stoker.core.artifact import from_wire
from stoker.core.graph import StepOutput
from stoker.core.plan import Job, JobStatus, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.worker.forked import WorkerHandle

STEPS = """
import os, time

def pid():
    return os.getpid()

def wait_for(path):
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "begun-" + os.path.basename(path)), "w").close()
    while not os.path.exists(path):
        time.sleep(0.005)
    return os.getpid()
"""


class Bench:
    """A local backend, and jobs for it."""

    def __init__(self, folder: Path) -> None:
        (folder / "linesteps.py").write_text(STEPS)
        self.folder = folder
        self.blobs = Blobs(str(folder / "artifacts"))
        site = Site(
            artifacts=self.blobs.uri,
            scratch=str(folder / "scratch"),
            path=tuple(sys.path),
            folder=str(folder),
            sources=(self.source("pid"),),
        )
        self.backend = LocalBackend(site, {"cpus": 2})
        self.over: dict[str, JobStatus] = {}

    def source(self, name: str) -> FunctionSource:
        return FunctionSource(kind="module", module="linesteps", qualname=name, root=str(self.folder))

    def submit(self, name: str, job: str, *, behind: bool = False, marked: bool = True, **inputs: str) -> str:
        step = StepPlan(
            key=name,
            name=name,
            source=self.source(name),
            outputs=(StepOutput(name="output"),),
            unpack=False,
            inputs={},
            settings=StepSettings(),
            backend="orchestrator",
            code="",
        )
        trees: dict[str, Any] = {
            key: {"value": artifacts.save(value, self.blobs).wire()} for key, value in inputs.items()
        }
        return self.backend.submit(
            Job(name=job, run="run", key=job, attempt=1, step=step, inputs=trees, marked=marked, behind=behind)
        )

    def value(self, job: str) -> Any:
        """What a job returned, once it has."""
        deadline = time.monotonic() + 60
        while job not in self.over:
            assert time.monotonic() < deadline, f"{job} never ended"
            select.select(list(self.backend.wakeups()), [], [], 1)
            news = self.backend.poll(())
            self.over.update({name: status for name, status in news.items() if status.state != "running"})
        result = self.over[job].result
        assert result is not None and result.ok, self.over[job]
        return artifacts.load(from_wire(result.outputs["output"]), self.blobs)

    def two_workers(self) -> tuple[int, int]:
        """The process ids of a worker that waits for a file, "go", and of an idle one."""
        first = self.submit("wait_for", "first", path=str(self.folder / "started"))
        idle = self.value(self.submit("pid", "second"))
        (self.folder / "started").touch()
        busy = self.value(first)
        # The one that became idle last is the next one to be given a job.
        self.submit("wait_for", "busy", marked=False, path=str(self.folder / "go"))
        return busy, idle

    def line_of(self, job: str) -> WorkerHandle:
        return self.backend._worker_of[job]


def stopped(worker: int) -> None:
    """Stop a worker, and wait until it is."""
    os.kill(worker, signal.SIGSTOP)
    while psutil.Process(worker).status() != psutil.STATUS_STOPPED:
        continue


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.backend.close()


def test_a_worker_whose_line_was_taken_is_used_again(bench: Bench) -> None:
    busy, idle = bench.two_workers()
    stopped(idle)
    never = str(bench.folder / "never")
    bench.submit("wait_for", "long", path=never)
    bench.submit("pid", "short", behind=True)
    assert bench.line_of("long") is bench.line_of("short"), "both stand at the worker that reads nothing"
    (bench.folder / "go").touch()
    # Now the busy one is idle and takes what stands unread. One of the two jobs goes back to the stopped worker, which
    # is as idle as it looks; in no case do both stand behind each other at the same worker.
    assert bench.value("busy") == busy
    assert bench.line_of("long") is not bench.line_of("short")
    os.kill(idle, signal.SIGCONT)
    assert bench.value("short") in (busy, idle)


def test_each_job_brings_its_step_until_the_worker_has_run_it(bench: Bench) -> None:
    _, idle = bench.two_workers()
    stopped(idle)
    bench.submit("wait_for", "one", path=str(bench.folder))
    for number in range(3):
        bench.submit("wait_for", f"more {number}", behind=True, path=str(bench.folder))
    line = bench.line_of("one")
    # The driver takes the first one back, and the worker comes and reads the second: it must not need the first.
    first = wire.unpacked(line._reader.recv(2 * wire.DATAGRAM_LIMIT))
    assert first["job"] == "one" and "steps" in first
    line.jobs.remove("one")
    for output in line.outputs:
        output.owners.remove("one")
    os.kill(idle, signal.SIGCONT)
    assert [bench.value(f"more {number}") for number in range(3)] == [idle] * 3
    bench.submit("wait_for", "known", path=str(bench.folder))
    assert bench.value("known") == idle


def test_a_worker_that_dies_takes_only_its_own_job_along(bench: Bench) -> None:
    _, idle = bench.two_workers()
    bench.submit("wait_for", "dies", path=str(bench.folder / "never"))
    for number in range(3):
        bench.submit("pid", f"behind {number}", behind=True)
    line = bench.line_of("dies")
    assert [*line.jobs] == ["dies", "behind 0", "behind 1", "behind 2"]
    while not (bench.folder / "begun-never").exists():
        continue
    os.kill(idle, signal.SIGKILL)
    values = [bench.value(f"behind {number}") for number in range(3)]
    assert idle not in values, "they ran elsewhere, without the engine hearing of it"
    died = bench.over["dies"]
    assert (died.state, died.exit_code, died.lost) == ("failed", -signal.SIGKILL, False)
