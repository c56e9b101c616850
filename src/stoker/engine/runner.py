"""Makes a run happen: performs what the machine asks for, and tells it what became of it.

One thread, one loop: events in, actions out, everything that they change committed, then the jobs submitted, then a
wait for the next news. What a step depends on is recorded before the step starts.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Final, Mapping, Sequence

from stoker.backends.base.backend import RunningBackend, SharesKernel, capability
from stoker.core import events as ev
from stoker.core.errors import StokerError
from stoker.core.observer import Observer
from stoker.core.plan import JobStatus, StepPlan
from stoker.core.status import INPUT_ERROR, REFUSED, RunStatus
from stoker.engine.accounts import Accounts
from stoker.engine.doing import Doing, Policy
from stoker.engine.escalation import Escalation
from stoker.engine.growth import Growth
from stoker.engine.hooks import Hooks
from stoker.engine.inputs import Inputs
from stoker.engine.jobs import Jobs, News
from stoker.engine.keys import result_key
from stoker.engine.machine import Machine
from stoker.engine.outcomes import Witness, facts_of, shown
from stoker.engine.recorder import Recorder
from stoker.engine.tasks import element_task, step_task

HEARTBEAT: Final = 1.0
"""Seconds between looks at the run's row: is somebody asking for its end? And the proof that the driver lives."""


