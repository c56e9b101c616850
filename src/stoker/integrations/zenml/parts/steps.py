"""`step` and `pipeline` with ZenML's options and calls: `after=` and `id=` in a call, `.configure`, `config_path=`."""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
import sys
import textwrap
import typing
from contextvars import ContextVar
from typing import Annotated, Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.core.errors import GraphError, NotFound, UsageError
from stoker.core.graph import Graph, GraphNode, StepSpec
from stoker.core.registry import Artifact
from stoker.core.request import RunOption, RunRequest
from stoker.core.usercode import caller
from stoker.integrations.zenml.parts import note
from stoker.integrations.zenml.parts.client import PipelineRun
from stoker.integrations.zenml.parts.settings import (
    Room,
    RunConfiguration,
    facts_of,
    options_of,
    read_run_configuration,
)
from stoker.integrations.zenml.parts.versions import ExternalArtifact, Model, in_step
from stoker.pipelines import functional
from stoker.pipelines.handles import Future, Handles, StepHandle, each, origins_of
from stoker.pipelines.params import allows
from stoker.pipelines.signature import OUTPUT
from stoker.pipelines.tracing import ACTIVE, BodySession, Call
from stoker.run import start
from stoker.run.commandline import COMMAND_LINE

CURRENT: Final[ContextVar[Pipeline | None]] = ContextVar("stoker_zenml_pipeline", default=None)
"""The pipeline whose body runs."""
_AFTER: Final[ContextVar[list[tuple[str, str, str]] | None]] = ContextVar("stoker_zenml_after", default=None)
"""What `.after` said in that body: a step, the one that it waits for, and where."""


class Unmapped:
    """An argument of `.map(…)` that is the same for all calls."""

    def __init__(self, value: Any) -> None:
        self.value = value


class StepFuture(Future[Any]):
    """A step in a dynamic pipeline: `load()` is its value, and `result()` waits and is the future itself."""

    def result(self) -> Any:
        """Wait for the step; its outputs are loaded by `load()`."""
        super().result()
        return self

    def load(self) -> Any:
        """The value of its only output, or a tuple of all."""
        return super().result()

    artifacts = result

    def __getitem__(self, which: int | str) -> StepFuture:
        return _loadable(super().__getitem__(which))


