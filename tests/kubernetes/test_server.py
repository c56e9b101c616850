"""What of the tests' cluster neither recordings nor runs go through: what containers leave, and faults."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.server.objects import Object, condition_of

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def job(name: str, *command: str, pod: Object | None = None, container: Object | None = None, **spec: Any) -> Object:
    """A Job of one pod that runs `command`, with further fields of the pod, its container, and the Job."""
    main = {"name": "main", "image": "registry.example.com/team/step:1", "command": list(command), **(container or {})}
    template = {"spec": {"restartPolicy": "Never", "containers": [main], **(pod or {})}}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template, **spec}}


def ended(cluster: LocalCluster, name: str) -> Object:
    """The Job when it has ended."""

    def over() -> Object | None:
        current: Object = cluster.get(f"{JOBS}/{name}")
        return current if condition_of(current, "Complete") or condition_of(current, "Failed") else None

    return cluster.wait(over)


def pod_of(cluster: LocalCluster, name: str) -> Object | None:
    """The newest pod of a Job."""
    pods: list[Object] = cluster.get(f"{PODS}?labelSelector=job-name%3D{name}")["items"]
    return max(pods, key=lambda pod: int(pod["metadata"]["resourceVersion"]), default=None)


def log_of(cluster: LocalCluster, name: str, query: str = "") -> str:
    """What the newest pod of a Job has printed."""
    pod = pod_of(cluster, name)
    assert pod is not None
    status, text = cluster.request("GET", f"{PODS}/{pod['metadata']['name']}/log?{query}")
    assert status == 200, text
    return str(text)


STRAYS = """
import subprocess, sys, time
for options in ({}, {"start_new_session": True}):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **options)
print("started", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("seconds", ["0", "600"])
def test_nothing_of_a_container_outlives_it(cluster: LocalCluster, seconds: str) -> None:
    cluster.create(JOBS, job("train", "python3", "-c", STRAYS, seconds, pod={"terminationGracePeriodSeconds": 1}))
    if seconds == "0":
        ended(cluster, "train")
    else:
        cluster.wait(lambda: pod_of(cluster, "train") and len(cluster.processes()) == 3)
        cluster.delete(f"{JOBS}/train", propagationPolicy="Background")
        cluster.wait(lambda: not cluster.get(PODS)["items"])
    assert not cluster.processes()


LOOKING = """
import json, os, signal, sys
facts = {
    "words": sys.argv, "main": __name__, "program": sys.orig_argv[:2], "path": sys.path[0], "json": "json" in globals(),
    "folder": os.getcwd() == os.environ["HOME"], "session": os.getsid(0) == os.getpid(),
    "variables": sorted({*os.environ} - {"LC_CTYPE"}),  # the interpreter's own, where no locale is set
    "marked": os.environ["TEST_KUBELET_CONTAINER"] in open("/proc/self/environ").read(), "input": sys.stdin.read(),
    "signals": [signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGCHLD)],
    "descriptors": len(os.listdir("/proc/self/fd")), "umask": os.umask(0),
}
print(json.dumps(facts), flush=True)
if os.fork() == 0:
    signal.pause()
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def test_a_forked_program_sees_what_an_executed_one_does(cluster: LocalCluster) -> None:
    seen = []
    for way in ("executed", "forked"):
        if way == "forked":
            cluster.ask("fork", modules=["json", "signal"])
        cluster.create(JOBS, job(way, sys.executable, "-c", LOOKING, "3", "more words"))
        cluster.create(JOBS, job(f"{way}-fails", sys.executable, "-c", "raise ValueError('no luck')"))
        cluster.create(JOBS, job(f"{way}-killed", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
        codes = []
        for name in (way, f"{way}-fails", f"{way}-killed"):
            ended(cluster, name)
            pod = pod_of(cluster, name)
            assert pod is not None
            codes.append(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"])
        facts, *rest = log_of(cluster, way).splitlines()
        seen.append((codes, json.loads(facts), rest, log_of(cluster, f"{way}-fails").splitlines()[-1]))
        left = [one.environ()["TEST_KUBELET_CONTAINER"].strip("-") for one in cluster.processes()]
        assert not any(left), "also what a program left has ended"
    assert seen[0] == seen[1]
    codes, facts, rest, failure = seen[1]
    assert codes == [3, 1, 137] and rest == ["an error"] and failure == "ValueError: no luck"
    assert facts["words"] == ["-c", "3", "more words"] and facts["marked"] and facts["session"]


def test_bad_luck_comes_as_ordered(cluster: LocalCluster) -> None:
    cluster.fault("too-many-requests", path=JOBS, method="GET", seconds=1, times=1)
    status, body = cluster.request("GET", JOBS)
    assert (status, body["details"]["retryAfterSeconds"]) == (429, 1)
    assert cluster.request("GET", JOBS)[0] == 200
    cluster.fault("server-error", path=CONFIG_MAPS, times=1)
    assert cluster.request("GET", CONFIG_MAPS)[0] == 500
    cluster.fault("latency", path=PODS, seconds=0.3, times=1)
    began = time.monotonic()
    cluster.get(PODS)
    assert time.monotonic() - began >= 0.3
    # A list of a replica that lags behind does not know the newest object.
    version = int(cluster.get(CONFIG_MAPS)["metadata"]["resourceVersion"])
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "new"}})
    cluster.fault("stale-list", path=CONFIG_MAPS, seconds=1, times=1)
    stale = cluster.get(CONFIG_MAPS)
    assert int(stale["metadata"]["resourceVersion"]) == version
    assert "new" not in [item["metadata"]["name"] for item in stale["items"]]
    assert "new" in [item["metadata"]["name"] for item in cluster.get(CONFIG_MAPS)["items"]]
    assert [each["hits"] for each in cluster.clear_faults()] == [1, 1, 1, 1]


def test_a_server_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    server = LocalCluster.start(tmp_path / "cluster")
    server.reset()
    server.create(JOBS, job("train", "sleep", "600"))
    server.wait(lambda: server.processes())
    server.process.kill()
    with pytest.raises(AssertionError, match="outlived"):
        server.close()
    assert not server.processes()
