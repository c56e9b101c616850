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
from typing import Any, Callable, ClassVar, Final, Iterator, Literal, Mapping, Sequence

from stoker.backends.registry import refusal
from stoker.core.errors import StokerError, UsageError, nearest
from stoker.core.usercode import caller, source_line
from stoker.flows import decorators as flowdecorators
from stoker.flows.decorators import KINDS, NOTES, WHOLE, Note, make_note, notes_of
from stoker.flows.instance import FlowInstance, parameters_of
from stoker.flows.parameters import Config, Parameter, named
from stoker.flows.transitions import is_step, steps_of
from stoker.flows.user_decorators import USERS, Decorating, find_user_decorator, suggest
from stoker.run.attached import words_of

Phase = Literal["early", "late"]
"""`pre_mutate`, where everything may change, and `mutate`, where only steps' decorators may."""
Spec = tuple[str, str, list[Any], dict[str, Any]]
"""A decorator: name, name with its module, arguments, words."""

FLOW_MUTATORS: Final = "__stoker_flow_mutators__"
"""The attribute in which a class has its mutators, the one nearest to it first."""
STEP_MUTATORS: Final = "__stoker_step_mutators__"
"""The same of a step."""
_MARKS: Final = (USERS, STEP_MUTATORS)


class _Mutable:
    """Names, adds and compares decorators, for a flow and for a step. `by` is the mutator that makes the change."""

    IGNORE: Final = 1
    ERROR: Final = 2
    OVERRIDE: Final = 3

    def __init__(self, kind: Any, configs: Mapping[str, Any], by: Any, phase: Phase) -> None:
        self._kind = kind
        self._configs = configs
        self._by = by
        self._phase = phase

    @property
    def decorator_specs(self) -> Iterator[Spec]:
        """Every decorator: its name, its name with its module, its arguments and its words."""
        for note in self._notes():
            yield note.name, f"{flowdecorators.__name__}.{note.name}", [], dict(note.values)
        for user_decorator in self._user_decorators():
            yield (
                type(user_decorator).__name__,
                user_decorator.decorator_name,
                list(user_decorator._args),
                dict(user_decorator._kwargs),
            )

    def has_decorator(self, name: str) -> bool:
        """Whether there is a decorator of that name; one with a dot is a name with its module."""
        return bool(self.get_decorator_specs(name))

    def get_decorator_specs(self, name: str) -> list[Spec]:
        """The decorators of that name."""
        return [spec for spec in self.decorator_specs if name == spec["." in name]]

    @property
    def _at(self) -> str:
        """Where the mutator asks for it; the command line has no line."""
        return "--with" if self._by is None else caller()

    def _notes(self) -> list[Note]:
        raise NotImplementedError

    def _user_decorators(self) -> list[Any]:
        raise NotImplementedError

    def _require_pre_mutate(self, call: str) -> None:
        if self._phase == "late":
            raise UsageError(f"{call} is for pre_mutate, and too late in mutate", where=self._at, fix="move it there")

    def _resolve_decorator(
        self, deco_type: Any, args: Sequence[Any] | None, words: Mapping[str, Any] | None
    ) -> tuple[str | type[Decorating], list[Any], dict[str, Any]]:
        """What is to be added: a decorator's name or one's own class, its arguments, and its words."""
        args, words = list(args or ()), dict(words or {})
        kind: str | type[Decorating] | None
        if isinstance(deco_type, str):
            name, colon, text = deco_type.partition(":")
            if colon and (args or words):
                raise UsageError(f"{deco_type!r} has words, and deco_args or deco_kwargs has more", where=self._at)
            words = words_of(name, text, self._at) if colon else words
            kind = name if name in KINDS else find_user_decorator(name)
            if kind is None and refusal(name):
                raise UsageError(refusal(name), where=self._at)
            if kind is None:
                raise UsageError(f"there is no decorator '{name}'{suggest(name, KINDS)}", where=self._at)
        elif isinstance(deco_type, type) and issubclass(deco_type, Decorating):
            kind = deco_type
        else:
            kind = next((name for name in KINDS if flowdecorators.decorator(name) is deco_type), None)
            if kind is None:
                raise UsageError(
                    f"{deco_type!r} is no decorator", where=self._at, fix="hand over a decorator, or its name as a text"
                )
        if isinstance(kind, str) and args:
            raise UsageError(f"@{kind} takes words with names only", where=self._at, fix="write deco_kwargs={…}")
        return kind, args, words

    def _may_add(self, name: str, there: Sequence[Any], duplicates: int) -> bool:
        """Whether one more is added, by what is to become of a second one."""
        if duplicates not in (self.IGNORE, self.ERROR, self.OVERRIDE):
            raise UsageError(f"duplicates={duplicates!r}", where=self._at, fix="write MutableStep.OVERRIDE")
        if there and duplicates == self.ERROR and (self._by is None or self._by.statically_defined):
            raise UsageError(f"@{name} is there already", where=self._at, fix="write duplicates=MutableStep.OVERRIDE")
        return not there or duplicates == self.OVERRIDE

    def _instantiate(self, kind: type[Decorating], args: Sequence[Any], words: Mapping[str, Any]) -> Any:
        user_decorator = kind(*args, **words)
        user_decorator.where = self._at
        user_decorator.statically_defined = self._by is not None and self._by.statically_defined
        user_decorator.inserted_by = () if self._by is None else (self._by.decorator_name, *self._by.inserted_by)
        return user_decorator.instantiate(self._configs)


