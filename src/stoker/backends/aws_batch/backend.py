"""AWS Batch: a step is a job, a fan-out an array, and a gang a multi-node parallel job.

`definitions` makes the requests, and `platform` sends and follows jobs through `client`.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import Any, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.aws.api import command_line
from stoker.backends.aws.jobs import JOB, TOKEN_TAG, WORKER, lines_by_hand, token_of
from stoker.backends.aws_batch.check import check, choice_of
from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.definitions import job_definition, submission
from stoker.backends.aws_batch.platform import PLACES, BatchPlatform, batch_request, job_name
from stoker.backends.aws_batch.queues import QueueChoice
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import settings_of
from stoker.backends.base.watched import Watched
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan

UNKNOWN_QUEUE = "the queue that holds the step, of those of the account"


class BatchBackend(Watched):
    """Runs jobs in one account and region."""

    name = "batch"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        super().__init__(BatchPlatform(site, self._options, BatchClient(BatchSettings(**options))))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What AWS Batch cannot give a step, and how it takes the rest; the account is not asked."""
        return check(step, self._options, self._site)

    def prove(self, steps: Sequence[StepPlan]) -> Iterable[Finding]:
        """What the account's queues can never give these steps; asks it."""
        from stoker.backends.aws_batch.account import prove

        with contextlib.closing(BatchClient(BatchSettings(**self._options))) as client:
            yield from prove(client, self._options, steps)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The job definition, the submission, and the document that the container reads."""
        choice = choice_of(job.step, settings_of(job.step, BatchSettings, self._options))
        if not isinstance(choice, QueueChoice):
            choice = QueueChoice(queue=UNKNOWN_QUEUE)
        token = token_of([job])
        request = batch_request([job], self._site, self._options, choice, token=token)
        definition = job_definition(request)
        folder = PLACES.folder(self._site.artifacts, job.run, token)
        return {
            "definition": definition,
            "job": submission(request, choice.queue, definition["jobDefinitionName"], name=job_name([job])),
            "document": PLACES.document([job], self._site, folder),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that sends the job with the AWS command line."""
        from stoker.backends.base.byhand import subshell

        return subshell(_lines_by_hand(job, request, BatchSettings(**self._options)))


def _lines_by_hand(job: Job, request: Mapping[str, Any], settings: BatchSettings) -> Iterator[str]:
    from stoker.backends.base.byhand import document_lines

    aws = command_line(settings)
    submission = request["job"]
    overrides = submission.get("containerOverrides")
    if overrides is None:
        overrides = submission["nodeOverrides"]["nodePropertyOverrides"][0]["containerOverrides"]
    places = {row["name"]: row["value"] for row in overrides["environment"]}
    folder = places[JOB]
    yield from lines_by_hand(job, request["document"], settings, folder=folder, worker=places[WORKER])
    # A token that no driver takes for one of its own.
    tags = {name: text for name, text in submission["tags"].items() if name != TOKEN_TAG}
    yield from document_lines('"$here"/definition.json', request["definition"])
    yield from document_lines('"$here"/submission.json', {**submission, "jobName": "by-hand", "tags": tags})
    yield f'{aws} batch register-job-definition --cli-input-json file://"$here"/definition.json'
    yield f'{aws} batch submit-job --cli-input-json file://"$here"/submission.json'
    yield 'rm -r "$here"'
    state, result = f"{aws} batch describe-jobs --jobs ID", f"{folder}/result-0-0.json"
    yield f"echo {shlex.quote(f'its state: {state}')}; echo {shlex.quote(f'its result: {result}')}"
