"""`@step` and `@pipeline`: ordinary functions that become the steps of a graph.

A step that is called outside a pipeline is its plain function. A pipeline gets the function that a
call of it runs when it is made (`run.start`): nothing here knows how a pipeline runs.
"""

from __future__ import annotations

import contextlib
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Final,
    Generic,
    Iterable,
    Iterator,
    Literal,
    Mapping,
    ParamSpec,
    Protocol,
    Sequence,
    TypedDict,
    TypeVar,
    overload,
)

import attrs

from stoker.core import graph, request
from stoker.core.errors import GraphError, ParameterError, StokerError, UsageError, nearest
from stoker.core.graph import Graph, StepSpec
from stoker.core.registry import Model
from stoker.core.request import RunOption
from stoker.core.resources import AcceleratorPolicy, HealthCheck, OnIdle
from stoker.core.settings import FailureMode, Isolation, Layer, OnHangup
from stoker.core.units import UNSET
from stoker.core.usercode import caller, definition_line
from stoker.core.values import frozen
from stoker.pipelines import signature as signatures
from stoker.pipelines.bindings import Binder
from stoker.pipelines.handles import Each, Future, each
from stoker.pipelines.params import check, from_document
from stoker.pipelines.signature import FunctionParameter, FunctionSignature
from stoker.pipelines.tracing import ACTIVE, BodySession, Call, Trace, checked_name, inside
from stoker.settings.options import OPTIONS, layer_of

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Unpack

    from stoker.core.data import DataCache
    from stoker.core.plan import Plan
    from stoker.core.settings import DockerSettings, Launch, Monitor, PackageSettings, ResourceSettings, Retry


Hook = Callable[..., Any]
HOOKS: Final = ("on_success", "on_failure")
LAUNCH_MARK: Final = "__stoker_launch__"
"""What a decorator below `@step` leaves on the function: the step's `launch`."""


class Options(TypedDict, total=False):
    """What both a step and a pipeline may say; a pipeline says it for all of its steps."""

    settings: Mapping[str, Any]
    resources: ResourceSettings | Mapping[str, Any] | None
    docker: DockerSettings | Mapping[str, Any] | None
    packages: PackageSettings | Mapping[str, Any] | None
    retry: Retry | Mapping[str, Any] | int | None
    timeout: float | str | timedelta | None
    cache: bool | Literal["strict"]
    cache_key: Any
    cache_expires: float | str | timedelta | None
    isolation: Isolation
    accelerator_policy: AcceleratorPolicy
    health_check: HealthCheck
    on_idle_gpu: OnIdle
    monitor: Monitor | Mapping[str, Any] | float | str | None
    checkpoint_every: float | str | timedelta | None
    track: str | Sequence[str]
    previews: bool
    environment: Mapping[str, str] | None
    data: Mapping[str, Any] | None
    data_cache: DataCache | Mapping[str, Any] | str | None
    launch: Launch | Mapping[str, Any] | str | None
    step_operator: str | None
    on_success: Hook
    on_failure: Hook


class StepOptions(Options, total=False):
    """Keywords of `@step`."""

    name: str


class CallOptions(StepOptions, total=False):
    """Keywords of a step's `.with_options`: `id` is the step's key in the run, `after` what it waits for."""

    id: str
    after: Any


class PipelineOptions(Options, total=False):
    """Keywords of `@pipeline`: `max_parallel` steps may run at once, `on_hangup` says what a lost terminal means,
    `require_proof` refuses a run with accelerators that are not proved, `deadline` and `budget` end one in time, and
    the named outputs of a run belong to a version of `model`."""

    name: str
    failure_mode: FailureMode
    on_hangup: OnHangup
    max_parallel: int | None
    require_proof: bool
    deadline: float | str | timedelta | None
    budget: str | None
    dynamic: bool
    tags: Iterable[str]
    model: Model | str | None
    stack: str | None


@frozen(kw_only=True, eq=False)
class SplitOptions:
    """The keywords of a decorator, split by what they mean."""

    layers: tuple[Layer, ...]
    """One layer of settings if any was given."""
    hooks: Mapping[str, Hook]
    """Functions by "on_success" and "on_failure"."""
    rest: Mapping[str, Any]
    """The other keywords, as they are."""