class Runner:
    """One run, from its plan to its end."""

    def __init__(
        self,
        *,
        run: str,
        recorder: Recorder,
        inputs: Inputs,
        backends: Mapping[str, RunningBackend],
        observer: Observer,
        policy: Policy,
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._inputs = inputs
        self._observer = observer
        self._policy = policy
        self._jobs = Jobs(run, backends, max_parallel=policy.max_parallel)
        self._pace = self._jobs.pace
        self._hooks = Hooks(self._jobs, recorder, observer, policy)
        self._escalation = Escalation(
            recorder, backends, observer, pipeline=policy.pipeline, remembers=policy.use_cache
        )
        self._accounts = Accounts(recorder, observer)
        here = [name for name, backend in backends.items() if capability(backend, SharesKernel)]
        self._witness = Witness(recorder.tail, here)
        self._machine = Machine(self._pace.capacities(), fail_fast=policy.fail_fast)
        self._steps: dict[str, StepPlan] = {}
        self._members: dict[str, tuple[StepPlan, int]] = {}
        self._fanouts: set[str] = set()
        self._doing: dict[str, Doing] = {}
        self.growth = Growth(recorder, inputs, observer, self._members, self._doing, self.tell)
        self._events: deque[ev.Event] = deque()
        self._submissions: list[ev.Submit] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._stops = 0
        self.status: RunStatus = "running"
        self._closing: RunStatus = "failed"
        self._failure: Mapping[str, Any] = {}
        # Called in the runner's thread for whoever waits for single steps.
        self.on_settled: Callable[[str, str], None] | None = None
        self._perform: dict[type, Callable[..., None]] = {
            ev.Prepare: self._prepare,
            ev.Expand: self._expand,
            ev.Submit: self._submissions.append,
            ev.Cancel: self._cancel,
            ev.Retrying: self._retrying,
            ev.Settled: self._settled,
            ev.Hook: self._hook,
            ev.Finished: self._finished,
        }

    # From outside, from any thread

    def post(self, work: Callable[[], None]) -> None:
        """Have something done in the runner's own thread."""
        self._posted.append(work)
        self._jobs.wake()

    def stop(self) -> None:
        """Ask for the end: the first time with grace, then without; safe in a signal handler."""
        self._stops += 1
        hard = self._stops > 1
        self._posted.append(lambda: self._stop(hard=hard))
        self._jobs.wake()

    def _stop(self, *, hard: bool) -> None:
        self._jobs.end_hooks(hard=hard)
        self.tell(ev.Stopped(hard=hard))

    def tell(self, event: ev.Event) -> None:
        """Put an event in line for the machine."""
        self._events.append(event)

    def outputs_of(self, key: str, name: str) -> Mapping[str, Any]:
        """A settled step's output; of a fan-out the list of its elements' outputs."""
        return self._inputs.output(key, name)

    def failure_of(self, key: str) -> str:
        """Why a step failed, in a sentence."""
        doing = self._doing.get(key)
        facts = doing.facts if doing is not None else {}
        return f"{facts.get('cause', '')}: {facts.get('message', '')}".strip(": ")

    def doing(self, key: str) -> Doing:
        """What is known of a step on its way, or at its end."""
        return self._doing[key]

    # Growth

    def add(self, steps: Sequence[StepPlan]) -> None:
        """Add planned steps; those that a plan holds, or one that a dynamic body just called."""
        tasks = []
        for step in steps:
            self._steps[step.key] = step
            if step.mapped:
                self._fanouts.add(step.key)
        for step in steps:
            tasks.append(step_task(step, self._fanouts, self._recorder.tried(step.key)))
        self._recorder.pending([step for step in steps if not self._recorder.is_kept(step.key)])
        self.tell(ev.Added(tasks=tuple(tasks)))

    def close(self, *, failed: bool = False) -> None:
        """Say that nothing is added any more."""
        self.tell(ev.Closed(failed=failed))

    # The loop

    def begin(self) -> None:
        """Send what can start now, so that it starts while the caller has something else to do before `loop`."""
        self._drain()

    def loop(self) -> RunStatus:
        """Run until the machine says that it is over; the run's last word is the caller's to record."""
        try:
            while not self._drain():
                self._wait()
        finally:
            self._recorder.flush()
            self._jobs.close()
        return self.status

    def _drain(self) -> bool:
        """Let the machine think until it has nothing more to say, commit, then submit; whether the run is over."""
        while self._posted:
            self._posted.popleft()()
        while self._events:
            event = self._events.popleft()
            for action in self._machine.handle(event, time.time()):
                self._perform[type(action)](action)
        self._recorder.flush()
        if self._submissions:
            submissions, self._submissions[:] = list(self._submissions), []
            for submission in submissions:
                self._submit(submission)
        return self.status != "running"

    def _wait(self) -> None:
        if not self._events:
            now = time.time()
            pause = min(HEARTBEAT, self._recorder.next_beat(HEARTBEAT))
            wake = self._machine.next_wake()
            self._jobs.wait(pause if wake is None else min(pause, wake - now))
        for news in self._jobs.news():
            self._heard(news)
        for paced in self._pace.changed():
            self.tell(paced)
        wake = self._machine.next_wake()
        if wake is not None and wake <= time.time():
            self.tell(ev.Ticked())
        if self._recorder.next_beat(HEARTBEAT) <= 0:
            self._beat()

    def _beat(self) -> None:
        asked = self._recorder.beat()
        if asked and self._stops < (2 if asked == "now" else 1):
            self._observer.said(f"run {self._run} is being cancelled")
            self._stops = 1 if asked == "now" else 0
            self.stop()
        self._observer.tick()

    # News from the backends

    def _heard(self, news: News) -> None:
        key, attempt, status = news.key, news.attempt, news.status
        if status.lines:
            self._recorder.wrote(key, attempt, status.lines)
            self._observer.wrote(key, attempt, status.lines)
        for kind, data in status.events:
            self._recorder.event(kind, key, data)
        if status.lease is not None:
            self._accounts.leased(key, self._parent(key), attempt, status.lease)
        if news.hook:
            self._hook_ended(news)
        elif status.lost:
            self._doing[key].facts.update(lost=attempt, message=status.message)
            self.tell(ev.Lost(key=key, attempt=attempt))
        elif news.over:
            self._ended(key, attempt, status)
        elif status.state == "queued" and status.message:
            self._accounts.waits(key, self._parent(key), status.message)
        elif status.started is not None:
            self.tell(ev.Began(key=key, attempt=attempt))

    def _ended(self, key: str, attempt: int, status: JobStatus) -> None:
        doing = self._doing[key]
        facts = doing.facts = facts_of(key, attempt, status, doing, self._witness)
        self._accounts.close(key, doing.step, status, facts)
        cause = facts["cause"]
        result = status.result or {}
        if not cause:
            self._pace.took(key in self._members, facts["ended"] - (facts["started"] or facts["ended"]))
        if result.get("left"):
            self._recorder.event("leftovers", key, {"processes": result["left"]})
        self._over(key, doing)
        if not cause:
            self._inputs.keep(key, facts["outputs"])
            self._escalation.worked(key)
        escalated = self._escalation.climb(key, self._parent(key), attempt, cause)
        self.tell(ev.Ended(key=key, attempt=attempt, cause=cause, escalated=escalated))

    # Performing

    def _step_of(self, key: str) -> tuple[StepPlan, int | None]:
        member = self._members.get(key)
        return member if member is not None else (self._steps[key], None)

    def _parent(self, key: str) -> str:
        return self._members[key][0].key if key in self._members else ""

    def _prepare(self, action: ev.Prepare) -> None:
        key = action.key
        step, index = self._step_of(key)
        kept = self._recorder.kept(key)
        if kept is not None:
            self._inputs.keep(key, kept)
            self._doing[key] = Doing(step, {}, "")
            self.tell(ev.Hit(key=key, kept=True))
            return
        try:
            step, inputs = self._escalation.start(key, step, self._inputs.bind(step, index))
            known = result_key(step, inputs, self._policy.environment)
        except StokerError as error:
            self._unready(key, step, error)
            return
        doing = self._doing[key] = Doing(step, inputs, known)
        if self._policy.use_cache and step.settings.cache:
            row = self._recorder.cached(known)
            if row is not None:
                doing.facts = {"outputs": row.outputs, "cached_from": row.origin}
                self._inputs.keep(key, row.outputs)
                self.tell(ev.Hit(key=key))
                return
        self.tell(ev.Prepared(key=key, escalated=self._escalation.begun(key, self._parent(key))))

    def _unready(self, key: str, step: StepPlan, error: StokerError) -> None:
        doing = self._doing[key] = Doing(step, {}, "")
        doing.facts = {"cause": INPUT_ERROR, "message": str(error), "error": {"message": str(error)}}
        self.tell(ev.Unready(key=key, cause=INPUT_ERROR))

    def _expand(self, action: ev.Expand) -> None:
        key = action.key
        step = self._steps[key]
        try:
            count = self._inputs.expand(step)
        except StokerError as error:
            self._unready(key, step, error)
            return
        self._doing[key] = Doing(step, {}, "")
        self._doing[key].facts = {"started": time.time()}
        tasks = []
        for index in range(count):
            member = f"{key}[{index}]"
            self._members[member] = (step, index)
            tasks.append(
                element_task(step, member, self._inputs.elements_of(step, index), self._recorder.tried(member))
            )
        self._recorder.expanded(key, count)
        self._observer.changed(key, "expanded", {"count": count})
        self.tell(ev.Expanded(key=key, tasks=tuple(tasks)))

    def _submit(self, action: ev.Submit) -> None:
        key = action.key
        doing = self._doing[key]
        step = doing.step
        member = key in self._members
        now = time.time()
        doing.facts = self._witness.begin(now)
        doing.ending = ""
        if not action.behind:
            parent = self._parent(key)
            self._recorder.running(key, action.attempt, started=now, parent=parent)
            self._observer.changed(key, "running", {"parent": parent, "attempt": action.attempt})
        try:
            self._jobs.submit(key, action.attempt, step, doing.inputs, element=member, behind=action.behind)
        except StokerError as error:
            doing.facts = {"attempt": action.attempt, "cause": REFUSED, "message": str(error), "ended": now}
            self._over(key, doing)
            self.tell(ev.Ended(key=key, attempt=action.attempt, cause=REFUSED))

    def _cancel(self, action: ev.Cancel) -> None:
        step, _ = self._step_of(action.key)
        if any(item.key == action.key for item in self._submissions):
            self._submissions[:] = [item for item in self._submissions if item.key != action.key]
            self.tell(ev.Ended(key=action.key, attempt=action.attempt, cause=action.cause))
            return
        self._recorder.event("cancel", action.key, {"cause": action.cause, "hard": action.hard})
        self._doing[action.key].ending = action.cause
        self._jobs.cancel(action.key, action.attempt, step, hard=action.hard)

    def _retrying(self, action: ev.Retrying) -> None:
        key = action.key
        self._gave_up(key, action.cause)
        facts: dict[str, Any] = {"attempt": action.attempt, "cause": action.cause}
        facts["wait"] = max(0.0, action.at - time.time())
        taken = self._escalation.taken(key, action.attempt, action.cause)
        if taken is not None:
            change, request = taken
            doing = self._doing[key]
            doing.step, doing.inputs = request.step, request.inputs
            doing.cache_key = result_key(doing.step, doing.inputs, self._policy.environment)
            facts["changes"] = [str(change)]
        self._recorder.event("retry", key, facts)
        self._observer.changed(key, "retrying", facts)

    def _gave_up(self, key: str, cause: str) -> None:
        """Record an attempt that was lost so often before it began that the machine counts it as over."""
        doing = self._doing.get(key)
        if doing is not None and "lost" in doing.facts:
            facts = doing.facts
            facts.update(attempt=facts.pop("lost"), cause=cause, started=facts["submitted"], ended=time.time())
            self._over(key, doing)

    def _over(self, key: str, doing: Doing) -> None:
        doing.facts["changes"] = self._escalation.changes(key)
        self._recorder.attempt(key, doing.step, doing.facts)

    def _settled(self, action: ev.Settled) -> None:
        key = action.key
        self._gave_up(key, action.cause)
        doing = self._doing.get(key)
        step, index = self._step_of(key)
        facts = dict(doing.facts) if doing is not None else {}
        if key in self._fanouts and "started" in facts:
            facts["ended"] = time.time()
        if action.cause and facts.get("cause") != action.cause:
            facts["cause"] = action.cause
        if action.status == "failed" and facts.get("message"):
            self._failure = facts
        parent = step.key if index is not None else ""
        if not self._recorder.is_kept(key):
            count = self._inputs.count(key)
            self._recorder.settled(key, step, action.status, facts, doing, parent=parent, index=index, count=count)
        self._observer.changed(key, action.status, shown(facts, parent=parent, index=index))
        if doing is not None:
            doing.inputs = {}
        if self.on_settled is not None:
            self.on_settled(key, action.status)

    def _finished(self, action: ev.Finished) -> None:
        if self._hooks.of_run(action.status, next(iter(self._steps.values()), None), self._failure):
            self._closing = action.status
        else:
            self.status = action.status

    def _hook(self, action: ev.Hook) -> None:
        if self._recorder.is_kept(action.key):
            self.tell(ev.HookDone(key=action.key))  # an earlier session called it
            return
        step, _ = self._step_of(action.key)
        self._hooks.of_step(action.key, action.which, step, self._doing[action.key].facts)

    def _hook_ended(self, news: News) -> None:
        if not self._hooks.over(news):
            return
        if news.key:
            self.tell(ev.HookDone(key=news.key))
        else:
            self.status = self._closing
