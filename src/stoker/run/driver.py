"""From a called pipeline to a finished run: the one place that both `python train.py` and `stoker run train.py` use.

Configuration and graph become a plan, the plan becomes a run in the store, the engine runs it, the terminal shows it,
and the caller gets the client's `Run`.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core.artifact import from_wire
from stoker.core.errors import NotFound, RunCancelled, RunFailed, StokerError, UsageError
from stoker.core.findings import Finding
from stoker.core.observer import Observer
from stoker.core.plan import Plan, StepPlan
from stoker.core.request import RunRequest
from stoker.core.settings import Layer, PipelineSettings
from stoker.engine.dynamic import Body
from stoker.engine.execution import Policy
from stoker.engine.inputs import StepBindings
from stoker.engine.interrupts import interrupts
from stoker.engine.recorder import Recorder
from stoker.engine.runner import RunLoop
from stoker.plan import plandoc, source
from stoker.plan.cachekey import environment_digest
from stoker.plan.layers import resolve_pipeline
from stoker.plan.planner import Planner, backend_findings, check_names, placement_findings, refuse, replan
from stoker.plan.planner import plan as plan_graph
from stoker.report.terminal import Terminal
from stoker.run import detaching
from stoker.run.detaching import Start
from stoker.run.program import Program, ProgramStart, program_of
from stoker.run.session import Session
from stoker.store import artifacts
from stoker.store.rows import RunRow
from stoker.store.store import Store
from stoker.worker import modules
from stoker.worker.processes import this_process

if TYPE_CHECKING:
    from stoker.client import Client, Run
    from stoker.run.building import Builder


_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH: Final = 1_735_689_600
"""2025-01-01: the ids' clock starts here, so that eight characters last until the year 2059."""


