"""What a run needs of whatever can be run: one protocol, which pipelines and flows implement.

Nothing here, nor in the rest of this folder, knows which of them a program is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Protocol, Sequence, runtime_checkable

from stoker.core.values import frozen

if TYPE_CHECKING:
    from stoker.core.graph import Graph
    from stoker.core.plan import Plan, StepPlan
    from stoker.core.request import RunOption
    from stoker.core.settings import Layer
    from stoker.engine.dynamic import Body, DynamicBody
    from stoker.pipelines.signature import FunctionSignature
    from stoker.plan.planner import Planner
    from stoker.store.blobs import Blobs


class Program(Protocol):
    """A pipeline or a flow: what is planned, run and resumed."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def noun(self) -> str:
        """What it is, for messages: "pipeline" or "flow"."""

    @property
    def worker_imports(self) -> tuple[str, ...]:
        """Modules of Stoker's that every worker of the program needs: its fork server imports them ahead."""

    @property
    def where(self) -> str:
        """Where it is defined, as "train.py:14"."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function or the class that a later session finds again by its module and name."""

    @property
    def signature(self) -> FunctionSignature:
        """Its parameters."""

    @property
    def stack(self) -> str | None:
        """The stack that it asks for."""

    @property
    def schedule(self) -> tuple[str, str] | None:
        """The times and the time zone that its author gave it (`@schedule`), with "" for the machine's zone."""

    @property
    def triggers(self) -> tuple[str, ...]:
        """What its author has it run after, as `stoker watch-for` takes it (`@trigger`)."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of each of its runs."""

    @property
    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Functions that are called when a run ends, by "on_success" and "on_failure"."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Settings of the whole program, weakest first."""

    @property
    def dynamic(self) -> bool:
        """Whether a body decides while the run goes on which steps there are."""

    def run_options(self) -> Sequence[RunOption]:
        """Options of its command line beside those of every run, and instead of those of the same name."""

    def complete_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options of a command line, and those that environment variables give in their place."""

    def apply_options(self, options: Mapping[str, Any]) -> Program:
        """The program as the options of a command line make it."""

    def parse(self, words: Sequence[str], flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Parameters by name from the words of a command line, and the words that are none.

        `flags` are the options that may have been meant by a word that is no parameter's.
        """

    def parameter_rows(self) -> Sequence[tuple[str, str]]:
        """Rows of the help: each parameter as it is written, and its description."""

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters by name, checked, defaults filled in; texts are parsed."""

    def rebind(self, recorded: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments from those of an earlier run, with some that are given anew."""

    def describe_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bound arguments as the run's record shows them."""

    def hint(self, cpus: float, memory: int) -> None:
        """Its steps run on this machine, which has so many CPUs and so much memory in bytes."""

    def graph_of(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph for bound arguments, as far as it is known before the run."""

    def outline(self, arguments: Mapping[str, Any]) -> Graph:
        """The graph without what only running the program's code would tell."""

    def complete_plan(self, plan: Plan) -> Plan:
        """The plan with what the program adds to the steps and findings of the planner."""

    def body(self, start: ProgramStart) -> Body:
        """What decides about the steps of one run of a dynamic program."""

    def document(self, blobs: Blobs) -> Mapping[str, Any]:
        """What a later session needs beside `function` to make the same program again, as JSON; values in it are kept
        in `blobs`."""

    def restore(self, plan: Plan, blobs: Blobs) -> None:
        """Restore the program that a run was started with from its plan; called in a new session."""


@runtime_checkable
class DefinesProgram(Protocol):
    """A class that a program can be made of, such as a flow's."""

    @classmethod
    def __stoker_program__(cls) -> Program | None:
        """The program; None of a class that is only a base of others."""


@frozen(kw_only=True)
class ProgramStart:
    """What the body of a dynamic program is made of."""

    plan: Plan
    """The run's plan."""
    arguments: Mapping[str, Any]
    """Bound arguments; empty for a resumed program whose steps are planned beforehand."""
    planner: Planner
    """Plans steps that the body adds."""
    ready: Callable[[StepPlan], StepPlan]
    """Makes what a step needs before it can be sent, such as its image."""
    tags: tuple[str, ...] = ()
    """The run's tags."""
    origin: str = ""
    """The run that this one repeats; empty for a run of its own."""

    def calls(self, call: Callable[[DynamicBody], Any]) -> DynamicBody:
        """A body that calls the user's code beside the engine; the steps that it calls go to what `call` is given."""
        from stoker.engine.dynamic import DynamicBody

        return DynamicBody(call, self.planner, self.ready)


def program_of(value: Any) -> Program | None:
    """The program that a value is, or that a class defines; None where it is neither."""
    from stoker.pipelines.functional import Pipeline

    if isinstance(value, Pipeline):
        return value
    if isinstance(value, type) and issubclass(value, DefinesProgram):
        return value.__stoker_program__()
    return None


def programs_of(values: Mapping[str, Any]) -> dict[str, Program]:
    """The programs among a module's values, by the names that it gives them."""
    programs = ((name, program_of(value)) for name, value in values.items())
    return {name: program for name, program in programs if program is not None}
