"""What steps on Kubernetes cost beside bare Jobs: `python -m benchmarks.kubernetesjobs` starts the tests' cluster.

Prints a line of JSON for each figure, in seconds unless it says otherwise. The cluster runs containers as processes of
this machine, so that a bare Job is the floor of a start: a real node takes a second or more for it. Steps are measured
in pods that take several, and in a pod each (`reuse = false`).

A pod's program is forked from a process that has the worker's modules, and the pods' disks are in memory: a thousand
pods would start as many interpreters and unpack as many workers, and the measured driver would wait for its turn.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import glob
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.kubernetes.server.cluster import LocalCluster

from stoker.backends.kubernetes.api.client import Cluster
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import BackendError

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
STACK = """
stack = "cluster"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
shares_files = true
reuse = {reuse}
"""
WORKER = (
    "stoker.worker.boot",
    "stoker.worker.pool",
    # What these import once they have a job, and what the pods' programs do.
    "stoker.images.context",
    "stoker.worker.boot",
    "stoker.worker.worker",
    "fcntl",
    "glob",
    "gzip",
)
"""The modules of a pod that runs steps."""
MEMORY = Path("/dev/shm")
STEPS = """
import sys
from stoker import pipeline, step

@step(cache=False)
def plus(x: int) -> int:
    return x + 1

@pipeline
def chain(n: int):
    x = 0
    for _ in range(n):
        x = plus(x)

@pipeline
def fan(n: int):
    plus.map(list(range(n)))

if __name__ == "__main__":
    {"chain": chain, "fan": fan}[sys.argv[1]](int(sys.argv[2]))
"""


class Observer:
    """When pods ended and Jobs were made, as a second client of the API server hears it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.ended: list[float] = []
        """In seconds since the epoch, as `made` is."""
        self.made: list[float] = []
        self._clusters = [_client(kubeconfig) for _ in range(2)]
        for cluster, path in zip(self._clusters, (PODS, JOBS), strict=True):
            threading.Thread(target=self._follow, args=(cluster, path), daemon=True).start()

    def _follow(self, cluster: Cluster, path: str) -> None:
        over = set()
        try:
            version = cluster.get(path)["metadata"]["resourceVersion"]
            for event in cluster.watch(path, resource_version=version):
                name, status = event["object"]["metadata"].get("name"), event["object"].get("status") or {}
                states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
                if path == JOBS and event["type"] == "ADDED":
                    self.made.append(time.time())
                elif path == PODS and name not in over and any("terminated" in state for state in states):
                    over.add(name)
                    self.ended.append(time.time())
        except BackendError:
            return  # the measurement is over

    def close(self) -> None:
        """Hear no more."""
        for cluster in self._clusters:
            cluster.abandon()


def _client(kubeconfig: Path) -> Cluster:
    return Cluster(KubernetesSettings(kubeconfig=str(kubeconfig)), os.environ)


def bare(cluster: LocalCluster, count: int, *, together: bool) -> float:
    """Seconds for Jobs that do nothing: one Indexed Job, or one Job after the other."""
    client = _client(cluster.kubeconfig)
    container = {"name": "main", "image": "team/step:1", "command": [sys.executable, "-c", "pass"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    began = time.monotonic()
    for number in range(1 if together else count):
        spec: dict[str, Any] = {"backoffLimit": 0, "template": template}
        if together:
            spec.update(completionMode="Indexed", completions=count, parallelism=count)
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"bare-{number}"}, "spec": spec}
        version = client.create(JOBS, body)["metadata"]["resourceVersion"]
        over: set[str] = set()
        for event in client.watch(PODS, resource_version=version):
            statuses = (event["object"].get("status") or {}).get("containerStatuses") or ()
            if any("terminated" in one["state"] for one in statuses):
                over.add(event["object"]["metadata"]["name"])
            if len(over) == (count if together else 1):
                break
        if not together:
            client.delete(f"{JOBS}/bare-{number}")
    seconds = time.monotonic() - began
    client.close()
    return seconds


def stoker(folder: Path, kubeconfig: Path, *words: str, reuse: bool = True) -> tuple[float, float, float]:
    """Seconds of a run, CPU seconds of its driver, and its peak memory in MB."""
    folder.mkdir(parents=True, exist_ok=True)
    stack = STACK.format(kubeconfig=kubeconfig, python=sys.executable, reuse=str(reuse).lower())
    (folder / "stoker.toml").write_text(stack)
    (folder / "steps.py").write_text(STEPS)
    began = time.monotonic()
    environment = {**os.environ, "STOKER_HOME": str(folder / "home"), "STOKER_OFFLINE": "1"}
    command = [sys.executable, "steps.py", *words]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        # Of this process alone: the children together have the memory of the largest that ever ran.
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, (folder / "output").read_bytes()[-2000:])
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


