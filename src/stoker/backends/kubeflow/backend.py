"""Kubeflow Pipelines as a backend of one run: the steps of a run are the tasks of one pipeline there.

What is sent is decided in `requests` and `compile`, and what is refused in `check`; `platform` starts and follows it.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, Literal, Mapping, Sequence

from stoker.backends.base.secrets import missing_source, source_fix
from stoker.backends.base.watched import Watched
from stoker.backends.kubeflow import check as kubeflowcheck
from stoker.backends.kubeflow import requests
from stoker.backends.kubeflow.api import KubeflowApi, address_of, named_host
from stoker.backends.kubeflow.platform import KubeflowPlatform
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.core.codec import to_json
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan, reporter_of


class KubeflowBackend(Watched):
    """Runs the steps of one run as tasks of one pipeline."""

    name = "kubeflow"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        self._pipeline = KubeflowPlatform(site, self._options, KubeflowApi(KubeflowSettings(**options), os.environ))
        super().__init__(self._pipeline)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Kubeflow Pipelines cannot give a step; the endpoint is not asked."""
        yield from kubeflowcheck.check(step, self._options, self._site)
        yield from self._endpoint(step)

    def _endpoint(self, step: StepPlan) -> Iterable[Finding]:
        """The endpoint, and what it is to be shown, where they are not here."""
        settings = KubeflowSettings(**self._options)
        try:
            host = address_of(settings, os.environ)
        except SettingsError as error:
            why = "runs are sent to the endpoint"
            yield reporter_of(step).error(
                kubeflowcheck.ENDPOINT, "has nowhere to run: " + error.message, why, error.fix
            )
            return
        for field in ("token", "password"):
            source = str(settings.get(field, ""))
            missing = missing_source(source) if source else ""
            if missing:
                what = f"is sent to {host}, whose {field} is not there: {missing}"
                why = "a run that is started so fails with its first step"
                yield reporter_of(step).warning(kubeflowcheck.LOGIN, what, why, source_fix(source))

    def render(self, job: Job) -> Mapping[str, Any]:
        """The order that the step's pod takes, and for the run's first step the request that starts the run there."""
        root = f"{requests.root_of(self._site, job.run)}/0"
        steps = self._pipeline.expected() or [job.step]
        tasks = requests.tasks(steps, self._site, self._options, run=job.run, root=root)
        task = tasks[job.step.key]
        document: dict[str, Any] = {
            "worker": requests.worker_place(self._site),
            "mailbox": f"{root}/{task.name}" + ("/0" if task.slots else ""),
            "order": to_json(requests.job_document(job, self._site)),
        }
        if steps[0].key == job.step.key:
            settings = KubeflowSettings(**self._options)
            document["request"] = requests.body(job.run, job.pipeline or job.run, tasks.values(), settings)
        return document

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script with the pipeline as YAML, which KFP's own command starts."""
        from stoker.backends.kubeflow.byhand import script

        settings = KubeflowSettings(**self._options)
        experiment = str(settings.get("experiment") or job.pipeline or "stoker")
        return script(job, request, host=named_host(settings, os.environ), experiment=experiment)

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps that may still run: each gets a task when the first of them is submitted."""
        self._pipeline.expect(steps)

    def settle(self, key: str, *, success: bool) -> None:
        """A step is settled: its task ends in the same way."""
        self._pipeline.settle(key, success=success)
