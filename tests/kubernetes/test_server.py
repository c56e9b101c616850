"""Parts of the tests' cluster that no recorded scenario goes through: watches, logs, volumes, faults, and many pods."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

import psutil
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


def claim(name: str) -> Object:
    """A claim."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


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


def watched(cluster: LocalCluster, path: str) -> list[Object]:
    """All events of a watch that ends by itself."""
    status, text = cluster.request("GET", path)
    assert status == 200, text
    return [json.loads(line) for line in text.splitlines()]


def names_of(events: list[Object]) -> list[tuple[str, str]]:
    """Type of each event, and the name of its object."""
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


def test_watches_begin_and_end_as_recorded(cluster: LocalCluster) -> None:
    begin = cluster.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    for number in range(3):
        cluster.create(CONFIG_MAPS, {"metadata": {"name": f"c{number}", "labels": {"n": str(number)}}})
    cluster.delete(f"{CONFIG_MAPS}/c0")
    watch = f"{CONFIG_MAPS}?watch=true&timeoutSeconds=1"
    since = watched(cluster, f"{watch}&resourceVersion={begin}")
    assert names_of(since) == [("ADDED", "c0"), ("ADDED", "c1"), ("ADDED", "c2"), ("DELETED", "c0")]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in since]
    assert versions == sorted(versions)
    # Without a version, or from 0, a watch begins with what is there.
    there = [("ADDED", "c1"), ("ADDED", "c2"), ("ADDED", "kube-root-ca.crt")]
    assert names_of(watched(cluster, watch)) == there
    assert names_of(watched(cluster, f"{watch}&resourceVersion=0")) == there
    *first, mark = watched(cluster, f"{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
    assert names_of(first) == there
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    # An object that begins to fit a selector is added, one that no longer does is deleted.
    begin = cluster.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    for label in ("wanted", "other"):
        body = {"metadata": {"labels": {"n": label}}}
        cluster.request("PATCH", f"{CONFIG_MAPS}/c1", body, content_type="application/merge-patch+json")
    fitting = watched(cluster, f"{watch}&resourceVersion={begin}&labelSelector=n%3Dwanted")
    assert names_of(fitting) == [("ADDED", "c1"), ("DELETED", "c1")]
    assert cluster.request("GET", f"{watch}&resourceVersion=abc")[0] == 500
    cluster.compact()
    [expired] = watched(cluster, f"{watch}&resourceVersion={begin}")
    assert (expired["type"], expired["object"]["code"], expired["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_lists_come_in_pages_and_can_be_too_old(cluster: LocalCluster) -> None:
    for number in range(5):
        cluster.create(CONFIG_MAPS, {"metadata": {"name": f"c{number}"}})
    names, token = [], ""
    while True:
        page = cluster.get(f"{CONFIG_MAPS}?limit=2&continue={token}")
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert names == ["c0", "c1", "c2", "c3", "c4", "kube-root-ca.crt"]
    old = cluster.get(f"{CONFIG_MAPS}?limit=2")["metadata"]
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "c5"}})
    cluster.compact()
    status, body = cluster.request("GET", f"{CONFIG_MAPS}?limit=2&continue={old['continue']}")
    assert (status, body["reason"]) == (410, "Expired")
    assert cluster.get(f"{CONFIG_MAPS}?limit=2&continue={body['metadata']['continue']}")["items"]
    exact = f"{CONFIG_MAPS}?resourceVersion={old['resourceVersion']}&resourceVersionMatch=Exact"
    assert cluster.request("GET", exact)[0] == 410
    assert cluster.request("GET", f"{CONFIG_MAPS}?resourceVersion=abc")[0] == 400
    assert cluster.request("GET", f"{CONFIG_MAPS}?resourceVersion=99999999")[0] == 504


PRINTING = "import time\nfor i in range(20): print('line', i, flush=True); time.sleep(0.05)\nprint('rest', end='')"


