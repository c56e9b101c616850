"""`FlowSpec`: a pipeline as a class. Called at the end of its file, it reads the program's command line.

The top of this folder: nothing in it imports this module. What runs a flow is imported when a flow is called.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping, NamedTuple

import attrs

from stoker.core import request
from stoker.core.errors import UsageError
from stoker.core.graph import FlowGraph, FlowStep
from stoker.core.usercode import caller, definition_line
from stoker.flows import transitions
from stoker.flows import user_decorators as flowusers
from stoker.flows.decorators import notes_of
from stoker.flows.instance import FlowInstance, constants_of, parameters_of

if TYPE_CHECKING:
    from stoker.flows.definition import FlowDefinition


class FlowSpec(FlowInstance):
    """A flow: subclass it, write steps, and call the class at the end of the file.

    Called, it reads the program's command line: `python flow.py run`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        init = vars(cls).get("__init__")
        if init is not None and "__init__" not in getattr(init, "__code__", cls.__init__.__code__).co_names:
            raise UsageError(
                f"flow {cls.__name__} has an __init__ of its own, which would keep {cls.__name__}() from running it",
                where=definition_line(init),
                fix="set what all steps see as attributes of the class, and artifacts in its first step",
            )
        if request.WORKER:
            # Before workers are forked, so that none of them has to import what runs a task.
            import stoker.flows.task  # noqa: F401

    def __init__(self, use_cli: bool = True) -> None:
        if request.WORKER:
            raise request.NotTheDriver(f"flow {type(self).__name__} was called while a worker imported {caller()}")
        if use_cli:
            from stoker.flows import cli

            cli.main(type(self))

    # Names of Metaflow's own that flows read all the same.

    @property
    def _graph(self) -> Any:
        """The flow's steps as `Node`s by name."""
        kind: type = type(self)
        return graph_of(kind)

    @property
    def _graph_info(self) -> dict[str, Any]:
        """What `current.graph` is."""
        kind: type = type(self)
        return info_of(kind)

    @property
    def _current_step(self) -> str:
        """The name of the step that runs."""
        return self._running("_current_step").step_name()

    @property
    def _foreach_stack(self) -> list[Any]:
        """The foreachs around this task as `ForeachFrame`s, outermost first."""
        task = self._running("_foreach_stack")
        return frames_of(type(self), task.step_name(), task.stack())

    @classmethod
    def __stoker_program__(cls) -> FlowDefinition | None:
        from stoker.flows.definition import FlowDefinition, is_flow

        return FlowDefinition(cls) if is_flow(cls) else None


_TYPES: Final[Mapping[str, str]] = {"parallel": "foreach", "switch": "split-switch"}
_INFO_TYPES: Final[Mapping[str, str]] = {"split": "split-static", "foreach": "split-foreach"}


class ForeachFrame(NamedTuple):
    """One foreach around a task: its first step, the attribute with the elements, how many, which one, and its text."""

    step: str
    var: str
    num_splits: int
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    value: str


@attrs.frozen
class NodeDecorator:
    """A decorator of a step: its name, and what it was given."""

    name: str
    attributes: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Node:
    """One step: `type` is start, linear, split, foreach, split-switch, join or end."""

    name: str
    type: str
    out_funcs: list[str]
    in_funcs: list[str]
    split_parents: list[str]
    """The splits that it is inside of, outermost first; of a join the last one is what it joins."""
    split_branches: list[str]
    """The first step of the branch of each of them that it is on."""
    matching_join: str | None
    is_inside_foreach: bool
    parallel_step: bool
    """Whether it runs on the nodes of a `num_parallel`."""
    parallel_foreach: bool
    """Whether it says `num_parallel=`."""
    foreach_param: str | None
    condition: str | None
    switch_cases: Mapping[str, str]
    num_args: int
    doc: str
    source_file: str
    func_lineno: int
    decorators: list[NodeDecorator]
    is_start_step: bool
    is_end_step: bool


class GraphView:
    """The steps by name, each a `Node`; iterating goes through the nodes by their names' order."""

    def __init__(self, kind: type) -> None:
        graph = transitions.graph_of(kind)
        self.name = graph.name
        self.doc = graph.doc
        self.start_step = graph.start
        self.end_step = graph.end
        self.sorted_nodes = graph.order()
        inside, joins = transitions.enclosing(graph)
        functions = transitions.steps_of(kind)
        self.nodes = {
            name: _node(graph, graph.steps[name], functions[name], kind, inside, joins) for name in sorted(graph.steps)
        }

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __contains__(self, name: object) -> bool:
        return name in self.nodes

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def output_steps(self) -> tuple[dict[str, dict[str, Any]], list[Any]]:
        """The steps as plain values, and their names in the order in which they follow each other: the branches of a
        split are lists in a list."""
        structure = [] if self.start_step == self.end_step else self._block(self.start_step, self.end_step)
        return {name: _info(self.nodes[name]) for name in self.sorted_nodes}, [*structure, self.end_step]

    def _block(self, name: str, end: str | None) -> list[Any]:
        names: list[Any] = []
        while name != end:
            node = self.nodes[name]
            names.append(name)
            if node.type in ("split", "foreach") and not node.parallel_foreach:
                names.append([self._block(target, node.matching_join) for target in node.out_funcs])
                name = node.matching_join or self.end_step
            elif node.type == "split-switch":
                ways = dict.fromkeys(target for target in node.out_funcs if self._follows(target, name))
                names.append([self._block(target, end) for target in ways])
                return names
            elif node.out_funcs:
                name = node.out_funcs[0]
            else:
                return names
        return names

    def _follows(self, target: str, name: str) -> bool:
        """Whether a switch goes on to a step, not back."""
        return self.sorted_nodes.index(target) > self.sorted_nodes.index(name)