def split_options(options: Mapping[str, Any], keywords: Any, *, owner: str, origin: str, step: bool) -> SplitOptions:
    """The keywords of a decorator; `known` is the TypedDict that lists them, `owner` is who complains."""
    names = keywords.__optional_keys__
    for name in options:
        if name not in names:
            if step and name in PipelineOptions.__optional_keys__:
                raise UsageError(f"{owner} has no option '{name}'", where=origin, fix=f"give {name} to @pipeline")
            raise UsageError(f"{owner} has no option '{name}'{nearest(name, names)}", where=origin)
    settings = {name: value for name, value in options.items() if name in OPTIONS and value is not UNSET}
    layers: tuple[Layer, ...] = ()
    if settings or options.get("settings"):
        level: Any = "step" if step else "pipeline"
        layers = (layer_of(origin, options.get("settings"), level=level, **settings),)
    hooks = {name: options[name] for name in HOOKS if options.get(name, UNSET) is not UNSET}
    for name, hook in hooks.items():
        if not callable(hook):
            raise UsageError(f"{owner}: {name}={hook!r} is not a function", where=origin)
    others = {
        name: value for name, value in options.items() if name not in OPTIONS and name not in (*HOOKS, "settings")
    }
    return SplitOptions(layers=layers, hooks=hooks, rest=others)


def with_marks(options: Mapping[str, Any], function: Any, where: str) -> Mapping[str, Any]:
    """The keywords of `@step`, and what decorators below it left on the function."""
    launch = getattr(function, LAUNCH_MARK, None)
    if launch is None:
        return options
    settings = options.get("settings")
    if options.get("launch", UNSET) is not UNSET or (isinstance(settings, Mapping) and "launch" in settings):
        raise UsageError(
            "@step has launch=, and a decorator below it says how to launch, too",
            where=where,
            fix="keep one of the two",
        )
    return {**options, "launch": launch}


def tags_of(tags: Any, where: str) -> tuple[str, ...]:
    """Tags of a run: texts, not one text."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"tags={tags!r} is not a list of texts", where=where, fix='write tags=["nightly"]')
    return tuple(tags)


P = ParamSpec("P")
R = TypeVar("R")
OnCall = Callable[["Pipeline[...]", Mapping[str, Any]], Any]
"""What a call of a pipeline does: it is given the pipeline and the arguments."""

__all__ = ["BodySession", "Future", "Pipeline", "Step", "each", "pipeline_of", "step"]


class CallStart(Protocol):
    """What a dynamic pipeline's run begins with."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Bound arguments."""

    def calls(self, call: Callable[[Any], Any]) -> Any:
        """Call the body beside the engine; the steps that it calls go to the session that `call` is given."""