def test_a_log_is_followed_and_read_again_from_a_time(cluster: LocalCluster) -> None:
    cluster.create(JOBS, job("train", "python3", "-c", PRINTING))
    name = cluster.wait(lambda: (pod_of(cluster, "train") or {}).get("metadata", {}).get("name"))
    path = f"{PODS}/{name}/log"
    cluster.wait(lambda: cluster.request("GET", path)[0] == 200)
    with cluster.stream(f"{path}?follow=true&timestamps=true") as lines:
        stamped = [line.decode().split(" ", 1) for line in lines]
    whole = [f"line {i}\n" for i in range(20)] + ["rest"]
    assert [text for _, text in stamped] == whole
    assert [stamp for stamp, _ in stamped] == sorted({stamp for stamp, _ in stamped})
    # From the time of any line on, that line is the first, and none is missing.
    for number in (0, 7, 19):
        assert log_of(cluster, "train", f"sinceTime={stamped[number][0]}") == "".join(whole[number:])
    assert log_of(cluster, "train", "tailLines=2") == "line 19\nrest"
    assert log_of(cluster, "train", "limitBytes=6") == "line 0"


READING = """
import os, json, sys
files = {}
for place in sys.argv[1:]:
    for folder, _, names in os.walk(place):
        for name in names:
            files[os.path.join(os.path.basename(place), os.path.relpath(os.path.join(folder, name), place))] = open(
                os.path.join(folder, name)).read()
open("/data/written", "w").write("by the pod")
open("/dev/termination-log", "w").write("a last word")
wanted = ("PLAIN", "SECRET", "CONFIGURED", "NAME", "NODE", "IP", "JOINED", "PLACE", "PRE_a")
print(json.dumps({"files": files, "environment": {name: os.environ.get(name) for name in wanted}}))
"""


def test_a_container_gets_its_environment_and_volumes(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "step"}, "data": {"a": "from a map", "b": "2"}})
    secret = {"metadata": {"name": "token"}, "stringData": {"key": "hidden"}}
    cluster.create("/api/v1/namespaces/default/secrets", secret)
    cluster.create("/api/v1/namespaces/default/persistentvolumeclaims", claim("store"))
    (tmp_path / "given").write_text("from the host")
    variables = [
        {"name": "PLAIN", "value": "1"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}},
        {"name": "CONFIGURED", "valueFrom": {"configMapKeyRef": {"name": "step", "key": "b"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "JOINED", "value": "$(PLAIN)-$(SECRET)-$$(PLAIN)"},
        {"name": "PLACE", "value": "/data:/database"},
    ]
    mounts = {"/cfg": "cfg", "/secret": "secret", "/data": "data", "/claim": "claim", "/all": "all", str(tmp_path): "h"}
    volumes: list[Object] = [
        {"name": "cfg", "configMap": {"name": "step", "items": [{"key": "a", "path": "inner/a.txt"}]}},
        {"name": "secret", "secret": {"secretName": "token"}},
        {"name": "data", "emptyDir": {}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "store"}},
        {"name": "h", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"configMap": {"name": "step"}},
                    {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                ]
            },
        },
    ]
    container = {
        "args": list(mounts),
        "env": variables,
        "envFrom": [{"prefix": "PRE_", "configMapRef": {"name": "step"}}],
        "volumeMounts": [{"name": name, "mountPath": path} for path, name in mounts.items()],
    }
    cluster.create(JOBS, job("read", "python3", "-c", READING, pod={"volumes": volumes}, container=container))
    assert condition_of(ended(cluster, "read"), "Complete"), log_of(cluster, "read")
    pod = pod_of(cluster, "read")
    assert pod is not None
    seen = json.loads(log_of(cluster, "read"))
    assert {name: text for name, text in seen["files"].items() if "kube" not in name} == {
        "cfg/inner/a.txt": "from a map",
        "secret/key": "hidden",
        f"{tmp_path.name}/given": "from the host",
        "all/a": "from a map",
        "all/b": "2",
        "all/ns": "default",
    }
    place = seen["environment"].pop("PLACE")
    # A path that only begins like a mount path stays as it is.
    assert place.endswith("/volumes/data:/database") and not place.startswith("/data")
    assert seen["environment"] == {
        "PLAIN": "1",
        "SECRET": "hidden",
        "CONFIGURED": "2",
        "NAME": pod["metadata"]["name"],
        "NODE": pod["spec"]["nodeName"],
        "IP": pod["status"]["podIP"],
        "JOINED": "1-hidden-$(PLAIN)",
        "PRE_a": "from a map",
    }
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "a last word"


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