class Record:
    """When the ends of steps can be read from a store by another process, looked at every few milliseconds."""

    def __init__(self, folder: Path) -> None:
        self._path = _database(folder)
        self.moments: list[float] = []
        """In seconds since the epoch."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            known = self._count(database)
            while not self._over.wait(0.005):
                count = self._count(database)
                self.moments += [time.time()] * (count - known)
                known = count

    def _count(self, database: sqlite3.Connection) -> int:
        (count,) = database.execute("SELECT count(*) FROM attempts WHERE status = 'succeeded'").fetchone()
        return int(count)

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()


def _database(folder: Path) -> str:
    (path,) = glob.glob(f"{folder}/home/**/stoker.db", recursive=True)
    return path


def attempts(folder: Path) -> collections.Counter[str]:
    """How many attempts of the runs in a store have which status."""
    with contextlib.closing(sqlite3.connect(_database(folder))) as database:
        return collections.Counter(dict(database.execute("SELECT status, count(*) FROM attempts GROUP BY status")))


def measure_fan(folder: Path, cluster: LocalCluster, count: int, *, reuse: bool) -> None:
    """What a fan-out costs, each of whose elements must succeed at the first attempt."""
    where = "in pods that take several" if reuse else "in a pod each"
    stoker(folder, cluster.kubeconfig, "fan", "2", reuse=reuse)  # packs the worker
    before, asked = attempts(folder), cluster.counts()
    seconds, cpu, memory = stoker(folder, cluster.kubeconfig, "fan", str(count), reuse=reuse)
    made = attempts(folder) - before
    assert made == {"succeeded": count}, made
    say(f"a fan-out of {count} {where}", seconds)
    say(f"the driver's CPU for 100 elements of {count} {where}", cpu * 100 / count)
    say(f"the driver's memory {where}, MB", memory)
    for kind in ("create jobs", "create pods/exec", "get pods/log"):
        say(f"requests {where}: {kind}", cluster.counts().get(kind, 0) - asked.get(kind, 0))
    say("the load of the machine", os.getloadavg()[0])


def measure_chain(folder: Path, cluster: LocalCluster, length: int) -> None:
    """What a chain costs whose steps have a pod each, and what is between the cluster's word and the run's record."""
    observer, record = Observer(cluster.kubeconfig), Record(folder)
    stoker(folder, cluster.kubeconfig, "chain", str(length), reuse=False)
    observer.close()
    record.close()
    ended = observer.ended[-length:]
    for what, moments in (("record", record.moments), ("next Job", observer.made[-length + 1 :])):
        gaps = [after - before for before, after in zip(ended, moments, strict=False)]
        say(f"from the event of a step's end to its {what}, median", statistics.median(gaps))
        say("the same, longest", max(gaps))


def main() -> int:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chain", type=int, default=20, help="steps of the chains; 0: none")
    parser.add_argument("--fan", type=int, default=200)
    parser.add_argument("--pods", type=int, default=40, help="how many pods run at once")
    options = parser.parse_args()
    nodes = str(MEMORY) if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="k8s-") as temporary,
        tempfile.TemporaryDirectory(prefix="k8s-", dir=nodes, ignore_cleanup_errors=True) as disks,
    ):
        folder = Path(temporary)
        # A driver that compiles itself each time would be measured with its compiler.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        cluster = LocalCluster.start(Path(disks) / "cluster")
        try:
            cluster.reset(speed=1.0)
            cluster.ask("nice", niceness=15)  # an API server does not run on its nodes
            cluster.ask("fork", modules=WORKER)
            cluster.add_node("roomy", cpu="4000", memory="4000Gi", pods=str(options.pods))
            if options.chain:
                measure_chains(folder / "chain", cluster, options.chain)
            say(f"an Indexed Job of {options.fan}, bare", bare(cluster, options.fan, together=True))
            for reuse in (True, False):
                measure_fan(folder / "fan", cluster, options.fan, reuse=reuse)
        finally:
            cluster.close()
    return 0


def measure_chains(folder: Path, cluster: LocalCluster, length: int) -> None:
    """What a chain costs beside bare Jobs, and what it asks of the API server."""
    say("bare Jobs in a chain, each", bare(cluster, length, together=False) / length)
    stoker(folder, cluster.kubeconfig, "chain", "2")  # the worker's config maps are there afterwards
    before = cluster.counts()
    seconds, _, _ = stoker(folder, cluster.kubeconfig, "chain", str(length))
    say("steps in a chain, each", seconds / length)
    calls = {
        kind: count - before.get(kind, 0)
        for kind, count in cluster.counts().items()
        if not kind.startswith(("watch", "get pods/log"))
    }
    say("requests of a step beside watches and logs", sum(calls.values()) / length)
    measure_chain(folder, cluster, length)


def say(what: str, value: float) -> None:
    """Print a figure."""
    print(json.dumps({"what": what, "value": round(value, 4)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
