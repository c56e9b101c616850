"""The script by which a person sends a rendered job by hand: the channel's files and the job, by AWS's command line."""

from __future__ import annotations

import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.base.aws import command_line
from stoker.backends.base.byhand import document_lines, file_lines, input_lines, needs_command, stop, subshell
from stoker.backends.sagemaker.requests import DOCUMENT, JOB, TOKEN_TAG, WORKER, programs
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.plan import Job


def script(job: Job, request: Mapping[str, Any], *, settings: SagemakerSettings) -> str:
    """The script."""
    return subshell(_lines(job, request, settings))


def _lines(job: Job, request: Mapping[str, Any], settings: SagemakerSettings) -> Iterator[str]:
    yield from input_lines(job.key, request["document"]["entries"][0]["job"]["inputs"])
    yield needs_command("aws", "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html")
    aws = command_line(settings)
    sent = request["job"]
    worker, folder = sent["Environment"][WORKER], sent["Environment"][JOB]
    if worker:
        what = stop(f"missing: {worker}, Stoker's worker, which the first run puts there")
        yield f"{aws} s3 ls {shlex.quote(worker)} >/dev/null || {what}"
    yield "here=$(mktemp -d)"
    yield from document_lines('"$here"/jobs.json', {**request["document"], "jobs": []})
    yield f'gzip -n "$here"/jobs.json && {aws} s3 cp "$here"/jobs.json.gz {shlex.quote(f"{folder}/{DOCUMENT}")}'
    channel = sent["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    for name, text in programs().items():
        yield from file_lines(f'"$here"/{name}', text.decode())
        yield f'{aws} s3 cp "$here"/{name} {shlex.quote(f"{channel}{name}")}'
    # A name and tags that no driver takes for its own.
    tags = [tag for tag in sent["Tags"] if tag["Key"] != TOKEN_TAG]
    yield from document_lines('"$here"/job.json', {**sent, "TrainingJobName": "BY-HAND", "Tags": tags})
    yield 'sed -i.old "s/BY-HAND/by-hand-$(date +%s)/" "$here"/job.json'
    yield f'{aws} sagemaker create-training-job --cli-input-json file://"$here"/job.json'
    yield 'rm -r "$here"'
