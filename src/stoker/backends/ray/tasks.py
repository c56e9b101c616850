"""From jobs to the request that Ray's Jobs API is sent, and the document that the program in the cluster reads: pure.

The steps of a run are tasks of one Ray job (docs/dev/decisions/0035). Its program, `backends.ray.job`, reads the
document, which has for each of the first steps what `worker.boot` is told and what the step asks of Ray; further steps
come as orders (`backends.ray.orders`).
"""

from __future__ import annotations

import hashlib
import math
import shlex
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import requested_lease, samples_file
from stoker.backends.base.messages import boot_spec, gang_task, nodes_of, request_digest, with_copies
from stoker.backends.ray import orders as rayorders
from stoker.backends.ray.settings import KINDS, Kind, RaySettings, kind_of
from stoker.backends.ray.words import labels_without
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import SealedSecrets
from stoker.core.resources import describe
from stoker.core.words import dashed_name

VERSION: Final = 2
DOCUMENT: Final = "jobs.json"
"""The document of a Ray job, in its folder."""
IDLE_AFTER: Final = 60.0
"""Seconds for which a program without steps waits for more: it holds no CPU, some 100 MB of its node and a process."""
GRACE: Final = 9.0
"""Seconds that a step has between SIGTERM and SIGKILL; a second less than the engine gives in all."""
CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a node that does not see the driver's folders."""
CPUS: Final = 1.0
"""Of a step that asks for none: what Ray takes for any task. Fewer would put any number of steps on a node."""


def kinds_of(step: StepPlan, settings: RaySettings) -> list[tuple[Accelerator, Kind | None]]:
    """The kinds of accelerator that a step may run on, the one it would rather have first; Ray's word for each."""
    resources = step.settings.resources
    accelerators: Sequence[Accelerator] = resources.get("accelerators", ())
    return [
        (kind, None if kind.slice else kind_of(kind.name, settings))
        for kind in accelerators or _matching_models(step, settings)
    ]


def _matching_models(step: StepPlan, settings: RaySettings) -> list[Accelerator]:
    """Those of the catalog with the memory and of the vendor that a step asks for, the smallest first."""
    resources = step.settings.resources
    vendor, least = resources.get("gpu_vendor"), resources.get("gpu_memory", 0)
    if vendor is None and (not least or resources.get("share")):
        return []
    models = [MODELS[name] for name in dict.fromkeys([*KINDS, *settings.get("accelerators", {})])]
    fit = [one for one in models if one.memory[0] >= least and vendor in (None, one.vendor)]
    fit = [one for one in fit if (kind := kind_of(one.name, settings)) is not None and kind.resource == "GPU"]
    return [Accelerator(name=one.name) for one in sorted(fit, key=lambda one: one.memory[0])]


def fraction_of(step: StepPlan, settings: RaySettings) -> float | None:
    """The part of its one GPU that a step takes; None where it takes whole ones."""
    resources = step.settings.resources
    if settings.get("gpu_fraction"):
        return float(settings.get("gpu_fraction"))
    accelerators = resources.get("accelerators", ())
    if resources.get("share") and accelerators:
        # Of the smallest that goes by this name, in Ray's steps: never less than was asked for.
        part = resources.get("gpu_memory") / accelerators[0].model.memory[0]
        return float(min(1.0, math.ceil(part * 10_000) / 10_000))
    return None


def ray_request(job: Job, settings: RaySettings) -> dict[str, Any]:
    """What each node of a job asks of Ray. "choices": the first whose type some node has is taken."""
    if job.kind == "hook":
        return {"num_cpus": 0.0, "memory": 0, "choices": [], "resources": {}, "labels": {}, "prefer": False}
    resources = job.step.settings.resources
    gpus = resources.gpus_per_node
    part = fraction_of(job.step, settings)
    choices = []
    for kind, ray_kind in kinds_of(job.step, settings) if gpus else ():
        if ray_kind is not None:
            count = part or (kind.count or gpus) * ray_kind.each
            choices.append({"type": ray_kind.type, "resource": ray_kind.resource, "count": count})
    if gpus and not choices:
        choices = [{"type": "", "resource": "GPU", "count": part or gpus}]
    return {
        "num_cpus": float(resources.get("cpu_count", CPUS)),
        "memory": resources.get("memory", 0),
        "choices": choices,
        "resources": {**resources.get("extended", {}), **settings.get("resources", {})},
        "labels": labels_without(settings.get("labels", {}), job.avoid),
        "prefer": job.step.settings.accelerator_policy == "prefer",
    }


