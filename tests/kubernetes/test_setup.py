"""`stoker stacks setup kubernetes` and `stoker doctor --stack`, on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.server.cluster import LocalCluster

from stoker.backends.base.backend import ProbeRequest
from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.proof import setup
from stoker.backends.kubernetes.proof.setup import hello_job, probe
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Check


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
    for details, said in (
        ({"storage_class": "gold"}, "the cluster has no storage class 'gold'; it has standard"),
        ({"claim_size": "lots"}, "claim_size: 'lots'"),
    ):
        with pytest.raises(SettingsError, match=said):
            setup.prepare({}, "pvc://stoker", details)
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


TEAM = "/api/v1/namespaces/team"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/team"


def checks(
    cluster: LocalCluster, *, store: str = "s3://bucket", patience: float = 20.0, **options: Any
) -> dict[str, Check]:
    """The checks by name, of a stack on the test cluster."""
    options = {"kubeconfig": str(cluster.kubeconfig), **options}
    request = ProbeRequest(scratch="/tmp", store=store, patience=patience)
    return {check.name: check for check in probe(options, request)}


def test_a_cluster_that_has_everything(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.skew(90)
    found = checks(cluster, store=str(tmp_path), shares_files=True)
    assert not [check for check in found.values() if check.problem], found
    assert found["cluster"].found.startswith("test at http://127.0.0.1:")
    assert found["namespace"].found.startswith("default, as ")
    assert found["right: jobs"].found == "create, get, list, watch, delete"
    assert found["nodes"].found == "2 ready; the largest has 8 CPUs, 64Gi of memory"
    assert found["accelerators"].found == "1 node with 8 × nvidia.com/gpu, H100, driver 550"
    assert "standard (default)" in found["storage classes"].found
    assert found["clock"].found.startswith(("89 s ahead", "90 s ahead")) and "clocks" in found["clock"].found
    assert "on cpu-node-1" in found["job"].found or "on gpu-node-1" in found["job"].found
    assert found["python"].found.startswith("python3, 3.")
    assert found["store"].found == f"{tmp_path}, seen and written by pods"
    assert cluster.get("/apis/batch/v1/namespaces/default/jobs")["items"] == []


def team(cluster: LocalCluster, rights: list[Any]) -> dict[str, Any]:
    """Options for an account with these rights in the namespace "team", and with no others."""
    cluster.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    cluster.create(f"{TEAM}/serviceaccounts", {"metadata": {"name": "runner"}})
    for item in rbac.manifests("team", "system:serviceaccount:team:runner", rights, cluster=False):
        cluster.create(f"{BINDINGS}/{item['kind'].lower()}s", item)
    token = cluster.account_token("team", "runner")
    return {"kubeconfig": str(cluster.kubeconfig_for(token, namespace="team", name="runner"))}


def test_the_least_rights_are_enough_for_the_probe(cluster: LocalCluster) -> None:
    options = team(cluster, [right for right in rbac.RIGHTS if right.needed])
    found = checks(cluster, **options)
    assert not [check for check in found.values() if check.problem], found
    assert found["nodes"].found == "not known: this account may not list them"
    assert "not list or watch: needed to say why a step waits" in found["right: events"].found
    assert "job" in found and "python" in found


def test_rights_that_are_missing_are_told_verb_by_verb(cluster: LocalCluster) -> None:
    rights = [right for right in rbac.RIGHTS if right.needed and right.resource not in ("pods/log", "secrets")]
    found = checks(cluster, **team(cluster, rights))
    log = found["right: pods/log"]
    assert log.problem == "not get: needed to read the output and the results of steps"
    assert "--verb=get --resource=pods/log -n team" in log.fix
    assert "--serviceaccount=team:runner" in log.fix
    assert found["right: secrets"].problem.startswith("not create or get or list or patch or delete")
    assert not found["right: jobs"].problem
    assert "job" not in found


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"namespace": "nowhere"}, "namespace", "there is no namespace 'nowhere'"),
        ({"image_pull_secrets": ["registry"]}, "pull secret", 'there is no secret "registry"'),
        ({"service_account": "trainer"}, "service account", 'there is no service account "trainer"'),
        ({"priority_class": "gold"}, "priority classes", 'there is no priority class "gold"'),
        ({"queue": "team-a", "queueing": "kueue"}, "queues", "the stack asks for Kueue"),
        ({"node_selector": {"disk": "ssd"}}, "job", "the labels that the step asks for"),
        ({"executable": "no-such-python"}, "job", "no-such-python"),
        ({"context": "absent"}, "cluster", "absent"),
    ],
)
def test_problems(cluster: LocalCluster, options: dict[str, Any], name: str, words: str) -> None:
    check = checks(cluster, patience=3, **options)[name]
    assert words in check.problem, check
    assert check.fix or name == "job"


def test_a_folder_that_the_nodes_have_under_another_path(cluster: LocalCluster, tmp_path: Path) -> None:
    """The node's folder of that name is another one: a mount that the settings bring stands there."""
    (tmp_path / "store").mkdir()
    volumes = [{"name": "mine", "emptyDir": {}}]
    mounts = [{"name": "mine", "mountPath": str(tmp_path / "store")}]
    found = checks(cluster, store=str(tmp_path / "store"), shares_files=True, volumes=volumes, volume_mounts=mounts)
    assert found["store"].problem == f"pods do not see what is in {tmp_path}/store here"
    assert not list((tmp_path / "store").iterdir()), "the marker is gone"


def test_a_device_plugin_that_does_not_run_is_found(cluster: LocalCluster) -> None:
    cluster.add_node("gpu-node-2", labels={"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "Tesla-T4"})
    check = checks(cluster)["device plugin"]
    assert check.problem == "labelled as having accelerators, and offering none: gpu-node-2 (T4)"


def test_an_api_server_that_does_not_answer_is_one_problem(cluster: LocalCluster, tmp_path: Path) -> None:
    config = cluster.kubeconfig.read_text().replace(cluster.url, "http://127.0.0.1:1")
    (tmp_path / "kubeconfig").write_text(config)
    [(name, check)] = checks(cluster, kubeconfig=str(tmp_path / "kubeconfig")).items()
    assert name == "cluster" and "does not answer" in check.problem


def test_the_job_of_the_probe_is_placed_as_a_step_would_be() -> None:
    settings = KubernetesSettings(node_selector={"disk": "ssd"}, image="team/step:1", service_account="trainer")
    job = hello_job(settings, "abc", "")
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "ssd"} and spec["serviceAccountName"] == "trainer"
    assert spec["containers"][0]["image"] == "team/step:1"
    assert job["metadata"]["name"] == "stoker-probe-abc" and job["spec"]["ttlSecondsAfterFinished"] == 600
