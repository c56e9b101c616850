"""`run_with_accelerate`: a step whose ranks `accelerate launch` starts.

    @run_with_accelerate(num_processes=4, mixed_precision="bf16")
    @step
    def train(...): ...

It says no more than `@step(launch=Accelerate(num_processes=4, mixed_precision="bf16"))`. Accelerate itself is needed
where the step runs, not where the pipeline is written.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Final, Mapping, TypeVar, overload

from stoker.core.errors import UsageError
from stoker.core.launch import Launch
from stoker.launchers.accelerate import Accelerate
from stoker.pipelines.functional import Pipeline, Step
from stoker.pipelines.handles import Future, Handles, StepHandle
from stoker.pipelines.options import LAUNCH_MARK
from stoker.pipelines.places import caller
from stoker.pipelines.tracing import ACTIVE

__all__ = ["DecoratorMisused", "run_with_accelerate"]

F = TypeVar("F", bound=Callable[..., Any])

RIGHT: Final = """
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
    """`run_with_accelerate` stands where it cannot; the message shows the right form."""


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
        return lambda decorated: _launched(decorated, launch, arguments)
    return _launched(step, Accelerate(**arguments), arguments)


def _launched(step: Any, launch: Launch, arguments: Mapping[str, Any]) -> Any:
    if isinstance(step, (StepHandle, Handles, Future)):
        raise _misuse(f"was given {step!r}: the step has been called already, and this stands for its result.")
    if ACTIVE.get() is not None and not _at_module_level():
        name = getattr(step, "__name__", repr(step))
        shown = ", ".join(f"{argument}={value!r}" for argument, value in arguments.items())
        more = f"To launch only this call so, write {name}.with_options(launch=Accelerate({shown}))(…)\n"
        raise _misuse(f"was used as a function inside a pipeline, on {name}.", more)
    if isinstance(step, Pipeline):
        raise _misuse(f"stands on {step!r}: it is for a step.")
    if isinstance(step, Step):
        if _decorated(step):
            raise _misuse(f"stands on {step!r}, which has a launcher already: keep one of the two.")
        return step.with_options(launch=launch)
    if not callable(step) or isinstance(step, type):
        raise _misuse(f"stands on {step!r}, which is not a step.")
    if getattr(step, LAUNCH_MARK, None) is not None:
        raise _misuse(f"stands on {step.__name__} twice: keep one of the two.")
    setattr(step, LAUNCH_MARK, launch)
    return step


def _misuse(what: str, more: str = "") -> DecoratorMisused:
    from stoker.pipelines.scripts import watch_script

    watch_script()  # no pipeline has been called yet that would have a script end with a message instead of a traceback
    return DecoratorMisused(f"run_with_accelerate {what}\n{RIGHT}{more}", where=caller())


def _at_module_level() -> bool:
    """Whether a module is being imported that defines steps, maybe by an import inside a pipeline."""
    frame = sys._getframe(1)
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "<module>"


def _decorated(step: Step[..., Any]) -> bool:
    """Whether a launch stands on a step already, by either way."""
    layers = (*step.spec.layers, *step._options.get("layers", ()))
    return any("launch" in layer.values for layer in layers)
