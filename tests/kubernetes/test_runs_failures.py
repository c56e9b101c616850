"""Runs whose cluster takes pods away, refuses them, never starts them, or answers badly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.drivers import nothing_left, says, stack, start
from tests.kubernetes.server.cluster import LocalCluster

PIPELINES = """
import os, sys, time
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
def many(count: int = 12):
    return add(talk.map(list(range(count))))

@step(cache=False, settings={"orchestrator.kubernetes": KubernetesSettings(image="team/missing:1")})
def missing() -> None: ...

@step(cache=False, settings={"orchestrator.kubernetes": KubernetesSettings(service_account="nobody")})
def unknown() -> None: ...

@step(cache=False)
def hungry() -> int:
    return len(bytearray(300 << 20))

@step(cache=False, resources=ResourceSettings(memory="100MB"))
def small() -> int:
    data = bytearray(400 << 20)
    time.sleep(20)
    return len(data)

@pipeline
def absent():
    missing()

@pipeline
def full():
    small()

if __name__ == "__main__":
    word = sys.argv[1]
    if word == "many":
        print("sum", many().steps["add"].output.load())
    elif word == "absent":
        absent()
    elif word == "full":
        full()
    else:
        long(word)
"""


@pytest.fixture
def kube(kube: Any) -> Any:
    """A project whose stack is the cluster."""
    return kube.write({"train.py": PIPELINES})


@pytest.mark.slow
def test_a_drained_and_a_lost_node_use_up_no_retry(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The step has no retries: its one attempt goes on in another pod, twice."""
    flag = tmp_path / "flag"
    driver = start(kube, str(flag))
    cluster.wait(lambda: says(kube, "waiting"), 120.0)

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
    cluster.wait(lambda: says(kube, "waiting", times=2), 120.0)
    cluster.remove_node(second)
    cluster.wait(lambda: says(kube, "waiting", times=3), 120.0)
    flag.touch()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    run = kube.client().run("last")
    assert run.steps["wait"].output.load() == "seen" and len(run.steps["wait"].attempts) == 1
    (row,) = kube.rows("SELECT count(*) AS count FROM events WHERE kind = 'requeued'")
    assert row["count"] == 2
    cluster.wait(lambda: nothing_left(cluster))


def test_what_never_starts_fails_fast_and_a_full_memory_is_said(kube: Any, cluster: LocalCluster) -> None:
    cluster.fail_image("team/missing:1", "not-found")
    absent = kube.run("train.py", "absent", code=1, timeout=120.0)
    assert "team/missing:1" in absent.stderr and "does not exist" in absent.stderr, absent.stderr
    full = kube.run("train.py", "full", code=1, timeout=120.0)
    failure = kube.client().run("last").steps["small"].attempts[0].failure
    assert failure.cause == "host-oom", (failure, full.stderr)
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.slow
def test_a_fan_out_with_bad_luck_has_every_line_once(kube: Any, cluster: LocalCluster) -> None:
    """Watches that drop, logs that break off, refused, late and failing answers: nothing is lost, and nothing twice."""
    kube.write({"stoker.toml": stack(cluster, "reuse = false")})
    cluster.fault("latency", seconds=0.05, share=0.3)
    cluster.fault("server-error", share=0.05)
    cluster.fault("too-many-requests", share=0.05)
    cluster.fault("reset", share=0.1)
    cluster.fault("drop-watch", method="WATCH", seconds=0.4)
    cluster.fault("drop-watch", method="LOG", seconds=0.15, share=0.8)
    cluster.fault("stale-list", path=r".*/(jobs|pods)", seconds=5, share=0.3)
    done = kube.run("train.py", "many", timeout=240.0)
    hits = [(hit["kind"], hit["hits"]) for hit in cluster.clear_faults()]
    assert f"sum {sum(range(12))}" in done.stdout, done.stdout
    run = kube.client().run("last")
    log = kube.stoker("logs", "last", "talk").stdout
    for number in range(40):
        assert log.count(f"line {number}\n") == 12, (number, hits)
    assert all(len(one.attempts) == 1 for key, one in run.steps.items() if key != "talk")
    assert all(number for kind, number in hits if kind != "stale-list"), hits
    cluster.wait(lambda: nothing_left(cluster))


def test_a_wait_that_takes_longer_than_it_may(kube: Any, cluster: LocalCluster) -> None:
    """`pod_startup_timeout` ends a job that could still start."""
    cluster.cordon("gpu-node-1")
    cluster.cordon("cpu-node-1")
    kube.write({"stoker.toml": stack(cluster, 'pod_startup_timeout = "2s"')})
    failed = kube.run("train.py", "flag", code=1, timeout=60.0)
    assert "longer than it may" in failed.stderr, failed.stderr
    cluster.wait(lambda: nothing_left(cluster))
