"""Steps on several nodes: as a Job whose pods have names, or as a JobSet of that project's controller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.kubernetes.drivers import killed, nothing_left, says, stack, start
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_prove import need
from tests.kubernetes.test_setup import team

from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.api.client import Cluster
from stoker.backends.kubernetes.proof import setup
from stoker.backends.kubernetes.proof.prove import groups_of, prove
from stoker.backends.kubernetes.request.pods import PodRequest
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.resources import ResourceSettings

JOBS = "/apis/batch/v1/namespaces/default/jobs"
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
UP = ("rank 0 is up", "rank 1 is up")
WORKERS = "/api/v1/namespaces/default/configmaps?labelSelector=stoker/worker"
SECRETS = "/api/v1/namespaces/default/secrets"
PIPELINE = """
import os, sys, time
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step(cache=False, resources=ResourceSettings(nodes=2, cpu_count=0.5))
def ranks(flag: str) -> str:
    print("rank", context.rank, "is up", flush=True)
    while flag and not os.path.exists(flag):
        time.sleep(0.05)
    if flag == "":
        raise ValueError("no flag")
    return f"{context.node} of {context.world_size} at {os.environ['HOSTNAME']}"

@pipeline
def gang(flag: str):
    ranks(flag)

if __name__ == "__main__":
    print(gang(sys.argv[1]).steps["ranks"].output.load())
"""


@pytest.fixture
def kube(kube: Any) -> Any:
    """A project whose gangs are Jobs."""
    return kube.write({"train.py": PIPELINE})


def as_jobsets(kube: Any, cluster: LocalCluster, *more: str) -> None:
    """Have gangs be JobSets, whose controller the cluster gets."""
    cluster.ask("install", group="jobset.x-k8s.io")
    kube.write({"stoker.toml": stack(cluster, "jobset = true", *more)})


def test_the_pods_of_a_gang_have_names(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    driver = start(kube, str(flag))
    cluster.wait(lambda: says(kube, *UP), 120.0)
    (job,), (service,) = cluster.get(JOBS)["items"], cluster.get(SERVICES)["items"]
    name = job["metadata"]["name"]
    assert service["metadata"]["name"] == name and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    pods = cluster.get(PODS)["items"]
    for pod in pods:
        labels = pod["metadata"]["labels"]
        assert all(labels[key] == value for key, value in service["spec"]["selector"].items())
        assert pod["spec"]["subdomain"] == name
    assert {pod["spec"]["hostname"] for pod in pods} == {f"{name}-0", f"{name}-1"}
    entered = kube.stoker("exec", "last", "ranks", "--rank", "1", "--", "sh", "-c", "echo $HOSTNAME").stdout
    assert entered.strip() == f"{name}-1"
    stacks = kube.stoker("dump", "last", "ranks").stdout
    assert "rank 0, pid" in stacks and "rank 1, pid" in stacks
    refused = kube.stoker("exec", "last", "ranks", "--rank", "2", "--", "true", code=2).stderr
    assert "STK347" in refused and f"{name}-1" in refused, refused
    flag.touch()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0 and f"0 of 2 at {name}-0" in output, output
    cluster.wait(lambda: nothing_left(cluster))
    assert cluster.counts()["create services"] == 1


def test_a_gang_as_a_jobset_is_adopted_and_cancelled(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """A killed driver's JobSet is taken over by the next one, and nothing is left of one that is cancelled."""
    as_jobsets(kube, cluster)
    flag = tmp_path / "flag"
    driver = start(kube, str(flag))
    cluster.wait(lambda: says(kube, *UP), 120.0)
    killed(driver)
    (jobset,), (job,) = cluster.get(SETS)["items"], cluster.get(JOBS)["items"]
    assert job["metadata"]["ownerReferences"][0]["uid"] == jobset["metadata"]["uid"]
    (service,), (secret,) = cluster.get(SERVICES)["items"], cluster.get(SECRETS)["items"]
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
    assert service["metadata"]["name"] == jobset["metadata"]["name"], "the controller's"
    flag.touch()
    kube.stoker("resume", "last", timeout=120.0)
    assert cluster.counts()["create jobsets"] == 1, "the JobSet of the killed driver went on"
    assert kube.client().run("last").steps["ranks"].status == "succeeded"
    cluster.wait(lambda: nothing_left(cluster, SETS))
    driver = start(kube, str(tmp_path / "never"))
    cluster.wait(lambda: says(kube, *UP, runs=2), 120.0)
    killed(driver)
    kube.stoker("cancel", "last")
    cluster.wait(lambda: nothing_left(cluster, SETS))