class MutableFlow(_Mutable):
    """A flow that a mutator may change; its steps, parameters and configs are attributes: `mutable_flow.start`."""

    @property
    def configs(self) -> Iterator[tuple[str, Any]]:
        """The flow's configs by name, with their values."""
        yield from named(self._configs).items()

    @property
    def parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The flow's parameters by attribute."""
        for name, parameter in parameters_of(self._kind).items():
            if name not in self._configs:
                yield name, parameter

    @property
    def steps(self) -> Iterator[tuple[str, MutableStep]]:
        """The flow's steps by name."""
        for name in steps_of(self._kind):
            yield name, MutableStep(self._kind, name, self._configs, self._by, self._phase)

    def add_parameter(self, name: str, value: Parameter, overwrite: bool = False) -> None:
        """Let the flow have one more parameter, in `pre_mutate`; `overwrite` lets it replace what is there."""
        self._require_pre_mutate(f"add_parameter('{name}')")
        parameter: object = value
        if not isinstance(parameter, Parameter) or isinstance(parameter, Config):
            raise UsageError(f"{value!r} is no Parameter", where=self._at, fix="write Parameter(…) or IncludeFile(…)")
        if hasattr(self._kind, name) and not overwrite:
            raise UsageError(
                f"flow {self._kind.__name__} has '{name}' already", where=self._at, fix="write overwrite=True"
            )
        setattr(self._kind, name, value)
        value.__set_name__(self._kind, name)

    def remove_parameter(self, parameter_name: str) -> bool:
        """Let the flow be without a parameter, in `pre_mutate`; whether it had one of that name."""
        self._require_pre_mutate(f"remove_parameter('{parameter_name}')")
        for name, parameter in self.parameters:
            if parameter.name == parameter_name:
                setattr(self._kind, name, _Removed())
                return True
        return False

    def add_decorator(
        self,
        deco_type: Any,
        deco_args: Sequence[Any] | None = None,
        deco_kwargs: Mapping[str, Any] | None = None,
        duplicates: int = _Mutable.IGNORE,
    ) -> Any:
        """Put a flow's decorator or a `FlowMutator` on it, in `pre_mutate`; what was added, None for nothing."""
        self._require_pre_mutate(f"add_decorator({_decorator_name(deco_type)})")
        kind, args, words = self._resolve_decorator(deco_type, deco_args, deco_kwargs)
        if isinstance(kind, str):
            if not KINDS[kind].of_flow:
                raise UsageError(f"@{kind} belongs on a step", where=self._at, fix="mutable_flow.start.add_decorator")
            notes: list[Note] = vars(self._kind)[WHOLE]
            if not self._may_add(kind, [note for note in notes if note.name == kind], duplicates):
                return None
            note = make_note(kind, words, self._at)
            notes[:] = [note, *(existing for existing in notes if existing.name != kind)]
            return note
        mutators = self._user_decorators()
        if kind.mark != FLOW_MUTATORS:
            raise UsageError(f"@{kind.__name__} belongs on {kind.target}", where=self._at)
        if not self._may_add(kind.__name__, [one for one in mutators if type(one) is kind], duplicates):
            return None
        mutator = self._instantiate(kind, args, words)
        mutators[:] = [*(one for one in mutators if type(one) is not kind), mutator]
        return mutator

    def remove_decorator(
        self, deco_name: str, deco_args: Sequence[Any] | None = None, deco_kwargs: Mapping[str, Any] | None = None
    ) -> bool:
        """Take a flow's decorator off, in `pre_mutate`; without words all of the name. Whether there was one."""
        self._require_pre_mutate(f"remove_decorator('{deco_name}')")
        if any(deco_name in (type(mutator).__name__, mutator.decorator_name) for mutator in self._user_decorators()):
            raise UsageError(f"{deco_name} is a FlowMutator, which runs already", where=self._at, fix="leave it")
        notes: list[Note] = vars(self._kind)[WHOLE]
        remaining = [note for note in notes if not _matches(note, deco_name, deco_args, deco_kwargs)]
        removed = len(remaining) < len(notes)
        notes[:] = remaining
        return removed

    def __getattr__(self, name: str) -> Any:
        if name in self._configs:
            return self._configs[name]
        attribute = None if name.startswith("_") else getattr(self._kind, name, None)
        if is_step(attribute):
            return MutableStep(self._kind, name, self._configs, self._by, self._phase)
        if isinstance(attribute, Parameter):
            return attribute
        names = [*steps_of(self._kind), *parameters_of(self._kind)]
        raise AttributeError(f"flow {self._kind.__name__} has no step or parameter '{name}'{nearest(name, names)}")

    def _notes(self) -> list[Note]:
        return list(vars(self._kind)[WHOLE])

    def _user_decorators(self) -> list[Any]:
        mutators: list[Any] = vars(self._kind)[FLOW_MUTATORS]
        return mutators