def entry(
    job: Job, site: Site, settings: RaySettings, *, folder: str, shares: bool, sealed: SealedSecrets | None
) -> dict[str, Any]:
    """One job in the document or an order; `sealed` stands for its secrets."""
    nodes = nodes_of(job)
    lease = requested_lease(job, samples=samples_file(job, site, "ray"))
    if lease is not None and job.step.settings.resources.get("share"):
        lease = attrs.evolve(lease, memory=job.step.settings.resources.get("gpu_memory"))
    job = attrs.evolve(job, secrets={})
    spec = boot_spec(
        job,
        site,
        checkpoints=site.checkpoints if shares else CHECKPOINTS,
        grace=GRACE,
        lease=lease,
        gang=gang_task(job, folder) if nodes > 1 else None,
    )
    spec = attrs.evolve(spec, job=attrs.evolve(spec.job, sealed=sealed))
    return {
        "name": job.name,
        "key": job.key,
        "kind": job_kind(job),
        "attempt": job.attempt,
        "digest": request_digest(job),
        "nodes": nodes,
        "asked": describe(job.step.settings.resources),
        "ask": ray_request(job, settings),
        "placement": settings.get("placement", "STRICT_SPREAD"),
        "python": settings.get("python", ""),
        "runtime_env": runtime_env(settings, ""),
        "spec": to_json(spec if shares else with_copies(spec)),
    }


def entries(
    jobs: Sequence[Job],
    site: Site,
    options: Mapping[str, Any],
    *,
    folder: str,
    shares: bool,
    package: str,
    sealed: Mapping[str, SealedSecrets],
) -> list[dict[str, Any]]:
    """Jobs as the program in the cluster is told of them; `package`: the URI of Stoker's worker, if it is sent.

    `sealed` has what stands for secrets, by the names of the jobs that have some.
    """
    steps = []
    for job in jobs:
        settings = settings_of(job.step, RaySettings, options)
        step = entry(job, site, settings, folder=folder, shares=shares, sealed=sealed.get(job.name))
        if package and step["runtime_env"].get("py_modules"):
            step["runtime_env"]["py_modules"] = [package, *step["runtime_env"]["py_modules"]]
        steps.append(step)
    return steps


def document(
    steps: Sequence[Mapping[str, Any]],
    site: Site,
    options: Mapping[str, Any],
    *,
    run: str,
    id: str,
    folder: str,
    token: str,
    shares: bool,
) -> dict[str, Any]:
    """The document with which the program of a Ray job begins; `steps` are `entries`."""
    return {
        "version": VERSION,
        "run": run,
        "token": token,
        "bundle": site.bundle if shares else "",
        "journal": f"{folder}/journal" if shares else "",
        "orders": f"{folder}/{rayorders.FILE}" if shares else id,
        "idle_after": RaySettings(**options).get("idle_after", IDLE_AFTER),
        "shares": shares,
        "steps": list(steps),
    }


def runtime_env(settings: RaySettings, package: str) -> dict[str, Any]:
    """Ray's runtime environment, with Stoker's worker in it where that is a package."""
    fields = {name: value for name, value in settings.get("runtime_env", {}).items() if value is not None}
    return {**fields, "py_modules": [package, *fields.get("py_modules", ())]} if package else fields


def token_of(jobs: Sequence[Job]) -> str:
    """The same for the same jobs, so that sending them twice starts them once."""
    requests = "\n".join(sorted(f"{job.name} {request_digest(job)}" for job in jobs))
    return hashlib.sha256(requests.encode()).hexdigest()[:16]


def submission_id(run: str, token: str, again: int) -> str:
    """The Ray job's own name; `again` counts those of the same jobs that are over already."""
    # https://docs.ray.io/en/latest/cluster/running-applications/job-submission/api.html
    return f"stoker-{dashed_name(run)}-{token}" + (f"-{again}" if again else "")


def request(
    site: Site, settings: RaySettings, *, id: str, folder: str, run: str, shares: bool, package: str
) -> dict[str, Any]:
    """The body of the request that starts a program."""
    document_path = f"{folder}/{DOCUMENT}" if shares else rayorders.uri_of(rayorders.package_of(id, 0))
    command = (
        f"exec {shlex.quote(settings.get('python', 'python'))} -m stoker.backends.ray.job {shlex.quote(document_path)}"
    )
    if shares and site.bundle:
        bundle = shlex.quote(site.bundle)
        command = f'export PYTHONPATH={bundle}"${{PYTHONPATH:+:$PYTHONPATH}}"; {command}'
    return {
        "entrypoint": command,
        "entrypoint_num_cpus": 0,
        "submission_id": id,
        "metadata": {"stoker.run": run, "stoker.home": site.scratch, "stoker.folder": folder},
        "runtime_env": _program_runtime_env(settings, package),
    }


def _program_runtime_env(settings: RaySettings, package: str) -> dict[str, Any]:
    """That of the program itself. Where files are not shared, it opens the artifact store as the steps do: with the
    cluster's own credentials, or by variables that the person gave."""
    if not package:
        return {}
    variables = runtime_env(settings, "").get("env_vars")
    return {"py_modules": [package], **({"env_vars": variables} if variables else {})}
