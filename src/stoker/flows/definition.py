"""A flow's class as a program (`run.program.Program`): name, parameters, settings, one node for each step, its body.

Pipelines implement the same protocol, so that both are planned, run and resumed in the same way. The templates of the
flow's tasks, and what tasks know about the run, come from the class and the plan.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import GraphError, SourceError, UsageError, nearest
from stoker.core.graph import CONSTANTS, FlowGraph, Graph, GraphNode, StepSpec
from stoker.core.plan import Plan, StepPlan
from stoker.core.request import RunOption
from stoker.core.settings import Layer
from stoker.core.units import UNSET
from stoker.flows import mutators as flowmutators
from stoker.flows import options as flowoptions
from stoker.flows import parameters as flowparams
from stoker.flows import settings as flowsettings
from stoker.flows import transitions
from stoker.flows import user_decorators as flowusers
from stoker.flows.current import VARIABLE, enter_start
from stoker.flows.decorators import BUILT_IN, FOR_WORKER, notes_of, times_of, triggers_of
from stoker.flows.execution import FlowBody, TaskOptions
from stoker.flows.instance import FlowInstance, constants_of, parameters_of
from stoker.flows.task import FlowTask
from stoker.pipelines.signature import FunctionParameter, FunctionSignature
from stoker.plan.cachekey import remember_code
from stoker.plan.digest import FunctionCode, read_code_of
from stoker.plan.planner import Planner
from stoker.run.program import ProgramStart
from stoker.store import artifacts
from stoker.store.blobs import Blobs

_NAMES: Final = frozenset(
    {"step", "current", "FunctionParameter", "JSONType", "IncludeFile", "Config", "config_expr", "user_step_decorator"}
    | {"UserStepDecorator", "USER_SKIP_STEP", "StepMutator", "FlowMutator", *BUILT_IN}
)
"""Names that a flow's file has from here, and never from Metaflow."""
RUNNER: Final = f"{FlowTask.__module__}:{FlowTask.__qualname__}"
"""What runs a flow's task where a worker is, as a plan names it."""


@attrs.frozen
class ConfigText:
    """How a config's content is found: in a file, or as it is written."""

    text: str
    of_file: bool

    def __call__(self, config: Any) -> Any:
        return config.read(self.text) if self.of_file else config.parse_value(self.text)


