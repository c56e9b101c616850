"""An artifact store on a claim of the cluster: nothing but a kubeconfig is needed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.kubernetes.drivers import stack
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_prove import STEP

from stoker.backends.kubernetes.api.client import ApiError
from stoker.backends.kubernetes.proof.prove import prove_claim
from stoker.backends.kubernetes.request import claims, storepod
from stoker.backends.kubernetes.request.claims import ClaimFiles, claim_store, complete
from stoker.core.errors import BackendError, DiskFull, SettingsError
from stoker.core.findings import Finding

PIPELINE = """
from stoker import context, pipeline, step

@step
def make(n: int) -> list[int]:
    return list(range(n))

@step
def square(number: int) -> int:
    return number**2

@step(cache=False, retry=1)
def total(numbers: list[int]) -> int:
    saved = context.checkpoint_dir / "epoch"
    if not saved.exists():
        saved.write_text("100")
        raise ValueError("the first attempt")
    return sum(numbers) + int(saved.read_text())

@step
def text() -> str:
    return "many words " * 200_000

@pipeline
def learn(n: int = 4):
    text()
    return total(square.map(make(n)))

if __name__ == "__main__":
    print("total", learn().steps["total"].output.load())
"""
PODS = "/api/v1/namespaces/default/pods"
FOLDERS = iter(range(1000))


def make_claim(cluster: LocalCluster, *modes: str) -> str:
    """A claim of its own for each test."""
    name = f"runs-{os.getpid()}-{next(FOLDERS)}"
    spec = {"accessModes": list(modes or ["ReadWriteMany"]), "resources": {"requests": {"storage": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    cluster.create("/api/v1/namespaces/default/persistentvolumeclaims", body)
    return name


def folder_of(cluster: LocalCluster, claim: str) -> Path:
    """Where the test cluster has a claim's files."""
    return cluster.folder / "claims" / "default" / claim


def uri_of(claim: str, kubeconfig: Path) -> str:
    return f"pvc://{claim}/team?kubeconfig={quote(json.dumps(str(kubeconfig)))}"


@pytest.fixture
def claim(cluster: LocalCluster) -> str:
    return make_claim(cluster)


@pytest.fixture
def files(cluster: LocalCluster, claim: str) -> Iterator[ClaimFiles]:
    files = ClaimFiles(uri_of(claim, cluster.kubeconfig))
    yield files
    files.close()


@pytest.fixture
def upload(files: ClaimFiles, tmp_path: Path) -> Any:
    """Writes bytes as a file of the claim."""

    def send(data: bytes, path: str, part: str = "tmp/part") -> None:
        source = tmp_path / "source"
        source.write_bytes(data)
        with source.open("rb") as file:
            files.write(file, path, part=part)

    return send


def content(files: ClaimFiles, path: str) -> bytes:
    data = bytearray()
    assert files.read(path, data.extend)
    return bytes(data)


def test_files_of_a_claim(files: ClaimFiles, upload: Any, cluster: LocalCluster, claim: str) -> None:
    """All that a store does with files; with the last session the pod goes."""
    data = os.urandom(5_000_000)
    upload(data, "objects/aa/one")
    upload(b"", "objects/aa/empty")
    assert (folder_of(cluster, claim) / "team/objects/aa/one").read_bytes() == data, "steps see a plain file"
    assert content(files, "objects/aa/one") == data
    assert content(files, "objects/aa/empty") == b""
    assert not files.read("objects/aa/none", lambda piece: None)
    facts = files.look(["objects/aa/one", "objects/aa/none", "objects/aa/one/below"])
    assert set(facts) == {"objects/aa/one"}
    assert facts["objects/aa/one"].size == len(data) and 0 <= facts["objects/aa/one"].age < 120
    assert files.renew("objects/aa/one", len(data)) and not files.renew("objects/aa/one", 3)
    assert files.remove_older("objects/aa/one", 3600) is None
    assert files.rename("objects/aa/one", "quarantine/one") and not files.rename("objects/aa/one", "quarantine/two")
    os.utime(folder_of(cluster, claim) / "team/quarantine/one", (1, 1))
    assert files.remove_older("quarantine/one", 3600) == len(data)
    files.remove(["objects/aa/empty", "objects/aa/none"])
    assert list(files.files("objects")) == list(files.files("nowhere")) == []
    with pytest.raises(BackendError, match="leads out of the store"):
        files.look(["../other/secret"])
    other = ClaimFiles(files_uri(files))
    assert other.look(["x"]) == {}
    assert len(cluster.get(PODS)["items"]) == 1, "both use one pod"
    files.close()
    assert other.look(["x"]) == {}, "the pod stays while anybody has a session"
    other.close()
    cluster.wait(lambda: not cluster.get(PODS)["items"])


def files_uri(files: ClaimFiles) -> str:
    return complete(files._store.options, f"pvc://{files._store.claim}/{files._store.folder}")


