"""One task of an earlier run once more, on its own: `python flow.py spin train`.

What the task is given is found by following that run: it is the same flow, whose tasks are asked for what they kept
instead of being started. Nothing of the earlier run is changed. The task runs on this machine, with the code as it is
now. What it makes is in a temporary store, unless it is to be kept: then it is a run of its own in the store of the
stack, of `Train.spin` where the flow is `Train`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections import deque
from pathlib import Path
from typing import Any, ContextManager, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.backends.registry import BACKENDS
from stoker.client import Client, Run
from stoker.core.artifact import from_wire
from stoker.core.errors import GraphError, NotFound, RunCancelled, RunFailed, UsageError, nearest
from stoker.core.graph import OWN
from stoker.core.plan import Plan, StepPlan
from stoker.core.request import RunRequest
from stoker.core.settings import NO_RETRY, PipelineSettings
from stoker.core.status import STEP_GOOD
from stoker.core.words import time_text
from stoker.flows.decorators import KINDS, notes_of, platform_names
from stoker.flows.definition import FlowDefinition, task_options, templates
from stoker.flows.execution import template_of
from stoker.flows.joins import TaskState, Traversal, Trees, Wire, joined_inputs
from stoker.flows.namespaces import SPIN_SUFFIX, get_namespace
from stoker.flows.parameters import resolved_parameters
from stoker.flows.transitions import steps_of
from stoker.plan import plandoc
from stoker.plan.layers import resolve_pipeline
from stoker.plan.planner import Planner, check_names, refuse
from stoker.report.terminal import Terminal
from stoker.run import driver
from stoker.run.driver import Drive
from stoker.run.session import Session
from stoker.stacks import ORCHESTRATOR, THIS_MACHINE, Component, Stack
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.borrowed import BorrowedBlobs, temporary_store
from stoker.store.records import Records
from stoker.store.rows import RunRow, StepRow
from stoker.store.store import Store
from stoker.worker import spare
from stoker.worker.processes import this_process

LEFT_OUT: Final = ("retry", "cache")
"""Decorators that a task on its own does not have, beside those of platforms: it is tried once, computed anew, and runs
here."""
_STATUS_WORDS: Final = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "skipped": "was skipped",
    "pending": "did not begin",
}
"""A task's status in words, where it has not succeeded; anything else did not end."""


class OriginRun:
    """A run that is over, or stopped, with what its tasks kept."""

    def __init__(self, run: str, records: Records, traversal: Traversal) -> None:
        self._run = run
        self._records = records
        self._traversal = traversal
        self._rows: Mapping[str, StepRow] = {row.key: row for row in records.all_steps(run)}
        self._seen: list[str] = []
        self._open: list[tuple[TaskState, str]] = []
        self._astray: list[GraphError] = []

    def find_task(self, step: str, key: str = "", *, ancestors: frozenset[str]) -> tuple[TaskState, Trees]:
        """A task of a step, its first one if no key is named, and what it is given.

        `ancestors` are the steps from which the step can be reached. `NotFound` where the run did not come so far.
        """
        for task, trees in self._tasks():
            if task.step != step:
                continue
            if key in ("", task.key):
                return task, trees
            if task.nodes and key.startswith(f"{task.key}["):
                raise UsageError(
                    f"'{key}' is one node of {task.nodes}, which run together or not at all",
                    fix=f"spin all of them: spin {self._run}/{step}/{task.key}",
                )
            self._seen.append(task.key)
        raise self._not_found(step, key, ancestors)

    def _tasks(self) -> Iterator[tuple[TaskState, Trees]]:
        """Every task that was started, or could have been, in the order in which they follow each other."""
        line = deque(self._traversal.begin().tasks)
        while line:
            task, trees = line.popleft()
            yield task, trees
            row = self._rows.get(task.key)
            if row is None or row.status not in STEP_GOOD:
                self._open.append(
                    (task, "did not end" if row is None else _STATUS_WORDS.get(row.status, "did not end"))
                )
                continue
            outputs = {out.name: out.artifact.wire() for out in self._records.outputs(self._run, task.key)}
            try:
                line.extend(self._traversal.after(task, outputs).tasks)
            except GraphError as error:
                self._astray.append(error)

    def _not_found(self, step: str, key: str, ancestors: frozenset[str]) -> NotFound:
        if self._seen:
            return NotFound(f"run {self._run} has no task '{key}' of step '{step}'{nearest(key, self._seen)}")
        waits = next(((task, was) for task, was in self._open if task.step in ancestors), None)
        if waits is not None:
            task, was = waits
            return NotFound(
                f"run {self._run} did not come to step '{step}': task '{task.key}' {was}",
                fix=f"`resume` the run (spin {self._run}/{task.key} tries that task alone), or name another run: "
                f"spin RUN/{step}",
            )
        astray = f": {self._astray[0].message}" if self._astray else ", it went another way"
        return NotFound(
            f"run {self._run} did not come to step '{step}'{astray}",
            fix=f"run the flow with the step in it, or name another run: spin RUN/{step}",
        )


