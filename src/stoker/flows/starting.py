"""From a flow's class and its plan to what the engine runs: templates of its tasks, and what they know of the run."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import SourceError
from stoker.core.plan import Plan, StepPlan
from stoker.flows.current import VARIABLE
from stoker.flows.decorators import notes_of
from stoker.flows.definition import FlowDefinition
from stoker.flows.execution import ATTACHED, FlowBody, TaskOptions
from stoker.flows.parameters import username
from stoker.flows.settings import WORKERS, StepOptions, branch_of
from stoker.flows.spec import FlowSpec, parameters_of
from stoker.flows.transitions import steps_of
from stoker.flows.user_decorators import USERS
from stoker.plan import plandoc
from stoker.plan import source as sources
from stoker.plan.planner import Planner
from stoker.store import artifacts
from stoker.store.store import Store


def body(flow: FlowDefinition, plan: Plan, planner: Planner, *, tags: Sequence[str], fail_fast: bool) -> FlowBody:
    """The run of a flow, ready to go."""
    return FlowBody(
        flow.graph,
        templates(flow, plan.steps, planner, tags=tags),
        plan.parameters,
        planner.blobs,
        options=task_options(flow),
        fail_fast=fail_fast,
        said=flow.said,
        attached=flow.command_line,
    )


def templates(
    flow: FlowDefinition, steps: Sequence[StepPlan], planner: Planner, *, tags: Sequence[str], origin: str = ""
) -> dict[str, StepPlan]:
    """The plans of a flow's tasks by step: where a worker finds its class, and what it is told of the run.

    `origin` is the run whose task is run once more on its own.
    """
    found = planner.source_of(flow.written, flow.where)
    if found.kind == "pickled":
        raise SourceError(
            f"flow {flow.name} is in no file, where workers could find it", where=flow.where, fix="put it into a file"
        )
    told = json.dumps({**_told(flow, tags), "origin": origin}, separators=(",", ":"))
    functions = steps_of(flow.written)
    made: dict[str, StepPlan] = {}
    for step in steps:
        settings = attrs.evolve(step.settings, environment={**step.settings.environment, VARIABLE: told})
        source = attrs.evolve(found, qualname=f"{found.qualname}.{step.name}")
        code = _code(flow.kind, functions[step.name]) if settings.cache else step.code
        made[step.name] = attrs.evolve(step, settings=settings, source=source, code=code)
    return made


def task_options(flow: FlowDefinition) -> dict[str, TaskOptions]:
    """What each step's decorators say of its tasks."""
    return {name: _options(found) for name, found in flow.options.items()}


def recall(flow: FlowDefinition, store: Store, run: str) -> None:
    """Let a flow have the decorators that the command line of its run attached, unless this one says some itself.

    Its configs are those that the run began with.
    """
    events = [event for event in store.records.events(run) if event.kind == ATTACHED]
    if events:
        mine = {name: said for name, said in flow.command_line.items() if name != "environment"}
        flow.attach({**events[-1].data, **(mine if any(mine.values()) else {})})
    known = [found.name for found in parameters_of(flow.written).values() if hasattr(type(found), "is_flow_config")]
    if known:
        given = plandoc.load(store.records.plan(run)).parameters
        flow.recall({name: artifacts.load(from_wire(given[name]), store.blobs) for name in known if name in given})


def _options(found: StepOptions) -> TaskOptions:
    """A step's options as far as the engine and the worker look at them."""
    profile = found.note("gpu_profile")
    notes = {note.name: dict(note.values) for note in found.notes if note.name in WORKERS}
    if "card" in notes:  # a step may have several
        ids = [note.values["id"] for note in found.notes if note.name == "card"]
        notes["card"] = {"ids": [id for id in ids if id is not None]}
    return TaskOptions(
        catch=found.catch,
        profile=profile.values["artifact_prefix"] if profile and profile.values["include_artifacts"] else None,
        notes=notes,
    )


def _told(flow: FlowDefinition, tags: Sequence[str]) -> dict[str, Any]:
    """What `current` says of the run as a whole."""
    project = next((note for note in notes_of(flow.kind) if note.name == "project"), None)
    return {
        "flow": flow.name,
        "tags": list(dict.fromkeys((*flow.tags, *tags))),
        "user": username(),
        "namespace": flow.namespace,
        "max_splits": flow.max_splits,
        "project": "" if project is None else project.values["name"],
        "branch": "" if project is None else branch_of(project),
        "production": bool(project is not None and project.values.get("production")),
        "with": flow.command_line.get("with", []),
        "graph": {name: list(step.targets) for name, step in flow.graph.steps.items()},
    }


def _code(kind: type, function: Any) -> str:
    """The digest of a step: its own code, what is around it, and everything else of its class but the other steps."""
    parts = [sources.code_digest(function)]
    for found in getattr(steps_of(kind).get(function.__name__), USERS, ()):
        own = {name: value for name, value in vars(type(found)).items() if callable(value)}
        parts += [f"{name}:{sources.code_digest(getattr(value, '__func__', value))}" for name, value in own.items()]
        parts.append(f"{found.decorator_name}{found._args!r}{found._kwargs!r}")
    for name, value in sorted(_members(kind).items()):
        if callable(value) or isinstance(value, (property, staticmethod, classmethod)):
            inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
            parts.append(f"{name}:{sources.code_digest(inner)}")
        else:
            parts.append(f"{name}={value!r}")
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _members(kind: type) -> Mapping[str, Any]:
    steps = steps_of(kind)
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(FlowSpec)]):
        found.update(vars(base))
    return {
        name: value
        for name, value in found.items()
        if name not in steps and not (name.startswith("__") and name.endswith("__")) and not name.startswith("_stoker")
    }
