"""From a called pipeline to a finished run: the one place that both `python train.py` and `stoker run train.py` use.

Configuration and graph become a plan, the plan becomes a run in the store, the engine runs it, the terminal shows it,
and the caller gets the client's `Run`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.backends.base.backend import LEFT, RunningBackend
from stoker.core.artifact import from_wire
from stoker.core.errors import (
    InfrastructureError,
    NotFound,
    RunCancelled,
    RunFailed,
    SourceError,
    StokerError,
    StoreError,
    UsageError,
)
from stoker.core.findings import Finding
from stoker.core.plan import Plan, RunOrigin, StepPlan
from stoker.core.printable import check_name
from stoker.core.printable import check_names as check_names_of
from stoker.core.protocol import FunctionSource
from stoker.core.registry import ArtifactRef, names_label
from stoker.core.request import RunRequest
from stoker.core.settings import Layer, PipelineSettings
from stoker.core.status import STEP_GOOD
from stoker.core.usercode import script_module
from stoker.core.words import count_text
from stoker.engine.dynamic import Body
from stoker.engine.execution import Policy
from stoker.engine.inputs import StepBindings
from stoker.engine.interrupts import interrupts, raised
from stoker.engine.recorder import Recorder
from stoker.engine.runner import RunLoop
from stoker.plan import plandoc, source
from stoker.plan.cachekey import InstalledEnvironment, remember_code
from stoker.plan.digest import FunctionCode, read_function_code
from stoker.plan.layers import resolve_pipeline
from stoker.plan.planner import (
    Planner,
    backend_findings,
    check_names,
    growth_findings,
    lookup_findings,
    parameter_findings,
    placement_findings,
    price_findings,
    refuse,
    replan,
    usual_findings,
    with_rates,
)
from stoker.plan.planner import plan as plan_graph
from stoker.report.streams import flush_or_drop
from stoker.report.terminal import Terminal
from stoker.run import detaching, reuse
from stoker.run.detaching import Detachment, Start
from stoker.run.program import Program, ProgramStart, program_of
from stoker.run.revision import CHANGED, WorkTree, here
from stoker.run.session import Session
from stoker.store import artifacts
from stoker.store.registry import author
from stoker.store.rows import DRIVER_JOB, DRIVER_PLACE, RunRow, require_whole
from stoker.store.store import Store
from stoker.store.writer import RunWriter, restore
from stoker.worker import modules, survivors
from stoker.worker.processes import this_process

if TYPE_CHECKING:
    from stoker.client import Client, Run
    from stoker.engine.limits import RunLimits
    from stoker.run.building import Builder
    from stoker.store.logcopies import LogSender

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH: Final = 1_735_689_600
"""2025-01-01: the ids' clock starts here, so that eight characters last until the year 2059."""