class FlowDefinition:
    """One flow. `attached` are decorators of the command line's `--with`, as texts, `environment` is what it says of
    where packages come from.

    `written` is its class as it stands in the file, `kind` the same as its mutators' `pre_mutate` leaves it.
    """

    noun = "flow"
    worker_imports = ("stoker.flows.task",)
    dynamic = True
    hooks: Mapping[str, Callable[..., Any]] = {}

    def __init__(
        self,
        kind: type[FlowInstance],
        *,
        attached: Sequence[str] = (),
        without: Sequence[str] = (),
        max_splits: int | None = None,
        namespace: str | None = None,
        configs: Mapping[str, Any] | None = None,
        environment: str | None = None,
        project: Mapping[str, Any] | None = None,
    ) -> None:
        self.written = kind
        self.name = kind.__name__
        self.function = kind
        self.stack: str | None = None
        self._configs = dict(configs or {})
        self.max_splits = max_splits
        self._namespace = namespace
        self.messages: tuple[str, ...] = ()
        self._attached = tuple(attached)
        self._without = frozenset(without)
        self._environment = environment
        self._project_options = {name: value for name, value in (project or {}).items() if value is not None}
        self._room: tuple[float, int] | None = None

    @property
    def namespace(self) -> str:
        """The namespace that its runs belong to."""
        return self._namespace or f"user:{flowparams.username()}"

    @property
    def command_line(self) -> dict[str, list[str]]:
        """Decorators and environments that the command line asks for; empty where it asks for none."""
        environment = [] if self._environment is None else [self._environment]
        words = {"with": list(self._attached), "without": sorted(self._without), "environment": environment}
        return words if any(words.values()) else {}

    def attach(self, words: Mapping[str, Sequence[str]]) -> None:
        """Take the decorators of another command line, and its environment where this one names none."""
        self._attached = tuple(words.get("with", ()))
        self._without = frozenset(words.get("without", ()))
        if self._environment is None:
            self._environment = next(iter(words.get("environment", ())), None)

    def hint(self, cpus: float, memory: int) -> None:
        """Take requests for hints: the flow runs on this machine, which has so many CPUs and so much memory."""
        self._room = (cpus, memory)

    def document(self, blobs: Blobs) -> dict[str, Any]:
        """The options of the command line, as JSON; a later session makes the same flow of them and the class. The
        values that the class defines are there for the client."""
        words = {"namespace": self._namespace, "max_splits": self.max_splits, **self._project_options}
        words[CONSTANTS] = _constants(self.written, blobs) or None
        given = {name: value for name, value in words.items() if value is not None}
        return {**self.command_line, **given, "python": ".".join(map(str, sys.version_info[:3]))}

    def run_options(self) -> tuple[RunOption, ...]:
        """The options of its command line that pipelines do not have."""
        has_project = any(note.name == "project" for note in notes_of(self.written))
        return flowoptions.of_flow(self.name, self._config_names(), has_project=has_project)

    def complete_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a command line, and those that environment variables give in their place."""
        names = {option.name for option in self.run_options()} | {"tag", "quiet"}
        return flowoptions.with_environment(options, names, self._config_names())

    def apply_options(self, options: Mapping[str, Any]) -> FlowDefinition:
        """The flow as the options of a command line make it."""
        flowoptions.check_local(options)
        splits = options.get("max-num-splits")
        return FlowDefinition(
            self.written,
            attached=tuple(options.get("with", ())),
            without=tuple(options.get("without", ())),
            max_splits=None if splits is None else flowoptions.number("max-num-splits", splits),
            namespace=options.get("namespace"),
            configs=dict(self._config_texts(options)),
            environment=options.get("environment"),
            project={option.name: options.get(option.name) for option in flowoptions.PROJECT},
        )

    def _config_names(self) -> list[str]:
        return [
            parameter.name
            for parameter in parameters_of(self.written).values()
            if isinstance(parameter, flowparams.Config)
        ]

    def _config_texts(self, options: Mapping[str, Any]) -> Iterator[tuple[str, ConfigText]]:
        """Configs by name, each with how its content is found."""
        names = self._config_names()
        for option in ("config", "config-value"):
            for text in options.get(option, ()):
                name, _, value = str(text).partition("=")
                if name in names and value:
                    yield name, ConfigText(value, of_file=option == "config")
                elif option == "config-value":
                    raise UsageError(
                        f"--{option} {text}: no such Config{nearest(name, names)}", fix=f"--{option} NAME …"
                    )
                elif not os.path.exists(text):
                    raise UsageError(
                        f"--config {text}: no such Config{nearest(name, names)}, and no such file",
                        fix="write --config NAME FILE for a Config, or --config FILE for parameters and settings",
                    )

    def parse(self, words: Sequence[str], flags: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
        """Parameters by name from the words of a command line, and the words that are none."""
        return flowparams.parse(self.kind, words, flags, self._values_of_configs())

    def parameter_rows(self) -> list[tuple[str, str]]:
        """Rows of the help: each parameter as it is written, and its description."""
        return flowparams.rows(self.kind, self._values_of_configs())

    def restore(self, plan: Plan, blobs: Blobs) -> None:
        """Go on with a run: the words of its command line count, unless this one says others."""
        self.recall(plan, blobs)
        self._namespace = self._namespace or plan.program.get("namespace")
        if self.max_splits is None:
            self.max_splits = plan.program.get("max_splits")
        if not self._project_options:
            names = [option.name for option in flowoptions.PROJECT if option.name in plan.program]
            self._project_options = {name: plan.program[name] for name in names}

    def recall(self, plan: Plan, blobs: Blobs) -> None:
        """Have the decorators that the command line of a run attached, unless this one says some itself.

        Its configs are those that the run began with.
        """
        decorators = {name: texts for name, texts in self.command_line.items() if name != "environment"}
        self.attach({**plan.program, **(decorators if any(decorators.values()) else {})})
        config_names = self._config_names()
        if config_names:
            was = plan.parameters
            self._recall_configs(
                {name: artifacts.load(from_wire(was[name]), blobs) for name in config_names if name in was}
            )

    @functools.cached_property
    def kind(self) -> type[FlowInstance]:
        """The class with the parameters and decorators that the run has."""
        return flowmutators.apply_pre_mutate(self.written, self.configs) if self._has_mutators else self.written

    @functools.cached_property
    def _has_mutators(self) -> bool:
        return flowmutators.has_mutators(self.written)

    @functools.cached_property
    def graph(self) -> FlowGraph:
        """The steps and where they go, checked."""
        _check_names(self.written)
        graph = transitions.graph_of(self.written)
        transitions.check(graph)
        return graph

    @property
    def where(self) -> str:
        """Where the class stands."""
        return self.graph.where

    @functools.cached_property
    def options(self) -> Mapping[str, flowsettings.FlowStepOptions]:
        """What each step's decorators, those of the class and those of `--with` ask for."""
        kind, attached = self.kind, self._attached
        if self._has_mutators or any(flowusers.find_user_decorator(text.partition(":")[0]) for text in attached):
            kind, attached = flowmutators.apply_mutate(kind, self.configs, attached), ()
        functions = transitions.steps_of(kind)
        options_by_step = {
            name: flowsettings.of_step(
                kind,
                name,
                functions[name],
                attached=attached,
                without=self._without,
                configs=self.configs,
            )
            for name in self.graph.steps
        }
        for name, options in options_by_step.items():
            if options.catch is not None and self.graph.steps[name].kind in ("foreach", "parallel", "switch"):
                raise UsageError(
                    f"step '{name}' has @catch, and goes on by a value that it makes: after a failure there is none",
                    where=self.graph.steps[name].next_at,
                    fix="put @catch on the step before or behind, or go on from here with self.next(self.a_step)",
                )
        for name, options in options_by_step.items():
            self.messages += _card_messages(name, options)
        if self._room is not None:
            for name, options in options_by_step.items():
                if options.placed:
                    continue
                options_by_step[name], messages = flowsettings.fit_to_machine(options, name, *self._room)
                self.messages += messages
        return options_by_step

    @functools.cached_property
    def configs(self) -> flowparams.Configs:
        """The content of every `Config` by attribute: as the command line says, else its default."""
        values = {}
        for attribute, config in parameters_of(self.written).items():
            if isinstance(config, flowparams.Config):
                source = self._configs.get(config.name)
                value = config.resolve_default(self.name) if source is None else source(config)
                if value is None and config.required and self._has_mutators:
                    raise flowparams.missing_parameter(self.name, config)
                values[attribute] = config.value_for_step(value)
        return flowparams.Configs(self.written, values)

    def _values_of_configs(self) -> Mapping[str, Any]:
        """The configs, where a parameter's default may have a value of one; else no config's file is read early."""
        defaults = [parameter.default for parameter in parameters_of(self.kind).values()]
        needs = any(flowparams.needs_configs(one) or flowparams.is_computed(one) for one in defaults)
        return self.configs if needs else {}

    def _recall_configs(self, configs: Mapping[str, Any]) -> None:
        """Go on with the configs that the run began with, by name; `UsageError` where the command line has others."""
        if self._configs:
            name = next(iter(self._configs))
            raise UsageError(f"config '{name}' stays as it was when the run began", fix="leave --config out")
        self._configs = {name: functools.partial(_recorded_value, value) for name, value in configs.items()}

    @functools.cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Settings of the whole flow, weakest first."""
        named = [text for text in self._attached if flowusers.find_user_decorator(text.partition(":")[0]) is None]
        return (*flowsettings.of_flow(self.kind, self._environment), *flowsettings.run_layers(named))

    @functools.cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags that every run of it has; the namespace is one of them."""
        return (self.namespace, *(() if self.project is None else self.project.tags))

    @property
    def schedule(self) -> tuple[str, str] | None:
        """The times and the time zone of its `@schedule`; the zone is empty where it names none."""
        found = next((note.values for note in notes_of(self.kind) if note.name == "schedule"), None)
        return None if found is None else (times_of(found), str(found.get("timezone") or ""))

    @property
    def triggers(self) -> tuple[str, ...]:
        """What its `@trigger` and `@trigger_on_finish` wait for: versions of artifacts, and runs of other flows."""
        return tuple(
            text for note in notes_of(self.kind) if note.name.startswith("trigger") for text in triggers_of(note.values)
        )

    @functools.cached_property
    def project(self) -> flowsettings.Project | None:
        """The project that its `@project` names, with the branch that decorator or command line name."""
        user = flowparams.username()
        branch, production = self._project_options.get("branch"), self._project_options.get("production")
        return flowsettings.project_of(
            self.kind, user, branch=branch, production=production, configs=lambda: self.configs
        )

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters by name, checked, defaults filled in."""
        parameters = parameters_of(self.written).values()
        configs = {
            config.name: self._configs[config.name](config) for config in parameters if config.name in self._configs
        }
        with enter_start(_run_document(self, ())):
            return flowparams.rebind(self.kind, configs, arguments, self._values_of_configs())

    def rebind(self, recorded: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as an earlier run had them, with some changed; one that the flow did not have has its default."""
        with enter_start(_run_document(self, ())):
            return flowparams.rebind(self.kind, recorded, changes, self._values_of_configs())

    def describe_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as the run's record shows them."""
        parameters = {parameter.name: parameter for parameter in parameters_of(self.kind).values()}
        return {
            name: parameters[name].record_value(value) if name in parameters else value
            for name, value in values.items()
        }

    @property
    def signature(self) -> FunctionSignature:
        """Its parameters, for a command line; texts are parsed by `bind`."""
        flow_parameters = parameters_of(self.kind).values()
        parameters = {
            parameter.name.replace("-", "_"): FunctionParameter(name=parameter.name.replace("-", "_"), default=None)
            for parameter in flow_parameters
        }
        return FunctionSignature(
            owner=f"flow '{self.name}'",
            parameters=parameters,
            others=UNSET,
            outputs=(),
            results=(),
            unpack=False,
            complete=True,
        )

    def complete_plan(self, plan: Plan) -> Plan:
        """The plan in which the look-ups of a cached step are those of its methods, too."""
        functions = transitions.steps_of(self.written)
        steps = []
        for planned in plan.steps:
            lookups = _step_code(self.kind, functions[planned.name]).lookup_places if planned.settings.cache else ()
            steps.append(attrs.evolve(planned, lookups=lookups))
        return attrs.evolve(plan, steps=tuple(steps))

    def graph_of(self, arguments: Mapping[str, Any]) -> Graph:
        """The same as `outline`: nothing of a flow runs to be looked at."""
        return self.outline(arguments)

    def outline(self, arguments: Mapping[str, Any]) -> Graph:
        """One node for each step, in the order in which they are reached; tasks come while the run goes."""
        predecessors = self.graph.before()
        functions = transitions.steps_of(self.written)
        nodes = [
            GraphNode(
                key=name,
                step=StepSpec(
                    name=name,
                    function=functions[name],
                    inputs=(),
                    outputs=(),
                    unpack=False,
                    where=self.graph.steps[name].where,
                    layers=self.options[name].layers,
                ),
                bindings={},
                after=tuple(predecessors[name]),
                where=self.graph.steps[name].where,
            )
            for name in self.graph.order()
        ]
        return Graph(
            name=self.name,
            nodes=tuple(nodes),
            parameters=dict(arguments),
            layers=self.layers,
            where=self.where,
            dynamic=True,
        )

    def body(self, start: ProgramStart) -> FlowBody:
        """The run of the flow, ready to go."""
        return FlowBody(
            self.graph,
            templates(self, start.plan.steps, start.planner, tags=start.tags, origin=start.origin),
            start.plan.parameters,
            start.planner.blobs,
            options=task_options(self),
            fail_fast=start.plan.failure_mode == "fail_fast",
            messages=self.messages,
        )

    def __repr__(self) -> str:
        return f"<flow {self.name} of {self.where}>"


