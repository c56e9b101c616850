"""`stoker stacks setup kubernetes` and `stoker doctor --stack`, on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_probe import BINDINGS, team

from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.proof import setup


@pytest.fixture
def near(project: Any, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project on a machine with a kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("STOKER_STACK", "")
    monkeypatch.setenv("STOKER_SIMULATE", "1xH100")  # the nodes only say that they have devices
    return project


@pytest.mark.timeout(300)
def test_from_a_kubeconfig_to_a_first_step(near: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ["stacks", "setup", "kubernetes", "--namespace", "digits", "--service-account", "trainer"]
    words += ["--artifact-store", str(store)]

    shown = near.stoker(*words, code=4)
    assert "nothing was written: this needs Namespace digits, ServiceAccount trainer; --yes makes it" in shown.stderr
    assert [each["kind"] for each in yaml.safe_load_all(shown.stdout)] == ["Namespace", "ServiceAccount"]
    assert not (Path(near.folder) / "stoker.toml").exists()

    made = near.stoker(*words, "--yes")
    assert "made Namespace digits, ServiceAccount trainer" in made.stderr
    assert "wrote the stack 'test'" in made.stderr
    assert "8 × nvidia.com/gpu, H100, driver 550" in made.stdout and "hello from " in made.stdout
    assert made.stdout.count("hello from ") == 2 and "H100" in made.stdout.rpartition("hello from ")[2], made.stdout
    written = (Path(near.folder) / "stoker.toml").read_text()
    assert f'[stacks.test]\nartifact_store = "{store}"' in written
    assert 'namespace = "digits"' in written and 'shares_files = "true"' in written
    assert cluster.get("/apis/batch/v1/namespaces/digits/jobs")["items"] == [], "nothing of a probe or a step stays"

    report = json.loads(near.stoker("doctor", "--stack", "test", "--json").stdout)
    names = {check["name"] for check in report["checks"]}
    assert report["ok"] and {"cluster", "namespace", "right: jobs", "accelerators", "clock", "job", "store"} <= names
    again = near.stoker(*words, "--yes", code=2)
    assert "there is a stack called 'test' already" in again.stderr


@pytest.mark.timeout(300)
def test_with_nothing_but_a_kubeconfig(near: Any, cluster: LocalCluster) -> None:
    """The store is a claim that setup makes, and a pod of the probe has written it."""
    words = ["stacks", "setup", "kubernetes", "--namespace", "bare"]
    refused = near.stoker(*words, "--yes", "--storage-class", "gold", code=2)
    assert "the cluster has no storage class 'gold'; it has standard" in refused.stderr
    refused = near.stoker(*words, "--yes", "--claim-size", "lots", code=2)
    assert "claim_size: 'lots'" in refused.stderr and "--claim-size 50Gi" in refused.stderr
    shown = near.stoker(*words, "--claim-size", "7Gi", code=4)
    assert (
        "nothing was written: this needs Namespace bare, PersistentVolumeClaim stoker; --yes makes it" in shown.stderr
    )
    claim = list(yaml.safe_load_all(shown.stdout))[-1]
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "7Gi"}}}
    made = near.stoker(*words, "--yes")
    assert "wrote the stack 'test'" in made.stderr and "hello from " in made.stdout
    assert "the claim stoker, written and read by a pod" in made.stdout
    assert "right: pods/exec" in made.stdout and "artifact store  pvc://stoker, written and read in" in made.stdout
    assert 'artifact_store = "pvc://stoker"' in (Path(near.folder) / "stoker.toml").read_text()
    report = json.loads(near.stoker("doctor", "--stack", "test", "--json").stdout)
    assert report["ok"], report
    cluster.wait(lambda: not cluster.get("/api/v1/namespaces/bare/pods")["items"])


def test_rights_that_the_account_may_not_give_itself_are_for_an_administrator(
    near: Any, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = team(cluster, [right for right in rbac.RIGHTS if right.resource == "pods"])
    monkeypatch.setenv("KUBECONFIG", options["kubeconfig"])
    words = ["stacks", "setup", "kubernetes", "--artifact-store", str(tmp_path), "--no-hello", "--yes"]
    refused = near.stoker(*words, code=4)
    assert "which you may not make; give it to an administrator" in refused.stderr
    objects = list(yaml.safe_load_all(refused.stdout))
    assert [each["kind"] for each in objects] == ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]
    assert objects[1]["subjects"] == [{"kind": "ServiceAccount", "namespace": "team", "name": "runner"}]

    # The administrator applies it, and the same words make the stack.
    for item in objects:
        path = setup.PATHS[item["kind"]][0].format(namespace="team")
        status, _ = cluster.request("POST", path, item)
        if status == 409:
            cluster.request(
                "PATCH", f"{path}/{item['metadata']['name']}", item, content_type="application/merge-patch+json"
            )
    made = near.stoker(*words)
    assert "wrote the stack 'test'" in made.stderr
    assert "right: nodes    list" in made.stdout


def test_an_account_that_may_make_roles_is_given_its_rights(
    near: Any, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = "rbac.authorization.k8s.io"
    may = [
        rbac.Right(group=group, resource=name, verbs=("create", "get", "patch", "bind", "escalate"), use="")
        for name in ("roles", "rolebindings")
    ]
    options = team(cluster, [])
    cluster.create(f"{BINDINGS}/roles", {"metadata": {"name": "binder"}, "rules": rbac.rules(may)})
    binding = {"apiGroup": group, "kind": "Role", "name": "binder"}
    runner = [rbac.subject_of("system:serviceaccount:team:runner")]
    body = {"metadata": {"name": "binder"}, "roleRef": binding, "subjects": runner}
    cluster.create(f"{BINDINGS}/rolebindings", body)
    cluster.create(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "see-nodes"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "see-nodes"},
            "subjects": runner,
        },
    )
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    cluster.create(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "see-nodes"}, "rules": rules}
    )
    monkeypatch.setenv("KUBECONFIG", options["kubeconfig"])
    preparation = setup.prepare({})
    assert preparation is not None and preparation.apply is not None
    assert preparation.what == "Role stoker, RoleBinding stoker-team-runner"
    preparation.apply()
    rules = cluster.get(f"{BINDINGS}/roles/stoker")["rules"]
    assert {"apiGroups": ["batch"], "resources": ["jobs"]}.items() <= rules[0].items()
    assert setup.prepare({}) is None, "nothing is missing any more"


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ("arn:aws:eks:eu-west-1:123456789012:cluster/prod", "prod"),
        ("gke_project_europe-west4_prod", "prod"),
        ("kubernetes-admin@lab", "lab"),
        ("kind-dev", "kind-dev"),
    ],
)
def test_names_of_stacks(context: str, name: str) -> None:
    assert setup.stack_name(context) == name
