"""From steps to the Jobs whose pods take several of them, one after another: pure.

Steps whose pods would be equal but for names and labels have the same shape. A Job of a pool has one pod, or several
that are elements of an Indexed Job; their program is `poolpod`, and what they are to do reaches them by exec (`pools`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any, Final, Mapping

import attrs

from stoker.backends.base.adoption import job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import request_digest
from stoker.backends.kubernetes.request import jobs as k8sjobs
from stoker.backends.kubernetes.request.pods import GANG_LABEL, PodMount, PodRequest, program, run_variable
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.backends.kubernetes.warm import poolpod
from stoker.core.codec import to_json
from stoker.core.orders import PoolSpec
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.values import IdentityKey

POOL: Final = "stoker/pool"
"""The label of a pool's Jobs and pods: the shape of its steps, as `digest_of` has it."""
STATE: Final = "/stoker/pool"
IDLE_AFTER: Final = 30.0
"""Seconds without a step after which a pod leaves: what a driver does between two steps takes less as a rule."""
IDLE_WITH_DEVICES: Final = 5.0
"""The same for a pod with accelerators, which others may wait for."""
CHECKPOINTS: Final = f"{poolpod.PLACES[1]}{poolpod.TMP}/stoker-checkpoints"
"""The folder of checkpoints of a pod that sees no other, emptied behind each step: they are copied from there."""


def pool_spec(job: Job, site: Site, settings: KubernetesSettings) -> PoolSpec:
    """How the worker of a pod lives."""
    usual = IDLE_WITH_DEVICES if job.step.settings.resources.gpus_per_node else IDLE_AFTER
    return PoolSpec(idle_after=settings.get("idle_after", usual), imports=site.worker_imports)


def pool_request(job: Job, site: Site, options: Mapping[str, Any], *, shares: bool) -> PodRequest:
    """What the pods of a pool follow from that takes steps like a job's."""
    settings = settings_of(job.step, KubernetesSettings, options)
    own = k8sjobs.pod_request(job, site, options, name="", shares=shares)
    variables = {poolpod.PROGRAM: program(poolpod), **own.environment}
    named = {*variables, *(entry["name"] for entry in settings.get("env", ()))}
    if "TMPDIR" not in named and not settings.get("use_tmpfs") and not settings.get("tmpfs_size"):
        variables["TMPDIR"] = f"{STATE}/{poolpod.TMP}"
    spec = json.dumps(to_json(pool_spec(job, site, settings)), separators=(",", ":"))
    return attrs.evolve(
        own,
        environment=variables,
        command=(*run_variable(settings, poolpod.PROGRAM), "keep", STATE, k8sjobs.WORKER, spec),
        labels=k8sjobs.labels_of_run(job),
        mounts=[
            PodMount(name="stoker-pool", source={"emptyDir": {}}, path=STATE, read_only=False),
            *(mount for mount in own.mounts if mount.path != k8sjobs.DOCUMENT),
        ],
    )


def session_command(settings: KubernetesSettings, *, claim: str) -> tuple[str, ...]:
    """What is executed in a pod of a pool to reach it; `claim` is where it has the artifact store's claim."""
    return (*run_variable(settings, poolpod.PROGRAM), "serve", STATE, *((claim,) if claim else ()))


def template(job: Job, site: Site, options: Mapping[str, Any], *, shares: bool) -> Mapping[str, Any]:
    """The pods of a pool, without its label: equal for jobs of one shape, and one object for those of one step."""
    return _template(IdentityKey(job.step), job.run, job.avoid, IdentityKey(site), IdentityKey(options), shares=shares)


@functools.lru_cache(maxsize=64)
def _template(
    step: IdentityKey[StepPlan],
    run: str,
    avoid: tuple[str, ...],
    site: IdentityKey[Site],
    options: IdentityKey[Mapping[str, Any]],
    *,
    shares: bool,
) -> Mapping[str, Any]:
    job = Job(name="", run=run, key="", attempt=0, step=step.value, inputs={}, avoid=avoid)
    pod = k8sjobs.template(pool_request(job, site.value, options.value, shares=shares))
    pod["metadata"].get("labels", {}).pop(GANG_LABEL, None)
    return pod


def shape_of(template: Mapping[str, Any], namespace: str) -> str:
    """The shape of the steps that pods with this template take. What modules a pod imports ahead is none of it: another
    driver of the run may know of others."""
    return _shape_of(IdentityKey(template), namespace)


@functools.lru_cache(maxsize=64)
def _shape_of(key: IdentityKey[Mapping[str, Any]], namespace: str) -> str:
    template = key.value
    (container,) = template["spec"]["containers"]
    *words, spec = container["command"]
    alike = {**container, "command": [*words, json.loads(spec)["idle_after"]]}
    text = json.dumps([namespace, {**template, "spec": {**template["spec"], "containers": [alike]}}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def manifest(job: Job, template: Mapping[str, Any], shape: str, *, name: str, token: str, count: int) -> dict[str, Any]:
    """The Job of so many pods."""
    labels = {**k8sjobs.labels_of_run(job), POOL: shape}
    metadata = {**template["metadata"], "labels": {**template["metadata"].get("labels", {}), POOL: shape}}
    spec: dict[str, Any] = {"backoffLimit": 0, "template": {**template, "metadata": metadata}}
    if count > 1:
        del spec["backoffLimit"]
        spec.update(completionMode="Indexed", completions=count, parallelism=count, backoffLimitPerIndex=0)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {k8sjobs.TOKEN: token}},
        "spec": spec,
    }


def job_name(job: Job, token: str, salt: int = 0) -> str:
    """The name of a pool's Job: the pipeline's for people, and letters that are its own."""
    return k8sjobs.named([job.pipeline, "pool"], hashlib.sha256(f"{token} {salt}".encode()).hexdigest())


def mark_of(job: Job) -> list[Any]:
    """What a later driver needs to adopt an order: key, kind, attempt, request."""
    return [job.key, job_kind(job), job.attempt, request_digest(job)]


def document(
    job: Job, site: Site, options: Mapping[str, Any], *, shares: bool, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What a pod is told of a job."""
    settings = settings_of(job.step, KubernetesSettings, options)
    entry = k8sjobs.entry(job, site, settings, shares=shares, environment=environment, checkpoints=CHECKPOINTS)
    spec: dict[str, Any] = entry["spec"]
    return spec
