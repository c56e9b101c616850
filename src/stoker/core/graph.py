"""The graph that every way of writing a pipeline becomes: nodes, their inputs, fan-outs; and what the class form adds:
where each step of a flow may go next.

A graph is what the user wrote, with Python values in it. `plan.planner` turns it into a `Plan`, which is JSON.

The front end reads it from the step methods (`flows.transitions`), the engine follows it, the command line shows
it. Also the names of the outputs in which a finished task records where it goes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Final, Iterator, Literal, Mapping

import attrs

from stoker.core.errors import GraphError
from stoker.core.registry import Artifact, Model
from stoker.core.settings import Layer
from stoker.core.values import frozen

if TYPE_CHECKING:
    from stoker.core.sweep import SweepPlan

StepKind = Literal["linear", "split", "foreach", "parallel", "switch", "end"]
"""What a step's `self.next` does: go on, to several steps, once for each element, to N nodes, or to one of several."""

STEP_MARK: Final = "__stoker_flow_step__"
"""The attribute by which `@step` marks a method: its options as a mapping."""
TRANSITION: Final = "_transition"
"""The output that says where a task goes: {"next": [steps], "kind", "count", "name"}."""
ELEMENTS: Final = "_elements"
"""The output of a foreach's first task: its elements, each an artifact of its own."""
GANG: Final = "_gang"
"""The output of each node of a `num_parallel`: all its artifacts, which need not be the same on all nodes."""
CARD: Final = "_card_components"
"""The output with the components of a task's card, as documents of `core.cards`."""
CONSTANTS: Final = "constants"
"""What a flow's plan has of the values that its class defines: name → artifact, among the options of its program."""
OWN: Final = frozenset({TRANSITION, ELEMENTS, GANG, CARD})
"""Outputs of a task that Stoker writes, not its user."""


@frozen(kw_only=True)
class StepInput:
    """One parameter of a step's function."""

    name: str
    type: str = "Any"
    required: bool = True


@frozen(kw_only=True)
class StepOutput:
    """One named result of a step's function."""

    COMPACT: ClassVar = True
    name: str
    type: str = "Any"
    artifact: Artifact | None = None
    """The name beyond the run under which each success of the step adds a version."""


@frozen(kw_only=True, eq=False)
class StepSpec:
    """A step as its author defined it, once for all its calls."""

    name: str
    function: Callable[..., Any]
    """It never leaves the driver's process."""
    inputs: tuple[StepInput, ...]
    outputs: tuple[StepOutput, ...]
    unpack: bool
    """Whether the function returns a tuple with one element for each output, not one value."""
    where: str
    """The function's file and line."""
    layers: tuple[Layer, ...] = ()
    """Its settings, weakest first."""
    hooks: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    """Functions under "on_success" and "on_failure"."""

    @functools.cached_property
    def gathers_ranks(self) -> bool:
        """Whether its value is a list of what its ranks returned, as far as its own code says."""
        launches = (layer.values.get("launch") for layer in self.layers)
        modes = [launch["outputs"] for launch in launches if launch and "outputs" in launch]
        return bool(modes) and modes[-1] == "all"


@frozen(kw_only=True, eq=False)
class Constant:
    """A Python value that the pipeline's body handed to a step."""

    value: Any


@frozen(kw_only=True)
class FromStep:
    """An output of another node; of a fan-out, all its elements' outputs as a list."""

    node: str
    output: str


@frozen(kw_only=True, eq=False)
class Many:
    """A list or tuple written in the pipeline's body that holds at least one step's output."""

    items: tuple[Binding, ...]


@frozen(kw_only=True, eq=False)
class Entries:
    """A dict written in the pipeline's body that holds at least one step's output."""

    items: Mapping[str, Binding]


Binding = Constant | FromStep | Many | Entries


@frozen(kw_only=True, eq=False)
class GraphNode:
    """One call of a step."""

    key: str
    step: StepSpec
    bindings: Mapping[str, Binding]
    """Parameter → what the call binds to it."""
    after: tuple[str, ...] = ()
    """Keys of nodes that must succeed first, beside those that it takes outputs of."""
    mapped: tuple[str, ...] = ()
    """The inputs that are iterated over; with any, the node is a fan-out."""
    sweep: SweepPlan | None = None
    """How the `mapped` inputs, which have no bindings then, come by their values."""
    layers: tuple[Layer, ...] = ()
    hooks: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    where: str = ""


