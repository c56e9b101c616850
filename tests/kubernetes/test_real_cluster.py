"""Whole runs on the cluster of STOKER_TEST_KUBECONFIG, whatever it is: `docs/dev/real-cluster.md` says how to run them.

Nothing here knows of the tests' own server, which the last test takes for such a cluster.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.kubernetes.drivers import start
from tests.kubernetes.server.cluster import REPOSITORY, LocalCluster

from stoker.backends.kubernetes.api.client import Cluster
from stoker.backends.kubernetes.objects import index_of
from stoker.backends.kubernetes.settings import KubernetesSettings

# Read before the session's fixtures take STOKER_* out of the environment.
KUBECONFIG = os.environ.get("STOKER_TEST_KUBECONFIG", "")
REGISTRY = os.environ.get("STOKER_TEST_REGISTRY", "")
STORE = os.environ.get("STOKER_TEST_STORE", "")
SETTINGS = os.environ.get("STOKER_TEST_SETTINGS", "")
SIMULATE = os.environ.get("STOKER_TEST_SIMULATE", "")
SECONDS = 600.0
"""For one run: an image may have to be pulled first."""
on_cluster = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not KUBECONFIG, reason="STOKER_TEST_KUBECONFIG names no cluster"),
]
PIPELINES = """
import os, sys, time
from stoker import context, pipeline, step
from stoker.config import KubernetesSettings, ResourceSettings

OWN = {{"orchestrator.kubernetes": KubernetesSettings(reuse=False)}}
EITHER = {{"orchestrator.kubernetes": KubernetesSettings(reuse=False if os.environ.get("ALONE") else "auto")}}

@step(cache=False)
def link(n: int) -> int:
    print("link", n, flush=True)
    return n + 1

@step(cache=False)
def square(n: int) -> int:
    print("square", n, flush=True)
    return n * n

@step(cache=False, settings=OWN)
def own(n: int) -> int:
    print("own", n, flush=True)
    return n + 10

@pipeline
def chain():
    n = 0
    for _ in range(3):
        n = link(n)
    own.map([1, 2, 3])
    square.map([1, 2, 3, 4])
    return own(n)

@step(cache=False, settings=OWN, resources=ResourceSettings(nodes=2, cpu_count=0.1))
def ranks() -> int:
    print("node", context.node, "of", context.world_size, flush=True)
    return context.world_size

@pipeline
def gang():
    ranks()

@step(cache=False)
def pooled_failure() -> None:
    raise ValueError("no luck in a shared pod")

@step(cache=False, settings=OWN)
def own_failure() -> None:
    raise ValueError("no luck in a pod of its own")

@pipeline
def shared_fails():
    pooled_failure()

@pipeline
def own_fails():
    own_failure()

@step(cache=False)
def first() -> int:
    print("first ran", flush=True)
    return 1

@step(cache=False, settings=EITHER)
def waits(n: int, seconds: float) -> str:
    print("waiting", flush=True)
    time.sleep(seconds)
    print("waited", flush=True)
    return "seen"

@step(cache=False)
def last(text: str) -> str:
    print("last ran", flush=True)
    return text + " and ended"

@pipeline
def long(seconds: float):
    return last(waits(first(), seconds))

@step(cache=False, resources=ResourceSettings({accelerators}))
def on_gpu(n: int) -> int:
    print("devices", [device.uuid for device in context.devices], flush=True)
    return len(context.devices)

@pipeline
def gpus():
    on_gpu(on_gpu(1))

@step(cache=False, resources=ResourceSettings(cpu_count=100000))
def huge() -> None: ...

@pipeline
def too_much():
    huge()

if __name__ == "__main__":
    word, *rest = sys.argv[1:]
    globals()[word](*map(float, rest))
"""
ACCELERATORS = {
    "nvidia.com/gpu": ("gpu_count=1", "1xH100"),
    "amd.com/gpu": ("gpu_count=1, gpu_vendor='amd'", "1xMI300X"),
}
"""By a node's resource: what a step asks for, and what is simulated where a node advertises devices and has none."""
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
PROBE = """
import glob, json, os, sys
devices = glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/kfd")
print(json.dumps({"sees": os.path.isdir(sys.argv[1] + "/seen"), "devices": bool(devices)}))
"""


