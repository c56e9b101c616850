"""Why pods wait, at every moment of every recorded scenario, and when a wait is given up."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
from tests.kubernetes.recordings import Recording, names, recording
from tests.kubernetes.test_causes import EXPECTED, World, replay
from tests.kubernetes.test_nodes import node

from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.explain import pending
from stoker.backends.kubernetes.explain.nodes import ClusterNodes, cluster_nodes
from stoker.backends.kubernetes.explain.pending import Patience, Pending
from stoker.backends.kubernetes.explain.refusals import pull_problem, refusal_of
from stoker.backends.kubernetes.objects import index_of, uid
from stoker.core import status

Object = dict[str, Any]
RECORDED = cluster_nodes([node("gpu-node-1", 8, cpu="2", memory="24581696Ki")])
"""The one node of the recordings."""


LAST = {name: row["waits"] for name, row in EXPECTED.items() if "waits" in row}
ON_THE_WAY = {name: row["on the way"] for name, row in EXPECTED.items() if "on the way" in row}


def said(scenario: Recording, nodes: ClusterNodes | None) -> Iterator[tuple[str, Pending | None, World]]:
    for event, world in replay(scenario):
        if event.resource == "nodes":
            continue
        for job in world.jobs.values():
            if uid(job) not in world.gone:
                events = list(world.events.values())
                yield job["metadata"]["name"], pending.why_pending(job, world.pods_of(job), events, nodes), world


@pytest.mark.parametrize("name", names())
def test_what_is_said_of_jobs_that_wait(name: str) -> None:
    """What is said last is right, no wait that ended well is given up, and a reason keeps its key."""
    nodes = cluster_nodes([]) if name.startswith("16b") else RECORDED
    last: dict[str, Pending | None] = {}
    seen: dict[str, set[str]] = {}
    keys: dict[str, list[str]] = {}
    silent = set()
    for job, wait, world in said(recording(name), nodes):
        last[job] = wait
        silent.add(pending.no_news(world.pods.values()))
        if wait is not None:
            seen.setdefault(job, set()).add(wait.text)
            assert wait.key and (wait.cause in status.CAUSES or not wait.hopeless)
            if keys.setdefault(job, [""])[-1] != wait.key:
                keys[job].append(wait.key)
            assert name in LAST or not wait.hopeless, wait
    assert all(len(mine) <= 13 for mine in keys.values()), keys
    expected = LAST.get(name)
    left = [wait for wait in last.values() if wait is not None]
    assert bool(left) == (expected is not None), left
    if expected is not None:
        [wait] = left
        assert all(words in wait.text for words in expected["words"]), wait.text
        assert (wait.hopeless, wait.cause) == (expected["hopeless"], expected["cause"]), wait
    if name in ON_THE_WAY:
        job, words = ON_THE_WAY[name]
        assert any(words in text for text in seen[job]), seen[job]
    assert silent <= {""} or name.startswith(("16-", "16b", "16c")), silent


def test_the_node_that_does_not_answer_is_named_while_its_pod_goes_on() -> None:
    texts = [pending.no_news(world.pods.values()) for _, world in replay(recording("16c-only-node-lost-then-back"))]
    assert any("the node gpu-node-1 does not answer since" in text for text in texts)
    assert texts[0] == texts[-1] == ""


def test_waits_are_given_up_after_so_many_tries_and_so_much_time() -> None:
    world = World()
    for event in recording("09-missing-secret").events:
        world.see(event)
    [job] = world.jobs.values()
    pods, events = world.pods_of(job), [dict(event) for event in world.events.values()]

    def wait(tries: int, **more: Any) -> Pending:
        told = [{**event, "count": tries} if event["reason"] == "Failed" else event for event in events]
        found = pending.why_pending(job, pods, told, **more)
        assert found is not None
        return found

    assert not wait(4).hopeless and wait(5).hopeless
    assert wait(2, patience=Patience(missing=2)).hopeless
    began = wait(1).since
    assert began is not None
    limited = Patience(seconds=60)
    assert not wait(1, now=began + 59, patience=limited).hopeless
    late = wait(1, now=began + 61, patience=limited)
    assert late.hopeless and late.cause == status.REFUSED
    assert late.text.startswith('Job train has waited for 1 m 01 s, longer than it may: secret "hub-token"')


def test_elements_of_a_fan_out_wait_for_places_and_for_their_turn() -> None:
    world = World()
    for event in recording("15e-gang-partly-scheduled").events:
        world.see(event)
    [job] = world.jobs.values()
    job = {**job, "spec": {**job["spec"], "completions": 6}}
    texts = []
    for index in (2, 3, 5):
        mine = [pod for pod in world.pods_of(job) if index_of(pod) == index]
        wait = pending.why_pending(job, mine, list(world.events.values()), gang=False)
        assert wait is not None
        texts.append((wait.key, wait.text))
    assert texts[0] == texts[1], "the same text for all that wait for the same"
    assert texts[0][1].startswith("waiting for GPUs (all in use): needs 3 × nvidia.com/gpu")
    assert texts[2] == ("turn", "it waits for its turn: 4 elements may run at once")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            (
                "0/8 nodes are available: 3 Insufficient nvidia.com/gpu, 5 node(s) had untolerated taint "
                "{gpu: reserved}. preemption: 0/8 nodes are available: 8 Preemption is not helpful for scheduling."
            ),
            "of 8 nodes, 3 nodes have too little free of nvidia.com/gpu, 5 nodes have the taint gpu=reserved",
        ),
        (
            (
                "0/3 nodes are available: 1 Too many pods, 1 node(s) were unschedulable, 1 node(s) didn't match Pod's "
                "node affinity/selector."
            ),
            (
                "of 3 nodes, 1 node has as many pods as they may, 1 node is cordoned, "
                "1 node has not the labels that the step asks for"
            ),
        ),
        ("0/2 nodes are available: 2 node(s) had a strange mood.", "of 2 nodes, 2 nodes: node(s) had a strange mood"),
        ("no nodes available to schedule pods", "the cluster has no nodes"),
        ("a plugin of the site's", "the scheduler says: a plugin of the site's"),
    ],
)
def test_the_schedulers_words(message: str, words: str) -> None:
    assert pending.scheduler_words(message) == words


def unscheduled(message: str, *events: tuple[str, str, int], nodes: ClusterNodes | None = None) -> Pending:
    """What is said of a pod of one GPU of which the scheduler said `message`; events are reason, message, count."""
    pod = {
        "metadata": {"name": "train-1", "uid": "p", "creationTimestamp": "2026-11-21T04:48:00Z"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
        },
    }
    listed = [
        {"involvedObject": {"uid": "p"}, "reason": reason, "message": text, "count": count}
        for reason, text, count in events
    ]
    job = {"metadata": {"name": "train", "uid": "j"}, "spec": {"completions": 1}, "status": {}}
    found = pending.why_pending(job, [pod], listed, nodes)
    assert found is not None
    return found


INSUFFICIENT = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_autoscalers_claims_and_gates() -> None:
    none = cluster_nodes([node("cpu", 0)])
    assert unscheduled(INSUFFICIENT, nodes=none).hopeless
    scaled = unscheduled(
        INSUFFICIENT, ("TriggeredScaleUp", "pod triggered scale-up: [{gpus 0->1 (max: 3)}]", 1), nodes=none
    )
    assert not scaled.hopeless and "an autoscaler adds nodes for it: pod triggered scale-up: [{gpus 0->1" in scaled.text
    refused = unscheduled(INSUFFICIENT, ("NotTriggerScaleUp", "pod didn't trigger scale-up", 1))
    assert "the autoscaler adds no node for it" in refused.text
    claim = unscheduled('persistentvolumeclaim "data" not found', ("FailedScheduling", "", 5))
    assert claim.hopeless and claim.text.startswith('claim "data" does not exist')
    unbound = unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    assert not unbound.hopeless and "kubectl get pvc" in unbound.fix


def test_kueue_says_why_it_holds_a_job() -> None:
    job = {
        "metadata": {"name": "train", "uid": "j", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}},
        "spec": {"suspend": True},
        "status": {},
    }
    said_by_kueue = {
        "involvedObject": {"kind": "Workload", "name": "job-train-3f2a1"},
        "reason": "Pending",
        "message": "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu",
    }
    wait = pending.why_pending(job, [], [said_by_kueue])
    assert wait is not None
    assert wait.text.startswith("held by the queue team-a (the Job is suspended): couldn't assign flavors")


@pytest.mark.parametrize(
    ("message", "kind", "sure"),
    [
        (
            "failed to copy: httpReadSeeker: 429 Too Many Requests - toomanyrequests: You have reached your rate limit",
            "rate",
            False,
        ),
        ("no match for platform in manifest: not found", "architecture", True),
        ("pull access denied, repository does not exist or may require authorization", "unauthorized", True),
        ("failed to authorize: failed to fetch anonymous token: 403 Forbidden", "unauthorized", True),
        ("manifest unknown", "absent", True),
        ("dial tcp: lookup reg.example on 10.0.0.1:53: server misbehaving", "host", False),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "certificate", False),
        ("dial tcp 10.0.0.1:443: i/o timeout", "network", False),
        ("write /var/lib/containerd/x: no space left on device", "disk", False),
        ("something else", "other", False),
    ],
)
def test_pull_messages(message: str, kind: str, sure: bool) -> None:
    problem = pull_problem("ErrImagePull", message, "reg.example/team/step:1")
    assert (problem.kind, problem.sure) == (kind, sure), problem


def test_a_registry_that_no_node_reaches_is_given_up() -> None:
    """Each try names another port, so that each is an event of its own: neither tries nor time are lost."""
    world = World()
    for event in recording("07d-image-registry-unknown-host").events:
        world.see(event)
    [job] = world.jobs.values()
    pods = world.pods_of(job)
    [failed] = [event for event in world.events.values() if str(event["message"]).startswith("Failed to pull image")]
    others = [dict(event) for event in world.events.values() if event is not failed]
    said_of = "read tcp 10.0.0.7:{port}->10.9.9.9:443: i/o timeout"

    def wait(tries: int, **more: Any) -> Pending:
        events = [
            {
                **failed,
                "count": 1,
                "message": f"Failed to pull image: {said_of.format(port=40000 + number)}",
                "metadata": {**failed["metadata"], "uid": str(number)},
            }
            for number in range(tries)
        ]
        found = pending.why_pending(job, pods, [*others, *events], **more)
        assert found is not None
        return found

    assert not wait(4).hopeless and wait(5).hopeless
    begun = wait(1).pull_failed
    assert begun is not None
    assert not wait(1, now=begun + 599).hopeless
    late = wait(1, now=begun + 601)
    assert late.hopeless and late.cause == status.SETUP_FAILED
    assert late.text.startswith("no node could pull the image for 10 m 01 s (pull_timeout): the registry's host name")
    assert wait(1, now=begun + 61, patience=Patience(pull=60)).hopeless


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