@functools.lru_cache(maxsize=16)
def graph_of(kind: type) -> GraphView:
    """The graph of a flow's class."""
    return GraphView(kind)


@functools.lru_cache(maxsize=16)
def info_of(kind: type) -> dict[str, Any]:
    """What `current.graph` is: steps, parameters, constants and decorators of a flow, as plain values."""
    view = graph_of(kind)
    steps, structure = view.output_steps()
    parameters = parameters_of(kind)
    return {
        "file": os.path.basename(inspect.getfile(kind)),
        "start_step": view.start_step,
        "end_step": view.end_step,
        "parameters": [{"name": name, "type": type(parameters[name]).__name__} for name in sorted(parameters)],
        "constants": [
            {"name": name, "type": type(getattr(kind, name)).__name__}
            for name in sorted(constants_of(kind))
            if not name.startswith("_")
        ],
        "steps": steps,
        "graph_structure": structure,
        "doc": view.doc,
        "decorators": [{"name": note.name, "attributes": _plain(note.values)} for note in notes_of(kind)],
        "extensions": {},
    }


def frames_of(kind: type, step: str, stack: list[tuple[int, int, Any]]) -> list[ForeachFrame]:
    """The foreachs around a task of a step, whose (index, splits, element) are known."""
    view = graph_of(kind)
    node = view[step]
    parents = node.split_parents[:-1] if node.type == "join" or node.num_args > 1 else node.split_parents
    splits = [view[name] for name in parents if view[name].type == "foreach"]
    return [
        ForeachFrame(split.out_funcs[0], split.foreach_param or "", count, index, str(element)[:30])
        for split, (index, count, element) in zip(splits, stack)
    ]


def _node(
    graph: FlowGraph,
    step: FlowStep,
    function: Any,
    kind: type,
    inside: Mapping[str, list[tuple[str, str]]],
    joins: Mapping[str, str],
) -> Node:
    order = {name: place for place, name in enumerate(graph.order())}
    before = [name for name in graph.before()[step.name] if order[name] < order[step.name]]
    around = list(inside[step.name])
    joined = next((split for split, join in joins.items() if join == step.name), None)
    parents = [split for split, _ in around] + ([] if joined is None else [joined])
    decorators = [NodeDecorator(note.name, dict(note.values)) for note in notes_of(function)]
    for wrapper in getattr(function, flowusers.USERS, ()):
        decorators.append(NodeDecorator(wrapper.decorator_name, {"_args": wrapper._args, **wrapper._kwargs}))
    return Node(
        name=step.name,
        type=_type(graph, step),
        out_funcs=list(step.cases.values()) if step.kind == "switch" else list(step.targets),
        in_funcs=sorted(before),
        split_parents=parents,
        split_branches=[branch for _, branch in around],
        matching_join=joins.get(step.name),
        is_inside_foreach=any(graph.steps[split].kind in ("foreach", "parallel") for split, _ in around),
        parallel_step=any(graph.steps[name].kind == "parallel" for name in before),
        parallel_foreach=step.kind == "parallel",
        foreach_param=step.name_of if step.kind == "foreach" else None,
        condition=step.name_of if step.kind == "switch" else None,
        switch_cases=step.cases,
        num_args=1 + step.join,
        doc=step.doc,
        source_file=inspect.unwrap(function).__code__.co_filename,
        func_lineno=transitions.definition_line(step.name, function, kind),
        decorators=decorators,
        is_start_step=step.name == graph.start,
        is_end_step=step.name == graph.end,
    )


def _type(graph: FlowGraph, step: FlowStep) -> str:
    if step.kind == "linear":
        return "start" if step.name == graph.start else "join" if step.join else "linear"
    return _TYPES.get(step.kind, step.kind)


def _info(node: Node) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": node.name,
        "type": "split-parallel" if node.parallel_foreach else _INFO_TYPES.get(node.type, node.type),
        "line": node.func_lineno,
        "source_file": node.source_file,
        "doc": node.doc,
        "decorators": [{"name": one.name, "attributes": _plain(one.attributes)} for one in node.decorators],
        "next": node.out_funcs,
    }
    if node.condition is not None:
        info |= {"condition": node.condition, "switch_cases": dict(node.switch_cases)}
    if node.foreach_param is not None:
        info["foreach_artifact"] = node.foreach_param
    if node.matching_join is not None:
        info["matching_join"] = node.matching_join
    return info


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has not is its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