def test_connections_that_are_cut_at_any_byte(files: ClaimFiles, upload: Any, cluster: LocalCluster) -> None:
    """A transfer goes on where it was, and what arrives is what was sent."""
    draw = random.Random(7)
    data = draw.randbytes(9_000_000)
    files.look(["x"])
    for number in range(6):
        cluster.cut_executions(*(draw.randrange(1, 6_000_000) for _ in range(draw.randrange(1, 4))))
        cluster.cut_executions()
        upload(data, f"objects/aa/{number}", part=f"tmp/{number}")
        assert content(files, f"objects/aa/{number}") == data
    assert not list(files.files("tmp"))


def test_a_pod_that_is_evicted(files: ClaimFiles, upload: Any, cluster: LocalCluster) -> None:
    """Another pod takes its place, between two questions and within a transfer."""
    data = os.urandom(3_000_000)
    upload(data, "objects/aa/one")
    (pod,) = cluster.get(PODS)["items"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    cluster.create(f"{PODS}/{pod['metadata']['name']}/eviction", eviction)
    received = bytearray()

    def receive(piece: bytes) -> None:
        if not received:
            cluster.ask("drain", name=cluster.get(PODS)["items"][0]["spec"]["nodeName"])
        received.extend(piece)

    assert files.read("objects/aa/one", receive)
    assert received == data
    assert files.look(["objects/aa/one"])["objects/aa/one"].size == len(data)


def test_a_claim_that_is_full(files: ClaimFiles, upload: Any, cluster: LocalCluster, claim: str) -> None:
    """It is said in words, and nothing of the file stays."""
    folder = folder_of(cluster, claim)
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("this account may not mount a small disk")
    try:
        upload(os.urandom(1_000_000), "objects/aa/small")
        with pytest.raises(DiskFull, match=f"on the claim {claim}: .*No space left") as caught:
            upload(os.urandom(3_000_000), "objects/aa/large")
        assert "stoker gc" in caught.value.fix
        assert list(files.files("")) == ["objects/aa/small"]
    finally:
        files.close()
        cluster.wait(lambda: not cluster.get(PODS)["items"])
        subprocess.run(["umount", str(folder)], check=True)


def test_a_pod_that_cannot_start(cluster: LocalCluster) -> None:
    """What a person must change is said, and the pod does not stay."""
    cluster.fail_image("nobody/.*", "not-found")
    claim = make_claim(cluster)
    options = {"kubeconfig": str(cluster.kubeconfig), "image": "nobody/none:1"}
    files = ClaimFiles(complete(options, f"pvc://{claim}"))
    with pytest.raises(BackendError, match=f"the pod of the claim {claim} does not start: .*nobody/none:1"):
        files.look(["x"])
    files.close()
    cluster.wait(lambda: not cluster.get(PODS)["items"])


def test_rights_that_are_missing(cluster: LocalCluster, project: Any) -> None:
    """The plan names the resource and the verb, and so does whoever has no plan."""
    claim = make_claim(cluster)
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "delete", "patch"]}
    some = {"apiGroups": ["*"], "resources": ["pods", "jobs", "secrets", "configmaps"], "verbs": ["create"]}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    cluster.create(
        f"{rbac}/clusterroles", {"kind": "ClusterRole", "metadata": {"name": "half"}, "rules": [everything, some]}
    )
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "half"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "half"},
        "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    cluster.create(f"{rbac}/clusterrolebindings", binding)
    token = cluster.ask("user_token", name="eve", groups=["system:authenticated"])
    kubeconfig = cluster.kubeconfig_for(token, name="eve")
    text = stack(cluster, places=f'artifact_store = "pvc://{claim}/team"', shares=False, kubeconfig=kubeconfig)
    project.write({"stoker.toml": text, "train.py": PIPELINE})
    refused = project.stoker("plan", "train.py", code=3)
    assert "STK260" in refused.stdout and "'eve' may not create pods/exec" in refused.stdout, refused.stdout
    files = ClaimFiles(uri_of(claim, kubeconfig))
    with pytest.raises(BackendError, match="pods/exec"):
        files.look(["x"])
    files.close()


def test_a_run_with_nothing_but_a_kubeconfig(cluster: LocalCluster, project: Any, claim: str) -> None:
    """Steps have the claim's files, and this machine gets what it asks for."""
    text = stack(cluster, places=f'artifact_store = "pvc://{claim}/team"', shares=False)
    project.write({"stoker.toml": text, "train.py": PIPELINE})
    done = project.run("train.py", timeout=120.0)
    assert "total 114" in done.stdout, done.stdout
    assert (folder_of(cluster, claim) / "team/objects").is_dir()
    cached = project.stoker("run", "train.py", timeout=120.0)
    assert "cached" in cached.stdout + cached.stderr
    assert "text.output" in project.stoker("pull", "last").stderr, "what no step loads is not fetched before"
    assert "nothing to fetch" in project.stoker("pull", "last").stderr
    assert "checkpoints" in {one.name for one in (folder_of(cluster, claim) / "team").iterdir()}
    project.stoker("gc", "--force", "--older-than", "0s", "--stack", "cluster")
    assert not [one for one in (folder_of(cluster, claim) / "team/checkpoints").rglob("*") if one.is_file()]
    cluster.wait(lambda: not cluster.get(PODS)["items"])


