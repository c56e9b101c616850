"""Pods that take several steps of a run: what they save, what they keep apart, and what becomes of them when a driver,
a pod or a connection ends."""

from __future__ import annotations

import collections
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.drivers import killed, nothing_left, says, stack, start
from tests.kubernetes.server.cluster import LocalCluster
from tests.report.screen import Terminal

PIPELINES = """
import os, sys, tempfile, time
from pathlib import Path
from stoker import context, pipeline, step
from stoker.config import KubernetesSettings, ResourceSettings

LINES, LENGTH = {lines!r}, {length}

def line(text):
    with open(LINES, "a") as file:
        file.write(text + "\\n")

@step(cache=False)
def link(n: int) -> int:
    left = Path(tempfile.gettempdir()) / "left"
    assert not left.exists(), "a step sees what the one before it left"
    left.write_text("here")
    line(f"link {n} {os.getppid()}")
    print("link", n)
    return n + 1

@step(cache=False, settings={"orchestrator.kubernetes": KubernetesSettings(reuse=False)})
def apart(n: int) -> int:
    return n

@pipeline
def chain():
    n = 0
    for _ in range(4):
        n = link(n)
    return apart(n)

@step(cache=False)
def begins() -> int:
    line("begins")
    return 1

@step(cache=False)
def waits(n: int, flag: str) -> str:
    line("waits")
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    print("seen it", flush=True)
    return "seen"

@step(cache=False, settings={"orchestrator.kubernetes": KubernetesSettings(reuse=False)})
def waits_apart(n: int, flag: str) -> str:
    line("waits")
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return "seen"

@step(cache=False)
def ends(text: str) -> str:
    line("ends")
    return text + " and ended"

@pipeline
def long(flag: str):
    return ends(waits(begins(), flag))

@pipeline
def mixed(flag: str):
    return ends(waits_apart(begins(), flag))

@step(cache=False, resources=ResourceSettings(gpu_count=1))
def on_gpu(n: int) -> list[str]:
    return [*(device.uuid for device in context.devices), str(os.getpid())]

@pipeline
def gpus():
    on_gpu.map([1, 2, 3])

@step(cache=False)
def square(n: int) -> int:
    line(f"square {n}")
    time.sleep(LENGTH)
    return n * n

@step(cache=False)
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def many(count: int):
    return total(square.map(list(range(count))))

if __name__ == "__main__":
    word, *rest = sys.argv[1:]
    if word == "many":
        print("total", many(int(rest[0])).steps["total"].output.load())
    elif word in ("long", "mixed"):
        print({"long": long, "mixed": mixed}[word](*rest).steps["ends"].output.load())
    else:
        {"chain": chain, "gpus": gpus}[word]()
"""


MAIN = 'if __name__ == "__main__":\n'


@pytest.fixture
def kube(kube: Any, tmp_path: Path) -> Any:
    """A project whose stack is the cluster; its steps write lines into a file."""
    (tmp_path / "lines").touch()
    return kube.write({"train.py": program(tmp_path)})


def program(folder: Path, *, length: float = 0.0) -> str:
    """The program, whose squares take so many seconds."""
    head = "{lines!r}, {length}"
    return PIPELINES.replace(head, head.format(lines=str(folder / "lines"), length=length))


def lines(folder: Path) -> dict[str, int]:
    """What steps wrote, and how often."""
    return collections.Counter((folder / "lines").read_text().splitlines())


def pods(cluster: LocalCluster) -> list[Any]:
    return list(cluster.get("/api/v1/namespaces/default/pods")["items"])