def with_artifacts(trees: Trees, values: Mapping[str, Any], blobs: Blobs) -> Trees:
    """What a task is given, with other values for some artifacts and parameters; in a join those of every input."""
    reserved = sorted(name for name in values if name in OWN)
    if reserved:
        raise UsageError(f"'{reserved[0]}' is the flow's own, and no artifact", fix="leave it out")
    wires = {name: artifacts.save(value, blobs).wire() for name, value in values.items()}
    parameters = {name: wire for name, wire in wires.items() if name in trees["parameters"]["dict"]}
    other_wires = {name: wire for name, wire in wires.items() if name not in parameters}
    inputs = {**trees, "parameters": _with_wires(trees["parameters"], parameters)}
    if "inputs" not in trees:
        return {**inputs, "artifacts": _with_wires(trees["artifacts"], other_wires)}
    entries = [{**entry, "artifacts": {**entry["artifacts"], **other_wires}} for entry in join_entries(trees, blobs)]
    return {**inputs, "inputs": {"value": joined_inputs(entries, blobs)}}


def _with_wires(tree: Trees, wires: Mapping[str, Wire]) -> Trees:
    return {"dict": {**tree["dict"], **{name: {"value": wire} for name, wire in wires.items()}}}


def join_entries(trees: Trees, blobs: Blobs) -> list[dict[str, Any]]:
    """The tasks that meet in a join; none for another task."""
    entries: list[dict[str, Any]] = (
        artifacts.load(from_wire(trees["inputs"]["value"]), blobs) if "inputs" in trees else []
    )
    return entries


def single_task_plan(plan: Plan, step: StepPlan, key: str, trees: Trees) -> Plan:
    """The plan of a task on its own: it is tried once, in this machine's Python, and is not found again."""
    settings = attrs.evolve(step.settings, retry=NO_RETRY, cache=False, docker=None, step_operator=None)
    one = attrs.evolve(step, key=key, inputs=trees, after=(), settings=settings, backend=ORCHESTRATOR)
    return attrs.evolve(plan, steps=(one,), dynamic=False, source=None)


_FOLDER: Final = "spins"
"""Below the home: stores for the moment. On the disk of the artifacts, so that theirs are borrowed without a copy."""
_SHAPES: Final = "write spin STEP, RUN/STEP or RUN/STEP/TASK"


@attrs.frozen(kw_only=True)
class SpinTarget:
    """What is to be run: a step, maybe of a certain run, maybe a certain task of it; and how."""

    run: str
    step: str
    task: str
    keep: bool
    bare: bool
    artifacts: Mapping[str, Any]


def command(
    flow: FlowDefinition, words: Sequence[str], options: Mapping[str, Any], request: RunRequest, flags: Sequence[str]
) -> int:
    """Run the task; 0, or the error that says how it went. `flags` are the options that it takes."""
    if not request.debug:
        spare.start(flow.worker_imports)
    try:
        target = _parse_target(flow, words, options, flags)
        session = Session(attrs.evolve(request, cache=False))
        space = options["namespace"] or None if "namespace" in options else get_namespace()
        origin = _origin(flow, target, Client(store=session.store, trust=True), space)
        _spin(session, flow, target, origin)
    finally:
        spare.discard()
    return 0


