"""SageMaker: a step is a training job, and a gang one of several instances.

`requests` makes what is sent, `platform` sends and follows jobs through `client`, and `start` is what their containers
run first.
"""

from __future__ import annotations

from typing import Any, Iterable, Literal, Mapping

from stoker.backends.base.watched import Watched
from stoker.backends.sagemaker import requests
from stoker.backends.sagemaker.check import check
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.platform import SagemakerPlatform, passed
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
        folder = str(request["Environment"][requests.JOB])
        return {"job": request, "document": requests.document(job, self._site, folder)}

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that sends the job with the AWS command line."""
        from stoker.backends.sagemaker.byhand import script

        return script(job, request, settings=SagemakerSettings(**self._options))
