"""`FlowMutator` and `StepMutator`: code of one's own that changes a flow before it runs, by Metaflow's names.

    class Bigger(FlowMutator):
        def init(self, times): self.times = times
        def pre_mutate(self, mutable_flow): …     # configs are known; parameters and decorators may come and go
        def mutate(self, mutable_flow): …         # the command line is known, too; steps' decorators may

    @Bigger(2)
    class Train(FlowSpec): …

A class is never changed itself: what its mutators make of it is a class of the same name below it, so that the same
flow can be run again with other configs. Where a task runs, the same is made again from the run's own configs.
https://docs.metaflow.org/metaflow/composing-flows/mutators
"""

from __future__ import annotations

import functools
import traceback
from typing import Any, Callable, ClassVar, Final, Mapping, Sequence

from stoker.core.errors import StokerError, UsageError
from stoker.flows.decorators import WHOLE, notes_of
from stoker.flows.instance import FlowInstance
from stoker.flows.mutable import FLOW_MUTATORS, STEP_MUTATORS, MutableFlow, MutableStep, Phase
from stoker.flows.transitions import steps_of
from stoker.flows.user_decorators import Decorating
from stoker.pipelines.places import place

_PHASES: Final[Mapping[Phase, str]] = {"early": "pre_mutate", "late": "mutate"}


class FlowMutator(Decorating):
    """Derive from it, and put it on a flow: `pre_mutate` and `mutate` are called with the flow before it runs."""

    target = "a flow's class"
    mark: ClassVar[str] = FLOW_MUTATORS

    def pre_mutate(self, mutable_flow: MutableFlow) -> None:
        """Change the flow when its configs are known: parameters, its decorators, those of its steps."""

    def mutate(self, mutable_flow: MutableFlow) -> None:
        """Change the steps' decorators when the command line is known, too."""

    def _belongs_on(self, target: Any) -> bool:
        return isinstance(target, type) and issubclass(target, FlowInstance)


class StepMutator(Decorating):
    """Derive from it, and put it above `@step`: `pre_mutate` and `mutate` are called with the step before the run."""

    mark: ClassVar[str] = STEP_MUTATORS

    def pre_mutate(self, mutable_step: MutableStep) -> None:
        """Change the step when the flow's configs are known: `mutable_step.add_decorator("retry", …)`."""

    def mutate(self, mutable_step: MutableStep) -> None:
        """Change it when the command line is known, too."""


def has_mutators(kind: type) -> bool:
    """Whether anything is to change a flow before it runs."""
    steps = steps_of(kind).values()
    return bool(_of_flow(kind)) or any(hasattr(step, STEP_MUTATORS) for step in steps)


def pre_mutated(kind: type[FlowInstance], configs: Mapping[str, Any]) -> type[FlowInstance]:
    """A flow as its mutators' `pre_mutate` leaves it; itself where it has none."""
    if not has_mutators(kind):
        return kind
    made = _below(kind)
    setattr(made, FLOW_MUTATORS, [found.ready(configs) for found in _of_flow(kind)])
    _run(made, "early", configs)
    return made


def mutated(kind: type[FlowInstance], configs: Mapping[str, Any], attached: Sequence[str] = ()) -> type[FlowInstance]:
    """What `pre_mutated` made, with the command line's decorators and what `mutate` then leaves of it."""
    made = _below(kind)
    setattr(made, FLOW_MUTATORS, list(vars(kind).get(FLOW_MUTATORS, ())))
    for name in steps_of(made):
        step = MutableStep(made, name, configs, None, "early")
        for text in attached:
            step.add_decorator(text)
    _run(made, "late", configs)
    return made


def _of_flow(kind: type) -> list[Any]:
    """A flow's mutators, those that it inherits first."""
    if WHOLE in vars(kind):
        return list(vars(kind)[FLOW_MUTATORS])
    return [found for base in reversed(kind.__mro__) for found in vars(base).get(FLOW_MUTATORS, ())]


def _below(kind: type[FlowInstance]) -> type[FlowInstance]:
    """A class of the same name, with steps and notes of its own."""
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    steps = {name: _copied(step) for name, step in steps_of(kind).items()}
    return type(kind.__name__, (kind,), {**same, **steps, WHOLE: list(notes_of(kind))})


def _copied(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step with notes of its own; `inspect.unwrap` still finds its source."""

    @functools.wraps(step)
    def call(*args: Any) -> Any:
        return step(*args)

    return call


def _run(made: type[FlowInstance], phase: Phase, configs: Mapping[str, Any]) -> None:
    """All mutators of a phase: the flow's, then those of each step, each with those that were added meanwhile."""
    mutators: list[Any] = vars(made)[FLOW_MUTATORS]
    done: list[Any] = []
    while waiting := [found for found in mutators if not any(found is other for other in done)]:
        done.append(waiting[0])
        _call(waiting[0], phase, MutableFlow(made, configs, waiting[0], phase), f"flow '{made.__name__}'")
    for step in steps_of(made).values():
        if phase == "early":
            setattr(step, STEP_MUTATORS, [found.ready(configs) for found in getattr(step, STEP_MUTATORS, ())])
    for name, step in steps_of(made).items():
        done = []
        while waiting := [found for found in getattr(step, STEP_MUTATORS, ()) if not any(found is one for one in done)]:
            done.append(waiting[0])
            _call(waiting[0], phase, MutableStep(made, name, configs, waiting[0], phase), f"step '{name}'")


def _call(mutator: Any, phase: Phase, mutable: Any, what: str) -> None:
    said = f"{type(mutator).__name__}.{_PHASES[phase]} of {what}"
    try:
        getattr(mutator, _PHASES[phase])(mutable)
    except StokerError as error:
        raise type(error)(f"{said}: {error.message}", where=error.where or mutator.where, fix=error.fix) from error
    except Exception as error:  # the user's own mutator
        raise UsageError(
            f"{said} failed: {type(error).__name__}: {error}",
            where=_last_line(error) or mutator.where,
            fix=f"it was put there at {mutator.where}",
        ) from error


def _last_line(error: Exception) -> str:
    """The last line of the user's own that an error came from."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] != "stoker":
            found = place(frame.f_code.co_filename, line)
    return found