def templates(
    flow: FlowDefinition, steps: Sequence[StepPlan], planner: Planner, *, tags: Sequence[str], origin: str = ""
) -> dict[str, StepPlan]:
    """The plans of a flow's tasks by step: where a worker finds its class, and a description of the run.

    `origin` is the run that this one repeats, or whose task is run once more on its own.
    """
    class_source = planner.source_of(flow.written, flow.where)
    if class_source.kind == "pickled":
        raise SourceError(
            f"flow {flow.name} is in no file, where workers could find it", where=flow.where, fix="put it into a file"
        )
    run_document = json.dumps({**_run_document(flow, tags), "origin": origin}, separators=(",", ":"))
    functions = transitions.steps_of(flow.written)
    plans: dict[str, StepPlan] = {}
    for step in steps:
        settings = attrs.evolve(step.settings, environment={**step.settings.environment, VARIABLE: run_document})
        source = attrs.evolve(class_source, qualname=f"{class_source.qualname}.{step.name}")
        shares = flow.options[step.name].note("checkpoint") is not None
        planned = attrs.evolve(step, settings=settings, source=source, runner=RUNNER, shares_checkpoints=shares)
        if settings.cache:
            code = _step_code(flow.kind, functions[step.name])
            remember_code(code.digest, (code,), _values(flow.kind))
            planned = attrs.evolve(planned, code=code.digest, packages=code.packages, lookups=code.lookup_places)
        plans[step.name] = planned
    return plans


