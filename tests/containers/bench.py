"""A bench for container backends: steps of a file, sent to a real engine one by one, without an engine of runs."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine
from tests.steps import job_in, output_of, source_in

from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.backends.docker.backend import DockerBackend
from stoker.core.plan import Job, JobStatus, LogLine, Site
from stoker.core.settings import DockerSettings
from stoker.images.wheel import worker_bundle
from stoker.store.blobs import Blobs

CODE = """
import os, signal, sys, time


def add(a, b):
    print("adding", a, b)
    print("to stderr", file=sys.stderr)
    return a + b


def fails():
    raise ValueError("no such thing")


def leaves():
    os._exit(7)


def hungry():
    pages = bytearray()
    while True:
        pages += bytes(1 << 20)


def slow():
    print("slow begins", flush=True)
    try:
        time.sleep(60)
    finally:
        print("slow was asked to end", flush=True)


def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf begins", flush=True)
    time.sleep(60)


def surroundings():
    return {
        "environment": dict(os.environ),
        "big": "x" * 100_000,  # too big to travel within the result: a file in the store
        "user": f"{os.getuid()}:{os.getgid()}",
        "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
        "secret": open("/run/secrets/token").read() if os.path.exists("/run/secrets/token") else "",
        "mounted": os.listdir("/mnt/data") if os.path.exists("/mnt/data") else [],
        "network": sorted(os.listdir("/sys/class/net")),
    }


def child_dies():
    pid = os.fork()
    if pid == 0:
        hungry()
    os.waitpid(pid, 0)
    return "went on"


def trains(saved):
    # A checkpoint, and death once a copy of it is in the store; another attempt returns what it finds.
    from stoker import context
    state = context.checkpoint_dir / "state"
    before = state.read_text() if state.exists() else ""
    if before:
        return before
    state.with_suffix(".new").write_text(f"by attempt {context.attempt}")
    os.replace(state.with_suffix(".new"), state)
    while not os.path.isdir(saved) or not [name for name in os.listdir(saved) if name.endswith(".json")]:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def waits(path):
    print("waiting", flush=True)
    while not os.path.exists(path):
        time.sleep(0.05)
    return "seen"
"""


VALUES = ("add", "surroundings", "child_dies", "waits", "sees", "trains")
"""Functions of `CODE` that return something."""


@pytest.fixture(scope="session")
def bundle(made_wheels: Path) -> Path:
    """Stoker's worker in a folder, for images that lack it."""
    return worker_bundle(made_wheels)


class Bench:
    """One run's backend, site and store; steps are functions of `CODE`."""

    def __init__(self, folder: Path, image: str, bundle: Path) -> None:
        self.image = image
        code = folder / "code"
        code.mkdir(exist_ok=True)
        (code / "steps.py").write_text(CODE)
        self.blobs = Blobs(str(folder / "artifacts"))
        self.site = Site(
            artifacts=self.blobs.uri,
            scratch=str(folder / "scratch"),
            folder=str(code),
            checkpoints=str(folder / "checkpoints"),
            bundle=str(bundle),
            sources=(source_in(code, "add"),),
        )
        self.code = code
        self.flags = folder / "flags"
        self.flags.mkdir(exist_ok=True)
        self.options: dict[str, Any] = {"network": "host", "mounts": [str(self.flags)], "reuse": False}
        self.made: list[DockerBackend] = []
        self.dropped: list[DockerBackend] = []
        self.lines: dict[str, list[LogLine]] = {}
        self.news: dict[str, list[JobStatus]] = {}
        Path(self.blobs.uri).mkdir(exist_ok=True)

    def backend(self, services: Services = NO_SERVICES, **options: Any) -> DockerBackend:
        made = DockerBackend(self.site, {**self.options, **options}, services)
        self.made.append(made)
        return made

    def drop(self, backend: DockerBackend) -> None:
        """Leave a backend as a killed driver does; its threads go on until the bench is closed."""
        self.made.remove(backend)
        self.dropped.append(backend)

    def close(self) -> None:
        """Close every backend, the dropped ones last: their threads must not outlive the engine that they follow."""
        for backend in (*self.made, *self.dropped):
            backend.close()

    def job(self, function: str, **given: Any) -> Job:
        docker = DockerSettings(parent_image=self.image, skip_build=True)
        return job_in(self.code, self.blobs, function, values=VALUES, image=self.image, docker=docker, **given)

    def until(self, backend: DockerBackend, done: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, (self.news, self.lines)
            select.select(list(backend.wakeups()), [], [], 0.2)
            self.poll(backend)

    def poll(self, backend: DockerBackend) -> None:
        """Ask for what is new, and keep it: a backend says it once."""
        for name, status in backend.poll(()).items():
            self.news.setdefault(name, []).append(status)
            self.lines.setdefault(name, []).extend(status.lines)

    def over(self, backend: DockerBackend, job: Job) -> JobStatus:
        backend.submit(job)
        return self.end(backend, job)

    def end(self, backend: DockerBackend, job: Job) -> JobStatus:
        def ended() -> bool:
            return any(one.state in ("succeeded", "failed") or one.lost for one in self.news.get(job.name, ()))

        self.until(backend, ended)
        self.poll(backend)  # the end is recorded: containers and files may go
        for attempt in backend._leaving:
            attempt.thread.join(60)
        return self.news[job.name][-1]

    def texts(self, job: Job, stream: str = "stdout") -> list[str]:
        return [line.text for line in self.lines.get(job.name, ()) if line.stream == stream]

    def output(self, status: JobStatus) -> Any:
        return output_of(status, self.blobs)


@pytest.fixture
def bench(tmp_path: Path, engine: Engine, base_image: str, bundle: Path, monkeypatch: Any) -> Iterator[Bench]:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    made = Bench(tmp_path, base_image, bundle)
    yield made
    made.close()


def names(engine: Engine) -> list[str]:
    """Every container of an engine."""
    return engine.run("ps", "--all", "--format", "{{.Names}}").stdout.split()
