"""Ray: a run is one Ray job, whose program in the cluster runs each step as a task as it becomes ready.

What is sent is decided in `tasks`, and what is refused in `check`; `platform` sends and follows it, asking the
dashboard (`jobs`) and hearing what the program tells (`log`). The program is `backends.ray.job`.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.base.watched import Watched
from stoker.backends.ray import check as raycheck
from stoker.backends.ray import tasks as raytasks
from stoker.backends.ray.jobs import Jobs, is_loopback
from stoker.backends.ray.platform import ASKED, RayPlatform
from stoker.backends.ray.settings import RaySettings
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan


class RayBackend(Watched):
    """Runs jobs on one Ray cluster."""

    name = "ray"
    keeps_secrets: Literal[True] = True
    leaves_out: Literal["node"] = "node"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        settings = RaySettings(**options)
        self._site = site
        self._options = dict(options)
        self._jobs = Jobs(settings, os.environ)
        self._shares = bool(settings.get("shares_files", is_loopback(self._jobs.address)))
        super().__init__(RayPlatform(site, self._options, self._jobs, shares=self._shares))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Ray cannot give a step, and how it takes the rest; the cluster is not asked."""
        yield from raycheck.check(step, self._options, self._site, shares=self._shares)

    def prove(self, steps: Sequence[StepPlan]) -> Iterator[Finding]:
        """What the cluster's nodes can never give; asks the cluster, over a connection of its own."""
        jobs = Jobs(RaySettings(**self._options), os.environ)
        try:
            yield from raycheck.prove(steps, self._options, jobs, shares=self._shares)
        finally:
            jobs.close()

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether the cluster has another node for a step; asks it, over a connection of its own."""
        jobs = Jobs(RaySettings(**self._options), os.environ, patience=ASKED)
        try:
            return raycheck.has_other_place(step, self._options, jobs, avoid)
        finally:
            jobs.close()

    def render(self, job: Job) -> Mapping[str, Any]:
        """The request, and the document that the program in the cluster reads; jobs that go together share both."""
        token = raytasks.token_of([job])
        root = self._site.scratch if self._shares else self._site.artifacts
        folder = f"{root}/ray/{job.run}/{token}"
        package = "" if self._shares else "gcs://_ray_pkg_stoker.zip"
        settings = RaySettings(**self._options)
        id = raytasks.submission_id(job.run, token, 0)
        shared: dict[str, Any] = {"folder": folder, "shares": self._shares}
        steps = raytasks.entries([job], self._site, self._options, package=package, sealed={}, **shared)
        shared |= {"id": id, "run": job.run}
        return {
            "address": self._jobs.address,
            "request": raytasks.request(self._site, settings, package=package, **shared),
            "document": raytasks.document(steps, self._site, self._options, token=token, **shared),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that writes the document and submits the Ray job over the dashboard's API."""
        from stoker.backends.ray.byhand import script

        token = str(RaySettings(**self._options).get("token", ""))
        return script(job, request, shares=self._shares, token=token)
