"""AWS Batch: a step is a job, a fan-out an array, and a gang a multi-node parallel job.

`definitions` makes the requests, `platform` sends and follows jobs through `client`, and `program` is what their
containers run.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, Literal, Mapping, Sequence

from stoker.backends.aws_batch import jobs as batchjobs
from stoker.backends.aws_batch.check import check, choice_of
from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.definitions import job_definition, submission
from stoker.backends.aws_batch.platform import BatchPlatform
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
        from stoker.backends.aws_batch.prove import prove

        client = BatchClient(BatchSettings(**self._options))
        try:
            yield from prove(client, self._options, steps)
        finally:
            client.close()

    def render(self, job: Job) -> Mapping[str, Any]:
        """The job definition, the submission, and the document that the container reads."""
        choice = choice_of(job.step, settings_of(job.step, BatchSettings, self._options))
        if not isinstance(choice, QueueChoice):
            choice = QueueChoice(queue=UNKNOWN_QUEUE)
        token = batchjobs.token_of([job])
        passed = {name: os.environ[name] for name in batchjobs.PASSED if os.environ.get(name)}
        if not self._site.artifacts.startswith(("s3://", "s3a://")):
            passed = {}
        request = batchjobs.batch_request([job], self._site, self._options, choice, token=token, passed=passed)
        definition = job_definition(request)
        name = batchjobs.job_name([job])
        folder = batchjobs.folder_of(self._site.artifacts, job.run, token)
        return {
            "definition": definition,
            "job": submission(request, choice.queue, definition["jobDefinitionName"], name=name),
            "document": batchjobs.document([job], self._site, folder),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that sends the job with the AWS command line."""
        from stoker.backends.aws_batch.byhand import script

        return script(job, request, settings=BatchSettings(**self._options))
