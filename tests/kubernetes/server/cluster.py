"""A cluster for tests: started once for all tests of a process, and empty at the beginning of each."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import yaml
from attrs import define, field
from tests.kubernetes.server.kubelet import SERVER
from tests.kubernetes.server.objects import Object

REPOSITORY = Path(__file__).resolve().parents[3]
T = TypeVar("T")
GPU_LABELS = {
    "node.kubernetes.io/instance-type": "gpu-8x",
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
}
"""Labels of the recorded node."""
CAPACITY = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "200Gi", "pods": "16"}
"""What a node has unless a test says otherwise: two nodes run 16 steps of one core at once."""
NODES: list[Object] = [
    {"name": "gpu-node-1", "capacity": {**CAPACITY, "nvidia.com/gpu": "8"}, "labels": GPU_LABELS},
    {"name": "cpu-node-1", "capacity": CAPACITY, "labels": {"node.kubernetes.io/instance-type": "cpu-8"}},
]
"""The nodes of a cluster unless a test says otherwise."""
SPEED = 20.0
"""How much faster than in a real cluster its own waits pass (back-offs, syncs, silence of nodes)."""


@define(eq=False)
class LocalCluster:
    """A cluster that runs, and the levers of it."""

    folder: Path
    url: str
    """Of the API server."""
    token: str
    """Of one who may do everything."""
    process: subprocess.Popen[bytes]
    kubeconfig: Path = field(init=False)
    """File with the context "test", of the administrator in the namespace "default"."""

    def __attrs_post_init__(self) -> None:
        self.kubeconfig = self.kubeconfig_for(self.token)

    @classmethod
    def start(cls, folder: Path) -> LocalCluster:
        """Start a server whose files are all below `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.kubernetes.server.program", str(folder)],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A Ctrl-C at the terminal is the tests' business.
                start_new_session=True,
            )
        begun = _answer(process, folder)
        return cls(folder, begun["url"], begun["token"], process)

    def close(self) -> None:
        """End the server and all that it has started.

        Raises:
            AssertionError: A process of a container had to be ended from here.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not left, f"containers outlived the server: {left}"

    def gone(self) -> bool:
        """Whether the server has ended by itself; the next test gets another one."""
        return self.process.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """All processes of containers of this server."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(SERVER) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kubeconfig_for(self, token: str, *, namespace: str = "default", name: str = "kubeconfig") -> Path:
        """A kubeconfig file with the context "test" for the holder of a token."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump(document))
        return path

    def ask(self, do: str, **arguments: Any) -> Any:
        """Pull a lever; see `program.Server.commands`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return _answer(self.process, self.folder)["answer"]

    def reset(self, nodes: list[Object] | None = None, *, speed: float = SPEED) -> None:
        """Begin anew: no objects, no bad luck, and these nodes."""
        self.ask("reset", nodes=NODES if nodes is None else nodes, speed=speed)

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 0,
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
        **capacity: str,
    ) -> None:
        """Add a node with `CAPACITY`, or with what `capacity` says instead ("memory", "example_com/device")."""
        has = {**CAPACITY, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        has |= {resource.replace("_", "."): amount for resource, amount in capacity.items()}
        labels = labels if labels is not None else GPU_LABELS if gpus else {}
        self.ask("add_node", name=name, capacity=has, labels=labels, taints=taints or [])

    def remove_node(self, name: str) -> None:
        """Take a node away, with the processes on it, as an autoscaler does."""
        self.ask("remove_node", name=name)

    def cordon(self, name: str, unschedulable: bool = True) -> None:
        """Have a node take no new pods."""
        self.ask("change_node", name=name, unschedulable=unschedulable)

    def drain(self, name: str) -> None:
        """Cordon a node and evict its pods, as `kubectl drain` does."""
        self.ask("drain", name=name)

    def lose_node(self, name: str) -> None:
        """Have a node fall silent: its containers go on, but the API hears nothing of them."""
        self.ask("lose_node", name=name)

    def answer_node(self, name: str) -> None:
        """Have a silent node answer again."""
        self.ask("answer_node", name=name)

    def fault(self, kind: str, **fault: Any) -> None:
        """Have bad luck come to the requests that `fault` describes; see `faults.Fault`."""
        self.ask("fault", kind=kind, **fault)

    def clear_faults(self) -> list[Object]:
        """End all bad luck; how many requests each kind has hit."""
        hits: list[Object] = self.ask("clear_faults")
        return hits

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within the block the whole server stands still: it takes connections and answers nobody."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def cut_executions(self, *after: int) -> int:
        """Break the connections of commands in pods that are executed now, or, of as many of the next ones as `after`
        has numbers, once so many bytes have gone; how many were broken."""
        if after:
            self.ask("cut_executions_after", sizes=list(after))
            return 0
        return int(self.ask("cut_executions"))

    def skew(self, seconds: float) -> None:
        """Put the cluster's clock ahead of the machine's."""
        self.ask("skew", seconds=seconds)

    def fail_image(self, expression: str, kind: str) -> None:
        """Have images whose name matches in full not be pulled; `kind` is one of `images.WORDS`, or "ok"."""
        self.ask("image", rule=expression, kind=kind)

    def account_token(self, namespace: str, name: str) -> str:
        """A token of a service account; what it may do say roles and bindings."""
        return str(self.ask("account_token", namespace=namespace, name=name))

    def counts(self) -> dict[str, int]:
        """How many requests there were since the test began, as in {"create jobs": 1, "watch pods": 2}."""
        counts: dict[str, int] = self.ask("counts")
        return counts

    def pids(self) -> dict[str, list[int]]:
        """The main processes of the containers that run, by the pod's namespace and name."""
        pids: dict[str, list[int]] = self.ask("pids")
        return pids

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        token: str | None = None,
        timeout: float = 60.0,
    ) -> tuple[int, Any]:
        """Send a request as the administrator, or with another token ("" for none); status and body of the reply."""
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", content_type)
        if token != "":
            request.add_header("Authorization", f"Bearer {token or self.token}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                status, text = reply.status, reply.read()
                kind = reply.headers.get("Content-Type", "")
        except urllib.error.HTTPError as error:
            with error:
                status, text, kind = error.code, error.read(), error.headers.get("Content-Type", "")
        watched = "watch=true" in path
        return status, json.loads(text) if "json" in kind and not watched else text.decode()

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[Iterator[bytes]]:
        """The lines of a reply that goes on: a watch, or a log that is followed."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            yield iter(reply)

    def get(self, path: str) -> Any:
        """The object or list at a path."""
        status, body = self.request("GET", path)
        assert status == 200, (status, body)
        return body

    def create(self, path: str, body: Object) -> Object:
        """Create an object; as it was stored."""
        status, stored = self.request("POST", path, body)
        assert status == 201, (status, stored)
        assert isinstance(stored, dict)
        return stored

    def delete(self, path: str, **options: Any) -> Object:
        """Delete an object."""
        status, reply = self.request("DELETE", path, options or None)
        assert status == 200, (status, reply)
        assert isinstance(reply, dict)
        return reply

    def wait(self, question: Callable[[], T | None], seconds: float = 60.0) -> T:
        """The first answer that is true."""
        end = time.monotonic() + seconds
        while True:
            answer = question()
            if answer:
                return answer
            assert time.monotonic() < end, f"no answer from {question} in {seconds} s"
            time.sleep(0.02)


def _answer(process: subprocess.Popen[bytes], folder: Path) -> Any:
    """The server's next line."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    line = process.stdout.readline() if ready else b""
    if not line:
        log = (folder / "server.log").read_text()[-4000:]
        raise AssertionError(
            f"the server gave no answer; it is {'gone' if process.poll() is not None else 'there'}:\n{log}"
        )
    answer = json.loads(line)
    assert "error" not in answer, answer["error"]
    return answer


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[LocalCluster]:
    """The server of all tests of this process, in a folder with a short name: a step's sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="k8s-", ignore_cleanup_errors=True) as folder:
        server = LocalCluster.start(Path(folder))
        try:
            yield server
        finally:
            server.close()


@pytest.fixture
def cluster(cluster_server: LocalCluster, used_home: Path) -> Iterator[LocalCluster]:
    """An empty cluster with the nodes of `NODES`; what the test leaves running is ended."""
    log = cluster_server.folder / "server.log"
    written = log.stat().st_size
    cluster_server.reset()
    yield cluster_server
    cluster_server.process.send_signal(signal.SIGCONT)
    cluster_server.reset(nodes=[])
    said = log.read_bytes()[written:].decode(errors="replace")
    assert "Traceback" not in said, said[-6000:]