class Step(functional.Step[..., Any]):
    """A step that is called as ZenML's are."""

    def __init__(self, function: Callable[..., Any], definition: Any, **call: Any) -> None:
        super().__init__(function, definition, **call)
        self._others: dict[str, Any] = {}

    @property
    def spec(self) -> StepSpec:
        """The step as the graph knows it: outputs that have names have them beyond the run."""
        spec = super().spec
        outputs = tuple(
            output
            if output.artifact is not None or output.name.startswith(OUTPUT)
            else attrs.evolve(output, artifact=Artifact(output.name))
            for output in spec.outputs
        )
        return attrs.evolve(spec, outputs=outputs)

    def __call__(self, *args: Any, after: Any = (), id: str | None = None, **kwargs: Any) -> Any:
        trace = ACTIVE.get()
        if trace is None:
            return self.function(*map(_value, args), **{name: _value(value) for name, value in kwargs.items()})
        step = self._placed(after, id)
        args, kwargs = tuple(map(in_step, args)), {name: in_step(value) for name, value in kwargs.items()}
        kwargs = {**self._configured(args, kwargs), **kwargs}
        kwargs = {name: _validated(value, self.signature.annotation(name)) for name, value in kwargs.items()}
        if trace.session is None:
            return _printable(trace.call(step._lenient_call(args, kwargs), args, kwargs))
        return _loadable(functional.Step.submit(step, *args, **kwargs)).result()

    def submit(self, *args: Any, after: Any = (), id: str | None = None, **kwargs: Any) -> Any:
        """Start the step in a dynamic pipeline and go on."""
        return _loadable(functional.Step.submit(self._placed(after, id), *args, **kwargs))

    def map(self, *args: Any, after: Any = (), **kwargs: Any) -> Any:
        """One call for each element of every argument that is not `unmapped`."""
        mapped = functional.Step.map(
            self._placed(after, None),
            *args,
            **{
                name: value.value if isinstance(value, Unmapped) else each(in_step(value))
                for name, value in kwargs.items()
            },
        )
        return _loadable(mapped) if isinstance(mapped, Future) else mapped

    def product(self, after: Any = (), **kwargs: Any) -> Any:
        """One call for each combination of elements of the arguments that are not `unmapped`, which must be lists."""
        lists = {name: value for name, value in kwargs.items() if not isinstance(value, Unmapped)}
        for name, value in lists.items():
            if origins_of(value):
                raise GraphError(
                    f"step '{self.name}'.product(…): {name} is a step's output, whose length is not known yet",
                    where=caller(),
                    fix="return the combinations from a step, and give them to .map(…)",
                )
        rows = list(itertools.product(*lists.values()))
        columns = {name: [row[index] for row in rows] for index, name in enumerate(lists)}
        return self.map(after=after, **{**kwargs, **columns})

    def with_options(self, **options: Any) -> Step:
        """The same step with other options."""
        own, others = options_of(options, step=True)
        changed: Any = super().with_options(**own)
        changed._others = {**self._others, **others}
        return changed  # type: ignore[no-any-return]

    def configure(self, **options: Any) -> Step:
        """Change the step itself."""
        self.__dict__.update(self.with_options(**options).__dict__)
        return self

    def after(self, other: Any) -> None:
        """In an old pipeline's body: let the step's last call wait for the other's, also one that is yet to come."""
        pairs = _AFTER.get()
        if pairs is None:
            raise GraphError(f"{self.name}.after({other.name}) is called outside a pipeline", where=caller())
        pairs.append((self.name, other.name, caller()))

    @property
    def entrypoint(self) -> Callable[..., Any]:
        """The plain function."""
        return self.function

    def __get__(self, instance: object, owner: type | None = None) -> Step:
        return self

    def _placed(self, after: Any, id: str | None) -> Step:
        """The step with a key and with what it waits for."""
        options: dict[str, Any] = {"id": id} if id else {}
        if isinstance(after, (str, StepHandle, Future)) or after:
            names = after if isinstance(after, (list, tuple, set)) else [after]
            options["after"] = list(map(_key, names))
        pipeline = CURRENT.get()
        configured = {} if pipeline is None else pipeline.configuration.options_of(self.name)
        if configured:
            options.update(options_of(configured, step=True)[0])
        placed: Any = functional.Step.with_options(self, **options) if options else self
        placed._others = self._others
        return placed  # type: ignore[no-any-return]

    def _lenient_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The step as it is called; where only a plan is made, what a configuration gives may be missing."""
        call = self.as_call()
        if not is_planning():
            return call
        given = {**dict(zip(self.signature.parameters, args)), **kwargs}
        parameters = dict(self.signature.parameters)
        for name, parameter in parameters.items():
            missing = parameter.required and name not in given
            if missing or (given.get(name, ...) is None and not allows(parameter.annotation, None)):
                parameters[name] = attrs.evolve(parameter, annotation=Any, default=None)
                if parameter.required:
                    note(f"step '{self.name}' needs {name}: a run gives it in the call, or by --config FILE")
        return attrs.evolve(call, signature=attrs.evolve(self.signature, parameters=parameters))

    def _configured(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that the pipeline's configuration or `.configure(parameters=…)` gives and the call does not."""
        pipeline = CURRENT.get()
        configured = {} if pipeline is None else pipeline.configuration.parameters_of(self.name)
        parameters = {**self._others.get("parameters", {}), **configured}
        given = {*list(self.signature.parameters)[: len(args)], *kwargs}
        return {
            name: value for name, value in parameters.items() if name not in given and name in self.signature.parameters
        }


