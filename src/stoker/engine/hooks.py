"""Has the hooks of steps and of the run called by workers, and says of those that failed."""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.observer import Observer
from stoker.core.plan import StepPlan
from stoker.engine.doing import Policy
from stoker.engine.jobs import Jobs, News
from stoker.engine.outcomes import told
from stoker.engine.recorder import Recorder


class Hooks:
    """The hooks of one run; the driver runs no user code."""

    def __init__(self, jobs: Jobs, recorder: Recorder, observer: Observer, policy: Policy) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._observer = observer
        self._policy = policy

    def of_step(self, key: str, which: str, step: StepPlan, facts: Mapping[str, Any]) -> None:
        """Call a step's hook; news of it come from its backend."""
        status = "succeeded" if which == "on_success" else "failed"
        self._jobs.hook(key, which, step, told(self._policy.pipeline, key, status, facts))

    def of_run(self, status: str, step: StepPlan | None, facts: Mapping[str, Any]) -> bool:
        """Call the pipeline's own hook, where `step` runs; whether there is one to wait for."""
        which = "on_success" if status == "succeeded" else "on_failure"
        if which not in self._policy.hooks or step is None:
            return False
        facts = facts if status == "failed" else {}
        step = attrs.evolve(step, hooks=self._policy.hooks)
        self._jobs.hook("", which, step, told(self._policy.pipeline, "", status, facts))
        return True

    def over(self, news: News) -> bool:
        """Whether a hook is over; one that failed is recorded and told, and changes nothing."""
        if not (news.over or news.status.lost):
            return False
        if news.status.state != "succeeded":
            error = (news.status.result or {}).get("error") or {}
            message = error.get("message") or news.status.message or "its process ended"
            self._recorder.event("hook-failed", news.key, {"hook": news.hook, "message": message})
            self._observer.said(f"{news.key or 'pipeline'}: its {news.hook} hook failed: {message}")
        return True