def test_why_no_node_takes_a_pod(cluster: LocalCluster) -> None:
    cluster.reset(nodes=[])
    cluster.add_node("small", cpu="1", labels={"pool": "a"})
    cluster.add_node("tainted", gpus=2, taints=[{"key": "gpu", "value": "reserved", "effect": "NoSchedule"}])
    cluster.add_node("closed")
    cluster.cordon("closed")

    def why(name: str, pod: Object, limits: Object) -> str:
        cluster.create(JOBS, job(name, "true", pod=pod, container={"resources": {"limits": limits}}))
        waiting = cluster.wait(lambda: condition_of(pod_of(cluster, name) or {}, "PodScheduled"))
        return str(waiting.get("message", "scheduled")).partition(" no new")[0]

    reasons = "1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable"
    assert why("large", {}, {"cpu": "4"}) == f"0/3 nodes are available: {reasons}."
    toleration = {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]}
    assert why("gpu", toleration, {"nvidia.com/gpu": "2"}) == "scheduled"
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    text = why("elsewhere", {"affinity": affinity, **toleration}, {})
    unmatched = "2 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable"
    assert text == f"0/3 nodes are available: {', '.join(sorted(unmatched.split(', ')))}."
    absent = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "absent"}}]}
    assert why("unclaimed", absent, {}) == '0/3 nodes are available: persistentvolumeclaim "absent" not found.'
    # Room is made, and all that waits is looked at again.
    cluster.cordon("closed", unschedulable=False)
    ended(cluster, "large")
    cluster.add_node("new", labels={"pool": "b"})
    ended(cluster, "elsewhere")
    cluster.create("/api/v1/namespaces/default/persistentvolumeclaims", claim("absent"))
    ended(cluster, "unclaimed")


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


def test_watches_break_and_connections_are_refused(cluster: LocalCluster) -> None:
    lines: list[bytes] = []

    def watch(path: str) -> None:
        with cluster.stream(path) as stream:
            lines.extend(stream)

    for lever in (cluster.drop_watches, cluster.expire_watches):
        lines.clear()
        thread = threading.Thread(target=_quietly, args=(watch, f"{CONFIG_MAPS}?watch=true"))
        thread.start()
        cluster.wait(lambda: cluster.counts().get("watch configmaps", 0))
        time.sleep(0.1)
        lever()
        thread.join(30)
        assert not thread.is_alive()
        last = json.loads(lines[-1])
        assert last["type"] == ("ERROR" if lever == cluster.expire_watches else "ADDED")
    cluster.refuse_connections(0.5)
    with pytest.raises(urllib.error.URLError):
        cluster.get(JOBS)
    cluster.wait(lambda: _reached(cluster))
    with cluster.stopped(), pytest.raises(TimeoutError):
        cluster.request("GET", JOBS, timeout=0.3)
    assert cluster.get(JOBS)["items"] == []


def _quietly(work: Any, path: str) -> None:
    try:
        work(path)
    except OSError:
        return


def _reached(cluster: LocalCluster) -> bool:
    try:
        return cluster.request("GET", "/healthz")[0] == 200
    except OSError:
        return False


def test_the_clock_and_the_version(cluster: LocalCluster) -> None:
    cluster.skew(3600.0)
    created = cluster.create(CONFIG_MAPS, {"metadata": {"name": "c"}})["metadata"]["creationTimestamp"]
    assert created > time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3000))
    assert cluster.get("/version")["minor"] == "36"
    found = {each["name"]: each["verbs"] for each in cluster.get("/apis/batch/v1")["resources"]}
    assert "watch" in found["jobs"]
    recorded = {"jobs", "pods", "pods/log"}
    listed = cluster.get("/api/v1")["resources"] + cluster.get("/apis/batch/v1")["resources"]
    assert recorded <= {each["name"] for each in listed}