def test_a_gang_as_a_jobset_waits_for_its_queue_and_fails(kube: Any, cluster: LocalCluster) -> None:
    as_jobsets(kube, cluster, 'queue = "ml"')
    driver = start(kube, "")
    (jobset,) = cluster.wait(lambda: cluster.get(SETS)["items"], 60.0)
    assert jobset["spec"]["suspend"] is True
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "ml"
    (job,) = cluster.wait(lambda: cluster.get(JOBS)["items"])
    assert job["spec"]["suspend"] is True
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"], "the queue admits the whole set"
    body = {"spec": {"suspend": False}}
    path = f"{SETS}/{jobset['metadata']['name']}"
    status, _ = cluster.request("PATCH", path, body, content_type="application/merge-patch+json")
    assert status == 200
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 1 and "ValueError: no flag" in output, output
    cluster.wait(lambda: nothing_left(cluster, SETS))


def test_what_a_killed_driver_left_is_collected(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The worker, the JobSet and the group of pods: of a run that ended, and of one whose driver was killed."""
    cluster.ask("install", group="scheduling.x-k8s.io")
    as_jobsets(kube, cluster, 'queueing = "coscheduling"', 'scheduler = "default-scheduler"')
    flag = tmp_path / "flag"
    flag.touch()
    # The longest name fits into those of pods.
    kube.write({"train.py": PIPELINE.replace("ranks", "ranks_" * 12)})
    kube.run("train.py", str(flag), timeout=120.0)
    cluster.wait(lambda: nothing_left(cluster, SETS, GROUPS, WORKERS))
    kube.write({"train.py": PIPELINE})
    driver = start(kube, str(tmp_path / "never"))
    cluster.wait(lambda: says(kube, *UP, runs=2), 120.0)
    (group,), (secret,) = cluster.get(GROUPS)["items"], cluster.get(SECRETS)["items"]
    assert group["spec"] == {"minMember": 2}
    assert group["metadata"]["ownerReferences"][0]["uid"] == secret["metadata"]["uid"]
    killed(driver)
    kube.stoker("gc")
    assert cluster.get(WORKERS)["items"] and cluster.get(PODS)["items"], "the run can be resumed"
    kube.stoker("gc", "--force")
    cluster.wait(lambda: nothing_left(cluster, SETS, GROUPS, WORKERS))


@pytest.mark.slow
def test_an_elastic_gang_goes_on_without_a_pod(kube: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    elastic = PIPELINE.replace("cpu_count=0.5)", 'cpu_count=0.5), launch=Torchrun(nnodes="1:2")')
    elastic = elastic.replace("ResourceSettings\n", "ResourceSettings, Torchrun\n")
    kube.write({"train.py": elastic.replace("while flag", "while context.world_size > 1")})
    driver = start(kube, "never")
    cluster.wait(lambda: says(kube, *UP), 240.0)
    (pod,) = [one for one in cluster.get(PODS)["items"] if one["metadata"]["name"].split("-")[-2] == "1"]
    cluster.request("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    output, _ = driver.communicate(timeout=240)
    assert driver.returncode == 0 and "0 of 1 at " in output, output
    assert "node 1 went away: 1 of 2 nodes go on" in output
    cluster.wait(lambda: nothing_left(cluster))


@pytest.mark.parametrize("group", sorted(rbac.GROUP_RIGHTS))
def test_rights_on_kinds_of_others(cluster: LocalCluster, group: str) -> None:
    """They are named where they are lacking, and given where a stack is set up."""
    cluster.ask("install", group=group)
    words: dict[str, Any] = {
        "jobset.x-k8s.io": {"jobset": True},
        "scheduling.volcano.sh": {"queueing": "volcano"},
        "scheduling.x-k8s.io": {"queueing": "coscheduling"},
        "resource.k8s.io": {"device_class": "gpu.nvidia.com"},
    }[group]
    options = team(cluster, list(rbac.RIGHTS))
    client = Cluster(KubernetesSettings(**options), os.environ)
    try:
        request = PodRequest(
            resources=ResourceSettings(nodes=2, gpu_count=1),
            settings=KubernetesSettings(**words),
            image="team/step:1",
            command=("true",),
            nodes=2,
        )
        asked = attrs.evolve(need(2, namespace="team"), apis=groups_of(request))
        [finding] = [one for one in prove([asked], client) if one.level == "error"]
        right = rbac.GROUP_RIGHTS[group]
        assert finding.code == "STK287" and f"{right.resource}.{group}" in finding.what, finding
        assert f"--verb={','.join(right.verbs)} --resource={right.resource}.{group}" in finding.fix
        objects = setup.missing_objects(client, KubernetesSettings(**options, **words), "team")
        role = next(item for item in objects if item["kind"] == "Role")
        assert {"apiGroups": [group], "resources": [right.resource], "verbs": list(right.verbs)} in role["rules"]
        assert not [one for one in prove([need(2, namespace="team")], client) if one.level == "error"]
    finally:
        client.close()