@frozen(kw_only=True, eq=False)
class Graph:
    """A traced pipeline. `layers` are its settings, weakest first; `hooks` are called when the whole run is over."""

    name: str
    nodes: tuple[GraphNode, ...]
    parameters: Mapping[str, Any]
    layers: tuple[Layer, ...] = ()
    hooks: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    where: str = ""
    dynamic: bool = False
    model: Model | None = None
    """The model that its runs make or use a version of."""
    callable_layers: tuple[Layer, ...] = ()
    """Settings of the steps that a dynamic body may call, as far as its module names them."""

    @property
    def every_layer(self) -> Iterator[Layer]:
        """The layers of the whole pipeline and of its steps."""
        yield from self.layers
        yield from self.callable_layers
        for node in self.nodes:
            yield from node.step.layers
            yield from node.layers


def sources_of(binding: Binding) -> list[FromStep]:
    """Every step output that a binding takes values from, in order."""
    if isinstance(binding, FromStep):
        return [binding]
    if isinstance(binding, Many):
        return [source for item in binding.items for source in sources_of(item)]
    if isinstance(binding, Entries):
        return [source for item in binding.items.values() for source in sources_of(item)]
    return []


def upstream(node: GraphNode) -> list[str]:
    """The keys that must succeed before the node can start, each once, in order."""
    keys = [source.node for binding in node.bindings.values() for source in sources_of(binding)]
    return list(dict.fromkeys([*keys, *node.after]))


def check(graph: Graph) -> None:
    """Raise a `GraphError` for a duplicate key, a link to nowhere, or a cycle; linear in nodes and links."""
    by_key: dict[str, GraphNode] = {}
    for node in graph.nodes:
        if node.key in by_key:
            raise GraphError(
                f"two steps have the id '{node.key}' (the other is called at {by_key[node.key].where})",
                where=node.where,
                fix="give one of them another id=",
            )
        by_key[node.key] = node
    waiting: dict[str, int] = {}
    followers: dict[str, list[str]] = {key: [] for key in by_key}
    for node in graph.nodes:
        links = upstream(node)
        waiting[node.key] = len(links)
        for link in links:
            if link not in by_key:
                raise GraphError(
                    f"step '{node.key}' waits for '{link}', which is not in this pipeline", where=node.where
                )
            followers[link].append(node.key)
    free = [key for key, count in waiting.items() if not count]
    for key in free:
        for follower in followers[key]:
            waiting[follower] -= 1
            if not waiting[follower]:
                free.append(follower)
    if len(free) < len(by_key):
        circle = [key for key, count in waiting.items() if count]
        raise GraphError(
            f"steps wait for each other in a circle: {', '.join(circle[:8])}",
            where=by_key[circle[0]].where,
            fix="remove one of their after= or inputs",
        )


@frozen(kw_only=True)
class CaughtFailure:
    """The value of `@catch(var=…)`'s attribute: why the step failed. It is true; None there means that it did not fail.

    `type` is the exception's, with its module; where nothing was raised it is Metaflow's `FailureHandledByCatch`, and
    `cause` says what became of the process. `exception` is what the exception said.
    """

    step: str
    cause: str
    type: str
    message: str
    traceback: str = ""

    @property
    def exception(self) -> str:
        """What the exception said, or what became of the process."""
        return self.message

    @property
    def stacktrace(self) -> str | None:
        """The traceback as text; None where the process was killed."""
        return self.traceback or None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.type else f"{self.cause}: {self.message}"


@frozen(kw_only=True)
class FlowStep:
    """One step method."""

    name: str
    kind: StepKind
    targets: tuple[str, ...] = ()
    """The steps that `self.next` names."""
    join: bool = False
    """Whether it takes `inputs`."""
    name_of: str = ""
    """The attribute that a foreach or a switch reads."""
    cases: Mapping[str, str] = attrs.field(factory=dict)
    """A switch's values, as text → steps."""
    where: str = ""
    """The method's file and line."""
    next_at: str = ""
    """The file and line of its `self.next`."""
    doc: str = ""


@frozen(kw_only=True)
class FlowGraph:
    """All steps of a flow by name, in the order of the class; `start` and `end` are the names of its first and last."""

    name: str
    steps: Mapping[str, FlowStep]
    start: str = "start"
    end: str = "end"
    where: str = ""
    doc: str = ""

    def order(self) -> list[str]:
        """The steps in topological order, loops aside; unreachable ones come last."""
        done: list[str] = []
        visited: set[str] = set()
        line = [(self.start, False)]
        while line:
            name, finished = line.pop()
            if finished:
                done.append(name)
            elif name not in visited and name in self.steps:
                visited.add(name)
                line.append((name, True))
                line.extend((target, False) for target in self.steps[name].targets)
        return done[::-1] + [name for name in self.steps if name not in visited]

    def before(self) -> dict[str, list[str]]:
        """Each step → the steps that go to it."""
        predecessors: dict[str, list[str]] = {name: [] for name in self.steps}
        for step in self.steps.values():
            for target in step.targets:
                if target in predecessors and step.name not in predecessors[target]:
                    predecessors[target].append(step.name)
        return predecessors
