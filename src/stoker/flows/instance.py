"""What the steps of a flow see as `self`, and `@step`, which marks them: artifacts are attributes of the instance.

In the driver a flow is only looked at. Where a task runs, `flows.task` makes an instance and puts a `RunningTask` into
it: attributes come from there, and what the method leaves behind is kept from there.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Protocol, TypeVar, overload

import attrs

from stoker.core.errors import GraphError, ParameterError, UsageError, nearest
from stoker.core.graph import OWN, STEP_MARK
from stoker.core.usercode import caller
from stoker.flows.exceptions import (
    MetaflowException,
    MissingInMergeArtifactsException,
    UnhandledInMergeArtifactsException,
)

F = TypeVar("F", bound=Callable[..., Any])

TASK: Final = "_stoker_task"
"""The attribute in which an instance has its `RunningTask`; it is no artifact."""


class RunningTask(Protocol):
    """What a running task gives its instance. `transition` is what its `self.next(…)` asked for."""

    transition: Transition | None

    def value(self, name: str) -> Any:
        """An artifact's value; AttributeError where there is none."""

    def parameter(self, name: str) -> Any:
        """A parameter's value; `UNSET` where the task has none."""

    def has_parameter(self, name: str) -> bool:
        """Whether a name is that of a parameter."""

    def step_name(self) -> str:
        """The name of its step."""

    def joins(self) -> bool:
        """Whether its step takes inputs."""

    def element(self) -> Any:
        """The foreach's element that the task is for."""

    def index(self) -> int | None:
        """Its place among them; None outside a foreach."""

    def stack(self) -> list[tuple[int, int, Any]]:
        """(index, number of splits, element) of every foreach around the task, outermost first."""

    def pass_on(self, name: str, wire: Any) -> None:
        """Take an artifact over as it is, without loading it."""

    def names(self) -> set[str]:
        """Artifacts that the task has now."""

    def forget(self, name: str) -> None:
        """Let an artifact end here."""


@attrs.frozen(kw_only=True)
class Transition:
    """What a step's `self.next(…)` asked for."""

    targets: tuple[str, ...]
    """The steps that follow."""
    kind: str
    """"linear", "split", "foreach", "parallel" or "switch"."""
    name: str = ""
    """The attribute of a foreach or of a condition."""
    count: int = 0
    """The number of nodes of a `num_parallel`."""
    where: str = ""
    """The line of the call."""


@overload
def step(function: F, /) -> F: ...
@overload
def step(*, start: bool = False, end: bool = False) -> Callable[[F], F]: ...
def step(function: Any = None, /, *, start: bool = False, end: bool = False) -> Any:
    """Make a method a step of its flow. `start=True` and `end=True` say which is the first and the last."""

    def mark(decorated: Any) -> Any:
        if not callable(decorated) or not hasattr(inspect.unwrap(decorated), "__code__"):
            fix = "let it be a method, or what functools.wraps makes of one; a mutator stands above @step"
            raise UsageError(f"@step on {decorated!r}, which is no method", where=caller(), fix=fix)
        setattr(decorated, STEP_MARK, {"start": start, "end": end})
        decorated.name = decorated.__name__
        return decorated

    return mark if function is None else mark(function)