# What is asked for


def _parse_target(
    flow: FlowDefinition, words: Sequence[str], options: Mapping[str, Any], flags: Sequence[str]
) -> SpinTarget:
    stray = next((word for word in words if word.startswith("--")), None)
    if stray is not None:
        raise UsageError(
            f"spin has no option {stray}{nearest(stray, flags)}",
            fix="parameters are those of the earlier run; --artifacts-module FILE has other values",
        )
    if len(words) != 1:
        raise UsageError(f"spin takes one step, not {len(words)}", fix=_SHAPES)
    run, step, task = _parse_path(flow, words[0])
    file = options.get("artifacts-module")
    return SpinTarget(
        run=run,
        step=step,
        task=task,
        keep=_flag(options, "persist"),
        bare=_flag(options, "skip-decorators"),
        artifacts={} if file is None else _artifacts_of(Path(file)),
    )


def _flag(options: Mapping[str, Any], name: str) -> bool:
    if options.get(name) and options.get(f"no-{name}"):
        raise UsageError(f"--{name} and --no-{name} are both given", fix="leave one out")
    return bool(options.get(name))


def _parse_path(flow: FlowDefinition, text: str) -> tuple[str, str, str]:
    """Run, step and task of a path; empty is the newest, or the first."""
    steps = flow.graph.steps
    parts = text.split("/")
    if len(parts) > 1 and parts[0] == flow.name:
        parts = parts[1:]
    run = parts.pop(0) if len(parts) > 1 and parts[0] not in steps else ""
    step = _step_of(parts[0])
    if step not in steps:
        raise UsageError(f"flow {flow.name} has no step '{step}'{nearest(step, steps)}", fix=_SHAPES)
    task = parts[-1] if parts[-1] != step or len(parts) > 1 else ""
    if len(parts) > 2 or _step_of(parts[-1]) != step:
        raise UsageError(f"'{text}' names no task of step '{step}'", fix=_SHAPES)
    return run, step, task


def _step_of(key: str) -> str:
    return key.partition("[")[0].partition("#")[0]


def _artifacts_of(file: Path) -> Mapping[str, Any]:
    """The artifacts of a module: its dict ARTIFACTS."""
    fix = 'write a Python file with ARTIFACTS = {"name": value}'
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise UsageError(f"--artifacts-module {file}: there is no such Python file", fix=fix)
    driver.alias_main()
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the person's module
        raise UsageError(
            f"--artifacts-module {file}: {type(error).__name__}: {error}", fix="mend the module"
        ) from error
    values = getattr(module, "ARTIFACTS", None)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"--artifacts-module {file}: it has no dict ARTIFACTS of values by name", fix=fix)
    return values


def _origin(flow: FlowDefinition, target: SpinTarget, client: Client, space: str | None) -> Run:
    """The run that is named, or the newest in the namespace."""
    if not target.run:
        runs = client.runs(pipeline=flow.name, tag=space, limit=1)
        if not runs:
            where = f" in namespace '{space}'" if space else ""
            raise NotFound(
                f"flow {flow.name} has not been run yet{where}: a task is given what an earlier run gave it",
                fix="`run` the flow once" + ("; --namespace= looks at everybody's runs" if space else ""),
            )
        return runs[0]
    run = client.run(target.run)
    if run.pipeline == flow.name + SPIN_SUFFIX:
        raise UsageError(f"run {run.id} is a spin itself, of one task", fix="name the run of a whole flow")
    if run.pipeline != flow.name:
        raise UsageError(f"run {run.id} is of '{run.pipeline}', not of '{flow.name}'", fix="name one of this flow")
    return run


# Running it


