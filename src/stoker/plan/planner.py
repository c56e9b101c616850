"""Graph and stack become a plan: every setting resolved, every function located, every constant kept.

Nothing runs here and no platform is asked; what the backends say of a step without their network is in the findings.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import ProvesPlacement, RunningBackend, capability
from stoker.core import findings as checks
from stoker.core.errors import (
    GraphError,
    ParameterError,
    PreflightError,
    SerializationError,
    SettingsError,
    nearest,
)
from stoker.core.findings import Finding
from stoker.core.graph import Binding, Constant, FromStep, Graph, Many, Node, Source, StepSpec
from stoker.core.launch import Launch
from stoker.core.plan import Plan, StepPlan
from stoker.core.settings import FailureMode, Layer, StepSettings, fields_given
from stoker.plan import source as sources
from stoker.plan.ladders import check_ladder
from stoker.plan.layers import check_whole_run, resolve, resolve_pipeline
from stoker.settings.options import OPTIONS
from stoker.stacks import Stack
from stoker.store import artifacts
from stoker.store.blobs import Blobs

ORCHESTRATOR: Final = "orchestrator"
"""The name under which a plan's steps call the stack's own backend; step operators go by their names."""


@attrs.frozen(kw_only=True)
class Overrides:
    """What the run file and the command line say: layers for every step, and for some by name or key."""

    every: tuple[Layer, ...] = ()
    steps: Mapping[str, tuple[Layer, ...]] = attrs.field(factory=dict)


class Planner:
    """Plans the nodes of one run, all at once or, for a dynamic pipeline, as they come."""

    def __init__(
        self,
        stack: Stack,
        blobs: Blobs,
        *,
        layers: Sequence[Layer] = (),
        hooks: Mapping[str, Callable[..., Any]] | None = None,
        overrides: Overrides | None = None,
    ) -> None:
        self._stack = stack
        self.blobs = blobs
        self._layers = (stack.layer, *layers)
        self._step_hooks = dict(hooks or {})
        self._overrides = overrides or Overrides()
        self._settings: dict[tuple[int, ...], tuple[StepSettings, dict[str, str]]] = {}
        self._kept_layers: list[tuple[Layer, ...]] = []
        self._sources: dict[int, tuple[Source, str]] = {}
        self._position = 0
        self._backend_options: Mapping[str, Mapping[str, Any]] | None = None

    def step_plan(self, node: Node, split: Iterable[str] = ()) -> StepPlan:
        """One node with everything resolved."""
        spec = node.step
        settings, origins = self._resolved(node)
        source, code = self._located(spec.function, spec.where)
        position, self._position = self._position, self._position + 1
        made = StepPlan(
            key=node.key,
            name=spec.name,
            source=source,
            outputs=spec.outputs,
            unpack=spec.unpack,
            inputs=self._inputs(node),
            settings=settings,
            backend=settings.step_operator or ORCHESTRATOR,
            code=code,
            mapped=node.mapped,
            after=node.after,
            split=tuple(split),
            position=position,
            where=node.where or spec.where,
            hooks=self._hooks(spec, node),
            origins=origins,
            environment=environment_of(settings),
        )
        check_ladder(made)
        return made

    def _resolved(self, node: Node) -> tuple[StepSettings, dict[str, str]]:
        overrides = self._overrides
        named = overrides.steps.get(node.step.name, ())
        keyed = overrides.steps.get(node.key, ()) if node.key != node.step.name else ()
        layers = (*self._layers, *node.step.layers, *node.layers, *overrides.every, *named, *keyed)
        known = tuple(map(id, layers))
        found = self._settings.get(known)
        if found is None:
            try:
                found = resolve(layers, self._stack)
                check_whole_run(*found, self._run_options(), self._stack)
            except SettingsError as error:
                error.where = error.where or f"{node.where or node.step.where} step '{node.step.name}'"
                raise
            self._settings[known] = found
            self._kept_layers.append(layers)  # so that no id is given to another layer
        return found

    def _run_options(self) -> Mapping[str, Mapping[str, Any]]:
        """The options that the run's backends are made with."""
        if self._backend_options is None:
            layers = (*self._layers, *self._overrides.every)
            self._backend_options = resolve_pipeline(layers, self._stack)[0].backend
        return self._backend_options

    def _located(self, function: Callable[..., Any], where: str) -> tuple[Source, str]:
        found = self._sources.get(id(function))
        if found is None:
            source = sources.locate(function, where)
            if source.kind == "pickled":
                source = attrs.evolve(source, digest=self.blobs.put(sources.pickled(function)))
            found = self._sources[id(function)] = (source, sources.code_digest(function))
        return found

    def _hooks(self, spec: StepSpec, node: Node) -> dict[str, Source]:
        return self.hooks({**self._step_hooks, **spec.hooks, **node.hooks}, spec.where)

    def source_of(self, function: Callable[..., Any], where: str) -> Source:
        """Where a worker, or a later session, finds a function."""
        return self._located(function, where)[0]

    def hooks(self, functions: Mapping[str, Callable[..., Any]], where: str) -> dict[str, Source]:
        """Where a worker finds each hook."""
        return {name: self._located(hook, where)[0] for name, hook in functions.items()}

    def parameters(self, graph: Graph) -> dict[str, Any]:
        """The arguments of a dynamic pipeline, kept: on resume its body runs again with them."""
        found = {}
        for name, value in graph.parameters.items():
            with _kept(f"pipeline '{graph.name}' cannot be given {name}", graph.where):
                found[name] = artifacts.save(value, self.blobs).wire()
        return found

    def _inputs(self, node: Node) -> dict[str, Any]:
        """What each parameter is bound to; values that the pipeline's body hands over are kept here."""
        found = {}
        for name, binding in node.bindings.items():
            with _kept(f"step '{node.step.name}' cannot be given {name}", node.where or node.step.where):
                found[name] = self._tree(binding, mapped=name in node.mapped)
        return found

    def _tree(self, binding: Binding, *, mapped: bool) -> dict[str, Any]:
        if isinstance(binding, Constant):
            save = artifacts.save_split if mapped else artifacts.save
            return {"value": save(binding.value, self.blobs).wire()}
        if isinstance(binding, FromStep):
            return {"step": binding.node, "output": binding.output}
        if isinstance(binding, Many):
            return {"list": [self._tree(item, mapped=False) for item in binding.items]}
        return {"dict": {name: self._tree(item, mapped=False) for name, item in binding.items.items()}}