def test_patches_and_dry_runs(cluster: LocalCluster) -> None:
    path = f"{CONFIG_MAPS}/c"
    cluster.create(f"{CONFIG_MAPS}?dryRun=All", {"metadata": {"name": "c"}})
    assert cluster.request("GET", path)[0] == 404
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"a": "1", "b": "2"}})
    for content_type, body in (
        ("application/merge-patch+json", {"data": {"a": None, "c": "3"}}),
        ("application/json-patch+json", [{"op": "replace", "path": "/data/b", "value": "two"}]),
        ("application/strategic-merge-patch+json", {"metadata": {"labels": {"x": "y"}}}),
    ):
        assert cluster.request("PATCH", path, body, content_type=content_type)[0] == 200
    changed = cluster.get(path)
    assert changed["data"] == {"b": "two", "c": "3"} and changed["metadata"]["labels"] == {"x": "y"}
    test = [{"op": "test", "path": "/data/b", "value": "2"}]
    assert cluster.request("PATCH", path, test, content_type="application/json-patch+json")[0] == 422


def test_fields_of_another_type_or_missing_ones_are_refused(cluster: LocalCluster) -> None:
    wrong: list[tuple[Object, str]] = [
        (job("a", "true", backoffLimit="3"), "string into Go struct field JobSpec.spec.backoffLimit of type int32"),
        (job("a", "true", container={"args": "x"}), "Container.spec.template.spec.containers.args of type []string"),
        (job("a", "true", pod={"nodeSelector": {"a": True}}), "spec.template.spec.nodeSelector of type string"),
    ]
    for body, words in wrong:
        status, reply = cluster.request("POST", JOBS, body)
        assert status == 400 and words in reply["message"], reply
    mount = {"volumeMounts": [{"name": "x"}], "env": [{"value": "1"}]}
    status, reply = cluster.request("POST", JOBS, job("a", "true", container=mount))
    container = "spec.template.spec.containers[0]"
    assert status == 422
    fields = {each["field"] for each in reply["details"]["causes"]}
    assert fields == {f"{container}.volumeMounts[0].mountPath", f"{container}.env[0].name"}


def test_a_node_comes_back_under_its_name(cluster: LocalCluster) -> None:
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    cluster.create(JOBS, job("train", "sleep", "1", container=gpus, podFailurePolicy=policy))
    cluster.wait(lambda: cluster.pids())
    cluster.remove_node("gpu-node-1")
    cluster.add_node("gpu-node-1", gpus=8)
    # What ran on the old one is gone, and the new one has all of its devices free.
    assert condition_of(ended(cluster, "train"), "Complete")


def test_two_hundred_elements_and_a_hundred_jobs(cluster: LocalCluster) -> None:
    limits = {"resources": {"requests": {"cpu": "1"}}}
    fan_out: dict[str, Any] = {"completionMode": "Indexed", "completions": 200, "parallelism": 200}
    server = psutil.Process(cluster.process.pid)
    before = server.memory_info().rss
    cluster.create(JOBS, job("fan-out", "true", container=limits, **fan_out))
    peak = 0
    while not condition_of(cluster.get(f"{JOBS}/fan-out"), "Complete"):
        peak = max(peak, sum(len(pids) for pids in cluster.pids().values()))
        time.sleep(0.1)  # the server has the same two cores
    assert peak <= 16
    assert cluster.get(f"{JOBS}/fan-out")["status"]["completedIndexes"] == "0-199"
    for number in range(100):
        cluster.create(JOBS, job(f"j{number}", "true", container=limits))
    cluster.wait(
        lambda: sum("completionTime" in each["status"] for each in cluster.get(JOBS)["items"]) == 101, seconds=200
    )
    assert server.memory_info().rss - before < 200 << 20


def test_a_server_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    server = LocalCluster.start(tmp_path / "cluster")
    server.reset()
    server.create(JOBS, job("train", "sleep", "600"))
    server.wait(lambda: server.processes())
    server.process.kill()
    with pytest.raises(AssertionError, match="outlived"):
        server.close()
    assert not server.processes()
