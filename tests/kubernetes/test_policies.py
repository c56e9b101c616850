"""NetworkPolicies that keep the nodes of a step apart are said in the plan."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_prove import need

from stoker.backends.kubernetes.api.client import Cluster
from stoker.backends.kubernetes.proof.prove import policies_between, prove
from stoker.backends.kubernetes.settings import KubernetesSettings

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