def task_options(flow: FlowDefinition) -> dict[str, TaskOptions]:
    """What each step's decorators say of its tasks."""
    return {name: _options(options) for name, options in flow.options.items()}


def _check_names(kind: type[FlowInstance]) -> None:
    """Refuse names of Metaflow's own in a flow of ours: they know nothing of each other."""
    module = sys.modules.get(kind.__module__)
    for name, value in vars(module).items() if "metaflow" in sys.modules else ():
        target = value.args[0] if isinstance(value, functools.partial) and value.args else value
        home = getattr(target, "__module__", None) or type(target).__module__
        if str(home).partition(".")[0] == "metaflow" and name in _NAMES:
            raise GraphError(
                f"'{name}' of flow {kind.__name__} is Metaflow's",
                where=transitions.place_of_class(kind),
                fix=f"write `from stoker.flow import {name}`, or run `stoker migrate` with the file and --write",
            )


def _recorded_value(value: Any, config: Any) -> Any:
    return value


def _constants(kind: type, blobs: Blobs) -> dict[str, Any]:
    """The values that a flow's class defines, as artifacts."""
    wires = {}
    for name in sorted(constants_of(kind)):
        if not name.startswith("_"):
            with contextlib.suppress(Exception):  # a module or another thing that cannot be kept
                wires[name] = artifacts.save(getattr(kind, name), blobs).wire()
    return wires


