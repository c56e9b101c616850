"""What the API server makes of an object before it is stored: defaults, checks, quotas and policies."""

from __future__ import annotations

import base64
import random
from fractions import Fraction

from attrs import define
from tests.kubernetes.server.failures import Cause, forbidden, invalid, not_found
from tests.kubernetes.server.kinds import kind_causes
from tests.kubernetes.server.objects import (
    CONFIG_MAPS,
    FINISHED,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Object,
    Resource,
    amount,
    copied,
    name_ending,
    new_uid,
    requests_of,
)
from tests.kubernetes.server.schemas import missing
from tests.kubernetes.server.validation import job_causes, metadata_causes, pod_causes
from tests.kubernetes.server.world import World

DEADLINES = [
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for state in ("not-ready", "unreachable")
]
"""Tolerations that every pod is given: how long it may stay on a node that does not answer."""


@define(eq=False)
class Admission:
    """Prepares new objects."""

    world: World
    authority: str = ""
    """The certificate by which pods know the API server."""

    def prepared(self, resource: Resource, namespace: str, body: Object) -> tuple[Object, list[str]]:
        """The object to store for a request's body, and the warnings that go with the reply.

        Raises:
            Refused: The object is invalid, or a policy or a quota forbids it.
        """
        object = self._with_metadata(resource, namespace, body)
        name = object["metadata"]["name"]
        if resource.namespaced and self.world.store.get(NAMESPACES, "", namespace) is None:
            raise not_found(NAMESPACES, namespace)
        if not (body.get("metadata") or {}).get("name") and not (body.get("metadata") or {}).get("generateName"):
            causes = [Cause.required("metadata.name", "name or generateName is required")]
            raise invalid(resource.kind_name, "", causes, group=resource.group)
        if causes := missing(resource.schema, body):
            raise invalid(resource.kind_name, name, causes, group=resource.group)
        causes = metadata_causes(object) + kind_causes(resource, object)
        warnings: list[str] = []
        if resource is PODS:
            object = with_pod_defaults(object)
            causes += pod_causes(object["spec"], "spec")
        elif resource is JOBS:
            causes += job_causes(object)
        if causes:
            raise invalid(resource.kind_name, name, causes, group=resource.group)
        if resource is PODS:
            object = self._admitted_pod(object)
        elif resource is JOBS:
            object = with_job_defaults(object)
            if violation := self._violation(namespace, object["spec"]["template"]["spec"]):
                warnings.append(f"would violate {violation}")
        elif resource is SECRETS:
            object = _with_encoded_data(object)
        elif resource is SERVICES:
            object["spec"].setdefault("clusterIP", f"10.96.{random.randrange(1, 250)}.{random.randrange(1, 250)}")
            object["spec"].setdefault("type", "ClusterIP")
            object["status"] = {"loadBalancer": {}}
        elif resource is QUOTAS:
            object["status"] = {"hard": object["spec"]["hard"], "used": self.used(object)}
        elif resource is NAMESPACES:
            object["status"] = {"phase": "Active"}
        self._charge(resource, object)
        return object, warnings

    def follow_up(self, resource: Resource, object: Object) -> None:
        """Add what comes with a new object: a namespace has a service account and the certificate of the API."""
        if resource is not NAMESPACES:
            return
        name = object["metadata"]["name"]
        for kind, each in ((SERVICE_ACCOUNTS, "default"), (CONFIG_MAPS, "kube-root-ca.crt")):
            body: Object = {"metadata": {"name": each}}
            if kind is CONFIG_MAPS:
                body["data"] = {"ca.crt": self.authority}
            self.world.store.put(kind, self._with_metadata(kind, name, body))

    def used(self, quota: Object) -> dict[str, str]:
        """How much of a quota is in use."""
        namespace, hard = quota["metadata"]["namespace"], quota["spec"]["hard"]
        return {name: _quantity(self._used(namespace, name)) for name in hard}

    def _with_metadata(self, resource: Resource, namespace: str, body: Object) -> Object:
        metadata = dict(body.get("metadata") or {})
        name = metadata.get("name") or metadata.get("generateName", "") + name_ending()
        if resource.namespaced:
            metadata["namespace"] = namespace
        metadata |= {"name": name, "uid": new_uid(), "creationTimestamp": self.world.clock.stamp()}
        if resource in (PODS, JOBS):
            metadata["generation"] = 1
        metadata.pop("resourceVersion", None)
        written = {key: value for key, value in body.items() if key != "status" or resource not in (PODS, JOBS)}
        object: Object = copied(written)
        return {"kind": resource.kind, "apiVersion": resource.api_version} | object | {"metadata": metadata}

    def _admitted_pod(self, pod: Object) -> Object:
        namespace, name, spec = pod["metadata"]["namespace"], pod["metadata"]["name"], pod["spec"]
        store = self.world.store
        account = spec["serviceAccountName"]
        if store.get(SERVICE_ACCOUNTS, namespace, account) is None:
            # It is looked up before the name is made.
            shown = pod["metadata"].get("generateName", name)
            why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
            raise forbidden(PODS, shown, why)
        if priority := spec.get("priorityClassName"):
            priority_class = store.get(PRIORITY_CLASSES, "", priority)
            if priority_class is None:
                raise forbidden(PODS, name, f"no PriorityClass with name {priority} was found")
            spec["priority"] = priority_class["value"]
            spec["preemptionPolicy"] = priority_class.get("preemptionPolicy", "PreemptLowerPriority")
        if violation := self._violation(namespace, spec):
            raise forbidden(PODS, name, f"violates {violation}")
        return pod

    def _violation(self, namespace: str, spec: Object) -> str:
        labels = (self.world.store.get(NAMESPACES, "", namespace) or {"metadata": {}})["metadata"].get("labels") or {}
        level = labels.get("pod-security.kubernetes.io/enforce", "privileged")
        violations = _baseline_violations(spec) if level == "baseline" else []
        return f'PodSecurity "{level}:latest": {", ".join(violations)}' if violations else ""

    def _charge(self, resource: Resource, object: Object) -> None:
        if resource not in (PODS, JOBS):
            return
        for quota in self.world.store.all(QUOTAS, object["metadata"]["namespace"]):
            hard, used = quota["spec"]["hard"], self.used(quota)
            wanted = {name: value for name in hard if (value := _charged(resource, object, name))}
            over = [name for name, value in sorted(wanted.items()) if amount(used[name]) + value > amount(hard[name])]
            if over:
                lists = (
                    ("requested", {name: _quantity(wanted[name]) for name in over}),
                    ("used", used),
                    ("limited", hard),
                )
                text = ", ".join(
                    f"{word}: " + ",".join(f"{name}={each[name]}" for name in over) for word, each in lists
                )
                why = f"exceeded quota: {quota['metadata']['name']}, {text}"
                raise forbidden(resource, object["metadata"]["name"], why)

    def _used(self, namespace: str, name: str) -> Fraction:
        total = Fraction(0)
        for resource in (PODS, JOBS):
            for object in self.world.store.each(resource):
                if object["metadata"]["namespace"] == namespace:
                    total += _charged(resource, object, name)
        return total


