"""A bench for container backends: steps of a file, sent to a real engine one by one, without an engine of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import benches
from tests.servers.containers import Engine
from tests.steps import source_in

from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.backends.docker.backend import DockerBackend
from stoker.core.plan import Job, JobStatus
from stoker.core.settings import DockerSettings

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


class Bench(benches.Bench[DockerBackend]):
    """One run's backends on an engine."""

    CODE = CODE
    VALUES = ("add", "surroundings", "child_dies", "waits", "sees", "trains")
    SECONDS = 60.0

    def __init__(self, folder: Path, image: str, bundle: Path) -> None:
        super().__init__(folder, bundle, sources=(source_in(folder / "code", "add"),))
        self.image = image
        self.flags = folder / "flags"
        self.flags.mkdir(exist_ok=True)
        self.options = {"network": "host", "mounts": [str(self.flags)], "reuse": False}
        self.dropped: list[DockerBackend] = []

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
        return super().job(function, image=self.image, docker=docker, **given)

    def end(self, backend: DockerBackend, *jobs: Job, seconds: float = 0.0) -> JobStatus:
        super().end(backend, *jobs, seconds=seconds)
        self.poll(backend)  # the end is recorded: containers and files may go
        for attempt in backend._leaving:
            attempt.thread.join(60)
        return self.news[jobs[0].name][-1]


@pytest.fixture
def bench(tmp_path: Path, engine: Engine, base_image: str, bundle: Path, monkeypatch: Any) -> Iterator[Bench]:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    made = Bench(tmp_path, base_image, bundle)
    yield made
    made.close()


def names(engine: Engine) -> list[str]:
    """Every container of an engine."""
    return engine.run("ps", "--all", "--format", "{{.Names}}").stdout.split()
