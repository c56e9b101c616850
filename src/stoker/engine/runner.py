"""Executes a run: performs the machine's actions and reports their results to it as events.

One thread, one loop: events in, actions out, everything that they change committed, then jobs submitted, then a wait
for the next update. What a step depends on is recorded before the step starts.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Final, Mapping, Sequence

from stoker.backends.base.backend import RunningBackend, SharesKernel, capability
from stoker.core.errors import StokerError
from stoker.core.observer import Observer
from stoker.core.plan import JobStatus, StepPlan
from stoker.core.status import INPUT_ERROR, REFUSED, RunStatus
from stoker.engine import events as ev
from stoker.engine.accounts import Accounts
from stoker.engine.escalation import Escalation
from stoker.engine.execution import Policy, StepExecution
from stoker.engine.growth import Growth
from stoker.engine.hooks import Hooks
from stoker.engine.inputs import StepBindings, result_key
from stoker.engine.jobs import JobChange, RunJobs
from stoker.engine.machine import Machine
from stoker.engine.outcomes import Witness, attempt_facts, observed_facts
from stoker.engine.recorder import Recorder
from stoker.engine.tasks import element_task, step_task

HEARTBEAT: Final = 1.0
"""Seconds between two looks at the run's row, where a person may ask for its end; each records that we live."""


