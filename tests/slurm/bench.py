"""A bench for the Slurm backend: steps of a file, sent to a real cluster one by one, without an engine of runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import benches
from tests.servers import sshd
from tests.servers.slurm import Cluster
from tests.servers.sshd import Sshd

from stoker.backends.slurm.backend import SlurmBackend
from stoker.core.plan import Job
from stoker.core.protocol import JOB

CODE = '''
import os, signal, socket, subprocess, sys, time

from stoker import context


def add(a, b):
    print("adding", a, b)
    print("to stderr", file=sys.stderr)
    return a + b


def python():
    return [f"{sys.version_info[0]}.{sys.version_info[1]}", sys.prefix]


def fails():
    raise ValueError("no such thing")


def leaves():
    os._exit(7)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def hungry():
    pages = bytearray()
    while True:
        pages += os.urandom(8 << 20)
        time.sleep(0.02)


def slow():
    print("slow begins", flush=True)
    try:
        time.sleep(300)
    finally:
        time.sleep(1)  # nothing that a step does at its end is done at once
        print("slow was asked to end", flush=True)


def alone():
    """Until this is the only rank."""
    print("one of", context.world_size, flush=True)
    while context.world_size > 1:
        time.sleep(0.05)
    return context.world_size


def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf begins", flush=True)
    time.sleep(300)


def heeds():
    """Until it is warned."""
    print("heeding", flush=True)
    while not context.should_stop:
        time.sleep(0.05)
    return context.grace_left


def where():
    shown = sorted(name for name in os.environ if name.endswith("VISIBLE_DEVICES"))
    return {
        "host": socket.gethostname(),
        "visible": {name: os.environ[name] for name in shown},
        "devices": [one.uuid for one in context.devices],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }


def starts():
    if context.node == 0:
        command = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "sh", "-c", "echo rank $SLURM_PROCID"]
        subprocess.run(command, check=True)


def waits(path):
    print("waiting", flush=True)
    while not os.path.exists(path):
        time.sleep(0.05)
    return where()


def counts(path, until):
    """Writes a line for each time that it begins."""
    with open(path, "a") as file:
        file.write(socket.gethostname() + "\\n")
    print("counting", flush=True)
    while not os.path.exists(until):
        time.sleep(0.05)
    return len(open(path).readlines())
'''


class Bench(benches.Bench[SlurmBackend]):
    """One run's backends on a cluster."""

    CODE = CODE
    VALUES = ("add", "alone", "counts", "heeds", "python", "waits", "where")
    SECONDS = 180.0
    """Most comes about within three; a job that is started again waits for six."""

    def __init__(self, folder: Path, cluster: Cluster, bundle: Path) -> None:
        super().__init__(folder, bundle)
        self.cluster = cluster
        self.options = {"poll": 0.2, "python": "", "reuse": False}

    def backend(self, **options: Any) -> SlurmBackend:
        given = {name: value for name, value in {**self.options, **options}.items() if value != ""}
        made = SlurmBackend(self.site, given)
        self.made.append(made)
        return made

    def events(self, job: Job) -> list[str]:
        """The notes of a job's events, beside those that tell of its states."""
        notes = [event.note for one in self.news.get(job.name, ()) for event in one.events]
        return [note for note in notes if note != JOB]

    def messages(self, job: Job) -> list[str]:
        return [one.message for one in self.news.get(job.name, ()) if one.state == "queued"]

    def jobs(self) -> list[dict[str, str]]:
        """What the cluster knows of this bench's jobs."""
        home = Path(self.site.scratch) / "slurm"
        tokens = {path.parent.name for path in home.glob("*/*/jobs.json")} if home.exists() else set()
        self.tokens = getattr(self, "tokens", set()) | tokens
        return [job for job in self.cluster.jobs() if job["comment"] in self.tokens]


@pytest.fixture
def cluster(slurm_cluster: Cluster, monkeypatch: Any) -> Iterator[Cluster]:
    """The cluster without accounting, with this process' environment set to it; at the end no job is left on it."""
    yield from _used(slurm_cluster, monkeypatch)


@pytest.fixture
def accounted(accounted_cluster: Cluster, monkeypatch: Any) -> Iterator[Cluster]:
    """The cluster with accounting."""
    yield from _used(accounted_cluster, monkeypatch)


def _used(cluster: Cluster, monkeypatch: Any) -> Iterator[Cluster]:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield cluster
    cluster.end_jobs()


@pytest.fixture(scope="session")
def login_node(slurm_cluster: Cluster) -> Iterator[Sshd]:
    """A host that people log in to; whoever is in has the cluster's commands."""
    sshd.refuse(sshd.absence())
    with sshd.running(slurm_cluster.environment) as server:
        yield server


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def bench(tmp_path: Path, cluster: Cluster, bundle: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, cluster, bundle)
    yield made
    made.close()


STACK = """
stack = "cluster"
[stacks.cluster]
orchestrator = {flavor = "slurm", poll = 0.2, idle_after = "5s"}
"""


@pytest.fixture
def clustered(project: Any, cluster: Cluster) -> Any:
    """A project whose stack is the cluster."""
    project.write({"stoker.toml": STACK})
    return project


@pytest.fixture
def alone(clustered: Any) -> Any:
    """The same, with a job for each step."""
    clustered.write({"stoker.toml": STACK.replace("}", ", reuse = false}")})
    return clustered
