"""Has workers call the hooks of steps and of the run, and reports those that failed."""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.observer import Observer
from stoker.core.plan import StepPlan
from stoker.engine.execution import Policy
from stoker.engine.jobs import JobChange, RunJobs
from stoker.engine.outcomes import hook_facts
from stoker.engine.recorder import Recorder


class Hooks:
    """The hooks of one run. The driver itself runs no user code."""

    def __init__(self, jobs: RunJobs, recorder: Recorder, observer: Observer, policy: Policy) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._observer = observer
        self._policy = policy

    def call_for_step(self, key: str, which: str, step: StepPlan, facts: Mapping[str, Any]) -> None:
        """Call a step's hook; its backend reports how it goes."""
        status = "succeeded" if which == "on_success" else "failed"
        self._jobs.call_hook(key, which, step, hook_facts(self._jobs.run, self._policy.pipeline, key, status, facts))

    def call_for_run(self, status: str, step: StepPlan | None, facts: Mapping[str, Any]) -> bool:
        """Call the pipeline's own hook, on the backend of `step`; whether there is one to wait for."""
        which = "on_success" if status == "succeeded" else "on_failure"
        if which not in self._policy.hooks or step is None:
            return False
        facts = facts if status == "failed" else {}
        step = attrs.evolve(step, hooks=self._policy.hooks)
        self._jobs.call_hook("", which, step, hook_facts(self._jobs.run, self._policy.pipeline, "", status, facts))
        return True

    def record_end(self, update: JobChange) -> bool:
        """Whether a hook is over; one that failed is recorded and reported, and changes nothing else."""
        if not (update.is_over or update.status.lost):
            return False
        if update.status.state != "succeeded":
            error = None if update.status.result is None else update.status.result.error
            message = (error.message if error else "") or update.status.message or "its process ended"
            self._recorder.record_event("hook-failed", update.key, {"hook": update.hook, "message": message})
            self._observer.message(f"{update.key or 'pipeline'}: its {update.hook} hook failed: {message}")
        return True
