"""What a real API server refuses, the tests' own refuses too, with the same status and words.

None of these requests was recorded; the rules are those of the published API:
https://kubernetes.io/docs/reference/using-api/api-concepts/,
https://kubernetes.io/docs/concepts/overview/working-with-objects/names/, and the validation of each kind.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.server.objects import Object

CORE, BATCH = "/api/v1/namespaces/default", "/apis/batch/v1/namespaces/default"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
PODS, JOBS, MAPS, SECRETS = f"{CORE}/pods", f"{BATCH}/jobs", f"{CORE}/configmaps", f"{CORE}/secrets"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
Case = tuple[str, str, Any, int, str]
"""Method, path, body, status of the answer, and words of it; a body may be a pair of content type and body."""


def pod(container: Object | None = None, metadata: Object | None = None, **spec: Any) -> Object:
    """A pod that is as it should be but for what a case changes."""
    main = {"name": "main", "image": "team/step:1", "command": ["true"], **(container or {})}
    return {"metadata": {"name": "p", **(metadata or {})}, "spec": {"containers": [main], **spec}}


def job(metadata: Object | None = None, template: Object | None = None, **spec: Any) -> Object:
    """A Job that is as it should be but for what a case changes."""
    main = {"name": "main", "image": "team/step:1", "command": ["true"]}
    inner = {"spec": {"restartPolicy": "Never", "containers": [main], **(template or {})}}
    return {"metadata": {"name": "j", **(metadata or {})}, "spec": {"template": inner, **spec}}


def rules(*rules: Object, **more: Any) -> Object:
    """A Job with a policy of failures."""
    return job(podFailurePolicy={"rules": list(rules)}, **more)


TOLERATION = {"key": "a", "operator": "Exists"}
TERM = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def affinity(expression: Object) -> Object:
    """A pod that must run on certain nodes."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