class Step(Generic[P, R]):
    """A function that a pipeline calls as one of its steps; made by `@step`, never changed."""

    def __init__(self, function: Callable[P, R], definition: _Definition, **call: Any) -> None:
        self.function = function
        self.name = definition.name
        self.where = definition.where
        self._definition = definition
        self._options = call
        self._call: Call | None = None
        _copy_metadata(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        trace = ACTIVE.get()
        if trace is None:
            return self.function(*args, **kwargs)
        return trace.call(self.as_call(), args, kwargs)  # type: ignore[no-any-return]

    def map(self, *args: Any, **kwargs: Any) -> Any:
        """One call for each element: positional arguments and `each(…)` are iterated over side by side, keywords fixed.

        The result stands for the list of all results; given to another `.map`, its elements meet one by one.
        """
        trace = ACTIVE.get()
        if trace is None:
            return self._map_function(args, kwargs)
        return trace.map(self.as_call(), args, kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Future[R]:
        """In a dynamic pipeline: start the step and go on; `.result()` of what is returned waits for its value."""
        trace = ACTIVE.get()
        if trace is None:
            raise UsageError(
                f"step '{self.name}'.submit(…) outside a pipeline", where=caller(), fix="call the step like a function"
            )
        return trace.submit(self.as_call(), args, kwargs)

    def with_options(self, **options: Unpack[CallOptions]) -> Step[P, R]:
        """The same step with other settings, another `name` or `id`, or steps that it waits for (`after`)."""
        where = caller()
        split = split_options(
            options, CallOptions, owner=f"step '{self.name}'.with_options", origin=f"{where} with_options", step=True
        )
        definition = self._definition
        names = split.rest
        if "name" in names:
            definition = definition.with_name(checked_name(names["name"], "name of a step", where))
        return type(self)(
            self.function,
            definition,
            id=checked_name(names["id"], "id of a step", where) if "id" in names else self._options.get("id"),
            after=_as_tuple(names["after"]) if "after" in names else self._options.get("after", ()),
            layers=(*self._options.get("layers", ()), *split.layers),
            hooks={**self._options.get("hooks", {}), **split.hooks},
        )

    @property
    def spec(self) -> StepSpec:
        """The step as the graph knows it."""
        return self._definition.spec

    @property
    def signature(self) -> FunctionSignature:
        """What the function takes and gives."""
        return self._definition.signature

    def __repr__(self) -> str:
        return f"<step '{self.name}' of {self.where}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _importable_name(self) or super().__reduce_ex__(protocol)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Its settings, weakest first."""
        return (*self.spec.layers, *self._options.get("layers", ()))

    def as_call(self) -> Call:
        """The step with the options of this call, for a trace."""
        if self._call is None or not self._call.signature.complete:
            self._definition.complete()
            self._call = Call(step=self.spec, signature=self.signature, **self._options)
        return self._call

    def _map_function(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        function: Callable[..., Any] = self.function
        columns = [list(arg.items if isinstance(arg, Each) else arg) for arg in args]
        iterated = {name: list(value.items) for name, value in kwargs.items() if isinstance(value, Each)}
        fixed = {name: value for name, value in kwargs.items() if name not in iterated}
        lengths = {len(column) for column in (*columns, *iterated.values())}
        if len(lengths) != 1:
            problem = "differ in length" if lengths else "are missing"
            raise ParameterError(f"step '{self.name}'.map(…): the lists to map over {problem}", where=caller())
        return [
            function(
                *(column[index] for column in columns),
                **{name: column[index] for name, column in iterated.items()},
                **fixed,
            )
            for index in range(lengths.pop())
        ]


class Pipeline(Generic[P]):
    """A function that calls steps; made by `@pipeline`. Calling it runs it and returns the run.

    `on_call` is what a call does, outside of other pipelines: it is given the pipeline and the arguments.
    """

    noun = "pipeline"
    worker_imports = (__name__,)
    schedule: tuple[str, str] | None = None
    triggers: tuple[str, ...] = ()

    def __init__(self, function: Callable[P, Any], definition: _PipelineDefinition, on_call: OnCall) -> None:
        self.function = function
        self.name = definition.name
        self.where = definition.where
        self.layers = definition.layers
        self.hooks = definition.hooks
        self.dynamic = definition.dynamic
        self.stack = definition.stack
        self.tags = definition.tags
        self.model = definition.model
        self._definition = definition
        self._on_call = on_call
        _copy_metadata(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        trace = ACTIVE.get()
        where = caller()
        if trace is None and request.WORKER:
            raise request.NotTheDriver(f"pipeline '{self.name}' was called while a worker imported {where}")
        bound = self.signature.bind_arguments(args, kwargs, where)
        if trace is not None:
            return self._run_nested(trace, bound, where)
        self._check(bound, where)
        return self._on_call(self, bound)

    def with_options(self, **options: Unpack[PipelineOptions]) -> Pipeline[P]:
        """The same pipeline with other settings."""
        where = caller()
        split = split_options(
            options,
            PipelineOptions,
            owner=f"pipeline '{self.name}'.with_options",
            origin=f"{where} with_options",
            step=False,
        )
        return type(self)(self.function, self._definition.with_options(split, where), self._on_call)

    @property
    def signature(self) -> FunctionSignature:
        """What the function takes."""
        return self._definition.signature

    @property
    def parameters(self) -> Mapping[str, FunctionParameter]:
        """The parameters by name, for a command line."""
        return self.signature.parameters

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments, defaults filled in, every one of the type that is asked for; texts are parsed where needed."""
        where = caller()
        values = self.signature.bind_arguments((), arguments, where)
        for name, value in values.items():
            try:
                values[name] = from_document(value, self.signature.annotation(name))
            except ParameterError as error:
                raise ParameterError(f"pipeline '{self.name}': {name}: {error.message}", where=where) from None
        return self.signature.complete_with_defaults(values, where)

    def rebind(self, recorded: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments of an earlier run, with some that are given anew; what it no longer takes is dropped."""
        known = self.signature.parameters
        return self.bind({**{name: value for name, value in recorded.items() if name in known}, **changes})

    def run_options(self) -> tuple[RunOption, ...]:
        """A pipeline has the options of every run and no others."""
        return ()

    def complete_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options as they are: environment variables give none of a pipeline's."""
        return options

    def apply_options(self, options: Mapping[str, Any]) -> Pipeline[P]:
        """The pipeline as it is: it has no options of its own."""
        return self

    def parse(self, words: Sequence[str], flags: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
        """Parameters by name from the words of a command line, and the words that are none."""
        from stoker.pipelines import scripts

        return scripts.parse(self.signature, words, flags)

    def parameter_rows(self) -> list[tuple[str, str]]:
        """For the help: each parameter as it is written, and its default."""
        from stoker.pipelines import scripts

        return scripts.rows(self.signature)

    def describe_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bound arguments as the run's record shows them: as they are."""
        return arguments

    def hint(self, cpus: float, memory: int) -> None:
        """A pipeline's requests are meant as they are written, also on this machine."""

    def graph_of(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph for bound arguments."""
        return self.outline(arguments) if self.dynamic else self.trace(**arguments)  # type: ignore[call-arg]

    def complete_plan(self, plan: Plan) -> Plan:
        """The plan as the planner makes it: a pipeline adds nothing."""
        return plan

    def document(self, blobs: Any) -> Mapping[str, Any]:
        """Nothing: the function is the whole pipeline."""
        return {}

    def restore(self, plan: Plan, blobs: Any) -> None:
        """A pipeline is in a later session what it was: its plan changes nothing of it."""

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """The graph that the pipeline's body makes of its arguments; nothing runs. A dynamic one has no nodes yet."""
        where = caller()
        bound = self.signature.bind_arguments(args, kwargs, where)
        self._check(bound, where)
        arguments = self.signature.complete_with_defaults(bound, where)
        if self.dynamic:
            return self.outline(arguments)
        if ACTIVE.get() is not None:
            raise GraphError(
                f"pipeline '{self.name}' is traced inside a pipeline", where=where, fix="call it, to nest it"
            )
        trace = Trace(self.name)
        with inside(trace):
            self._body(arguments)
        if not trace.nodes:
            raise GraphError(
                f"pipeline '{self.name}' calls no step", where=self.where, fix="call a function that has @step in it"
            )
        complete_graph = attrs.evolve(self.outline(arguments), nodes=tuple(trace.nodes))
        graph.check(complete_graph)
        return complete_graph

    def outline(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph without its nodes: name, parameters, settings."""
        return Graph(
            name=self.name,
            nodes=(),
            parameters=dict(arguments),
            layers=self.layers,
            hooks=self.hooks,
            where=self.where,
            dynamic=self.dynamic,
            model=self.model,
            callable_layers=tuple(
                layer
                for value in getattr(self.function, "__globals__", {}).values()
                if isinstance(value, Step)
                for layer in value.layers
            ),
        )

    def body(self, start: CallStart) -> Any:
        """The run of a dynamic pipeline's body with real values; every step that it calls goes to a session."""
        return start.calls(lambda session: self.run_body(start.arguments, session))

    def run_body(self, arguments: Mapping[str, Any], session: BodySession) -> Any:
        """Run the body with real values; every step that it calls goes to the session."""
        with inside(Trace(self.name, session)):
            return self._body(arguments)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _importable_name(self) or super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"<pipeline '{self.name}' of {self.where}>"

    def _body(self, arguments: Mapping[str, Any]) -> Any:
        function: Callable[..., Any] = self.function
        return function(**arguments)

    def _run_nested(self, trace: Trace, bound: Mapping[str, Any], where: str) -> Any:
        if self.dynamic and trace.session is None:
            raise GraphError(
                f"pipeline '{self.name}' is dynamic and is called in '{trace.pipeline}', which is not",
                where=where,
                fix=f"write @pipeline(dynamic=True) on {trace.pipeline}",
            )
        # Bound for its checks only: arguments may be other steps' outputs.
        Binder(self.signature, where, trace).bind(bound)
        arguments = self.signature.complete_with_defaults(bound, where)
        with trace.nest(self.name, self.layers, self.hooks):
            return self._body(arguments)

    def _check(self, bound: Mapping[str, Any], where: str) -> None:
        for name, value in bound.items():
            default = self.signature.is_default(name, value)
            problem = None if default else check(value, self.signature.annotation(name))
            if problem is not None:
                raise ParameterError(f"pipeline '{self.name}': {name} {problem}", where=where)


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(**options: Unpack[StepOptions]) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(function: Any = None, /, **options: Any) -> Any:
    """Make a function a step; bare or with options, `@step(resources=ResourceSettings(gpu_count=1))`."""
    if function is None:
        return lambda decorated: step_of(decorated, options)
    return step_of(function, options)


def pipeline_of(
    function: Any, options: Mapping[str, Any], on_call: OnCall, kind: type[Pipeline[...]] = Pipeline
) -> Pipeline[...]:
    """Make a function a pipeline with the options of `@pipeline`; `on_call` is what a call of it does."""
    with _errors_shown_in_scripts():
        return _checked_pipeline(function, options, on_call, kind)


def _checked_pipeline(
    function: Any, options: Mapping[str, Any], on_call: OnCall, kind: type[Pipeline[...]]
) -> Pipeline[...]:
    if isinstance(function, (Step, Pipeline)):
        raise UsageError(f"@pipeline on {function!r}", where=caller(), fix="remove one of the two decorators")
    _check_function(function, "@pipeline")
    where = definition_line(function)
    split = split_options(options, PipelineOptions, owner="@pipeline", origin=f"{where} @pipeline", step=False)
    name = checked_name(split.rest.get("name", function.__name__), "name of a pipeline", where)
    signature = signatures.read(function, f"pipeline '{name}'", where, outputs=False)
    definition = _PipelineDefinition(name=name, where=where, signature=signature).with_options(split, where)
    return kind(function, definition, on_call)


class _Definition:
    """What `@step` knows of a function."""

    def __init__(self, function: Callable[..., Any], name: str, where: str, split: SplitOptions) -> None:
        self.name = name
        self.where = where
        self._function = function
        self._options = split
        self._read()

    def with_name(self, name: str) -> _Definition:
        """The same under another name."""
        return _Definition(self._function, name, self.where, self._options)

    def complete(self) -> None:
        """Read the annotations again where a name was missing: it may be defined further down in the file."""
        if not self.signature.complete:
            self._read()

    def _read(self) -> None:
        self.signature = signatures.read(self._function, f"step '{self.name}'", self.where)
        self.spec = StepSpec(
            name=self.name,
            function=self._function,
            inputs=self.signature.inputs,
            outputs=self.signature.outputs,
            unpack=self.signature.unpack,
            where=self.where,
            layers=self._options.layers,
            hooks=self._options.hooks,
        )


@frozen(kw_only=True, eq=False)
class _PipelineDefinition:
    """What `@pipeline` and `.with_options` say of a function."""

    name: str
    where: str
    signature: FunctionSignature
    layers: tuple[Layer, ...] = ()
    hooks: Mapping[str, Hook] = attrs.field(factory=dict)
    dynamic: bool = False
    stack: str | None = None
    tags: tuple[str, ...] = ()
    model: Model | None = None

    def with_options(self, split: SplitOptions, where: str) -> _PipelineDefinition:
        """The definition with more options."""
        fields = dict(split.rest)
        if "name" in fields:
            checked_name(fields["name"], "name of a pipeline", where)
        if "tags" in fields:
            fields["tags"] = tags_of(fields["tags"], where)
        if isinstance(fields.get("model"), str):
            fields["model"] = Model(fields["model"])
        return attrs.evolve(self, layers=(*self.layers, *split.layers), hooks={**self.hooks, **split.hooks}, **fields)


def step_of(function: Any, options: Mapping[str, Any], kind: type[Step[..., Any]] = Step) -> Step[..., Any]:
    """Make a function a step with the options of `@step`."""
    with _errors_shown_in_scripts():
        return _checked_step(function, options, kind)


@contextlib.contextmanager
def _errors_shown_in_scripts() -> Iterator[None]:
    """A mistake in a decorator ends a script with a message: no pipeline has been called yet that would see to it."""
    try:
        yield
    except StokerError:
        from stoker.pipelines.scripts import watch_script

        watch_script()
        raise


def _checked_step(function: Any, options: Mapping[str, Any], kind: type[Step[..., Any]]) -> Step[..., Any]:
    if isinstance(function, (Step, Pipeline)):
        raise UsageError(
            f"@step on {function!r}", where=caller(), fix="remove one @step; .with_options(…) changes a step"
        )
    _check_function(function, "@step")
    where = definition_line(function)
    options = with_marks(options, function, where)
    split = split_options(options, StepOptions, owner="@step", origin=f"{where} @step", step=True)
    name = checked_name(split.rest.get("name", function.__name__), "name of a step", where)
    return kind(function, _Definition(function, name, where, split))


def _check_function(function: Any, decorator: str) -> None:
    try:
        signatures.check_function(function, decorator)
    except UsageError as error:
        error.where = definition_line(function)
        raise


def _as_tuple(steps: Any) -> tuple[Any, ...]:
    return tuple(steps) if isinstance(steps, (list, tuple, set)) else (steps,)


def _copy_metadata(wrapper: Any, function: Any) -> None:
    """What help(), inspect and editors look at; and where a worker finds the plain function."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(wrapper, name, getattr(function, name, None))
    wrapper.__wrapped__ = function
    wrapper.__stoker_function__ = function


def _importable_name(wrapper: Any) -> str:
    """The name under which its module has it: it is pickled by that, as functions are; "" is by its parts."""
    name: str = wrapper.__qualname__
    module = sys.modules.get(wrapper.__module__)
    return name if wrapper.__module__ != "__main__" and getattr(module, name, None) is wrapper else ""
