"""Whole runs on a stack whose orchestrator is Kubernetes: from the settings to the results, also where the cluster
takes pods away, refuses them, never starts them, or answers badly."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.drivers import nothing_left, says, stack, start
from tests.kubernetes.server.cluster import LocalCluster
from tests.programs import HELPER, LEARN, LEARNED
from tests.servers.drivers import LEAVES, Driver
from tests.servers.s3 import running as s3_running

PIPELINES = (
    LEARN.replace("TIMEOUT", "6s")
    + """
@step(cache=False)
def square(number: int) -> int:
    print("squares", number)
    return number**2

@step(cache=False, resources=ResourceSettings(nodes=2, cpu_count=0.5))
def nodes() -> list:
    return [context.node, context.world_size]

@pipeline
def learn(n: int = 4):
    ranks()
    return train(square.map(make(n)))

@pipeline
def learn_apart(n: int = 4):
    nodes()
    return train(square.map(make(n)))

def apart():
    run = learn_apart()
    print("total", run.steps["train"].output.load(), run.steps["nodes"].output.load())
"""
    + LEARNED
)


@pytest.fixture
def kube(kube: Any) -> Any:
    """A project whose stack is the cluster."""
    return kube.write({"train.py": PIPELINES, "helper.py": HELPER})


@pytest.mark.slow
def test_a_pipeline_with_a_fan_out_a_gang_and_a_timeout(kube: Any, cluster: LocalCluster) -> None:
    cluster.add_node("gpu-node-2", gpus=8)
    done = kube.run("train.py", "learn", env={"STOKER_SIMULATE": "2xH100"}, timeout=240.0)
    assert "total 114" in done.stdout, done.stdout
    ranks = json.loads(done.stdout.partition("ranks ")[2].splitlines()[0].replace("'", '"'))
    assert [(one["rank"], one["node"], one["sum"]) for one in ranks] == [(0, 0, 10), (1, 0, 10), (2, 1, 10), (3, 1, 10)]
    log = kube.stoker("logs", "last", "make").stdout
    assert "made in" in log and "a word aside" in log
    run = kube.client().run("last")
    failures = [attempt.failure for attempt in run.steps["train"].attempts]
    assert [failure.cause if failure is not None else "" for failure in failures] == ["timed-out", ""]
    receipt = run.steps["ranks"].attempts[0].receipt
    assert receipt is not None and len(receipt.devices) == 4, "two nodes of two"
    counts = cluster.counts()
    # One for the gang, with a Secret, and those of pods that take all the others.
    assert counts["create secrets"] == 1 and counts["create jobs"] == counts["delete jobs"] <= 3, counts
    assert counts["watch jobs"] == counts["watch pods"] == 1, counts
    cluster.wait(lambda: nothing_left(cluster))


UNRECORDED = """
import os, signal, sys, time
from stoker import pipeline, step

@step(cache=False)
def once(lines: str) -> str:
    with open(lines, "a") as file:
        file.write("ran\\n")
    return "done"

@step(cache=False)
def other(flag: str) -> None:
    while not os.path.exists(flag):
        time.sleep(0.05)

@pipeline
def short(lines: str, flag: str):
    once(lines)
    other(flag)

def dies(lines, flag):
    from stoker.backends.kubernetes import backend, platform

    poll = backend.KubernetesBackend.poll

    def last_poll(self, ids):
        statuses = poll(self, ids)
        if any(status.state == "succeeded" for status in statuses.values()):
            time.sleep(3.0)  # the watch goes on meanwhile
            os.kill(os.getpid(), signal.SIGKILL)
        return statuses

    platform.KEEP = 0.1
    backend.KubernetesBackend.poll = last_poll
    short(lines, flag)

if __name__ == "__main__":
    dies(*sys.argv[1:])
"""


def test_a_driver_that_is_killed_before_it_records_an_end_leaves_the_job(
    kube: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The driver has heard of the end, and stands still for much longer than a finished Job stays otherwise, while its
    watch follows another Job."""
    lines, flag = tmp_path / "lines", tmp_path / "flag"
    kube.write({"train.py": UNRECORDED})
    driver = start(kube, str(lines), str(flag))
    output, _ = driver.communicate(timeout=240)
    assert driver.returncode == -signal.SIGKILL, output
    flag.touch()
    kube.stoker("resume", "last", timeout=240.0)
    assert lines.read_text() == "ran\n", "its result was there to take"
    assert kube.client().run("last").steps["once"].output.load() == "done"
    cluster.wait(lambda: nothing_left(cluster))