def _spin(session: Session, flow: FlowDefinition, target: SpinTarget, origin: Run) -> None:
    lender, home = session.store, session.stack.home
    moment: ContextManager[Store] = (
        contextlib.nullcontext(lender) if target.keep else temporary_store(lender, home / _FOLDER)
    )
    with moment as store:
        elsewhere = BACKENDS.load(session.stack.orchestrator.flavor).room is None
        session.stack, session.store = _local_stack(session.stack), store
        plan, task = _plan(session, flow, target, lender, origin)
        id = driver.new_id(time.time())
        observer = _SpinTerminal(
            f"{flow.name}/{id}/{task.step}/{task.key}" if target.keep else "", session.request.quiet
        )
        observer.message(f"{flow.name}: {task.key} on its own, as run {origin.id} reached it")
        for line in _spin_messages(flow, target):
            observer.message(line)
        if elsewhere:
            observer.message(f"{task.step}: runs here, in no image")
        _drive(session, flow, plan, observer, id=id, origin=origin)


def _local_stack(stack: Stack) -> Stack:
    """The stack with this machine in the place of all platforms."""
    local = Component(flavor=THIS_MACHINE)
    operators = dict.fromkeys(stack.step_operators, local)
    if BACKENDS.load(stack.orchestrator.flavor).room is not None:
        return attrs.evolve(stack, step_operators=operators)
    return attrs.evolve(stack, orchestrator=local, step_operators=operators)


def _plan(
    session: Session, flow: FlowDefinition, target: SpinTarget, lender: Store, origin: Run
) -> tuple[Plan, TaskState]:
    """The plan of the one task: code, decorators and settings as they are now, what it is given as it was."""
    driver.alias_main()
    text = lender.records.plan(origin.id)
    if not text:
        raise NotFound(f"run {origin.id} has no plan, so nobody knows what its tasks were given", fix="run it again")
    earlier = plandoc.load(text)
    flow.recall(earlier, lender.blobs)
    flow.attach(_remaining_decorators(flow, target))
    session.hint(flow)
    graph, overrides = flow.outline({}), session.overrides()
    layers = (session.stack.layer, *graph.layers, *overrides.every)
    settings, _ = resolve_pipeline(layers, session.stack)
    planner = Planner(session.stack, session.store.blobs, layers=graph.layers, overrides=overrides)
    steps = tuple(planner.step_plan(node) for node in graph.nodes)
    check_names(overrides, steps)
    parameters = _parameters(flow, earlier.parameters, session.store)
    task, trees = _find_task(flow, target, origin, lender, parameters=parameters, store=session.store)
    plans = templates(flow, steps, planner, tags=origin.tags, origin=origin.id)
    blank = Plan(
        pipeline=flow.name + SPIN_SUFFIX,
        steps=(),
        parameters=parameters,
        failure_mode="fail_fast",
        stack=session.stack.name,
        settings=settings,
        where=flow.where,
    )
    plan = single_task_plan(blank, _template(session, plans[task.step], task, settings), task.key, trees)
    return attrs.evolve(plan, findings=driver.findings_again(session, plan.steps, settings)), task


def _remaining_decorators(flow: FlowDefinition, target: SpinTarget) -> dict[str, list[str]]:
    """What the command line, this one or the run's, says of decorators, without those that a spin does not have."""
    words = flow.command_line
    every = [name for name, kind in KINDS.items() if not kind.of_flow]
    out = {*words.get("without", ()), *(every if target.bare else (*LEFT_OUT, *platform_names()))}
    attached = [text for text in words.get("with", ()) if not target.bare and text.partition(":")[0] not in out]
    return {"with": attached, "without": sorted(out)}


