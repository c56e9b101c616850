"""The body of a pipeline while it runs: its steps' calls become nodes of a graph, or go to a session at once.

`ACTIVE` says in which trace a step is called. A static pipeline's trace gathers nodes and gives handles back; a dynamic
one hands every node to its `BodySession` and gives real values back. Keys follow the order of calls only, so that a
dynamic body that runs again, on resume, finds its steps under the same keys.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from types import GenericAlias
from typing import Any, Callable, Final, Iterator, Mapping, Protocol, Sequence

import attrs

from stoker.core.errors import GraphError, ParameterError, UsageError
from stoker.core.graph import GraphNode, StepSpec
from stoker.core.settings import Layer
from stoker.core.sweep import PARAMS, TRIALS, VALUE, SweepPlan
from stoker.core.usercode import caller
from stoker.core.values import frozen, lazy_pattern
from stoker.pipelines.bindings import Binder
from stoker.pipelines.handles import Each, Future, Handles, Origin, StepHandle, origins_of
from stoker.pipelines.signature import FunctionSignature
from stoker.settings.options import OPTIONS

NESTED: Final = 50
"""Pipelines inside pipelines beyond which the innermost surely calls itself without an end."""
_NAME: Final = lazy_pattern(r"\w[\w -]*")


class BodySession(Protocol):
    """Runs the steps of a dynamic pipeline's body."""

    def submit(self, node: GraphNode) -> None:
        """Add the node to the run; it starts as soon as what it depends on is done."""

    def result(self, key: str, output: str) -> Any:
        """The value of an output, of a fan-out the list of its elements' values; waits, and raises if it failed."""

    def wait(self, key: str) -> None:
        """Wait for a step that has no outputs; raises if it failed."""


@frozen(kw_only=True, eq=False)
class Call:
    """A step as it is called: its definition, and the options of `with_options`."""

    step: StepSpec
    signature: FunctionSignature
    id: str | None = None
    """The key in the run; None derives it from the name."""
    after: tuple[Any, ...] = ()
    """Results or keys of the steps that it waits for."""
    layers: tuple[Layer, ...] = ()
    """Settings of this call."""
    hooks: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    """Functions of this call, by "on_success" and "on_failure"."""


@frozen(kw_only=True, eq=False)
class _Scope:
    """What a nested pipeline's steps have in common, all nestings around it included."""

    prefix: str = ""
    layers: tuple[Layer, ...] = ()
    hooks: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)


