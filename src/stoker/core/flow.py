"""A flow as data: its steps, and where each of them may go next. What the class form adds to a graph.

The front end reads it from the step methods (`flows.transitions`), the engine follows it, the command line shows
it. Also the names of the outputs in which a finished task records where it goes.
"""

from __future__ import annotations

from typing import Final, Literal, Mapping

import attrs

from stoker.core.values import frozen

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