class FlowInstance:
    """What every flow's class has from `FlowSpec`: artifacts as attributes, and the words that a step uses.

    `name` is the flow's, `index` and `input` are of the foreach that the task is in.
    """

    @property
    def name(self) -> str:
        """The flow's name."""
        return type(self).__name__

    @property
    def input(self) -> Any:
        """The element of the innermost foreach that this task is for; None outside one."""
        task = self._running("input")
        return None if task.index() is None else task.element()

    @property
    def index(self) -> int | None:
        """The place of this task among those of the innermost foreach; None outside one."""
        return self._running("index").index()

    def foreach_stack(self) -> list[tuple[int, int, Any]]:
        """(index, number of splits, element) of every foreach around this task, outermost first."""
        return self._running("foreach_stack").stack()

    def next(
        self,
        *dsts: Any,
        foreach: str | None = None,
        num_parallel: int | None = None,
        condition: str | None = None,
    ) -> None:
        """Say where the flow goes from here; a step's last statement."""
        task = self._running("next")
        transition = _transition(self, dsts, foreach=foreach, num_parallel=num_parallel, condition=condition)
        if task.transition is not None:
            raise GraphError(
                "self.next(…) is called a second time", where=transition.where, fix="call it once, at the end"
            )
        task.transition = transition

    def merge_artifacts(
        self, inputs: Any, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> None:
        """In a join: take over what is the same in all inputs that have it, by content and without loading it.

        What was set before stays. What differs is an error, unless `exclude` names it; with `include`, only that.
        After an error nothing was taken over.
        """
        task = self._running("merge_artifacts")
        if not task.joins():
            raise MetaflowException(
                f"merge_artifacts is for joins, and step '{task.step_name()}' takes no inputs", fix="leave it out"
            )
        _merge(task, list(inputs), _names(include, "include"), _names(exclude, "exclude"), include is not None)

    def _running(self, attribute: str) -> RunningTask:
        task = self.__dict__.get(TASK)
        if task is None:
            raise UsageError(
                f"self.{attribute} is asked for where no task runs", where=caller(), fix="use it in a step"
            )
        return task  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        # Only for what is neither in the instance nor in its class: an artifact that was not asked for before.
        task = self.__dict__.get(TASK)
        if task is None or name.startswith("__"):
            raise AttributeError(f"flow {type(self).__name__} has no attribute '{name}'")
        return task.value(name)

    def __setattr__(self, name: str, value: Any) -> None:
        task = self.__dict__.get(TASK)
        there = getattr(type(self), name, None)
        if task is not None and (name in OWN or name == TASK or isinstance(vars(FlowInstance).get(name), property)):
            raise AttributeError(f"self.{name} is the flow's own; give the artifact another name")
        if hasattr(there, STEP_MARK):
            raise AttributeError(f"self.{name} is a step; give the artifact another name")
        if isinstance(there, property) and there.fset is None:
            raise AttributeError(f"self.{name} is a property without a setter; give the artifact another name")
        if task is not None and name in constants_of(type(self)):
            raise AttributeError(
                f"self.{name} is a constant of class {type(self).__name__}: it is the same in every task; "
                "give the artifact another name"
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        task = self.__dict__.get(TASK)
        if task is not None and name in task.names():
            task.forget(name)
            self.__dict__.pop(name, None)
            return
        if task is not None:
            raise AttributeError(
                f"self.{name} cannot be deleted: there is no such artifact{nearest(name, task.names())}"
            )
        super().__delattr__(name)

    def __contains__(self, name: str) -> bool:
        task = self.__dict__.get(TASK)
        return name in self.__dict__ or (task is not None and name in task.names())

    def __iter__(self) -> Iterator[Any]:
        """The flow's steps, as methods that have their `name`, in the order of the class."""
        names = dict.fromkeys(name for base in reversed(type(self).__mro__) for name in vars(base))
        return (getattr(self, name) for name in names if hasattr(getattr(type(self), name, None), STEP_MARK))


# What self.next says


def _transition(
    flow: FlowInstance, dsts: tuple[Any, ...], *, foreach: Any, num_parallel: Any, condition: Any
) -> Transition:
    where = caller()
    forms = [form for form in (foreach, num_parallel, condition) if form is not None]
    if len(forms) > 1:
        raise GraphError(
            "self.next(…) has more than one of foreach, num_parallel and condition",
            where=where,
            fix="keep one of them",
        )
    if condition is not None:
        return _switch_transition(flow, dsts, condition, where)
    targets = tuple(_name_of(flow, target, where) for target in dsts)
    if not targets:
        raise GraphError("self.next() names no step", where=where, fix="write self.next(self.another_step)")
    if foreach is not None:
        return Transition(targets=targets, kind="foreach", name=str(foreach), where=where)
    if num_parallel is not None:
        if not isinstance(num_parallel, int) or isinstance(num_parallel, bool) or num_parallel < 1:
            raise GraphError(f"num_parallel={num_parallel!r} is not a number of nodes", where=where, fix="write 2")
        return Transition(targets=targets, kind="parallel", count=num_parallel, where=where)
    return Transition(targets=targets, kind="linear" if len(targets) == 1 else "split", where=where)


def _switch_transition(flow: FlowInstance, dsts: tuple[Any, ...], condition: Any, where: str) -> Transition:
    if len(dsts) != 1 or not isinstance(dsts[0], dict):
        fix = "write self.next({'a': self.a, 'b': self.b}, condition='attribute')"
        raise GraphError("a switch takes one dict of steps", where=where, fix=fix)
    try:
        value = getattr(flow, condition)
    except AttributeError:
        raise GraphError(
            f"condition='{condition}', but self.{condition} was not set", where=where, fix=f"set self.{condition}"
        ) from None
    cases = dsts[0]
    try:
        case = value if value in cases else str(value)
    except TypeError:
        case = str(value)
    if case not in cases:
        case_names = ", ".join(repr(key) for key in cases)
        raise GraphError(
            f"self.{condition} is {value!r}, and the switch has no such case: {case_names}",
            where=where,
            fix=f"set self.{condition} to one of these, or add {value!r}: self.a_step to the switch",
        )
    return Transition(targets=(_name_of(flow, cases[case], where),), kind="switch", name=condition, where=where)


def _name_of(flow: FlowInstance, target: Any, where: str) -> str:
    name = getattr(target, "__name__", "")
    if getattr(target, "__self__", None) is not flow or not hasattr(target, STEP_MARK):
        raise GraphError(f"self.next(…) is given {target!r}, which is no step of this flow", where=where)
    return str(name)


# Joins


def _names(names: Iterable[str] | None, option: str) -> set[str]:
    if isinstance(names, str):
        raise ParameterError(f"{option}={names!r} is one text", where=caller(), fix=f"write {option}=[{names!r}]")
    return set(names or ())


INTERNAL_ARTIFACTS_SET: Final[set[str]] = set()
"""Names that `merge_artifacts` leaves out, by Metaflow's name: a decorator of a user's may add some."""


def _merge(task: Any, inputs: list[Any], include: set[str], exclude: set[str], only: bool) -> None:
    where = caller()
    if include and exclude:
        raise MetaflowException(f"{where}: merge_artifacts takes include or exclude, not both", fix="leave one out")
    if not inputs:
        raise MetaflowException(f"{where}: merge_artifacts was given no inputs", fix="hand over the join's inputs")
    wires: list[Mapping[str, Any]] = [member.artifact_wires() for member in inputs]
    all_names = {name for artifacts in wires for name in artifacts}
    missing = sorted(include - all_names - task.names())
    if missing:
        raise MissingInMergeArtifactsException(
            f"merge_artifacts: no input has {missing[0]!r}{nearest(missing[0], all_names)}", missing, where=where
        )
    merged_names = (include if only else all_names) - exclude - task.names() - INTERNAL_ARTIFACTS_SET
    conflicts = []
    agreed: dict[str, Mapping[str, Any]] = {}
    for name in sorted(merged_names):
        contents = {
            (artifacts[name]["d"], artifacts[name]["s"]): artifacts[name] for artifacts in wires if name in artifacts
        }
        if len(contents) > 1:
            conflicts.append(name)
        else:
            agreed[name] = next(iter(contents.values()))
    if conflicts:
        raise UnhandledInMergeArtifactsException(
            f"merge_artifacts: the inputs differ in {', '.join(conflicts)}",
            conflicts,
            where=where,
            fix=f"set self.{conflicts[0]} before it, or leave it out: self.merge_artifacts(…, exclude={conflicts})",
        )
    for name, wire in agreed.items():
        task.pass_on(name, wire)


_CONSTANT_NAMES: Final[dict[type, frozenset[str]]] = {}


def constants_of(kind: type) -> frozenset[str]:
    """The names of the values that a flow's class and its bases define, such as `BATCH = 32`; a task cannot set them.

    Methods, classes, properties, other descriptors and what `FlowInstance` has are none.
    """
    if kind not in _CONSTANT_NAMES:
        members: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            if base not in FlowInstance.__mro__:
                members.update(vars(base))
        names = (name for name, value in members.items() if not name.startswith("__") and _is_constant(value))
        _CONSTANT_NAMES[kind] = frozenset(names)
    return _CONSTANT_NAMES[kind]


def _is_constant(value: Any) -> bool:
    is_descriptor = any(hasattr(type(value), method) for method in ("__get__", "__set__"))
    return not is_descriptor and not isinstance(value, type)


def parameters_of(kind: type) -> dict[str, Any]:
    """The parameters of a flow's class by attribute, those that it inherits first."""
    parameters: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if getattr(type(value), "is_flow_parameter", False):
                parameters[name] = value
            else:
                parameters.pop(name, None)
    return parameters
