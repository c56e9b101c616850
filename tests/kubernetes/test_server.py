"""What of the tests' cluster neither recordings nor runs go through: what containers leave, and faults."""

from __future__ import annotations

import copy
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.clusters import RECORDED
from tests.kubernetes.forms import forms
from tests.kubernetes.recordings import names, recording
from tests.kubernetes.replay import Replay, differences, reply_differences
from tests.kubernetes.server.cluster import GPU_LABELS, LocalCluster
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


def test_a_forked_program_sees_what_an_executed_one_does(cluster: LocalCluster, request: pytest.FixtureRequest) -> None:
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


NODE: Object = {
    "name": "gpu-node-1",
    "capacity": {"cpu": "64", "memory": "64Gi", "ephemeral-storage": "200Gi", "pods": "400", "nvidia.com/gpu": "8"},
    "labels": GPU_LABELS,
}
"""As the recorded node, but with room for all scenarios at once."""
SPEED = 8.0
"""A back-off must be longer than what the scenarios' commands do meanwhile."""
GPUS = ["06-queued-for-gpus", "12-preempted", "14-indexed-gang-succeeds", "15e-gang-partly-scheduled"]
"""Scenarios that need the whole node's GPUs."""
NODES = ["16-node-lost-then-back", "16b-node-removed", "16c-only-node-lost-then-back"]
ALONE = [*GPUS, *NODES, "26-rejected-by-kubelet"]
OTHERWISE = ["18-forbidden", "19-invalid-objects", "21-watch-expired-and-ended"]
"""Scenarios that are about replies only; 21 is in test_server.py."""
TOGETHER = [name for name in names() if name not in ALONE + OTHERWISE]
ONE_HAS: dict[str, str] = {
    "Pod.status.resources.limits.memory: quantity Ki": "of a cgroup that is there for a moment after its containers",
}
"""Fields with the forms of their values that only recorded objects may have, or only those here, and why."""
BODIES_LEFT_OUT = ("not JSON", "a Job with an env value of")
"""Notes of requests whose body was not recorded."""


@pytest.fixture
def bare(cluster: LocalCluster) -> LocalCluster:
    """A cluster with one node and the scenarios' priority classes."""
    prepare(cluster, [NODE])
    return cluster


def prepare(cluster: LocalCluster, nodes: list[Object], speed: float = SPEED) -> None:
    """Begin anew with these nodes."""
    cluster.reset(nodes, speed=speed)
    for name, value in (("low", 100), ("urgent", 1000)):
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        cluster.create(path, {"metadata": {"name": name}, "value": value})


def played(
    cluster: LocalCluster, name: str, scratch: Path, haste: float = 4.0, replays: list[Replay] | None = None
) -> list[str]:
    """What one scenario does otherwise here than recorded."""
    replay = Replay(cluster, recording(name), scratch, haste)
    seen = replay.run()
    if replays is not None:
        replays.append(replay)
    return [*differences(recording(name), seen), *reply_differences(replay), *replay.flaws()]


def form_differences(replays: list[Replay], nodes: Object) -> list[str]:
    """The fields, and the forms of their values, that only the recorded objects have or only those here."""
    there, here = {"NodeList": [RECORDED]}, {"NodeList": [nodes]}
    for replay in replays:
        for event in replay.recording.events:
            there.setdefault(event.object["kind"], []).append(event.object)
        for event in replay.seen():
            here.setdefault(event.object["kind"], []).append(event.object)
        for request, _, body in replay.replies:
            if isinstance(request.get("reply"), dict) and isinstance(body, dict):
                there.setdefault(f"reply {request['reply'].get('kind')}", []).append(request["reply"])
                here.setdefault(f"reply {body.get('kind')}", []).append(body)
    assert there.keys() == here.keys() and len(there) >= 7
    recorded, own = ({one for kind in kinds for one in forms(kind, kinds[kind])} for kinds in (there, here))
    assert len(recorded) > 400
    known = set(ONE_HAS)
    return [f"only recorded: {one}" for one in sorted(recorded - own - known)] + [
        f"only here: {one}" for one in sorted(own - recorded - known)
    ]


def test_scenarios_side_by_side(bare: LocalCluster, tmp_path: Path) -> None:
    replays: list[Replay] = []

    def play(name: str) -> list[str]:
        return played(bare, name, tmp_path / "together", replays=replays)

    with ThreadPoolExecutor(12) as threads:
        found = dict(zip(TOGETHER, threads.map(play, TOGETHER)))
    assert len(found) >= 48
    different = {name: lines for name, lines in found.items() if lines}
    # On a busy machine one of the fifty may take a state for another's delay; alone, and with more time, it does not.
    for slower in (1.0, 4.0):
        for name in different:
            prepare(bare, [NODE], speed=SPEED / slower)
            different[name] = played(bare, name, tmp_path / f"alone {slower:g}", 4.0 / slower, replays)
        different = {name: lines for name, lines in different.items() if lines}
    assert not different
    assert not form_differences(replays, bare.get("/api/v1/nodes"))


@pytest.mark.parametrize("name", [*GPUS, "26-rejected-by-kubelet"])
def test_scenarios_that_need_all_gpus(bare: LocalCluster, tmp_path: Path, name: str) -> None:
    assert not played(bare, name, tmp_path)


@pytest.mark.parametrize("name", NODES)
def test_nodes_that_fall_silent_or_go(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    # In the first scenario there are two more nodes, which have room for nothing.
    others = [{"name": f"other-{number}", "capacity": {}} for number in (1, 2)] if name == NODES[0] else []
    prepare(cluster, [NODE, *others], speed=20.0)
    assert not played(cluster, name, tmp_path, haste=20.0)


def test_what_an_account_may_not_do(bare: LocalCluster, tmp_path: Path) -> None:
    scenario = copy.copy(recording("18-forbidden"))
    replay = Replay(bare, scenario, tmp_path)
    bare.create("/api/v1/namespaces", {"metadata": {"name": replay.namespace}})
    path = f"/api/v1/namespaces/{replay.namespace}"
    bare.create(f"{path}/serviceaccounts", {"metadata": {"name": "viewer"}})
    bare.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{replay.namespace}/rolebindings",
        {
            "metadata": {"name": "viewer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": replay.namespace}],
        },
    )
    replay.send_all()
    assert len(replay.replies) == 11
    assert not reply_differences(replay)
    reviews = [(request, body) for request, _, body in replay.replies if "accessreviews" in request["path"]]
    assert len(reviews) == 3
    assert all(body["status"] == request["reply"]["status"] for request, body in reviews)


def test_what_is_invalid(bare: LocalCluster, tmp_path: Path) -> None:
    replay = Replay(bare, recording("19-invalid-objects"), tmp_path)
    bare.create("/api/v1/namespaces", {"metadata": {"name": replay.namespace}})
    replay.send_all(leave_out=BODIES_LEFT_OUT)
    assert len(replay.replies) >= 35
    assert not reply_differences(replay)
    path = f"/apis/batch/v1/namespaces/{replay.namespace}/jobs"
    status, body = bare.request("POST", path, "{not json")
    assert (status, body["reason"]) == (400, "BadRequest")
    status, body = bare.request("POST", path, {"kind": "Job", "metadata": {"annotations": {"a": "x" * 4_000_000}}})
    assert (status, body["reason"]) == (413, "RequestEntityTooLarge")