class _Keys:
    """Keys that are taken, with the places that took them."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def free(self, name: str) -> str:
        """`name`, `name_2`, `name_3`, … whichever is not taken."""
        while True:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            key = name if count == 1 else f"{name}_{count}"
            if key not in self.places:
                return key


class Trace:
    """The calls of one pipeline's body, in order."""

    def __init__(self, pipeline: str, session: BodySession | None = None) -> None:
        self.pipeline = pipeline
        self.session = session
        self.nodes: list[GraphNode] = []
        self._keys = _Keys()
        self._prefixes = _Keys()
        self._scopes = [_Scope()]
        self._steps: dict[tuple[int, int], tuple[StepSpec, StepSpec, _Scope]] = {}

    def call(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One call of a step: handles in a static pipeline, the real values in a dynamic one."""
        node = self._bind_call(call, args, kwargs)
        return _handles(self._origins(node, call.signature), call) if self.session is None else self._values(node, call)

    def submit(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future[Any]:
        """One call of a step in a dynamic pipeline, without waiting for it."""
        if self.session is None:
            raise GraphError(
                f"{call.signature.owner}.submit(…) in a pipeline that is not dynamic",
                where=caller(),
                fix="call the step itself: steps that do not depend on each other run at the same time anyway",
            )
        return self._future(self._bind_call(call, args, kwargs), call)

    def map(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One call of a step for each element: handles in a static pipeline, a future in a dynamic one."""
        where = caller()
        bound = call.signature.bind_arguments(args, kwargs, where)
        names = list(bound)
        mapped = tuple(name for index, name in enumerate(names) if index < len(args) or isinstance(bound[name], Each))
        if not mapped:
            raise ParameterError(
                f"{call.signature.owner}.map(…) has nothing to iterate over",
                where=where,
                fix="give the list by position, or as name=each(list)",
            )
        bound = {name: value.items if isinstance(value, Each) else value for name, value in bound.items()}
        arguments = call.signature.complete_with_defaults(bound, where)
        bindings = Binder(call.signature, where, self).bind_mapped(arguments, mapped)
        node = self._add_node(call, bindings, where, tuple(name for name in arguments if name in mapped))
        return _handles(self._origins(node, call.signature), call) if self.session is None else self._future(node, call)

    def sweep(self, call: Call, sweep: SweepPlan, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """One call of a step for each trial of a sweep: its outputs by name, and under "" the step's own together."""
        tried = {name: domain.at(0.0) for name, domain in sweep.space.items()}
        bound = call.signature.bind_arguments((), {**given, **tried}, where)
        bindings = Binder(call.signature, where, self).bind(call.signature.complete_with_defaults(bound, where))
        bindings = {name: binding for name, binding in bindings.items() if name not in sweep.space}
        node = self._add_node(call, bindings, where, tuple(sweep.space), sweep)
        own = [attrs.evolve(one, mapped=False) for one in self._origins(node, call.signature) if one.output]
        kinds = {PARAMS: dict, VALUE: float, TRIALS: list}
        found = [
            Origin(trace=self, key=node.key, step=call.step.name, output=name, annotation=kind)
            for name, kind in kinds.items()
        ]
        results: dict[str, Any] = {}
        for one in (*own, *found):
            single: Any = StepHandle(one) if self.session is None else Future((one,), self, several=False)
            results[one.output] = single
        if self.session is None:
            results[""] = Handles(map(StepHandle, own)) if call.step.unpack else results[own[0].output] if own else None
        else:
            results[""] = Future(tuple(own), self, several=call.step.unpack) if own else None
        return results

    @contextmanager
    def nest(self, name: str, layers: tuple[Layer, ...], hooks: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
        """Calls in here are those of a pipeline inside this one."""
        where = caller()
        if len(self._scopes) > NESTED:
            raise GraphError(
                f"pipeline '{self.pipeline}' has more than {NESTED} pipelines inside each other",
                where=where,
                fix=f"let '{name}' call itself only while a parameter that gets smaller says so, or write a loop",
            )
        outer = self._scopes[-1]
        prefix = self._prefixes.free(outer.prefix + name)
        self._prefixes.places[prefix] = where
        # What is for a whole run says nothing about steps: it holds where this pipeline is run by itself.
        step_layers = tuple(attrs.evolve(layer, values=_for_steps(layer.values)) for layer in layers)
        scope = _Scope(prefix=f"{prefix}.", layers=(*outer.layers, *step_layers), hooks={**outer.hooks, **hooks})
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()

    def _bind_call(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> GraphNode:
        where = caller()
        arguments = call.signature.complete_with_defaults(call.signature.bind_arguments(args, kwargs, where), where)
        return self._add_node(call, Binder(call.signature, where, self).bind(arguments), where, ())

    def _add_node(
        self,
        call: Call,
        bindings: Mapping[str, Any],
        where: str,
        mapped: tuple[str, ...],
        sweep: SweepPlan | None = None,
    ) -> GraphNode:
        dependencies = tuple(self._after(call, where)) if call.after else ()
        node = GraphNode(
            key=self._key(call, where),
            step=self._step(call.step),
            bindings=bindings,
            after=dependencies,
            mapped=mapped,
            sweep=sweep,
            layers=call.layers,
            hooks=call.hooks,
            where=where,
        )
        if self.session is None:
            self.nodes.append(node)
        else:
            with outside():
                self.session.submit(node)
        self._keys.places[node.key] = where
        return node

    def _key(self, call: Call, where: str) -> str:
        scope = self._scopes[-1]
        if call.id is None:
            return self._keys.free(scope.prefix + call.step.name)
        key = scope.prefix + call.id
        if key in self._keys.places:
            raise GraphError(
                f"two steps have the id '{key}' (the other is called at {self._keys.places[key]})",
                where=where,
                fix="give one of them another id=",
            )
        return key

    def _step(self, step: StepSpec) -> StepSpec:
        """The step with what the pipelines around it say put under its own settings."""
        scope = self._scopes[-1]
        if not scope.layers and not scope.hooks:
            return step
        key = (id(step), id(scope))
        if key not in self._steps:
            nested = attrs.evolve(step, layers=(*scope.layers, *step.layers), hooks={**scope.hooks, **step.hooks})
            # The other two are kept so that nothing else gets their ids.
            self._steps[key] = (nested, step, scope)
        return self._steps[key][0]

    def _after(self, call: Call, where: str) -> Iterator[str]:
        for item in call.after:
            if isinstance(item, str):
                yield item
                continue
            origins = origins_of(item)
            if not origins:
                raise UsageError(
                    f"{call.signature.owner}: after={item!r} is neither a step's result nor its key", where=where
                )
            if origins[0].trace is not self:
                raise GraphError(f"{call.signature.owner}: after= names {origins[0].words} of another run", where=where)
            yield origins[0].key

    def _origins(self, node: GraphNode, signature: FunctionSignature) -> tuple[Origin, ...]:
        step = node.step
        results = signature.results
        if step.gathers_ranks:
            results = tuple(list if kind is None else GenericAlias(list, (kind,)) for kind in results)
        origins = []
        for name, annotation in zip([output.name for output in step.outputs] or [""], results or [None]):
            origin = Origin(
                trace=self,
                key=node.key,
                step=step.name,
                output=name,
                annotation=annotation,
                mapped=bool(node.mapped),
            )
            origins.append(origin)
        return tuple(origins)

    # A dynamic body

    def _future(self, node: GraphNode, call: Call) -> Future[Any]:
        return Future(self._origins(node, call.signature), self, several=call.step.unpack)

    def _values(self, node: GraphNode, call: Call) -> Any:
        return self._future(node, call).result()

    def load(self, origin: Origin) -> Any:
        """The value of an output in a dynamic body."""
        if self.session is None:
            raise GraphError(f"{origin.words} has no value while the pipeline is traced", where=caller())
        with outside():
            if origin.output:
                return self.session.result(origin.key, origin.output)
            return self.session.wait(origin.key)


ACTIVE: Final[ContextVar[Trace | None]] = ContextVar("stoker_trace", default=None)
"""The trace in which a step that is called now becomes a node."""


@contextmanager
def inside(trace: Trace) -> Iterator[None]:
    """Steps called in here belong to a trace."""
    token = ACTIVE.set(trace)
    try:
        yield
    finally:
        ACTIVE.reset(token)


@contextmanager
def outside() -> Iterator[None]:
    """Steps called in here are plain functions: a session may run them in this very thread."""
    token = ACTIVE.set(None)
    try:
        yield
    finally:
        ACTIVE.reset(token)


def checked_name(name: Any, role: str, where: str) -> str:
    """A name of a step or a pipeline, or an id; `UsageError` where it could not be a key."""
    if name == "<lambda>":
        raise UsageError(f"a lambda has no name; one is needed as the {role}", where=where, fix="write it with def")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the {role}",
            where=where,
            fix="use letters, digits, '_', '-' and spaces, such as train_2",
        )
    return name


def _handles(origins: tuple[Origin, ...], call: Call) -> StepHandle | Handles:
    return Handles(map(StepHandle, origins)) if call.step.unpack else StepHandle(origins[0])


def _for_steps(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in OPTIONS or OPTIONS[name].level == "step"}
