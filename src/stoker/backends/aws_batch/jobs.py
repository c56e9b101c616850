"""From jobs to what AWS Batch is sent and what their containers read: pure.

A step is a job, the elements of a fan-out that are alike are an array, and a gang is a multi-node parallel job. What
the containers are told is a document in a folder of the artifact store: a submission takes 8 KiB of variables.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.aws_batch.check import request_of
from stoker.backends.aws_batch.definitions import TAG, BatchRequest, job_definition, plain_name, submission
from stoker.backends.aws_batch.queues import QueueChoice
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base import storeprogram
from stoker.backends.base.adoption import job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import requested_lease
from stoker.backends.base.messages import boot_spec, gang_task, nodes_of, request_digest, with_copies
from stoker.backends.kubernetes.request.check import image_environment
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site
from stoker.core.resources import ResourceSettings
from stoker.core.words import dashed_name

GRACE: Final = 28.0
"""Seconds for a step to end after SIGTERM: ECS gives a container 30 before SIGKILL, where its instance's
`ECS_CONTAINER_STOP_TIMEOUT` does not say otherwise.
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-agent-config.html"""
LATER: Final = 120.0
"""Seconds by which AWS Batch's time-out is later than the step's own, which the worker keeps and which leaves a result:
AWS Batch's is for a container in which nothing answers any more."""
NEURON_CACHE: Final = "neuron-cache"
"""The folder of compiled programs for Neuron, beside the objects of an artifact store on S3."""
ELEMENTS: Final = 10_000
"""Jobs of an array: https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html"""
CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a container; they are copied to the artifact store."""
DOCUMENT: Final = "jobs.json.gz"
JOB: Final = "STOKER_JOB"
WORKER: Final = "STOKER_WORKER"
TOKEN_TAG: Final = "stoker-token"
"""The tag that a job's folder is named by."""
RUN_TAG: Final = "stoker-run"
PASSED: Final = ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Variables of the driver by which the containers find the artifact store: no credentials, which anybody could read who
may describe the job. They have those of their role."""
_RUN_IN_NAME: Final = 60
_STEP_IN_NAME: Final = 40


def token_of(jobs: Sequence[Job], salt: int = 0) -> str:
    """The same for the same jobs, so that a submission without an answer is found again."""
    text = "\n".join([*sorted(f"{job.name} {request_digest(job)}" for job in jobs), str(salt)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_prefix(run: str) -> str:
    """How the names of all jobs of a run begin."""
    return f"stoker-{plain_name(run)[:_RUN_IN_NAME]}-"


def job_name(jobs: Sequence[Job], salt: int = 0) -> str:
    """The name of a job: by its run it is found again, and by its end told from others."""
    step = plain_name(jobs[0].step.name)[:_STEP_IN_NAME]
    return f"{run_prefix(jobs[0].run)}{step}-{token_of(jobs, salt)}"


def root_of(artifacts: str) -> str:
    """The folder in the artifact store in which the backend has its own."""
    return f"{artifacts.removeprefix('file://')}/batch"


def folder_of(artifacts: str, run: str, token: str) -> str:
    """The folder of a job in the artifact store."""
    return f"{root_of(artifacts)}/{dashed_name(run)}/{token}"


def worker_place(site: Site) -> str:
    """Where the archive with Stoker's worker lies, by its digest; empty where the images have it."""
    if not site.bundle:
        return ""
    return f"{root_of(site.artifacts)}/{site.bundle.rstrip('/').rpartition('/')[2]}.zip"


def samples_names(job: Job, site: Site) -> tuple[str, str]:
    """The file in which a job's devices are accounted for, as its container calls it and as this machine does."""
    name = f"samples-batch-{hashlib.sha256(job.name.encode()).hexdigest()[:16]}.jsonl"
    return f"/tmp/stoker-{name}", f"{site.scratch}/{name}"


@functools.cache
def program() -> str:
    """The text of the container's program."""
    return Path(storeprogram.__file__).read_text(encoding="utf-8")


# The document


def entry(job: Job, site: Site, folder: str) -> dict[str, Any]:
    """What one container, or the nodes of a gang, are told."""
    lease, gang = None, None
    if job.kind == "step" and job.step.settings.resources.gpus_per_node:
        lease = requested_lease(job, samples=samples_names(job, site)[0])
    if nodes_of(job) > 1:
        gang = gang_task(job, folder, "aws_batch", token=token_of([job]))
    spec = boot_spec(attrs.evolve(job, secrets={}), site, checkpoints=CHECKPOINTS, grace=GRACE, lease=lease, gang=gang)
    document: dict[str, Any] = to_json(with_copies(spec))
    return document


def document(jobs: Sequence[Job], site: Site, folder: str) -> dict[str, Any]:
    """The document of a job: what a later driver must know of it, and what its containers are told."""
    about = [
        {"key": one.key, "kind": job_kind(one), "attempt": one.attempt, "digest": request_digest(one)} for one in jobs
    ]
    return {"jobs": about, "nodes": nodes_of(jobs[0]), "entries": [entry(one, site, folder) for one in jobs]}


def packed(text: Mapping[str, Any]) -> bytes:
    """A document as the containers read it: the same bytes for the same document."""
    return gzip.compress(json.dumps(text, separators=(",", ":")).encode(), 6, mtime=0)


# The requests


def tag_text(text: str) -> str:
    """A text as the value of a tag: https://docs.aws.amazon.com/batch/latest/userguide/using-tags.html"""
    return re.sub(r"[^\w\s.:/=+@-]", "-", text)[:256]


def batch_request(
    jobs: Sequence[Job],
    site: Site,
    options: Mapping[str, Any],
    choice: QueueChoice,
    *,
    token: str,
    passed: Mapping[str, str],
) -> BatchRequest:
    """What a job on AWS Batch follows from; `passed` are the driver's variables of `PASSED`."""
    job = jobs[0]
    is_step = job.kind == "step"
    settings = settings_of(job.step, BatchSettings, options)
    limit = job.step.settings.timeout if is_step else None
    return request_of(
        job.step,
        settings,
        choice,
        resources=job.step.settings.resources if is_step else ResourceSettings(),
        command=(settings.get("executable", "python3"), "-c", program()),
        environment=image_environment(job.step),
        job_environment={
            **passed,
            JOB: folder_of(site.artifacts, job.run, token),
            WORKER: worker_place(site),
        },
        labels={
            TAG: "job",
            RUN_TAG: tag_text(job.run),
            TOKEN_TAG: token,
            "stoker-step": tag_text(job.step.name),
            "stoker-attempt": str(job.attempt),
        },
        nodes=nodes_of(job),
        elements=len(jobs),
        seconds=limit + LATER if limit else 0.0,
        cache=f"{site.artifacts.rstrip('/')}/{NEURON_CACHE}" if site.artifacts.startswith("s3://") else "",
    )


def requests(request: BatchRequest, queue: str, definition: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of RegisterJobDefinition and of SubmitJob."""
    return job_definition(request), submission(request, queue, definition, name=name)
