"""Which steps may run in a pod that takes several, one after another. Pure."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import nodes_of
from stoker.backends.kubernetes.settings import AUTO, KubernetesSettings
from stoker.core.plan import Job, StepPlan

_OF_ONE_POD: Final = {
    "ttl": "ttl is the life of one finished job",
    "overlay": "overlay may add what ends with the step",
}
"""Settings that would mean something else for the second step of a pod."""
_OF_ANY_STEP: Final = frozenset(
    {
        "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases",
        "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname", "imagePullSecrets", "nodeName", "nodeSelector",
        "os", "preemptionPolicy", "priority", "priorityClassName", "runtimeClassName", "schedulerName",
        "securityContext", "serviceAccountName", "setHostnameAsFQDN", "subdomain", "tolerations",
        "topologySpreadConstraints",
    }
)  # fmt: skip
"""Fields of a pod's specification that say where and as what it runs, which is the same for each step that it takes.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodSpec"""


def why_alone(step: StepPlan, settings: KubernetesSettings, kind: str = "step") -> str:
    """Why a step gets a pod of its own, after "because"; empty for one whose pod may take further steps."""
    if settings.get("reuse", AUTO) is False:
        return "reuse=false says so"
    if kind != "step":
        return "it is a hook"
    if step.settings.resources.get("nodes", 1) > 1:
        return "it runs on several nodes"
    if step.settings.isolation == "fresh":
        return 'isolation="fresh" asks for a place of its own'
    if settings.get("queueing") or settings.get("queue"):
        return "a queue or a gang scheduler admits each job by itself"
    if settings.get("device_class"):
        return "its devices are a claim of its own"
    own = [name for name in settings.get("pod_spec", {}) if name not in _OF_ANY_STEP]
    if own:
        return f"pod_spec.{own[0]} may add what ends with the step"
    return next((why for name, why in _OF_ONE_POD.items() if settings.get(name)), "")


def may_share(job: Job, options: Mapping[str, Any]) -> bool:
    """Whether a job may run in a pod that takes several."""
    settings = settings_of(job.step, KubernetesSettings, options)
    return not job.secrets and nodes_of(job) == 1 and not why_alone(job.step, settings, job.kind)