def _parameters(flow: FlowDefinition, were: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The parameters as they were; one that the flow did not have then has its default."""
    parameters = dict(were)
    configs = flow.configs.named
    for parameter in resolved_parameters(flow.kind, flow.configs):
        if parameter.name not in parameters and not parameter.required:
            value = parameter.resolve_default(flow.name, configs)
            parameters[parameter.name] = artifacts.save(value, store.blobs).wire()
    return parameters


def _find_task(
    flow: FlowDefinition, target: SpinTarget, origin: Run, lender: Store, *, parameters: Mapping[str, Any], store: Store
) -> tuple[TaskState, Trees]:
    """The task as the earlier run reached it, with what it is given."""
    notes = {name: options.notes for name, options in task_options(flow).items()}
    traversal = Traversal(flow.graph, parameters, store.blobs, notes=notes)
    predecessors = flow.graph.before()
    ancestors = list(predecessors[target.step])
    for name in ancestors:
        ancestors += [predecessor for predecessor in predecessors[name] if predecessor not in ancestors]
    earlier = OriginRun(origin.id, lender.records, traversal)
    task, trees = earlier.find_task(target.step, target.task, ancestors=frozenset(ancestors))
    if target.artifacts:
        trees = with_artifacts(trees, target.artifacts, store.blobs)
    if isinstance(store.blobs, BorrowedBlobs):
        store.blobs.borrow_all(dict(trees))
        store.blobs.borrow_all(join_entries(trees, store.blobs))
    return task, trees


def _template(session: Session, template: StepPlan, task: TaskState, settings: PipelineSettings) -> StepPlan:
    backends: dict[str, RunningBackend] = session.backends((), settings)
    try:
        return template_of(template, task, backends)
    finally:
        for backend in set(backends.values()):
            backend.close()


def _spin_messages(flow: FlowDefinition, target: SpinTarget) -> list[str]:
    """Lines to print before the step runs: requests that are only hints, and decorators that are left out."""
    lines = [line for line in flow.messages if line.startswith(f"{target.step}: ")]
    has = {note.name for note in notes_of(steps_of(flow.kind)[target.step])}
    left_out = KINDS if target.bare else (*platform_names(), *LEFT_OUT)
    out = [f"@{name}" for name in left_out if name in has]
    if out:
        lines.append(f"{target.step}: without {', '.join(out)}")
    if "catch" in has and not target.bare:
        lines.append(f"{target.step}: @catch catches nothing here, so that a failure is seen")
    return lines


def _drive(
    session: Session, flow: FlowDefinition, plan: Plan, observer: _SpinTerminal, *, id: str, origin: Run
) -> None:
    refuse(plan)
    builder = session.builder(plan.settings, observer.message)
    if builder is not None:
        plan = session.stage(plan, builder)
    plan = session.prepare(plan)
    now, token = time.time(), driver.new_token()
    row = RunRow(
        id=id,
        pipeline=plan.pipeline,
        created=now,
        started=now,
        parameters=origin.parameters,
        tags=(flow.namespace,),
        source=plan.where,
        stack=plan.stack,
        failure_mode=plan.failure_mode,
        driver=this_process(),
        token=token,
        heartbeat=now,
    )
    session.store.records.create_run(row, plan=plandoc.dump(plan))
    if session.request.began is not None:
        session.request.began(id)
    try:
        Drive(session, plan, plan.settings, observer, id=id, token=token, body=None).go()
    except RunCancelled:
        raise RunCancelled(f"the spin of {plan.steps[0].key} was stopped", fix="spin it again") from None
    except RunFailed as error:
        summary = error.message.partition(": ")[2]
        raise RunFailed(summary, fix=f"mend it, and spin it again: spin {origin.id}/{plan.steps[0].key}") from None


class _SpinTerminal(Terminal):
    """A run of one task in the terminal; `pathspec` is the task's path, empty where nothing is kept."""

    def __init__(self, pathspec: str, quiet: bool) -> None:
        super().__init__(verbose=not quiet)
        self._pathspec = pathspec

    def _closing_lines(self, status: str) -> list[str]:
        took = time_text(time.monotonic() - self.progress.started)
        lines = ["", f"{self._mark(status)} {self.progress.pipeline} {status} in {took}"]
        if not self._pathspec:
            return [*lines, "  nothing of it was kept; --persist keeps artifacts, log and card"]
        path = self._pathspec.partition("/")[2]
        return [*lines, f"  look: dump {path} · card view {path} · in Python: Task('{self._pathspec}')"]