@attrs.frozen
class RealCluster:
    """The cluster, asked by Stoker's own client."""

    api: Cluster
    namespace: str

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The objects of Stoker's of a kind."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        path = f"{group}/namespaces/{self.namespace}/{kind}"
        return list(self.api.get(path, labelSelector="stoker/run").get("items") or ())

    def wait(self, question: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until something holds."""
        until = time.monotonic() + seconds
        while not question():
            assert time.monotonic() < until, f"no answer in {seconds} s; left: {self.left()}"
            time.sleep(0.2)

    def left(self, run: str = "") -> list[str]:
        """What is there of a run, or of all: Jobs, pods and Secrets."""
        return [
            f"{kind}/{one['metadata']['name']}"
            for kind in ("jobs", "pods", "secrets")
            for one in self.items(kind)
            if run in ("", one["metadata"]["labels"]["stoker/run"])
        ]

    def accelerator(self) -> str:
        """The resource by which a node counts its accelerators; empty where there is none."""
        for node in self.api.get("/api/v1/nodes").get("items") or ():
            for name, count in (node["status"].get("allocatable") or {}).items():
                if name in ACCELERATORS and count != "0":
                    return str(name)
        return ""


@pytest.fixture
def real() -> Iterator[RealCluster]:
    """The cluster of STOKER_TEST_KUBECONFIG."""
    api = Cluster(KubernetesSettings(kubeconfig=KUBECONFIG), os.environ)
    try:
        yield RealCluster(api, api.namespace)
    finally:
        api.close()


def own_settings() -> dict[str, str]:
    """What STOKER_TEST_SETTINGS says, as TOML has it."""
    pairs = (line.partition("=") for line in SETTINGS.replace(";", "\n").splitlines() if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def chosen(images: Iterable[str]) -> str:
    """Of these images one with Python, and with this one if there is; empty for none."""
    found = sorted(one for one in images if re.search(r"(^|/)python:3\.\d+", one))
    return next((one for one in found if f"python:{PYTHON}" in one), found[-1] if found else "")


def registry_images() -> list[str]:
    """Images of Python in the registry; none where it does not tell."""
    host, _, path = REGISTRY.partition("/")
    for scheme in ("https", "http"):
        url = f"{scheme}://{host}/v2/{path + '/' if path else ''}python/tags/list"
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=10) as answer:
            return [f"{REGISTRY}/python:{tag}" for tag in json.load(answer).get("tags") or ()]
    return []


def image(real: RealCluster) -> str:
    """The image of steps: the registry's, else one that a node has already, else Stoker's own choice (empty)."""
    if REGISTRY:
        return chosen(registry_images()) or f"{REGISTRY}/python:{PYTHON}-slim"
    nodes = real.api.get("/api/v1/nodes").get("items") or ()
    names = (name for node in nodes for one in node["status"].get("images") or () for name in one.get("names") or ())
    return chosen(name for name in names if "@" not in name)


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """What a pod of the cluster finds: whether it sees this machine's folders ("sees"), and whether there is a device
    behind an accelerator ("devices")."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "seen").mkdir()
    api = Cluster(KubernetesSettings(kubeconfig=KUBECONFIG), os.environ)
    real, own = RealCluster(api, api.namespace), own_settings()
    resource, pods = real.accelerator(), f"/api/v1/namespaces/{api.namespace}/pods"
    python = ast.literal_eval(own.get("executable", "'python3'"))
    container = {
        "name": "probe",
        "image": ast.literal_eval(own.get("image", repr(image(real) or f"python:{PYTHON}-slim"))),
        "command": [python, "-c", PROBE, str(folder)],
        "resources": {"limits": {resource: "1"}} if resource else {},
    }
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if "://" not in STORE:  # with another store no pod needs a folder of its node, which a namespace may forbid
        container["volumeMounts"] = [{"name": "folder", "mountPath": str(folder)}]
        spec["volumes"] = [{"name": "folder", "hostPath": {"path": str(folder)}}]
    name = f"stoker-test-{os.urandom(4).hex()}"
    try:
        api.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        try:
            real.wait(lambda: api.get(f"{pods}/{name}")["status"].get("phase") in ("Succeeded", "Failed"))
            text = b"".join(api.log(api.namespace, name)).decode()
            return dict(json.loads(text[text.index("{") :]))
        finally:
            api.delete(f"{pods}/{name}", grace=1)
    finally:
        api.close()


@pytest.fixture
def kube(project: Any, real: RealCluster, probe: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack is the cluster."""
    asked, simulated = ACCELERATORS.get(real.accelerator(), ("gpu_count=1", ""))
    if SIMULATE or (simulated and not probe["devices"]):
        monkeypatch.setenv("STOKER_SIMULATE", SIMULATE or simulated)
    if "://" not in STORE and not probe["sees"]:
        pytest.fail("pods do not see this machine's folders: name another store in STOKER_TEST_STORE")
    lines = ['stack = "cluster"', "[stacks.cluster]"]
    if STORE:
        lines.append(f"artifact_store = {json.dumps(STORE)}")
    if REGISTRY:
        lines += ["[stacks.cluster.container_registry]", f"uri = {json.dumps(REGISTRY)}"]
    settings = {"flavor": '"kubernetes"', "kubeconfig": json.dumps(KUBECONFIG), "host_network": "true"}
    if "://" not in STORE:
        settings["shares_files"] = "true"
    if image(real):
        settings["image"] = json.dumps(image(real))
    settings.update(own_settings())
    lines += ["[stacks.cluster.orchestrator]", *(f"{name} = {value}" for name, value in settings.items())]
    yield project.write({"stoker.toml": "\n".join(lines), "train.py": PIPELINES.format(accelerators=asked)})
    with contextlib.suppress(Exception):  # the test's own failure counts
        project.stoker("gc", "--force", code=None)


def run_id(kube: Any) -> str:
    return str(kube.client().run("last").id)


def log_of(kube: Any, step: str) -> str:
    return str(kube.stoker("logs", "last", step, code=None).stdout)


class TestRealCluster:
    """On the cluster of STOKER_TEST_KUBECONFIG."""

    pytestmark = on_cluster

    def test_a_chain_and_fan_outs(self, kube: Any, real: RealCluster) -> None:
        """Steps in a pod that takes several, elements in pods of theirs, an Indexed Job and a Job of one pod."""
        kube.run("train.py", "chain", timeout=SECONDS)
        run = kube.client().run("last")
        assert run.steps["own_2"].output.load() == 13 and run.steps["own"].output.load() == [11, 12, 13]
        assert run.steps["square"].output.load() == [1, 4, 9, 16]
        log = log_of(kube, "square")
        assert [log.count(f"square {n}") for n in (1, 2, 3, 4)] == [1, 1, 1, 1], log
        real.wait(lambda: not real.left(run.id))

    def test_a_gang(self, kube: Any, real: RealCluster) -> None:
        """Two pods begin together, and find each other without DNS."""
        kube.run("train.py", "gang", timeout=SECONDS)
        assert kube.client().run("last").steps["ranks"].output.load() == 2
        real.wait(lambda: not real.left(run_id(kube)))

    @pytest.mark.parametrize("word", ["shared_fails", "own_fails"])
    def test_a_failure(self, kube: Any, real: RealCluster, word: str) -> None:
        finished = kube.run("train.py", word, code=1, timeout=SECONDS)
        assert "no luck" in finished.stderr
        real.wait(lambda: not real.left(run_id(kube)))

    @pytest.mark.parametrize("alone", [False, True])
    def test_a_killed_driver(self, kube: Any, real: RealCluster, alone: bool) -> None:
        """The next one takes over what runs: nothing twice, nothing lost, nothing left."""
        environment = {"ALONE": "1"} if alone else {}
        driver = start(kube, "long", "15", **environment)
        real.wait(lambda: driver.poll() is not None or "waiting" in log_of(kube, "waits"))
        assert driver.poll() is None, driver.communicate()
        driver.kill()
        driver.communicate()
        kube.stoker("resume", "last", env=environment, timeout=SECONDS)
        assert kube.client().run("last").steps["last"].output.load() == "seen and ended"
        log = log_of(kube, "waits")
        assert log.count("waiting") == log.count("waited") == 1, log
        real.wait(lambda: not real.left(run_id(kube)))

    def test_ctrl_c(self, kube: Any, real: RealCluster) -> None:
        driver = start(kube, "long", "3600")
        real.wait(lambda: driver.poll() is not None or "waiting" in log_of(kube, "waits"))
        driver.send_signal(signal.SIGINT)
        output, _ = driver.communicate(timeout=SECONDS)
        assert driver.returncode == 130, output
        real.wait(lambda: not real.left(run_id(kube)))

    @pytest.mark.parametrize("word", ["cancel", "gc"])
    def test_what_a_killed_driver_leaves_is_ended(self, kube: Any, real: RealCluster, word: str) -> None:
        driver = start(kube, "long", "3600")
        real.wait(lambda: driver.poll() is not None or "waiting" in log_of(kube, "waits"))
        driver.kill()
        driver.communicate()
        kube.stoker(*(["cancel", "last"] if word == "cancel" else ["gc", "--force"]))
        real.wait(lambda: not [pod for pod in real.items("pods") if pod["status"].get("phase") == "Running"])
        kube.stoker("gc", "--force")
        real.wait(lambda: not real.left(run_id(kube)))

    def test_devices(self, kube: Any, real: RealCluster) -> None:
        """Steps with an accelerator get what the device plugin gave their pod, and say which it is."""
        if not real.accelerator():
            pytest.skip("no node of the cluster has accelerators")
        kube.run("train.py", "gpus", timeout=SECONDS)
        for step in ("on_gpu", "on_gpu_2"):
            (attempt,) = kube.client().run("last").steps[step].attempts
            assert attempt.receipt is not None and len(attempt.receipt.devices) == 1, attempt
            assert "devices ['" in log_of(kube, step)
        real.wait(lambda: not real.left(run_id(kube)))

    def test_what_no_node_has_is_refused(self, kube: Any, real: RealCluster) -> None:
        finished = kube.run("train.py", "too_much", code=None, timeout=SECONDS)
        assert finished.returncode != 0 and "100000" in finished.stderr + finished.stdout, finished.stderr
        assert not [pod for pod in real.items("pods") if index_of(pod) is not None]


@pytest.mark.long
def test_the_tests_own_server_counts_as_such_a_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    """From outside, with its kubeconfig alone."""
    environment = {
        **os.environ,
        "STOKER_TEST_KUBECONFIG": str(cluster.kubeconfig),
        "STOKER_TEST_SETTINGS": f'image = "team/step:1"; executable = "{sys.executable}"',
    }
    words = ["-m", "cluster", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'outside'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, *words],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0 and "passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-4000:]