def test_a_silent_server_is_said_and_left_at_once(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """Two Ctrl-C leave a driver within seconds whose API server answers nothing; `stoker cancel` ends its job."""
    driver = Driver(kube, "train.py", str(tmp_path / "never"))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)
    with cluster.stopped():
        driver.interrupt()
        driver.says("asked to end", "again")  # two signals at once are one
        began = time.monotonic()
        driver.interrupt()
        driver.end()
        assert time.monotonic() - began < LEAVES, driver.text
        assert "the Job default/long-pool-" in driver.text and "may still run there" in driver.text
    ended = kube.stoker("cancel", "last")
    assert "the Job default/long-pool-" in ended.stdout + ended.stderr
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.slow
def test_pods_that_share_no_files(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """Inputs, outputs, code and checkpoints go through an object store, whose credentials are in the job's Secret."""
    with s3_running(tmp_path) as s3:
        bucket = s3.bucket("steps")
        kube.write({"stoker.toml": stack(cluster, places=f'artifact_store = "{bucket}"', shares=False)})
        done = kube.run("train.py", "apart", env=s3.environment, timeout=240.0)
        assert "total 114 [0, 2]" in done.stdout, done.stdout
        assert "made in" in kube.stoker("logs", "last", "make", env=s3.environment).stdout
    cluster.wait(lambda: nothing_left(cluster))


FAILING = """
import os, sys, tempfile, time
from stoker import pipeline, step
from stoker.config import KubernetesSettings, ResourceSettings

@step(cache=False, settings={"orchestrator.kubernetes": KubernetesSettings(grace_period=3)})
def wait(flag: str) -> str:
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return "seen"

@pipeline
def long(flag: str):
    return wait(flag)

@step(cache=False)
def talk(number: int) -> int:
    for line in range(40):
        print("line", line, flush=True)
        time.sleep(0.02)
    return number

@step(cache=False)
def add(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def many(count: int = 8):
    return add(talk.map(list(range(count))))

@step(cache=False, settings={"orchestrator.kubernetes": KubernetesSettings(image="team/missing:1")})
def missing() -> None: ...

@step(cache=False, resources=ResourceSettings(memory="100MB"))
def small() -> int:
    data = bytearray(400 << 20)
    time.sleep(20)
    return len(data)

def write() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(60 << 20))
        file.flush()
        time.sleep(60)

@step(cache=False, resources=ResourceSettings(disk="40MB"))
def fill() -> None:
    write()

@step(cache=False, resources=ResourceSettings(disk="40MB"), settings={"orchestrator": KubernetesSettings(reuse=False)})
def fill_alone() -> None:
    write()

@step(cache=False)
def big() -> str:
    text = os.urandom(1 << 12).hex()
    for number in range(300):
        print(number, text[:50])
    raise ValueError(text)

@step(cache=False)
def kills() -> None:
    os.kill(os.getpid(), 9)

@pipeline(failure_mode="continue")
def failures():
    for one in (missing, small, fill, fill_alone, big, kills):
        one()

if __name__ == "__main__":
    word = sys.argv[1]
    if word == "many":
        print("sum", many().steps["add"].output.load())
    elif word == "failures":
        failures()
    else:
        long(word)
"""


@pytest.fixture
def failing(kube: Any) -> Any:
    """A project whose stack is the cluster."""
    return kube.write({"train.py": FAILING})


@pytest.mark.slow
def test_a_drained_and_a_lost_node_use_up_no_retry(failing: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The step has no retries: its one attempt goes on in another pod, twice."""
    flag = tmp_path / "flag"
    driver = start(failing, str(flag))
    cluster.wait(lambda: says(failing, "waiting"), 120.0)

    def node() -> str:
        pods = cluster.get("/api/v1/namespaces/default/pods")["items"]
        running = [
            pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        return str(running[0]["spec"]["nodeName"]) if running else ""

    first = cluster.wait(node)
    cluster.drain(first)
    second = cluster.wait(lambda: node() not in ("", first) and node())
    cluster.cordon(first, False)
    cluster.wait(lambda: says(failing, "waiting", times=2), 120.0)
    cluster.remove_node(second)
    cluster.wait(lambda: says(failing, "waiting", times=3), 120.0)
    flag.touch()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    run = failing.client().run("last")
    assert run.steps["wait"].output.load() == "seen" and len(run.steps["wait"].attempts) == 1
    (row,) = failing.rows("SELECT count(*) AS count FROM events WHERE kind = 'requeued'")
    assert row["count"] == 2
    cluster.wait(lambda: nothing_left(cluster))


def test_each_failure_says_why(failing: Any, cluster: LocalCluster) -> None:
    """An image that is not there, a full memory, pods that are evicted, a process that is killed, and a result that is
    too long for a termination message, which comes by the log."""
    cluster.fail_image("team/missing:1", "not-found")
    failing.run("train.py", "failures", code=1, timeout=180.0)
    failures = {key: step.attempts[0].failure for key, step in failing.client().run("last").steps.items()}
    assert "team/missing:1" in failures["missing"].message and "does not exist" in failures["missing"].message
    assert failures["small"].cause == "host-oom", failures["small"]
    for key in ("fill", "fill_alone"):
        assert failures[key].cause == "disk-full", failures[key]
        assert "ephemeral-storage limit (40M)" in failures[key].message, "what the node says counts"
    assert "SIGKILL" in failures["kills"].message
    assert len(failures["big"].message) > 4096
    log = failing.stoker("logs", "last", "big").stdout
    numbers = [int(line.split()[-2]) for line in log.splitlines() if line.split()[-2:-1] and line.split()[-2].isdigit()]
    assert numbers == list(range(300)), "each line once, in its order"
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.slow
def test_a_fan_out_with_bad_luck_has_every_line_once(failing: Any, cluster: LocalCluster) -> None:
    """Watches that drop, logs that break off, refused, late and failing answers: nothing is lost, and nothing twice."""
    failing.write({"stoker.toml": stack(cluster, "reuse = false")})
    cluster.fault("latency", seconds=0.05, share=0.3)
    cluster.fault("server-error", share=0.05)
    cluster.fault("too-many-requests", share=0.05)
    cluster.fault("reset", share=0.1)
    cluster.fault("drop-watch", method="WATCH", seconds=0.4)
    cluster.fault("drop-watch", method="LOG", seconds=0.15, share=0.8)
    cluster.fault("stale-list", path=r".*/(jobs|pods)", seconds=5, share=0.3)
    done = failing.run("train.py", "many", timeout=240.0)
    hits = [(hit["kind"], hit["hits"]) for hit in cluster.clear_faults()]
    assert f"sum {sum(range(8))}" in done.stdout, done.stdout
    run = failing.client().run("last")
    log = failing.stoker("logs", "last", "talk").stdout
    for number in range(40):
        assert log.count(f"line {number}\n") == 8, (number, hits)
    assert all(len(one.attempts) == 1 for key, one in run.steps.items() if key != "talk")
    assert all(number for kind, number in hits if kind != "stale-list"), hits
    cluster.wait(lambda: nothing_left(cluster))


def test_a_wait_that_takes_longer_than_it_may(failing: Any, cluster: LocalCluster) -> None:
    """`pod_startup_timeout` ends a job that could still start."""
    cluster.cordon("gpu-node-1")
    cluster.cordon("cpu-node-1")
    failing.write({"stoker.toml": stack(cluster, 'pod_startup_timeout = "2s"')})
    failed = failing.run("train.py", "flag", code=1, timeout=60.0)
    assert "longer than it may" in failed.stderr, failed.stderr
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_holds_on_a_cluster(kube: Any) -> None:
    said = kube.stoker("doctor", "--prove", "cluster", "--json", timeout=800.0, code=None)
    outcomes = {trial["name"]: trial["outcome"] for trial in json.loads(said.stdout)["trials"]}
    held = {name for name, outcome in outcomes.items() if outcome["verdict"] == "held"}
    assert held >= {"hello", "gang", "resume", "cancel"}, outcomes
