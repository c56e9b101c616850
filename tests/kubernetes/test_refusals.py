"""What the API server refused in the recordings, in words with the right or the figure that is missing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kubernetes.recordings import names, recording

from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.core import status

VIEWER = "system:serviceaccount:rec-18-forbidden:viewer"


def replies(name: str) -> list[dict[str, Any]]:
    return [entry["reply"] for entry in recording(name).requests if entry.get("status", 200) >= 400]


def test_rights_that_are_missing_are_named_with_the_line_that_gives_them() -> None:
    texts = [refusal_of(reply["code"], reply["message"]) for reply in replies("18-forbidden")]
    rights = [each for each in texts if each.kind == "rights"]
    assert [each.kind for each in texts] == ["rights"] * 6 + ["credentials", "rights"]
    jobs = rights[0]
    assert jobs.cause == status.REFUSED and not jobs.passes
    assert "may not make Jobs in the namespace 'rec-18-forbidden'" in jobs.message
    assert "lacks the verb 'create' on jobs.batch" in jobs.message
    assert jobs.fix == (
        "an administrator gives it by: "
        "kubectl create role stoker-create-jobs --verb=create --resource=jobs.batch -n rec-18-forbidden && "
        "kubectl create rolebinding stoker-create-jobs --role=stoker-create-jobs "
        "--serviceaccount=rec-18-forbidden:viewer -n rec-18-forbidden"
    )
    nodes = next(each for each in rights if "nodes" in each.message)
    assert "in the whole cluster" in nodes.message
    assert "kubectl create clusterrole stoker-list-nodes --verb=list --resource=nodes && " in nodes.fix
    part = next(each for each in rights if "exec" in each.message)
    assert "--resource=pods/exec" in part.fix
    assert "not logged in" in rights[-1].message


def test_quotas() -> None:
    [jobs] = (refusal_of(reply["code"], reply["message"]) for reply in replies("17-quota-on-jobs"))
    assert (jobs.cause, jobs.kind, jobs.passes) == (status.QUOTA, "quota", True)
    assert jobs.message == "the namespace's quota 'jobs' is used up: 1 Jobs asked for, 1 of 1 in use"
    message = recording("17b-quota-on-gpus-job-accepted").last("events")[0]["message"]
    gpus = refusal_of(403, message)
    assert (gpus.cause, gpus.passes) == (status.QUOTA, False)
    assert "does not allow this: 4 nvidia.com/gpu asked for, 0 of 2 in use" in gpus.message
    mixed = (
        "exceeded quota: q, requested: cpu=500m,memory=2Gi, used: cpu=1500m,memory=1Gi, limited: cpu=1600m,memory=8Gi"
    )
    both = refusal_of(403, mixed)
    assert both.passes and "500m CPUs asked for, 1500m of 1600m in use" in both.message


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("17c-pod-security-job-accepted", "policy", "pod security level 'baseline' forbids hostNetwork"),
        ("17d-missing-service-account-job-accepted", "account", 'service account "trainer" does not exist'),
    ],
)
def test_pods_that_a_job_may_not_make(name: str, kind: str, words: str) -> None:
    event = recording(name).last("events")[0]
    refusal = refusal_of(403, event["message"])
    assert (refusal.kind, words in refusal.message) == (kind, True), refusal
    assert refusal.fix


@pytest.mark.parametrize(
    ("code", "message", "kind", "words"),
    [
        (403, 'pods "x" is forbidden: no PriorityClass with name gold was found', "priority", "gold"),
        (
            403,
            'pods "x" is forbidden: [maximum memory usage per Container is 8Gi, but limit is 16Gi]',
            "range",
            "maximum memory usage per Container is 8Gi, but limit is 16Gi",
        ),
        (
            400,
            'admission webhook "validate.kyverno.svc" denied the request: \n\nuse a team label',
            "webhook",
            "validate.kyverno.svc refuses it: use a team label",
        ),
        (404, 'namespaces "nowhere" not found', "namespace", "no namespace 'nowhere'"),
    ],
)
def test_other_refusals(code: int, message: str, kind: str, words: str) -> None:
    refusal = refusal_of(code, message)
    assert (refusal.kind, words in refusal.text) == (kind, True), refusal


def test_every_recorded_refusal_says_something_of_its_own() -> None:
    seen = 0
    for name in names():
        for entry in recording(name).requests:
            reply = entry.get("reply")
            if isinstance(reply, dict) and reply.get("kind") == "Status" and reply.get("code", 0) >= 400:
                refusal = refusal_of(reply["code"], reply["message"])
                assert refusal.message and refusal.cause in status.CAUSES
                seen += 1
    assert seen > 40


def test_the_objects_that_give_rights() -> None:
    objects = rbac.manifests("team", "jane@example.org")
    assert [each["kind"] for each in objects] == ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]
    assert objects[1]["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane@example.org"}
    ]
    alone = rbac.manifests("team", VIEWER, cluster=False)
    assert [each["kind"] for each in alone] == ["Role", "RoleBinding"]
    assert alone[1]["subjects"] == [{"kind": "ServiceAccount", "namespace": "rec-18-forbidden", "name": "viewer"}]
    assert {"apiGroups": ["batch"], "resources": ["jobs"]}.items() <= alone[0]["rules"][0].items()
    assert not any("nodes" in rule["resources"] for rule in alone[0]["rules"])
