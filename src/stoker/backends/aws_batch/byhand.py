"""The script by which a person sends a rendered job by hand: its document, its definition and the job, by AWS's command
line."""

from __future__ import annotations

import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.aws_batch.jobs import DOCUMENT, JOB, WORKER
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.aws import command_line
from stoker.backends.base.byhand import document_lines, input_lines, needs, needs_command, stop, subshell
from stoker.core.plan import Job


def script(job: Job, request: Mapping[str, Any], *, settings: BatchSettings) -> str:
    """The script."""
    return subshell(_lines(job, request, settings))


def _lines(job: Job, request: Mapping[str, Any], settings: BatchSettings) -> Iterator[str]:
    yield from input_lines(job.key, request["document"]["entries"][0]["job"]["inputs"])
    yield needs_command("aws", "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html")
    aws = command_line(settings)
    submission = request["job"]
    overrides = submission.get("containerOverrides")
    if overrides is None:
        overrides = submission["nodeOverrides"]["nodePropertyOverrides"][0]["containerOverrides"]
    places = {row["name"]: row["value"] for row in overrides["environment"]}
    worker, folder = places[WORKER], places[JOB]
    if worker.startswith("s3://"):
        what = stop(f"missing: {worker}, Stoker's worker, which the first run puts there")
        yield f"{aws} s3 ls {shlex.quote(worker)} >/dev/null || {what}"
    elif worker:
        yield needs(worker, "Stoker's worker, which the first run puts there")
    yield "here=$(mktemp -d)"
    # A token that no driver takes for one of its own.
    tags = {name: text for name, text in submission["tags"].items() if name != "stoker-token"}
    yield from document_lines('"$here"/jobs.json', {**request["document"], "jobs": []})
    yield f'gzip -n "$here"/jobs.json && {_copy(aws, folder)}'
    yield from document_lines('"$here"/definition.json', request["definition"])
    yield from document_lines('"$here"/submission.json', {**submission, "jobName": "by-hand", "tags": tags})
    yield f'{aws} batch register-job-definition --cli-input-json file://"$here"/definition.json'
    yield f'{aws} batch submit-job --cli-input-json file://"$here"/submission.json'
    yield 'rm -r "$here"'
    state, result = f"{aws} batch describe-jobs --jobs ID", f"{folder}/result-0-0.json"
    yield f"echo {shlex.quote(f'its state: {state}')}; echo {shlex.quote(f'its result: {result}')}"


def _copy(aws: str, folder: str) -> str:
    """A command that brings the document to the artifact store."""
    target = shlex.quote(f"{folder}/{DOCUMENT}")
    if folder.startswith("s3://"):
        return f'{aws} s3 cp "$here"/jobs.json.gz {target}'
    if "://" in folder:
        return stop(f"missing: {folder}/{DOCUMENT}: copy it there with the store's own command, from this folder")
    return f'mkdir -p {shlex.quote(folder)} && cp "$here"/jobs.json.gz {target}'