def _charged(resource: Resource, object: Object, name: str) -> Fraction:
    """How much of the quota's item `name` an object takes."""
    if name == f"count/{resource.name}":
        return Fraction(1)
    if resource is not PODS or object.get("status", {}).get("phase") in FINISHED:
        return Fraction(0)
    if name == "pods":
        return Fraction(1)
    requests = requests_of(object)
    return requests.get(name.removeprefix("requests."), Fraction(0))


def _quantity(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{int(value * 1000)}m"


def with_job_defaults(job: Object) -> Object:
    """The Job with all that the API server fills in."""
    spec, metadata = job["spec"], job["metadata"]
    uid, name = metadata["uid"], metadata["name"]
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
        spec["parallelism"] = 1
    spec.setdefault("backoffLimit", 2147483647 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    spec.setdefault("manualSelector", False)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        for condition in rule.get("onPodConditions", []):
            condition.setdefault("status", "True")
    template = spec["template"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    template["metadata"] = {
        **(template.get("metadata") or {}),
        "labels": labels
        | {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        },
    }
    template["spec"] = _with_template_defaults(template["spec"])
    if account := template["spec"].get("serviceAccountName"):
        template["spec"].setdefault("serviceAccount", account)
    job["status"] = {}
    return job


def with_pod_defaults(pod: Object) -> Object:
    """The pod with all that the API server and its plugins fill in."""
    spec = _with_template_defaults(pod["spec"])
    account = spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", account)
    spec.setdefault("priority", 0)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    keys = {(each.get("key"), each.get("effect")) for each in spec.setdefault("tolerations", [])}
    spec["tolerations"] += [each for each in copied(DEADLINES) if (each["key"], each["effect"]) not in keys]
    for container in spec["containers"] + spec.get("initContainers", []):
        limits = container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = limits | container["resources"].get("requests", {})
    if spec.get("automountServiceAccountToken", True):
        _mount_token(spec)
    requests, limits = (
        [each["resources"].get(word, {}) for each in spec["containers"]] for word in ("requests", "limits")
    )
    computed = [{name: each for name, each in some.items() if name in ("cpu", "memory")} for some in requests + limits]
    if not any(computed):
        quality = "BestEffort"
    else:
        every = all(len(each) == 2 for each in computed)
        quality = "Guaranteed" if every and requests == limits else "Burstable"
    return {**pod, "spec": spec, "status": {"phase": "Pending", "qosClass": quality}}


def _with_template_defaults(spec: Object) -> Object:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for container in spec.get("containers", []) + spec.get("initContainers", []):
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        image = container.get("image", "").rpartition("/")[2]
        untagged = "@" not in image and (":" not in image or image.endswith(":latest"))
        container.setdefault("imagePullPolicy", "Always" if untagged else "IfNotPresent")
        for variable in container.get("env", []):
            if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
                reference.setdefault("apiVersion", "v1")
    for volume in spec.get("volumes", []):
        for kind in ("configMap", "secret", "projected", "downwardAPI"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", 420)
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
    return spec


def _mount_token(spec: Object) -> None:
    name = f"kube-api-access-{name_ending()}"
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    spec["volumes"] = [
        *spec.get("volumes", []),
        {
            "name": name,
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {
                        "downwardAPI": {
                            "items": [
                                {
                                    "path": "namespace",
                                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                                }
                            ]
                        }
                    },
                ],
                "defaultMode": 420,
            },
        },
    ]
    for container in spec["containers"] + spec.get("initContainers", []):
        mounts = container.setdefault("volumeMounts", [])
        if all(each["mountPath"] != path for each in mounts):
            mounts.append({"name": name, "readOnly": True, "mountPath": path})


def _with_encoded_data(secret: Object) -> Object:
    """A secret's `stringData` becomes `data`."""
    plain = secret.pop("stringData", None) or {}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **encoded}, "type": secret.get("type", "Opaque")}


def _baseline_violations(spec: Object) -> list[str]:
    found = [f"{word}=true" for word in ("hostNetwork", "hostPID", "hostIPC") if spec.get(word)]
    return [f"host namespaces ({', '.join(found)})"] if found else []
