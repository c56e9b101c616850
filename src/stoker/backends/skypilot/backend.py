"""SkyPilot as a backend: clusters and managed jobs on any cloud, which the steps of a run share.

What is asked for is decided in `requests`, and what is refused in `check`; `platform` launches and follows it.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.base.secrets import credentials
from stoker.backends.base.watched import Watched
from stoker.backends.skypilot import check as skycheck
from stoker.backends.skypilot import requests
from stoker.backends.skypilot.command import SkyCommand
from stoker.backends.skypilot.platform import SkypilotPlatform
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.codec import to_json
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan

OF_THIS_MACHINE = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CA_BUNDLE",
)
"""Variables that name files of this machine."""


class SkypilotBackend(Watched):
    """Runs jobs on machines that SkyPilot finds."""

    name = "skypilot"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        settings = SkypilotSettings(**options)
        variables = credentials(site.artifacts, os.environ)
        self._secrets = {name: text for name, text in variables.items() if name not in OF_THIS_MACHINE}
        sky = SkyCommand(settings, os.environ)
        self._machines = SkypilotPlatform(site, self._options, sky, secrets=self._secrets)
        super().__init__(self._machines)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What SkyPilot cannot give a step; nobody is asked."""
        yield from skycheck.check(step, self._options, self._site)
        yield from skycheck.missing_secrets(step, self._options, os.environ)

    def prove(self, steps: Sequence[StepPlan]) -> Iterator[Finding]:
        """The choice and its price by the user's own catalog, and what is dearer than allowed."""
        yield from skycheck.prove(steps, self._options)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The task, the command that launches it, and the order that its program takes; of a request that `check`
        refuses, why."""
        try:
            return self._request(job)
        except SettingsError as error:
            return {"refused": error.message}

    def _request(self, job: Job) -> dict[str, Any]:
        settings = settings_of(job.step, SkypilotSettings, self._options)
        task = requests.task_of(job.step, self._site, self._options, secrets=tuple(self._secrets))
        secrets = tuple(task.get("secrets", ()))
        managed = requests.is_managed(job.step, self._options)
        shape = requests.shape_of(task, managed=managed)
        name = str(settings.get("cluster_name") or f"{requests.prefix_of(job.run)}{shape}-0")
        root = f"{requests.root_of(self._site, job.run)}/{shape}-0"
        shares = bool(settings.get("shares_files"))
        order = requests.job_document(job, self._site, f"{root}/gang-0", shares=shares, token=requests.PLACEHOLDER)
        return {
            "command": ["sky", *requests.launch_words(name, "TASK", settings, managed=managed, secrets=secrets)],
            "task": requests.named_task(task, name, str(settings.get("task_name", "")), root),
            "worker": requests.worker_place(self._site),
            "order": to_json(order),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script with the task, which SkyPilot's own command launches."""
        from stoker.backends.skypilot.byhand import script

        return script(job, request, sky=str(SkypilotSettings(**self._options).get("sky", "sky")))

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps that may still run: clusters like theirs are kept for them."""
        self._machines.expect(steps)

    def settle(self, key: str, *, success: bool) -> None:
        """A step is settled."""
        self._machines.settle(key)
