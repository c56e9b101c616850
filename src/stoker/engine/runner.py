"""Executes a run: performs the machine's actions and reports their results to it as events.

One thread, one loop: events in, actions out, everything that they change committed, then jobs submitted, then a wait
for the next update. What a step depends on is recorded before the step starts.
"""

from __future__ import annotations

import functools
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.backends.base.backend import ExpectsSteps, PlatformNotice, RunningBackend, SharesKernel, capability
from stoker.core.errors import DamagedArtifact, DatabaseUnreachable, StokerError
from stoker.core.observer import DeferredObserver, Observer
from stoker.core.plan import JobStatus, StepPlan, lookup_text, steps_of, uses_cache
from stoker.core.protocol import BROUGHT, EXTRA_TIME, JOB, METRICS, RESIZED, STRAGGLER, WorkerEvent
from stoker.core.status import (
    CRASHED,
    DAMAGED_INPUT,
    INPUT_ERROR,
    REFUSED,
    STEP_GOOD,
    USER_ERROR,
    RunStatus,
    StepStatus,
)
from stoker.core.words import bounded
from stoker.engine import clock
from stoker.engine import events as ev
from stoker.engine.accounts import Accounts
from stoker.engine.escalation import Escalation
from stoker.engine.execution import ElementTasks, Policy, StepExecution, step_task
from stoker.engine.growth import Growth
from stoker.engine.inputs import StepBindings, Wire, key_parts
from stoker.engine.jobs import JobChange, RunJobs, masked_status
from stoker.engine.machine import Machine
from stoker.engine.outcomes import Witness, attempt_facts, hook_facts, last_words, observed_facts
from stoker.engine.places import FaultyPlaces
from stoker.engine.recorder import Recorder
from stoker.plan.cachekey import InputCode, KeyParts

if TYPE_CHECKING:
    from stoker.engine.limits import RunLimits
    from stoker.engine.sweeps import Sweeps

