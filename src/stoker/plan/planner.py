"""Make a plan of a graph and a stack: every setting resolved, every function located, every constant saved.

Nothing runs and no platform is asked; what backends check without a network is in the plan's findings.
So is what secrets lack: each has a value here, before anything costs money, and no plain value looks like one.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import (
    ExpectsSteps,
    KeepsSecrets,
    ProvesPlacement,
    RunningBackend,
    RunsInDriver,
    capability,
)
from stoker.backends.registry import BACKENDS
from stoker.core import findings as checks
from stoker.core.artifact import from_wire
from stoker.core.errors import (
    GraphError,
    NotFound,
    ParameterError,
    PreflightError,
    SerializationError,
    SettingsError,
    StokerError,
    UsageError,
    nearest,
)
from stoker.core.findings import Finding, Reporter
from stoker.core.graph import Binding, Constant, FromStep, Graph, GraphNode, Many
from stoker.core.ladder import Halve
from stoker.core.plan import Plan, StepPlan, cached_anyway, lookup_text, places_text, reporter_of
from stoker.core.protocol import FunctionSource
from stoker.core.registry import ArtifactRef, Model, names_label
from stoker.core.secret import PREFIX, Secret, looks_secret
from stoker.core.settings import FailureMode, Launch, Layer, StepSettings, fields_given
from stoker.core.standins import METAFLOW, ZENML
from stoker.core.sweep import SweepPlan
from stoker.core.units import UNSET
from stoker.core.values import frozen
from stoker.core.words import count_text
from stoker.plan import source as sources
from stoker.plan.cachekey import remember_code
from stoker.plan.codereading import read_code
from stoker.plan.digest import FunctionCode, read_function_code
from stoker.plan.layers import IMPLIED_BY, check_whole_run, resolve, resolve_pipeline
from stoker.settings.options import OPTIONS
from stoker.stacks import ORCHESTRATOR, Stack
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.registry import Names
from stoker.worker.secrets import READ, SHORTEST, SecretReader, references

if TYPE_CHECKING:
    from stoker.core.cadence import LossRate
    from stoker.core.costs import PriceList

LATE_STEPS: Final = "STK299"
PRICED: Final = "STK116"
NO_PRICE: Final = "what its machine costs is not known"
PRICE_FIX: Final = "write prices in stoker.toml, or use a stack that has some (SkyPilot), or device hours"
USUAL: Final = "STK192"
LOOKUP: Final = "STK191"
OF_MAIN_BLOCK: Final = "STK256"


@frozen(kw_only=True)
class Overrides:
    """The layers of the run file and the command line."""

    every: tuple[Layer, ...] = ()
    """Layers for every step."""
    steps: Mapping[str, tuple[Layer, ...]] = attrs.field(factory=dict)
    """Layers for single steps, by name or key."""
    trials: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Sweep → the parameters of the one trial that it is to have."""