class MutableStep(_Mutable):
    """A step that a mutator may change; `name` is its name, `flow` the flow that it belongs to."""

    def __init__(self, kind: Any, name: str, configs: Mapping[str, Any], by: Any, phase: Phase) -> None:
        super().__init__(kind, configs, by, phase)
        self.name = name
        self._step = steps_of(kind)[name]

    @property
    def flow(self) -> MutableFlow:
        """The flow that the step belongs to."""
        return MutableFlow(self._kind, self._configs, self._by, self._phase)

    def add_decorator(
        self,
        deco_type: Any,
        deco_args: Sequence[Any] | None = None,
        deco_kwargs: Mapping[str, Any] | None = None,
        duplicates: int = _Mutable.IGNORE,
    ) -> Any:
        """Put a decorator on the step: `retry`, `"retry:times=3"`, a class of your own. What was added, or None."""
        kind, args, words = self._resolve_decorator(deco_type, deco_args, deco_kwargs)
        if isinstance(kind, str):
            if KINDS[kind].of_flow:
                raise UsageError(f"@{kind} belongs on a flow's class", where=self._at, fix="use mutable_step.flow")
            there = [] if KINDS[kind].many else [note for note in self._notes() if note.name == kind]
            if not self._may_add(kind, there, duplicates):
                return None
            note = make_note(kind, words, self._at)
            setattr(self._step, NOTES, (note, *(existing for existing in self._notes() if existing not in there)))
            return note
        if kind.mark not in _MARKS:
            raise UsageError(f"@{kind.__name__} belongs on {kind.target}", where=self._at)
        if hasattr(kind, "mutate"):
            self._require_pre_mutate(f"add_decorator({kind.__name__}), a StepMutator,")
        if not self._may_add(kind.__name__, [one for one in self._user_decorators() if type(one) is kind], duplicates):
            return None
        self._remove_user_decorators(lambda one: type(one) is kind)
        user_decorator = self._instantiate(kind, args, words)
        user_decorator._attach(self._step)
        return user_decorator

    def remove_decorator(
        self, deco_name: str, deco_args: Sequence[Any] | None = None, deco_kwargs: Mapping[str, Any] | None = None
    ) -> bool:
        """Take a decorator off; without arguments or words all of that name. Whether there was one."""
        every = deco_args is None and deco_kwargs is None

        def is_target(user_decorator: Any) -> bool:
            if deco_name not in (type(user_decorator).__name__, user_decorator.decorator_name):
                return False
            return every or (list(user_decorator._args), dict(user_decorator._kwargs)) == (
                list(deco_args or ()),
                dict(deco_kwargs or {}),
            )

        if any(
            is_target(user_decorator) and hasattr(user_decorator, "mutate")
            for user_decorator in self._user_decorators()
        ):
            self._require_pre_mutate(f"remove_decorator('{deco_name}'), of a StepMutator,")
        removed = self._remove_user_decorators(is_target)
        notes = self._notes()
        remaining = tuple(note for note in notes if not _matches(note, deco_name, deco_args, deco_kwargs))
        setattr(self._step, NOTES, remaining)
        return removed or len(remaining) < len(notes)

    def _notes(self) -> list[Note]:
        return list(notes_of(self._step))

    def _user_decorators(self) -> list[Any]:
        by_id = {id(one): one for mark in _MARKS for one in getattr(self._step, mark, ())}
        return list(by_id.values())

    def _remove_user_decorators(self, matches: Any) -> bool:
        count = len(self._user_decorators())
        for mark in _MARKS:
            setattr(self._step, mark, tuple(one for one in getattr(self._step, mark, ()) if not matches(one)))
        return len(self._user_decorators()) < count