def is_flow(value: Any) -> bool:
    """Whether a value is a flow's class, and not `FlowSpec` itself or a base without steps."""
    return isinstance(value, type) and issubclass(value, FlowInstance) and bool(transitions.steps_of(value))


def _options(options: flowsettings.FlowStepOptions) -> TaskOptions:
    """A step's options as far as the engine and the worker look at them."""
    profile = options.note("gpu_profile")
    notes = {note.name: dict(note.values) for note in options.notes if note.name in FOR_WORKER}
    if "card" in notes:  # a step may have several
        notes["card"] = {"cards": [dict(note.values) for note in options.notes if note.name == "card"]}
    return TaskOptions(
        catch=options.catch,
        profile=profile.values["artifact_prefix"] if profile and profile.values["include_artifacts"] else None,
        notes=notes,
    )


def _card_messages(step: str, options: flowsettings.FlowStepOptions) -> tuple[str, ...]:
    """What to say of the classes of its cards before the run begins."""
    values = [note.values for note in options.notes if note.name == "card" and note.values.get("type") is not None]
    if not values:
        return ()
    from stoker.flows.cards import messages

    return messages(step, values)


def _run_document(flow: FlowDefinition, tags: Sequence[str]) -> dict[str, Any]:
    """What `current` says of the run as a whole."""
    project = flow.project
    return {
        "flow": flow.name,
        "tags": list(dict.fromkeys(tag for tag in tags if tag not in flow.tags)),
        "user": flowparams.username(),
        "namespace": flow.namespace,
        "max_splits": flow.max_splits,
        "project": "" if project is None else project.name,
        "branch": "" if project is None else project.branch,
        "production": project is not None and project.production,
        "with": flow.command_line.get("with", []),
    }


def _step_code(kind: type, function: Any) -> FunctionCode:
    """The code of a step: its own, what is around it, and everything else of its class but the other steps."""
    roots: dict[str, Any] = {"step": function}
    for position, wrapper in enumerate(getattr(transitions.steps_of(kind).get(function.__name__), flowusers.USERS, ())):
        methods = {name: value for name, value in vars(type(wrapper)).items() if callable(value)}
        for name, value in methods.items():
            roots[f"wrapper {position} {name}"] = getattr(value, "__func__", value)
        roots[f"wrapper {position}"] = (wrapper.decorator_name, wrapper._args, wrapper._kwargs)
    for name, value in _members(kind).items():
        roots[f"member {name}"] = value
    return read_code_of(roots)


def _values(kind: type) -> dict[str, str]:
    """The texts of a flow's class attributes that are no code."""
    return {
        f"{kind.__name__}.{name}": repr(value)
        for name, value in _members(kind).items()
        if not callable(value) and not isinstance(value, (property, staticmethod, classmethod))
    }


def _members(kind: type) -> Mapping[str, Any]:
    steps = transitions.steps_of(kind)
    members: dict[str, Any] = {}
    own = kind.__mro__.index(FlowInstance) - 1  # `FlowSpec` stands before it
    for base in reversed(kind.__mro__[:own]):
        members.update(vars(base))
    return {
        name: value
        for name, value in members.items()
        if name not in steps and not (name.startswith("__") and name.endswith("__")) and not name.startswith("_stoker")
    }
