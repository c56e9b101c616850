"""What a cluster can never run is refused in the plan, with the figures; what cannot be asked refuses nothing."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Iterator

import attrs
import pytest
from tests.kubernetes.clusters import CLUSTERS, node
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_setup import team

from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.api.client import ApiError, Cluster
from stoker.backends.kubernetes.explain.nodes import cluster_nodes, nodes_of
from stoker.backends.kubernetes.proof.prove import PodNeed, needs_of, policies_between, prove
from stoker.backends.kubernetes.request.pods import PodRequest, pod_template
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.findings import Finding
from stoker.core.plan import StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings

STEP = StepPlan(
    key="train",
    name="train",
    source=FunctionSource(kind="script", module="t", qualname="train", path="/p/t.py", root="/p"),
    outputs=(),
    unpack=False,
    inputs={},
    settings=StepSettings(),
    backend="orchestrator",
    code="1234",
    where="t.py:7",
)

DEFAULT = "/api/v1/namespaces/default"


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Cluster]:
    client = Cluster(KubernetesSettings(kubeconfig=str(cluster.kubeconfig)), os.environ)
    yield client
    client.close()


def need(pods: int = 1, *, namespace: str = "default", resources: Any = None, **settings: Any) -> PodNeed:
    """The need of a step with these resources and settings."""
    template = pod_template(
        PodRequest(
            resources=ResourceSettings(**(resources or {})),
            settings=KubernetesSettings(**settings),
            image="registry.example.com/team/step:1",
            command=("true",),
            nodes=pods,
        )
    )
    return PodNeed(step=STEP, namespace=namespace, template=template, pods=pods)


def findings(client: Cluster, *needs: PodNeed, **more: Any) -> list[Finding]:
    return list(prove(needs, client, **more))


def test_what_fits_has_no_findings_and_costs_few_requests(cluster: LocalCluster, client: Cluster) -> None:
    needs = [need(resources={"cpu_count": 2, "memory": "4GB", "gpu_count": 8}), need(), need(2)]
    assert findings(client, *needs) == []
    counts = cluster.counts()
    assert counts == {
        "get namespaces": 1,
        "create selfsubjectrulesreviews": 1,
        "list networkpolicies": 1,  # of the step on two nodes
        "list nodes": 1,
        "list resourcequotas": 1,
        "list limitranges": 1,
    }


@pytest.mark.parametrize(
    ("resources", "settings", "what"),
    [
        ({"gpu_count": 16}, {}, "asks for 16 × nvidia.com/gpu: the largest node has 8"),
        ({"accelerators": "A100:1"}, {}, "a node has no label that names A100 and a node has H100, not A100"),
        ({"memory": "900GB"}, {}, "of memory: the largest node has 64Gi"),
        ({"cpu_count": 100}, {}, "asks for 100 CPUs: the largest node has 8"),
        ({}, {"node_selector": {"disk": "ssd"}}, "no node can take its pod: no node has the label disk=ssd"),
    ],
)
def test_what_no_node_has(client: Cluster, resources: Any, settings: Any, what: str) -> None:
    [finding] = findings(client, need(resources=resources, **settings))
    assert (finding.code, finding.level) == ("STK285", "error")
    assert what in finding.what
    assert finding.why and "pools" in finding.fix


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pod_spec": {"nodeSelecter": {"a": "b"}}}, 'unknown field "spec.template.spec.nodeSelecter"'),
        ({"overlay": {"spec": {"hostAliases": "x"}}}, "hostAliases"),
        (
            {
                "volumes": [{"name": "a", "emptydir": {}}],
                "volume_mounts": [{"name": "a", "mountPath": "/a"}],
            },
            "emptydir",
        ),
    ],
)
def test_what_the_api_server_does_not_take(
    cluster: LocalCluster, client: Cluster, settings: dict[str, Any], words: str
) -> None:
    """It is asked by a dry run, once for steps that are alike; settings that are checked here are not asked about."""
    step = attrs.evolve(STEP, settings=StepSettings(backend={"orchestrator": settings}))
    needs = needs_of([step, attrs.evolve(step, key="again"), STEP], {}, "default")
    found = findings(client, *needs)
    assert [(one.code, one.level) for one in found] == [("STK290", "error")] * 2
    assert words in found[0].what and all(name in found[0].fix for name in settings)
    assert cluster.counts().get("create jobs", 0) <= 1
    assert not cluster.get("/apis/batch/v1/namespaces/default/jobs")["items"]
    right = {"env": {"A": "1"}, "annotations": {"note": "x"}}
    assert not findings(client, *needs_of([STEP], right, "default"))


@pytest.mark.parametrize(
    ("settings", "group", "level"),
    [
        ({"queueing": "volcano"}, "scheduling.volcano.sh", "error"),
        ({"queueing": "coscheduling"}, "scheduling.x-k8s.io", "error"),
        ({"device_class": "gpu.nvidia.com"}, "resource.k8s.io", "error"),
        ({"queue": "ml"}, "kueue.x-k8s.io", "warning"),
    ],
)
def test_a_cluster_without_an_operators_kinds(
    client: Cluster, settings: dict[str, Any], group: str, level: str
) -> None:
    step = attrs.evolve(STEP, settings=StepSettings(resources=ResourceSettings(gpu_count=1)))
    [finding] = findings(client, *needs_of([step], settings, "default"))
    assert (finding.code, finding.level) == ("STK289", level) and f"the cluster has no {group}" in finding.what


def test_a_webhook_without_dry_runs_refuses_nothing(client: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, body: Any, *, dry_run: bool = False) -> dict[str, Any]:
        assert dry_run
        raise ApiError(400, "BadRequest", 'admission webhook "x.example.com" does not support dry run', {})

    plain = client.create
    monkeypatch.setattr(client, "create", lambda path, body, **more: (refuse if more else plain)(path, body, **more))
    assert not findings(client, *needs_of([STEP], {"annotations": {"note": "x"}}, "default"))


def test_gangs_and_pools(cluster: LocalCluster, client: Cluster) -> None:
    eight = {"gpu_count": 8}
    [finding] = findings(client, need(2, resources=eight))
    assert "asks for 2 nodes at once with 8 × nvidia.com/gpu" in finding.what
    assert "the cluster has 1 such" in finding.what
    pools = [{"name": "h100", "accelerators": "H100:8", "nodes": 1}]
    assert findings(client, need(2, resources=eight), pools=pools) == []
    assert findings(client, need(3, resources=eight), pools=pools)
    text = "nodeGroups:\n- health:\n    cloudProviderTarget: 1\n    minSize: 0\n    maxSize: 3\n"
    status = {"metadata": {"name": "cluster-autoscaler-status"}, "data": {"status": text}}
    cluster.create("/api/v1/namespaces/kube-system/configmaps", status)
    assert findings(client, need(2, resources=eight)) == [], "an autoscaler may add a node"
    # Nodes that are away or closed for now come back.
    cluster.cordon("gpu-node-1")
    assert findings(client, need(resources=eight)) == []


def test_quotas(cluster: LocalCluster, client: Cluster) -> None:
    body = {"requests.nvidia.com/gpu": "2", "requests.cpu": "4", "limits.memory": "8Gi"}
    cluster.create(f"{DEFAULT}/resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": body}})
    limits = {"cpu_count": 1, "memory": "1GB"}
    assert findings(client, need(resources={**limits, "gpu_count": 2})) == []
    [gpus] = findings(client, need(resources={**limits, "gpu_count": 4}))
    assert gpus.code == "STK286"
    assert "asks for 4 × nvidia.com/gpu, and the quota 'team'" in gpus.what and "never gives more than 2" in gpus.what
    [cpus] = findings(client, need(resources={"cpu_count": 5, "memory": "1GB"}))
    assert "asks for 5 CPUs" in cpus.what
    [gang] = findings(client, need(5, resources=limits))
    assert "asks for 5 CPUs in all" in gang.what
    [silent] = findings(client, need())
    assert silent.code == "STK286"
    assert "asks for no memory" in silent.what and "demands a limit" in silent.what
    rule = {"type": "Container", "default": {"memory": "1Gi", "cpu": "1"}, "max": {"memory": "2Gi"}}
    cluster.create(f"{DEFAULT}/limitranges", {"metadata": {"name": "sizes"}, "spec": {"limits": [rule]}})
    assert findings(client, need()) == []
    [large] = findings(client, need(resources={"cpu_count": 1, "memory": "4GiB"}))
    assert "asks for 4Gi of memory, and the limit range 'sizes'" in large.what and "allows 2Gi at most" in large.what


def test_things_that_are_named_and_not_there(cluster: LocalCluster, client: Cluster) -> None:
    settings: dict[str, Any] = {
        "service_account": "trainer",
        "secrets": ["hub-token"],
        "image_pull_secrets": ["registry"],
        "persistent_volume_claims": {"data": "/data"},
        "priority_class": "gold",
    }
    found = findings(client, need(**settings))
    assert {finding.code for finding in found} == {"STK289"}
    named = "\n".join(finding.what for finding in found)
    for thing in (
        'service account "trainer"',
        'secret "hub-token"',
        'secret "registry"',
        'claim "data"',
        'class "gold"',
    ):
        assert thing in named
    cluster.create(f"{DEFAULT}/secrets", {"metadata": {"name": "hub-token"}})
    assert not any("hub-token" in finding.what for finding in findings(client, need(secrets=["hub-token"])))
    [missing] = findings(client, need(namespace="nowhere"))
    assert missing.code == "STK289" and "there is no namespace 'nowhere'" in missing.what


def test_rights(cluster: LocalCluster) -> None:
    least = [right for right in rbac.RIGHTS if right.needed]
    options = team(cluster, least)
    client = Cluster(KubernetesSettings(**options), os.environ)
    found = findings(client, need(namespace="team", resources={"gpu_count": 99}))
    assert {finding.level for finding in found} == {"info"}, "what may not be asked refuses nothing"
    assert {finding.code for finding in found} == {"STK288"}
    assert any("whether any node can take the steps is not proved" in finding.what for finding in found)
    client.close()
    cluster.delete("/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/stoker-team-runner")
    client = Cluster(KubernetesSettings(**options), os.environ)
    found = findings(client, need(namespace="team"))
    assert {finding.code for finding in found} == {"STK287"} and len(found) == len(least)
    jobs = next(finding for finding in found if "jobs.batch" in finding.what)
    assert "'system:serviceaccount:team:runner' may not create, get, list, watch or delete jobs.batch" in jobs.what
    assert "kubectl create role stoker-create-get-list-watch-delete-jobs" in jobs.fix
    client.close()


def test_a_cluster_that_does_not_answer_refuses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    config = cluster.kubeconfig.read_text().replace(cluster.url, "http://127.0.0.1:1")
    (tmp_path / "kubeconfig").write_text(config)
    client = Cluster(KubernetesSettings(kubeconfig=str(tmp_path / "kubeconfig")), os.environ)
    [finding] = findings(client, need(resources={"gpu_count": 99}))
    assert (finding.code, finding.level) == ("STK288", "warning")
    assert "does not answer" in finding.what and "not proved" in finding.why
    client.close()


def test_the_pods_of_a_plans_steps(client: Cluster) -> None:
    """Settings of the stack and of the step both count, and a step on several nodes is several pods."""
    wide = attrs.evolve(
        STEP,
        settings=StepSettings(
            resources=ResourceSettings(gpu_count=16, nodes=3),
            backend={"orchestrator": {"node_selector": {"disk": "ssd"}}},
        ),
    )
    [plain, large] = needs_of([STEP, wide], {"service_account": "trainer"}, "team")
    assert (plain.namespace, plain.pods, large.pods) == ("team", 1, 3)
    assert large.template["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert large.template["spec"]["serviceAccountName"] == "trainer"
    [elsewhere] = needs_of([STEP], {"namespace": "default"}, "team")
    assert findings(client, elsewhere) == []


def test_what_the_cluster_says_and_is_not_understood_refuses_nothing_and_is_told_once(
    cluster: LocalCluster, client: Cluster
) -> None:
    items = copy.deepcopy(CLUSTERS["k3s"])
    items[0]["status"]["allocatable"] |= {"memory": "plenty", "nvidia.com/gpu": "one"}
    items[1]["status"]["conditions"] = None
    cluster.reset(nodes=[])
    cluster.ask("put_nodes", items=items)
    cluster.create(
        f"{DEFAULT}/resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "1e9"}}}
    )
    answer = client.get

    def foreign(path: str, **params: Any) -> dict[str, Any]:
        found = answer(path, **params)
        for one in found.get("items", ()) if path.endswith("resourcequotas") else ():
            one["spec"]["hard"] = {"requests.cpu": "many", "requests.memory": "1TB"}
        return found

    large = {"memory": "900GB", "gpu_count": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "get", foreign)
        found = findings(client, need(resources=large), need(resources=large), need(resources={"cpu_count": 99}))
    told = [(one.code, one.what.partition(" is not")[0], one.why) for one in found if one.level == "info"]
    assert told == [
        *(
            (
                "STK288",
                f"whether nodes have the {resource} that steps ask for",
                f"the node desk says {text!r}, which is no quantity of Kubernetes",
            )
            for resource, text in (("memory", "plenty"), ("nvidia.com/gpu", "one"))
        ),
        *(
            (
                "STK288",
                f"whether the quota 'team' allows the steps their {resource}",
                f"the quota 'team' says {text!r}, which is no quantity of Kubernetes",
            )
            for resource, text in (("requests.cpu", "many"), ("requests.memory", "1TB"))
        ),
    ]
    assert [one.what for one in found if one.level == "error"] == ["asks for 99 CPUs: the largest node has 16"]
    by_name = {one.name: one for one in nodes_of(cluster_nodes(items, []).nodes)}
    assert by_name["desk"].memory is None and by_name["desk"].devices == () and by_name["shelf"].state == "unknown"
    assert "memory=plenty is not understood" in by_name["desk"].state


@pytest.mark.parametrize("kind", ["karpenter", "autopilot", "starting", "no rights", "no nodes"])
def test_nodes_that_something_may_add_refuse_nothing(
    cluster: LocalCluster, client: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    answer, path = client.get, "/api/v1/namespaces/kube-system/configmaps"
    if kind in ("autopilot", "no nodes"):
        cluster.reset(nodes=[])
        cluster.ask(
            "put_nodes", items=[node("gk3-ml-pool-1", "930m", "2886268Ki", "10188079104")][kind == "no nodes" :]
        )
    if kind == "starting":
        body = {"metadata": {"name": "cluster-autoscaler-status"}, "data": {"status": "autoscalerStatus: Initializing"}}
        cluster.create(path, body)

    def get(asked: str, **params: Any) -> dict[str, Any]:
        if kind == "karpenter" and asked == "/apis/karpenter.sh":
            return {"kind": "APIGroup", "name": "karpenter.sh"}
        if kind == "no rights" and asked.startswith(path):
            raise ApiError(403, "Forbidden", "configmaps is forbidden", {})
        return answer(asked, **params)

    monkeypatch.setattr(client, "get", get)
    found = findings(client, need(resources={"gpu_count": 16}))
    assert [(one.code, one.level) for one in found] == ([("STK285", "warning")] if kind.startswith("no") else [])
    assert all("whether an autoscaler adds it is not known" in one.why for one in found)


OURS = {"app.kubernetes.io/managed-by": "stoker", "team": "ml"}
NAMESPACE = {"kubernetes.io/metadata.name": "ml"}
US = {"podSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "stoker"}}}
DENY: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}


def policy(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podSelector": {}, **spec}}


@pytest.mark.parametrize(
    ("policies", "names"),
    [
        ([], []),
        ([policy("deny", policyTypes=["Ingress"])], ["deny"]),
        ([policy("deny", policyTypes=["Ingress", "Egress"])], ["deny"]),
        ([policy("deny")], ["deny"]),
        ([policy("deny", policyTypes=["Egress"], egress=[])], ["deny"]),
        # A policy for other pods, and one of another direction that allows.
        ([policy("deny", podSelector={"matchLabels": {"team": "web"}})], []),
        ([policy("deny", podSelector={"matchExpressions": [{"key": "team", "operator": "Exists"}]})], ["deny"]),
        (
            [
                policy(
                    "deny", podSelector={"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["ml"]}]}
                )
            ],
            [],
        ),
        ([policy("open", policyTypes=["Ingress"], ingress=[{}])], []),
        ([policy("open", policyTypes=["Egress"], egress=[{}])], []),
        # Those that select a pod count together.
        ([policy("deny"), policy("team", ingress=[{"from": [US]}])], []),
        (
            [policy("deny"), policy("web", ingress=[{"from": [{"podSelector": {"matchLabels": {"team": "web"}}}]}])],
            ["deny", "web"],
        ),
        ([policy("ours", ingress=[{"from": [{"namespaceSelector": {"matchLabels": NAMESPACE}}]}])], []),
        ([policy("ours", ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"team": "x"}}}]}])], ["ours"]),
        ([policy("cidr", ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])], []),
        # Ports: one of them is not those that Linux chooses.
        ([policy("port", ingress=[{"ports": [{"port": 29500}]}])], ["port"]),
        ([policy("port", ingress=[{"ports": [{"port": 1024, "endPort": 65535}]}])], []),
        ([policy("port", ingress=[{"ports": [{"protocol": "UDP"}]}])], ["port"]),
        ([policy("port", ingress=[{"ports": [{"protocol": "TCP"}]}])], []),
        ([policy("named", ingress=[{"ports": [{"port": "http"}]}])], ["named"]),
    ],
)
def test_which_policies_keep_pods_apart(policies: list[dict[str, Any]], names: list[str]) -> None:
    assert policies_between(policies, OURS, NAMESPACE) == names


def test_it_is_said_in_the_plan(cluster: LocalCluster) -> None:
    path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
    cluster.create(path, {"metadata": {"name": "default-deny"}, "spec": DENY})
    client = Cluster(KubernetesSettings(kubeconfig=str(cluster.kubeconfig)), os.environ)
    try:
        [finding] = prove([need(2), need()], client)
        assert (finding.code, finding.level) == ("STK263", "warning")
        assert "asks for 2 nodes" in finding.what and "'default-deny'" in finding.what
        assert "app.kubernetes.io/managed-by=stoker" in finding.fix
        assert not list(prove([need(2, host_network=True)], client)), "policies do not see those of the node's network"
        ours = {"podSelector": US["podSelector"], "ingress": [{"from": [US]}]}
        cluster.create(path, {"metadata": {"name": "stoker"}, "spec": ours})
        assert not list(prove([need(2)], client))
    finally:
        client.close()