class Planner:
    """Plans the nodes of one run: all at once, or one by one in a dynamic pipeline."""

    def __init__(  # noqa: PLR0913  # what a plan is made of
        self,
        stack: Stack,
        blobs: Blobs,
        *,
        layers: Sequence[Layer] = (),
        hooks: Mapping[str, Callable[..., Any]] | None = None,
        overrides: Overrides | None = None,
        recorded: Mapping[str, Mapping[str, Any]] | None = None,
        registry: Names | None = None,
        secrets: SecretReader | None = None,
        losses: Callable[[str], tuple[int, float]] | None = None,
    ) -> None:
        self._stack = stack
        self.secrets = secrets or SecretReader()
        self.blobs = blobs
        self.prices = stack.prices
        self._registry = registry
        self._losses = losses
        self._references: dict[ArtifactRef, dict[str, Any]] = {}
        self._layers = (stack.layer, *layers)
        self._step_hooks = dict(hooks or {})
        self._overrides = overrides or Overrides()
        self._settings: dict[tuple[int, ...], tuple[StepSettings, dict[str, str]]] = {}
        self._layers_alive: list[tuple[Layer, ...]] = []
        self._sources: dict[int, tuple[FunctionSource, FunctionCode]] = {}
        self._saved: dict[int, tuple[Any, Mapping[str, Any]]] = {}
        # Digests of values as they are saved here → how an earlier run saved them: a class of a script has another
        # module's name where the script is imported.
        self._recorded = recorded or {}
        self._position = 0
        self._backend_options: Mapping[str, Mapping[str, Any]] | None = None

    def step_plan(self, node: GraphNode, split: Iterable[str] = ()) -> StepPlan:
        """The plan of one node, with everything resolved."""
        spec = node.step
        settings, origins = self._resolve(node)
        source, code = self._locate(spec.function, spec.where)
        position, self._position = self._position, self._position + 1
        plan = StepPlan(
            key=node.key,
            name=spec.name,
            source=source,
            outputs=spec.outputs,
            unpack=spec.unpack,
            inputs=self._inputs(node),
            settings=settings,
            backend=settings.step_operator or ORCHESTRATOR,
            code=code.digest,
            packages=code.packages,
            lookups=code.lookup_places,
            of_main_block=code.of_main_block if source.kind != "pickled" else (),
            mapped=node.mapped,
            sweep=self._sweep(node),
            after=node.after,
            split=tuple(split),
            position=position,
            where=node.where or spec.where,
            hooks=self.hooks({**self._step_hooks, **spec.hooks, **node.hooks}, spec.where),
            origins=origins,
            environment=environment_name(settings),
            losses=self._loss_rate(settings) if settings.checkpoint_every == "auto" else None,
        )
        check_ladder(plan)
        return plan

    def _loss_rate(self, settings: StepSettings) -> LossRate:
        """How often a step will be lost whose checkpoints depend on that."""
        from stoker.core.cadence import loss_rate

        known = (0, 0.0) if self._losses is None else self._losses(settings.step_operator or ORCHESTRATOR)
        return loss_rate(settings.resources, *known)

    def _sweep(self, node: GraphNode) -> SweepPlan | None:
        params = self._overrides.trials.get(node.key)
        return node.sweep if node.sweep is None or params is None else node.sweep.only(params)

    def body_findings(self, body: Callable[..., Any], pipeline: str, where: str) -> Iterator[Finding]:
        """The finding about a dynamic pipeline whose steps, which are not known yet, look up code by name.

        Look-ups of the body itself are none: it runs in each run.
        """
        settings, origins = resolve((*self._layers, *self._overrides.every), self._stack)
        if not settings.cache or settings.cache_key is not None:
            return
        function = inspect.unwrap(body)
        reading = read_function_code(function)
        own = {(site.code.co_filename, site.line) for site in read_code(function.__code__).lookups}
        places = [place for place in reading.lookups if (place.file, place.line) not in own]
        if places:
            yield _lookup_finding(
                f"{where} pipeline '{pipeline}'",
                f"has steps whose code looks up code by name at {places_text([str(place) for place in places])}",
                anyway=settings.cache is True and "cache" in origins,
            )

    def _resolve(self, node: GraphNode) -> tuple[StepSettings, dict[str, str]]:
        overrides = self._overrides
        named = overrides.steps.get(node.step.name, ())
        keyed = overrides.steps.get(node.key, ()) if node.key != node.step.name else ()
        layers = (*self._layers, *node.step.layers, *node.layers, *overrides.every, *named, *keyed)
        key = tuple(map(id, layers))
        resolved = self._settings.get(key)
        if resolved is None:
            try:
                resolved = resolve(layers, self._stack)
                check_whole_run(*resolved, self._run_options(), self._stack)
            except SettingsError as error:
                error.where = error.where or f"{node.where or node.step.where} step '{node.step.name}'"
                raise
            self._settings[key] = resolved
            self._layers_alive.append(layers)  # kept alive, so that their ids stay unique
        return resolved

    def _run_options(self) -> Mapping[str, Mapping[str, Any]]:
        """The options with which the run's backends are opened."""
        if self._backend_options is None:
            layers = (*self._layers, *self._overrides.every)
            self._backend_options = resolve_pipeline(layers, self._stack)[0].backend
        return self._backend_options

    def _locate(self, function: Callable[..., Any], where: str) -> tuple[FunctionSource, FunctionCode]:
        located = self._sources.get(id(function))
        if located is None:
            source = sources.locate(function, where)
            source = attrs.evolve(source, metaflow=METAFLOW.is_installed(), zenml=ZENML.is_installed())
            if source.kind == "pickled":
                source = attrs.evolve(source, digest=self.blobs.put(sources.pickled(function)))
            reading = read_function_code(function)
            remember_code(reading.digest, (reading,))
            located = self._sources[id(function)] = (source, reading)
        return located

    def source_of(self, function: Callable[..., Any], where: str) -> FunctionSource:
        """Where a worker, or a driver that resumes the run, finds a function."""
        return self._locate(function, where)[0]

    def hooks(self, functions: Mapping[str, Callable[..., Any]], where: str) -> dict[str, FunctionSource]:
        """Where a worker finds each hook."""
        return {
            name: attrs.evolve(self._locate(hook, where)[0], caller=getattr(hook, "__stoker_caller__", UNSET))
            for name, hook in functions.items()
        }

    def parameters(self, graph: Graph) -> dict[str, Any]:
        """The arguments of a dynamic pipeline, saved: on resume its body runs again with them."""
        parameters = {}
        for name, value in graph.parameters.items():
            try:
                parameters[name] = self._save(value)
            except SerializationError as error:
                raise _unsavable(f"pipeline '{graph.name}' cannot be given {name}", graph.where, error) from error
        return parameters

    def kept_parameters(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a pipeline, saved for a run that repeats this one; without those that cannot be saved."""
        parameters = {}
        for name, value in values.items():
            with contextlib.suppress(SerializationError):
                parameters[name] = self._save(value)
        return parameters

    def _save(self, value: Any) -> Mapping[str, Any]:
        """An artifact's document; a large value is saved once, however often it is handed over."""
        if isinstance(value, ArtifactRef):
            wire: Mapping[str, Any] = self._named(value)["value"]
            return wire
        saved = self._saved.get(id(value))
        if saved is not None:
            return saved[1]
        artifact = artifacts.save(value, self.blobs)
        wire = self._recorded.get(artifact.digest) or artifact.wire()
        if artifact.inline is None:
            self._saved[id(value)] = (value, wire)  # the value is kept alive, so that its id stays unique
        return wire

    def _inputs(self, node: GraphNode) -> dict[str, Any]:
        """What each parameter is bound to; values from the pipeline's body are saved here."""
        inputs = {}
        for name, binding in node.bindings.items():
            try:
                inputs[name] = self._tree(binding, mapped=name in node.mapped)
            except SerializationError as error:
                what = f"step '{node.step.name}' cannot be given {name}"
                raise _unsavable(what, node.where or node.step.where, error) from error
        return inputs

    def _named(self, reference: ArtifactRef) -> dict[str, Any]:
        """The version that a reference means now; a plan resolves a reference once."""
        leaf = self._references.get(reference)
        if leaf is None:
            row = self._names().artifact(reference.name, reference.version)
            leaf = self._references[reference] = {"value": row.artifact.wire(), "named": [row.name, row.version]}
        return leaf

    def _names(self) -> Names:
        if self._registry is None:
            raise UsageError("artifacts and models cannot be named here", fix="give the value itself")
        return self._registry

    def model_version(self, model: Model) -> int | None:
        """The version that runs with a model use; None for one that is yet to be made."""
        if model.version is None:
            return None
        try:
            return self._names().model(model.name, model.version).version
        except NotFound:
            if names_label(model.version):
                return None
            raise

    def _tree(self, binding: Binding, *, mapped: bool) -> dict[str, Any]:
        if isinstance(binding, FromStep):
            return {"step": binding.node, "output": binding.output}
        if isinstance(binding, Constant):
            if isinstance(binding.value, ArtifactRef):
                return self._named(binding.value)
            if mapped:
                return {"value": artifacts.save_split(binding.value, self.blobs).wire()}
            return {"value": self._save(binding.value)}
        if isinstance(binding, Many):
            return {"list": [self._tree(item, mapped=False) for item in binding.items]}
        return {"dict": {name: self._tree(item, mapped=False) for name, item in binding.items.items()}}


def split_outputs(nodes: Iterable[GraphNode]) -> dict[str, list[str]]:
    """For each node key, the outputs that a later fan-out iterates over; they are saved element by element."""
    outputs: dict[str, list[str]] = {}
    for node in nodes:
        for name in () if node.sweep else node.mapped:
            binding = node.bindings[name]
            if isinstance(binding, FromStep) and binding.output not in outputs.setdefault(binding.node, []):
                outputs[binding.node].append(binding.output)
    return outputs


def plan(
    graph: Graph,
    planner: Planner,
    backends: Mapping[str, RunningBackend],
    *,
    stack: str,
    failure_mode: FailureMode,
    source: FunctionSource | None = None,
) -> Plan:
    """The plan of a traced pipeline, with the backends' findings; errors among them do not raise here.

    `source` is where a dynamic pipeline's function is found when its run is resumed.
    """
    split = split_outputs(graph.nodes)
    mapped = {node.key for node in graph.nodes if node.mapped}
    steps = [planner.step_plan(node, () if node.key in mapped else split.get(node.key, ())) for node in graph.nodes]
    findings = tuple(backend_findings(steps, backends, planner.secrets))
    return Plan(
        pipeline=graph.name,
        steps=tuple(steps),
        parameters=planner.parameters(graph) if graph.dynamic else {},
        failure_mode=failure_mode,
        stack=stack,
        where=graph.where,
        source=source,
        dynamic=graph.dynamic,
        model=graph.model,
        model_version=None if graph.model is None else planner.model_version(graph.model),
        findings=findings,
    )


def price_findings(steps: Iterable[StepPlan], prices: PriceList | None) -> Iterator[Finding]:
    """What the steps' machines cost by the stack's price list; of steps with the same settings once."""
    if prices is None:
        return
    from stoker.core.costs import age_text

    day = age_text(prices.date, prices.age(time.time()))
    source = f"{prices.source} ({prices.where})"
    for step in {(step.name, id(step.settings)): step for step in reversed(list(steps))}.values():
        price = prices.hourly(step.settings)
        if isinstance(price, str):
            yield reporter_of(step).info(PRICED, f"its price is not known: the list lacks {price}", source)
        else:
            what = f"${price:.2f} an hour, by {day}"
            yield reporter_of(step).info(PRICED, what, source, price=price, priced=prices.date)


def with_rates(steps: Iterable[StepPlan], findings: Sequence[Finding], prices: PriceList | None) -> Iterator[StepPlan]:
    """The steps with their prices, by the list or by findings, sweeps with what an hour of a trial takes of their
    budgets; `SettingsError` where nothing says it."""
    listed = [(one.where, one.price) for one in findings if one.price is not None and one.code != PRICED]
    known: dict[tuple[str, int], float | None] = {}
    for step in steps:
        alike = (step.name, id(step.settings))
        if alike not in known:
            by_list = "" if prices is None else prices.hourly(step.settings)
            named = f"step '{step.name}'"
            found = next((price for where, price in listed if where.endswith(named)), None)
            known[alike] = found if isinstance(by_list, str) else by_list
        price = known[alike]
        priced = step if price == step.price else attrs.evolve(step, price=price)
        if step.sweep is None or step.sweep.budget is None:
            yield priced
            continue
        budget = step.sweep.budget
        rate = budget.hourly(step.settings, price)
        if not rate:
            what, fix = "it asks for no device", "give the step gpu_count=1, for example, or the sweep trials=50"
            if budget.unit == "USD":
                what, fix = NO_PRICE, PRICE_FIX
            where = f"{step.where} step '{step.name}'"
            raise SettingsError(f"nothing counts against budget={str(budget)!r}: {what}", where=where, fix=fix)
        yield attrs.evolve(priced, sweep=attrs.evolve(step.sweep, budget=attrs.evolve(budget, rate=rate)))


def replan(recorded_plan: Plan, overrides: Overrides, stack: Stack) -> Plan:
    """A run's plan for another driver: the settings that the steps had, overridden by the new command line."""
    check_names(overrides, recorded_plan.steps)
    same_stack = recorded_plan.stack == stack.name
    if same_stack and not overrides.every and not overrides.steps:
        return recorded_plan
    resolved: dict[tuple[int, str, str], tuple[StepSettings, dict[str, str]]] = {}
    steps = []
    for step in recorded_plan.steps:
        key = (id(step.settings), step.name, step.key if step.key in overrides.steps else "")
        if key not in resolved:
            named = {name: overrides.steps.get(name, ()) for name in (step.name, step.key)}
            recorded = _recorded_layer(step.settings, stack if same_stack else None)
            layers = (recorded, *overrides.every, *(layer for named_layers in named.values() for layer in named_layers))
            resolved[key] = resolve(layers, stack)
        settings, origins = resolved[key]
        backend, environment = settings.step_operator or ORCHESTRATOR, environment_name(settings)
        changed = attrs.evolve(
            step,
            settings=settings,
            origins=origins,
            backend=backend,
            environment=environment,
            lock="",
            data=step.data if settings.data == step.settings.data else {},
        )
        steps.append(changed)
        check_ladder(steps[-1])
    return attrs.evolve(recorded_plan, steps=tuple(steps))


def _recorded_layer(settings: StepSettings, stack: Stack | None) -> Layer:
    """Resolved settings as a layer; with the backend's options if the stack is the same."""
    values: dict[str, Any] = {}
    name = settings.step_operator
    component = None
    if stack is not None:
        component = stack.parts.get(name or ORCHESTRATOR)
    if component is not None:
        values |= {f"{part}.{component.flavor}": options for part, options in settings.backend.items()}
    for name in OPTIONS:
        value = getattr(settings, name, None)
        if value is not None:
            values[name] = fields_given(value) if attrs.has(type(value)) else value
    return Layer(origin="the run as it was started", values=values)


def growth_findings(
    plan: Plan, backends: Mapping[str, RunningBackend], *, noun: str, hooks: Iterable[str]
) -> Iterable[Finding]:
    """What forbids a program whose steps are not known when it begins. `noun` says what it is, and `hooks` are its own,
    which the backend of its first step would call."""
    named = ", ".join(hooks)
    first = backends[plan.steps[0].backend] if plan.steps and named else None
    if first is not None and capability(first, ExpectsSteps) is not None:
        what = f"'{plan.pipeline}' has hooks ({named}), and {first.name} is to call them"
        why = "that knows the steps of a run only, which are over then"
        fix = (
            "call the function where the pipeline is called, after it or in `finally:`; or run it on another stack "
            "(--stack)"
        )
        yield Finding(code=LATE_STEPS, level="error", where=plan.where, what=what, why=why, fix=fix)
    for name in dict.fromkeys([step.backend for step in plan.steps] or [ORCHESTRATOR]) if plan.dynamic else ():
        if capability(backends[name], ExpectsSteps) is not None:
            is_pipeline = noun == "pipeline"
            what = f"'{plan.pipeline}' is {'dynamic' if is_pipeline else f'a {noun}'}, and its steps are to run on "
            what += backends[name].name
            why = "that must know all steps when the run begins"
            fix = "remove dynamic=True" if is_pipeline else "write it as a pipeline"
            fix += ", or run it on another stack (--stack)"
            yield Finding(code=LATE_STEPS, level="error", where=plan.where, what=what, why=why, fix=fix)


def backend_findings(
    steps: Iterable[StepPlan], backends: Mapping[str, RunningBackend], secrets: SecretReader | None = None
) -> Iterable[Finding]:
    """The backends' findings about steps; steps with the same settings are checked once. Without a reader of secrets,
    those of the steps have been checked before."""
    checked: set[tuple[str, str, int]] = set()
    for step in steps:
        if secrets is not None and (step.inputs or step.settings.environment):
            yield from step_findings(step, backends[step.backend], secrets)
        key = (step.name, step.backend, id(step.settings))
        if key in checked:
            continue
        checked.add(key)
        if step.of_main_block and capability(backends[step.backend], RunsInDriver) is None:
            yield _main_block_finding(step)
        yield from backends[step.backend].check(step)
        if step.settings.packages is not None:
            yield from _package_findings(step, backends[step.backend])
        if step.settings.launch is not None:
            yield from _launch_findings(step.settings.launch, step)


def lookup_findings(steps: Iterable[StepPlan]) -> Iterator[Finding]:
    """The findings about steps whose code finds other code by a name that is known only when it runs."""
    reported: set[str] = set()
    for step in steps:
        if not step.settings.cache or step.name in reported or not (text := lookup_text(step)):
            continue
        reported.add(step.name)
        anyway = cached_anyway(step)
        consequence = "cached although" if anyway else "not cached because"
        yield _lookup_finding(f"{step.where} step '{step.name}'", f"is {consequence} {text}", anyway=anyway)


def _lookup_finding(where: str, what: str, *, anyway: bool) -> Finding:
    return Finding(
        code=LOOKUP,
        level="info",
        where=where,
        what=what,
        why="no cache key can know which code that is, and a change of it is not seen",
        fix="add cache_key=… or cache=False" if anyway else "write the name out; or add cache_key=… or cache=True",
    )


def placement_findings(
    steps: Iterable[StepPlan],
    backends: Mapping[str, RunningBackend],
    ask: Callable[[str, str, Callable[[], Iterable[Finding]]], Iterable[Finding]] = lambda _, __, check: check(),
) -> Iterator[Finding]:
    """The findings of backends that ask their cluster, such as that no node is large enough.

    `ask` is given a backend's name, the place of its first step, and what asks it: it may give up waiting.
    """
    by_backend: dict[str, list[StepPlan]] = {}
    for step in steps:
        by_backend.setdefault(step.backend, []).append(step)
    for name, backend_steps in by_backend.items():
        prover = capability(backends[name], ProvesPlacement)
        if prover is not None:
            yield from ask(name, backend_steps[0].where, partial(prover.prove, backend_steps))


def usual_findings(plan: Plan, stack: Stack) -> Iterator[Finding]:
    """How to give settings to backends that no file names, where what they usually have does not do for a step."""
    refused = [finding.where for finding in plan.findings if finding.level == "error"]
    for name, part in stack.parts.items() if refused else ():
        where = [reporter_of(step).where for step in plan.steps if step.backend == name]
        if not part.usual or not any(place in refusal for place in where for refusal in refused):
            continue
        backend = BACKENDS.load(part.flavor)
        line = f"--with {name}:FIELD=VALUE,…"
        if backend.setup is not None:
            first = "" if backend.setup.usual is not None else f" --{next(iter(backend.setup.questions))} …"
            store = (
                "" if backend.setup.usual_store or not backend.setup.store else " --artifact-store s3://BUCKET/PREFIX"
            )
            line += f"; or make a stack of it once: stoker stacks setup {name}{first}{store}"
        else:
            line += f'; or write step_operators.{name} = {{flavor = "{name}"}} in [stacks.{stack.name}] of stoker.toml'
        yield Finding(
            code=USUAL,
            level="error",
            where=plan.where,
            what=f"'{name}' has its usual settings here, which do not do for these steps",
            why=f"stack '{stack.name}' has no part of that backend",
            fix=f"give what is asked for above: {line}",
        )


def environment_name(settings: StepSettings) -> str:
    """The name of a step's own environment on this machine; empty for the driver's, and for an image."""
    if settings.packages is None or settings.docker is not None:
        return ""
    from stoker.plan import environments

    return environments.environment_name(settings.packages)


def _main_block_finding(step: StepPlan) -> Finding:
    return reporter_of(step).error(
        OF_MAIN_BLOCK,
        f"reads {', '.join(step.of_main_block)}, which the script's main block sets",
        "where steps run that block does not: they would read another value, or none",
        fix="hand the value over as an argument of the step, or set it outside of the main block",
    )


def _package_findings(step: StepPlan, backend: RunningBackend) -> Iterable[Finding]:
    """The findings about a step's packages; the module is imported only if packages are asked for."""
    from stoker.plan.environments import findings

    return findings(step, backend)


def _launch_findings(launch: Launch, step: StepPlan) -> Iterator[Finding]:
    """The launcher's findings about a distributed step; the modules are imported only if there is one."""
    from stoker.launchers.options import check

    origin = step.origins.get("resources.gpu_count", "")
    if origin.startswith(IMPLIED_BY):
        yield reporter_of(step).translated(
            "STK148",
            f"gets {count_text(step.settings.resources.gpus_per_node, 'GPU')} on each node, {origin}",
            "its resources name no accelerator",
        )
    from stoker.vendors.nvidia.chips import capability

    yield from check(launch, step.settings.resources, where=f"{step.where} step '{step.name}'", capability=capability)


def refuse(plan: Plan) -> None:
    """Raise a `PreflightError` with every error of the plan, if there is one."""
    errors = checks.errors(plan.findings)
    if errors:
        raise PreflightError(
            "the plan is refused:\n" + "\n".join(finding.text() for finding in checks.merged(errors)),
            findings=plan.findings,
        )


def check_names(overrides: Overrides, steps: Iterable[StepPlan]) -> None:
    """Refuse settings for steps that the pipeline does not have."""
    names = {name for step in steps for name in (step.name, step.key)}
    for name, layers in overrides.steps.items():
        if name not in names:
            raise GraphError(
                f"there is no step '{name}' in this pipeline{nearest(name, names)}", where=layers[0].origin
            )


def _unsavable(what: str, where: str, error: SerializationError) -> ParameterError:
    fix = "hand over what it is made from, such as a path as text, and make it inside the step"
    return ParameterError(f"{what}: {error.message}", where=where, fix=fix)


_LADDER_FIX: Final = "hand a whole number over in the pipeline, or give the parameter one as its default"


def check_ladder(step: StepPlan) -> None:
    """Refuse a rung of `retry.on_oom` that halves no parameter of the step, or one that is no whole number."""
    for rung in step.settings.retry.on_oom:
        if not isinstance(rung, Halve):
            continue
        name = rung.parameter
        where = f"{step.where} step '{step.key}', retry.on_oom"
        if name not in step.inputs:
            message = f"'{rung}': the step has no parameter '{name}'{nearest(name, step.inputs)}"
            raise SettingsError(message, where=where)
        problem = _not_halvable(step.inputs[name], mapped=name in step.mapped)
        if problem:
            raise SettingsError(f"'{rung}': {name} is {problem}", where=where, fix=_LADDER_FIX)


def _not_halvable(tree: Mapping[str, Any], *, mapped: bool) -> str:
    """What an input is if it cannot be halved; empty for a whole number."""
    if "step" in tree:
        return f"what step '{tree['step']}' returns"
    if "value" not in tree:
        return "put together from what steps return"
    wire = tree["value"]
    if not mapped:
        return _type_problem(wire)
    if wire["s"] != "list" or "i" not in wire:
        return ""  # too long for the plan: an element that is no number is an error when its turn comes
    return next((f"{problem} for an element" for item in _items(wire) if (problem := _type_problem(item))), "")


def _items(wire: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    items: list[Mapping[str, Any]] = json.loads(from_wire(wire).inline or b"{}").get("items", [])
    return items


def _type_problem(wire: Mapping[str, Any]) -> str:
    kind = wire["t"].removeprefix("builtins.")
    return "" if kind == "int" else f"a value of type {kind}"


MISSING: Final = "STK194"
IN_THE_OPEN: Final = "STK195"


def step_findings(step: StepPlan, backend: RunningBackend, secrets: SecretReader) -> Iterator[Finding]:
    """What is wrong with the secrets of a step."""
    environment = step.settings.environment
    inputs = {name: tree for name, tree in step.inputs.items() if "step" not in tree}
    if not environment and not inputs:
        return
    wanted = references(environment, inputs)
    if wanted:
        yield from _missing(wanted, secrets, reporter_of(step))
    if wanted and capability(backend, KeepsSecrets) is None:
        yield reporter_of(step).error(
            MISSING,
            f"{', '.join(sorted(wanted))} cannot reach it on '{step.backend}'",
            "what is sent there can be read by others",
            "run it on another backend, or let the step read the secret where it runs",
        )
    for name, text in environment.items():
        if text in READ or looks_secret(name, text):
            spelled = READ.get(text, f"{PREFIX}env:{name}")
            yield _in_the_open(reporter_of(step), f"the environment variable {name}", f'"{spelled}"')
    for name, tree in inputs.items():
        if (value := _text(tree)) in READ or looks_secret(name, value):
            spelled = f'Secret.parse("{READ[value]}")' if value in READ else f'Secret.env("{name.upper()}")'
            yield _in_the_open(reporter_of(step), f"the input '{name}'", spelled)


def parameter_findings(parameters: Mapping[str, Any], where: str, secrets: SecretReader) -> Iterator[Finding]:
    """What is wrong with the secrets among the parameters of a pipeline or a flow, as wires."""
    report = Reporter(where=where, step="")
    trees = {name: {"value": wire} for name, wire in parameters.items()}
    yield from _missing(references({}, trees), secrets, report)
    for name, tree in trees.items():
        if (value := _text(tree)) in READ or looks_secret(name, value):
            spelled = f"--{name} {READ.get(value, PREFIX + 'env:' + name.replace('-', '_').upper())}"
            yield _in_the_open(report, f"the parameter '{name}'", spelled)


def _missing(wanted: set[str], secrets: SecretReader, report: Reporter) -> Iterator[Finding]:
    for reference in sorted(wanted):
        try:
            length = len(secrets.read(Secret.parse(reference)))
        except StokerError as problem:
            yield report.error(MISSING, problem.message, fix=problem.fix)
            continue
        if length < SHORTEST:
            what = f"the value of {reference} is shorter than {SHORTEST} characters: output is not masked"
            yield report.warning(IN_THE_OPEN, what, "it may be a common word, which would be masked everywhere")


def _in_the_open(report: Reporter, what: str, spelled: str) -> Finding:
    why = "plan, database, logs and JSON output have the value"
    return report.warning(
        IN_THE_OPEN, f"{what} looks like a secret, and is a plain value", why, f"give it as {spelled}"
    )


def _text(tree: Mapping[str, Any]) -> Any:
    wire = tree.get("value", {})
    return wire.get("i") if wire.get("s") == "str" else None
