"""`@user_step_decorator`: a generator of one's own around a step; what is before its `yield` runs first."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Final, Iterator, Mapping

from stoker.core.errors import UsageError
from stoker.frontends.places import caller

USERS: Final = "__stoker_flow_users__"
"""The attribute in which a step has the generators around it, innermost first."""
_FIX: Final = "write `def name(step_name, flow, inputs=None, attributes=None):` with one yield"


def user_step_decorator(function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """Make a generator function a decorator for steps: `def timed(step_name, flow, inputs=None, attributes=None)`."""
    if not inspect.isgeneratorfunction(function):
        raise UsageError(f"{function!r} is no generator", where=caller(), fix=_FIX)

    @functools.wraps(function)
    def decorate(target: Any = None, /, **attributes: Any) -> Any:
        def put(step: Any) -> Any:
            setattr(step, USERS, (*getattr(step, USERS, ()), (function, dict(attributes))))
            return step

        return put if target is None else put(target)

    return decorate


def around(method: Callable[..., Any], name: str, flow: Any, inputs: Any) -> None:
    """Call a step's method inside of what its users put around it."""
    call: Callable[[], Any] = method if inputs is None else functools.partial(method, inputs)
    for function, attributes in getattr(method, USERS, ()):
        call = functools.partial(_within, function, attributes, name, flow, inputs, call)
    call()


def _within(
    function: Callable[..., Iterator[Any]],
    attributes: Mapping[str, Any],
    name: str,
    flow: Any,
    inputs: Any,
    inner: Callable[[], Any],
) -> None:
    generator: Any = function(name, flow, inputs, attributes or None)
    try:
        next(generator)
    except StopIteration:
        raise UsageError(f"{function.__name__} around step '{name}' did not yield", fix=_FIX) from None
    try:
        inner()
    except Exception as error:  # the user's step: the generator sees it, and may deal with it
        try:
            generator.throw(error)
        except StopIteration:
            return
        raise UsageError(f"{function.__name__} around step '{name}' yields twice", fix=_FIX) from error
    if next(generator, _END) is not _END:
        raise UsageError(f"{function.__name__} around step '{name}' yields twice", fix=_FIX)


_END: Final = object()