def plan(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Plan:
    """The plan of a program, with its findings; nothing runs, and no plan is refused."""
    session = Session(request, stack=program.stack)
    return _plan_program(session, program, _bind(session, program, arguments))[0]


def _plan_program(
    session: Session,
    program: Program,
    values: Mapping[str, Any],
    recorded: Mapping[str, Mapping[str, Any]] | None = None,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Plan, Planner, PipelineSettings]:
    alias_main()
    session.hint(program)
    graph = program.graph_of(values)
    session.add_parts(graph.every_layer)
    overrides = attrs.evolve(session.overrides(), trials=trials or {})
    settings, _ = resolve_pipeline((session.stack.layer, *graph.layers, *overrides.every), session.stack)
    planner = Planner(
        session.stack,
        session.store.blobs,
        layers=graph.layers,
        overrides=overrides,
        recorded=recorded,
        registry=session.store.registry,
        secrets=session.secrets,
        losses=session.losses,
    )
    checkers = session.backends((), settings)
    session.questions.begin()
    try:
        plan = plan_graph(
            graph,
            planner,
            checkers,
            stack=session.stack.name,
            failure_mode=settings.failure_mode,
            source=_source_of(program, planner),
        )
        findings = (
            *plan.findings,
            *placement_findings(plan.steps, checkers, session.ask_backend),
            *growth_findings(plan, checkers, noun=program.noun, hooks=program.hooks),
            *price_findings(plan.steps, session.stack.prices),
        )
        steps = tuple(with_rates(plan.steps, findings, session.stack.prices))
        plan = attrs.evolve(plan, steps=steps, settings=settings, findings=findings)
    finally:
        for backend in set(checkers.values()):
            backend.close()
    plan = attrs.evolve(program.complete_plan(plan), program=program.document(session.store.blobs))
    if plan.steps:
        check_names(overrides, plan.steps)
    parameters = parameter_findings(plan.parameters, plan.where, session.secrets)
    lookups = list(lookup_findings(plan.steps))
    if program.dynamic and not plan.steps:
        lookups += planner.body_findings(program.function, plan.pipeline, plan.where)
    findings = (*plan.findings, *parameters, *lookups)
    plan = session.prove(attrs.evolve(plan, findings=findings), settings)
    usual = usual_findings(plan, session.stack)
    plan = attrs.evolve(plan, findings=(*plan.findings, *usual, *_limit_findings(plan, session)))
    return plan, planner, settings


def _source_of(program: Program, planner: Planner) -> FunctionSource | None:
    """Where a later session finds a program; None where it cannot, as for one inside a function."""
    if program.dynamic:
        return planner.source_of(program.function, program.where)
    try:
        return source.locate(program.function, program.where)
    except SourceError:
        return None


def _bind(session: Session, program: Program, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return program.bind({**arguments, **session.parameters()})


def alias_main() -> None:
    """Let values that workers pickle name the script's classes by its file's name, also in this process."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if main is None or not file or getattr(main, "__spec__", None) is not None:
        return
    stem = script_module(file)
    sys.modules.setdefault(stem, main)


def run(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a program to its end; `RunFailed` where a step failed, `PreflightError` where the plan is refused."""
    session = Session(request, stack=program.stack)
    return run_bound(session, program, _bind(session, program, arguments))


def run_bound(
    session: Session,
    program: Program,
    values: Mapping[str, Any],
    origin: RunOrigin | None = None,
    recorded: Mapping[str, Mapping[str, Any]] | None = None,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
) -> Run:
    """Run a program with bound arguments in a session. `origin` is the run that this one repeats, `recorded` the
    artifacts of its arguments, by the digests that they have when they are saved here, and `trials` the parameters of
    the one trial that a sweep is to have."""
    request = session.request
    worktree = WorkTree(Path.cwd())
    plan, planner, settings = _plan_program(session, program, values, recorded, trials)
    refuse(plan)
    if origin is not None:
        reuse.check(origin, plan, session.store.records)
    if request.detach:
        detaching.check(session, plan, settings)
    words = request.document(stack=session.stack.name, run_file=_text_of(request.run_file))
    plan = attrs.evolve(plan, hooks=planner.hooks(program.hooks, plan.where), request=words, origin=origin)
    if not plan.dynamic:
        plan = attrs.evolve(plan, parameters=planner.kept_parameters(values))
    plan = attrs.evolve(plan, files=reuse.take(session.store.records))
    observer = view_of(verbose=not request.quiet)
    builder = session.builder(settings, observer.message)
    if builder is not None:
        plan = session.stage(plan, builder)
    plan = session.prepare(plan)
    tags = tuple(dict.fromkeys((*program.tags, *request.tags)))
    check_name(request.name or plan.pipeline, "the run's name")
    check_names_of(tags, "a tag")
    check_names_of([step.key for step in plan.steps], "a step's name")
    now = time.time()
    id, token = request.id or new_id(now), new_token()
    revision, branch = here()
    state = worktree.state()
    if state == CHANGED and session.stack.keep_diff:
        state = _kept_diff(session, worktree) or CHANGED
    if plan.model is not None and names_label(plan.model.version) and plan.model_version is None:
        made = session.store.registry.create_model(plan.model, run_id=id)
        plan = attrs.evolve(plan, model_version=made.version)
    row = RunRow(
        id=id,
        pipeline=request.name or plan.pipeline,
        created=now,
        started=now,
        parameters=_parameters_document(program.describe_arguments(values)),
        tags=tags,
        source=plan.where,
        stack=session.stack.name,
        failure_mode=plan.failure_mode,
        dynamic=plan.dynamic,
        driver=this_process(),
        token=token,
        heartbeat=now,
        origin="" if origin is None else origin.run,
        revision=revision,
        branch=branch,
        author=author(),
        worktree=state,
    )
    if origin is not None and origin.reuse and not origin.start:
        reuse.copy_checkpoints(session.store, origin.run, id)
    if request.detach:
        return _detach(session, row, plan, settings)
    writer = session.writer(id, token, observer.message)
    writer.patiently(lambda: session.create_run(row, plan))
    if request.began is not None:
        request.began(id)
    body = _body(session, program, plan, values, planner, run=id) if plan.dynamic else None
    return Drive(session, plan, settings, observer, id=id, token=token, body=body).go()


def _kept_diff(session: Session, worktree: WorkTree) -> str:
    """The digest of the difference from the commit; it is kept before the run that names it."""
    text = worktree.difference(session.secrets.masker, os.environ).encode()
    if not text:
        return ""
    digest = hashlib.sha256(text).hexdigest()
    session.store.records.keep_sources({digest: text})
    return digest


def _detach(session: Session, row: RunRow, plan: Plan, settings: PipelineSettings) -> Run:
    """The run, which goes on by itself; its id is all that is written to stdout."""
    detaching.start(session, row, plan, settings)
    run = client_of(session.store).run(row.id)
    if session.request.began is not None:
        session.request.began(row.id)
    sys.stdout.write(f"{row.id}\n")
    error = flush_or_drop(sys.stdout)
    if error is not None and not isinstance(error, BrokenPipeError):
        message = f"run {row.id} goes on by itself, but its id could not be written to stdout: {error.strerror}"
        raise InfrastructureError(message)
    if not session.request.quiet:
        Terminal().message(detaching.whereabouts(row.id, run.awaits))
    return run


def _body(
    session: Session, program: Program, plan: Plan, arguments: Mapping[str, Any], planner: Planner, *, run: str
) -> Body:
    tags = (*program.tags, *session.request.tags)
    return program.body(
        ProgramStart(
            plan=plan,
            arguments=arguments,
            planner=planner,
            ready=lambda step: session.prepare_step(session.prove_step(plan, session.note_uses(run, step))),
            tags=tags,
            origin="" if plan.origin is None else plan.origin.run,
        )
    )


def _text_of(path: str | None) -> str:
    """The text of a run file, which is there: the session has read it."""
    return "" if path is None else Path(path).read_text(encoding="utf-8")


def resume(
    run_id: str, request: RunRequest, *, program: Program | None = None, detachment: Detachment | None = None
) -> Run:
    """Go on with a run where it stopped: what it finished is kept, the rest runs with the code as it is now.

    `program` is the run's where it is at hand, with what the command line says of it. With a `detachment` this
    is the driver of a detached run: it begins what was planned, goes on where an earlier start of its job was killed,
    or does nothing where somebody else has driven the run since.
    """
    detachment = detachment or Detachment()
    session = Session(request)
    row = session.store.records.run(run_id)
    require_whole(row)
    run = client_of(session.store).run(row.id)
    detached = bool(detachment.token)
    if detached and not detaching.holds(row, detachment):
        return run
    if detached and row.token != detachment.token:
        row = detaching.await_end_of_driver(session.store, row)
        if detaching.holds(row, detachment) and restore(session.store, row.id, row.token):
            row = session.store.records.run(row.id)
        again = detaching.started_again(session.store, row, detachment) if detaching.holds(row, detachment) else None
        run = run.refresh()
        if again is None:
            return run
        detachment = again
    if run.status != "running" and restore(session.store, row.id, row.token):
        row = session.store.records.run(row.id)
        run = run.refresh()
    begun = row.token != detachment.token
    recording = detaching.record_failure(session.store.records, row.id, row.token, begun=begun)
    with recording if detached else contextlib.nullcontext():
        start = detaching.start_of(session.store, row, detachment)
        if start is not None:
            request = start.merge_into(request)
        elif run.status == "running" and not run.awaits:
            raise _driven_by_another(session.store, session.store.records.run(row.id))
        elif run.status == "succeeded":
            return run
        if start is not None or (request.stack is None and row.stack != session.stack.name):
            session = Session(attrs.evolve(request, stack=request.stack or row.stack))
        survivors.sweep()  # what the driver of this run may have left must not write into it
        return _drive(session, row, start, program=program, detachment=detachment)


def _drive(
    session: Session, row: RunRow, start: Start | None, *, program: Program | None, detachment: Detachment
) -> Run:
    """Take a run over and drive it to its end; does nothing where another driver has taken it over."""
    text = session.store.records.plan(row.id)
    if not text:
        raise NotFound(f"run {row.id} has no plan, so it cannot go on", fix="start its pipeline again")
    plan = plandoc.load(text)
    session.add_parts((), (*plan.settings.backend, *(step.backend for step in plan.steps)))
    settings = _settings_again(plan, session)
    observer = view_of(verbose=not session.request.quiet)
    if start is not None and detachment.token:
        detaching.bring_code(session.store, plan, start.code)
        session.bundle = start.code.bundle
    if start is not None and detachment.token and not plan.dynamic:
        session.code = start.code
        plan = session.prepare(_with_current_code(plan, session, session.builder(settings, observer.message)))
    else:
        plan = _plan_again(plan, session, settings, observer, row)
    program_document, body = plan.program, None
    if plan.dynamic:
        plan, body = _resumed_body(row.id, plan, session, program)
    new_owner = new_token()
    document = plandoc.dump(plan) if plan.package or plan.program != program_document else ""
    records = session.store.records
    settled = detaching.settled_steps(session.store, row.id) if detachment.job else 0
    driver = detachment.driver(row, start, settled, this_process())
    writer = session.writer(row.id, new_owner, observer.message)
    if not writer.patiently(
        lambda: records.take_over(row.id, expected=row.token, token=new_owner, driver=driver, plan=document)
    ):
        if detachment.token:
            return client_of(session.store).run(row.id)
        raise _driven_by_another(session.store, session.store.records.run(row.id))
    if row.started is None:
        writer.patiently(lambda: records.set_run(row.id, new_owner, started=time.time()))
    resumed = row.sessions > 0
    return Drive(session, plan, settings, observer, id=row.id, token=new_owner, body=body, resumed=resumed).go(driver)


def _driven_by_another(store: Store, row: RunRow) -> UsageError:
    """The refusal of a run that another driver has: which one, since when, and how far it is."""
    from stoker.store.rows import local_time

    driver = row.driver
    counts = store.records.counts(row.id, parent="")
    finished = sum(count for status, count in counts.items() if status in STEP_GOOD)
    progress = f"{finished} of {count_text(sum(counts.values()), 'step')} done"
    pid, since = driver.get("pid"), driver.get("started")
    holder = f"pid {pid} on {driver.get('host')}" + (f", since {local_time(since):%Y-%m-%d %H:%M:%S}" if since else "")
    if row.status != "running":
        return UsageError(
            f"run {row.id} was taken over by another driver ({holder}), which has ended it: {row.status}, {progress}",
            fix=f"stoker show {row.id}",
        )
    return UsageError(
        f"run {row.id} is still running (driver: {holder}): {progress}",
        fix=f"stoker logs {row.id} --follow, or stoker cancel {row.id} first",
    )


def _plan_again(plan: Plan, session: Session, settings: PipelineSettings, observer: Terminal, row: RunRow) -> Plan:
    """A run's plan for this session, checked again, with code and images as they are now."""
    templates = plan.dynamic and plan.steps  # they are planned again, from the program as it is now
    if not templates:
        plan = replan(_with_current_code(plan, session), session.overrides(), session.stack)
    findings = findings_again(session, plan.steps, settings) if not templates else ()
    plan = attrs.evolve(plan, settings=settings, failure_mode=settings.failure_mode, findings=findings)
    if not templates:
        plan = attrs.evolve(plan, steps=tuple(with_rates(plan.steps, findings, session.stack.prices)))
        plan = session.prove(plan, settings)
    plan = attrs.evolve(plan, findings=(*plan.findings, *_limit_findings(plan, session, row)))
    refuse(plan)
    builder = session.builder(settings, observer.message)
    if builder is not None:
        plan = session.stage(plan, builder)
    return plan if templates else session.prepare(plan)


def _has_limits(settings: PipelineSettings) -> bool:
    return settings.deadline is not None or settings.budget is not None


def _limit_findings(plan: Plan, session: Session, row: RunRow | None = None) -> tuple[Finding, ...]:
    if not _has_limits(plan.settings):
        return ()
    from stoker.run.limits import limit_findings  # few runs have limits

    return tuple(limit_findings(plan, session, row))


def findings_again(session: Session, steps: Sequence[StepPlan], settings: PipelineSettings) -> tuple[Finding, ...]:
    """What the stack's backends say of steps now."""
    backends = session.backends((), settings)
    try:
        mine = backend_findings(steps, backends, session.secrets)
        return (*mine, *placement_findings(steps, backends, session.ask_backend))
    finally:
        for backend in set(backends.values()):
            backend.close()


def _settings_again(plan: Plan, session: Session) -> PipelineSettings:
    """The settings that the run had, under what this session's command line says."""
    stack, earlier = session.stack, plan.settings
    values: dict[str, Any] = {
        "failure_mode": plan.failure_mode,
        "max_parallel": earlier.max_parallel,
        "on_hangup": earlier.on_hangup,
        "require_proof": earlier.require_proof,
        "deadline": earlier.deadline,
        "budget": earlier.budget,
    }
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
    session.add_parts(graph.every_layer)
    planner = Planner(
        session.stack,
        blobs,
        layers=graph.layers,
        overrides=session.overrides(),
        registry=session.store.registry,
        secrets=session.secrets,
        losses=session.losses,
    )
    steps = tuple(planner.step_plan(node) for node in graph.nodes)
    plan = attrs.evolve(plan, program=program.document(blobs))
    findings = findings_again(session, steps, plan.settings)
    steps = tuple(with_rates(steps, findings, session.stack.prices))
    now = program.complete_plan(attrs.evolve(plan, steps=steps, findings=findings))
    now = session.prove(now, plan.settings)
    refuse(now)
    return plan, _body(session, program, session.prepare(now), arguments, planner, run=run)


def _with_current_code(plan: Plan, session: Session, builder: Builder | None = None) -> Plan:
    """The plan with the digests of the code as it is: what runs now must not be cached under what ran then.

    With a builder all but steps whose code was sent along: that is as it was.
    """
    codes: dict[tuple[str, str], FunctionCode] = {}
    steps = []
    for step in plan.steps:
        key = (step.source.module, step.source.qualname)
        if step.source.kind == "pickled" or (builder is not None and builder.has_work([step])):
            steps.append(step)
            continue
        if key not in codes:
            codes[key] = read_function_code(modules.function_of(step.source, session.store.blobs.read))
            remember_code(codes[key].digest, (codes[key],))
        code = codes[key]
        steps.append(
            attrs.evolve(step, code=code.digest, packages=code.packages, lookups=code.lookup_places)
            if step.code != code.digest
            else step
        )
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
            document[name] = str(value) if isinstance(value, ArtifactRef) else repr(value)
    return document


class Drive:
    """One session of a run: from here on the run has a row, and its end is always written into it."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        settings: PipelineSettings,
        observer: Terminal,
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

    def go(self, driver: Mapping[str, Any] | None = None) -> Run:
        """Run, record the end, and say how it went. `driver` is the row's document of this driver, which may leave the
        run where its platform starts it again."""
        request, store = self._session.request, self._session.store
        writer = self._session.writer(self._id, self._token, self._observer.message)
        began = time.time()
        status, error = "failed", ""
        backends: dict[str, RunningBackend] = {}
        failure: BaseException | None = None
        recorder: Recorder | None = None
        logs = detaching.log_sender(store, self._id, self._token)
        try:
            backends = self._session.backends(self._plan.steps, self._settings)
            self._session.remember_parts(self._settings)
            recorder, repeated = writer.patiently(lambda: self._recorder(writer))
            runner = RunLoop(
                run=self._id,
                recorder=recorder,
                inputs=StepBindings(store.blobs),
                backends=backends,
                observer=self._observer,
                policy=Policy(
                    pipeline=self._plan.pipeline,
                    environment=InstalledEnvironment(),
                    fail_fast=self._plan.failure_mode == "fail_fast" and self._body is None,
                    use_cache=request.cache is not False,
                    anew=repeated,
                    max_parallel=self._settings.max_parallel,
                    limits=self._limits(),
                    hooks=self._plan.hooks,
                    secrets=self._session.secrets,
                ),
            )
            # Which of a dynamic plan's steps will be reached, and how often, nobody knows yet.
            announced = self._plan if self._body is None else attrs.evolve(self._plan, steps=())
            self._observer.began(self._id, announced)
            self._observer.on_reader_gone(runner.stop_gently)
            if self._plan.origin is not None:
                self._observer.message(_repeats(self._plan.origin))
            if request.debug:
                with raised():
                    status = self._loop(runner, backends)
            else:
                detach = self._go_on_alone if self._settings.on_hangup == "detach" else None
                leave = None
                if driver is not None and DRIVER_JOB in driver:
                    leave = partial(self._leave, runner, driver, logs)
                with interrupts(runner, self._observer, computing=self._computing, on_hangup=detach, on_leave=leave):
                    status = self._loop(runner, backends)
            recorder.check_store()
            error = runner.stopped_for
        except StokerError as problem:
            failure = _loss_of_store(recorder) or problem
            status, error = "failed", str(failure)
        except KeyboardInterrupt:
            status, error = "cancelled", "interrupted"  # only under --debug: otherwise the signal stops the runner
        except BaseException as problem:  # the end is recorded, whatever it was, and then raised again
            failure = problem
            import traceback

            # Also of one whose text cannot be made.
            error = "".join(traceback.format_exception_only(type(problem), problem)).strip()
            loss = _loss_of_store(recorder)
            if loss is not None:
                raise loss from problem
            raise
        finally:
            try:
                if logs is not None:
                    logs.close()
                writer.end(status=status, ended=time.time(), error=error)
            finally:
                for backend in set(backends.values()):
                    backend.close()
        if failure is None:
            writer.patiently(lambda: self._note_times(began))
        self._observer.ended(status)
        if isinstance(failure, InfrastructureError) and not writer.is_overtaken:
            self._observer.message(f"finished steps are kept: stoker resume {self._id}, once that is mended")
        if failure is not None:
            raise failure
        run = writer.patiently(lambda: client_of(store).run(self._id))
        if status == "cancelled":
            what, more = (f"stopped: {error}", " --set deadline=… or budget=…") if error else ("cancelled", "")
            raise RunCancelled(f"run {self._id} was {what}", run=run, fix=f"stoker resume {self._id}{more}")
        if status != "succeeded":
            summary = writer.patiently(lambda: self._summary(run))
            raise RunFailed(summary, run=run, fix=f"stoker logs {self._id} STEP; stoker resume {self._id}")
        return run

    def _limits(self) -> RunLimits | None:
        if not _has_limits(self._settings):
            return None
        from stoker.run.limits import limits_of

        return limits_of(self._session.store, self._id, self._settings)

    def _note_times(self, began: float) -> None:
        """Have the terminal say what the record says; of a run that was resumed, what this session took."""
        run = client_of(self._session.store).run(self._id)
        if self._resumed:
            self._observer.progress.end(None, run.queue_seconds_since(began))
        else:
            self._observer.progress.end(run.active_seconds, run.queue_seconds)

    def _recorder(self, writer: RunWriter) -> tuple[Recorder, Callable[[StepPlan], bool] | None]:
        """The recorder, with what earlier sessions and the origin have; and which steps run whatever the cache has."""
        recorder = Recorder(self._session.store, run=self._id, token=self._token, writer=writer)
        recorder.use_model(self._plan.model, self._plan.model_version)
        if self._resumed:
            recorder.load_earlier()
            recorder.record_event("resumed", "", {})
        return recorder, reuse.load(self._plan, self._session.store.records, recorder)

    def _go_on_alone(self) -> None:
        """Leave the terminal: what is written from now on goes to the file that a detached driver has."""
        detaching.leave_terminal(self._session.store, self._id)
        self._observer.leave_terminal()

    def _leave(self, runner: RunLoop, driver: Mapping[str, Any], logs: LogSender | None) -> None:
        """Leave the run to the next start of this driver's job."""

        def end_process() -> None:
            detaching.leave_run(self._session.store, self._id, self._token, driver)
            place = driver[DRIVER_JOB][DRIVER_PLACE]
            self._observer.message(
                f"this driver leaves; jobs go on, and {place} drives the run as soon as it starts again"
            )
            if logs is not None:
                logs.send()
            # A body of a dynamic pipeline may compute for hours: this ends as a killed driver does.
            os._exit(LEFT)

        runner.leave(end_process)

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


def _repeats(origin: RunOrigin) -> str:
    """What a run that repeats another one takes from it, in a line."""
    if not origin.reuse:
        return f"repeats run {origin.run}"
    again = f"'{origin.start}' and what comes after it run again" if origin.start else "what it did not finish runs"
    return f"repeats run {origin.run}: its results are taken by reference, {again}"


def _loss_of_store(recorder: Recorder | None) -> StoreError | None:
    """The error that says that the store is gone, whatever else failed because of that; None if it is there."""
    try:
        if recorder is not None:
            recorder.check_store()
    except StoreError as error:
        return error
    return None


def client_of(store: Store) -> Client:
    """A client of a store that is open; half of its imports are made while the first workers start."""
    from stoker.client import Client

    return Client(store=store, trust=True)  # the run's own store, to which it writes


def view_of(*, verbose: bool) -> Terminal:
    """The view of a run that this process drives: a table in a notebook, else the terminal's."""
    if not verbose or not in_notebook():
        return Terminal(verbose=verbose)
    from stoker.report.notebook import NotebookView  # only where a notebook shows it

    return NotebookView()


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process, which VS Code and Colab use, too."""
    loaded = sys.modules.get("IPython")
    if loaded is None:
        return False
    shell = loaded.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
