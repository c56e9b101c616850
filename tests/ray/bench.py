"""A bench for the Ray backend: steps of a file, sent to a real cluster without an engine of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests import benches
from tests.servers.raycluster import TOKEN, RayCluster

from stoker.backends.ray.backend import RayBackend
from stoker.core.plan import Job, JobStatus

CODE = """
import os, signal, sys, time

from stoker import context


def add(a, b):
    print("adding", a, b)
    print("to stderr", file=sys.stderr)
    return a + b


def fails():
    raise ValueError("no such thing")


def leaves():
    os._exit(7)


def ancestors():
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def kills_the_task(folder):
    # The job itself is a child of Ray's worker, which runs the task.
    for pid in ancestors():
        if b"stoker.backends.ray.warm" in open(f"/proc/{pid}/cmdline", "rb").read():
            boot = pid
    worker = int(open(f"/proc/{boot}/stat").read().rpartition(")")[2].split()[1])
    with open(os.path.join(folder, "pids"), "w") as file:
        file.write(f"{worker} {boot} {os.getpid()}")
    os.kill(worker, signal.SIGKILL)
    time.sleep(60)


def meet(folder, name, others):
    # Until all are there: so that they certainly run at the same time.
    open(os.path.join(folder, name), "w").close()
    while not all(os.path.exists(os.path.join(folder, one)) for one in others):
        time.sleep(0.02)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [visible, [device.uuid for device in context.devices], [device.memory for device in context.devices]]


def sees():
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def slow(folder):
    print("slow begins", flush=True)
    assert not context.should_stop
    while not context.should_stop:
        time.sleep(0.02)
    open(os.path.join(folder, "saved"), "w").close()
    print("slow saved", flush=True)


def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf begins", flush=True)
    time.sleep(60)


def trains(saved):
    # A checkpoint, and death once a copy of it is in the store; another attempt returns what it finds.
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


COUNT = []


def counted():
    COUNT.append(1)
    return [len(COUNT), os.getpid()]


def imports(name):
    import importlib

    module = importlib.import_module(name)
    return [getattr(module, "VALUE", None), sys.prefix]


def variable(name):
    return os.environ.get(name)


def devices():
    names = ("TPU_VISIBLE_CHIPS", "NEURON_RT_VISIBLE_CORES", "CUDA_VISIBLE_DEVICES")
    uuids = [device.uuid for device in context.devices]
    return [os.environ["STOKER_NODE_ID"], {name: os.environ.get(name) for name in names}, uuids]


def machine():
    return os.environ["STOKER_NODE_ID"]


def place():
    return [context.node, context.nodes, os.environ["STOKER_NODE_ADDR"], os.environ["RAY_ADDRESS"]]
"""


class Bench(benches.Bench[RayBackend]):
    """One run's backends on a cluster."""

    CODE = CODE
    VALUES = ("add", "counted", "meet", "sees", "waits", "trains", "place", "machine", "imports", "variable", "devices")
    SECONDS = 90.0

    def __init__(self, folder: Path, address: str, bundle: Path) -> None:
        super().__init__(folder, bundle, path=(str(folder / "code"),), simulate="2xH100")
        self.options = {"address": address, "token": "env:TOKEN_OF_RAY"}

    def backend(self, **options: Any) -> RayBackend:
        made = RayBackend(self.site, {**self.options, **options})
        self.made.append(made)
        return made

    def all_over(self, backend: RayBackend, jobs: Sequence[Job]) -> list[JobStatus]:
        """Send jobs and wait for their ends; those of all."""
        self.over(backend, *jobs)
        return [self.end(backend, job) for job in jobs]

    def far(self) -> None:
        """The cluster is taken for one that does not see this machine's folders, but for a store by its URI."""
        self.site = attrs.evolve(self.site, artifacts=f"file://{self.folder}/artifacts", checkpoints="")
        self.options["shares_files"] = False


STACK = """
stack = "ray"
[stacks.ray]
orchestrator = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY"}}
"""


@pytest.fixture
def raying(project: Any, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack is the cluster."""
    monkeypatch.setenv("TOKEN_OF_RAY", TOKEN)
    return project.write({"stoker.toml": STACK.format(address=ray_cluster.dashboard)})


@pytest.fixture
def bench(
    tmp_path: Path,
    ray_cluster: RayCluster,
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    """A bench on the cluster."""
    monkeypatch.setenv("TOKEN_OF_RAY", TOKEN)
    made = Bench(tmp_path, ray_cluster.dashboard, bundle)
    yield made
    made.close()
