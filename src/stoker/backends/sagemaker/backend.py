"""SageMaker: a step is a training job, and a gang one of several instances.

`requests` makes what is sent, `platform` sends and follows jobs through `client`, and `start` is what their containers
run first.
"""

from __future__ import annotations

import shlex
from typing import Any, Iterable, Iterator, Literal, Mapping

from stoker.backends.aws.api import command_line
from stoker.backends.aws.jobs import JOB, TOKEN_TAG, WORKER, lines_by_hand, passed
from stoker.backends.base.watched import Watched
from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.check import check
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.platform import SagemakerPlatform
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan


class SagemakerBackend(Watched):
    """Runs jobs in one account and region."""

    name = "sagemaker"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        super().__init__(SagemakerPlatform(site, self._options, SagemakerClient(SagemakerSettings(**options))))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What SageMaker cannot give a step, and how it takes the rest; the account is not asked."""
        return check(step, self._options, self._site)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The arguments of CreateTrainingJob, and the document that the container reads."""
        request = requests.training_job(job, self._site, self._options, passed=passed(self._site))
        folder = str(request["Environment"][JOB])
        return {"job": request, "document": requests.PLACES.document([job], self._site, folder)}

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that sends the job with the AWS command line."""
        from stoker.backends.base.byhand import subshell

        return subshell(_lines_by_hand(job, request, SagemakerSettings(**self._options)))


def _lines_by_hand(job: Job, request: Mapping[str, Any], settings: SagemakerSettings) -> Iterator[str]:
    from stoker.backends.base.byhand import document_lines, file_lines

    aws, sent = command_line(settings), request["job"]
    folder, worker = sent["Environment"][JOB], sent["Environment"][WORKER]
    yield from lines_by_hand(job, request["document"], settings, folder=folder, worker=worker)
    channel = sent["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    for name, text in requests.programs().items():
        yield from file_lines(f'"$here"/{name}', text.decode())
        yield f'{aws} s3 cp "$here"/{name} {shlex.quote(f"{channel}{name}")}'
    # A name and tags that no driver takes for its own.
    tags = [tag for tag in sent["Tags"] if tag["Key"] != TOKEN_TAG]
    yield from document_lines('"$here"/job.json', {**sent, "TrainingJobName": "BY-HAND", "Tags": tags})
    yield 'sed -i.old "s/BY-HAND/by-hand-$(date +%s)/" "$here"/job.json'
    yield f'{aws} sagemaker create-training-job --cli-input-json file://"$here"/job.json'
    yield 'rm -r "$here"'
