"""`run_with_accelerate`: a decorator for steps whose ranks `accelerate launch` starts.

    @run_with_accelerate(num_processes=4, mixed_precision="bf16")
    @step
    def train(...): ...

It is the same as `@step(launch=Accelerate(num_processes=4, mixed_precision="bf16"))`. Accelerate must be installed
where the step runs, not where the pipeline is written.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Final, Mapping, TypeVar, overload

from stoker.core.errors import UsageError
from stoker.core.settings import Launch
from stoker.core.usercode import caller
from stoker.launchers.accelerate import Accelerate
from stoker.pipelines.functional import LAUNCH_MARK, Pipeline, Step
from stoker.pipelines.handles import Future, Handles, StepHandle
from stoker.pipelines.tracing import ACTIVE

__all__ = ["DecoratorMisused", "run_with_accelerate"]

F = TypeVar("F", bound=Callable[..., Any])

_RIGHT_FORM: Final = """
Write it above or below @step, where the step is defined:

    @run_with_accelerate(num_processes=4, multi_gpu=True)
    @step
    def train(...):
        ...

and call the step in the pipeline as it is:

    @pipeline
    def training():
        train(...)
"""


class DecoratorMisused(UsageError, RuntimeError):
    """`run_with_accelerate` was used in a wrong place; the message shows the right form."""


@overload
def run_with_accelerate(step: F, /, **arguments: Any) -> F: ...
@overload
def run_with_accelerate(**arguments: Any) -> Callable[[F], F]: ...
def run_with_accelerate(step: Any = None, /, **arguments: Any) -> Any:
    """Run a step's ranks under Accelerate; bare, or with arguments of `accelerate launch` by their Python names.

    Stands above or below `@step`. Another use raises `DecoratorMisused`, a `RuntimeError` that shows the right form.
    """
    if step is None:
        # Checked here, so that an error's traceback ends at the decorator.
        launch = Accelerate(**arguments)
        return lambda decorated: _with_launch(decorated, launch, arguments)
    return _with_launch(step, Accelerate(**arguments), arguments)


def _with_launch(step: Any, launch: Launch, arguments: Mapping[str, Any]) -> Any:
    if isinstance(step, (StepHandle, Handles, Future)):
        raise _misuse(f"was given {step!r}: the step has been called already, and this stands for its result.")
    if ACTIVE.get() is not None and not _at_module_level():
        name = getattr(step, "__name__", repr(step))
        keywords = ", ".join(f"{argument}={value!r}" for argument, value in arguments.items())
        hint = f"To launch only this call so, write {name}.with_options(launch=Accelerate({keywords}))(…)\n"
        raise _misuse(f"was used as a function inside a pipeline, on {name}.", hint)
    if isinstance(step, Pipeline):
        raise _misuse(f"stands on {step!r}: it is for a step.")
    if isinstance(step, Step):
        if _has_launch(step):
            raise _misuse(f"stands on {step!r}, which has a launcher already: keep one of the two.")
        return step.with_options(launch=launch)
    if not callable(step) or isinstance(step, type):
        raise _misuse(f"stands on {step!r}, which is not a step.")
    if getattr(step, LAUNCH_MARK, None) is not None:
        raise _misuse(f"stands on {step.__name__} twice: keep one of the two.")
    setattr(step, LAUNCH_MARK, launch)
    return step


def _misuse(problem: str, hint: str = "") -> DecoratorMisused:
    from stoker.pipelines.scripts import watch_script

    watch_script()  # a called pipeline would do this: it makes a script end with the message instead of a traceback
    return DecoratorMisused(f"run_with_accelerate {problem}\n{_RIGHT_FORM}{hint}", where=caller())


def _at_module_level() -> bool:
    """Whether the caller is a module that is being imported, possibly by an import inside a pipeline."""
    frame = sys._getframe(1)
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "<module>"


def _has_launch(step: Step[..., Any]) -> bool:
    """Whether a step has a launcher already, from either decorator."""
    layers = (*step.spec.layers, *step._options.get("layers", ()))
    return any("launch" in layer.values for layer in layers)
