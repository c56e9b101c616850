"""From a called pipeline to a finished run: the one place that both `python train.py` and `stoker run train.py` use.

Ties the floors together: configuration and graph become a plan, the plan a run in the store, the engine runs it, the
terminal shows it, and the client's `Run` is handed back.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import NotFound, UsageError
from stoker.core.findings import Finding
from stoker.core.plan import Plan, StepPlan
from stoker.core.request import RunRequest
from stoker.core.settings import Layer, PipelineSettings
from stoker.engine.dynamic import Body
from stoker.plan import plandoc, source
from stoker.plan.layers import resolve_pipeline
from stoker.plan.planner import Planner, backend_findings, check_names, placement_findings, refuse, replan
from stoker.plan.planner import plan as planned
from stoker.report.terminal import Terminal
from stoker.run import detaching
from stoker.run.detaching import Start
from stoker.run.driving import Drive, client_of
from stoker.run.program import Program, ProgramStart, program_of
from stoker.run.session import Session
from stoker.store import artifacts
from stoker.store.rows import RunRow
from stoker.worker import modules
from stoker.worker.identity import this_process

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.run.building import Builder

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH: Final = 1_735_689_600
"""2025-01-01: the ids' clock starts here, so that eight characters last until the year 2059."""


def plan(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Plan:
    """The plan of a program, with its findings; nothing runs, and nobody is refused."""
    session = Session(request, stack=program.stack)
    return _planned(session, program, arguments)[0]


def _planned(
    session: Session, program: Program, arguments: Mapping[str, Any]
) -> tuple[Plan, Planner, PipelineSettings]:
    bound = _bound(session, program, arguments)
    alias_main()
    session.hint(program)
    graph = program.graph_of(bound)
    overrides = session.overrides()
    settings, _ = resolve_pipeline((session.stack.layer, *graph.layers, *overrides.every), session.stack)
    planner = Planner(session.stack, session.store.blobs, layers=graph.layers, overrides=overrides)
    checkers = session.backends((), settings)
    try:
        made = planned(
            graph,
            planner,
            checkers,
            stack=session.stack.name,
            failure_mode=settings.failure_mode,
            source=planner.source_of(program.function, program.where) if program.dynamic else None,
        )
        made = attrs.evolve(
            made, settings=settings, findings=(*made.findings, *placement_findings(made.steps, checkers))
        )
    finally:
        for backend in set(checkers.values()):
            backend.close()
    made = attrs.evolve(program.completed(made), program=program.document())
    if made.steps:
        check_names(overrides, made.steps)
    findings = (*made.findings, *session.findings, *session.proofs(made, settings))
    return attrs.evolve(made, findings=findings), planner, settings


def _bound(session: Session, program: Program, arguments: Mapping[str, Any]) -> dict[str, Any]:
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
    made, planner, settings = _planned(session, program, arguments)
    refuse(made)
    if request.detach:
        detaching.check(session, made, settings)
    made = attrs.evolve(made, hooks=planner.hooks(program.hooks, made.where))
    bound = _bound(session, program, arguments)
    observer = Terminal(verbose=not request.quiet)
    builder = session.builder(settings, observer.said)
    if builder is not None:
        made = session.furnished(made, builder)
    made = session.housed(made)
    now = time.time()
    id, token = new_id(now), new_token()
    row = RunRow(
        id=id,
        pipeline=request.name or made.pipeline,
        created=now,
        started=now,
        parameters=_shown_parameters(program.shown(bound)),
        tags=tuple(dict.fromkeys((*program.tags, *request.tags))),
        source=made.where,
        stack=session.stack.name,
        failure_mode=made.failure_mode,
        dynamic=made.dynamic,
        driver=this_process(),
        token=token,
        heartbeat=now,
    )
    if request.detach:
        return _detached(session, row, made, settings)
    session.store.records.create_run(row, plan=plandoc.dump(made))
    if request.began is not None:
        request.began(id)
    body = _body(session, program, made, bound, planner) if made.dynamic else None
    return Drive(session, made, settings, observer, id=id, token=token, body=body).go()


def _detached(session: Session, row: RunRow, made: Plan, settings: PipelineSettings) -> Run:
    """The run, which goes on by itself; its id is all that is written to stdout."""
    detaching.started(session, row, made, settings)
    run = client_of(session.store).run(row.id)
    if session.request.began is not None:
        session.request.began(row.id)
    sys.stdout.write(f"{row.id}\n")
    sys.stdout.flush()
    if not session.request.quiet:
        Terminal().said(detaching.told(row.id, run.awaits))
    return run


def _body(session: Session, program: Program, made: Plan, arguments: Mapping[str, Any], planner: Planner) -> Body:
    tags = (*program.tags, *session.request.tags)
    return program.body(ProgramStart(plan=made, arguments=arguments, planner=planner, ready=session.ready, tags=tags))


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
    with detaching.answerable(session.store.records, row.id, token):
        start = detaching.start_of(row)
        if start is not None:
            request = start.completed(request)
        elif run.status == "running":
            raise UsageError(
                f"run {row.id} is still running (driver: pid {row.driver.get('pid')} on {row.driver.get('host')})",
                fix=f"stoker cancel {row.id} first",
            )
        elif run.status == "succeeded" and not request.again:
            return run
        if start is not None or (request.stack is None and row.stack != session.stack.name):
            session = Session(attrs.evolve(request, stack=request.stack or row.stack))
        return _driven(session, row, start, program=program, token=token)


def _driven(session: Session, row: RunRow, start: Start | None, *, program: Program | None, token: str) -> Run:
    """Take a run over and drive it; nothing is done where the driver of a detached run comes too late."""
    text = session.store.records.plan(row.id)
    if not text:
        raise NotFound(f"run {row.id} has no plan, so it cannot go on", fix="start its pipeline again")
    made = plandoc.load(text)
    settings = _settings_again(made, session)
    observer = Terminal(verbose=not session.request.quiet)
    if start is not None and token and not made.dynamic:
        session.code = start.code
        made = session.housed(_with_code_of_now(made, session, session.builder(settings, observer.said)))
    else:
        made = _made_again(made, session, settings, observer)
    before, body = made.program, None
    if made.dynamic:
        made, body = _body_again(row.id, made, session, program)
    mine = new_token()
    plan = plandoc.dump(made) if made.package or made.program != before else ""
    if not session.store.records.take_over(row.id, expected=row.token, token=mine, driver=this_process(), plan=plan):
        if token:
            return client_of(session.store).run(row.id)
        raise UsageError(f"run {row.id} was taken over by another driver just now", fix=f"stoker show {row.id}")
    if row.started is None:
        session.store.records.set_run(row.id, mine, started=time.time())
    resumed = row.sessions > 0
    return Drive(session, made, settings, observer, id=row.id, token=mine, body=body, resumed=resumed).go()


def _made_again(made: Plan, session: Session, settings: PipelineSettings, observer: Terminal) -> Plan:
    """A run's plan for this session, checked again, with code and images as they are now."""
    templates = made.dynamic and made.steps  # they are planned again, from the program as it is now
    if not templates:
        made = replan(_with_code_of_now(made, session), session.overrides(), session.stack)
    findings = findings_again(session, made.steps, settings) if not templates else ()
    made = attrs.evolve(made, settings=settings, failure_mode=settings.failure_mode, findings=findings)
    refuse(made)
    builder = session.builder(settings, observer.said)
    if builder is not None:
        made = session.furnished(made, builder)
    return made if templates else session.housed(made)


def findings_again(session: Session, steps: Sequence[StepPlan], settings: PipelineSettings) -> tuple[Finding, ...]:
    """What the stack's backends say of steps now."""
    backends = session.backends((), settings)
    try:
        return (*backend_findings(steps, backends), *placement_findings(steps, backends))
    finally:
        for backend in set(backends.values()):
            backend.close()


def _settings_again(made: Plan, session: Session) -> PipelineSettings:
    """The settings that the run had, under what this session's command line says."""
    stack, had = session.stack, made.settings
    values: dict[str, Any] = {"failure_mode": made.failure_mode, "max_parallel": had.max_parallel}
    recorded = Layer(origin="the run as it was started", values=values)
    options = had.backend if made.stack == stack.name else {}
    return resolve_pipeline((stack.layer, recorded, *session.overrides().every), stack, recorded_options=options)[0]


def _body_again(run: str, made: Plan, session: Session, program: Program | None) -> tuple[Plan, Body]:
    """The plan and the body of a dynamic program for another session: it runs from its beginning, over what is kept.

    Steps, settings and code are as they are now, parameters as they were.
    """
    if made.source is None or made.source.kind == "pickled":
        raise UsageError(f"run {run} is of a dynamic pipeline that no file defines", fix="call the pipeline again")
    if program is None:
        program = program_of(modules.object_of(made.source))
    if program is None:
        raise UsageError(f"{made.source.qualname} of {made.source.path} is no pipeline and no flow any more")
    alias_main()
    blobs = session.store.blobs
    program.resumed(made, blobs)
    session.hint(program)
    arguments = {} if made.steps else {n: artifacts.load(from_wire(wire), blobs) for n, wire in made.parameters.items()}
    graph = program.outline(arguments)
    planner = Planner(session.stack, blobs, layers=graph.layers, overrides=session.overrides())
    steps = tuple(planner.step_plan(node) for node in graph.nodes)
    made = attrs.evolve(made, program=program.document())
    now = program.completed(attrs.evolve(made, steps=steps, findings=findings_again(session, steps, made.settings)))
    refuse(now)
    return made, _body(session, program, session.housed(now), arguments, planner)


def _with_code_of_now(made: Plan, session: Session, builder: Builder | None = None) -> Plan:
    """The plan with the digests of the code as it is: what runs now must not be cached under what ran then.

    With a builder all but steps whose code was sent along: that is as it was.
    """
    digests: dict[tuple[str, str], str] = {}
    steps = []
    for step in made.steps:
        known = (step.source.module, step.source.qualname)
        if step.source.kind == "pickled" or (builder is not None and builder.needed([step])):
            steps.append(step)
            continue
        if known not in digests:
            digests[known] = source.code_digest(modules.function_of(step.source, session.store.blobs.read))
        steps.append(attrs.evolve(step, code=digests[known]) if step.code != digests[known] else step)
    return attrs.evolve(made, steps=tuple(steps))


def new_id(now: float) -> str:
    """A run's id: eight characters of time, so that ids sort by it, and four drawn at random."""
    number = int((now - _EPOCH) * 1000)
    time_part = "".join(_ALPHABET[number >> shift & 31] for shift in range(35, -5, -5))
    return time_part + "".join(_ALPHABET[byte & 31] for byte in os.urandom(4))


def new_token() -> str:
    """What a driver holds a run by: who takes the run over writes another one."""
    return os.urandom(8).hex()


def _shown_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The pipeline's parameters as JSON for the record; what is not JSON is shown as Python would."""
    import json

    shown: dict[str, Any] = {}
    for name, value in parameters.items():
        try:
            shown[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            shown[name] = repr(value)
    return shown