def test_steps_share_a_pod_and_nothing_else(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    kube.run("train.py", "chain", timeout=120.0)
    counts = cluster.counts()
    assert counts["create jobs"] == 2, "one for four links, and one for the step that wants its own"
    assert counts["create secrets"] == 1 and counts["create pods/exec"] <= 3, counts
    jobs = {key: placed[-1].job for key, placed in kube.client().runs()[0].placements.items()}
    assert len(jobs) == 5 and all("the Job default/chain-" in job for job in jobs.values()), "also of the first steps"
    written = list(lines(tmp_path))
    assert [text.split()[1] for text in written] == ["0", "1", "2", "3"]
    assert len({text.split()[2] for text in written}) == 4, "each has processes of its own"
    assert [kube.stoker("logs", "last", f"link_{n}").stdout.count(f"link {n - 1}") for n in (2, 3, 4)] == [1, 1, 1]
    cluster.wait(lambda: nothing_left(cluster))
    assert not cluster.pids()


def test_a_fan_out_takes_pods_whose_connections_break(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """Orders, output or results are on their way when the session with a pod breaks: that costs nothing."""
    kube.write({"train.py": program(tmp_path, length=0.3)})
    cluster.cut_executions(200, 1100, 1000, 2500, 3400, 12500)
    done = kube.run("train.py", "many", "12", timeout=120.0)
    assert f"total {sum(n * n for n in range(12))}" in done.stdout
    assert set(lines(tmp_path).values()) == {1} and len(lines(tmp_path)) == 12
    cluster.wait(lambda: nothing_left(cluster))


def test_a_killed_driver_leaves_a_pod_that_the_next_one_takes_over(
    kube: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    driver = start(kube, "long", str(flag))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    killed(driver)
    flag.touch()
    kube.stoker("resume", "last", timeout=120.0)
    assert lines(tmp_path) == {"begins": 1, "waits": 1, "ends": 1}
    assert cluster.counts()["create jobs"] == 1, "the pod of the killed driver took the last step, too"
    run = kube.client().run("last")
    assert run.steps["ends"].output.load() == "seen and ended"
    log = kube.stoker("logs", "last", "waits").stdout
    assert log.count("waiting") == 1 and log.count("seen it") == 1, log
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.long
def test_a_pod_takes_orders_of_a_second_driver(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The first order is over and forgotten when its driver is killed: the next one has another number."""
    flag = tmp_path / "flag"
    kube.write({"stoker.toml": stack(cluster, "idle_after = 600")})
    driver = start(kube, "mixed", str(flag))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    killed(driver)
    flag.touch()
    kube.stoker("resume", "last", timeout=120.0)
    assert lines(tmp_path) == {"begins": 1, "waits": 1, "ends": 1}
    assert cluster.counts()["create jobs"] == 2, "the last step runs in the pod of the first"
    cluster.wait(lambda: nothing_left(cluster))


def test_a_pod_that_leaves_without_a_driver_says_what_it_did(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """Nobody talks to the pod: it ends by itself, and the next driver finds the result in its log, also if the API
    server falls silent while that is looked for."""
    flag = tmp_path / "flag"
    kube.write({"stoker.toml": stack(cluster, "idle_after = 1")})
    driver = start(kube, "long", str(flag))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    killed(driver)
    flag.touch()
    cluster.wait(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in pods(cluster)), 60.0)
    assert not cluster.pids(), "no pod waits for a driver that is gone"
    cluster.fault("server-error", path=".*/log", times=2)
    kube.stoker("resume", "last", timeout=120.0)
    assert cluster.clear_faults()[0]["hits"] == 2
    assert lines(tmp_path) == {"begins": 1, "waits": 1, "ends": 1}
    log = kube.stoker("logs", "last", "waits").stdout
    assert log.count("waiting") == 1 and log.count("seen it") == 1, log
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.long
def test_pods_without_a_driver_are_found_and_ended(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    driver = start(kube, "long", str(tmp_path / "never"))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    killed(driver)
    kube.stoker("gc", "--force")
    cluster.wait(lambda: not cluster.pids())
    cluster.wait(lambda: nothing_left(cluster))


def test_a_step_is_entered_and_ctrl_c_ends_the_pods(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    driver = start(kube, "long", str(tmp_path / "never"))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    enter_a_step(kube, cluster)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert kube.client().run("last").status == "cancelled"
    cluster.wait(lambda: nothing_left(cluster))
    assert not cluster.pids()


def enter_a_step(kube: Any, cluster: LocalCluster) -> None:
    """A command with its streams and its exit code, a terminal, the stacks and a port of a step in a pod."""
    (pod,) = (one["metadata"]["name"] for one in pods(cluster))
    text = "".join(f"line {number}\n" for number in range(50_000))
    script = 'echo "$HOSTNAME" >&2; cat; exit 5'
    done = kube.stoker("exec", "last", "waits", "--", "sh", "-c", script, input=text, code=5)
    assert (done.stdout, done.stderr.strip()) == (text, pod)
    assert "train.py" in kube.stoker("dump", "last", "waits").stdout
    environment = {**os.environ, "STOKER_HOME": str(kube.home)}
    words = [str(Path(sys.executable).with_name("stoker")), "exec", "last", "waits", "--", "sh"]
    with Terminal(words, folder=kube.folder, env=environment, columns=90, rows=20) as terminal:
        terminal.wait_for(lambda text: text.rstrip().endswith(("#", "$")))
        terminal.send("stty size\n")
        terminal.wait_for(lambda text: "20 90" in text)
        terminal.resize(columns=70)
        terminal.send("stty size\n")
        terminal.wait_for(lambda text: "20 70" in text)
        terminal.send("echo $((5 * 7)); sleep 600; echo $((6 * 7))\n")
        terminal.wait_for(lambda text: "35" in text)
        terminal.send("\x03")
        terminal.wait_for(lambda text: "^C" in text)  # what was typed before is thrown away with it
        terminal.send("echo $((7 * 7))\n")
        assert "42" not in terminal.wait_for(lambda text: "49" in text), "Ctrl-C is a key like any other"
        terminal.send("exit 3\n")
        assert terminal.end() == 3
    with socket.create_server(("127.0.0.1", 0)) as listener:  # pods have this machine's network here
        port = str(listener.getsockname()[1])
        words = [*words[:1], "forward", "last", "waits", port, "--local", "0"]
        with subprocess.Popen(words, cwd=kube.folder, env=environment, stdout=subprocess.PIPE, text=True) as forwarding:
            listener.accept()[0].close()  # the knock
            assert forwarding.stdout is not None
            host, _, number = forwarding.stdout.readline().strip().rpartition(":")
            with socket.create_connection((host, int(number)), timeout=60) as here, listener.accept()[0] as there:
                here.sendall(b"ping")
                here.shutdown(socket.SHUT_WR)
                assert b"".join(iter(lambda: there.recv(100), b"")) == b"ping"
                there.sendall(b"pong")
                there.close()
                assert b"".join(iter(lambda: here.recv(100), b"")) == b"pong"
            forwarding.send_signal(signal.SIGINT)
            assert forwarding.wait(60) == 130
    module = [sys.executable, "-m", "stoker.backends.kubernetes.running.beside"]
    access = json.dumps({"kubeconfig": str(cluster.kubeconfig)})
    done = kube.command([*module, access, "default", pod, "step", "--", "no-such-shell"], code=125)
    assert "has no no-such-shell" in done.stderr and "STK345" in done.stderr


def test_steps_with_devices_get_those_of_their_pod(kube: Any, cluster: LocalCluster) -> None:
    kube.run("train.py", "gpus", env={"STOKER_SIMULATE": "1xH100"}, timeout=120.0)
    step = kube.client().run("last").steps["on_gpu"]
    devices = step.output.load()
    assert len({pid for *_, pid in devices}) == 3, "each is a fresh process"
    assert all(len(one) == 2 for one in devices), devices
    receipts = [element.attempts[0].receipt for element in step]
    assert len(receipts) == 3 and all(receipt is not None and receipt.devices for receipt in receipts)
    cluster.wait(lambda: nothing_left(cluster))


def test_without_the_right_to_exec_each_step_has_a_job(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    role = {
        "metadata": {"name": "no-exec", "namespace": "default"},
        "rules": [
            {"apiGroups": ["", "batch"], "resources": ["jobs", "pods", "secrets", "configmaps"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ],
    }
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    cluster.create(f"{base}/roles", role)
    subject = {"kind": "ServiceAccount", "name": "runner", "namespace": "default"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "no-exec"}
    cluster.create(
        f"{base}/rolebindings", {"metadata": {"name": "no-exec"}, "roleRef": reference, "subjects": [subject]}
    )
    cluster.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "runner"}})
    limited = cluster.kubeconfig_for(cluster.account_token("default", "runner"), name="limited")
    kube.write({"stoker.toml": stack(cluster, kubeconfig=limited)})
    flag = tmp_path / "flag"
    driver = start(kube, "long", str(flag))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    assert "create pods/exec" not in cluster.counts()
    refused = kube.stoker("exec", "last", "waits", "--", "true", code=125).stderr
    assert "STK345" in refused and "on pods/exec" in refused and "kubectl create role" in refused, refused
    flag.touch()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    assert cluster.counts()["create jobs"] == 3
    assert lines(tmp_path) == {"begins": 1, "waits": 1, "ends": 1}
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.long
def test_a_node_that_reaches_no_pod_gives_each_step_a_job(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The right is there, but no connection to the pod is made: its steps run all the same, in pods of their own."""
    cluster.fault("server-error", path=".*/exec", status=403)
    kube.run("train.py", "many", "2", timeout=120.0)
    assert set(lines(tmp_path).values()) == {1} and len(lines(tmp_path)) == 2
    cluster.wait(lambda: nothing_left(cluster))


def test_a_pod_that_is_not_reached_is_given_up_where_others_are(
    kube: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """It holds one of three places, and would wait for a step for ten minutes; the others go on with theirs."""
    cluster.reset([{"name": "small", "capacity": {"cpu": "64", "memory": "64Gi", "pods": "3"}}])
    # Longer than a pod may run and not be reached.
    few = MAIN + "    from stoker.backends.kubernetes.warm import sessions\n    sessions.UNREACHED = 3.0\n"
    text = program(tmp_path, length=2.0).replace(MAIN, few)
    kube.write({"stoker.toml": stack(cluster, "idle_after = 600"), "train.py": text})
    cluster.fault("server-error", path=".*-pool-[a-z0-9]+-1-[a-z0-9]+/exec", status=500)
    kube.run("train.py", "many", "8", timeout=180.0)
    assert set(lines(tmp_path).values()) == {1} and len(lines(tmp_path)) == 8
    counts = cluster.counts()
    assert counts["delete pods"] == 1 and "create secrets" not in counts, "no step has a pod of its own"
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.parametrize("places", [3, pytest.param(32, marks=pytest.mark.long)])
def test_steps_beyond_all_pods_go_alone_where_that_helps(
    kube: Any, cluster: LocalCluster, tmp_path: Path, places: int
) -> None:
    """Where the pods that take several wait for room, pods of their own would wait behind them: with 256 pods asked for
    on a cluster with room for 40, a run of a thousand got 744 of them, and those that take several stood idle."""
    cluster.reset([{"name": "only", "capacity": {"cpu": "64", "memory": "64Gi", "pods": str(places)}}])
    few = MAIN + "    from stoker.backends.kubernetes.warm import pools\n    pools.MOST = 4\n"
    text = program(tmp_path, length=0.5).replace(MAIN, few)
    kube.write({"train.py": text})
    kube.run("train.py", "many", "8", timeout=180.0)
    assert set(lines(tmp_path).values()) == {1} and len(lines(tmp_path)) == 8
    assert ("create secrets" in cluster.counts()) == (places == 32)
    cluster.wait(lambda: nothing_left(cluster))


def test_idle_pods_make_room(kube: Any, cluster: LocalCluster) -> None:
    """The second step finds no room beside the pod of the first, which has nothing to do any more."""
    cluster.reset([{"name": "small", "capacity": {"cpu": "2", "memory": "8Gi", "pods": "16"}}])
    kube.write(
        {
            "stoker.toml": stack(cluster, "idle_after = 600"),
            "train.py": """
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(cache=False, resources=ResourceSettings(cpu_count=1.5))
def first() -> int:
    return 1

@step(cache=False, resources=ResourceSettings(cpu_count=1.25))
def second(n: int) -> int:
    return n

@pipeline
def two():
    second(first())

if __name__ == "__main__":
    two()
""",
        }
    )
    kube.run("train.py", timeout=120.0)
    cluster.wait(lambda: nothing_left(cluster))


def test_a_warm_pod_that_is_ended_before_it_began_anything_ends_with_0(tmp_path: Path) -> None:
    """Pods that start while a run ends are no errors of its Job's."""
    program = (
        "import os, signal, sys\n"
        "from stoker.backends.kubernetes.warm import poolpod\n"
        "poolpod.unpack = lambda worker, bundle: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(poolpod.main(['keep', sys.argv[1], sys.argv[1], '{}']))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    assert finished.returncode == 0
