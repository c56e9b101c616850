"""Decorators of one's own around a step, by Metaflow's names: `@user_step_decorator` and `UserStepDecorator`.

A generator's part before its `yield` runs before the step, the rest after it; the class form has a method for each.
Where they run, `call_wrapped` calls the step inside of them: https://docs.metaflow.org/metaflow/composing-flows/introduction
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Callable, ClassVar, Final, Iterator, Mapping

from stoker.core.errors import StokerError, UsageError, nearest
from stoker.core.graph import STEP_MARK
from stoker.core.usercode import caller
from stoker.flows.parameters import fill_configs

USERS: Final = "__stoker_flow_users__"
"""The attribute in which a step has the `UserStepDecorator`s around it, innermost first."""
USER_SKIP_STEP: Final[dict[str, Any]] = {}
"""What a `@user_step_decorator` yields so that the step itself does not run: `yield USER_SKIP_STEP`."""
_FIX: Final = "write `def name(step_name, flow, inputs=None, attributes=None):` with one yield"
_NEXT: Final = "return None, True, or a dict of words for self.next"
_KNOWN: Final[dict[str, type[Decorating]]] = {}
"""Decorators and mutators by module and name, as far as they are imported."""


class Decorating:
    """What decorators and mutators of one's own have in common: what they were given, where, and how they begin.

    `statically_defined` is False for what the command line attached, `inserted_by` names the mutators that added it.
    """

    target: ClassVar[str] = "a step, above @step"
    mark: ClassVar[str] = USERS

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] != "stoker":
            _KNOWN[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def __new__(cls, *args: Any, **attributes: Any) -> Any:
        decorator = super().__new__(cls)
        decorator._set_up(args, attributes)
        if args and decorator._belongs_on(args[0]):  # bare: `@Timed` instead of `@Timed()`
            decorator._args = args[1:]
            return decorator._attach(args[0])
        return decorator

    def __init__(self, *args: Any, **attributes: Any) -> None:
        """Give what `init` takes."""

    def __call__(self, target: Any) -> Any:
        if not self._belongs_on(target):
            raise UsageError(f"@{type(self).__name__} on {target!r}: it belongs on {self.target}", where=self.where)
        return self._attach(target)

    def init(self, *args: Any, **attributes: Any) -> None:
        """Take the decorator's arguments; write it yourself if there are any."""

    @property
    def decorator_name(self) -> str:
        """Module and name."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def instantiate(self, configs: Mapping[str, Any]) -> Any:
        """A fresh one of its kind whose `init` was called, with the values of configs in its arguments."""
        fresh = copy.copy(self)
        fresh._args = tuple(fill_configs(value, configs) for value in self._args)
        fresh._kwargs = {name: fill_configs(value, configs) for name, value in self._kwargs.items()}
        title = f"@{type(self).__name__}"
        if type(self).init is Decorating.init:
            if self._args or self._kwargs:
                raise UsageError(
                    f"{title} is given arguments, and has no init", where=self.where, fix="write `def init(self, …):`"
                )
            return fresh
        try:
            fresh.init(*fresh._args, **fresh._kwargs)
        except StokerError:
            raise
        except Exception as error:  # the user's own init
            raise UsageError(f"{title}: init failed: {type(error).__name__}: {error}", where=self.where) from error
        return fresh

    def _set_up(self, args: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self._args = args
        self._kwargs = attributes
        self.where = caller()
        self.statically_defined = True
        self.inserted_by: tuple[str, ...] = ()

    def _belongs_on(self, target: Any) -> bool:
        return callable(target) and hasattr(target, STEP_MARK)

    def _attach(self, target: Any) -> Any:
        # One that is a decorator and a mutator at once is both.
        for mark in dict.fromkeys(vars(base)["mark"] for base in type(self).__mro__ if _marks(base)):
            setattr(target, mark, (*vars(target).get(mark, ()), self))
        return target


def _marks(kind: type) -> bool:
    return "mark" in vars(kind) and kind is not Decorating


class UserStepDecorator(Decorating):
    """Derive from it: `pre_step` runs before the step, `post_step` after it, `init` takes what the decorator is given.

    A `pre_step` that returns a function has it called in the step's stead, one that sets `self.skip_step` skips it.
    """

    mark: ClassVar[str] = USERS  # its own, also for one that is a mutator, too
    skip_step: bool | dict[str, Any] = False

    def pre_step(self, step_name: str, flow: Any, inputs: Any = None) -> Callable[..., Any] | None:
        """What runs before the step; a function that it returns is called instead: `f(flow)`, or `f(flow, inputs)`."""
        return None

    def post_step(self, step_name: str, flow: Any, exception: Exception | None = None) -> Any:
        """What runs after it: the exception that is to go on, None for none, or (that, words for self.next)."""
        return exception, None


class _Generated(UserStepDecorator):
    """A generator function as a `UserStepDecorator`."""

    generator: ClassVar[Callable[..., Iterator[Any]]]
    takes_attributes: ClassVar[bool]

    def init(self, *args: Any, **attributes: Any) -> None:
        if args or (attributes and not self.takes_attributes):
            expected = "words with names" if args else "no words, since its generator takes three arguments"
            raise UsageError(f"@{type(self).__name__} takes {expected}", where=self.where, fix=_FIX)

    def pre_step(self, step_name: str, flow: Any, inputs: Any = None) -> Callable[..., Any] | None:
        more = (self._kwargs,) if self.takes_attributes else ()
        self._running: Any = type(self).generator(step_name, flow, inputs, *more)
        try:
            answer = next(self._running)
        except StopIteration:
            raise UsageError(
                f"{type(self).__name__} around step '{step_name}' did not yield",
                where=self.where,
                fix="yield once; to skip the step: yield USER_SKIP_STEP",
            ) from None
        if isinstance(answer, dict):
            self.skip_step = answer or True
            return None
        if answer is not None and not callable(answer):
            raise UsageError(
                f"{type(self).__name__} around step '{step_name}' yields {answer!r}",
                where=self.where,
                fix="yield nothing, a function to call instead, or a dict to skip the step",
            )
        return answer  # type: ignore[no-any-return]

    def post_step(self, step_name: str, flow: Any, exception: Exception | None = None) -> Any:
        try:
            if exception is None:
                next(self._running)
            else:
                self._running.throw(exception)
        except StopIteration as over:
            return over.value
        raise UsageError(f"{type(self).__name__} around step '{step_name}' yields twice", where=self.where, fix=_FIX)


def user_step_decorator(function: Callable[..., Iterator[Any]] | None = None, /, **attributes: Any) -> Any:
    """Make a generator function a decorator for steps: `def timed(step_name, flow, inputs=None, attributes=None)`.

    It yields nothing, `USER_SKIP_STEP` or words for self.next to skip the step, or a function to call in its stead.
    """
    if function is None:
        return user_step_decorator
    if not inspect.isgeneratorfunction(function):
        raise UsageError(f"{function!r} is no generator", where=caller(), fix=_FIX)
    count = len(inspect.signature(function).parameters)
    if count not in (3, 4):
        raise UsageError(f"{function.__name__} takes {count} arguments", where=caller(), fix=_FIX)
    names = {name: getattr(function, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(
        function.__name__, (_Generated,), {"generator": staticmethod(function), "takes_attributes": count == 4, **names}
    )


def find_user_decorator(name: str) -> type[Decorating] | None:
    """The decorator or mutator of one's own that a text names: its name, with as much of its module as is needed."""
    matches = [kind for full_name, kind in _KNOWN.items() if full_name == name or full_name.endswith(f".{name}")]
    if len(matches) > 1:
        raise UsageError(
            f"several decorators are called '{name}'",
            fix=f"write {' or '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in matches)}",
        )
    return matches[0] if matches else None


