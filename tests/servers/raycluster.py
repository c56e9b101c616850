"""A real Ray of several nodes on this machine, with pretended GPUs, in a process of its own.

`ray.cluster_utils.Cluster` starts the daemons of each node. They are children of one helper, which this file is when it
is run as a program: it starts the nodes that it is told, takes one away when asked, and ends all when its input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
from tests.servers.postgres import free_port

TOKEN = "a-token-for-tests"
NODES = (
    {"num_cpus": 2, "num_gpus": 0},
    {"num_cpus": 2, "num_gpus": 2, "resources": {"bench": 1, "accelerator_type:H100": 1}},
    {"num_cpus": 2, "num_gpus": 2, "resources": {"accelerator_type:H100": 1}},
)
"""What each node says of itself, the head first; Ray only counts, so that this may be more than the machine has."""
STORE = 80 * 1024 * 1024
"""Bytes of each node's object store: Ray takes no less than 75 MB."""


@attrs.define(kw_only=True)
class RayCluster:
    """A cluster that runs. `dashboard` is the address of its Jobs API."""

    dashboard: str
    folder: Path
    helper: subprocess.Popen[str]

    def ask(self, **command: Any) -> Any:
        """Have the helper do something, and read its answer."""
        assert self.helper.stdin is not None and self.helper.stdout is not None
        self.helper.stdin.write(json.dumps(command) + "\n")
        self.helper.stdin.flush()
        return self.answer()

    def gone(self) -> bool:
        """Whether Ray has ended by itself; the next test gets another one."""
        return self.helper.poll() is not None

    def answer(self) -> Any:
        """The next answer of the helper; what Ray itself prints is passed over."""
        assert self.helper.stdout is not None
        for line in self.helper.stdout:
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "answer" in found:
                    return found["answer"]
        raise AssertionError(f"Ray did not come up:\n{(self.folder / 'helper.log').read_text()[-4000:]}")

    def add(self, **node: Any) -> str:
        """Start one more node; its id."""
        return str(self.ask(do="add", node=node))

    @contextlib.contextmanager
    def silent_dashboard(self) -> Iterator[None]:
        """Within the block the dashboard hangs: it takes connections and answers nobody; tasks go on."""
        family = psutil.Process(self.helper.pid).children(recursive=True)
        dashboard = [one for one in family if "dashboard" in _command(one)]
        assert dashboard, family
        for one in dashboard:
            one.suspend()
        try:
            yield
        finally:
            for one in dashboard:
                one.resume()

    def family(self) -> list[psutil.Process]:
        """The daemons and workers of all nodes, by their folder: they outlive the helper."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.folder) in " ".join(process.info["cmdline"] or ())
        ]

    def restart_head(self) -> None:
        """Kill the head's daemons, and start a head at the same addresses; only Redis knows what there was."""
        self.ask(do="restart")

    def kill(self, node: str) -> None:
        """Kill a node's daemons, as when its machine loses power."""
        self.ask(do="kill", node=node)


@contextlib.contextmanager
def running(*, redis: str = "") -> Iterator[RayCluster]:
    """A cluster that lives as long as the block; its control service keeps what it knows in the Redis at an address."""
    # Not below pytest's folders: Unix sockets have short names only.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    port = free_port()
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("RAY_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # entrypoints say "python"
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the one switch that makes Ray stay on loopback
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_memory_monitor_refresh_ms": "0",  # this machine's memory is not its affair
        "RAY_raylet_start_wait_time_s": "300",  # this machine may be busy with other tests
        "RAY_enable_worker_prestart": "0",  # each worker is a second of a CPU
        "RAY_prestart_worker_first_driver": "0",
        "HOME": str(folder),
        **({"RAY_REDIS_ADDRESS": redis} if redis else {}),
    }
    log = (folder / "helper.log").open("w")
    helper = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, str(port), json.dumps(NODES)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment,
        start_new_session=True,
    )
    made = RayCluster(dashboard=f"http://127.0.0.1:{port}", folder=folder, helper=helper)
    family: list[psutil.Process] = []
    try:
        made.answer()
        yield made
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(helper.pid).children(recursive=True)
        assert helper.stdin is not None and helper.stdout is not None
        with contextlib.suppress(OSError):
            helper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            helper.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(helper.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        helper.wait()
        helper.stdout.close()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Ray, started once; skipped where it is not installed."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with running() as made:
        yield made


def patient(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Ray asks for a new node for 30 s, and gives up: a busy machine takes longer."""

    def asking(*arguments: Any) -> Any:
        end = time.monotonic() + 200
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    return asking


def main(port: int, nodes: list[Mapping[str, Any]]) -> None:
    """The helper: starts the nodes, and does what its input says, line by line, until that ends."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.get_node = patient(services.get_node)
    head = {
        "include_dashboard": True,
        "dashboard_port": port,
        "dashboard_host": "127.0.0.1",
        "dashboard_agent_listen_port": free_port(),  # its own choice is the same for every Ray of a machine
        **({"gcs_server_port": free_port()} if "RAY_REDIS_ADDRESS" in os.environ else {}),
        **nodes[0],
        "object_store_memory": STORE,
    }
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    made = {}

    def add(node: Mapping[str, Any]) -> str:
        found = cluster.add_node(**{**node, "object_store_memory": STORE})
        made[found.node_id] = found
        return str(found.node_id)

    for node in nodes[1:]:
        add(node)
    print(json.dumps({"answer": "up"}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "add":
            answer = add(command["node"])
        elif command["do"] == "restart":
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
            cluster.head_node = None
            cluster.add_node(**head)
            answer = "up"
        else:
            cluster.remove_node(made.pop(command["node"]), allow_graceful=False)
            answer = "gone"
        print(json.dumps({"answer": answer}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))


def _command(process: psutil.Process) -> str:
    """A process's command line; empty for one that has ended, reaped or not."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