class RunLoop:
    """The loop that executes one run, from its plan to its end."""

    def __init__(
        self,
        *,
        run: str,
        recorder: Recorder,
        inputs: StepBindings,
        backends: Mapping[str, RunningBackend],
        observer: Observer,
        policy: Policy,
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._inputs = inputs
        self._observer = observer
        self._policy = policy
        self._jobs = RunJobs(run, backends, max_parallel=policy.max_parallel)
        self._pace = self._jobs.pace
        self._hooks = Hooks(self._jobs, recorder, observer, policy)
        self._escalation = Escalation(
            recorder, backends, observer, pipeline=policy.pipeline, remembers=policy.use_cache
        )
        self._accounts = Accounts(recorder, observer)
        local_backends = [name for name, backend in backends.items() if capability(backend, SharesKernel)]
        self._witness = Witness(recorder.tail, local_backends)
        self._machine = Machine(self._pace.capacities(), fail_fast=policy.fail_fast)
        self._steps: dict[str, StepPlan] = {}
        self._members: dict[str, tuple[StepPlan, int]] = {}
        self._fanouts: set[str] = set()
        self._executions: dict[str, StepExecution] = {}
        self.growth = Growth(recorder, inputs, observer, self._members, self._executions, self.tell)
        self._events: deque[ev.Event] = deque()
        self._submissions: list[ev.Submit] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._stops = 0
        self.status: RunStatus = "running"
        self._closing: RunStatus = "failed"
        self._failure: Mapping[str, Any] = {}
        # Called in this thread with the key and the status of each settled step.
        self.on_settled: Callable[[str, str], None] | None = None
        self._perform: dict[type, Callable[..., None]] = {
            ev.Prepare: self._prepare,
            ev.Expand: self._expand,
            ev.Submit: self._submissions.append,
            ev.Cancel: self._cancel,
            ev.RecordRetry: self._record_retry,
            ev.RecordEnd: self._record_end,
            ev.CallHook: self._call_hook,
            ev.FinishRun: self._finish,
        }

    # Called from any thread

    def post(self, work: Callable[[], None]) -> None:
        """Do some work in the thread of the loop."""
        self._posted.append(work)
        self._jobs.wake()

    def stop(self) -> None:
        """Stop the run: the first time with grace, then without; safe in a signal handler."""
        self._stops += 1
        hard = self._stops > 1
        self._posted.append(lambda: self._stop(hard=hard))
        self._jobs.wake()

    def _stop(self, *, hard: bool) -> None:
        self._jobs.end_hooks(hard=hard)
        self.tell(ev.Stopped(hard=hard))

    def tell(self, event: ev.Event) -> None:
        """Queue an event for the machine."""
        self._events.append(event)

    def output_of(self, key: str, name: str) -> Mapping[str, Any]:
        """A settled step's output; of a fan-out the list of its elements' outputs."""
        return self._inputs.output(key, name)

    def failure_of(self, key: str) -> str:
        """Why a step failed, in a sentence."""
        execution = self._executions.get(key)
        facts = execution.facts if execution is not None else {}
        return f"{facts.get('cause', '')}: {facts.get('message', '')}".strip(": ")

    def execution(self, key: str) -> StepExecution:
        """A step's execution, on its way or at its end."""
        return self._executions[key]

    # Growth

    def add(self, steps: Sequence[StepPlan]) -> None:
        """Add planned steps: those of a plan, or one that a dynamic body just called."""
        tasks = []
        for step in steps:
            self._steps[step.key] = step
            if step.mapped:
                self._fanouts.add(step.key)
        for step in steps:
            tasks.append(step_task(step, self._fanouts, self._recorder.earlier_attempts(step.key)))
        self._recorder.record_pending([step for step in steps if not self._recorder.is_finished(step.key)])
        self.tell(ev.Added(tasks=tuple(tasks)))

    def close(self, *, failed: bool = False) -> None:
        """Declare that no more steps are added."""
        self.tell(ev.Closed(failed=failed))

    # The loop

    def begin(self) -> None:
        """Submit what can start now, so that it starts while the caller does something else before `loop`."""
        self._drain()

    def loop(self) -> RunStatus:
        """Run until the machine finishes the run; the caller records the run's final status."""
        try:
            while not self._drain():
                self._wait()
        finally:
            self._recorder.flush()
            self._jobs.close()
        return self.status

    def _drain(self) -> bool:
        """Handle all events, commit, then submit jobs; whether the run is over."""
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
        for update in self._jobs.poll():
            self._receive(update)
        for event in self._pace.updates():
            self.tell(event)
        wake = self._machine.next_wake()
        if wake is not None and wake <= time.time():
            self.tell(ev.Ticked())
        if self._recorder.next_beat(HEARTBEAT) <= 0:
            self._beat()

    def _beat(self) -> None:
        request = self._recorder.beat()
        if request and self._stops < (2 if request == "now" else 1):
            self._observer.message(f"run {self._run} is being cancelled")
            self._stops = 1 if request == "now" else 0
            self.stop()
        self._observer.tick()

    # Updates from the backends

    def _receive(self, update: JobChange) -> None:
        key, attempt, status = update.key, update.attempt, update.status
        if status.lines:
            self._recorder.append_log(key, attempt, status.lines)
            self._observer.wrote(key, attempt, status.lines)
        for event in status.events:
            self._recorder.record_event(event.note, key, event.data)
        if status.lease is not None:
            self._accounts.record_lease(key, self._parent(key), attempt, status.lease)
        if update.hook:
            self._end_hook(update)
        elif status.lost:
            self._executions[key].facts.update(lost=attempt, message=status.message)
            self.tell(ev.Lost(key=key, attempt=attempt))
        elif update.is_over:
            self._end_attempt(key, attempt, status)
        elif status.state == "queued" and status.message:
            self._accounts.record_waiting(key, self._parent(key), status.message)
        elif status.started is not None:
            self.tell(ev.Began(key=key, attempt=attempt))

    def _end_attempt(self, key: str, attempt: int, status: JobStatus) -> None:
        execution = self._executions[key]
        facts = execution.facts = attempt_facts(key, attempt, status, execution, self._witness)
        self._accounts.record_receipt(key, execution.step, status, facts)
        cause = facts["cause"]
        if not cause:
            self._pace.add_duration(key in self._members, facts["ended"] - (facts["started"] or facts["ended"]))
        if status.result is not None and status.result.left:
            self._recorder.record_event("leftovers", key, {"processes": status.result.left})
        self._record_attempt(key, execution)
        if not cause:
            self._inputs.keep(key, facts["outputs"])
            self._escalation.record_success(key)
        escalated = self._escalation.climb(key, self._parent(key), attempt, cause)
        self.tell(ev.Ended(key=key, attempt=attempt, cause=cause, escalated=escalated))

    # Actions

    def _step_of(self, key: str) -> tuple[StepPlan, int | None]:
        member = self._members.get(key)
        return member if member is not None else (self._steps[key], None)

    def _parent(self, key: str) -> str:
        return self._members[key][0].key if key in self._members else ""

    def _prepare(self, action: ev.Prepare) -> None:
        key = action.key
        step, index = self._step_of(key)
        outputs = self._recorder.finished_outputs(key)
        if outputs is not None:
            self._inputs.keep(key, outputs)
            self._executions[key] = StepExecution(step, {}, "")
            self.tell(ev.ResultFound(key=key, earlier=True))
            return
        try:
            step, inputs = self._escalation.start(key, step, self._inputs.bind(step, index))
            cache_key = result_key(step, inputs, self._policy.environment)
        except StokerError as error:
            self._report_unprepared(key, step, error)
            return
        execution = self._executions[key] = StepExecution(step, inputs, cache_key)
        if self._policy.use_cache and step.settings.cache:
            cached = self._recorder.cached_result(cache_key)
            if cached is not None:
                execution.facts = {"outputs": cached.outputs, "cached_from": cached.origin}
                self._inputs.keep(key, cached.outputs)
                self.tell(ev.ResultFound(key=key))
                return
        self.tell(ev.Prepared(key=key, escalated=self._escalation.announce(key, self._parent(key))))

    def _report_unprepared(self, key: str, step: StepPlan, error: StokerError) -> None:
        execution = self._executions[key] = StepExecution(step, {}, "")
        execution.facts = {"cause": INPUT_ERROR, "message": str(error), "error": {"message": str(error)}}
        self.tell(ev.NotPrepared(key=key, cause=INPUT_ERROR))

    def _expand(self, action: ev.Expand) -> None:
        key = action.key
        step = self._steps[key]
        try:
            count = self._inputs.expand(step)
        except StokerError as error:
            self._report_unprepared(key, step, error)
            return
        self._executions[key] = StepExecution(step, {}, "")
        self._executions[key].facts = {"started": time.time()}
        tasks = []
        for index in range(count):
            member = f"{key}[{index}]"
            self._members[member] = (step, index)
            tasks.append(
                element_task(
                    step, member, self._inputs.elements_of(step, index), self._recorder.earlier_attempts(member)
                )
            )
        self._recorder.record_expansion(key, count)
        self._observer.changed(key, "expanded", {"count": count})
        self.tell(ev.Expanded(key=key, tasks=tuple(tasks)))

    def _submit(self, action: ev.Submit) -> None:
        key = action.key
        execution = self._executions[key]
        step = execution.step
        member = key in self._members
        now = time.time()
        execution.facts = self._witness.begin(now)
        execution.ending = ""
        if not action.behind:
            parent = self._parent(key)
            self._recorder.record_running(key, action.attempt, started=now, parent=parent)
            self._observer.changed(key, "running", {"parent": parent, "attempt": action.attempt})
        try:
            self._jobs.submit(key, action.attempt, step, execution.inputs, element=member, behind=action.behind)
        except StokerError as error:
            execution.facts = {"attempt": action.attempt, "cause": REFUSED, "message": str(error), "ended": now}
            self._record_attempt(key, execution)
            self.tell(ev.Ended(key=key, attempt=action.attempt, cause=REFUSED))

    def _cancel(self, action: ev.Cancel) -> None:
        step, _ = self._step_of(action.key)
        if any(item.key == action.key for item in self._submissions):
            self._submissions[:] = [item for item in self._submissions if item.key != action.key]
            self.tell(ev.Ended(key=action.key, attempt=action.attempt, cause=action.cause))
            return
        self._recorder.record_event("cancel", action.key, {"cause": action.cause, "hard": action.hard})
        self._executions[action.key].ending = action.cause
        self._jobs.cancel(action.key, action.attempt, step, hard=action.hard)

    def _record_retry(self, action: ev.RecordRetry) -> None:
        key = action.key
        self._record_lost(key, action.cause)
        facts: dict[str, Any] = {"attempt": action.attempt, "cause": action.cause}
        facts["wait"] = max(0.0, action.at - time.time())
        accepted = self._escalation.accept(key, action.attempt, action.cause)
        if accepted is not None:
            change, request = accepted
            execution = self._executions[key]
            execution.step, execution.inputs = request.step, request.inputs
            execution.cache_key = result_key(execution.step, execution.inputs, self._policy.environment)
            facts["changes"] = [str(change)]
        self._recorder.record_event("retry", key, facts)
        self._observer.changed(key, "retrying", facts)

    def _record_lost(self, key: str, cause: str) -> None:
        """Record an attempt that was lost so often before it began that the machine ended it."""
        execution = self._executions.get(key)
        if execution is not None and "lost" in execution.facts:
            facts = execution.facts
            facts.update(attempt=facts.pop("lost"), cause=cause, started=facts["submitted"], ended=time.time())
            self._record_attempt(key, execution)

    def _record_attempt(self, key: str, execution: StepExecution) -> None:
        execution.facts["changes"] = self._escalation.changes(key)
        self._recorder.record_attempt(key, execution.step, execution.facts)

    def _record_end(self, action: ev.RecordEnd) -> None:
        key = action.key
        self._record_lost(key, action.cause)
        execution = self._executions.get(key)
        step, index = self._step_of(key)
        facts = dict(execution.facts) if execution is not None else {}
        if key in self._fanouts and "started" in facts:
            facts["ended"] = time.time()
        if action.cause and facts.get("cause") != action.cause:
            facts["cause"] = action.cause
        if action.status == "failed" and facts.get("message"):
            self._failure = facts
        parent = step.key if index is not None else ""
        if not self._recorder.is_finished(key):
            count = self._inputs.count(key)
            self._recorder.record_settled(
                key, step, action.status, facts, execution, parent=parent, index=index, count=count
            )
        self._observer.changed(key, action.status, observed_facts(facts, parent=parent, index=index))
        if execution is not None:
            execution.inputs = {}
        if self.on_settled is not None:
            self.on_settled(key, action.status)

    def _finish(self, action: ev.FinishRun) -> None:
        if self._hooks.call_for_run(action.status, next(iter(self._steps.values()), None), self._failure):
            self._closing = action.status
        else:
            self.status = action.status

    def _call_hook(self, action: ev.CallHook) -> None:
        if self._recorder.is_finished(action.key):
            self.tell(ev.HookEnded(key=action.key))  # an earlier session called it
            return
        step, _ = self._step_of(action.key)
        self._hooks.call_for_step(action.key, action.which, step, self._executions[action.key].facts)

    def _end_hook(self, update: JobChange) -> None:
        if not self._hooks.record_end(update):
            return
        if update.key:
            self.tell(ev.HookEnded(key=update.key))
        else:
            self.status = self._closing