def plan(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Plan:
    """The plan of a program, with its findings; nothing runs, and no plan is refused."""
    session = Session(request, stack=program.stack)
    return _plan_program(session, program, arguments)[0]


def _plan_program(
    session: Session, program: Program, arguments: Mapping[str, Any]
) -> tuple[Plan, Planner, PipelineSettings]:
    values = _bind(session, program, arguments)
    alias_main()
    session.hint(program)
    graph = program.graph_of(values)
    overrides = session.overrides()
    settings, _ = resolve_pipeline((session.stack.layer, *graph.layers, *overrides.every), session.stack)
    planner = Planner(session.stack, session.store.blobs, layers=graph.layers, overrides=overrides)
    checkers = session.backends((), settings)
    try:
        plan = plan_graph(
            graph,
            planner,
            checkers,
            stack=session.stack.name,
            failure_mode=settings.failure_mode,
            source=planner.source_of(program.function, program.where) if program.dynamic else None,
        )
        plan = attrs.evolve(
            plan, settings=settings, findings=(*plan.findings, *placement_findings(plan.steps, checkers))
        )
    finally:
        for backend in set(checkers.values()):
            backend.close()
    plan = attrs.evolve(program.complete_plan(plan), program=program.document())
    if plan.steps:
        check_names(overrides, plan.steps)
    findings = (*plan.findings, *session.findings, *session.proofs(plan, settings))
    return attrs.evolve(plan, findings=findings), planner, settings


def _bind(session: Session, program: Program, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return program.bind({**arguments, **session.parameters()})


def alias_main() -> None:
    """Let values that workers pickle name the script's classes by its file's name, also in this process."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if main is None or not file or getattr(main, "__spec__", None) is not None:
        return
    stem = source.script_module(file)
    sys.modules.setdefault(stem, main)


def run(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a program to its end; `RunFailed` where a step failed, `PreflightError` where the plan is refused."""
    session = Session(request, stack=program.stack)
    plan, planner, settings = _plan_program(session, program, arguments)
    refuse(plan)
    if request.detach:
        detaching.check(session, plan, settings)
    plan = attrs.evolve(plan, hooks=planner.hooks(program.hooks, plan.where))
    values = _bind(session, program, arguments)
    observer = Terminal(verbose=not request.quiet)
    builder = session.builder(settings, observer.message)
    if builder is not None:
        plan = session.stage(plan, builder)
    plan = session.prepare(plan)
    now = time.time()
    id, token = new_id(now), new_token()
    row = RunRow(
        id=id,
        pipeline=request.name or plan.pipeline,
        created=now,
        started=now,
        parameters=_parameters_document(program.describe_arguments(values)),
        tags=tuple(dict.fromkeys((*program.tags, *request.tags))),
        source=plan.where,
        stack=session.stack.name,
        failure_mode=plan.failure_mode,
        dynamic=plan.dynamic,
        driver=this_process(),
        token=token,
        heartbeat=now,
    )
    if request.detach:
        return _detach(session, row, plan, settings)
    session.store.records.create_run(row, plan=plandoc.dump(plan))
    if request.began is not None:
        request.began(id)
    body = _body(session, program, plan, values, planner) if plan.dynamic else None
    return Drive(session, plan, settings, observer, id=id, token=token, body=body).go()


def _detach(session: Session, row: RunRow, plan: Plan, settings: PipelineSettings) -> Run:
    """The run, which goes on by itself; its id is all that is written to stdout."""
    detaching.start(session, row, plan, settings)
    run = client_of(session.store).run(row.id)
    if session.request.began is not None:
        session.request.began(row.id)
    sys.stdout.write(f"{row.id}\n")
    sys.stdout.flush()
    if not session.request.quiet:
        Terminal().message(detaching.whereabouts(row.id, run.awaits))
    return run


def _body(session: Session, program: Program, plan: Plan, arguments: Mapping[str, Any], planner: Planner) -> Body:
    tags = (*program.tags, *session.request.tags)
    return program.body(
        ProgramStart(plan=plan, arguments=arguments, planner=planner, ready=session.prepare_step, tags=tags)
    )


def resume(run_id: str, request: RunRequest, *, program: Program | None = None, token: str = "") -> Run:
    """Go on with a run where it stopped: what it finished is kept, the rest runs with the code as it is now.

    `program` is the run's where it is at hand, with what the command line says of it. With a `token` this is the driver
    of a detached run: it begins what was planned, or leaves where the run has another token by now.
    """
    session = Session(request)
    row = session.store.records.run(run_id)
    run = client_of(session.store).run(row.id)
    if token and row.token != token:
        return run
    with detaching.record_failure(session.store.records, row.id, token):
        start = detaching.start_of(row)
        if start is not None:
            request = start.merge_into(request)
        elif run.status == "running":
            raise UsageError(
                f"run {row.id} is still running (driver: pid {row.driver.get('pid')} on {row.driver.get('host')})",
                fix=f"stoker cancel {row.id} first",
            )
        elif run.status == "succeeded" and not request.again:
            return run
        if start is not None or (request.stack is None and row.stack != session.stack.name):
            session = Session(attrs.evolve(request, stack=request.stack or row.stack))
        return _drive(session, row, start, program=program, token=token)


def _drive(session: Session, row: RunRow, start: Start | None, *, program: Program | None, token: str) -> Run:
    """Take a run over and drive it to its end; does nothing where another driver has taken it over."""
    text = session.store.records.plan(row.id)
    if not text:
        raise NotFound(f"run {row.id} has no plan, so it cannot go on", fix="start its pipeline again")
    plan = plandoc.load(text)
    settings = _settings_again(plan, session)
    observer = Terminal(verbose=not session.request.quiet)
    if start is not None and token and not plan.dynamic:
        session.code = start.code
        plan = session.prepare(_with_current_code(plan, session, session.builder(settings, observer.message)))
    else:
        plan = _plan_again(plan, session, settings, observer)
    program_document, body = plan.program, None
    if plan.dynamic:
        plan, body = _resumed_body(row.id, plan, session, program)
    new_owner = new_token()
    document = plandoc.dump(plan) if plan.package or plan.program != program_document else ""
    if not session.store.records.take_over(
        row.id, expected=row.token, token=new_owner, driver=this_process(), plan=document
    ):
        if token:
            return client_of(session.store).run(row.id)
        raise UsageError(f"run {row.id} was taken over by another driver just now", fix=f"stoker show {row.id}")
    if row.started is None:
        session.store.records.set_run(row.id, new_owner, started=time.time())
    resumed = row.sessions > 0
    return Drive(session, plan, settings, observer, id=row.id, token=new_owner, body=body, resumed=resumed).go()


def _plan_again(plan: Plan, session: Session, settings: PipelineSettings, observer: Terminal) -> Plan:
    """A run's plan for this session, checked again, with code and images as they are now."""
    templates = plan.dynamic and plan.steps  # they are planned again, from the program as it is now
    if not templates:
        plan = replan(_with_current_code(plan, session), session.overrides(), session.stack)
    findings = findings_again(session, plan.steps, settings) if not templates else ()
    plan = attrs.evolve(plan, settings=settings, failure_mode=settings.failure_mode, findings=findings)
    refuse(plan)
    builder = session.builder(settings, observer.message)
    if builder is not None:
        plan = session.stage(plan, builder)
    return plan if templates else session.prepare(plan)


def findings_again(session: Session, steps: Sequence[StepPlan], settings: PipelineSettings) -> tuple[Finding, ...]:
    """What the stack's backends say of steps now."""
    backends = session.backends((), settings)
    try:
        return (*backend_findings(steps, backends), *placement_findings(steps, backends))
    finally:
        for backend in set(backends.values()):
            backend.close()


def _settings_again(plan: Plan, session: Session) -> PipelineSettings:
    """The settings that the run had, under what this session's command line says."""
    stack, earlier = session.stack, plan.settings
    values: dict[str, Any] = {"failure_mode": plan.failure_mode, "max_parallel": earlier.max_parallel}
    recorded = Layer(origin="the run as it was started", values=values)
    options = earlier.backend if plan.stack == stack.name else {}
    return resolve_pipeline((stack.layer, recorded, *session.overrides().every), stack, recorded_options=options)[0]


def _resumed_body(run: str, plan: Plan, session: Session, program: Program | None) -> tuple[Plan, Body]:
    """The plan and the body of a dynamic program for another session: it runs from its beginning, over what is kept.

    Steps, settings and code are as they are now, parameters as they were.
    """
    if plan.source is None or plan.source.kind == "pickled":
        raise UsageError(f"run {run} is of a dynamic pipeline that no file defines", fix="call the pipeline again")
    if program is None:
        program = program_of(modules.object_of(plan.source))
    if program is None:
        raise UsageError(f"{plan.source.qualname} of {plan.source.path} is no pipeline and no flow any more")
    alias_main()
    blobs = session.store.blobs
    program.restore(plan, blobs)
    session.hint(program)
    arguments = {} if plan.steps else {n: artifacts.load(from_wire(wire), blobs) for n, wire in plan.parameters.items()}
    graph = program.outline(arguments)
    planner = Planner(session.stack, blobs, layers=graph.layers, overrides=session.overrides())
    steps = tuple(planner.step_plan(node) for node in graph.nodes)
    plan = attrs.evolve(plan, program=program.document())
    now = program.complete_plan(attrs.evolve(plan, steps=steps, findings=findings_again(session, steps, plan.settings)))
    refuse(now)
    return plan, _body(session, program, session.prepare(now), arguments, planner)


def _with_current_code(plan: Plan, session: Session, builder: Builder | None = None) -> Plan:
    """The plan with the digests of the code as it is: what runs now must not be cached under what ran then.

    With a builder all but steps whose code was sent along: that is as it was.
    """
    digests: dict[tuple[str, str], str] = {}
    steps = []
    for step in plan.steps:
        key = (step.source.module, step.source.qualname)
        if step.source.kind == "pickled" or (builder is not None and builder.has_work([step])):
            steps.append(step)
            continue
        if key not in digests:
            digests[key] = source.code_digest(modules.function_of(step.source, session.store.blobs.read))
        steps.append(attrs.evolve(step, code=digests[key]) if step.code != digests[key] else step)
    return attrs.evolve(plan, steps=tuple(steps))


def new_id(now: float) -> str:
    """A run's id: eight characters of time, so that ids sort by it, and four drawn at random."""
    number = int((now - _EPOCH) * 1000)
    time_part = "".join(_ALPHABET[number >> shift & 31] for shift in range(35, -5, -5))
    return time_part + "".join(_ALPHABET[byte & 31] for byte in os.urandom(4))


def new_token() -> str:
    """A token by which one driver owns a run; a driver that takes the run over writes another one."""
    return os.urandom(8).hex()


def _parameters_document(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The pipeline's parameters as JSON for the record; what is not JSON is shown as Python would."""
    import json

    document: dict[str, Any] = {}
    for name, value in parameters.items():
        try:
            document[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            document[name] = repr(value)
    return document


class Drive:
    """One session of a run: from here on the run has a row, and its end is always written into it."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        settings: PipelineSettings,
        observer: Observer,
        *,
        id: str,
        token: str,
        body: Body | None,
        resumed: bool = False,
    ) -> None:
        self._session = session
        self._plan = plan
        self._settings = settings
        self._id = id
        self._token = token
        self._body = body
        self._resumed = resumed
        self._observer = observer

    def go(self) -> Run:
        """Run, record the end, and say how it went."""
        request, store = self._session.request, self._session.store
        status, error = "failed", ""
        backends: dict[str, RunningBackend] = {}
        failure: BaseException | None = None
        try:
            sources = [*self._plan.steps]
            backends = self._session.backends(sources, self._settings)
            recorder = Recorder(store, run=self._id, token=self._token)
            if self._resumed:
                recorder.load_earlier(but=request.again)
            runner = RunLoop(
                run=self._id,
                recorder=recorder,
                inputs=StepBindings(store.blobs),
                backends=backends,
                observer=self._observer,
                policy=Policy(
                    pipeline=self._plan.pipeline,
                    environment=environment_digest(),
                    fail_fast=self._plan.failure_mode == "fail_fast" and self._body is None,
                    use_cache=request.cache is not False,
                    max_parallel=self._settings.max_parallel,
                    hooks=self._plan.hooks,
                ),
            )
            # Which of a dynamic plan's steps will be reached, and how often, nobody knows yet.
            announced = self._plan if self._body is None else attrs.evolve(self._plan, steps=())
            self._observer.began(self._id, announced)
            if request.debug:
                status = self._loop(runner, backends)
            else:
                with interrupts(runner, self._observer, computing=self._computing):
                    status = self._loop(runner, backends)
        except StokerError as problem:
            failure, error = problem, str(problem)
        except KeyboardInterrupt:
            status, error = "cancelled", "interrupted"  # only under --debug: otherwise the signal stops the runner
        except BaseException as problem:  # the end is recorded, whatever it was, and then raised again
            failure, error = problem, f"{type(problem).__name__}: {problem}"
            raise
        finally:
            store.records.set_run(self._id, self._token, status=status, ended=time.time(), error=error)
            for backend in set(backends.values()):
                backend.close()
        self._observer.ended(status)
        run = client_of(store).run(self._id)
        if failure is not None:
            raise failure
        if status == "cancelled":
            raise RunCancelled(f"run {self._id} was cancelled", run=run, fix=f"stoker resume {self._id}")
        if status != "succeeded":
            raise RunFailed(self._summary(run), run=run, fix=f"stoker logs {self._id} STEP; stoker resume {self._id}")
        return run

    def _computing(self) -> bool:
        return self._body is not None and self._body.computing

    def _loop(self, runner: RunLoop, backends: Mapping[str, RunningBackend]) -> str:
        if self._body is not None:
            return self._body.run(runner, backends)
        runner.add(self._plan.steps)
        runner.close()
        runner.begin()
        # What is needed when the run is over is imported while the first workers start.
        importlib.import_module("stoker.client")
        return runner.loop()

    def _summary(self, run: Run) -> str:
        failed = [step for step in run.steps.values() if step.status == "failed"]
        failures = "; ".join(f"{step.key}: {step.cause}: {step.message}".rstrip(": ") for step in failed[:5])
        return f"run {self._id} failed: {failures}"


def client_of(store: Store) -> Client:
    """A client of a store that is open; half of its imports are made while the first workers start."""
    from stoker.client import Client

    return Client(store=store)