HEARTBEAT: Final = 1.0
"""Seconds between two looks at the run's row, where a person may ask for its end; each records that we live."""
ACTIVE: Final = 512
"""Elements whose running is recorded with each heartbeat: a machine seldom has more cores, and a row stays small."""


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
        heartbeat: float = HEARTBEAT,
    ) -> None:
        self._run = run
        self._heartbeat = heartbeat
        self._recorder = recorder
        self._inputs = inputs
        # What can run next is sent before a person sees what ended.
        self._observer = observer = DeferredObserver(observer)
        self._input_code = InputCode(observer.message)
        self._policy = policy
        self._jobs = RunJobs(
            run, backends, max_parallel=policy.max_parallel, secrets=policy.secrets, pipeline=policy.pipeline
        )
        self._pace = self._jobs.pace
        self._hooks = Hooks(self._jobs, recorder, observer, policy)
        self._escalation = Escalation(
            recorder, backends, observer, pipeline=policy.pipeline, remembers=policy.use_cache
        )
        self._accounts = Accounts(recorder, observer)
        self._places = FaultyPlaces(recorder, backends, observer)
        self._expecting = {
            name: expecting for name, backend in backends.items() if (expecting := capability(backend, ExpectsSteps))
        }
        local_backends = [name for name, backend in backends.items() if capability(backend, SharesKernel)]
        self._witness = Witness(recorder.tail, local_backends, recorder.last_saved)
        self._machine = Machine(self._pace.capacities(), fail_fast=policy.fail_fast)
        self._steps: dict[str, StepPlan] = {}
        # What `_step_of` said of steps, and of elements that are not settled.
        self._known: dict[str, tuple[StepPlan, int | None, str]] = {}
        # Elements of fan-outs that get them one by one; those of others are known by their keys.
        self._members: dict[str, tuple[StepPlan, int]] = {}
        self._fanouts: set[str] = set()
        # Steps that run again because their outputs were lost: the cache has the same ones.
        self._restored: set[str] = set()
        self._executions: dict[str, StepExecution] = {}
        # Elements that run: of a platform with a queue, events tell.
        self._active: dict[str, tuple[int, float]] = {}
        # Trials that the budget of their sweep has no room for yet.
        self._held_back: dict[str, list[str]] = {}
        self.growth = Growth(recorder, inputs, observer, self._members, self._executions, self.tell)
        self._events: deque[ev.Event] = deque()
        self._submissions: list[ev.Submit] = []
        # Steps whose preparation needs the database, which is away.
        self._postponed: list[ev.Prepare | ev.Expand] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._stops = 0
        self.stopped_for = ""
        """Why the run was stopped before one of its limits; empty if it was not."""
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

    @functools.cached_property
    def _sweeps(self) -> Sweeps:
        from stoker.engine.sweeps import Sweeps  # only for runs with a sweep

        return Sweeps(self._recorder, self._inputs, self._observer.message)

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

    def stop_gently(self) -> None:
        """Stop the run with grace, unless that was asked already: whatever asks twice does not mean at once."""
        if not self._stops:
            self.stop()

    def leave(self, then: Callable[[], None]) -> None:
        """Record what is known, let the jobs go on, and call `then`, which ends this process; safe in a signal
        handler."""
        self.post(lambda: self._leave(then))

    def _leave(self, then: Callable[[], None]) -> None:
        self._recorder.flush()
        self._jobs.leave()
        self._observer.deliver()
        then()

    def _stop(self, *, hard: bool) -> None:
        for silence in () if hard else self._jobs.silences():
            again = "again: the driver leaves within 5 s, and what runs there stays"
            self._observer.message(f"{silence}; steps there are asked to end as soon as it answers ({again})")
        self._jobs.end_hooks(hard=hard)
        self.tell(ev.Stopped(hard=hard))

    def show(self) -> None:
        """Tell the observer what happened so far, before somebody else writes; in the thread of the loop."""
        self._observer.deliver()

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
            if self._policy.limits is not None:
                self._policy.limits.add(step)
            self._steps[step.key] = step
            if step.mapped and step.sweep is None:
                self._fanouts.add(step.key)
        for step in steps:
            tasks.append(step_task(step, self._fanouts, self._recorder.earlier_attempts(step.key)))
        pending = [step for step in steps if not self._recorder.is_finished(step.key)]
        for name, backend in self._expecting.items():
            backend.expect(steps_of(name, pending))
        self._recorder.record_pending(pending)
        self.tell(ev.Added(tasks=tuple(tasks)))

    def note(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        """Record an event of a step that is about to be added."""
        self._recorder.record_event(kind, key, data)

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
            try:
                self._recorder.flush()
            finally:
                self._jobs.close()
                self._observer.deliver()
        return self.status

    def _drain(self) -> bool:
        """Handle all events, commit, submit jobs, then tell the observer; whether the run is over."""
        if self._posted:
            self._observer.deliver()
        while self._posted:
            self._posted.popleft()()
        if self._postponed and not self._recorder.is_away:
            postponed, self._postponed = self._postponed, []
            for preparation in postponed:
                self._perform[type(preparation)](preparation)
        while self._events:
            event = self._events.popleft()
            for action in self._machine.handle(event, clock.time()):
                self._perform[type(action)](action)
        self._recorder.flush()
        if self._submissions:
            submissions, self._submissions[:] = list(self._submissions), []
            for submission in submissions:
                self._submit(submission)
            if not self._machine.grows:
                self._jobs.complete()
        self._observer.deliver()
        return self.status != "running"

    def _wait(self) -> None:
        if not self._events:
            now = clock.time()
            pause = self._recorder.next_beat(self._heartbeat)
            wake = self._machine.next_wake()
            self._jobs.wait(pause if wake is None else min(pause, wake - now))
        for update in self._jobs.poll():
            self._receive(update)
        for backend, notice in self._jobs.notices():
            self._report_notice(backend, notice)
        for event in self._pace.updates():
            self.tell(event)
        wake = self._machine.next_wake()
        if wake is not None and wake <= clock.time():
            self.tell(ev.Ticked())
        if self._recorder.next_beat(self._heartbeat) <= 0:
            self._beat()

    def _report_notice(self, backend: str, notice: PlatformNotice) -> None:
        """Show and record what happened to a backend's platform."""
        self._recorder.record_event(notice.kind, "", {"backend": backend, "message": notice.text, **notice.data})
        later = f"; `stoker cancel {self._run}` ends what is left, `stoker gc` lists it"
        self._observer.message(notice.text + (later if notice.data.get("jobs") else ""))

    def _beat(self) -> None:
        request = self._recorder.beat(dict(islice(self._active.items(), ACTIVE)))
        if request and self._stops < (2 if request == "now" else 1):
            self._observer.message(f"run {self._run} is being cancelled")
            self._stops = 1 if request == "now" else 0
            self.stop()
        if self._policy.limits is not None and not self._stops:
            self._keep_limits(self._policy.limits)
        self._observer.tick()

    def _keep_limits(self, limits: RunLimits) -> None:
        """Stop the run before it would pass its deadline or its budget."""
        self.stopped_for = limits.problem(clock.time())
        if self.stopped_for:
            self._recorder.record_event("limit", "", {"message": self.stopped_for})
            self._observer.message(f"the run is stopped: {self.stopped_for}")
            self.stop()

    # Updates from the backends

    def _receive(self, update: JobChange) -> None:
        key, attempt, status = update.key, update.attempt, update.status
        masker = self._policy.secrets.masker
        if masker is not None:
            status = masked_status(status, masker)
        if update.adopted:
            self.tell(ev.Adopted(key=key, attempt=update.adopted, earlier=attempt))
            self._recorder.adopt_attempt(key, attempt)
            for earlier in self._recorder.job_events(key, attempt):
                self._accounts.note_place(self._executions[key], earlier)
        if status.lines:
            self._recorder.append_log(key, attempt, status.lines)
            self._observer.wrote(key, attempt, status.lines)
        for event in status.events:
            self._receive_event(update, event)
        if status.lease is not None:
            self._accounts.record_lease(key, self._parent(key), attempt, status.lease)
        self._note_active(update)
        if self._policy.limits is not None and not update.hook:
            began = self._executions[key].facts.get("began")
            self._policy.limits.note(key, self._parent(key), update.status, began, clock.time())
        if update.hook:
            self._end_hook(update)
        elif status.lost:
            self._executions[key].facts.update(lost=attempt, message=status.message)
            self.tell(ev.Lost(key=key, attempt=attempt))
        elif update.is_over:
            self._end_attempt(key, attempt, status)
        elif status.state == "queued" and status.message:
            self._accounts.record_waiting(key, self._parent(key), attempt, status.message)
            self._accounts.note_wait(self._executions[key], clock.time())
            self._executions[key].facts["waits"] = True
        elif status.started is not None:
            self._executions[key].facts["began"] = status.started  # its end may come without a result
            self.tell(ev.Began(key=key, attempt=attempt))

    def _receive_event(self, update: JobChange, event: WorkerEvent) -> None:
        key, attempt = update.key, update.attempt
        if event.kind == METRICS:
            rows = event.data.get("rows", ())
            rows = self._recorder.record_metrics(key, self._executions[key].step, attempt, rows)
            self._observer.logged(key, attempt, rows)
            step, index, parent = self._step_of(key)
            if step.sweep is not None and self._sweeps.log(parent, index or 0, attempt, rows):
                self.tell(ev.Halted(key=key, attempt=attempt))
            return
        self._recorder.record_event(event.note, key, {**event.data, "attempt": attempt})
        if event.note in (STRAGGLER, RESIZED):
            self._observer.message(f"{key}: {event.data['message']}")
        if event.note == BROUGHT and not update.hook:
            facts = self._executions[key].facts
            facts["data_seconds"] = max(float(event.data["seconds"]), facts.get("data_seconds") or 0.0)
        if event.note == EXTRA_TIME:
            self.tell(ev.Extended(key=key, attempt=attempt, seconds=float(event.data["seconds"])))
        if event.note == JOB and not update.hook:
            self._accounts.note_place(self._executions[key], event.data)
        if event.note == JOB and event.data["state"] == "running" and not update.hook:
            self._note_running(key, attempt, float(event.data["time"]))

    def _note_active(self, update: JobChange) -> None:
        """Note whether an attempt runs; also of one that waited behind a busy worker, or for devices."""
        key, status = update.key, update.status
        if status.lost or update.is_over or status.state == "queued":
            self._active.pop(key, None)
            return
        started = status.started
        if started is None and status.lease is not None:
            started = clock.time()
        if started is None or update.hook or self._jobs.queues(self._step_of(key)[0].backend):
            return  # of a platform with a queue, events tell
        if self._parent(key):
            if status.started is not None or key not in self._active:
                self._active[key] = (update.attempt, started)
        elif self._executions[key].facts.pop("waits", False):
            self._recorder.record_running(key, update.attempt, started=started, parent="")

    def _note_running(self, key: str, attempt: int, started: float) -> None:
        """Record that a job which waited in a queue runs."""
        parent = self._parent(key)
        self._executions[key].facts["began"] = started
        # What its elements wait for in a queue is no part of what a fan-out takes; a flow's foreach is no step itself.
        if parent in self._executions:
            self._executions[parent].facts.setdefault("began", started)
        self._recorder.record_running(key, attempt, started=started, parent=parent)
        self._observer.changed(key, "running", {"parent": parent, "attempt": attempt})

    def _end_attempt(self, key: str, attempt: int, status: JobStatus) -> None:
        execution = self._executions[key]
        facts = execution.facts = attempt_facts(key, attempt, status, execution, self._witness)
        if "error" in facts and (digest := facts["error"].get("whole")):
            facts["error"]["whole"] = self._recorder.keep_error(key, attempt, digest)
        self._accounts.record_receipt(key, execution.step, status, facts)
        step, index, parent = self._step_of(key)
        if step.sweep is not None:
            self._sweeps.note_attempt(parent, index or 0, facts)
            fault = "" if facts["cause"] else self._sweeps.fault(parent, index or 0, facts["outputs"])
            if fault:
                facts |= {"cause": USER_ERROR, "message": fault, "error": {"message": fault}}
        fanout = self._executions.get(parent)
        if fanout is not None and facts["started"] and facts["started"] < fanout.facts.get("started", 0.0):
            fanout.facts["began"] = min(facts["started"], fanout.facts.get("began", facts["started"]))  # it was adopted
        cause = facts["cause"]
        if execution.facts.get("queued"):
            self._recorder.record_event(JOB, key, {"state": "ended", "time": facts["ended"], "attempt": attempt})
        if not cause:
            self._pace.add_duration(bool(parent), facts["ended"] - (facts["started"] or facts["ended"]))
        if status.result is not None and status.result.left:
            self._recorder.record_event("leftovers", key, {"processes": status.result.left})
            left = status.result.left
            text = "1 process that it had" if left == 1 else f"{left:,} processes that it had"
            self._observer.message(f"{key}: {text} left running when it was over: ended")
        elsewhere = bool(cause) and self._places.note(key, attempt, execution, status, facts)
        self._record_attempt(key, execution)
        if cause and execution.step.runner:
            self._recorder.append_log(key, attempt, last_words(facts))
        escalated = None
        if not cause:
            self._keep(key, facts["outputs"])
            self._escalation.record_success(key)
        elif self._restore_input(key, attempt, self._lost_input(execution, status)):
            return
        else:
            escalated = self._escalation.climb(key, parent, attempt, cause)
        self.tell(ev.Ended(key=key, attempt=attempt, cause=cause, escalated=escalated, elsewhere=elsewhere))

    def _lost_input(self, execution: StepExecution, status: JobStatus) -> str:
        """The digest of the input without which an attempt failed; empty where it failed for another reason."""
        error = status.result.error if status.result is not None else None
        if error is not None and error.digest:
            return error.digest
        # A file that is cut short while it is mapped ends the process that reads it.
        return self._inputs.first_lost(execution.inputs.values()) if execution.facts["cause"] == CRASHED else ""

    def _restore_input(self, key: str, attempt: int, digest: str) -> bool:
        """Have a lost input computed again by the step of this run that made it; whether there is one."""
        step = self._step_of(key)[0]
        # A flow's tasks are not kept after their end; `stoker resume` walks through the flow again.
        makers = self._inputs.makers(digest) if digest and not step.runner else None
        if makers is None:
            return False
        again = ""
        if makers and self._machine.may_restore(key):
            again = f": {', '.join(makers)} runs again"
            for maker in makers:
                self._restored.add(maker)
                self._recorder.reopen(maker, digest)
        self._observer.message(f"{key}: its input {digest[:12]} is lost or damaged in the store{again}")
        self.tell(ev.InputLost(key=key, attempt=attempt, producers=tuple(makers)))
        return True

    # Actions

    def _step_of(self, key: str) -> tuple[StepPlan, int | None, str]:
        """A step, or of an element its fan-out's step, its index and its fan-out's key."""
        if key in self._known:
            return self._known[key]
        found: tuple[StepPlan, int | None, str]
        if key in self._steps:
            found = self._steps[key], None, ""
        elif key in self._members:
            step, index = self._members[key]
            found = step, index, step.key
        else:
            parent, _, number = key[:-1].rpartition("[")
            found = self._steps[parent], int(number), parent
        self._known[key] = found
        return found

    def _parent(self, key: str) -> str:
        """The fan-out of an element; empty for a step, and for the run itself, which has hooks."""
        return self._step_of(key)[2] if key else ""

    def _keep(self, key: str, outputs: Mapping[str, Wire]) -> None:
        _, index, parent = self._step_of(key)
        self._inputs.keep(key, outputs, fanout=parent, index=index or 0)

    def _prepare(self, action: ev.Prepare) -> None:
        try:
            self._prepare_now(action.key)
        except DatabaseUnreachable:
            # A cached result would be computed again, for hours perhaps, to save minutes of waiting.
            self._postponed.append(action)

    def _prepare_now(self, key: str) -> None:
        step, index, parent = self._step_of(key)
        if index is not None and step.sweep is not None and not self._prepare_trial(key, step, index):
            return
        outputs = self._recorder.finished_outputs(key)
        if outputs is not None:
            self._keep(key, outputs)
            self._executions[key] = StepExecution(step, {})
            self.tell(ev.ResultFound(key=key, earlier=self._recorder.finished_status(key)))
            return
        try:
            step, inputs = self._escalation.start(key, step, self._inputs.bind(step, index))
            parts = self._key_of(step, inputs)
        except DatabaseUnreachable:
            raise
        except StokerError as error:
            self._report_unprepared(key, step, error)
            return
        execution = self._executions[key] = StepExecution(step, inputs, parts)
        execution.recipe = self._recorder.recipe_of(step, parts)
        earlier = None if key in self._restored else self._recorder.result_of_origin(key, step, parts.inputs)
        if earlier is not None:
            execution.cache_key, execution.recipe = earlier.cache_key or execution.cache_key, earlier.recipe
            execution.facts = {"outputs": earlier.outputs, "cached_from": earlier.origin}
            self._use_result(key, earlier.outputs, earlier.origin)
            return
        if index is None and self._recorder.has_origin(key):
            self._observer.message(f"{key}: its inputs are others than in the run that is repeated, so it runs")
        anew = self._policy.anew is not None and self._policy.anew(step)
        anew = anew or key in self._restored
        if self._policy.use_cache and uses_cache(step) and not anew:
            cached = self._recorder.cached_result(execution.cache_key)
            if cached is not None and cached.lost:
                what = f"its cached result is lost or damaged in the store (artifact {cached.lost[:12]})"
                self._observer.message(f"{key}: {what}: it runs again")
                self._recorder.record_event("cache-lost", key, {"artifact": cached.lost, "from": cached.origin})
            elif cached is not None:
                execution.facts = {"outputs": cached.outputs, "cached_from": cached.origin}
                text = lookup_text(step)
                if text and not index:  # of a fan-out once
                    execution.facts["warning"] = f"is cached although {text}; add cache_key=… or cache=False"
                self._use_result(key, cached.outputs, cached.origin)
                return
        self.tell(ev.Prepared(key=key, escalated=self._escalation.announce(key, parent)))

    def _use_result(self, key: str, outputs: Mapping[str, Wire], origin: str) -> None:
        """Take the result of another step, "run/step"; that of a trial has to have the metric of its sweep."""
        step, index, parent = self._step_of(key)
        if step.sweep is not None:
            self._sweeps.note_origin(parent, index or 0, origin)
            fault = self._sweeps.fault(parent, index or 0, outputs)
            if fault:
                self._executions[key].facts |= {"cause": USER_ERROR, "message": fault, "outputs": {}}
                self.tell(ev.NotPrepared(key=key, cause=USER_ERROR))
                return
        self._keep(key, outputs)
        self.tell(ev.ResultFound(key=key))

    def _prepare_trial(self, key: str, step: StepPlan, index: int) -> bool:
        """Give a trial of a sweep its parameters; False where it does not run: it has ended, or has to wait, or never
        will."""
        ended = self._sweeps.status(step.key, index)
        if ended in ("failed", "stopped"):
            self._executions[key] = StepExecution(step, {})
            self.tell(ev.ResultFound(key=key, earlier=ended))
            return False
        if self._sweeps.give(step.key, index):
            return True
        if self._sweeps.is_over(step.key):
            self.tell(ev.Curtailed(key=step.key, count=self._sweeps.count(step.key)))
        else:
            self._held_back.setdefault(step.key, []).append(key)
        return False

    def _end_trial(self, step: StepPlan, index: int, status: StepStatus) -> None:
        """Tell a sweep that a trial ended; what that leads to."""
        if self._sweeps.status(step.key, index):
            return
        if self._sweeps.end(step.key, index, status):
            self.tell(ev.Curtailed(key=step.key, count=self._sweeps.count(step.key), cause=USER_ERROR))
            self._held_back.pop(step.key, None)
        for waiting in self._held_back.pop(step.key, ()):
            if self._machine.status(waiting) == "preparing":
                self._prepare(ev.Prepare(key=waiting))

    def _end_sweep(self, key: str, status: str, facts: dict[str, Any]) -> None:
        """Keep and record what a sweep found, or why it failed."""
        if status in STEP_GOOD:
            outputs = self._sweeps.outcome(key)
            self._inputs.keep(key, outputs)
            self._recorder.record_outputs(key, outputs)
        elif status == "failed" and not facts.get("message"):
            facts["message"] = self._sweeps.problem(key)

    def _key_of(self, step: StepPlan, inputs: Mapping[str, Any]) -> KeyParts:
        return key_parts(step, inputs, self._policy.environment, self._input_code)

    def _report_unprepared(self, key: str, step: StepPlan, error: StokerError) -> None:
        execution = self._executions[key] = StepExecution(step, {})
        lost = error.digest if isinstance(error, DamagedArtifact) else ""
        cause = DAMAGED_INPUT if lost else INPUT_ERROR
        execution.facts = {"cause": cause, "message": str(error), "error": {"message": str(error)}}
        if not self._restore_input(key, 0, lost):
            self.tell(ev.NotPrepared(key=key, cause=cause))

    def _expand(self, action: ev.Expand) -> None:
        key = action.key
        step = self._steps[key]
        try:
            count = self._inputs.expand(step) if step.sweep is None else self._sweeps.begin(step, step.sweep)
        except DatabaseUnreachable:
            self._postponed.append(action)
            return
        except StokerError as error:
            self._report_unprepared(key, step, error)
            return
        self._executions[key] = StepExecution(step, {})
        earlier = self._recorder.first_start(key)
        facts = {"started": clock.time()} if earlier is None else {"started": earlier, "began": earlier}
        self._executions[key].facts = dict(facts)
        self._recorder.record_expansion(key, count)
        self._observer.changed(key, "expanded", {"count": count})
        tasks = ElementTasks(step, count, self._inputs, self._recorder.earlier_attempts)
        self.tell(ev.Expanded(key=key, tasks=tasks, limit=None if step.sweep is None else step.sweep.parallel))

    def _submit(self, action: ev.Submit) -> None:
        key = action.key
        execution = self._executions[key]
        step = execution.step
        parent = self._parent(key)
        now = clock.time()
        execution.facts = self._witness.begin(now)
        execution.ending = ""
        _, index, _ = self._step_of(key)
        if step.sweep is not None:
            self._sweeps.note_start(step.key, index or 0, action.attempt)
        queued = self._jobs.queues(step.backend)
        if queued:
            execution.facts["queued"] = True
            self._recorder.record_queued(key, action.attempt, parent=parent)
            self._observer.changed(key, "sent", {"parent": parent, "attempt": action.attempt})
        elif not action.behind:
            if self._policy.limits is not None and not step.settings.resources.gpus_per_node:
                self._policy.limits.begin(key, parent or key, now)
            self._recorder.record_running(key, action.attempt, started=now, parent=parent)
            if parent:
                self._active[key] = (action.attempt, now)
            self._observer.changed(key, "running", {"parent": parent, "attempt": action.attempt})
        try:
            self._jobs.submit(
                key,
                action.attempt,
                step,
                execution.inputs,
                element=bool(parent),
                behind=action.behind,
                avoid=self._places.of(execution),
            )
        except StokerError as error:
            self._active.pop(key, None)
            execution.facts = {"attempt": action.attempt, "cause": REFUSED, "message": str(error), "ended": now}
            self._record_attempt(key, execution)
            self.tell(ev.Ended(key=key, attempt=action.attempt, cause=REFUSED))

    def _cancel(self, action: ev.Cancel) -> None:
        step = self._step_of(action.key)[0]
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
        execution = self._executions.get(key)
        facts["message"] = "" if execution is None else bounded(execution.facts.get("message", ""))
        facts["wait"] = max(0.0, action.at - clock.time())
        accepted = self._escalation.accept(key, action.attempt, action.cause)
        if accepted is not None:
            change, request = accepted
            execution = self._executions[key]
            execution.step, execution.inputs = request.step, request.inputs
            parts = self._key_of(request.step, request.inputs)
            execution.digests, execution.cache_key = parts.inputs, parts.key
            facts["changes"] = [str(change)]
        self._recorder.record_event("retry", key, facts)
        self._observer.changed(key, "retrying", {**facts, "parent": self._parent(key)})

    def _record_lost(self, key: str, cause: str) -> None:
        """Record an attempt that was lost so often before it began that the machine ended it."""
        execution = self._executions.get(key)
        if execution is not None and "lost" in execution.facts:
            facts = execution.facts
            facts.update(attempt=facts.pop("lost"), cause=cause, started=facts["submitted"], ended=clock.time())
            self._record_attempt(key, execution)

    def _record_attempt(self, key: str, execution: StepExecution) -> None:
        execution.facts["changes"] = self._escalation.changes(key)
        self._recorder.record_attempt(key, execution.step, execution.facts)

    def _record_end(self, action: ev.RecordEnd) -> None:
        key = action.key
        self._record_lost(key, action.cause)
        execution = self._executions.get(key)
        step, index, parent = self._step_of(key)
        facts = dict(execution.facts) if execution is not None else {}
        if step.mapped and index is None and "started" in facts:
            facts["started"] = facts.get("began", facts["started"])
            facts["ended"] = clock.time()
        if action.cause and facts.get("cause") != action.cause:
            facts["cause"] = action.cause
        count = self._inputs.count(key)
        earlier = None
        if step.sweep is not None and index is not None:
            earlier = self._sweeps.status(parent, index)
        elif step.sweep is not None:
            self._end_sweep(key, action.status, facts)
            count = self._sweeps.count(key) if execution is not None else None
        if action.status == "failed" and facts.get("message"):
            self._failure = facts
        if not self._recorder.is_finished(key) and not earlier:
            self._recorder.record_settled(
                key, step, action.status, facts, execution, parent=parent, index=index, count=count
            )
        self._observer.changed(key, action.status, observed_facts(facts, parent=parent, index=index))
        if execution is not None:
            execution.inputs = execution.digests = {}
            if (parent in self._fanouts or step.sweep) and parent and action.status in STEP_GOOD and not step.hooks:
                del self._executions[key], self._known[key]  # all is recorded, and there may be a million elements
        elif parent:
            self._known.pop(key, None)
        if step.backend in self._expecting and not parent:
            self._expecting[step.backend].settle(key, success=action.status in ("succeeded", "cached"))
        if step.sweep is not None and index is not None:
            self._end_trial(step, index, action.status)
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
        step = self._step_of(action.key)[0]
        self._hooks.call_for_step(action.key, action.which, step, self._executions[action.key].facts)

    def _end_hook(self, update: JobChange) -> None:
        if not self._hooks.record_end(update):
            return
        if update.key:
            self.tell(ev.HookEnded(key=update.key))
        else:
            self.status = self._closing


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
