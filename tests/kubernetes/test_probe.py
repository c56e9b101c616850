"""What `stoker doctor --stack` finds of a cluster: a real API server's answers to a real client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster

from stoker.backends.base.backend import ProbeRequest
from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.proof.probe import hello_job, probe
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.findings import Check

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
