"""A flow's class as the driver knows it: name, parameters, settings, and one node for each step.

Has the words that the driver asks of a pipeline, so that both are planned, run and resumed in the same way.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.core.errors import GraphError, UsageError
from stoker.core.flow import FlowGraph
from stoker.core.graph import Graph, Node, StepSpec
from stoker.core.plan import Plan
from stoker.core.settings import Layer
from stoker.core.units import UNSET
from stoker.flows import mutators as flowmutators
from stoker.flows import parameters as flowparams
from stoker.flows import settings as flowsettings
from stoker.flows import transitions
from stoker.flows import user_decorators as flowusers
from stoker.flows.decorators import KINDS
from stoker.flows.spec import FlowSpec, parameters_of
from stoker.pipelines.signature import Parameter, Signature

_NAMES: Final = frozenset(
    {"step", "current", "Parameter", "JSONType", "IncludeFile", "Config", "config_expr", "user_step_decorator"}
    | {"UserStepDecorator", "USER_SKIP_STEP", "StepMutator", "FlowMutator", *KINDS}
)
"""Names that a flow's file has from here, and never from Metaflow."""


class FlowDefinition:
    """One flow. `attached` are decorators of the command line's `--with`, as texts, `environment` is what it says of
    where packages come from.

    `written` is its class as it stands in the file, `kind` the same as its mutators' `pre_mutate` leaves it.
    """

    dynamic = True
    hooks: Mapping[str, Callable[..., Any]] = {}

    def __init__(
        self,
        kind: type[FlowSpec],
        *,
        attached: Sequence[str] = (),
        without: Sequence[str] = (),
        max_splits: int | None = None,
        namespace: str | None = None,
        configs: Mapping[str, Any] | None = None,
        environment: str | None = None,
    ) -> None:
        self.written = kind
        self.name = kind.__name__
        self.function = kind
        self.stack: str | None = None
        self._configs = dict(configs or {})
        self.max_splits = max_splits
        self.namespace = namespace or f"user:{flowparams.username()}"
        self.said: tuple[str, ...] = ()
        self._attached = tuple(attached)
        self._without = frozenset(without)
        self._environment = environment
        self._room: tuple[float, int] | None = None

    @property
    def command_line(self) -> dict[str, list[str]]:
        """What the command line said of decorators and environments; empty where it said nothing."""
        environment = [] if self._environment is None else [self._environment]
        found = {"with": list(self._attached), "without": sorted(self._without), "environment": environment}
        return found if any(found.values()) else {}

    def attach(self, said: Mapping[str, Sequence[str]]) -> None:
        """Take over what another command line said of decorators, and of environments where this one says nothing."""
        self._attached = tuple(said.get("with", ()))
        self._without = frozenset(said.get("without", ()))
        if self._environment is None:
            self._environment = next(iter(said.get("environment", ())), None)

    def here(self, cpus: float, memory: int) -> None:
        """Take requests for hints: the flow runs on this machine, which has so many CPUs and so much memory."""
        self._room = (cpus, memory)

    @functools.cached_property
    def kind(self) -> type[FlowSpec]:
        """The class with the parameters and decorators that the run has."""
        return flowmutators.pre_mutated(self.written, self.configs) if self._has_mutators else self.written

    @functools.cached_property
    def _has_mutators(self) -> bool:
        return flowmutators.has_mutators(self.written)

    @functools.cached_property
    def graph(self) -> FlowGraph:
        """The steps and where they go, checked."""
        _check_names(self.written)
        found = transitions.graph_of(self.written)
        transitions.check(found)
        return found

    @property
    def where(self) -> str:
        """Where the class stands."""
        return self.graph.where

    @functools.cached_property
    def options(self) -> Mapping[str, flowsettings.StepOptions]:
        """What each step's decorators, those of the class and those of `--with` ask for."""
        kind, attached = self.kind, self._attached
        if self._has_mutators or any(flowusers.named(text.partition(":")[0]) for text in attached):
            kind, attached = flowmutators.mutated(kind, self.configs, attached), ()
        functions = transitions.steps_of(kind)
        found = {
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
        for name, options in found.items():
            if options.catch is not None and self.graph.steps[name].kind in ("foreach", "parallel", "switch"):
                raise UsageError(
                    f"step '{name}' has @catch, and goes on by a value that it makes: after a failure there is none",
                    where=self.graph.steps[name].next_at,
                    fix="put @catch on the step before or behind, or go on from here with self.next(self.a_step)",
                )
        if self._room is not None:
            for name, options in found.items():
                if options.placed:
                    continue
                found[name], said = flowsettings.hinted(options, name, *self._room)
                self.said += said
        return found

    @functools.cached_property
    def configs(self) -> Mapping[str, Any]:
        """The content of every `Config` by attribute: as the command line says, else its default."""
        found = {}
        for attribute, config in parameters_of(self.written).items():
            if getattr(type(config), "is_flow_config", False):
                given = self._configs.get(config.name)
                value = config.resolved(self.name) if given is None else given(config)
                if value is None and config.required and self._has_mutators:
                    raise flowparams.missing(self.name, config)
                found[attribute] = config.given_out(value)
        return found

    def recall(self, configs: Mapping[str, Any]) -> None:
        """Go on with the configs that the run began with, by name; `UsageError` where the command line has others."""
        if self._configs:
            name = next(iter(self._configs))
            raise UsageError(f"config '{name}' stays as it was when the run began", fix="leave --config out")
        self._configs = {name: functools.partial(_as_it_was, value) for name, value in configs.items()}

    @functools.cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Settings of the whole flow, weakest first."""
        return flowsettings.of_flow(self.kind, self._environment)

    @functools.cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags that every run of it has; the namespace is one of them."""
        return (self.namespace, *flowsettings.tags_of(self.kind))

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters by name, checked, defaults filled in."""
        known = parameters_of(self.written).values()
        given = {config.name: self._configs[config.name](config) for config in known if config.name in self._configs}
        return flowparams.bound(self.kind, {**arguments, **given})

    def shown(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as the run's record shows them."""
        known = {parameter.name: parameter for parameter in parameters_of(self.kind).values()}
        return {name: known[name].shown(value) if name in known else value for name, value in values.items()}

    @property
    def signature(self) -> Signature:
        """Its parameters, for a command line; texts are parsed by `bind`."""
        known = parameters_of(self.kind).values()
        found = {
            parameter.name.replace("-", "_"): Parameter(name=parameter.name.replace("-", "_"), default=None)
            for parameter in known
        }
        return Signature(
            owner=f"flow '{self.name}'",
            parameters=found,
            others=UNSET,
            outputs=(),
            results=(),
            unpack=False,
            complete=True,
        )

    def completed(self, plan: Plan) -> Plan:
        """The plan with what platforms are told beside resources, and with what is to be said of it."""
        elsewhere = {name: options for name, options in self.options.items() if options.remote}
        steps, findings = [], []
        for step in plan.steps:
            options = elsewhere.get(step.name)
            if options is None:
                steps.append(step)
                continue
            settings = attrs.evolve(step.settings, backend={"step_operator": dict(options.own)})
            steps.append(attrs.evolve(step, settings=settings, backend=options.remote))
            findings.append(flowsettings.no_backend(step.name, options))
        mine = tuple(f" step '{name}'" for name in elsewhere)
        kept = [finding for finding in plan.findings if not (mine and finding.where.endswith(mine))]
        return attrs.evolve(plan, steps=tuple(steps), findings=(*kept, *findings))

    def trace(self, **arguments: Any) -> Graph:
        """The same as `outline`: nothing of a flow runs to be looked at."""
        return self.outline(arguments)

    def outline(self, arguments: Mapping[str, Any]) -> Graph:
        """One node for each step, in the order in which they are reached; tasks come while the run goes."""
        before = self.graph.before()
        functions = transitions.steps_of(self.written)
        nodes = [
            Node(
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
                after=tuple(before[name]),
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

    def __repr__(self) -> str:
        return f"<flow {self.name} of {self.where}>"


def _check_names(kind: type[FlowSpec]) -> None:
    """Refuse names of Metaflow's own in a flow of ours: they know nothing of each other."""
    module = sys.modules.get(kind.__module__)
    for name, value in vars(module).items() if "metaflow" in sys.modules else ():
        found = value.args[0] if isinstance(value, functools.partial) and value.args else value
        home = getattr(found, "__module__", None) or type(found).__module__
        if str(home).partition(".")[0] == "metaflow" and name in _NAMES:
            raise GraphError(
                f"'{name}' of flow {kind.__name__} is Metaflow's",
                where=transitions.place_of_class(kind),
                fix=f"write `from stoker.flow import {name}`, or run `stoker migrate` with the file and --write",
            )


def _as_it_was(value: Any, config: Any) -> Any:
    return value


def is_flow(value: Any) -> bool:
    """Whether a value is a flow's class, and not `FlowSpec` itself or a base without steps."""
    return isinstance(value, type) and issubclass(value, FlowSpec) and bool(transitions.steps_of(value))


def choose(namespace: Mapping[str, Any], name: str, shown: str, module: str) -> type[FlowSpec] | None:
    """The flow of a module: the one that is named, or the only one; None where it has none."""
    found = {key: value for key, value in namespace.items() if is_flow(value) and value.__module__ == module}
    if name:
        chosen: type[FlowSpec] | None = found.get(name)
        return chosen
    if len(found) > 1:
        names = sorted(found)
        raise UsageError(f"{shown} has several flows: {', '.join(names)}", fix=f"name one: {shown}:{names[0]}")
    return next(iter(found.values()), None)