BODIES: list[Case] = [
    ("POST", PODS, ("text/plain", pod()), 415, "the body of the request was in an unknown format"),
    ("POST", PODS, ("application/json", ""), 400, "couldn't get version/kind; json parse error"),
    ("POST", PODS, ("application/json", "{"), 400, "couldn't get version/kind; json parse error"),
    ("POST", PODS, ("application/json", "[]"), 400, "the object provided is unrecognized"),
    (
        "POST",
        f"{PODS}?fieldValidation=Strict",
        {**pod(), "spce": {}},
        400,
        'strict decoding error: unknown field "spce"',
    ),
    ("POST", f"{PODS}?fieldValidation=Loud", pod(), 422, 'fieldValidation: Unsupported value: "Loud"'),
    ("POST", f"{PODS}?dryRun=Some", pod(), 422, 'dryRun: Unsupported value: ["Some"]: supported values: "All"'),
    ("POST", f"{PODS}?fieldManager={'m' * 129}", pod(), 422, "fieldManager: Too long: may not be more than 128 bytes"),
    (
        "POST",
        f"{MAPS}?fieldValidation=Strict",
        ("application/json", '{"metadata":{"name":"c"},"data":{"a":"1","a":"2"}}'),
        400,
        'strict decoding error: duplicate field "a"',
    ),
    ("POST", PODS, {"kind": "ConfigMap", "apiVersion": "v1", **pod()}, 400, "cannot be handled as a Pod"),
    (
        "POST",
        JOBS,
        {"kind": "Pod", "apiVersion": "v1", **pod()},
        400,
        "the API version in the data (v1) does not match the expected API version (batch/v1)",
    ),
    ("POST", SECRETS, {"metadata": {"name": "s"}, "data": {"a": "a b!"}}, 400, "illegal base64 data at input byte 1"),
    ("POST", "/api/v1/namespaces/absent/pods", pod(), 404, 'namespaces "absent" not found'),
]
METADATA: list[Case] = [
    ("POST", PODS, pod(metadata={"name": ""}), 422, "metadata.name: Required value: name or generateName is required"),
    ("POST", PODS, pod(metadata={"name": "My_Pod"}), 422, "a lowercase RFC 1123 subdomain must consist of"),
    ("POST", PODS, pod(metadata={"name": "a" * 254}), 422, "must be no more than 253 bytes"),
    ("POST", PODS, pod(metadata={"namespace": "other"}), 400, "the namespace of the provided object does not match"),
    (
        "POST",
        f"{CORE}/services",
        {"metadata": {"name": "1st"}, "spec": {"ports": [{"port": 1}]}},
        422,
        "DNS-1035 label",
    ),
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}}, 422, "a lowercase RFC 1123 label must consist of"),
    ("POST", f"{RBAC}/roles", {"metadata": {"name": "a/b"}, "rules": []}, 422, "metadata.name: Invalid value"),
    ("POST", PODS, pod(metadata={"labels": {"/x": ""}}), 422, "prefix part must be non-empty"),
    ("POST", PODS, pod(metadata={"labels": {"n" * 64: ""}}), 422, "name part must be no more than 63 bytes"),
    ("POST", PODS, pod(metadata={"annotations": {"a b": ""}}), 422, "metadata.annotations: Invalid value"),
    (
        "POST",
        PODS,
        pod(metadata={"annotations": {"a": "x" * (256 << 10)}}),
        422,
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    ),
    ("POST", PODS, pod(metadata={"finalizers": ["mine"]}), 422, "neither a standard finalizer name nor is it fully"),
    (
        "POST",
        PODS,
        pod(metadata={"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": ""}]}),
        422,
        "metadata.ownerReferences.uid: Invalid value",
    ),
    (
        "POST",
        PODS,
        pod(
            metadata={
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True} for name in "ab"
                ]
            }
        ),
        422,
        "Only one reference can have Controller set to true",
    ),
]
POD_SPECS: list[Case] = [
    ("POST", PODS, pod(restartPolicy="Sometimes"), 422, 'spec.restartPolicy: Unsupported value: "Sometimes"'),
    ("POST", PODS, pod(dnsPolicy="Mine"), 422, 'spec.dnsPolicy: Unsupported value: "Mine"'),
    (
        "POST",
        PODS,
        pod(activeDeadlineSeconds=0),
        422,
        "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1",
    ),
    ("POST", PODS, pod(hostname="a.b"), 422, "spec.hostname: Invalid value"),
    ("POST", PODS, pod(serviceAccountName="A"), 422, "spec.serviceAccountName: Invalid value"),
    ("POST", PODS, pod(nodeSelector={"a": "b c"}), 422, "spec.nodeSelector: Invalid value"),
    ("POST", PODS, pod(securityContext={"runAsUser": -1}), 422, "spec.securityContext.runAsUser: Invalid value: -1"),
    ("POST", PODS, pod({"name": "Main"}), 422, "spec.containers[0].name: Invalid value"),
    ("POST", PODS, pod({"image": " a "}), 422, "must not have leading or trailing whitespace"),
    ("POST", PODS, pod({"terminationMessagePolicy": "Log"}), 422, "terminationMessagePolicy: Unsupported value"),
    ("POST", PODS, pod({"ports": [{"containerPort": 70000}]}), 422, "containerPort: Invalid value: 70000"),
    ("POST", PODS, pod({"resources": {"limits": {"gpu": "1"}}}), 422, "must be a standard resource type or fully"),
    (
        "POST",
        PODS,
        pod({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        422,
        "may not be specified when `value` is not empty",
    ),
    (
        "POST",
        PODS,
        pod(initContainers=[{"name": "main", "image": "a"}]),
        422,
        'spec.containers[0].name: Duplicate value: "main"',
    ),
    (
        "POST",
        PODS,
        pod(volumes=[{"name": "a", "emptyDir": {}}] * 2),
        422,
        'spec.volumes[1].name: Duplicate value: "a"',
    ),
    (
        "POST",
        PODS,
        pod(volumes=[{"name": "a", "emptyDir": {}, "configMap": {"name": "c"}}]),
        422,
        "may not specify more than 1 volume type",
    ),
    (
        "POST",
        PODS,
        pod(volumes=[{"name": "a", "secret": {}}]),
        422,
        "spec.volumes[0].secret.secretName: Required value",
    ),
    (
        "POST",
        PODS,
        pod(
            {"volumeMounts": [{"name": "a", "mountPath": "/x"}] * 2},
            volumes=[{"name": "a", "emptyDir": {}}],
        ),
        422,
        'volumeMounts[1].mountPath: Invalid value: "/x": must be unique',
    ),
    ("POST", PODS, pod(tolerations=[{"operator": "Equal"}]), 422, "operator must be Exists when `key` is empty"),
    (
        "POST",
        PODS,
        pod(tolerations=[{**TOLERATION, "value": "x"}]),
        422,
        "value must be empty when `operator` is 'Exists'",
    ),
    ("POST", PODS, pod(tolerations=[{**TOLERATION, "effect": "Never"}]), 422, "effect: Unsupported value"),
    (
        "POST",
        PODS,
        affinity({"key": "a", "operator": "In"}),
        422,
        f"{TERM}[0].matchExpressions[0].values: Required value",
    ),
    ("POST", PODS, affinity({"key": "a", "operator": "Is"}), 422, "not a valid selector operator"),
]
JOB_SPECS: list[Case] = [
    ("POST", JOBS, job(parallelism=-1), 422, "spec.parallelism: Invalid value: -1: must be greater than or equal to 0"),
    ("POST", JOBS, job(backoffLimit=-1), 422, "spec.backoffLimit: Invalid value: -1"),
    ("POST", JOBS, job(ttlSecondsAfterFinished=-5), 422, "spec.ttlSecondsAfterFinished: Invalid value: -5"),
    ("POST", JOBS, job(completionMode="Sorted"), 422, 'spec.completionMode: Unsupported value: "Sorted"'),
    (
        "POST",
        JOBS,
        job(completionMode="Indexed", parallelism=2),
        422,
        "spec.completions: Required value: when completion",
    ),
    (
        "POST",
        JOBS,
        job(completionMode="Indexed", completions=2, maxFailedIndexes=1),
        422,
        "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
    ),
    (
        "POST",
        JOBS,
        job(completionMode="Indexed", completions=2, backoffLimitPerIndex=1, maxFailedIndexes=3),
        422,
        "spec.maxFailedIndexes: Invalid value: 3: must be less than or equal to completions",
    ),
    ("POST", JOBS, job(podReplacementPolicy="Soon"), 422, "spec.podReplacementPolicy: Unsupported value"),
    ("POST", JOBS, job(selector={"matchLabels": {"a": "b"}}), 422, "`selector` not auto-generated"),
    ("POST", JOBS, rules({"action": "Ignore"}), 422, "specifying one of OnExitCodes and OnPodConditions is required"),
    (
        "POST",
        JOBS,
        rules({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}}),
        422,
        "requires the backoffLimitPerIndex to be set",
    ),
    (
        "POST",
        JOBS,
        rules({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3, 1]}}),
        422,
        "onExitCodes.values: Invalid value: [3, 1]: must be ordered",
    ),
    (
        "POST",
        JOBS,
        rules({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3], "containerName": "other"}}),
        422,
        "must be one of the container or initContainer names in the pod template",
    ),
]
OTHER_KINDS: list[Case] = [
    ("POST", MAPS, {"metadata": {"name": "c"}, "data": {"a b": ""}}, 422, "a valid config key must consist of"),
    (
        "POST",
        MAPS,
        {"metadata": {"name": "c"}, "data": {"a": ""}, "binaryData": {"a": ""}},
        422,
        "duplicate of key present in binaryData",
    ),
    (
        "POST",
        MAPS,
        {"metadata": {"name": "c"}, "data": {"a": "x" * ((1 << 20) + 1)}},
        422,
        "Too long: may not be more than 1048576 bytes",
    ),
    (
        "POST",
        SECRETS,
        {"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson"},
        422,
        "data[.dockerconfigjson]: Required value",
    ),
    ("POST", f"{CORE}/services", {"metadata": {"name": "s"}, "spec": {}}, 422, "spec.ports: Required value"),
    (
        "POST",
        f"{CORE}/persistentvolumeclaims",
        {"metadata": {"name": "c"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}},
        422,
        "spec.accessModes: Required value: at least 1 access mode is required",
    ),
    (
        "POST",
        f"{CORE}/persistentvolumeclaims",
        {"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}},
        422,
        "spec.resources[storage]: Required value",
    ),
    (
        "POST",
        f"{RBAC}/roles",
        {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": []}]},
        422,
        "rules[0].verbs: Required value: verbs must contain at least one value",
    ),
    (
        "POST",
        f"{RBAC}/rolebindings",
        {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "a"}],
        },
        422,
        "subjects[0].namespace: Required value",
    ),
    (
        "POST",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": "p"}, "value": 2_000_000_000},
        422,
        "maximum allowed value of a user defined priority is 1000000000",
    ),
]
QUESTIONS: list[Case] = [
    ("GET", f"{PODS}?limit=some", None, 400, 'strconv.ParseInt: parsing "some"'),
    ("GET", f"{PODS}?continue=x&resourceVersion=5", None, 400, "not allowed when using continue"),
    ("GET", f"{PODS}?continue=%21", None, 400, "continue key is not valid"),
    ("GET", f"{PODS}?labelSelector=%3D%3D", None, 400, "unable to parse requirement"),
    ("GET", f"{PODS}?fieldSelector=spec.image%3Da", None, 400, "field label not supported: spec.image"),
    ("GET", f"{MAPS}?fieldSelector=data.a%3Da", None, 400, 'only "metadata.name" and "metadata.namespace"'),
    ("GET", f"{PODS}?resourceVersionMatch=Exact", None, 422, "forbidden unless resourceVersion is provided"),
    (
        "GET",
        f"{PODS}?resourceVersion=5&resourceVersionMatch=Near",
        None,
        422,
        "resourceVersionMatch: Unsupported value",
    ),
    ("GET", f"{PODS}?resourceVersion=0&resourceVersionMatch=Exact", None, 422, 'is forbidden for resourceVersion "0"'),
    ("GET", f"{PODS}?sendInitialEvents=true", None, 422, "sendInitialEvents is forbidden for list"),
    (
        "GET",
        f"{PODS}?watch=true&sendInitialEvents=true",
        None,
        422,
        "requires setting resourceVersionMatch to NotOlder",
    ),
    ("PUT", PODS, pod(), 405, "the server does not allow this method"),
    ("POST", f"{PODS}/p", pod(), 405, "the server does not allow this method"),
    ("DELETE", "/api/v1/namespaces", None, 405, "the server does not allow this method"),
    ("POST", f"{PODS}/p/log", {}, 405, "the server does not allow this method"),
    ("GET", f"{PODS}/p/shell", None, 404, "the server could not find the requested resource"),
    ("GET", f"{MAPS}/c/status", None, 404, "the server could not find the requested resource"),
    ("POST", f"{PODS}/absent/eviction", {"metadata": {"name": "absent"}}, 404, 'pods "absent" not found'),
    (
        "POST",
        f"{CORE}/serviceaccounts/default/token",
        {"spec": {"expirationSeconds": 60}},
        422,
        "may not specify a duration less than 10 minutes",
    ),
]
HELD = {"finalizers": ["example.com/held"]}
CHANGES: list[Case] = [
    # Of what `there` makes.
    ("PUT", f"{MAPS}/c", {"metadata": {"name": "d"}}, 400, "does not match the name on the URL (c)"),
    ("PUT", f"{MAPS}/c", {"metadata": {}}, 400, "name must be provided"),
    ("PUT", f"{MAPS}/c", {"metadata": {"name": "c", "uid": "u"}}, 409, "Precondition failed: UID in precondition: u"),
    ("PUT", f"{MAPS}/c", {"metadata": {"name": "c", "resourceVersion": "1"}}, 409, "the object has been modified"),
    ("PUT", f"{PODS}/absent", pod(metadata={"name": "absent"}), 404, 'pods "absent" not found'),
    ("PATCH", f"{MAPS}/c", (MERGE, "{"), 400, "error decoding patch"),
    ("PATCH", f"{MAPS}/c", (MERGE, []), 400, "error decoding patch"),
    ("PATCH", f"{MAPS}/c", (JSON_PATCH, {"op": "add"}), 400, "error decoding patch"),
    ("PATCH", f"{MAPS}/c", (JSON_PATCH, [{"op": "remove", "path": "/data/x"}]), 422, ""),
    ("PATCH", f"{MAPS}/c", ("application/json", {}), 415, "Unsupported Media Type"),
    ("PATCH", f"{MAPS}/c", (MERGE, {"metadata": {"name": "d"}}), 400, "does not match the name on the URL (c)"),
    ("PATCH", f"{MAPS}/c", (MERGE, {"metadata": {"uid": "u"}}), 422, "metadata.uid: Invalid value"),
    ("PATCH", f"{MAPS}/c", (MERGE, {"metadata": {"labels": {"a": "b c"}}}), 422, "metadata.labels: Invalid value"),
    ("PATCH", f"{MAPS}/c?force=true", (MERGE, {}), 422, "force: Forbidden: may not be specified for non-apply patch"),
    ("PATCH", f"{MAPS}/c", ("application/apply-patch+yaml", {}), 422, "fieldManager: Required value: is required for"),
    ("PATCH", f"{MAPS}/fixed", (MERGE, {"data": {"a": "2"}}), 422, "field is immutable when `immutable` is set"),
    ("PATCH", f"{SECRETS}/s", (MERGE, {"type": "mine/own"}), 422, "type: Invalid value"),
    ("PATCH", f"{PODS}/p", (MERGE, {"spec": {"hostname": "b"}}), 422, "pod updates may not change fields other than"),
    ("PATCH", f"{PODS}/p", (MERGE, {"spec": {"activeDeadlineSeconds": 900}}), 422, "less than or equal to previous"),
    ("PATCH", f"{PODS}/p", (MERGE, {"spec": {"schedulingGates": [{"name": "b"}]}}), 422, "only deletion is allowed"),
    (
        "PATCH",
        f"{PODS}/held",
        (MERGE, {"metadata": {"finalizers": ["a/b", "example.com/held"]}}),
        422,
        "no new finalizers",
    ),
    ("PATCH", f"{JOBS}/j", (MERGE, {"spec": {"completions": 4}}), 422, "spec.completions: Invalid value: 4: field is"),
    ("PATCH", f"{JOBS}/j", (MERGE, {"spec": {"parallelism": -1}}), 422, "spec.parallelism: Invalid value: -1"),
    ("PATCH", f"{JOBS}/j", (MERGE, {"spec": {"podFailurePolicy": {"rules": []}}}), 422, "field is immutable"),
    ("PATCH", f"{JOBS}/wide", (MERGE, {"spec": {"completions": 3}}), 422, "in tandem with spec.parallelism"),
    ("DELETE", f"{JOBS}/j", {"propagationPolicy": "Sideways"}, 422, 'propagationPolicy: Unsupported value: "Sideways"'),
    ("DELETE", f"{JOBS}/j", {"propagationPolicy": "Orphan", "orphanDependents": True}, 422, "cannot be both set"),
    ("DELETE", f"{PODS}/p?gracePeriodSeconds=soon", None, 400, 'strconv.ParseInt: parsing "soon"'),
    (
        "DELETE",
        f"{JOBS}/j",
        {"preconditions": {"resourceVersion": "1"}},
        409,
        "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record",
    ),
    ("POST", f"{PODS}/p/eviction", {"metadata": {"name": "other"}}, 400, "name in URL does not match name in Eviction"),
]