def suggest(name: str, names: Any) -> str:
    """A name that may have been meant: one of the others, or of one's own decorators."""
    return nearest(name, [*names, *(kind.__qualname__ for kind in _KNOWN.values())])


def call_wrapped(method: Callable[..., Any], name: str, flow: Any, inputs: Any, configs: Mapping[str, Any]) -> Any:
    """Call a step's method inside its user decorators.

    Returns None where the step called `self.next` itself; otherwise True or words for `self.next`, which the caller
    calls instead.
    """
    arguments = () if inputs is None else (inputs,)
    entered: list[UserStepDecorator] = []
    instead: Callable[..., Any] | None = None
    way: Any = None
    for template in reversed(getattr(method, USERS, ())):
        wrapper: UserStepDecorator = template.instantiate(configs)
        instead = wrapper.pre_step(name, flow, inputs)
        entered.append(wrapper)
        if wrapper.skip_step:
            way = wrapper.skip_step
        if way or instead:
            break
    failure: Exception | None = None
    failed = False
    try:
        if not way and instead is not None:
            way = instead(flow, *arguments) or None
        elif not way:
            method(*arguments)
    except Exception as error:  # the user's step: its decorators get the exception, and may handle it
        failure, failed = error, True
    for wrapper in reversed(entered):
        failure, way = _run_post_step(wrapper, name, flow, failure, way)
    if failure is not None:
        raise failure
    if way is None or way is False:
        return True if failed else None
    if way is not True and not isinstance(way, dict):
        raise UsageError(f"step '{name}' is to go on by {way!r}", fix=_NEXT)
    return way or True


def _run_post_step(
    wrapper: UserStepDecorator, name: str, flow: Any, failure: Exception | None, way: Any
) -> tuple[Exception | None, Any]:
    """Call a decorator's `post_step`; the failure and the transition that it leaves."""
    try:
        answer = wrapper.post_step(name, flow, failure)
    except Exception as error:  # the user's own, often the step's, which it lets through
        return error, way
    if answer is None or isinstance(answer, Exception):
        return answer, way
    if isinstance(answer, tuple) and len(answer) == 2:
        return answer[0], way if answer[1] is None else answer[1]
    raise UsageError(
        f"{type(wrapper).__name__} around step '{name}' ends with {answer!r}",
        where=wrapper.where,
        fix="return an exception, None, or (an exception or None, words for self.next)",
    )
