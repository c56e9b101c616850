"""What Kubernetes makes of each field of a step's request: honoured, translated, or refused with what to do.

Pure: the cluster is not asked. What its nodes, quotas and rights can never give is found by asking it (`proof.prove`).
"""

from __future__ import annotations

import sys
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import BY_ITSELF, settings_of
from stoker.backends.base.leasing import OWN_VISIBILITY
from stoker.backends.base.messages import nodes_of
from stoker.backends.kubernetes import objects
from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.request import pods
from stoker.backends.kubernetes.request.accelerators import accelerator_request
from stoker.backends.kubernetes.settings import AUTO, KubernetesSettings
from stoker.core import imagenames
from stoker.core.findings import Finding, Reporter
from stoker.core.hosts import is_folder_elsewhere
from stoker.core.plan import Job, Site, StepPlan, reporter_of
from stoker.core.resources import ResourceSettings
from stoker.core.units import size_text, value_or
from stoker.launchers.registry import launcher_named
from stoker.store.filesystems import store_package
from stoker.vendors.table import NO_DEVICES

CANNOT: Final = "STK280"
TRANSLATED: Final = "STK281"
IMAGE: Final = "STK282"
STORE: Final = "STK283"
NOT_REUSED: Final = "STK255"
CHECKPOINTS: Final = "STK284"
_PYTHON: Final = ("docker.io", "library/python")
"""Registry and repository of the images with Python and nothing else."""
OWN_IMAGE: Final = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
"""The image of a step that names none: this Python, so that what is pickled here is read there."""


def check(step: StepPlan, options: Mapping[str, Any], site: Site) -> Iterator[Finding]:
    """Field by field."""
    settings = settings_of(step, KubernetesSettings, options)
    report = reporter_of(step)
    yield from check_pod(step, settings, site, report)
    yield from _places(step, settings, site, report)
    yield from _queue(step.settings.resources, settings, report)
    yield from _ranks(step, settings, report)
    yield from _reuse(step, settings, report)