class _Removed:
    """In the place of a parameter that a mutator removed: the flow's class has no such attribute."""

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError("a mutator removed this parameter")


def _matches(note: Note, name: str, args: Sequence[Any] | None, words: Mapping[str, Any] | None) -> bool:
    if name not in (note.name, f"{flowdecorators.__name__}.{note.name}"):
        return False
    return (args is None and words is None) or (not args and dict(note.values) == dict(words or {}))


def _decorator_name(deco_type: Any) -> str:
    return repr(deco_type) if isinstance(deco_type, str) else str(getattr(deco_type, "__name__", deco_type))


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


def apply_pre_mutate(kind: type[FlowInstance], configs: Mapping[str, Any]) -> type[FlowInstance]:
    """A flow as its mutators' `pre_mutate` leaves it; itself where it has none."""
    if not has_mutators(kind):
        return kind
    copy = _subclass(kind)
    setattr(copy, FLOW_MUTATORS, [mutator.instantiate(configs) for mutator in _of_flow(kind)])
    _run(copy, "early", configs)
    return copy


def apply_mutate(
    kind: type[FlowInstance], configs: Mapping[str, Any], attached: Sequence[str] = ()
) -> type[FlowInstance]:
    """What `apply_pre_mutate` made, with the command line's decorators and what `mutate` then leaves of it."""
    copy = _subclass(kind)
    setattr(copy, FLOW_MUTATORS, list(vars(kind).get(FLOW_MUTATORS, ())))
    for name in steps_of(copy):
        step = MutableStep(copy, name, configs, None, "early")
        for text in attached:
            step.add_decorator(text)
    _run(copy, "late", configs)
    return copy


def _of_flow(kind: type) -> list[Any]:
    """A flow's mutators, those that it inherits first."""
    if WHOLE in vars(kind):
        return list(vars(kind)[FLOW_MUTATORS])
    return [mutator for base in reversed(kind.__mro__) for mutator in vars(base).get(FLOW_MUTATORS, ())]


def _subclass(kind: type[FlowInstance]) -> type[FlowInstance]:
    """A class of the same name, with steps and notes of its own."""
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    steps = {name: _copy_step(step) for name, step in steps_of(kind).items()}
    return type(kind.__name__, (kind,), {**same, **steps, WHOLE: list(notes_of(kind))})


def _copy_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step with notes of its own; `inspect.unwrap` still finds its source."""

    @functools.wraps(step)
    def call(*args: Any) -> Any:
        return step(*args)

    return call


def _run(kind: type[FlowInstance], phase: Phase, configs: Mapping[str, Any]) -> None:
    """All mutators of a phase: the flow's, then those of each step, each with those that were added meanwhile."""
    mutators: list[Any] = vars(kind)[FLOW_MUTATORS]
    finished: list[Any] = []
    while waiting := [mutator for mutator in mutators if not any(mutator is earlier for earlier in finished)]:
        finished.append(waiting[0])
        _call(waiting[0], phase, MutableFlow(kind, configs, waiting[0], phase), f"flow '{kind.__name__}'")
    for step in steps_of(kind).values():
        if phase == "early":
            setattr(step, STEP_MUTATORS, [mutator.instantiate(configs) for mutator in getattr(step, STEP_MUTATORS, ())])
    for name, step in steps_of(kind).items():
        finished = []
        while waiting := [
            mutator for mutator in getattr(step, STEP_MUTATORS, ()) if not any(mutator is one for one in finished)
        ]:
            finished.append(waiting[0])
            _call(waiting[0], phase, MutableStep(kind, name, configs, waiting[0], phase), f"step '{name}'")


def _call(mutator: Any, phase: Phase, mutable: Any, target: str) -> None:
    call = f"{type(mutator).__name__}.{_PHASES[phase]} of {target}"
    try:
        getattr(mutator, _PHASES[phase])(mutable)
    except StokerError as error:
        raise type(error)(f"{call}: {error.message}", where=error.where or mutator.where, fix=error.fix) from error
    except Exception as error:  # the user's own mutator
        raise UsageError(
            f"{call} failed: {type(error).__name__}: {error}",
            where=_last_line(error) or mutator.where,
            fix=f"it was put there at {mutator.where}",
        ) from error


def _last_line(error: Exception) -> str:
    """The last line of the user's own that an error came from."""
    position = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] != "stoker":
            position = source_line(frame.f_code.co_filename, line)
    return position