def test_a_uri() -> None:
    store = claim_store("pvc://runs/a/b/")
    assert store is not None and (store.claim, store.folder, store.path) == ("runs", "a/b", "/stoker/claim/a/b")
    assert claim_store("s3://runs") is None
    for wrong in ("pvc://", "pvc://a/../b", "pvc://a b", "pvc://runs?memory=3"):
        with pytest.raises(SettingsError):
            claim_store(wrong)
    options = {"image": "team/step:1", "node_selector": {"disk": "fast"}, "ttl": 30, "shares_files": False}
    uri = complete(options, "pvc://runs/a")
    again = claim_store(uri)
    assert again is not None and again.options == {"image": "team/step:1", "node_selector": {"disk": "fast"}}
    assert complete(options, uri) == uri
    assert complete(options, "s3://runs") == "s3://runs"
    pod = claims.store_pod(again)
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"} and len(pod["metadata"]["name"]) <= 63


@pytest.mark.parametrize(
    ("modes", "more", "nodes", "selector", "expected"),
    [
        (["ReadWriteMany"], {}, 2, {}, []),
        (["ReadWriteOnce"], {}, 1, {}, []),
        (["ReadWriteOnce"], {}, 2, {}, [("STK259", "warning")]),
        (["ReadWriteOnce"], {"volumeName": "disk"}, 2, {}, [("STK259", "error")]),
        (["ReadWriteOnce"], {"volumeName": "local"}, 2, {}, [("STK259", "info")]),
        (["ReadWriteOnce"], {"volumeName": "disk"}, 2, {"kubernetes.io/hostname": "n1"}, []),
        (["ReadWriteOncePod"], {}, 2, {}, [("STK258", "error")]),
        (["ReadOnlyMany"], {}, 2, {}, [("STK258", "error")]),
    ],
)
def test_what_a_claim_allows(
    modes: list[str], more: dict[str, str], nodes: int, selector: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    """Access modes are read before anything runs."""
    objects = {
        "/api/v1/namespaces/ml/persistentvolumeclaims/runs": {
            "metadata": {"name": "runs"},
            "spec": {"accessModes": modes, **more},
        },
        "/api/v1/nodes": {"items": [{"metadata": {"name": f"n{number}"}} for number in range(nodes)]},
        "/api/v1/persistentvolumes/disk": {"spec": {"csi": {}}},
        "/api/v1/persistentvolumes/local": {"spec": {"nodeAffinity": {"required": {}}}},
    }
    found = prove(objects, {"node_selector": selector} if selector else {})
    assert [(one.code, one.level) for one in found] == expected, found


def test_a_claim_that_is_not_there_or_elsewhere() -> None:
    (missing,) = prove({}, {})
    assert missing.code == "STK258" and "stoker stacks setup kubernetes" in missing.fix
    assert [one.code for one in prove({}, {}, claim_namespace="other")] == ["STK258", "STK258"]


def prove(objects: dict[str, Any], options: dict[str, Any], *, claim_namespace: str = "") -> list[Finding]:
    """The findings about a claim "runs" for one step, of a cluster with these objects."""
    store = claim_store(complete({"namespace": claim_namespace} if claim_namespace else {}, "pvc://runs"))
    assert store is not None
    return list(prove_claim([STEP], options, store, Objects(objects), "ml"))


class Objects:
    """An API server that allows everything and has some objects."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = objects

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        if path not in self._objects:
            raise ApiError(404, "NotFound", "not found", {})
        return dict(self._objects[path])

    def create(self, path: str, body: Any, *, dry_run: bool = False) -> dict[str, Any]:
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        return {"status": {"resourceRules": [everything], "allowed": True}}

    def delete(self, path: str, *, grace: float | None = None) -> dict[str, Any]:
        raise AssertionError("a proof deletes nothing")


def test_the_pod_ends_when_nobody_uses_it(tmp_path: Path) -> None:
    """A session that lasts keeps it, also one that asks nothing; a session itself ends when its client falls silent."""
    program = [sys.executable, storepod.__file__]
    begun = time.monotonic()
    with (
        subprocess.Popen([*program, "serve", str(tmp_path), str(tmp_path), "4"], stdin=subprocess.PIPE) as session,
        subprocess.Popen([*program, "keep", str(tmp_path), "1.5"]) as keeper,
    ):
        assert session.wait(60) == 0
        assert time.monotonic() - begun >= 3.9 and keeper.poll() is None
        assert keeper.wait(60) == 0