def check_pod(step: StepPlan, settings: KubernetesSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    """What holds for a step's pod, whoever creates it."""
    yield from _sizes(step.settings.resources, settings, report)
    yield from _devices(step, settings, report)
    yield from _extended(step.settings.resources, settings, report)
    yield from _image(step, settings, site, report)
    yield from _mounts(settings, report)


def image_of(step: StepPlan, settings: KubernetesSettings) -> str:
    """The image that a step runs in: that of its `docker` settings, of the settings here, or plain Python."""
    docker = step.settings.docker
    ready = value_or(docker.parent_image, "") if docker is not None and docker.skip_build is True else ""
    return step.image or ready or str(settings.get("image", "")) or OWN_IMAGE


def image_environment(step: StepPlan) -> dict[str, str]:
    """The variables of an image that is used as it is; one that is built has them inside."""
    docker = step.settings.docker
    if docker is None or docker.skip_build is not True:
        return {}
    layers = (value_or(docker.environment, {}), value_or(docker.runtime_environment, {}))
    return {name: text for layer in layers for name, text in layer.items() if text is not None}


def _sizes(resources: ResourceSettings, settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    memory, shared = resources.get("memory", 0), resources.get("shared_memory", 0)
    if memory and shared > memory:
        what = f"asks for {size_text(shared)} of shared memory and {size_text(memory)} of memory"
        why = "what lies in /dev/shm counts as the container's memory: it would be killed before that is full"
        yield report.refused(CANNOT, what, why, f"resources.memory={size_text(2 * shared)}")
    automatic = pods.shared_memory(resources, settings)
    if automatic is not None and resources.get("shared_memory") is None:
        size = (
            f"{size_text(automatic)} of shared memory, half of its memory" if automatic else "shared memory as needed"
        )
        what = f"gets {size}: /dev/shm has 64MiB in a container where nobody asks"
        why = "loaders of data and collectives of GPU steps need more; resources.shared_memory says how much"
        yield report.info(TRANSLATED, what, why)
    missing = [name for name in ("cpu_count", "memory") if resources.get(name) is None]
    if settings.get("qos") == "Guaranteed" and missing:
        what = f"asks for the class of service Guaranteed, without {' and '.join(missing)}"
        why = "a pod is of that class if its requests are its limits: for CPU and memory"
        yield report.refused(
            CANNOT, what, why, f"resources.{missing[0]}={'4' if missing[0] == 'cpu_count' else '16GB'}"
        )


def _devices(step: StepPlan, settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    for name in sorted(set(step.settings.environment) & set(NO_DEVICES)):
        why = "the kubelet gives the pod its devices; another choice hides them or means others"
        yield report.error(OWN_VISIBILITY, f"sets {name} in its environment", why, "remove it, and ask for gpu_count")
    request = accelerator_request(step.settings.resources, settings)
    if request is None:
        return
    if request.refusal is not None:
        yield report.error(CANNOT, request.refusal.what, request.refusal.why, request.refusal.fix)
        return
    if request.left_out and not settings.get("device_class"):
        others = ", ".join(map(str, request.left_out))
        what = f"asks for {request.text} only, not for {others}"
        why = "a pod asks for one resource in one number: alternatives must be alike in both"
        if request.vendor == "nvidia" and type(settings) is KubernetesSettings:
            why += "; KubernetesSettings(device_class='gpu.nvidia.com') asks for any of them where the cluster has DRA"
        yield report.translated(TRANSLATED, what, why)
    if step.settings.accelerator_policy == "prefer":
        what = 'has accelerator_policy="prefer"; its pod waits for accelerators all the same'
        why = "a pod cannot ask for what there is; without a device where it runs, the step runs on the CPU"
        yield report.translated(TRANSLATED, what, why)


def _extended(resources: ResourceSettings, settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    fields = (("resources.extended", resources.get("extended", {})),)
    for place, amounts in (*fields, ("extended_resources", settings.get("extended_resources", {}))):
        for name, amount in amounts.items():
            what = f"asks for {amount} '{name}' as an extended resource"
            if "/" not in name and not name.startswith("hugepages-"):
                why = 'Kubernetes names them with their maker\'s domain: "example.com/fpga"'
                yield report.error(CANNOT, what, why, f"write the full name in {place}; `kubectl get nodes` shows it")
            elif "/" in name and (objects.amount(amount) or 0) % 1:
                why = "Kubernetes counts extended resources in whole numbers"
                yield report.error(CANNOT, what, why, f"give a whole number in {place}")
            elif nodelabels.is_device(name):
                why = "what is not asked for as accelerators is neither proved nor watched by Stoker"
                yield report.translated(TRANSLATED, f"{what}: so many devices, of any kind", why)


def _image(step: StepPlan, settings: KubernetesSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    docker = step.settings.docker
    is_built = docker is not None and docker.skip_build is not True
    if docker is not None and is_built and not site.registry:
        why = "the cluster's nodes pull images from a registry, and the stack names none to push to"
        fix = "docker.skip_build=true with docker.parent_image=REGISTRY/NAME:TAG; or a container_registry in the stack"
        yield report.refused(IMAGE, "asks for an image that is to be built", why, fix)
        return
    if docker is not None and not is_built and not value_or(docker.parent_image, ""):
        fix = "docker.parent_image=REGISTRY/NAME:TAG, or docker=null"
        yield report.refused(IMAGE, "names no image", "a pod runs in one, and nothing is to be built", fix)
        return
    if not is_built:
        yield from _store_package(image_of(step, settings), settings, site, report)
    own = settings.image
    if docker is not None and own and own != (step.image or value_or(docker.parent_image, "")):
        what = f"runs in the image of its docker settings, not in {settings.get('image')}"
        yield report.translated(IMAGE, what, f"{_kind(settings)}(image=…) is for steps without docker settings")
    elif docker is None and not settings.get("image"):
        what = f"runs in the image {OWN_IMAGE}"
        why = f"it names none; name one by {_kind(settings)}(image='REGISTRY/NAME:TAG') or docker settings"
        if step.settings.resources.gpus_per_node:
            why += ": this one has no CUDA, ROCm or other libraries of accelerators"
        yield report.info(IMAGE, what, why)


def _store_package(image: str, settings: KubernetesSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    """Plain Python in front of a bucket: the pod would start, and its worker could open nothing."""
    package = store_package(site.artifacts)
    name = imagenames.parse(image)
    if package and name is not None and (name.registry, name.repository) == _PYTHON:
        what = f"runs in the image {image}, and its artifacts are in {site.artifacts}"
        why = f"plain Python lacks {package}, by which a step reads and writes there"
        fix = (
            f"{_kind(settings)}(image=…) with {package} in it; or docker=DockerSettings(requirements=['{package}']) "
            "and a container_registry in the stack"
        )
        yield report.error(IMAGE, what, why, fix)


def _kind(settings: KubernetesSettings) -> str:
    """The name by which a user writes these settings: other backends' are made of them."""
    return type(settings).__name__


def _mounts(settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    """Volumes and mounts that do not go together: the API server refuses them when the step is sent."""
    names = {volume["name"] for volume in settings.get("volumes", ())}
    for mount in settings.get("volume_mounts", ()):
        path = str(mount.get("mountPath", ""))
        if not path.startswith("/"):
            what = f"mounts the volume '{mount['name']}' at {path!r}"
            yield report.error(
                CANNOT, what, "a volume is mounted at a full path", 'volume_mounts=[{…, "mountPath": "/data"}]'
            )
        if mount["name"] not in names and not settings.get("overlay") and not settings.get("pod_spec"):
            what = f"mounts the volume '{mount['name']}', which it does not have"
            fix = f"{_kind(settings)}(volumes=[{{'name': '{mount['name']}', …}}])"
            yield report.error(CANNOT, what, "each mount names one of the pod's volumes", fix)
    places = [
        *(str(mount.get("mountPath", "")) for mount in settings.get("volume_mounts", ())),
        *settings.get("persistent_volume_claims", {}).values(),
        *settings.get("host_paths", {}).values(),
    ]
    for place in sorted({place for place in places if places.count(place) > 1}):
        what = f"mounts two volumes at {place}"
        yield report.error(CANNOT, what, "one place of a container has one volume", "mount one of them elsewhere")


def _queue(resources: ResourceSettings, settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    queueing = settings.get("queueing") or ("kueue" if settings.get("queue") else "")
    if settings.get("queue_priority") and queueing not in ("kueue", "volcano"):
        what = f"asks for the priority '{settings.get('queue_priority')}' in a queue, and for no queue"
        yield report.error(CANNOT, what, "only a queue reads it", "queue='…', or priority_class='…' for the pod itself")
    if queueing == "coscheduling" and settings.get("queue"):
        what = f"asks for the queue '{settings.get('queue')}' of a scheduler that has none"
        yield report.error(CANNOT, what, "coscheduling only starts pods together", "queueing='kueue' or 'volcano'")
    if queueing:
        what = f"is admitted by {queueing}: it waits until its queue or scheduler lets it start"
        yield report.info(TRANSLATED, what, "its objects are made as that project documents them")
    if settings.get("topology") and resources.get("nodes", 1) == 1 and queueing != "kueue":
        what = f"asks for nodes within one {settings.get('topology')}, and for one node"
        yield report.translated(TRANSLATED, what, "a single pod is within one of anything")


def _ranks(step: StepPlan, settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    launch, nodes = step.settings.launch, step.settings.resources.get("nodes", 1)
    head = None if launch is None else launcher_named(launch.launcher).head(launch.arguments or {})
    if head is not None and nodes > 1:
        what = f"starts its ranks on several nodes by {head.program}"
        why = f"{head.program} reaches other nodes by ssh or a scheduler, and pods have neither"
        yield report.error(CANNOT, what, why, "use torchrun, or resources.nodes=1")


def _reuse(step: StepPlan, settings: KubernetesSettings, report: Reporter) -> Iterator[Finding]:
    why = why_alone(step, settings)
    by_setting = step.settings.isolation == "warm" and step.settings.resources.get("nodes", 1) == 1
    if why and settings.get("reuse") is True:
        part = next(iter(step.settings.backend), "orchestrator")
        what = "is to be taken by a pod that takes further steps (reuse=true), and gets a pod of its own"
        yield report.refused(NOT_REUSED, what, why, f"{part}.kubernetes.reuse=auto")
    elif why and by_setting and settings.get("reuse") is not False:
        cost = "which takes a second and more to start; a warm pod takes a step in a tenth"
        yield report.info(BY_ITSELF, f"gets a pod of its own, {cost}", why)


def _places(step: StepPlan, settings: KubernetesSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    shares = bool(settings.get("shares_files"))
    if site.artifacts.startswith("pvc://"):
        return  # its pods mount the claim
    if is_folder_elsewhere(site.artifacts) or (not shares and "://" not in site.artifacts.removeprefix("file://")):
        what = f"runs in a pod, which does not see the artifact store {site.artifacts}"
        why = "a step loads its inputs from there and saves its outputs there"
        fix = (
            "name a store that pods reach: artifact_store = 's3://…', or 'pvc://CLAIM' for a claim; or shares_files = "
        )
        fix += "true of the orchestrator where every node has this folder at this path, or mounts it"
        yield report.error(STORE, what, why, fix)
    elif not shares and (step.settings.retry.times or step.settings.retry.on_oom):
        what = f"copies its checkpoints to {site.artifacts} while it runs, and a further attempt gets them from there"
        yield report.info(CHECKPOINTS, what, "pods do not see this machine's folders")


# Which steps may run in a pod that takes several, one after another

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