def split_outputs(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """For each node key the outputs that a later fan-out iterates over, which are kept element by element."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for name in node.mapped:
            binding = node.bindings[name]
            if isinstance(binding, FromStep) and binding.output not in found.setdefault(binding.node, []):
                found[binding.node].append(binding.output)
    return found


def plan(
    graph: Graph,
    planner: Planner,
    backends: Mapping[str, RunningBackend],
    *,
    stack: str,
    failure_mode: FailureMode,
    source: Source | None = None,
) -> Plan:
    """The plan of a traced pipeline, with the backends' findings; it is not refused here.

    `source` is where a dynamic pipeline's function is found again when its run is resumed.
    """
    split = split_outputs(graph.nodes)
    mapped = {node.key for node in graph.nodes if node.mapped}
    steps = tuple(
        planner.step_plan(node, () if node.key in mapped else split.get(node.key, ())) for node in graph.nodes
    )
    return Plan(
        pipeline=graph.name,
        steps=steps,
        parameters=planner.parameters(graph) if graph.dynamic else {},
        failure_mode=failure_mode,
        stack=stack,
        where=graph.where,
        source=source,
        dynamic=graph.dynamic,
        findings=tuple(findings_of(steps, backends)),
    )


def replanned(made: Plan, overrides: Overrides, stack: Stack) -> Plan:
    """A run's plan for another session: what its command line says of steps, over the settings that they had."""
    check_names(overrides, made.steps)
    same_stack = made.stack == stack.name
    if same_stack and not overrides.every and not overrides.steps:
        return made
    found: dict[tuple[int, str, str], tuple[StepSettings, dict[str, str]]] = {}
    steps = []
    for step in made.steps:
        alike = (id(step.settings), step.name, step.key if step.key in overrides.steps else "")
        if alike not in found:
            named = {name: overrides.steps.get(name, ()) for name in (step.name, step.key)}
            recorded = _recorded(step.settings, stack if same_stack else None)
            layers = (recorded, *overrides.every, *(layer for own in named.values() for layer in own))
            found[alike] = resolve(layers, stack)
        settings, origins = found[alike]
        backend, environment = settings.step_operator or ORCHESTRATOR, environment_of(settings)
        changed = attrs.evolve(step, settings=settings, origins=origins, backend=backend, environment=environment)
        steps.append(changed)
        check_ladder(steps[-1])
    return attrs.evolve(made, steps=tuple(steps))


def _recorded(settings: StepSettings, stack: Stack | None) -> Layer:
    """Resolved settings as a layer again; those of its backend where that is of the same stack."""
    values: dict[str, Any] = {}
    name = settings.step_operator
    component = None
    if stack is not None:
        component = stack.orchestrator if name is None else stack.step_operators.get(name)
    if component is not None:
        values |= {f"{part}.{component.flavor}": options for part, options in settings.backend.items()}
    for name in OPTIONS:
        value = getattr(settings, name, None)
        if value is not None:
            values[name] = fields_given(value) if attrs.has(type(value)) else value
    return Layer(origin="the run as it was started", values=values)


def findings_of(steps: Iterable[StepPlan], backends: Mapping[str, RunningBackend]) -> Iterable[Finding]:
    """What the backends say of the steps; alike steps are asked about once."""
    seen: set[tuple[str, str, int]] = set()
    for step in steps:
        alike = (step.name, step.backend, id(step.settings))
        if alike in seen:
            continue
        seen.add(alike)
        yield from backends[step.backend].check(step)
        if step.settings.packages is not None:
            yield from _package_findings(step, backends[step.backend])
        if step.settings.launch is not None:
            yield from _launch_findings(step.settings.launch, step)


def asked_of(steps: Iterable[StepPlan], backends: Mapping[str, RunningBackend]) -> Iterator[Finding]:
    """What those backends that have a cluster to ask say of the steps on it, such as that no node is as big."""
    theirs: dict[str, list[StepPlan]] = {}
    for step in steps:
        theirs.setdefault(step.backend, []).append(step)
    for name, mine in theirs.items():
        asked = capability(backends[name], ProvesPlacement)
        if asked is not None:
            yield from asked.prove(mine)


def environment_of(settings: StepSettings) -> str:
    """The environment of a step's own on this machine; empty where it runs in the driver's, or in an image."""
    if settings.packages is None or settings.docker is not None:
        return ""
    from stoker.plan import environments

    return environments.environment_of(settings.packages)


def _package_findings(step: StepPlan, backend: RunningBackend) -> Iterable[Finding]:
    """What its packages come to where it would run; the rooms for it are entered only where some are asked for."""
    from stoker.plan.environments import findings

    return findings(step, backend)


def _launch_findings(launch: Launch, step: StepPlan) -> Iterable[Finding]:
    """What its launcher says of a distributed step; the rooms for it are entered only where there is one."""
    from stoker.launchers.check import check
    from stoker.vendors.nvidia.chips import capability

    return check(launch, step.settings.resources, where=f"{step.where} step '{step.name}'", capability=capability)


def refuse(plan: Plan) -> None:
    """Raise a `PreflightError` with every reason, if there is one."""
    errors = checks.errors(plan.findings)
    if errors:
        raise PreflightError(
            "the plan is refused:\n" + "\n".join(finding.text() for finding in errors), findings=plan.findings
        )


def check_names(overrides: Overrides, steps: Iterable[StepPlan]) -> None:
    """Refuse settings for a step that the pipeline does not have."""
    known = {name for step in steps for name in (step.name, step.key)}
    for name, layers in overrides.steps.items():
        if name not in known:
            raise GraphError(
                f"there is no step '{name}' in this pipeline{nearest(name, known)}", where=layers[0].origin
            )


def links(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (step, output) pairs that a plan's input tree draws from."""
    if "step" in tree:
        return [(tree["step"], tree["output"])]
    if "list" in tree:
        return [link for item in tree["list"] for link in links(item)]
    if "dict" in tree:
        return [link for item in tree["dict"].values() for link in links(item)]
    return []


@contextlib.contextmanager
def _kept(what: str, where: str) -> Iterator[None]:
    try:
        yield
    except SerializationError as error:
        fix = "hand over what it is made from, such as a path as text, and make it inside the step"
        raise ParameterError(f"{what}: {error.message}", where=where, fix=fix) from error
