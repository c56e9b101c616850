"""Where a job lies in the artifact store, and what its containers read there: pure.

A job has a folder, named by a token that follows from what is asked, with the document that the driver writes. The
containers leave their logs, results and samples there (`base.storeprogram`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shlex
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.aws.api import AwsSettings, command_line
from stoker.backends.base.adoption import about
from stoker.backends.base.leasing import requested_lease, samples_file
from stoker.backends.base.messages import boot_spec, gang_task, nodes_of, request_digest, with_copies
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site
from stoker.core.protocol import Topology
from stoker.core.words import dashed_name

CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a container; they are copied to the artifact store."""
DOCUMENT: Final = "jobs.json.gz"
JOB: Final = "STOKER_JOB"
WORKER: Final = "STOKER_WORKER"
LATER: Final = 120.0
"""Seconds by which AWS's limit is later than the step's own, which the worker keeps and which leaves a result: AWS's is
for a container in which nothing answers any more."""
TAG: Final = "stoker"
"""The tag of all that Stoker makes."""
RUN_TAG: Final = "stoker-run"
TOKEN_TAG: Final = "stoker-token"
"""The tag that a job's folder is named by."""
PASSED: Final = ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Variables of the driver by which the containers find the artifact store: no credentials, which anybody could read who
may describe the job. They have those of their role."""


def passed(site: Site) -> dict[str, str]:
    """The driver's variables by which a container finds the artifact store."""
    names = PASSED if site.artifacts.startswith(("s3://", "s3a://")) else ()
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def token_of(jobs: Sequence[Job], salt: int = 0) -> str:
    """The same for the same jobs, so that a request without an answer is found again."""
    text = "\n".join([*sorted(f"{job.name} {request_digest(job)}" for job in jobs), str(salt)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tags_of(job: Job, token: str) -> dict[str, str]:
    """What a job is known by."""
    return {
        TAG: "job",
        RUN_TAG: tag_text(job.run),
        TOKEN_TAG: token,
        "stoker-step": tag_text(job.step.name),
        "stoker-attempt": str(job.attempt),
    }


def tag_text(text: str) -> str:
    """A text as the value of a tag: https://docs.aws.amazon.com/batch/latest/userguide/using-tags.html and
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Tag.html"""
    return re.sub(r"[^\w\s.:/=+@-]", "-", text)[:256]


@attrs.frozen(kw_only=True)
class JobPlaces:
    """Where a service's jobs have their folders, and what their containers are told."""

    name: str
    """Of the folder in the artifact store in which the service has its own."""
    grace: float
    """Seconds for a step to end after SIGTERM."""
    topology: str | Topology = "stoker"
    """How the nodes of a gang find each other."""

    def root(self, artifacts: str) -> str:
        """The folder of all jobs."""
        return f"{artifacts.removeprefix('file://')}/{self.name}"

    def folder(self, artifacts: str, run: str, token: str) -> str:
        """The folder of a job."""
        return f"{self.root(artifacts)}/{dashed_name(run)}/{token}"

    def worker(self, site: Site) -> str:
        """Where the archive with Stoker's worker lies, by its digest; empty where the images have it."""
        return f"{self.root(site.artifacts)}/{site.bundle.rstrip('/').rpartition('/')[2]}.zip" if site.bundle else ""

    def samples(self, job: Job, site: Site) -> tuple[str, str]:
        """The file in which a job's devices are accounted for, as its container calls it and as this machine does."""
        there = samples_file(job, site, self.name)
        return f"/tmp/stoker-{os.path.basename(there)}", there

    def document(self, jobs: Sequence[Job], site: Site, folder: str) -> dict[str, Any]:
        """The document of a job: what a later driver must know of it, and what its containers are told."""
        entries = [self._entry(one, site, folder) for one in jobs]
        return {"jobs": [about(one) for one in jobs], "nodes": nodes_of(jobs[0]), "entries": entries}

    def _entry(self, job: Job, site: Site, folder: str) -> Any:
        """What one container, or the nodes of a gang, are told."""
        lease = requested_lease(job, samples=self.samples(job, site)[0])
        gang = gang_task(job, folder, self.topology, token=token_of([job])) if nodes_of(job) > 1 else None
        own = attrs.evolve(job, secrets={})
        return to_json(
            with_copies(boot_spec(own, site, checkpoints=CHECKPOINTS, grace=self.grace, lease=lease, gang=gang))
        )


def packed(text: Mapping[str, Any]) -> bytes:
    """A document as the containers read it: the same bytes for the same document."""
    return gzip.compress(json.dumps(text, separators=(",", ":")).encode(), 6, mtime=0)


# By hand


def lines_by_hand(
    job: Job, document: Mapping[str, Any], settings: AwsSettings, *, folder: str, worker: str
) -> Iterator[str]:
    """The lines of a script that leave a job's document in the artifact store; its other files go into "$here"."""
    from stoker.backends.base.byhand import document_lines, input_lines, needs, needs_command, stop

    yield from input_lines(job.key, document["entries"][0]["job"]["inputs"])
    yield needs_command("aws", "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html")
    aws, what = command_line(settings), "Stoker's worker, which the first run puts there"
    if worker.startswith("s3://"):
        yield f"{aws} s3 ls {shlex.quote(worker)} >/dev/null || {stop(f'missing: {worker}, {what}')}"
    elif worker:
        yield needs(worker, what)
    yield "here=$(mktemp -d)"
    yield from document_lines('"$here"/jobs.json', {**document, "jobs": []})
    yield f'gzip -n "$here"/jobs.json && {_copy(aws, folder)}'


def _copy(aws: str, folder: str) -> str:
    """A command that brings the document to the artifact store."""
    target = shlex.quote(f"{folder}/{DOCUMENT}")
    if folder.startswith("s3://"):
        return f'{aws} s3 cp "$here"/jobs.json.gz {target}'
    if "://" in folder:
        from stoker.backends.base.byhand import stop

        return stop(f"missing: {folder}/{DOCUMENT}: copy it there with the store's own command, from this folder")
    return f'mkdir -p {shlex.quote(folder)} && cp "$here"/jobs.json.gz {target}'