class Pipeline(functional.Pipeline[...]):
    """A pipeline that is configured and called as ZenML's are."""

    def __init__(self, function: Callable[..., Any], definition: Any, on_call: Any) -> None:
        super().__init__(function, definition, on_call)
        self._others: dict[str, Any] = {}
        self.configuration = RunConfiguration()
        self._room: Room | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, (functional.Step, BoundStep)) for value in (*args, *kwargs.values())):
            bound = dict(zip(self.signature.parameters, args), **kwargs)
            return PipelineInstance(self, bound)
        given = {*list(self.signature.parameters)[: len(args)], *kwargs}
        configured = {name: value for name, value in self.configuration.parameters.items() if name not in given}
        result = super().__call__(*args, **kwargs, **configured)
        return result if ACTIVE.get() is not None or result is None else PipelineRun(result)

    def with_options(self, **options: Any) -> Pipeline:
        """The same pipeline with other options, and with those of a run's configuration (`config_path=`)."""
        configuration = self.configuration
        if options.get("config_path") is not None:
            configuration = _read(options.pop("config_path"))
        if options.get("parameters"):
            configuration = attrs.evolve(
                configuration, parameters={**configuration.parameters, **options.pop("parameters")}
            )
        own, others = options_of({**configuration.options, **options}, step=False)
        others = {**self._others, **others}
        changed: Any = super().with_options(**_pipeline_options(self.name, own, others))
        changed._others = others
        changed.configuration = configuration
        return changed  # type: ignore[no-any-return]

    def configure(self, **options: Any) -> Pipeline:
        """Change the pipeline itself."""
        self.__dict__.update(self.with_options(**options).__dict__)
        return self

    @property
    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Those of a run: a dynamic pipeline's. ZenML calls a static one's for each step that has none of its own."""
        return self._hooks if self.dynamic or ACTIVE.get() is not None else {}

    @hooks.setter
    def hooks(self, hooks: Mapping[str, Callable[..., Any]]) -> None:
        self._hooks = hooks

    @property
    def extra(self) -> Mapping[str, Any]:
        """Its `extra`."""
        return self._others.get("extra") or {}

    @property
    def model_asked(self) -> Model | None:
        """Its `model=`."""
        return self._others.get("model")

    @property
    def entrypoint(self) -> Callable[..., Any]:
        """The plain function."""
        return self.function

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments: those of the configuration, and stronger ones."""
        arguments = {**self.configuration.parameters, **arguments}
        if is_planning():
            arguments = {**arguments, **self._steps_to_come(arguments)}
        return super().bind(arguments)

    def _steps_to_come(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What stands in a plan for the steps that the program gives to an old pipeline: parameters that it calls."""
        called = _called_names(self.function)
        return {
            name: absent_step(name, f"pipeline '{self.name}' needs the step {name}, which its program gives")
            for name in self.signature.parameters
            if name in called and (name not in arguments or isinstance(arguments[name], str))
        }

    def run_options(self) -> tuple[RunOption, ...]:
        """`--config` reads ZenML's run configurations, which may have `extra`, `model` and parameters of steps."""
        if self._has_config:
            return (RunOption(name="config", value="VALUE", help="the pipeline's parameter", apply=_parameter),)
        return (RunOption(name="config", value="FILE", help="a run configuration, as config_path= takes it"),)

    def apply_options(self, options: Mapping[str, Any]) -> Pipeline:
        """The pipeline with the configuration of the command line."""
        given = options.get("config")
        return self.with_options(config_path=given) if given and not self._has_config else self

    @property
    def _has_config(self) -> bool:
        return "config" in self.signature.parameters

    def hint(self, cpus: float, memory: int) -> None:
        """The steps run on this machine, where ZenML's take their resources, images and clusters for hints."""
        self._room = Room(cpus, memory)

    def graph_of(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph; on this machine without what asks for another one."""
        made = super().graph_of(arguments)
        nodes = tuple(attrs.evolve(node, hooks={**self._hooks, **node.step.hooks, **node.hooks}) for node in made.nodes)
        made = attrs.evolve(made, nodes=nodes)
        if self._room is None:
            return made
        nodes = tuple(self._room.fitted(node) for node in made.nodes)
        return attrs.evolve(made, nodes=nodes, layers=self._room.layers(made.layers, self.name))

    def outline(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph without its nodes, with the model that there is by now."""
        asked = self.model_asked
        return attrs.evolve(super().outline(arguments), model=None if asked is None else asked.for_pipeline())

    def run_body(self, arguments: Mapping[str, Any], session: BodySession) -> Any:
        """Run the body of a dynamic pipeline."""
        return super().run_body(arguments, session if self._room is None else _Fitting(session, self._room))

    def _body(self, arguments: Mapping[str, Any]) -> Any:
        current, after = CURRENT.set(self), _AFTER.set([])
        try:
            returned = super()._body(arguments)
            for waiting, first, where in _AFTER.get() or ():
                _wait(waiting, first, where)
            return returned
        finally:
            CURRENT.reset(current)
            _AFTER.reset(after)


def _wait(waiting: str, first: str, where: str) -> None:
    """Let the last call of a step wait for the last one of another."""
    trace = ACTIVE.get()
    nodes = [] if trace is None else trace.nodes
    mine, theirs = (
        next((index for index, node in reversed(list(enumerate(nodes))) if node.step.name == name), None)
        for name in (waiting, first)
    )
    if mine is None or theirs is None:
        raise GraphError(f"{waiting}.after({first}): the pipeline does not call both steps", where=where)
    nodes[mine] = attrs.evolve(nodes[mine], after=(*nodes[mine].after, nodes[theirs].key))


def _called_names(function: Callable[..., Any]) -> set[str]:
    """The names that a function calls or calls methods of."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return set()
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {one.id for one in called if isinstance(one, ast.Name)}


def _parameter(request: RunRequest, text: Any) -> RunRequest:
    return attrs.evolve(request, parameters={**request.parameters, "config": text})


class _Fitting:
    """A session whose steps run on this machine."""

    def __init__(self, session: BodySession, room: Room) -> None:
        self._session = session
        self._room = room

    def submit(self, node: GraphNode) -> None:
        self._session.submit(self._room.fitted(node))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class OutputHandle(StepHandle):
    """An output that may stand in a message, where it says what it is."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return repr(self)


class _AbsentOutput(OutputHandle):
    """What stands for the outputs of a step that is not here, of which nobody knows how many it has."""

    __slots__ = ()

    def __iter__(self) -> Iterator[OutputHandle]:
        """As many as the names that they are unpacked into."""
        frame = sys._getframe(1)
        instructions = {one.offset: one for one in dis.get_instructions(frame.f_code)}
        unpacking = instructions.get(frame.f_lasti)
        count = unpacking.argval if unpacking is not None and unpacking.opname == "UNPACK_SEQUENCE" else 0
        return iter([OutputHandle(self._origin)] * count)


def _printable(made: Any) -> Any:
    if isinstance(made, Handles):
        return Handles(OutputHandle(handle._origin) for handle in made)
    return OutputHandle(made._origin)


def is_planning() -> bool:
    """Whether only a plan is made."""
    line = COMMAND_LINE.get()
    return line is not None and line.planning


def _key(after: Any) -> Any:
    """What a step waits for: of the steps of nested pipelines, too, the name is enough."""
    if isinstance(after, functional.Step):
        after = after.name
    trace = ACTIVE.get()
    if not isinstance(after, str) or trace is None:
        return after
    keys = [node.key for node in trace.nodes]
    return next((key for key in reversed(keys) if after in (key, key.rpartition(".")[2])), after)


def _validated(value: Any, annotation: Any) -> Any:
    """A mapping as the model of pydantic that the step takes."""
    for kind in (*typing.get_args(annotation), annotation) if type(value) is dict else ():
        validate = getattr(kind, "model_validate", None) or getattr(kind, "parse_obj", None)
        if validate is not None:
            return validate(value)
    return value


def step(function: Any = None, /, **options: Any) -> Any:
    """Make a function a step, with ZenML's options."""
    if isinstance(function, type):
        raise UsageError(f"@step on class {function.__qualname__}: {_CLASS}")
    if function is None:
        return lambda decorated: step(decorated, **options)
    own, others = options_of(options, step=True)
    made: Any = functional.step_of(function, own, Step)
    made._others = others
    for materializer in _materializers(others.get("output_materializers")):
        materializer.serve_outputs()
    return made


def pipeline(function: Any = None, /, **options: Any) -> Any:
    """Make a function a pipeline, with ZenML's options."""
    if isinstance(function, type):
        raise UsageError(f"@pipeline on class {function.__qualname__}: write the pipeline as a function")
    if function is None:
        return lambda decorated: pipeline(decorated, **options)
    own, others = options_of(options, step=False)
    own = _pipeline_options(own.get("name", function.__name__), own, others)
    made: Any = functional.pipeline_of(function, own, start.call, Pipeline)
    made._others = others
    return made


def _read(path: Any) -> RunConfiguration:
    """A run configuration; where only a plan is made, one that is not there says nothing."""
    try:
        return read_run_configuration(path)
    except NotFound as error:
        if not is_planning():
            raise
        note(f"{error.message}: the plan is that without one")
        return RunConfiguration()


def _pipeline_options(name: str, own: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a pipeline with what its steps know of it."""
    options = dict(own)
    facts = facts_of(name, others)
    if facts:
        options["environment"] = {**(options.get("environment") or {}), **facts}
    return options


_CLASS: Final = "write the step as a function with @step; what its class holds becomes parameters"


def absent_step(name: str, sentence: str) -> Any:
    """A step of ZenML's own that is not here: it can be planned, and no run that calls it begins."""

    class AbsentStep(Step):
        def __call__(self, *args: Any, after: Any = (), id: str | None = None, **kwargs: Any) -> Any:
            if ACTIVE.get() is None or not is_planning():
                raise UsageError(sentence, where=caller())
            note(f"{sentence} (a run that calls it does not begin)")
            return _AbsentOutput(super().__call__(after=after, id=id)._origin)

    made = functional.step_of(not_here, {"name": name}, AbsentStep)
    made._others = {}  # type: ignore[attr-defined]
    return made


def not_here() -> Any:
    """What an absent step would run, which no run does."""
    raise UsageError("this step is not here")


# The forms of releases before 0.40


class BoundStep:
    """A step with its parameters, as old pipelines take them."""

    def __init__(self, step: functional.Step[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._step = step
        self._args = args
        self._kwargs = dict(kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = list(self._step.signature.parameters)
        bound = {**self._kwargs, **kwargs}
        for value in self._args:
            name = next((one for one in names if one not in bound and _is_of(self._step, one, value)), names[0])
            bound[name] = value
        free = [name for name in names if name not in bound]
        bound.update(zip(free, args))
        for name, parameter in self._step.signature.parameters.items():
            kind = parameter.annotation
            if name not in bound and isinstance(kind, type) and issubclass(kind, BaseParameters):
                bound[name] = kind()
        return self._step(**bound)

    def configure(self, **options: Any) -> BoundStep:
        """Change the step's options."""
        self._step = self._step.with_options(**options)
        return self

    with_options = configure

    def __repr__(self) -> str:
        return f"<step '{self.name}'>"

    @property
    def name(self) -> str:
        """The step's name."""
        return self._step.name

    def after(self, other: Any) -> None:
        """See `Step.after`."""
        Step.after(self._step, other)  # type: ignore[arg-type]


def _is_of(step: functional.Step[..., Any], name: str, value: Any) -> bool:
    kind = step.signature.annotation(name)
    return isinstance(kind, type) and isinstance(value, kind)


class OldStep(Step):
    """A step of `zenml.steps`: a call outside of a pipeline gives it its parameters, and runs nothing."""

    def __call__(self, *args: Any, after: Any = (), id: str | None = None, **kwargs: Any) -> Any:
        if ACTIVE.get() is None:
            return BoundStep(self, args, kwargs)
        for name, parameter in list(self.signature.parameters.items())[len(args) :]:
            kind = parameter.annotation
            if name not in kwargs and isinstance(kind, type) and issubclass(kind, BaseParameters):
                kwargs[name] = kind()
        return super().__call__(*args, after=after, id=id, **kwargs)


def old_step(function: Any = None, /, **options: Any) -> Any:
    """`@step` of `zenml.steps`."""
    if function is None:
        return lambda decorated: old_step(decorated, **options)
    made = step(function, **options)
    made.__class__ = OldStep
    return made


class PipelineInstance:
    """An old pipeline with its steps; `run()` runs it."""

    def __init__(self, pipeline: Pipeline, steps: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._steps = steps

    def run(self, **options: Any) -> Any:
        """Run it."""
        options = {name: value for name, value in options.items() if name in ("enable_cache", "config_path")}
        made = self._pipeline.with_options(**options) if options else self._pipeline
        return functional.Pipeline.__call__(made, **{name: _given(value) for name, value in self._steps.items()})


def _given(step: Any) -> BoundStep:
    """A step as an argument of an old pipeline."""
    return step if isinstance(step, BoundStep) else BoundStep(step, (), {})


def Output(**outputs: Any) -> Any:
    """The outputs of a step by name: `-> Output(count=int, words=list)`."""
    kinds = tuple(Annotated[kind, name] for name, kind in outputs.items())
    return kinds[0] if len(kinds) == 1 else tuple[kinds]  # type: ignore[valid-type]


class BaseParameters:
    """Parameters of a step: annotated fields with their defaults, given by keyword."""

    def __init__(self, **fields: Any) -> None:
        names = typing.get_type_hints(type(self))
        for name in names:
            if name in fields:
                setattr(self, name, fields.pop(name))
            elif not hasattr(type(self), name):
                raise UsageError(f"{type(self).__name__} needs {name}", where=caller())
            else:
                setattr(self, name, getattr(type(self), name))
        if fields:
            raise UsageError(f"{type(self).__name__} has no {', '.join(fields)}", where=caller())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class _OldClass(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
        if bases:
            raise UsageError(f"class {name}({bases[0].__name__}): {_CLASS}", where=caller())
        return super().__new__(mcs, name, bases, members)


class BaseStep(metaclass=_OldClass):
    """A step as a class, which is not here."""


class BasePipeline(metaclass=_OldClass):
    """A pipeline as a class, which is not here."""


def _value(argument: Any) -> Any:
    return argument.load() if isinstance(argument, ExternalArtifact) else argument


def _loadable(future: Future[Any]) -> StepFuture:
    return StepFuture(future._origins, future._loader, several=future._several)


def _materializers(value: Any) -> list[Any]:
    """The classes of `output_materializers=`: one, several, or by the names of outputs."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = list(value.values())
    flat = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for one in flat:
        found += _materializers(one) if isinstance(one, (list, tuple)) else [one]
    return [
        getattr(sys.modules.get(one.rpartition(".")[0]), one.rpartition(".")[2]) if isinstance(one, str) else one
        for one in found
    ]
