"""Hooks as ZenML calls them: `on_failure(exception)`, `on_success()`, with the step's context, once for each step.

A hook runs in a process of its own after its step, whose exception is gone by then: one of its class is made of what
was recorded of it.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Final

from stoker.core.errors import UsageError
from stoker.core.protocol import HookFacts
from stoker.worker.context import enter

IN_HOOK: Final = 0
"""The number of the attempt that a hook has in its context."""
_CALLER: Final = f"{__name__}:call"


class Hook:
    """A function of the user's that is called by ZenML's rules."""

    __stoker_caller__ = _CALLER

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__stoker_function__ = function

    def __call__(self, facts: HookFacts) -> None:
        call(self.__stoker_function__, facts)


def hook_of(option: str, given: Any) -> Any:
    """What stands in Stoker's options for a hook; a text names its function, "package.module.function"."""
    if isinstance(given, Hook):
        return given
    if isinstance(given, str):
        module, _, name = given.rpartition(".")
        try:
            given = getattr(importlib.import_module(module), name)
        except (ImportError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{option}={given!r} cannot be imported: {error}", fix="give the function itself"
            ) from error
    return Hook(given) if callable(given) else given


def call(hook: Callable[..., Any], facts: HookFacts) -> None:
    """Call a hook with what its parameters ask for: the exception and, in old releases, the step's context."""
    with enter({"run": facts.run, "key": facts.step, "attempt": IN_HOOK}):
        given: dict[str, Any] = {}
        for name, parameter in inspect.signature(hook).parameters.items():
            kind = parameter.annotation
            if isinstance(kind, str):
                kind = getattr(hook, "__globals__", {}).get(kind)
            if getattr(kind, "__name__", "") == "StepContext":
                given[name] = kind()
            elif facts.status != "succeeded" and parameter.kind not in _VARIADIC:
                given[name] = exception_of(facts)
        hook(**given)


def exception_of(facts: HookFacts) -> BaseException:
    """The step's exception; a `RuntimeError` where none ended it (its memory, its time limit, its machine)."""
    module, _, name = facts.type.rpartition(".")
    message = facts.message.removeprefix(f"{name}: ")  # what alone would say nothing, as a KeyError's, has it before it
    try:
        kind: Any = getattr(importlib.import_module(module or "builtins"), name)
        error: BaseException = _made(kind, message)
    except Exception:  # a local class, a module that is the program itself, a constructor of the user's
        error = _made(RuntimeError, message)
    if facts.traceback:
        error.add_note(facts.traceback)
    return error


def _made(kind: Any, message: str) -> Any:
    """An exception of a class whose text is `message`."""
    error = kind.__new__(kind, message)
    if str(error) == message:
        return error
    members = {"__str__": lambda self: message, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    said = type(kind.__name__, (kind,), members)
    return said.__new__(said, message)


_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
