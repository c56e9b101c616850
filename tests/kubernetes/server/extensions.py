"""Kinds that operators add to a cluster, once they are installed (`install`): JobSets, and groups of pods.

Groups of pods and claim templates are only kept and checked here: nothing waits for them.
"""

from __future__ import annotations

from tests.kubernetes.server.objects import Object, Resource

JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
VOLCANO_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
COSCHEDULING_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
EXTENSIONS = (JOB_SETS, VOLCANO_GROUPS, COSCHEDULING_GROUPS, CLAIM_TEMPLATES)

_GROUP = {"apiVersion": "string", "kind": "string", "metadata": "ObjectMeta", "status": "any"}
FIELDS: dict[str, dict[str, str]] = {
    "JobSet.jobset.x-k8s.io": {**_GROUP, "spec": "JobSetSpec"},
    "JobSetSpec": {
        "coordinator": "any",
        "failurePolicy": "JobSetFailurePolicy",
        "managedBy": "string",
        "network": "JobSetNetwork",
        "replicatedJobs": "[]ReplicatedJob",
        "startupPolicy": "any",
        "successPolicy": "any",
        "suspend": "boolean",
        "ttlSecondsAfterFinished": "integer",
        "volumeClaimPolicies": "any",
    },
    "JobSetFailurePolicy": {"maxRestarts": "integer", "restartStrategy": "string", "rules": "any"},
    "JobSetNetwork": {"enableDNSHostnames": "boolean", "publishNotReadyAddresses": "boolean", "subdomain": "string"},
    "ReplicatedJob": {
        "dependsOn": "any",
        "groupName": "string",
        "name!": "string",
        "replicas": "integer",
        "template!": "JobTemplateSpec",
    },
    "JobTemplateSpec": {"metadata": "ObjectMeta", "spec": "JobSpec"},
    "PodGroup.scheduling.volcano.sh": {**_GROUP, "spec": "VolcanoGroupSpec"},
    "VolcanoGroupSpec": {
        "minMember": "integer",
        "minResources": "{}quantity",
        "minTaskMember": "{}integer",
        "networkTopology": "any",
        "preemptable": "boolean",
        "priorityClassName": "string",
        "queue": "string",
    },
    "PodGroup.scheduling.x-k8s.io": {**_GROUP, "spec": "CoschedulingGroupSpec"},
    "CoschedulingGroupSpec": {
        "minMember": "integer",
        "minResources": "{}quantity",
        "scheduleTimeoutSeconds": "integer",
    },
}
"""What the published definitions of these kinds have, as in `fields.json`."""
LONGEST = 63
"""Letters of the name of a Job's pod at most: it is the pod's host name, too."""


def set_flaw(body: Object) -> str:
    """What the JobSet webhook refuses of a new JobSet; empty where it takes it."""
    for replicated, number in replicas(body):
        name = f"{body['metadata']['name']}-{replicated['name']}-{number}"
        pod = f"{name}-{replicated['template']['spec'].get('completions', 1) - 1}-abcde"
        if len(name) > LONGEST:
            return "JobSet name is too long, job names generated for this JobSet will exceed 63 characters"
        if len(pod) > LONGEST:
            return "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
    return ""


def replicas(current: Object) -> list[tuple[Object, int]]:
    return [
        (replicated, number)
        for replicated in current["spec"].get("replicatedJobs") or ()
        for number in range(replicated.get("replicas", 1))
    ]