def there(cluster: LocalCluster) -> None:
    """What `CHANGES` would change."""
    cluster.create(MAPS, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    cluster.create(MAPS, {"metadata": {"name": "fixed"}, "data": {"a": "1"}, "immutable": True})
    cluster.create(SECRETS, {"metadata": {"name": "s"}})
    gated = {"activeDeadlineSeconds": 600, "schedulingGates": [{"name": "a"}]}
    cluster.create(PODS, pod(**gated))
    cluster.create(PODS, pod(metadata={"name": "held", **HELD}, **gated))
    cluster.request("DELETE", f"{PODS}/held", None)
    cluster.create(JOBS, job(suspend=True))
    cluster.create(JOBS, job({"name": "wide"}, suspend=True, completionMode="Indexed", completions=2, parallelism=2))


def differences(cluster: LocalCluster, cases: list[Case]) -> list[str]:
    """The cases that are answered in another way."""
    found = []
    for method, path, body, status, words in cases:
        content_type, sent = body if isinstance(body, tuple) else ("application/json", body)
        answer = cluster.request(method, path, sent, content_type=content_type)
        said = answer[1].get("message", "") if isinstance(answer[1], dict) else str(answer[1])
        if answer[0] != status or words not in said:
            found.append(f"{method} {path[:80]} {str(body)[:120]}: {answer[0]} {said[:200]!r}, not {status} {words!r}")
    return found


@pytest.mark.parametrize(
    "cases",
    [BODIES, METADATA, POD_SPECS, JOB_SPECS, OTHER_KINDS, QUESTIONS],
    ids=["bodies", "metadata", "pods", "jobs", "others", "questions"],
)
def test_what_is_wrong_is_refused_as_a_real_server_does(cluster: LocalCluster, cases: list[Case]) -> None:
    assert not differences(cluster, cases)
    # Nothing of a refused request is kept.
    kept = [each["metadata"]["name"] for path in (PODS, JOBS, SECRETS) for each in cluster.get(path)["items"]]
    assert not kept


def test_what_is_fixed_stays(cluster: LocalCluster) -> None:
    there(cluster)
    before = [cluster.get(path)["items"] for path in (PODS, JOBS, MAPS, SECRETS)]
    assert not differences(cluster, CHANGES)
    assert [cluster.get(path)["items"] for path in (PODS, JOBS, MAPS, SECRETS)] == before


def test_what_a_real_server_takes_is_taken(cluster: LocalCluster) -> None:
    there(cluster)
    assert not differences(
        cluster,
        [
            ("POST", PODS, pod(metadata={"name": "", "generateName": "made-"}), 201, ""),
            ("POST", PODS, pod(metadata={"name": "v"}, volumes=[{"name": "a"}]), 201, ""),
            ("POST", f"{PODS}?fieldValidation=Ignore", {**pod(metadata={"name": "i"}), "spce": {}}, 201, ""),
            ("POST", f"{CORE}/services", {"metadata": {"name": "s"}, "spec": {"clusterIP": "None"}}, 201, ""),
            ("GET", "/api/v1/namespaces/absent/pods", None, 200, ""),
            ("PUT", f"{MAPS}/c", {"metadata": {"name": "c"}, "data": {"a": "2"}}, 200, ""),
            ("PATCH", f"{PODS}/p", (MERGE, {"spec": {"schedulingGates": None, "activeDeadlineSeconds": 300}}), 200, ""),
            ("PATCH", f"{PODS}/held", (MERGE, {"metadata": {"finalizers": None}}), 200, ""),
            ("PATCH", f"{JOBS}/wide", (MERGE, {"spec": {"completions": 3, "parallelism": 3}}), 200, ""),
            ("PATCH", f"{MAPS}/c?fieldManager=m", ("application/apply-patch+yaml", {"data": {"b": "1"}}), 200, ""),
            ("DELETE", f"{JOBS}/j?propagationPolicy=Background", None, 200, ""),
        ],
    )


def test_an_operators_kind_is_updated_with_its_version_alone(cluster: LocalCluster) -> None:
    cluster.ask("install", group="jobset.x-k8s.io")
    sets = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
    replicated = [{"name": "node", "template": {"spec": {"suspend": True, **job()["spec"]}}}]
    body = {"metadata": {"name": "s"}, "spec": {"suspend": True, "replicatedJobs": replicated}}
    version = cluster.create(sets, body)["metadata"]["resourceVersion"]
    strategic = "application/strategic-merge-patch+json"
    assert not differences(
        cluster,
        [
            (
                "PUT",
                f"{sets}/s",
                body,
                422,
                "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
            ),
            ("PATCH", f"{sets}/s", (strategic, {"metadata": {"labels": {"a": "b"}}}), 415, "Unsupported Media Type"),
            ("PUT", f"{sets}/s", {**body, "metadata": {"name": "s", "resourceVersion": version}}, 200, ""),
        ],
    )
